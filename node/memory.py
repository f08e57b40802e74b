"""A node's memory, which CPU and GPU share on GB10: how much there is, what gives some back, who goes first when there
is none. What runs out of it does not fail there, it takes the whole node with it (field reports: MEM-07).

Few imports and plain paths: the recorder, which is always there, lives on this module. Named tuples take a megabyte
less than dataclasses do, which import `inspect`.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

MEMINFO = "/proc/meminfo"
PRESSURE = "/proc/pressure/memory"
DROP_CACHES = "/proc/sys/vm/drop_caches"
PROC = "/proc"

GIB = 2**30
CACHE_WORTH_DROPPING = 4 * GIB
"""Of page cache: from here on another kit for the pair drops it before a start (TensorFold, START_DROP_CACHES)."""
PAGE_CACHE = "1"
"""Drops the page cache alone. Directory entries and inodes (2, 3) are small, and dear to read anew."""
FIRST_TO_GO = 500
"""oom_score_adj of the engine: counts as if it held half of the node's memory on top of what it holds."""
EMERGENCY_SAMPLES = 3
"""Fewer prove nothing, however far apart: a node that is short of memory may give this program no turn for seconds."""

Place = str | os.PathLike[str]


class Meminfo(NamedTuple):
    """Bytes, as the kernel counts them for CPU and GPU together."""

    total: int
    free: int
    available: int
    cached: int
    swap_total: int
    swap_free: int

    @property
    def swap_used(self) -> int:
        return self.swap_total - self.swap_free


class Pressure(NamedTuple):
    """Percent of the last ten seconds in which some, or all, of what wanted to run waited for memory."""

    some: float
    full: float


NAMES = {
    "MemTotal": "total", "MemFree": "free", "MemAvailable": "available", "Cached": "cached",
    "SwapTotal": "swap_total", "SwapFree": "swap_free",
}  # fmt: skip


def meminfo(path: Place = MEMINFO) -> Meminfo:
    """What there is now. Raises OSError, also for a text that lacks one of the figures."""
    found = {}
    for line in _text(path).splitlines():
        name, _, rest = line.partition(":")
        if name in NAMES:
            found[NAMES[name]] = int(rest.split()[0]) * 1024
    if len(found) < len(NAMES):
        raise OSError(errno.ENODATA, f"it has no {', '.join(name for name in NAMES if NAMES[name] not in found)}", path)
    return Meminfo(**found)


def psi(path: Place = PRESSURE) -> Pressure | None:
    """How hard memory is to come by; None on a kernel that does not tell."""
    found = {}
    try:
        for line in _text(path).splitlines():
            kind, average, *_ = line.split()
            found[kind] = float(average.partition("=")[2])
        return Pressure(found["some"], found["full"])
    except (OSError, ValueError, KeyError):
        return None


def processes(cgroups: Iterable[Place]) -> list[int]:
    """The processes in these cgroups and below them; none where a cgroup is not there."""
    found = []
    for cgroup in cgroups:
        for directory, _, _ in os.walk(cgroup):  # passes over what ends meanwhile
            try:
                found += [int(pid) for pid in _text(os.path.join(directory, "cgroup.procs")).split()]
            except OSError:
                continue
    return found


def is_populated(cgroups: Iterable[Place]) -> bool:
    """Whether a process is in one of these cgroups, or below it: one small file for each."""
    return any("populated 1" in text for text in _texts(os.path.join(cgroup, "cgroup.events") for cgroup in cgroups))


def drop_page_cache(path: Place = DROP_CACHES, info: Place = MEMINFO) -> str:
    """Give the page cache back before an engine starts, which counts what is cached as used (MEM-01, MEM-02). Returns
    what was done, for the log; "" where there was no need.

    Only clean pages go, so nothing is synced: that may take minutes, and what is being written is somebody's work. It
    takes the kernel up to seconds. Where it cannot be done the start goes on: the engine itself says if it is short.
    """
    try:
        before = meminfo(info)
        # What would come back is what is available beyond what is free; tmpfs counts as cached and would not.
        if min(before.cached, before.available - before.free) <= CACHE_WORTH_DROPPING:
            return ""
        with open(path, "w", encoding="ascii") as stream:
            stream.write(PAGE_CACHE)
        after = meminfo(info)
    except OSError as error:
        return f"the page cache could not be dropped: {path}: {error.strerror}"
    return (
        f"dropped the page cache: {_gib(before.cached)} were cached, {_gib(after.cached)} are; "
        f"{_gib(before.free)} were free, {_gib(after.free)} are"
    )


class Emergency:
    """Says when a node has been below a threshold for so long that its engine must go, lest all goes."""

    def __init__(self, threshold_bytes: int, seconds: float = 3.0) -> None:
        self._threshold = threshold_bytes
        self._seconds = seconds
        self._since: float | None = None
        self._samples = 0

    def feed(self, now: float, available: int) -> bool:
        """One more sample, `now` by a clock that only goes forward. True once per emergency: after it the count begins
        anew, so that what was done about it gets its time. A threshold of 0 is never reached."""
        if available >= self._threshold:
            self._since, self._samples = None, 0
            return False
        if self._since is None:
            self._since = now
        self._samples += 1
        if now - self._since < self._seconds or self._samples < EMERGENCY_SAMPLES:
            return False
        self._since, self._samples = None, 0
        return True


def spare(pids: Iterable[int], score: int = FIRST_TO_GO, proc: Place = PROC) -> int:
    """Spare all others: when the kernel ends a process for want of memory, these come first. Returns how many it had
    to tell so. Those that ended meanwhile are passed over; none is given a lower score than it has."""
    count = 0
    for pid in pids:
        place = os.path.join(proc, str(pid), "oom_score_adj")
        try:
            if int(_text(place)) >= score:
                continue
            with open(place, "w", encoding="ascii") as stream:
                stream.write(str(score))
        except OSError:
            continue
        count += 1
    return count


def recorded(path: Place) -> dict[str, object]:
    """What the recorder wrote last; empty where it has not, or where that cannot be read."""
    try:
        found = json.loads(_text(path))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(path: Place) -> str:
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read()


def _texts(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        try:
            yield _text(path)
        except OSError:
            continue


def _gib(amount: int) -> str:
    return f"{amount / GIB:.1f} GiB"
