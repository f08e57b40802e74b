"""The probe itself, on a made-up root directory, and its command on this computer."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from facts import probe
from facts.node import NodeProbe, Query, from_output
from node import content


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root directory of the test's own."""
    monkeypatch.setattr(probe, "ROOT", str(tmp_path))
    return tmp_path


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_text_that_cannot_be_read_fails_alone(root: Path) -> None:
    """A generation that is damaged must not hide the keeper's key."""
    put(root / "key.pub", "ssh-ed25519 AAAA\n")
    put(root / "rank0.json/in-its-place", "")
    (root / "bytes").write_bytes(b"\xff\xfe{")
    texts = probe.collect({"texts": ["/key.pub", "/rank0.json", "/none", "/bytes"]}, "root")["texts"]
    assert texts["/key.pub"] == "ssh-ed25519 AAAA\n"
    assert texts["/none"] is None
    assert texts["/bytes"] == "\ufffd\ufffd{"
    assert texts["/rank0.json"]["error"].startswith("IsADirectoryError: ")


def test_lines_about_a_netdev_in_other_files(root: Path) -> None:
    """File and line only: what else stands there is not ours to read out."""
    put(root / "etc/netplan/01-net.yaml", "network:\n  ethernets:\n    enP7s7: {dhcp4: true}\n    enp1s0f0np0:\n")
    put(root / "etc/netplan/02-match.yaml", "network:\n  ethernets:\n    all:\n      match: {}\n      name: 'enp1*'\n")
    put(root / "etc/netplan/60-sparkpair.yaml", "    enp1s0f0np0:\n")
    put(root / "etc/netplan/note.txt", "enp1s0f0np0:\n")
    put(root / "etc/systemd/network/10-rail.network", "[Match]\nName=eth* enp1s0f0np0\n")
    put(root / "etc/NetworkManager/system-connections/x.nmconnection", "[connection]\ninterface-name=enp1s0f0np0\n")
    assert probe._mentions(["enp1s0f0np0", "enP2p1s0f0np0"]) == [
        ["/etc/netplan/01-net.yaml", 4, "enp1s0f0np0"],
        ["/etc/netplan/02-match.yaml", 5, "enp1s0f0np0"],
        ["/etc/systemd/network/10-rail.network", 2, "enp1s0f0np0"],
        ["/etc/NetworkManager/system-connections/x.nmconnection", 2, "enp1s0f0np0"],
    ]


@pytest.mark.parametrize(
    ("line", "is_about"),
    [
        ("    enp1s0f0np0:", True),
        ('    "enp1s0f0np0":', True),
        ("    enp1s0f0np0: {mtu: 9000}", True),
        ("    # enp1s0f0np0:", False),
        ("    enp1s0f0np01:", False),
        ("      addresses: [10.0.0.1/24]  # enp1s0f0np0", False),
        ("      name: enp1s0f?np0", True),
        ("Name=enP*", False),
        ("interface-name=enp1s0f0np0;", True),
        ("      set-name: enp1s0f0np0", True),
        ('      set-name: "enp1s0f0np0"  # the rail', True),
        ("      match: {name: enp1s0f0*}", True),
        ("      match: {driver: mlx5_core, name: 'enp1s0f?np0'}", True),
        ("      match: {'name': 'enp1s0f?np0'}", True),
        ("      match: {name: enp1s0f1np1, driver: mlx5_core}", False),
        ("      interfaces: [enp1s0f0np0, enP2p1s0f0np0]", True),
        ("      interfaces: [enP2p1s0f0np0]", False),
        ("        - enp1s0f0np0", True),
        ('        - "enp1s0f0np0"', True),
        ("        - enp1s0f1np1", False),
        ("          enp1s0f0np0]", True),
        ("      link: enp1s0f0np0", True),
        ("      match: {macaddress: '02:5A:00:00:01:00'}", True),
        ("MACAddress=02:5a:00:00:01:00", True),
        ("      macaddress: 02:5a:00:00:01:01", False),
        ("      hostname: '*'", False),
        ("; Name=enp1s0f0np0", False),
    ],
)
def test_what_a_line_is_about(line: str, is_about: bool) -> None:
    assert probe._is_about(line, "enp1s0f0np0", "02:5a:00:00:01:00") is is_about


def test_a_netdev_is_known_by_its_address_too(root: Path) -> None:
    put(root / "sys/class/net/enp1s0f0np0/address", "02:5a:00:00:01:00\n")
    put(root / "etc/netplan/01-net.yaml", "    rail:\n      match:\n        macaddress: 02:5a:00:00:01:00\n")
    assert probe._mentions(["enp1s0f0np0"]) == [["/etc/netplan/01-net.yaml", 3, "enp1s0f0np0"]]


