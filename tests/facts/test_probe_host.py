"""What a node sends of itself, on a made-up root directory, and what becomes of it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from facts import host_reading, probe, probe_host
from facts.host import NOT_ASKED, Definition, DockerSide, HostFacts, NmProfile
from facts.node import NodeProbe, Query, from_output
from facts.unknown import Unknown
from tests.facts.tools.samples import sample


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root directory of the test's own, in which no tool is installed."""
    monkeypatch.setattr(probe, "ROOT", str(tmp_path))
    (tmp_path / "proc").mkdir()
    return tmp_path


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def tool(root: Path, monkeypatch: pytest.MonkeyPatch, name: str, body: str) -> None:
    """A tool that a test brings along."""
    place = root / "usr/bin" / name
    put(place, f"#!/bin/sh\n{body}\n")
    place.chmod(0o755)
    monkeypatch.setattr(
        probe, "_which", lambda wanted: str(root / "usr/bin" / wanted) if (root / "usr/bin" / wanted).exists() else None
    )


def port(root: Path, hca: str, netdev: str, pci: str, lit: bool = True) -> None:
    device = root / "sys/class/infiniband" / hca
    (device / "device/net" / netdev).mkdir(parents=True)
    put(device / "device/uevent", f"DRIVER=mlx5_core\nPCI_SLOT_NAME={pci}\n")
    put(device / "device/current_link_width", "4\n")
    put(device / "device/current_link_speed", "32.0 GT/s PCIe\n")
    put(device / "ports/1/state", "4: ACTIVE\n" if lit else "1: DOWN\n")
    put(device / "fw_ver", "28.45.4028\n")
    net = root / "sys/class/net" / netdev
    put(net / "address", f"02:5a:00:00:0{pci[3]}:0{pci[-1]}\n")
    put(net / "flags", "0x1003\n" if lit else "0x1002\n")
    put(net / "mtu", "9000\n")
    if lit:
        put(net / "carrier", "1\n")
        put(net / "speed", "200000\n")


def raw(level: str = "brief", home: str = "/home/spark") -> dict[str, Any]:
    """The node's side, as it would travel."""
    tools = probe_host.begin({"host": level})
    found: dict[str, Any] = json.loads(json.dumps(probe_host.finish(tools, home, "root")))
    return found


LINKS = {"enp1s0f0np0": {"mtu": 9000, "flags": [], "master": None, "addresses": ["10.200.0.1/24"]}}


def facts(level: str = "brief", **more: Any) -> HostFacts:
    return host_reading.read({"host": raw(level), "links": LINKS, "docker": {"answers": False}, **more})


@pytest.mark.report("NET-24", "NET-01")
def test_ports_of_all_hcas(root: Path) -> None:
    """A port's two halves have one function in two domains, whatever their order and their names."""
    for hca, netdev, pci, lit in (
        ("rocep1s0f0", "enp1s0f0np0", "0000:01:00.0", True),
        ("rocep1s0f1", "enp1s0f1np1", "0000:01:00.1", False),
        ("roceP2p1s0f0", "enP2p1s0f0np0", "0002:01:00.0", True),
        ("roceP2p1s0f1", "enP2p1s0f1np1", "0002:01:00.1", False),
    ):
        port(root, hca, netdev, pci, lit)
    found = facts().ports
    assert not isinstance(found, Unknown)
    assert [(one.netdev, one.domain, one.function, one.carrier, one.speed_mbps) for one in found] == [
        ("enP2p1s0f0np0", "0002", "0", True, 200_000),
        ("enP2p1s0f1np1", "0002", "1", None, None),
        ("enp1s0f0np0", "0000", "0", True, 200_000),
        ("enp1s0f1np1", "0000", "1", None, None),
    ]
    assert (str(found[2].addresses[0]), found[2].mtu, found[2].link_width) == ("10.200.0.1/24", 9000, 4)


