"""Running programs, recording processes so that they can be ended safely, and the lab's lock."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lab import settings


class LabError(Exception):
    """What went wrong and what to do about it, for the person at the terminal."""


def say(text: str) -> None:
    """Tell progress on stderr, so that stdout carries only what was asked for."""
    print(f"lab: {text}", file=sys.stderr, flush=True)


def run(*command: Any, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program; with `check`, a failure becomes a LabError that shows what it said."""
    options.setdefault("text", True)
    words = [str(word) for word in command]
    if check and "stdout" not in options and "capture_output" not in options:
        options.update(capture_output=True)
    result: subprocess.CompletedProcess[str] = subprocess.run(words, check=False, **options)
    if check and result.returncode:
        said = "\n".join(text.strip() for text in (result.stdout, result.stderr) if text)[-3000:]
        raise LabError(f"`{' '.join(words)[:300]}` failed with code {result.returncode}:\n{said}")
    return result


def quiet(*command: Any) -> bool:
    """Run a program that may fail, and tell whether it worked."""
    return run(*command, check=False, capture_output=True).returncode == 0


def inside(namespace: str, *command: Any) -> list[str]:
    """The command line that runs a program in a network namespace.

    nsenter, because `ip netns exec` mounts /sys anew and hides the control groups from systemd-nspawn.
    """
    return ["nsenter", f"--net=/run/netns/{namespace}", "--", *[str(word) for word in command]]


def contained(*command: Any) -> list[str]:
    """The command line of a program that ends with the lab command that started it, children and all.

    A killed `build` must not leave a pip behind that still writes into a tree which the next build makes anew.
    """
    return ["setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child", "--",
            *[str(word) for word in command]]  # fmt: skip


def digest(*parts: str | bytes) -> str:
    """A short key over inputs, unambiguous about where one ends and the next begins."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "big") + data)
    return total.hexdigest()[:16]


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a small file as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        path.unlink()
    path.write_text(text)
    path.chmod(mode)


def replace(path: Path, text: str) -> None:
    """Write a small file so that a reader sees the old or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)


# --- processes: a number alone does not name one, a number and its start time do

Process = tuple[int, int]


def start_time(pid: int) -> int | None:
    """When the kernel started this process (clock ticks after boot), or None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def boot_id() -> str:
    """This boot of the machine: records of another boot name nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def record(path: Path, pid: int) -> None:
    """Remember a process that we started."""
    replace(path, json.dumps({"pid": pid, "start": start_time(pid), "boot": boot_id()}))


def recorded(path: Path) -> int | None:
    """The process remembered in this file, when it is still the same one."""
    try:
        data = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    if data["boot"] != boot_id() or data["start"] is None or start_time(data["pid"]) != data["start"]:
        return None
    return int(data["pid"])


def end(path: Path, how: signal.Signals = signal.SIGTERM, patience_seconds: float = 5) -> None:
    """End a recorded process, by force when it does not listen, and forget it."""
    for blow in (how, signal.SIGKILL):
        pid = recorded(path)
        if pid is None:
            break
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, blow)
        wait_until(lambda: recorded(path) is None, patience_seconds, 0.02)
    path.unlink(missing_ok=True)


def wait_until(true: Callable[[], bool], seconds: float, pause: float = 0.1) -> bool:
    """Wait for a condition with a deadline."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def daemon(words: Sequence[str], log: Path, record_at: Path) -> int:
    """Start a program that outlives this one, its output in a file, and remember it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, cwd=settings.CHECKOUT
        )
    record(record_at, child.pid)
    return child.pid


@contextlib.contextmanager
def lock(name: str = "lock") -> Iterator[None]:
    """One command at a time changes the lab of a checkout."""
    settings.LAB.mkdir(parents=True, exist_ok=True)
    with (settings.LAB / name).open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another lab command is at work in {settings.LAB}; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def stage(name: str, times: dict[str, float] | None = None) -> Iterator[None]:
    """Tell when a stage of the work ends and how long it took."""
    started = time.monotonic()
    yield
    seconds = time.monotonic() - started
    if times is not None:
        times[name] = round(seconds, 1)
    say(f"{name}: {seconds:.1f} s")