def test_a_link_says_whose_member_it_is() -> None:
    output = [{"ifname": "enp1s0f0np0", "mtu": 1500, "master": "bond0"}, {"ifname": "lo", "mtu": 65536}]
    assert {name: link["master"] for name, link in probe._links(json.dumps(output)).items()} == {
        "enp1s0f0np0": "bond0",
        "lo": None,
    }


def test_hcas_come_with_their_netdevs_and_filled_rows(root: Path) -> None:
    port = root / "sys/class/infiniband/rocep1s0f0/ports/1"
    (root / "sys/class/infiniband/rocep1s0f0/device/net/enp1s0f0np0").mkdir(parents=True)
    put(port / "state", "4: ACTIVE\n")
    put(port / "gids/0", "0000:0000:0000:0000:0000:0000:0000:0000\n")
    put(port / "gids/10", "0000:0000:0000:0000:0000:ffff:0ac8:0001\n")
    put(port / "gids/2", "fe80:0000:0000:0000:005a:00ff:fe00:0100\n")
    put(port / "gid_attrs/types/10", "RoCE v2\n")
    assert probe._hcas() == {
        "rocep1s0f0": {
            "netdevs": ["enp1s0f0np0"],
            "state": "4: ACTIVE",
            "gids": [
                [2, "fe80:0000:0000:0000:005a:00ff:fe00:0100", ""],
                [10, "0000:0000:0000:0000:0000:ffff:0ac8:0001", "RoCE v2"],
            ],
        }
    }


def test_of_a_secret_only_the_identity_is_told(root: Path) -> None:
    """Not even the digest that is told of every other file: it would let whoever sees it try keys."""
    path, key = "/etc/sparkpair/secrets/api-key", "a-key-that-nobody-may-see"
    put(root / "etc/machine-id", "5d41402abc4b2a76b9719d911017c592\n")
    assert probe._secret(path) == {"present": False, "identity": None, "trouble": ""}
    put(root / path[1:], f"{key}\n")
    found = probe.collect({"secrets": [path, "/etc/shadow"], "files": [path]}, "root")
    assert found["secrets"] == {"error": "/etc/shadow is no place for a secret"}
    assert found["files"][path]["sha256"] is None
    found = probe.collect({"secrets": [path]}, "root")
    assert found["secrets"][path]["present"]
    assert len(found["secrets"][path]["identity"]) == 64
    assert key not in json.dumps(found)
    assert hashlib.sha256(f"{key}\n".encode()).hexdigest() not in json.dumps(found)


def test_no_rdma_at_all_is_none_and_not_a_failure(root: Path) -> None:
    assert probe._hcas() == {}


def test_files_directories_links_and_nothing(root: Path) -> None:
    put(root / "a", "x")
    (root / "a").chmod(0o640)
    (root / "d").mkdir(mode=0o700)
    (root / "l").symlink_to("a")
    seen = {name: probe._file(f"/{name}") for name in ("a", "d", "l", "none", "a/below")}
    assert (seen["a"]["kind"], seen["a"]["mode"]) == ("file", "640")
    assert seen["a"]["sha256"] == "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    assert (seen["d"]["kind"], seen["d"]["mode"], seen["d"]["sha256"]) == ("directory", "700", None)
    assert seen["l"]["kind"] == "link"
    assert seen["none"] is None
    assert seen["a/below"] is None


def test_a_tree_leaves_caches_out(root: Path) -> None:
    put(root / "lib/node/x.py", "1")
    put(root / "lib/node/__pycache__/x.pyc", "2")
    assert list(probe._tree("/lib")) == ["node/x.py"]
    assert probe._tree("/nowhere") == {}


def test_free_space_is_that_of_the_nearest_directory_that_is_there(tmp_path: Path) -> None:
    seen = probe._disk(str(tmp_path / "not/there/yet"))
    assert seen["at"] == str(tmp_path)
    assert seen["free"] > 0


def test_ports_are_found_with_their_owner() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        seen = probe._ports([port, 1])
    assert seen["1"] is None
    assert seen[str(port)]["pid"] == os.getpid()
    assert seen[str(port)]["container"] is None


