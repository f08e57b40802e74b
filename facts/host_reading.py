"""From the probe's raw answer to HostFacts. A part that cannot be read is Unknown, and leaves the others standing."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Interface
from typing import cast

from facts import host_full
from facts.host import (
    Board,
    Clock,
    Definition,
    DockerSide,
    Firewall,
    GpuApp,
    HostFacts,
    NetworkManager,
    NmProfile,
    Port,
    Release,
    Session,
)
from facts.host_answer import Answer, NotRead, good, mapping, string, whole
from facts.tools import (
    docker_info,
    firewalld,
    iptables,
    keyfile,
    limits,
    meminfo,
    netplan,
    networkd,
    nft,
    nmcli,
    nvidia_smi,
    release,
    sysfs,
    systemctl,
    ufw,
)
from facts.tools.garbled import Garbled
from facts.tools.netdevs import Netdev

OURS = "60-sparkpair.yaml"
_TIMEKEEPERS = {"systemd-timesyn": "systemd-timesyncd"}


def read(document: Mapping[str, object]) -> HostFacts:
    """The facts in the whole answer of a probe; what was not asked for says so."""
    raw = document.get("host")
    if not isinstance(raw, dict):
        return HostFacts()
    if isinstance(raw.get("error"), str):
        raw = dict.fromkeys(_RAW, raw)  # each part is unknown, and for that reason
    answer = Answer(raw, document)
    found = HostFacts(
        release=answer.part(_release),
        kernel=answer.part(lambda a: a.word("kernel")),
        page_size=answer.part(lambda a: whole(a.value("page"))),
        cmdline=answer.part(lambda a: tuple(a.text("/proc/cmdline").split())),
        board=answer.part(_board),
        meminfo=answer.part(lambda a: meminfo.parse(a.text("/proc/meminfo"))),
        ports=answer.part(_ports),
        devices=answer.part(lambda a: tuple(map(str, a.listed("devices")))),
        definitions=answer.part(_definitions),
        network_texts=answer.part(_network_texts),
        network_manager=answer.part(_network_manager),
        firewall=answer.part(_firewall),
        docker=answer.part(_docker),
        session=answer.part(_session),
        gpu_apps=answer.part(_gpu_apps),
        clock=answer.part(_clock),
        nccl_conf=answer.part(lambda a: a.maybe_text("/etc/nccl.conf")),
        missing=answer.missing,
    )
    return host_full.read(answer, found) if raw.get("level") == "full" else found


_RAW = (
    "kernel", "page", "texts", "hcas", "netdevs", "devices", "network", "networkmanager", "processes", "docker",
    "limits", "target", "synchronized", "seconds", "tools", "containers",
)  # fmt: skip


# System


def _release(answer: Answer) -> Release:
    return release.parse(answer.text("/etc/os-release"), answer.maybe_text("/etc/dgx-release"))


def _board(answer: Answer) -> Board:
    place = "/sys/class/dmi/id/"
    product = answer.maybe_text(place + "product_name")
    if product is None:
        raise NotRead("the system has no DMI")
    date = (answer.maybe_text(place + "bios_date") or "").strip().split("/")
    iso = f"{date[2]}-{date[0]}-{date[1]}" if len(date) == 3 else ""
    return Board(product.strip(), (answer.maybe_text(place + "bios_version") or "").strip(), iso)


def _session(answer: Answer) -> Session:
    graphical = [(pid, name) for pid, name, _ in _processes(answer) if name not in ("dockerd", *_KEEPERS)]
    return Session(answer.word("target"), tuple(graphical))


_KEEPERS = ("systemd-timesyn", "chronyd", "ntpd", "ntpsec")


def _processes(answer: Answer) -> list[tuple[int, str, str]]:
    found = []
    for row in answer.listed("processes"):
        if not isinstance(row, list):
            raise NotRead("the probe's processes cannot be read")
        pid, name, line = row
        found.append((whole(pid), string(name), string(line)))
    return found


def _clock(answer: Answer) -> Clock:
    seconds = answer.value("seconds")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise NotRead("the probe's seconds are no number")
    try:
        synchronized = answer.value("synchronized")
    except NotRead:
        synchronized = None
    keeper = next((name for _, name, _ in _processes(answer) if name in _KEEPERS), "")
    return Clock(
        float(seconds), synchronized if isinstance(synchronized, bool) else None, _TIMEKEEPERS.get(keeper, keeper)
    )


def _gpu_apps(answer: Answer) -> tuple[GpuApp, ...]:
    containers = cast(Mapping[str, str | None], answer.rows_of("containers"))
    return tuple(nvidia_smi.apps(answer.said("nvidia-smi apps"), containers))


# Network


def _ports(answer: Answer) -> tuple[Port, ...]:
    links = mapping(good(answer.document.get("links")))
    addresses = {}
    for name, link in links.items():
        found = mapping(link).get("addresses")
        addresses[name] = tuple(IPv4Interface(string(text)) for text in found) if isinstance(found, list) else ()
    return tuple(sysfs.ports(answer.rows_of("hcas"), answer.rows_of("netdevs"), addresses))


def _netdevs(answer: Answer) -> list[Netdev]:
    found = []
    for name, value in sorted(answer.rows_of("netdevs").items()):
        seen = mapping(value)
        found.append(Netdev(name, str(seen.get("mac") or ""), str(seen.get("driver") or "")))
    return found


def _network_files(answer: Answer, ending: str) -> dict[str, Mapping[str, object]]:
    """Files of one kind that are not ours."""
    return {
        path: mapping(good(value))
        for path, value in answer.rows_of("network").items()
        if path.endswith(ending) and path.rpartition("/")[2] != OURS
    }


def _definitions(answer: Answer) -> tuple[Definition, ...]:
    netdevs = _netdevs(answer)
    texts = {path: string(file["text"]) for path, file in _network_files(answer, ".yaml").items()}
    found = netplan.definitions(texts, netdevs)
    for path, file in _network_files(answer, ".network").items():
        found += networkd.definitions(path, string(file["text"]), netdevs)
    for path, file in _network_files(answer, ".nmconnection").items():
        found += keyfile.definitions(path, string(file["text"]), netdevs)
    return tuple(found)


def _network_texts(answer: Answer) -> dict[str, str]:
    """Whole or not at all: of a file with a password in it, or a very long one, there is no text."""
    about = {item.file for item in _definitions(answer)}
    return {
        path: string(file["text"])
        for path, file in _network_files(answer, ".yaml").items()
        if path in about and file.get("hidden") is False and file.get("whole") is True
    }


def _network_manager(answer: Answer) -> NetworkManager:
    if answer.value("networkmanager") is not True or not answer.has_run("nmcli device"):
        if answer.value("networkmanager") is True and "nmcli" in answer.missing:
            raise NotRead("NetworkManager was here, and nmcli is not installed")
        return NetworkManager(running=False)
    tool = answer.rows_of("tools")["nmcli device"]
    # "Error: NetworkManager is not running.", nmcli(1).
    if isinstance(tool, dict) and tool.get("code") == 8:
        return NetworkManager(running=False)
    files = _network_files(answer, ".nmconnection")
    profiles = [_with_netdev(profile, files) for profile in nmcli.profiles(answer.said("nmcli connection"))]
    return NetworkManager(True, tuple(nmcli.devices(answer.said("nmcli device"))), tuple(profiles))


def _with_netdev(profile: NmProfile, files: Mapping[str, Mapping[str, object]]) -> NmProfile:
    """A profile that is not in force names its netdev in its file."""
    if profile.netdev or profile.file not in files:
        return profile
    return NmProfile(profile.name, profile.uuid, profile.file, keyfile.netdev_of(string(files[profile.file]["text"])))


def _firewall(answer: Answer) -> Firewall:
    conf = answer.maybe_text("/etc/ufw/ufw.conf")
    if conf is not None:
        defaults, rules = answer.maybe_text("/etc/default/ufw"), answer.maybe_text("/etc/ufw/user.rules")
        found = ufw.from_files(conf, defaults or "", rules or "")
        if found is not None:
            return found
    older = iptables.firewall(answer.said("iptables")) if answer.has_run("iptables") else Firewall("", drops=False)
    if answer.has_run("firewall-cmd zones"):
        tool = answer.rows_of("tools")["firewall-cmd zones"]
        # 252: it is not running, firewall-cmd(1).
        if not (isinstance(tool, dict) and tool.get("code") == 252):
            zones = firewalld.parse(answer.said("firewall-cmd zones"))
            return firewalld.firewall(zones, answer.said("firewall-cmd default").strip())
        return older
    if "nft" in answer.missing:
        return older
    newer = nft.firewall(answer.said("nft"))
    if newer.manager and older.manager:
        return Firewall("nftables", newer.drops or older.drops, (*newer.rules, *older.rules))
    return newer if newer.manager else older


# Docker


def _docker(answer: Answer) -> DockerSide:
    side = answer.rows_of("docker")
    info = mapping(good(answer.document.get("docker")))
    settings, trouble = _settings(answer)
    context = side.get("context")
    rootless = side.get("rootless")
    group = side.get("group")
    return DockerSide(
        security=docker_info.security(info.get("security")),
        driver=str(info.get("driver") or ""),
        root=str(info.get("root") or ""),
        containerd_store=docker_info.has_containerd_store(info.get("driver_status")),
        settings_runtimes=settings,
        settings_trouble=trouble,
        snap=side.get("snap") is True,
        packaged=side.get("packaged") is True,
        rootless=tuple(map(str, rootless)) if isinstance(rootless, list) else (),
        user_context=context if isinstance(context, str) else "",
        user_in_group=group if isinstance(group, bool) else None,
        memlock=_memlock(answer),
        daemons=tuple((pid, line) for pid, name, line in _processes(answer) if name == "dockerd"),
    )


def _settings(answer: Answer) -> tuple[tuple[str, ...], str]:
    try:
        return docker_info.settings_runtimes(answer.maybe_text("/etc/docker/daemon.json") or ""), ""
    except (NotRead, Garbled) as error:
        return (), str(error)


def _memlock(answer: Answer) -> int | None:
    """What the daemon runs with; where it does not run, what systemd would give it, if that was asked."""
    for text in answer.rows_of("limits").values():
        if text:
            return limits.parse(string(text))["Max locked memory"]
    if not answer.has_run("systemctl docker.service"):
        return None
    units = systemctl.parse(answer.said("systemctl docker.service"))
    return systemctl.limit(units.get("docker.service", {}), "LimitMEMLOCK")