def test_addresses_that_are_not_known_make_no_port_without(root: Path) -> None:
    port(root, "rocep1s0f0", "enp1s0f0np0", "0000:01:00.0")
    found = host_reading.read({"host": raw(), "links": {"error": "ip did not answer within 20 s"}})
    assert found.ports == Unknown("ip did not answer within 20 s")
    assert found.definitions == ()


@pytest.mark.report("NET-15", "NET-08", "NET-17")
def test_definitions_of_somebody_else(root: Path) -> None:
    port(root, "rocep1s0f0", "enp1s0f0np0", "0000:01:00.0")
    text = "network:\n  ethernets:\n    enp1s0f0np0:\n      addresses: [10.9.0.1/24]\n"
    put(root / "etc/netplan/40-cx7.yaml", text)
    put(root / "etc/netplan/60-sparkpair.yaml", text)
    put(root / "etc/netplan/90-other.yaml", "network:\n  ethernets:\n    enP7s7: {}\n")
    put(root / "run/systemd/network/10-netplan-enp1s0f0np0.network", "[Match]\nName=enp1s0f0np0\n")
    put(root / "etc/systemd/network/10-mine.network", "[Match]\nName=enp1s0f0np0\n")
    os.symlink("/dev/null", root / "etc/systemd/network/20-off.network")
    put(root / "run/NetworkManager/system-connections/x.nmconnection", sample("rail.nmconnection"))
    found = facts()
    assert found.definitions == (
        Definition("/etc/netplan/40-cx7.yaml", 3, "enp1s0f0np0", "enp1s0f0np0", "netplan", True, "", ("10.9.0.1/24",)),
        Definition(
            "/etc/systemd/network/10-mine.network", 2, "10-mine.network", "enp1s0f0np0", "networkd", True, "networkd"
        ),
        Definition(
            "/run/NetworkManager/system-connections/x.nmconnection", 5, "my: rail", "enp1s0f0np0", "NetworkManager",
            True, "NetworkManager", ("10.9.0.2/24",), 9000, volatile=True,
        ),
    )  # fmt: skip
    assert found.network_texts == {"/etc/netplan/40-cx7.yaml": text}


def test_no_password_leaves_a_node(root: Path) -> None:
    """Of a file with one, there is no text to write back either."""
    port(root, "rocep1s0f0", "enp1s0f0np0", "0000:01:00.0")
    put(
        root / "etc/netplan/10-all.yaml",
        "network:\n  ethernets:\n    enp1s0f0np0: {}\n  wifis:\n    wl0:\n      access-points:\n"
        '        "home": {password: "geheim-1"}\n        other:\n          password: geheim-2, geheim-2\n'
        "          auth: {key-management: psk, psk: geheim-3, client-key-password: geheim-4}\n"
        "      auth:\n        password: |\n          geheim-8\n\n          geheim-9\n"
        "        psk:\n          geheim-10\n"
        '        secret: "geheim-11\n          geheim-12"\n        done: 1\n'
        "  tunnels:\n    wg0: {key: {private: geheim-13}, keys: {private: 'geheim-14'}}\n"
        "    wg1:\n      peers:\n      - keys:\n          public: abc\n          shared: geheim-15\n",
    )
    put(
        root / "etc/NetworkManager/system-connections/w.nmconnection",
        "[connection]\nid=w\ninterface-name=enp1s0f0np0\n[wifi-security]\npsk=geheim-5\n[802-1x]\npassword=geheim-6\n",
    )
    put(root / "home/spark/.docker/config.json", '{"currentContext": "far", "auths": {"x": {"auth": "geheim-7"}}}')
    proxies = {"http-proxy": "http://me:geheim-16@proxy:3128"}
    put(root / "etc/docker/daemon.json", json.dumps({"proxies": proxies, "runtimes": {"nvidia": {}}}))
    sent = raw()
    assert "geheim" not in json.dumps(sent)
    found = host_reading.read({"host": sent, "links": LINKS, "docker": {"answers": False}})
    assert not isinstance(found.definitions, Unknown)
    assert [item.line for item in found.definitions] == [3, 3]
    assert found.network_texts == {}
    assert isinstance(found.docker, DockerSide)
    assert found.docker.user_context == "far"
    assert found.docker.settings_runtimes == ("nvidia",)
    put(root / "etc/docker/daemon.json", '{"proxies": {"http-proxy": "http://me:geheim-17@proxy"},}')
    assert "geheim" not in json.dumps(raw())