@pytest.mark.parametrize(
    ("cgroup", "found"),
    [
        ("/system.slice/docker-{}.scope", True),
        ("/sparkpair.slice/sparkpair-engine.slice/docker-{}.scope", True),
        ("/docker/{}", True),
        ("/sparkpair-engine.slice/{}", True),
        ("/sparkpair-engine.slice/{}/init", True),
        ("/machine.slice/libpod-{}.scope", False),
        ("/user.slice/user-1000.slice", False),
    ],
)
def test_a_process_is_known_by_its_container(root: Path, cgroup: str, found: bool) -> None:
    """With either of Docker's cgroup drivers."""
    put(root / "proc/7/comm", "vllm\n")
    put(root / "proc/7/cgroup", f"0::{cgroup.format('a' * 64)}\n")
    assert probe._process("7") == {"pid": 7, "command": "vllm", "container": "a" * 64 if found else None}


def test_units_by_name() -> None:
    text = "Id=a.service\nActiveState=active\n\nId=b.service\nActiveState=inactive\nFragmentPath=/x=y\n"
    assert probe._units(text) == {
        "a.service": {"Id": "a.service", "ActiveState": "active"},
        "b.service": {"Id": "b.service", "ActiveState": "inactive", "FragmentPath": "/x=y"},
    }


@pytest.fixture
def docker(root: Path) -> Iterator[dict[str, tuple[int, object]]]:
    """A daemon that answers what the test says, by path."""
    answers: dict[str, tuple[int, object]] = {}
    (root / "var/run").mkdir(parents=True)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(root / "var/run/docker.sock"))
    server.listen()

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                path = connection.recv(4096).decode().split()[1]
                status, body = answers.get(path, (404, {"message": "no such thing"}))
                text = json.dumps(body)
                connection.sendall(f"HTTP/1.0 {status} X\r\nContent-Type: application/json\r\n\r\n{text}".encode())

    thread = threading.Thread(target=serve)
    thread.start()
    yield answers
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


INFO: dict[str, Any] = {"ServerVersion": "28.1.1", "DockerRootDir": "/", "Runtimes": {"runc": {}, "nvidia": {}}}


def test_docker_with_images_and_containers(docker: dict[str, tuple[int, object]]) -> None:
    here, away, odd = (f"r/{name}@sha256:{'a' * 64}" for name in ("here", "away", "odd"))
    docker["/info"] = (200, INFO)
    image = {"Id": "sha256:1", "RootFS": {"Layers": ["sha256:2"]}, "Os": "linux", "Architecture": "arm64"}
    docker[f"/images/{here}/json"] = (200, image)
    docker[f"/images/{odd}/json"] = (500, {"message": "overloaded"})
    docker["/images/json"] = (200, [{"Id": "sha256:1", "RepoDigests": None}])
    labels = {"sparkpair.rank": "0", "maintainer": "somebody"}
    docker["/containers/json?all=1"] = (
        200,
        [{"Id": "c", "Names": ["/vllm"], "State": "running", "Labels": labels}, {"Id": "d", "Labels": None}],
    )
    seen = probe._docker([here, away, odd])
    assert seen["runtimes"] == ["nvidia", "runc"]
    assert seen["images"] == {
        here: {"id": "sha256:1", "layers": ["sha256:2"], "tags": [], "platform": "linux/arm64"},
        away: None,
        odd: {"error": "Docker answered 500: {'message': 'overloaded'}"},
    }
    assert seen["containers"] == [
        {"id": "c", "names": ["vllm"], "state": "running", "labels": {"sparkpair.rank": "0"}},
        {"id": "d", "names": [], "state": "", "labels": {}},
    ]


def test_an_image_that_came_from_the_peer_has_the_peers_name(docker: dict[str, tuple[int, object]]) -> None:
    digest = f"sha256:{'a' * 64}"
    image = {"Id": "sha256:1", "RootFS": {"Layers": ["sha256:2"]}, "RepoTags": ["sparkpair/engine:aaaaaaaaaaaa"]}
    docker["/info"] = (200, {**INFO, "HttpsProxy": "http://proxy:3128"})
    docker["/images/json"] = (
        200,
        [
            {"Id": "sha256:0", "RepoDigests": [f"ghcr.io/r/engine@sha256:{'b' * 64}"]},
            {"Id": "sha256:1", "RepoDigests": [f"127.0.0.1:8731/r/engine@{digest}"]},
        ],
    )
    docker["/images/sha256:1/json"] = (200, {**image, "Os": "linux", "Architecture": "arm64"})
    seen = probe._docker([f"ghcr.io/r/engine@{digest}", "ghcr.io/r/engine:latest"])
    tags = ["sparkpair/engine:aaaaaaaaaaaa"]
    assert seen["images"] == {
        f"ghcr.io/r/engine@{digest}": {
            "id": "sha256:1", "layers": ["sha256:2"], "tags": tags, "platform": "linux/arm64",
        },
        "ghcr.io/r/engine:latest": None,
    }  # fmt: skip
    assert seen["proxied"] is True


