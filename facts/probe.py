"""The bulk probe: one program, sent to a node as text and run there as root, that answers a query in one JSON document.

Standard library only, and few modules of it: the start of Python is most of what a probe costs. It changes nothing. A
part that fails is {"error": why} and leaves the others standing: the deploy decides whether it can do without.
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from node import content, secret

DOCKER_SOCKET = "/var/run/docker.sock"
ANSWER_SECONDS = 20
MOUNT_SECONDS = 5
OURS = "60-sparkpair.yaml"
NETWORK_FILES = (
    ("/etc/netplan", ".yaml"),
    ("/run/netplan", ".yaml"),
    ("/lib/netplan", ".yaml"),
    ("/etc/systemd/network", ".network"),
    ("/etc/NetworkManager/system-connections", ".nmconnection"),
)
MEMINFO = ("MemTotal", "MemAvailable", "SwapTotal", "Shmem", "SUnreclaim", "KernelStack", "Percpu")
LARGEST = 3
LARGE_BYTES = 64 * 2**20
UNIT_PROPERTIES = (
    "Id,LoadState,ActiveState,SubState,UnitFileState,NeedDaemonReload,MainPID,Result,FragmentPath,InvocationID"
)
# Docker's systemd driver writes <slice>/docker-<id>.scope; its cgroupfs driver <parent>/<id>, where the parent is
# "docker" or the container's --cgroup-parent.
CONTAINER = re.compile(r"(?:docker-|/)([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE)
# Where it runs is the node's business; tests give a directory of their own.
ROOT = ""


def main() -> None:
    """Answer the query in argv[1] for the user in argv[2]."""
    query, user = json.loads(sys.argv[1]), sys.argv[2]
    sys.stdout.write(json.dumps(collect(query, user), separators=(",", ":")) + "\n")


def collect(query: dict[str, Any], user: str) -> dict[str, Any]:
    """Every part of the answer."""
    home = _home(user)
    tools = _host_tools(query)
    programs = {
        "links": _start(["ip", "-j", "address", "show"]),
        "units": _start(["systemctl", "show", "--property=" + UNIT_PROPERTIES, "--", *query.get("units", [])])
        if query.get("units")
        else None,
        "machine": _start(["uname", "-m"]),
        "gpu": _start(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])
        if query.get("gpu")
        else None,
        # Only where an engine of ours may hold any of it.
        "apps": _start(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"])
        if query.get("gpu") and _is_populated(query.get("cgroups", []))
        else None,
    }
    python = list(sys.version_info[:3])
    answer: dict[str, Any] = {"format": 1, "sudo": True, "user": user, "home": home, "python": python}
    parts: dict[str, Callable[[], Any]] = {
        "hostname": socket.gethostname,
        "machine_id": _machine_id,
        "boot_id": lambda: _text("/proc/sys/kernel/random/boot_id").strip(),
        "files": lambda: {path: _file(path) for path in query.get("files", [])},
        "texts": lambda: {path: _guarded(functools.partial(_optional_text, path)) for path in query.get("texts", [])},
        "trees": lambda: {path: _tree(path) for path in query.get("trees", [])},
        "documents": lambda: {path: _document(path) for path in query.get("documents", [])},
        "accounts": lambda: {name: _account(name) for name in query.get("accounts", [])},
        "tools": lambda: {name: _which(name) for name in query.get("tools", [])},
        "rails": lambda: {name: _rail(name) for name in query.get("netdevs") or _rdma_netdevs()},
        "network_files": lambda: _mentions(query.get("netdevs") or _rdma_netdevs()),
        "hcas": _hcas,
        "docker": lambda: _docker(query.get("images", [])),
        "content": lambda: {
            name: _content(path, home, query.get("state", "")) for name, path in query.get("content", {}).items()
        },
        "mounts": lambda: {path: _mount(path, query.get("state", "")) for path in query.get("mounts", [])},
        "secrets": lambda: {path: _secret(path) for path in query.get("secrets", [])},
        "overlays": lambda: _overlays(query.get("overlays", []), home),
        "disks": lambda: {path: _disk(path) for path in (_expand(path, home) for path in query.get("disks", []))},
        "memory": _memory,
        "holders": lambda: _holders(query.get("cgroups", []), programs["apps"]) if query.get("cgroups") else None,
        "ports": lambda: _ports(query.get("ports", [])),
        "host_key": lambda: " ".join(_text("/etc/ssh/ssh_host_ed25519_key.pub").split()[:2]),
        "machine": lambda: _finish(programs["machine"]).strip(),
        "links": lambda: _links(_finish(programs["links"])),
        "units": lambda: _units(_finish(programs["units"])) if programs["units"] else {},
        "gpu": lambda: _gpu(_finish(programs["gpu"])) if programs["gpu"] else None,
    }
    for name, part in parts.items():
        answer[name] = _guarded(part)
    if tools is not None:
        from facts import probe_host

        answer["host"] = _guarded(lambda: probe_host.finish(tools, home, user))
    return answer


def _host_tools(query: dict[str, Any]) -> Any:
    """What looks at hardware and system is a module of its own, which is sent only where that is asked."""
    if not query.get("host"):
        return None
    from facts import probe_host

    return probe_host.begin(query)


def _guarded(part: Callable[[], Any]) -> Any:
    try:
        return part()
    except Exception as error:  # any failure of one part must leave the others, and be told as what it is
        return {"error": f"{type(error).__name__}: {error}" if not isinstance(error, Failed) else str(error)}


class Failed(Exception):
    """A program did not answer, or said no."""


def _start(argv: list[str]) -> Any:
    try:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        )
    except OSError as error:
        return Failed(f"{argv[0]}: {error.strerror}")


def _finish(process: Any) -> str:
    if isinstance(process, Failed):
        raise process
    try:
        output, errors = process.communicate(timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise Failed(f"{process.args[0]} did not answer within {ANSWER_SECONDS} s") from None
    if process.returncode != 0:
        said = (errors or output).strip().splitlines()
        raise Failed(f"{process.args[0]} exited {process.returncode}: {said[-1] if said else 'no output'}")
    return str(output)


# The node itself


def _home(user: str) -> str:
    import pwd

    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError:
        return ""


def _expand(path: str, home: str) -> str:
    return home.rstrip("/") + "/" + path[2:] if path.startswith("~/") else path


def _machine_id() -> str:
    """A digest: machine-id itself is not to leave the machine."""
    return hashlib.sha256(b"sparkpair" + _text("/etc/machine-id").strip().encode()).hexdigest()[:16]


def _account(name: str) -> Any:
    import pwd

    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    password = "?"
    for line in _text("/etc/shadow").splitlines():
        fields = line.split(":")
        if fields[0] == name:
            password = fields[1] if fields[1] in ("*", "!", "!*", "") else ("!" if fields[1].startswith("!") else "set")
    return {"home": entry.pw_dir, "shell": entry.pw_shell, "password": password}


def _which(name: str) -> Any:
    for directory in ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"):
        path = os.path.join(directory, name)
        if os.access(ROOT + path, os.X_OK):
            return path
    return None


def _memory() -> dict[str, int]:
    found = {}
    for line in _text("/proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name in MEMINFO:
            found[name] = int(rest.split()[0]) * 1024
    return found


# Who holds it


def _holders(cgroups: list[str], apps: Any) -> dict[str, Any]:
    """What the engine's processes hold, what all others hold together, and the largest of those, in bytes. `anon` is
    memory of a process's own, `shmem` what it shares with others, `gpu` what the driver says of it; None: it does not.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    engine, gpu = _processes(cgroups), _compute_apps(apps)
    held = {"anon": 0, "shmem": 0}
    others, large = 0, []
    for pid in (int(name) for name in os.listdir(ROOT + "/proc") if name.isdigit()):
        pages = (_line(f"{ROOT}/proc/{pid}/statm") or "0 0 0").split()
        resident, shared = int(pages[1]) * page, int(pages[2]) * page
        # Of a small one, what it shares with others is little, and mostly files.
        anon, shmem = _anon_and_shmem(pid) if resident >= LARGE_BYTES else (resident - shared, 0)
        if pid in engine:
            held["anon"] += anon
            held["shmem"] += shmem
            continue
        own = anon + (gpu.get(pid) or 0)
        others += own
        if own + shmem >= LARGE_BYTES:
            large.append((own + shmem, pid))
    largest = [{**_process(str(pid)), "bytes": size} for size, pid in sorted(large, reverse=True)[:LARGEST]]
    return {
        "engine": {**held, "processes": len(engine), "gpu": _share(engine, gpu)},
        "others": others,
        "largest": largest,
    }