@pytest.mark.parametrize(
    "lines",
    [
        'password: "a\n\n  geheim"\ndone: 1\n',  # a quoted value may go on in lines that are less deep
        "      password: 'a\n  geheim'\n",
        "password: # of the house\n  geheim\n",
        "password: &one\n  geheim\n",
        "password: !!str\n  geheim\n",
        "keys:\n  public: x\n  shared: geheim\n",
        "keys: {public: x, shared: geheim}\n",
    ],
)
def test_odd_forms_of_a_password_do_not_leave_a_node_either(lines: str) -> None:
    told = probe_host._without_secrets(lines)
    assert "geheim" not in told
    assert told.count("\n") == lines.count("\n")
    assert ("done" in told) == ("done" in lines)


def test_a_broken_file_is_named(root: Path) -> None:
    port(root, "rocep1s0f0", "enp1s0f0np0", "0000:01:00.0")
    put(root / "etc/netplan/10-x.yaml", "network: [\n")
    found = facts()
    assert isinstance(found.definitions, Unknown)
    assert found.definitions.reason.startswith("/etc/netplan/10-x.yaml, line 2 said ")
    assert not isinstance(found.ports, Unknown)


def test_a_tool_that_is_not_installed(root: Path) -> None:
    found = facts("full")
    assert "nvidia-smi" in found.missing
    assert found.gpu_apps == found.gpu == Unknown("nvidia-smi is not installed")
    assert found.listeners == Unknown("ss is not installed")
    assert found.firmware == Unknown("fwupdmgr is not installed")
    assert found.netplan == Unknown("netplan is not installed")