MOUNTED = "36 35 98:0 / /mnt/sparkpair/weights ro - nfs4 10.200.0.2:/srv/w ro,vers=4.2\n"


def test_nothing_is_mounted(root: Path) -> None:
    put(root / "proc/self/mountinfo", "35 1 98:0 / / rw - ext4 /dev/root rw\n")
    nothing = {"what": None, "trouble": "", "silent": False, "proven": None}
    assert probe._mount("/mnt/sparkpair/weights", str(root)) == nothing


def test_what_is_mounted_and_what_was_proven_of_it(root: Path) -> None:
    put(root / "proc/self/mountinfo", MOUNTED)
    put(root / "mnt/sparkpair/weights/config.json", "{}")
    place = "/mnt/sparkpair/weights"
    mount = {"what": "10.200.0.2:/srv/w", "options": "ro"}
    kept = {"directory": place, "identity": "i", "files": [], "stamps": [], "mount": mount}
    put(root / "state" / content.manifest_name(place), json.dumps(kept))
    assert probe._mount(place, str(root / "state")) == {
        "what": "10.200.0.2:/srv/w", "trouble": "", "silent": False, "proven": {"identity": "i", **mount},
    }  # fmt: skip


def test_a_mount_that_cannot_be_looked_into(root: Path) -> None:
    put(root / "proc/self/mountinfo", MOUNTED)
    seen = probe._mount("/mnt/sparkpair/weights", str(root))
    assert (seen["trouble"], seen["silent"]) == ("No such file or directory", False)


def test_a_server_that_is_silent_is_not_waited_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever touches its mount waits; so that is a process of its own."""
    put(root / "proc/self/mountinfo", MOUNTED)
    waiting = probe._start(["sleep", "60"])
    monkeypatch.setattr(probe, "MOUNT_SECONDS", 0.1)
    monkeypatch.setattr(probe, "_start", lambda argv: waiting)
    seen = probe._mount("/mnt/sparkpair/weights", str(root))
    assert (seen["trouble"], seen["silent"]) == ("it does not answer within 0.1 s", True)
    assert waiting.wait(10) == -9


def test_overlays_of_an_earlier_kit(root: Path) -> None:
    put(root / "home/spark/glm53-hotfix/v1/a.py", "")
    put(root / "home/spark/glm53-hotfix-fi/b.py", "")
    put(root / "home/spark/glm53-hotfix.txt", "")
    found = probe._overlays(["~/glm53-hotfix*"], "/home/spark")
    assert found == {"/home/spark/glm53-hotfix": 1, "/home/spark/glm53-hotfix-fi": 1}


def test_docker_that_is_down(root: Path) -> None:
    seen = probe._docker([])
    assert (seen["answers"], seen["trouble"]) == (False, "No such file or directory")
    assert "containers" not in seen


@pytest.mark.parametrize(
    ("text", "is_registered"),
    [(None, False), ("", False), ("{}", False), ('{"runtimes": {"nvidia": {"path": "x"}}}', True)],
)
def test_what_the_daemons_settings_say(root: Path, text: str | None, is_registered: bool) -> None:
    if text is not None:
        put(root / "etc/docker/daemon.json", text)
    assert probe._registered() is is_registered


def test_a_part_that_fails_is_told_and_leaves_the_others() -> None:
    answer = probe.collect(
        {"netdevs": [], "content": {"weights": "/proc/self/mem/x"}, "files": ["/etc/passwd"]}, "root"
    )
    assert answer["files"]["/etc/passwd"]["kind"] == "file"
    assert probe._guarded(lambda: 1 // 0) == {"error": "ZeroDivisionError: integer division or modulo by zero"}


@pytest.mark.skipif(not os.access("/usr/bin/python3", os.X_OK), reason="needs the system's Python")
def test_the_command_runs_as_it_is_sent() -> None:
    """Quoting and packing survive a shell; as root the answer is whole, else sudo decides."""
    query = Query(files=("/etc/passwd", '/it\'s not "here"'), content={"weights": "~/no such $HOME"})
    command = NodeProbe().command(query.text()).get_raw_value()
    assert len(command) < 100_000  # one argument may have 128 KiB
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    facts = from_output(done.stdout.splitlines())
    assert done.stderr == ""
    if facts.sudo:
        assert facts.trouble == ""
        assert set(facts.files) == set(query.files)  # type: ignore[arg-type]
        assert facts.user


CONTAINER = "a" * 64


def process(root: Path, pid: int, anon: int, shmem: int = 0, command: str = "x", cgroup: str = "/init.scope") -> None:
    """A process that holds so many MiB."""
    place = root / f"proc/{pid}"
    page = os.sysconf("SC_PAGE_SIZE")
    files = 3
    put(place / "statm", f"9999 {(anon + shmem + files) * 2**20 // page} {(shmem + files) * 2**20 // page} 1 0 9 0\n")
    put(
        place / "status",
        f"Name:\t{command}\nVmRSS:\t {anon + shmem + files} kB\nRssAnon:\t {anon * 1024} kB\n"
        f"RssFile:\t {files * 1024} kB\nRssShmem:\t {shmem * 1024} kB\n",
    )
    put(place / "comm", f"{command}\n")
    put(place / "cgroup", f"0::{cgroup}\n")


@pytest.fixture
def busy(root: Path) -> Path:
    """A node where a rank runs beside others."""
    engine = root / "sys/fs/cgroup/sparkpair.slice/sparkpair-engine.slice"
    put(engine / "cgroup.events", "populated 1\nfrozen 0\n")
    put(engine / "cgroup.procs", "")
    put(engine / f"docker-{CONTAINER}.scope/cgroup.procs", "41\n42\n")
    process(root, 41, 800, 200, "vllm")
    process(root, 42, 20)
    process(root, 50, 600, 100, "ollama", f"/system.slice/docker-{'b' * 64}.scope")
    process(root, 51, 300, 0, "gnome-shell", "/user.slice")
    process(root, 52, 63, 0, "small")
    process(root, 53, 100, 0, "dockerd")
    process(root, 54, 90, 0, "fourth")
    put(root / "proc/2/statm", "0 0 0 0 0 0 0\n")
    (root / "proc/60").mkdir()  # it ends while it is looked at
    return root


CGROUPS = ["/sys/fs/cgroup/sparkpair.slice/sparkpair-engine.slice", "/sys/fs/cgroup/sparkpair-engine.slice"]
MIB = 2**20


def answer(output: str, code: int = 0) -> Any:
    """nvidia-smi as it was started, with this to say."""
    return probe._start(["sh", "-c", f"cat; exit {code}", "sh"]) if not output else probe._start(["echo", output])


def test_who_holds_memory(busy: Path) -> None:
    """The engine's processes by their cgroup; of the others the sum, and the largest by name."""
    found = probe._holders(CGROUPS, answer("41, 65536\n50, 1024"))
    assert found["engine"] == {"processes": 2, "anon": 820 * MIB, "shmem": 200 * MIB, "gpu": 65536 * MIB}
    assert found["others"] == (600 + 1024 + 300 + 63 + 100 + 90) * MIB
    assert found["largest"] == [
        {"pid": 50, "command": "ollama", "container": "b" * 64, "bytes": (600 + 100 + 1024) * MIB},
        {"pid": 51, "command": "gnome-shell", "container": None, "bytes": 300 * MIB},
        {"pid": 53, "command": "dockerd", "container": None, "bytes": 100 * MIB},
    ]