def _is_populated(cgroups: list[str]) -> bool:
    return any("populated 1" in (_whole_text(f"{cgroup}/cgroup.events") or "") for cgroup in cgroups)


def _processes(cgroups: list[str]) -> set[int]:
    """The processes in these cgroups, and below them."""
    found: set[int] = set()
    for cgroup in cgroups:
        for directory, _, _ in os.walk(ROOT + cgroup):
            found.update(int(pid) for pid in (_whole_text(directory[len(ROOT) :] + "/cgroup.procs") or "").split())
    return found


def _compute_apps(program: Any) -> dict[int, int | None]:
    """What the driver says of each process that computes, in bytes; None where it says [N/A] or Not Supported."""
    found: dict[int, int | None] = {}
    try:
        output = _finish(program) if program else ""
    except Failed:
        return found
    for line in output.splitlines():
        pid, _, used = (part.strip() for part in line.partition(","))
        if pid.isdigit():
            found[int(pid)] = int(used) * 2**20 if used.isdigit() else None
    return found


def _share(engine: set[int], gpu: dict[int, int | None]) -> int | None:
    """The engine's part of the GPU's memory; None where that is not told of each of its processes that compute."""
    told = [gpu[pid] for pid in engine if pid in gpu]
    return sum(size or 0 for size in told) if told and None not in told else None