def test_a_tool_that_fails_or_garbles(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(root, monkeypatch, "nvidia-smi", "echo 'NVIDIA-SMI has failed because it could not communicate'; exit 9")
    tool(root, monkeypatch, "nft", "echo 'table inet filter {'")
    found = facts()
    assert found.gpu_apps == Unknown("nvidia-smi apps exited 9: NVIDIA-SMI has failed because it could not communicate")
    assert isinstance(found.firewall, Unknown)
    assert found.firewall.reason.startswith("nft list ruleset said 'table inet filter { , and then no more'")


def test_a_tool_that_hangs_is_ended_with_all_that_it_started(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = raw()
    tool(root, monkeypatch, "nft", "sleep 60 & wait")
    began = time.monotonic()
    one = probe_host._Tool([str(root / "usr/bin/nft")], 0)
    answer = one.finish()
    assert answer["late"] == 0
    assert answer["code"] < 0
    assert time.monotonic() - began < 10
    found = host_reading.read({"host": {**others, "tools": {"nft": {**answer, "late": 5}}, "missing": []}})
    assert found.firewall == Unknown("nft did not answer within 5 s")


def test_what_a_tool_writes_is_bounded(root: Path) -> None:
    shout = root / "shout"
    put(shout, "#!/bin/sh\nhead -c 3000000 /dev/zero | tr '\\0' x\n")
    shout.chmod(0o755)
    answer = probe_host._Tool([str(shout)], 20).finish()
    assert len(answer["out"]) == probe_host.OUTPUT_BYTES


@pytest.mark.report("NET-06", "NET-25")
def test_network_manager(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = facts().network_manager
    assert not isinstance(found, Unknown)
    assert not found.running
    (root / "run/NetworkManager").mkdir(parents=True)
    assert facts().network_manager == Unknown("NetworkManager was here, and nmcli is not installed")
    tool(root, monkeypatch, "nmcli", "echo 'Error: NetworkManager is not running.' >&2; exit 8")
    stopped = facts().network_manager
    assert not isinstance(stopped, Unknown)
    assert not stopped.running
    profile = "/etc/NetworkManager/system-connections/my: rail.nmconnection"
    put(root / profile[1:], sample("rail.nmconnection"))
    put(root / "devices", sample("nmcli-device.txt"))
    put(root / "profiles", sample("nmcli-connection.txt"))
    tool(root, monkeypatch, "nmcli", f'case "$*" in *show) cat {root}/profiles;; *) cat {root}/devices;; esac')
    runs = facts().network_manager
    assert not isinstance(runs, Unknown)
    assert (runs.running, runs.devices[2].state) == (True, "unmanaged")
    assert runs.profiles[2] == NmProfile("my: rail", "600553bb-17d1-4f97-afb6-32a42dee318c", profile, "enp1s0f0np0")


@pytest.mark.report("NET-21")
def test_ufw_is_read_and_not_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(root, monkeypatch, "nft", "exit 1")
    put(root / "etc/ufw/ufw.conf", sample("ufw.conf"))
    put(root / "etc/default/ufw", sample("ufw-default"))
    put(root / "etc/ufw/user.rules", sample("ufw-user.rules"))
    found = facts().firewall
    assert not isinstance(found, Unknown)
    assert (found.manager, found.drops, found.rules[0]) == ("ufw", True, "allow 22/tcp")
    tool(root, monkeypatch, "ufw", "echo 'Status: inactive'")
    full = facts("full").firewall
    assert not isinstance(full, Unknown)
    assert full.manager == "", "enabled in its file, and not in force"


@pytest.mark.report("DKR-01", "DKR-02", "DKR-03")
def test_what_surrounds_docker(root: Path) -> None:
    put(root / "etc/docker/daemon.json", sample("S18-daemon.json"))
    put(root / "run/user/1000/docker.sock", "")
    (root / "snap/docker").mkdir(parents=True)
    put(root / "usr/bin/dockerd", "")
    (root / "usr/bin/dockerd").chmod(0o755)
    put(root / "proc/77/comm", "dockerd\n")
    put(root / "proc/77/cmdline", "/usr/bin/dockerd\0-H\0fd://\0")
    put(root / "proc/77/cgroup", "0::/system.slice/docker.service\n")
    put(root / "proc/77/limits", sample("limits.txt"))
    put(root / "proc/78/comm", "dockerd\n")
    put(root / "proc/78/cgroup", f"0::/system.slice/docker-{'a' * 64}.scope\n")
    info = {"answers": True, "security": ["name=rootless"], "driver": "overlay2", "root": "/var/lib/docker",
            "driver_status": [["driver-type", "io.containerd.snapshotter.v1"]]}  # fmt: skip
    found = facts(docker=info).docker
    assert isinstance(found, DockerSide)
    assert found.settings_runtimes == ("nvidia",)
    assert (found.snap, found.packaged, found.rootless) == (True, True, ("/run/user/1000/docker.sock",))
    assert (found.containerd_store, found.security, found.memlock) == (True, ("name=rootless",), None)
    assert found.daemons == ((77, "/usr/bin/dockerd -H fd://"),), "one in a container is somebody's else"
    put(root / "etc/docker/daemon.json", "{")
    damaged = facts(docker=info).docker
    assert isinstance(damaged, DockerSide)
    assert damaged.settings_trouble == "/etc/docker/daemon.json said '{', which cannot be read"


@pytest.mark.report("MEM-16", "RDMA-03")
def test_desktop_clock_and_the_rest(root: Path) -> None:
    put(root / "proc/9/comm", "gnome-shell\n")
    put(root / "proc/9/cgroup", "0::/user.slice/session-1.scope\n")
    put(root / "proc/10/comm", "chronyd\n")
    put(root / "proc/10/cgroup", "0::/system.slice/chrony.service\n")
    (root / "etc/systemd/system").mkdir(parents=True)
    os.symlink("/usr/lib/systemd/system/graphical.target", root / "etc/systemd/system/default.target")
    put(root / "etc/nccl.conf", "NCCL_IB_USE_INLINE=1\n")
    put(root / "etc/os-release", "ID=ubuntu\nVERSION_ID=24.04\n")
    put(root / "etc/dgx-release", sample("dgx-release.txt"))
    put(root / "proc/cmdline", "BOOT_IMAGE=/vmlinuz quiet\n")
    put(root / "proc/meminfo", sample("meminfo.txt"))
    put(root / "sys/class/dmi/id/product_name", "NVIDIA_DGX_Spark\n")
    put(root / "sys/class/dmi/id/bios_version", "5.36_0ACUM018\n")
    put(root / "sys/class/dmi/id/bios_date", "07/29/2025\n")
    put(root / "dev/infiniband/uverbs0", "")
    found = facts()
    assert not isinstance(found.session, Unknown)
    assert (found.session.default_target, found.session.graphical) == ("graphical.target", ((9, "gnome-shell"),))
    assert not isinstance(found.clock, Unknown)
    assert found.clock.service == "chronyd"
    assert abs(found.clock.seconds - time.time()) < 60
    assert found.nccl_conf == "NCCL_IB_USE_INLINE=1\n"
    assert found.cmdline == ("BOOT_IMAGE=/vmlinuz", "quiet")
    assert not isinstance(found.release, Unknown)
    assert found.release.dgx == "7.5.0"
    assert not isinstance(found.board, Unknown)
    assert (found.board.product, found.board.bios_date) == ("NVIDIA_DGX_Spark", "2025-07-29")
    assert found.devices == ("uverbs0",)
    assert found.page_size == os.sysconf("SC_PAGE_SIZE")
    assert found.kernel == os.uname().release


def test_what_was_not_asked() -> None:
    assert host_reading.read({}) == HostFacts()
    assert HostFacts().ports is NOT_ASKED


def test_a_side_that_failed_as_a_whole_says_why() -> None:
    found = host_reading.read({"host": {"error": "MemoryError"}, "links": {}, "docker": {}})
    assert found.ports == found.firewall == found.docker == Unknown("MemoryError")


ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    1e999,
    "",
    "x",
    [],
    [[]],
    [1, 2, 3],
    {},
    {"error": "gone"},
    {"a": {"b": []}},
    "9" * 5000,
)


def test_odd_answers_leave_every_other_part(root: Path) -> None:
    """Every value of the answer in turn is something else, and every tool says so."""
    port(root, "rocep1s0f0", "enp1s0f0np0", "0000:01:00.0")
    good = raw("full")
    for name in good:
        for odd in ODD:
            read = host_reading.read({"host": {**good, name: odd}, "links": LINKS, "docker": {"answers": False}})
            assert isinstance(read, HostFacts)
    for part in ("texts", "tools", "netdevs", "hcas", "network", "docker"):
        for key in good[part] or {"x": 1}:
            for odd in ODD:
                changed = {**good, part: {**good[part], key: odd}}
                assert isinstance(host_reading.read({"host": changed, "links": LINKS}), HostFacts)
    for odd in ODD:
        assert isinstance(host_reading.read({"host": good, "links": odd, "docker": odd}), HostFacts)


def test_the_whole_command_on_this_computer() -> None:
    """The module travels with the probe only where it is asked for."""
    import subprocess

    plain, asked = (str(NodeProbe().command(Query(host=level).text())) for level in ("", "brief"))
    assert len(plain) + 4000 < len(asked) < 64 * 1024, "one argument of a command may have 128 KiB"
    if not os.path.exists("/usr/bin/python3") or os.geteuid() != 0:
        pytest.skip("needs root and /usr/bin/python3")
    ran = subprocess.run(["sh", "-c", asked], capture_output=True, text=True, check=True)
    found = from_output(ran.stdout.splitlines()).host
    assert found.kernel == os.uname().release
    assert not isinstance(found.meminfo, Unknown)