@pytest.mark.parametrize("output", ["41, [N/A]", "41, [Not Supported]", "41", "50, 1024", "No devices were found", ""])
def test_a_driver_that_does_not_tell_the_engines_share(busy: Path, output: str) -> None:
    """MEM-17: none of that is nothing."""
    found = probe._holders(CGROUPS, answer(output))
    assert found["engine"]["gpu"] is None
    assert found["engine"]["anon"] == 820 * MIB


def test_a_driver_that_fails_leaves_the_rest_known(busy: Path) -> None:
    assert probe._holders(CGROUPS, answer("", 9))["engine"]["gpu"] is None
    assert probe._holders(CGROUPS, probe._start(["/nonexistent/nvidia-smi"]))["engine"]["gpu"] is None


def test_the_driver_is_asked_only_where_a_rank_runs(busy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And who holds memory only where that is asked."""
    started: list[list[str]] = []
    real = probe._start
    monkeypatch.setattr(probe, "_start", lambda argv: started.append(argv) or real(["true"]))
    assert probe.collect({"cgroups": [], "gpu": True}, "root")["holders"] is None
    assert not [argv for argv in started if "--query-compute-apps=pid,used_memory" in argv]
    assert probe.collect({"cgroups": CGROUPS, "gpu": True}, "root")["holders"]["engine"]["processes"] == 2
    assert len([argv for argv in started if "--query-compute-apps=pid,used_memory" in argv]) == 1
    put(busy / CGROUPS[0][1:] / "cgroup.events", "populated 0\nfrozen 0\n")
    probe.collect({"cgroups": CGROUPS, "gpu": True}, "root")
    assert len([argv for argv in started if "--query-compute-apps=pid,used_memory" in argv]) == 1