def _anon_and_shmem(pid: int) -> tuple[int, int]:
    found = {"RssAnon": 0, "RssShmem": 0}
    for line in (_whole_text(f"/proc/{pid}/status") or "").splitlines():
        name, _, rest = line.partition(":")
        if name in found:
            found[name] = int(rest.split()[0]) * 1024
    return found["RssAnon"], found["RssShmem"]


def _whole_text(path: str) -> str | None:
    """A file that may be gone by now: of a process or a cgroup that ended."""
    try:
        return _text(path)
    except OSError:
        return None


def _disk(path: str) -> dict[str, Any]:
    """Free space where the path is, or will be."""
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    seen = os.statvfs(path)
    return {"at": path, "device": os.stat(path).st_dev, "free": seen.f_bavail * seen.f_frsize}


def _gpu(output: str) -> list[list[str]]:
    return [[field.strip() for field in line.split(",")] for line in output.splitlines() if line.strip()]


# Files


def _text(path: str) -> str:
    with open(ROOT + path, encoding="utf-8", errors="replace") as stream:
        return stream.read()


def _optional_text(path: str) -> Any:
    try:
        return _text(path)
    except FileNotFoundError:
        return None


def _document(path: str) -> Any:
    """A JSON file's content; None if there is none. One that is damaged fails the part of its name only."""
    text = _optional_text(path)
    if text is None:
        return None
    try:
        return {"json": json.loads(text)}
    except ValueError as error:
        return {"error": f"{path} is damaged: {error}"}


