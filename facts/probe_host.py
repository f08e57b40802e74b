"""The side of the bulk probe that looks at hardware, system and network: what files and a node's own tools say, raw.

Sent to a node as text with facts/probe.py where the query asks for it, and run there as root; standard library only. It
understands as little as it can: what the tools' words mean is read on the control machine (facts/tools/). It changes
nothing. All tools start at once, each with a deadline of its own, and what they write is bounded.
"""

from __future__ import annotations

import functools
import os
import re
import select
import signal
import subprocess
import time
from typing import Any

from facts import probe

FILE_BYTES = 64 * 1024
OUTPUT_BYTES = 256 * 1024
"""A ruleset with Docker's own chains is some 20 KiB; nobody has to carry a journal home."""
NETWORK_FILES_MOST = 64
NETPLAN = ("/lib/netplan", "/etc/netplan", "/run/netplan")
# networkd reads these; what netplan itself made of its files for it, 10-netplan-*, says nothing new.
# The distribution's own, in /usr/lib, are about no netdev by its name.
NETWORKD = ("/usr/local/lib/systemd/network", "/etc/systemd/network", "/run/systemd/network")
PROFILES = (
    "/etc/NetworkManager/system-connections",
    "/usr/lib/NetworkManager/system-connections",
    "/run/NetworkManager/system-connections",
)
KINDS = (*((place, ".yaml") for place in NETPLAN), *((place, ".network") for place in NETWORKD),
         *((place, ".nmconnection") for place in PROFILES))  # fmt: skip
# Of a profile of NetworkManager only these sections are read: others may hold the password of a wireless network.
SECTIONS = ("connection", "match", "ethernet", "802-3-ethernet", "ipv4", "ipv6", ".nmmeta")
SECRET = re.compile(
    r"""(?P<key>["']?[\w-]*(?:(?:password|passphrase|psk)(?:-raw)?|secrets?|private|shared|wep-key\d?|\bpin|key|token)["']?\s*[:=])"""
    r"""(?P<value>\s*(?:"[^"]*"|'[^']*'|[^\s,}{\[][^,}]*|$))""",
    re.IGNORECASE,
)
DAEMON_SETTINGS = "/etc/docker/daemon.json"
TEXTS = (
    "/etc/os-release",
    "/etc/dgx-release",
    "/proc/cmdline",
    "/proc/meminfo",
    "/sys/class/dmi/id/product_name",
    "/sys/class/dmi/id/bios_version",
    "/sys/class/dmi/id/bios_date",
    "/etc/nccl.conf",
    DAEMON_SETTINGS,
    "/etc/ufw/ufw.conf",
    "/etc/default/ufw",
    "/etc/ufw/user.rules",
)
GRAPHICAL = ("gnome-shell", "Xorg", "Xwayland", "kwin_wayland", "plasmashell", "weston", "sway", "xfwm4", "mutter")
DAEMONS = ("dockerd",)
TIMEKEEPERS = ("systemd-timesyn", "chronyd", "ntpd", "ntpsec")
# Lines of the kernel's log that a node sends: what they mean is decided in facts/tools/kernel_log.py.
KERNEL = re.compile(
    rb"NVRM|Xid|oom-kill|[Oo]ut of memory|oom-killer|AER|mlx5|soft lockup|hard LOCKUP|hung_task|blocked for more than"
    rb"|PCIe Bus Error|Kernel panic|thermal|I/O error"
)
QUICK, SLOW = 5, 20


def begin(query: dict[str, Any]) -> Any:
    """Start the tools, so that they work while the probe looks at everything else."""
    level = str(query.get("host") or "")
    return _Tools(level) if level else None


