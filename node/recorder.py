"""The recorder: looks at the node's memory once a second, and keeps what it saw. `main.py recorder`, on every node.

What is true now is in a file on tmpfs, written anew each second; with it, the floor: the least that was available since
the running rank was started. What was is a record of the last days, a line for ten seconds. It starts no program, asks
no Docker, waits for no disk, and anything of it may be lost at any time: nothing depends on it.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from node import memory
from node.journal import log

SAMPLES_A_ROW = 10
ROWS_A_WRITE = 6
"""Rows that are written at once: a disk that sleeps is woken once a minute at most."""
ROWS_HELD = 360
"""An hour of rows is kept where they cannot be written; of a longer time the oldest go."""
FILE_BYTES = 2 * 2**20
"""Of each of the two files: together four to seven days."""
MIB = 2**20
HEADER = "time,available_mib,free_mib,cached_mib,swap_used_mib,psi_some,psi_full,engine\n"
STOP = {signal.SIGTERM, signal.SIGINT}


class Places(NamedTuple):
    """Where it looks and where it writes. Plain text: it stands in an argument."""

    rank: str
    """What the rank agent says of the rank that it started last."""
    now: str
    record: str
    """The directory of the record."""
    cgroups: tuple[str, ...]
    meminfo: str = memory.MEMINFO
    pressure: str = memory.PRESSURE


class Sample(NamedTuple):
    """One look. Bytes; percent, None on a kernel that does not tell."""

    at: str
    available: int
    free: int
    cached: int
    swap_used: int
    psi_some: float | None
    psi_full: float | None


class Recorder:
    """What is kept from one second to the next."""

    def __init__(self, places: Places, code: str) -> None:
        self._places = places
        self._code = code
        self._record = Record(places.record)
        self._row: list[Sample] = []
        self._told = False
        # One that is replaced hands its floor on.
        former = memory.recorded(places.now)
        self._engine, self._since = _string(former, "engine"), _string(former, "since")
        self._runs = former.get("running") is True
        self._floor, self._samples = _whole(former, "floor"), _whole(former, "samples") or 0
        self._floor_at = _string(former, "floor_at")

    def look(self) -> None:
        """One second. Raises OSError where the kernel does not say what it always says."""
        sample = _look(self._places)
        self._follow(sample)
        self._write_now(sample)
        self._row.append(sample)
        if len(self._row) == SAMPLES_A_ROW:
            self._record.add(row(self._row, self._engine if self._runs else ""))
            self._row = []

    def end(self) -> None:
        """Write what is held."""
        self._record.write()

    def _follow(self, sample: Sample) -> None:
        """Whose floor it is: each start of a rank has its own, which stays after its end until the next."""
        runs = memory.is_populated(self._places.cgroups)
        rank = memory.recorded(self._places.rank)
        engine, since = _string(rank, "engine"), _string(rank, "since")
        if runs and (not self._runs or (engine, since) != (self._engine, self._since)):
            self._engine, self._since = engine, since
            self._floor, self._floor_at, self._samples = None, "", 0
        self._runs = runs
        if not runs:
            return
        self._samples += 1
        if self._floor is None or sample.available < self._floor:
            self._floor, self._floor_at = sample.available, sample.at

    def _write_now(self, sample: Sample) -> None:
        document = {
            **sample._asdict(), "running": self._runs, "engine": self._engine, "since": self._since,
            "floor": self._floor, "floor_at": self._floor_at, "samples": self._samples, "code": self._code,
        }  # fmt: skip
        try:
            new = f"{self._places.now}.sparkpair-new"
            with open(new, "w", encoding="ascii") as stream:
                stream.write(json.dumps(document) + "\n")
            os.replace(new, self._places.now)
        except OSError as error:
            if not self._told:
                log(f"{self._places.now}: {error.strerror}; the memory of this node is not known to others", "warning")
            self._told = True
            return
        self._told = False


class Record:
    """Rows on the disk, in two files: the current one, and the one before it."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._file = os.path.join(directory, "record.csv")
        self._former = os.path.join(directory, "record.1.csv")
        self._rows: list[str] = []
        self._told = False

    def add(self, text: str) -> None:
        """One more row, written with the next few."""
        self._rows.append(text)
        if len(self._rows) >= ROWS_A_WRITE:
            self.write()

    def write(self) -> None:
        """Write the rows. Where that cannot be done they are held, and it is told once."""
        if not self._rows:
            return
        try:
            self._append("".join(self._rows).encode())
        except OSError as error:
            if not self._told:
                log(f"{self._file}: {error.strerror}; the record of memory has a gap from here on", "warning")
            self._told = True
            del self._rows[:-ROWS_HELD]
            return
        if self._told:
            log(f"{self._file} is written again")
        self._told = False
        self._rows = []

    def _append(self, rows: bytes) -> None:
        os.makedirs(self._directory, 0o755, exist_ok=True)
        file = os.open(self._file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            size = os.fstat(file).st_size
            if size + len(rows) > FILE_BYTES:
                os.replace(self._file, self._former)
                os.close(file)
                file = os.open(self._file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                size = 0
            if size == 0:
                rows = HEADER.encode() + rows
            elif os.pread(file, 1, size - 1) != b"\n":  # a power cut left part of a row
                rows = b"\n" + rows
            if os.write(file, rows) < len(rows):  # the disk took a part only
                os.ftruncate(file, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(file)


def row(samples: Sequence[Sample], engine: str) -> str:
    """The worst of some seconds, with the time of the last: the least available and free, the most of the others."""
    some = [sample.psi_some for sample in samples if sample.psi_some is not None]
    full = [sample.psi_full for sample in samples if sample.psi_full is not None]
    fields = [
        samples[-1].at,
        min(sample.available for sample in samples) // MIB,
        min(sample.free for sample in samples) // MIB,
        max(sample.cached for sample in samples) // MIB,
        max(sample.swap_used for sample in samples) // MIB,
        max(some) if some else "",
        max(full) if full else "",
        engine[:12],
    ]
    return ",".join(str(field) for field in fields) + "\n"


def _look(places: Places) -> Sample:
    seen, pressure = memory.meminfo(places.meminfo), memory.psi(places.pressure)
    some, full = (pressure.some, pressure.full) if pressure else (None, None)
    at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    return Sample(at, seen.available, seen.free, seen.cached, seen.swap_used, some, full)


def _string(document: dict[str, object], name: str) -> str:
    found = document.get(name)
    return found if isinstance(found, str) else ""


def _whole(document: dict[str, object], name: str) -> int | None:
    found = document.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def main(argv: Sequence[str]) -> int:
    """Record until told to stop."""
    if not argv:
        _begin_anew()
    given = json.loads(argv[0])
    places = Places(**{**given["places"], "cgroups": tuple(given["places"]["cgroups"])})
    return run(Recorder(places, str(given["code"])))


def run(recorder: Recorder) -> int:
    """A look each second, the first one at once. A signal ends it between two."""
    os.umask(0o022)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    due = time.monotonic()
    while True:
        recorder.look()
        due = max(due + 1.0, time.monotonic())
        if signal.sigtimedwait(STOP, due - time.monotonic()) is not None:
            recorder.end()
            return 0


def _begin_anew() -> None:
    """Become the same program with all that it has to know in its argument. Finding that out takes modules, OpenSSL's
    library among them, that would stay for ever: 6 of 17 MiB."""
    from pathlib import Path

    from node import paths, wire

    code = wire.programs_hash(wire.programs(Path(__file__).parent))
    places = Places(
        rank=str(paths.RANK_STATE), now=str(paths.MEMORY), record=str(paths.MEMORY_RECORD),
        cgroups=tuple(str(cgroup) for cgroup in paths.ENGINE_CGROUPS),
    )  # fmt: skip
    os.execv(sys.executable, [*sys.orig_argv, json.dumps({"code": code, "places": places._asdict()})])