def _file(path: str) -> Any:
    """What is at a path, without following a link; None for nothing."""
    import grp
    import pwd
    import stat

    try:
        status = os.lstat(ROOT + path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    kind = "other"
    sha256 = None
    if stat.S_ISREG(status.st_mode):
        kind = "file"
        if not secret.is_place(path):  # a digest would let whoever sees it try keys that were thought up
            with open(ROOT + path, "rb") as stream:
                sha256 = hashlib.sha256(stream.read()).hexdigest()
    elif stat.S_ISDIR(status.st_mode):
        kind = "directory"
    elif stat.S_ISLNK(status.st_mode):
        kind = "link"
    return {
        "kind": kind,
        "sha256": sha256,
        "mode": f"{stat.S_IMODE(status.st_mode):03o}",
        "owner": _name(pwd.getpwuid, status.st_uid),
        "group": _name(grp.getgrgid, status.st_gid),
    }


def _name(lookup: Any, number: int) -> str:
    try:
        return str(lookup(number)[0])
    except KeyError:
        return str(number)


def _tree(path: str) -> dict[str, str]:
    """sha256 of every file below a directory, by its path there."""
    found = {}
    for current, directories, files in os.walk(ROOT + path):
        directories[:] = [name for name in directories if name != "__pycache__"]
        for name in files:
            full = os.path.join(current, name)
            with open(full, "rb") as stream:
                found[os.path.relpath(full, ROOT + path)] = hashlib.sha256(stream.read()).hexdigest()
    return found


def _secret(path: str) -> dict[str, Any]:
    if not secret.is_place(path):
        raise Failed(f"{path} is no place for a secret")
    return secret.describe(ROOT + path, ROOT + secret.MACHINE_ID)


def _mount(path: str, state: str) -> dict[str, Any]:
    """What is mounted at a path from elsewhere, whether it answers, and what was proven of it. Waits for no server: a
    process of its own is the one that hangs."""
    found: dict[str, Any] = {"what": None, "trouble": "", "silent": False, "proven": None}
    for line in _text("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[4] == path:
            found["what"] = right.split()[1]
    kept = content.read_manifest(os.path.join(state, content.manifest_name(path)), path)
    mount = kept.get("mount") if kept is not None else None
    if kept is not None and isinstance(mount, dict):
        found["proven"] = {"identity": kept["identity"], **mount}
    if found["what"] is not None:
        found["trouble"], found["silent"] = _touch(ROOT + path)
    return found


def _touch(path: str) -> tuple[str, bool]:
    """Why a mounted directory cannot be looked into (empty when it can), and whether that is for want of an answer."""
    program = _start(["/usr/bin/stat", "--format=%F", path + "/."])
    if isinstance(program, Failed):
        raise program
    try:
        _, errors = program.communicate(timeout=MOUNT_SECONDS)
    except subprocess.TimeoutExpired:
        program.kill()  # and not waited for, should it not even hear that
        program.stdout.close()
        program.stderr.close()
        return f"it does not answer within {MOUNT_SECONDS} s", True
    return ("" if program.returncode == 0 else errors.strip().rpartition(": ")[2] or "it cannot be looked into"), False


def _content(path: str, home: str, state: str) -> dict[str, Any]:
    full = _expand(path, home)
    return {"path": full, **content.describe(full, state)}


def _overlays(patterns: list[str], home: str) -> dict[str, int]:
    """Directories that match a pattern, with how many files are below each."""
    import glob

    found = {}
    for pattern in patterns:
        for path in sorted(glob.glob(ROOT + glob.escape(home) + "/" + pattern[2:])):
            if os.path.isdir(path):
                found[path[len(ROOT) :]] = sum(len(files) for _, _, files in os.walk(path))
    return found


# Network


def _links(output: str) -> dict[str, Any]:
    found = {}
    for link in json.loads(output):
        found[link["ifname"]] = {
            "mtu": link.get("mtu"),
            "flags": link.get("flags", []),
            "master": link.get("master"),
            "addresses": [
                f"{info['local']}/{info['prefixlen']}"
                for info in link.get("addr_info", [])
                if info.get("family") == "inet"
            ],
        }
    return found


def _rail(netdev: str) -> dict[str, Any]:
    """What sysfs says of one netdev."""
    base = ROOT + "/sys/class/net/" + netdev
    if not os.path.isdir(base):
        return {"present": False, "carrier": None}
    try:
        with open(base + "/carrier") as stream:
            carrier: Any = stream.read().strip() == "1"
    except OSError:  # administratively down: the kernel does not say
        carrier = None
    return {"present": True, "carrier": carrier}


def _mentions(netdevs: list[str]) -> list[list[Any]]:
    """Lines of other people's network settings that are about these netdevs: file, line number, netdev; no contents."""
    found: list[list[Any]] = []
    addresses = {netdev: _line(f"{ROOT}/sys/class/net/{netdev}/address") or "" for netdev in netdevs}
    for directory, ending in NETWORK_FILES:
        try:
            names = sorted(os.listdir(ROOT + directory))
        except OSError:
            continue
        for name in names:
            path = directory + "/" + name
            if not name.endswith(ending) or name == OURS:
                continue
            for number, line in enumerate(_text(path).splitlines(), 1):
                found += [[path, number, netdev] for netdev in netdevs if _is_about(line, netdev, addresses[netdev])]
    return found


def _is_about(line: str, netdev: str, address: str = "") -> bool:
    """Whether it names the netdev, by its name or its MAC address: as a key or set-name, as a member of a bond or
    bridge, or by a pattern. A value of several lines is looked at line by line, so any word of its own counts."""
    line = re.sub(r"""(?:^|\s)[#;].*""", "", line)
    words = re.split(r"""[\s,;=\[\]{}"']+""", line)
    if netdev in (word.rstrip(":") for word in words):
        return True
    if address and address.lower() in (word.lower() for word in words):
        return True
    named = re.search(r"""(?:^|[\s{,"'])(?:name["']?\s*:|Name\s*=|interface-name\s*=)\s*([^,}]+)""", line)
    patterns = re.split(r"""[\s;"']+""", named.group(1)) if named else []
    return any(fnmatch.fnmatchcase(netdev, pattern) for pattern in patterns if pattern)


def _hcas() -> dict[str, Any]:
    """RDMA devices: their netdevs, the state of port 1, and its GID table."""
    base = ROOT + "/sys/class/infiniband"
    found: dict[str, Any] = {}
    try:
        names = sorted(os.listdir(base))
    except FileNotFoundError:
        return found
    for name in names:
        port = f"{base}/{name}/ports/1"
        found[name] = {
            "netdevs": _hca_netdevs(base + "/" + name, port),
            "state": _line(port + "/state"),
            "gids": _gids(port),
        }
    return found


def _rdma_netdevs() -> list[str]:
    """Any of them may become a rail, where none is stated."""
    base = ROOT + "/sys/class/infiniband"
    names = sorted(os.listdir(base)) if os.path.isdir(base) else []
    return [netdev for name in names for netdev in _hca_netdevs(f"{base}/{name}", f"{base}/{name}/ports/1")]


def _hca_netdevs(device: str, port: str) -> list[str]:
    try:
        return sorted(os.listdir(device + "/device/net"))
    except OSError:
        pass
    try:
        indexes = os.listdir(port + "/gid_attrs/ndevs")
    except OSError:
        return []
    return sorted({name for name in (_line(port + "/gid_attrs/ndevs/" + index) for index in indexes) if name})


def _gids(port: str) -> list[list[Any]]:
    try:
        indexes = sorted(os.listdir(port + "/gids"), key=int)
    except (OSError, ValueError):
        return []
    rows = []
    for index in indexes:
        gid = _line(port + "/gids/" + index)
        if gid and set(gid) - {"0", ":"}:
            rows.append([int(index), gid, _line(port + "/gid_attrs/types/" + index) or ""])
    return rows


def _line(path: str) -> Any:
    """The first line of a small file; None where the kernel gives none."""
    try:
        with open(path) as stream:
            return stream.readline().strip()
    except OSError:
        return None


# Ports


def _ports(wanted: list[int]) -> dict[str, Any]:
    """Who listens on these TCP ports: {port: {pid, command, container} or null}."""
    inodes: dict[str, int] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (_optional_text(table) or "").splitlines()[1:]:
            fields = line.split()
            port = int(fields[1].rpartition(":")[2], 16)
            if fields[3] == "0A" and port in wanted:
                inodes[fields[9]] = port
    found: dict[str, Any] = {str(port): None for port in wanted}
    for port in inodes.values():
        found[str(port)] = {"pid": None, "command": "", "container": None}
    waiting = dict(inodes)
    for pid in sorted((name for name in os.listdir(ROOT + "/proc") if name.isdigit()), key=int, reverse=True):
        if not waiting:
            break
        try:
            sockets = [os.readlink(entry.path) for entry in os.scandir(f"{ROOT}/proc/{pid}/fd")]
        except OSError:
            continue
        for target in sockets:
            inode = target[8:-1] if target.startswith("socket:[") else ""
            if inode in waiting:
                found[str(waiting.pop(inode))] = _process(pid)
    return found


def _process(pid: str) -> dict[str, Any]:
    try:
        command = _text(f"/proc/{pid}/comm").strip()
        container = CONTAINER.search(_text(f"/proc/{pid}/cgroup"))
    except OSError:
        return {"pid": int(pid), "command": "", "container": None}
    return {"pid": int(pid), "command": command, "container": container.group(1) if container else None}


# Docker


def _docker(images: list[str]) -> dict[str, Any]:
    """What is installed, whether it answers, and what it holds."""
    seen: dict[str, Any] = {
        "client": _which("docker"),
        "runtime": _which("nvidia-container-runtime"),
        "toolkit": _which("nvidia-ctk"),
        "registered": _registered(),
        "answers": False,
        "trouble": "",
    }
    try:
        status, info = _ask_docker("/info")
        if status != 200:
            raise Failed(f"it answered {status}: {str(info)[:200]}")
        seen["answers"] = True
    except (OSError, ValueError, Failed) as error:
        seen["trouble"] = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return seen
    seen["version"] = info.get("ServerVersion", "")
    seen["root"] = info.get("DockerRootDir", "")
    seen["runtimes"] = sorted(info.get("Runtimes") or {})
    seen["proxied"] = bool(info.get("HttpsProxy"))
    seen["security"] = info.get("SecurityOptions") or []
    seen["driver"] = info.get("Driver") or ""
    seen["driver_status"] = info.get("DriverStatus") or []
    seen["disk"] = _guarded(lambda: _disk(seen["root"]))
    seen["images"] = {reference: _guarded(functools.partial(_image, reference)) for reference in images}
    seen["containers"] = _guarded(_containers)
    return seen


def _registered() -> bool:
    """Whether the daemon's settings know the NVIDIA runtime, as they will after its next restart."""
    text = _optional_text("/etc/docker/daemon.json")
    return bool(text and text.strip() and "nvidia" in (json.loads(text).get("runtimes") or {}))


def _image(reference: str) -> Any:
    """An image, by its digest under whatever name it was pulled: from a peer it has the peer's."""
    status, data = _ask_docker(f"/images/{reference}/json")
    digest = reference.partition("@")[2]
    if status == 404 and digest:
        status, data = _ask_docker("/images/json")
        if status == 200:
            named = [item["Id"] for item in data if _has_digest(item, digest)]
            if not named:
                return None
            status, data = _ask_docker(f"/images/{named[0]}/json")
    if status == 404:
        return None
    if status != 200:
        raise Failed(f"Docker answered {status}: {str(data)[:200]}")
    return {
        "id": data["Id"],
        "layers": (data.get("RootFS") or {}).get("Layers") or [],
        "tags": data.get("RepoTags") or [],
        "platform": f"{data.get('Os', '')}/{data.get('Architecture', '')}",
    }


def _has_digest(item: dict[str, Any], digest: str) -> bool:
    return any(name.endswith("@" + digest) for name in item.get("RepoDigests") or [])


def _containers() -> list[dict[str, Any]]:
    status, data = _ask_docker("/containers/json?all=1")
    if status != 200:
        raise Failed(f"Docker answered {status}: {str(data)[:200]}")
    return [
        {
            "id": item["Id"],
            "names": [name.lstrip("/") for name in item.get("Names") or []],
            "state": item.get("State", ""),
            "labels": {key: value for key, value in (item.get("Labels") or {}).items() if key.startswith("sparkpair.")},
        }
        for item in data
    ]


def _ask_docker(path: str) -> Any:
    """HTTP/1.0 by hand: an HTTP library takes as long to import as the whole probe to run."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(ROOT + DOCKER_SOCKET)
        connection.sendall((f"GET {path} HTTP/1.0\r\nHost: docker\r\n\r\n").encode())
        answer = b""
        while True:
            part = connection.recv(65536)
            if not part:
                break
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


# systemd


def _units(output: str) -> dict[str, dict[str, str]]:
    found = {}
    for block in output.strip().split("\n\n"):
        properties = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if "Id" in properties:
            found[properties["Id"]] = properties
    return found
