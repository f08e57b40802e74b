"""What happens on a host while a row runs: memory of Sparkpair's processes, secrets in process lists, cached files."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shlex
import subprocess
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from lab import hosts
from lab.settings import Host

SAMPLER = r"""
import json, os, select, sys, time

needle = sys.stdin.readline().strip().encode()
me = str(os.getpid())
peak, at_peak, others, seen, samples, told = 0, {}, {}, [], 0, set()


def text(pid, name):
    try:
        with open(f"/proc/{pid}/{name}", "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def owner(pid):
    # The unified hierarchy's line; processes from outside the host have a path that leaves it.
    for line in text(pid, "cgroup").decode().splitlines():
        if line.startswith("0::"):
            return line[3:]
    return ""


def pss(pid):
    for line in text(pid, "smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return 0


while True:
    now = {}
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or pid == me:
            continue
        words, home = text(pid, "cmdline"), owner(pid)
        if needle and (needle in words or needle in text(pid, "environ")):
            sight = words.replace(b"\0", b" ").decode(errors="replace").replace(needle.decode(), "<it>")
            if sight not in told:
                told.add(sight)
                seen.append(sight[:200])
        if not words or home.startswith("/.."):
            continue
        unit = home.rsplit("/", 1)[-1]
        if unit.startswith("sparkpair") and unit.endswith(".service"):
            name = unit
        elif home.startswith("/user.slice") and "session-" in home:
            name = "ssh sessions"
        elif b"sparkpair" in words and b"docker" not in words and "docker-" not in home:
            name = "others of ours"
        else:
            program = words.split(b"\0")[0].decode(errors="replace").rsplit("/", 1)[-1]
            if program in ("dockerd", "containerd"):
                others[program] = max(others.get(program, 0), pss(pid))
            continue
        now[name] = now.get(name, 0) + pss(pid)
    samples += 1
    if sum(now.values()) > peak:
        peak, at_peak = sum(now.values()), now
    if select.select([sys.stdin], [], [], 0.1)[0]:
        break
print(json.dumps({"peak": peak, "at_peak": at_peak, "others": others, "seen": seen, "samples": samples}))
"""


@dataclass
class Seen:
    """What one host showed. Memory is PSS in bytes."""

    peak: int
    """The most that all processes of ours had together."""
    at_peak: dict[str, int]
    others: dict[str, int]
    """The most that Docker's own daemons had, which are not ours."""
    seen: list[str]
    """Command lines of processes that had the secret among their arguments or in their environment."""
    samples: int

    @property
    def mib(self) -> float:
        return self.peak / 2**20

    def detail(self) -> str:
        """What the peak was made of."""
        return ", ".join(f"{name} {size / 2**20:.0f}" for name, size in sorted(self.at_peak.items()))


@dataclass
class Watch:
    """Looks at every process of a host ten times a second until it is ended."""

    host: Host
    secret: str = ""
    _process: subprocess.Popen[str] | None = field(default=None, repr=False)

    def __enter__(self) -> Watch:
        # The program is an argument, the secret is not: the watcher would see itself.
        command = hosts.exec_command(self.host, f"exec python3 -c {shlex.quote(SAMPLER)}")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{self.secret}\n")
        self._process.stdin.flush()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def end(self) -> Seen:
        """Stop looking, and tell what was seen. Raises AssertionError when it could not look."""
        assert self._process is not None, "it was ended before"
        said, _ = self._process.communicate("end\n", timeout=30)
        code, self._process = self._process.returncode, None
        assert code == 0, f"{self.host.name}: the watch exited {code}"
        return Seen(**json.loads(said))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_ubyte))


def cached_bytes(path: Path) -> int:
    """Bytes of a file that the kernel holds in its page cache."""
    size = path.stat().st_size
    if size == 0:
        return 0
    with (
        path.open("rb") as stream,
        mmap.mmap(stream.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as mapped,
    ):
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        start = ctypes.c_ubyte.from_buffer(mapped)
        try:
            failed = _libc.mincore(ctypes.addressof(start), size, pages)
        finally:
            del start  # the mapping cannot be closed while this looks at it
        if failed:
            raise OSError(ctypes.get_errno(), f"mincore: {path}")
        return min(size, sum(page & 1 for page in pages) * mmap.PAGESIZE)


def cached_share(places: Iterable[Path]) -> float:
    """Which part of these files is in the page cache, from 0 to 1."""
    files = [path for place in places for path in place.rglob("*") if path.is_file()]
    total = sum(path.stat().st_size for path in files)
    return sum(cached_bytes(path) for path in files) / total if total else 0.0


def on_machine(host: Host, path: str) -> Path:
    """A path of a host's own disk (/srv and below) as the machine has it."""
    return host.disk / path.lstrip("/")


def drop_cache(place: Path) -> None:
    """Take the files below a directory out of the page cache."""
    for path in place.rglob("*"):
        if path.is_file():
            with path.open("rb") as stream:
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_bytes(host: Host) -> int:
    """Bytes that were read from a host's own disk since it was made: past the page cache, or into it."""
    device = next(
        line.split()[9] if line.split()[8] == "ext4" else line.partition(" - ")[2].split()[1]
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        if line.split()[4] == str(host.disk)
    )
    return int(Path(f"/sys/class/block/{Path(device).name}/stat").read_text().split()[2]) * 512


class Control:
    """Looks for a secret among the arguments of every process of the control machine, which is this one."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self._seen: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Control:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def end(self) -> list[str]:
        """Stop looking; the command lines that held it, without it."""
        self.__exit__()
        return sorted(self._seen)

    def _look(self) -> None:
        while not self._over.wait(0.1):
            for place in Path("/proc").glob("[0-9]*"):
                try:
                    words = (place / "cmdline").read_bytes()
                except OSError:
                    continue  # it has ended
                if self._secret in words:
                    self._seen.add(words.replace(self._secret, b"<it>").replace(b"\0", b" ").decode(errors="replace"))


PLACES = "/etc /home /opt /root /run /srv /tmp /usr/local /var"
"""Where a program may leave something on a host. Docker's layers and files of more than 16 MiB hold no secret of ours,
and take minutes to read."""


def left_over(host: Host, secret: str) -> list[str]:
    """Files, journal and unit properties of a host that hold the secret."""
    look = (
        "read -r secret; "
        f"find {PLACES} -path /var/lib/docker -prune -o -path /var/lib/containerd -prune -o "
        '-type f -size -16M -print0 | xargs -0 grep -lF -e "$secret" --'
    )
    found = subprocess.run(
        hosts.exec_command(host, look), input=f"{secret}\n", capture_output=True, text=True, timeout=300, check=False
    ).stdout.split()
    for name, command in {
        "the journal": "journalctl --no-pager -o export",
        "systemctl show": "systemctl show --all --no-pager '*'",
        "systemctl cat": "systemctl cat --no-pager '*'",
    }.items():
        said = subprocess.run(hosts.exec_command(host, command), capture_output=True, timeout=300, check=False).stdout
        assert said, f"{host.name}: {command} said nothing"
        if secret.encode() in said:
            found.append(name)
    return found