def finish(tools: Any, home: str, user: str) -> dict[str, Any]:
    """Everything that was seen, raw; a part that failed is {"error": why}."""
    answer: dict[str, Any] = {"level": tools.level, "kernel": os.uname().release, "page": os.sysconf("SC_PAGE_SIZE")}
    parts = {
        "texts": lambda: {
            path: probe._guarded(functools.partial(_settings if path == DAEMON_SETTINGS else _text, path))
            for path in TEXTS
        },
        "hcas": _hcas,
        "netdevs": _netdevs,
        "devices": _devices,
        "network": _network,
        "networkmanager": lambda: os.path.isdir(probe.ROOT + "/run/NetworkManager"),
        "processes": _processes,
        "docker": lambda: _docker_side(home, user),
        "limits": lambda: _limits(answer["processes"]),
        "target": _default_target,
        "synchronized": _synchronized,
        "seconds": time.time,
        "tools": tools.finish,
        "missing": lambda: sorted(set(tools.missing)),
    }
    for name, part in parts.items():
        answer[name] = probe._guarded(part)
    # After the tools: they name the processes.
    answer["containers"] = probe._guarded(lambda: _containers(answer["tools"]))
    return answer


# Tools


class _Tool:
    """One that runs, writing into memory of its own, so that nobody has to read along."""

    def __init__(self, argv: list[str], seconds: int, change: Any = None) -> None:
        self.change, self.until = change, time.monotonic() + seconds
        self.seconds = seconds
        self.out, self.err = os.memfd_create("out"), os.memfd_create("err")
        environment = {**os.environ, "LC_ALL": "C", "LANG": "C", "SYSTEMD_PAGER": "", "SYSTEMD_COLORS": "0"}
        self.process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err, env=environment, start_new_session=True
        )

    def finish(self) -> dict[str, Any]:
        """What it said, or that it did not end in time: then it and what it started is ended."""
        late = not self._ended()
        if late:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        out, err = _held(self.out), _held(self.err)
        if self.change is not None:
            out = self.change(out)
        answer = {"code": self.process.returncode, "out": _words(out), "err": _words(err)[-2000:]}
        return {**answer, "late": self.seconds} if late else answer

    def _ended(self) -> bool:
        # wait() with a deadline looks only every 50 ms.
        try:
            watched = os.pidfd_open(self.process.pid)
        except OSError:
            watched = -1
        if watched >= 0:
            select.select([watched], [], [], max(0.0, self.until - time.monotonic()))
            os.close(watched)
        try:
            self.process.wait(0 if watched >= 0 else max(0.0, self.until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True


def _held(file: int) -> bytes:
    """The last that was written, whole lines of it."""
    size = os.fstat(file).st_size
    most = OUTPUT_BYTES * 64
    data = os.pread(file, most, max(0, size - most))
    os.close(file)
    return data


def _telling(data: bytes) -> bytes:
    return b"\n".join(line for line in data.split(b"\n") if KERNEL.search(line))


def _hide(data: bytes) -> bytes:
    return _without_secrets(data.decode("utf-8", "replace")).encode()


def _words(data: bytes) -> str:
    return data[-OUTPUT_BYTES:].decode("utf-8", "replace")


class _Tools:
    """Those of a level: none that is not needed, and none twice."""

    def __init__(self, level: str) -> None:
        self.level = level
        self.missing: list[str] = []
        self.running: dict[str, _Tool] = {}
        self.failed: dict[str, dict[str, Any]] = {}
        self._brief()
        if level == "full":
            self._full()

    def _brief(self) -> None:
        if os.path.isdir(probe.ROOT + "/run/NetworkManager"):
            self.start("nmcli device", ["nmcli", "-t", "-f", "DEVICE,TYPE,STATE,CONNECTION", "device"])
            fields = "NAME,UUID,TYPE,FILENAME,DEVICE"
            self.start("nmcli connection", ["nmcli", "-t", "-f", fields, "connection", "show"])
        if probe._which("docker"):
            self.start(
                "systemctl docker.service", ["systemctl", "show", "docker.service", "--property=LimitMEMLOCK,Id"]
            )
        asked = ["--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader"]
        self.start("nvidia-smi apps", ["nvidia-smi", *asked])
        if _is_enabled_ufw():
            return  # its own files say what it drops
        if os.path.isdir(probe.ROOT + "/run/firewalld"):
            self.start("firewall-cmd zones", ["firewall-cmd", "--list-all-zones"])
            self.start("firewall-cmd default", ["firewall-cmd", "--get-default-zone"])
        else:
            self.start("nft", ["nft", "list", "ruleset"])
        # Tables of the older kind, which nft does not list.
        if "filter" in (probe._whole_text("/proc/net/ip_tables_names") or ""):
            self.start("iptables", ["iptables-legacy", "-S"])

    def _full(self) -> None:
        """What takes longer, or says again what files say, for whoever asks everything."""
        fields = "name,driver_version,clocks.sm,clocks.max.sm,utilization.gpu,power.draw,temperature.gpu"
        query = f"--query-gpu={fields},clocks_event_reasons.active"
        self.start("nvidia-smi", ["nvidia-smi", query, "--format=csv,noheader"])
        self.start("nvidia-smi -q", ["nvidia-smi", "-q"])
        if probe._which("docker"):
            asked = ["systemctl", "show", "docker.service", "--property=LimitMEMLOCK,Id"]
            self.start("systemctl docker.service", asked)
        self.start("ss", ["ss", "-ltnp"])
        self.start("ibv_devinfo", ["ibv_devinfo"])
        self.start("ibdev2netdev", ["ibdev2netdev"])
        self.start("lspci", ["lspci", "-D"])
        self.start("netplan", ["netplan", "get"], change=_hide)
        self.start("timedatectl", ["timedatectl", "show"], SLOW)
        self.start("fwupdmgr devices", ["fwupdmgr", "get-devices", "--json"], SLOW)
        self.start("fwupdmgr upgrades", ["fwupdmgr", "get-upgrades", "--json", "--no-metadata-check"], SLOW)
        journal = ["journalctl", "--no-pager", "--quiet"]
        kernel = [*journal, "--dmesg", "--boot=0", "--output=short-monotonic", "--lines=20000"]
        self.start("journalctl kernel", kernel, SLOW, _telling)
        self.start("journalctl boots", [*journal, "--list-boots"], SLOW)
        for boot in (1, 2, 3):
            last = [*journal, f"--boot=-{boot}", "--lines=40", "--output=short-iso"]
            self.start(f"journalctl end-{boot}", last, SLOW)
        if _is_enabled_ufw():
            self.start("ufw", ["ufw", "status", "verbose"])
        for netdev in _of_hcas():
            self.start(f"ethtool {netdev}", ["ethtool", netdev])
            self.start(f"ethtool -m {netdev}", ["ethtool", "-m", netdev])

    def start(self, name: str, argv: list[str], seconds: int = QUICK, change: Any = None) -> None:
        path = probe._which(argv[0])
        if path is None:
            self.missing.append(argv[0])
            return
        try:
            self.running[name] = _Tool([path, *argv[1:]], seconds, change)
        except OSError as error:
            self.failed[name] = {"code": 127, "out": "", "err": str(error)}

    def finish(self) -> dict[str, Any]:
        return {**self.failed, **{name: probe._guarded(tool.finish) for name, tool in self.running.items()}}


def _is_enabled_ufw() -> bool:
    found = probe._guarded(lambda: _text("/etc/ufw/ufw.conf"))
    return isinstance(found, str) and re.search(r"(?im)^\s*ENABLED\s*=\s*[\"']?yes", found) is not None


# Files


def _text(path: str) -> Any:
    """The beginning of a file; None if there is none."""
    try:
        with open(probe.ROOT + path, "rb") as stream:
            return stream.read(FILE_BYTES).decode("utf-8", "replace")
    except (FileNotFoundError, NotADirectoryError):
        return None


def _settings(path: str) -> Any:
    """What Docker's settings say of runtimes; a proxy or a log in them may have a password."""
    import json

    text = _text(path)
    if not text or not text.strip():
        return text
    try:
        return json.dumps({"runtimes": json.loads(text).get("runtimes")})
    except (ValueError, AttributeError, RecursionError):
        return re.sub(r'"[^"\n]*"?', '""', text)  # its form, which is wrong


def _network() -> dict[str, Any]:
    """Files of everybody's that may define a netdev, by path, with nothing secret in them; `hidden` where something was
    left out for that."""
    found: dict[str, Any] = {}
    for place, ending in KINDS:
        try:
            names = sorted(os.listdir(probe.ROOT + place))
        except OSError:
            continue
        for name in names:
            if not name.endswith(ending) or name.startswith("10-netplan-") or len(found) >= NETWORK_FILES_MOST:
                continue
            if os.path.basename(os.path.realpath(probe.ROOT + place + "/" + name)) == "null":
                continue  # masked
            found[place + "/" + name] = probe._guarded(functools.partial(_network_file, place + "/" + name))
    return found


def _network_file(path: str) -> dict[str, Any]:
    text = _text(path) or ""
    told = _sections(text) if path.endswith(".nmconnection") else text
    told = _without_secrets(told)
    return {"text": told, "hidden": told != text, "whole": len(text) < FILE_BYTES}


def _without_secrets(text: str) -> str:
    """The lines, with "hidden" for the value of whatever is called a password or a key, also of one that goes on in
    the lines below it."""
    found, deeper, quote = [], -1, ""
    for line, end in _lines(text):
        depth = len(line) - len(line.lstrip())
        if quote:  # which ends where it is closed, however deep its lines are
            quote = "" if quote in line else quote
            found.append(end)
            continue
        if deeper >= 0 and (not line.strip() or depth > deeper):
            found.append(end)
            continue
        deeper = -1
        for one in SECRET.finditer(line):
            value = one["value"].strip()
            quoted = value[:1] in ("'", '"')
            if not value or value[0] in "|>&!#" or (quoted and (len(value) < 2 or value[-1] != value[0])):
                deeper = depth
            if quoted and value.count(value[0]) == 1:
                quote = value[0]
        hidden = SECRET.sub(r"\g<key> hidden", line)
        first = SECRET.search(line)
        # Outside of braces a comma is a part of the value.
        if first and "{" not in line[: first.start()] and not line.rstrip().endswith((",", "}", "]")):
            hidden = line[: first.start()] + first["key"] + " hidden"
        found.append(hidden + end)
    return "".join(found)


def _sections(text: str) -> str:
    """Those of a profile that are about the netdev; the others' lines are empty, so that each keeps its number."""
    kept, section = [], ""
    for line, end in _lines(text):
        if line.strip().startswith("["):
            section = line.strip().strip("[]")
        kept.append((line if section in SECTIONS else "") + end)
    return "".join(kept)


def _lines(text: str) -> list[tuple[str, str]]:
    return [(line.rstrip("\r\n"), line[len(line.rstrip("\r\n")) :]) for line in text.splitlines(keepends=True)]


# Hardware


def _of_hcas() -> list[str]:
    base = probe.ROOT + "/sys/class/infiniband"
    try:
        hcas = sorted(os.listdir(base))
    except OSError:
        return []
    return sorted({netdev for hca in hcas for netdev in probe._hca_netdevs(f"{base}/{hca}", f"{base}/{hca}/ports/1")})


def _hcas() -> dict[str, Any]:
    """What sysfs says of each RDMA device and its port 1."""
    base = probe.ROOT + "/sys/class/infiniband"
    found: dict[str, Any] = {}
    try:
        names = sorted(os.listdir(base))
    except FileNotFoundError:
        return found
    for name in names:
        device = f"{base}/{name}"
        found[name] = {
            "netdevs": probe._hca_netdevs(device, device + "/ports/1"),
            "pci": _slot(device + "/device"),
            **{
                key: probe._line(f"{device}/{path}")
                for key, path in (("state", "ports/1/state"), ("phys", "ports/1/phys_state"), ("rate", "ports/1/rate"),
                                  ("layer", "ports/1/link_layer"), ("firmware", "fw_ver"), ("board", "board_id"),
                                  ("width", "device/current_link_width"), ("speed", "device/current_link_speed"),
                                  ("max_width", "device/max_link_width"))
            },
        }  # fmt: skip
    return found


def _slot(device: str) -> str:
    """A PCI device's address; "" where it is none."""
    try:
        with open(device + "/uevent") as stream:
            for line in stream:
                if line.startswith("PCI_SLOT_NAME="):
                    return line.partition("=")[2].strip()
    except OSError:
        pass
    name = os.path.basename(os.path.realpath(device))
    return name if re.fullmatch(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", name) else ""


def _netdevs() -> dict[str, Any]:
    """What sysfs says of the netdevs of RDMA devices."""
    found = {}
    for name in _of_hcas():
        base = f"{probe.ROOT}/sys/class/net/{name}"
        driver = os.path.basename(os.path.realpath(base + "/device/driver"))
        found[name] = {
            **{
                key: probe._line(f"{base}/{path}")
                for key, path in (("mac", "address"), ("carrier", "carrier"), ("mtu", "mtu"), ("speed", "speed"),
                                  ("flags", "flags"), ("operstate", "operstate"),
                                  ("width", "device/current_link_width"), ("link_speed", "device/current_link_speed"))
            },
            "pci": _slot(base + "/device"),
            "driver": "" if driver == "driver" else driver,
        }  # fmt: skip
    return found


def _devices() -> list[str]:
    try:
        return sorted(os.listdir(probe.ROOT + "/dev/infiniband"))
    except FileNotFoundError:
        return []


# Processes, Docker, desktop, clock


def _processes() -> list[list[Any]]:
    """Those whose names mean something here and that are in no container: pid, name, command line."""
    found: list[list[Any]] = []
    wanted = {*GRAPHICAL, *DAEMONS, *TIMEKEEPERS}
    for pid in (name for name in os.listdir(probe.ROOT + "/proc") if name.isdigit()):
        name = probe._line(f"{probe.ROOT}/proc/{pid}/comm")
        if name not in wanted or probe._process(pid)["container"]:
            continue
        line = (probe._whole_text(f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip()
        found.append([int(pid), name, line[:500]])
    return sorted(found)


def _limits(processes: Any) -> dict[str, str]:
    """/proc/PID/limits of each dockerd: what its containers start with."""
    rows = processes if isinstance(processes, list) else []
    return {str(pid): probe._whole_text(f"/proc/{pid}/limits") or "" for pid, name, _ in rows if name == "dockerd"}


def _docker_side(home: str, user: str) -> dict[str, Any]:
    import glob

    root = probe.ROOT
    return {
        "snap": os.path.isdir(root + "/snap/docker") or os.path.isdir(root + "/var/snap/docker"),
        "packaged": any(os.access(f"{root}/usr/{place}/dockerd", os.X_OK) for place in ("bin", "sbin", "local/bin")),
        "rootless": sorted(path[len(root) :] for path in glob.glob(glob.escape(root) + "/run/user/*/docker.sock")),
        "context": probe._guarded(lambda: _context(home)),
        "group": probe._guarded(lambda: _in_group(user)),
    }


def _context(home: str) -> str:
    """Of the user's own client; what else is in that file, such as passwords of registries, is not sent."""
    import json

    text = _text(home.rstrip("/") + "/.docker/config.json") if home else None
    found = json.loads(text).get("currentContext", "") if text and text.strip() else ""
    return str(found)


def _in_group(user: str) -> Any:
    import grp
    import pwd

    try:
        group = grp.getgrnam("docker")
    except KeyError:
        return None
    return user in group.gr_mem or pwd.getpwnam(user).pw_gid == group.gr_gid


def _default_target() -> str:
    for place in ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"):
        try:
            return os.path.basename(os.readlink(f"{probe.ROOT}{place}/default.target"))
        except OSError:
            continue
    return ""


def _synchronized() -> Any:
    """Whether the kernel's clock is steered, as timedatectl finds it out: by adjtimex, which changes nothing when asked
    so. None where it cannot be asked."""
    import ctypes

    class Timex(ctypes.Structure):
        _fields_ = (
            ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long), ("maxerror", ctypes.c_long),
            ("rest", ctypes.c_char * 512),
        )  # fmt: skip

    asked = Timex()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(asked))
    # systemd's own rule, src/basic/time-util.c: less than 16 s of error at most.
    return None if state < 0 else asked.maxerror < 16_000_000


def _containers(tools: Any) -> dict[str, Any]:
    """The container of each process that the driver names."""
    out = tools.get("nvidia-smi apps", {}).get("out", "") if isinstance(tools, dict) else ""
    pids = [line.partition(",")[0].strip() for line in out.splitlines()]
    return {pid: probe._process(pid)["container"] for pid in pids if pid.isdigit()}
