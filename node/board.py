"""What a staging unit still lacks, and who brings it: files are taken by sources, which work at the same time.

A source takes a job, appends to its part file, says how far it is, and at the end which sha256 the whole has. A part
belongs to no source: what one began, any other goes on with. It is trusted only by the sha256 of the whole.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from node import paths, progress, wire
from node.content import PARTS
from node.errand import Errand, Set
from node.verified import Verified

WRONG_AT_MOST = 2
AVOID_SECONDS = 10.0
"""How long a file is left to the other sources after one sent other bytes for it; then that one may try again."""


class State(Enum):
    """Where a file is on its way."""

    UNREAD = "it is there with the right size, and is to be hashed"
    LACKING = "to be brought"
    TAKEN = "a source is at it"
    DONE = "here, with the right bytes"
    REFUSED = "its sources send other bytes"


@dataclass(frozen=True)
class Job:
    """A file that a source has taken on."""

    set: str
    directory: str
    path: str
    size: int
    sha256: str
    part: str
    """Its part file: there, and owned by the login user."""
    offset: int
    """Bytes that the part holds already; what they are, only the sha256 of the whole will tell."""


@dataclass
class _Row:
    wanted: Set
    path: str
    size: int
    sha256: str
    state: State
    source: str = ""
    at: int = 0
    moved: float = 0.0
    begun_here: bool = False
    wrong: dict[str, int] = field(default_factory=dict)
    """How often each source has sent other bytes."""
    avoid: str = ""
    avoid_until: float = 0.0


@dataclass
class Board:
    """The files of an errand. Threads share it; `over` is set when there is no use in going on."""

    errand: Errand
    verified: dict[str, Verified]
    owner: tuple[int, int]
    """User and group that own what is written."""
    clock: Callable[[], float] = time.monotonic
    over: threading.Event = field(default_factory=threading.Event)
    failure: str = ""
    """Why it cannot go on, for all files."""
    moved: int = 0
    """Bytes that sources have brought since the start."""

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._heard: dict[str, float] = {}
        self._declined: set[tuple[str, str, str]] = set()
        self._began = self.clock()
        self._rows = {
            (wanted.name, path): _Row(wanted, path, size, sha256, self._first(wanted, path, size, sha256))
            for wanted in self.errand.sets
            for path, size, sha256 in wanted.files
        }
        for row in self._rows.values():
            row.at = row.size if row.state is State.DONE else _size(self._part(row))
        self._end_if_done()

    def _first(self, wanted: Set, path: str, size: int, sha256: str) -> State:
        verified = self.verified[wanted.name]
        known = verified.sha256(path)
        if known is not None:
            return State.DONE if known == sha256 else State.LACKING
        is_candidate = _size(os.path.join(wanted.directory, path), -1) == size and not verified.is_damaged(path)
        return State.UNREAD if is_candidate else State.LACKING

    # What sources do

    def take(self, source: str, may: Callable[[Set, str], bool] = lambda wanted, path: True) -> Job | None:
        """The next file that this source may bring; None while there is none. Raises OSError for a part that cannot be
        made."""
        return self._take(source, State.LACKING, may)

    def take_unread(self, source: str) -> Job | None:
        """The next file that is to be hashed where it is."""
        return self._take(source, State.UNREAD, lambda wanted, path: True)

    def _take(self, source: str, state: State, may: Callable[[Set, str], bool]) -> Job | None:
        with self._lock:
            if self.over.is_set():
                return None
            now = self.clock()
            # Two files of one content share a part.
            busy = {(row.wanted.name, row.sha256) for row in self._rows.values() if row.state is State.TAKEN}
            for row in self._rows.values():
                if row.state is not state or (row.wanted.name, row.sha256) in busy or not may(row.wanted, row.path):
                    continue
                if row.avoid == source and now < row.avoid_until:
                    continue
                part = self._part(row)
                offset = self._prepare(row, part) if state is State.LACKING else 0
                row.begun_here = row.begun_here or offset == 0
                row.state, row.source, row.at, row.moved = State.TAKEN, source, offset, now
                return Job(row.wanted.name, row.wanted.directory, row.path, row.size, row.sha256, part, offset)
            return None

    def progress(self, job: Job, at: int) -> None:
        """The part now holds so many bytes; fewer than before when the source had to begin again."""
        with self._lock:
            row = self._rows[job.set, job.path]
            if at > row.at:
                row.moved = self.clock()
                self._heard[row.source] = row.moved
                self.moved += at - row.at
            elif at == 0:
                row.begun_here = True
            row.at = at

    def done(self, job: Job, sha256: str) -> bool:
        """The part is whole and durable, and its bytes have this sha256. Puts it into place when that is the wanted
        one; False when it is another. Raises OSError."""
        if sha256 == job.sha256:
            self._keep(job)
            self._set(job, State.DONE, job.size)
            return True
        os.unlink(job.part)
        with self._lock:
            row = self._rows[job.set, job.path]
            # Other bytes of a part that an earlier run left prove nothing against this source.
            if row.begun_here:
                row.wrong[row.source] = row.wrong.get(row.source, 0) + 1
                if self._has_others(row.wanted):
                    row.avoid, row.avoid_until = row.source, self.clock() + AVOID_SECONDS
            self._set(job, State.REFUSED if WRONG_AT_MOST in row.wrong.values() else State.LACKING, 0)
        return False

    def read(self, job: Job, sha256: str, seen: tuple[int, int, int]) -> bool:
        """A file that was there has this sha256; `seen` is its stamp from before it was read. Other bytes, or somebody
        wrote meanwhile: it stays until it was brought anew."""
        if sha256 == job.sha256:
            verified = self.verified[job.set]
            verified.record_as(job.path, seen, sha256)
            if verified.sha256(job.path) == sha256:
                self._set(job, State.DONE, job.size)
                return True
        self._set(job, State.LACKING, 0)
        return False

    def give_back(self, job: Job) -> None:
        """It could not be brought whole; what the part holds stays, for whoever takes it next."""
        with self._lock:
            if self._rows[job.set, job.path].state is State.TAKEN:
                self._set(job, State.LACKING, _size(job.part))

    def decline(self, source: str, job: Job) -> None:
        """The source cannot give it, now or later."""
        with self._lock:
            self._declined.add((source, job.set, job.path))
            self.give_back(job)

    def has_declined(self, source: str, wanted: Set, path: str) -> bool:
        """Whether a source cannot give a file."""
        return (source, wanted.name, path) in self._declined

    def fail(self, why: str) -> None:
        """Nothing of it can go on."""
        with self._lock:
            self.failure = self.failure or why
            self.over.set()

    def full(self) -> None:
        """A disk takes no more: nothing goes on before somebody frees some of it."""
        lacking = [wanted for wanted in self.errand.sets if not self.is_done(wanted.name)]
        if lacking:
            self.fail("; ".join(disk_full(wanted, self.missing(wanted)) for wanted in lacking))

    def heard(self, source: str) -> None:
        """The source is at work, though it has brought nothing just now."""
        with self._lock:
            self._heard[source] = self.clock()

    # What is known

    def quiet_seconds(self, sources: Iterable[str]) -> float:
        """How long none of these sources has brought or said anything; since the start, if they never did."""
        with self._lock:
            return self.clock() - max([self._began, *(self._heard.get(source, self._began) for source in sources)])

    def lacking(self) -> list[tuple[Set, str]]:
        """Files that wait for a source."""
        return self._in(State.LACKING)

    def refused(self) -> list[tuple[Set, str]]:
        """Files whose sources sent other bytes."""
        return self._in(State.REFUSED)

    def is_done(self, name: str) -> bool:
        """Whether all files of a set are here."""
        with self._lock:
            return all(row.state is State.DONE for row in self._rows.values() if row.wanted.name == name)

    def here(self, name: str) -> int:
        """Bytes of a set that are here, those of parts and of files that are being hashed included."""
        with self._lock:
            return sum(min(row.at, row.size) for row in self._rows.values() if row.wanted.name == name)

    def missing(self, wanted: Set) -> int:
        """Bytes that its disk must still take."""
        with self._lock:
            rows = [row for row in self._rows.values() if row.wanted == wanted]
            return sum(row.size - _size(self._part(row)) for row in rows if row.state in (State.LACKING, State.TAKEN))

    def under_way(self) -> list[tuple[str, str, str, float]]:
        """(set, path, source, when it moved last) of the files that are being brought, the latest to move first."""
        with self._lock:
            rows = [row for row in self._rows.values() if row.state is State.TAKEN]
            return [
                (row.wanted.name, row.path, row.source, row.moved) for row in sorted(rows, key=lambda row: -row.moved)
            ]

    def _in(self, state: State) -> list[tuple[Set, str]]:
        with self._lock:
            return [(row.wanted, row.path) for row in self._rows.values() if row.state is state]

    def _has_others(self, wanted: Set) -> bool:
        """Whether more than one source may have the files of a set."""
        return len(self.errand.peers) + bool(wanted.bundle) + bool(wanted.hub and self.errand.hub) > 1

    # Files

    def _part(self, row: _Row) -> str:
        return os.path.join(row.wanted.directory, PARTS, f"{row.sha256[:16]}.part")

    def _prepare(self, row: _Row, part: str) -> int:
        """Make the part, or find out how much of it is there."""
        make_directory(os.path.dirname(part), self.owner)
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.fchown(descriptor, *self.owner)
            size = os.fstat(descriptor).st_size
            if size > row.size:
                os.ftruncate(descriptor, 0)
                size = 0
        finally:
            os.close(descriptor)
        return size

    def _keep(self, job: Job) -> None:
        place = os.path.join(job.directory, job.path)
        make_directory(os.path.dirname(place), self.owner)
        os.replace(job.part, place)
        wire.sync_directory(Path(place).parent)
        self.verified[job.set].record(job.path, job.sha256)

    def _set(self, job: Job, state: State, at: int) -> None:
        with self._lock:
            row = self._rows[job.set, job.path]
            row.state, row.source, row.at = state, "", at
            self._end_if_done()

    def _end_if_done(self) -> None:
        if all(row.state in (State.DONE, State.REFUSED) for row in self._rows.values()):
            self.over.set()


def board(wanted: Errand, owner: tuple[int, int], state: Path = paths.WEIGHTS) -> Board:
    """The board of an errand, from what is on the disk."""
    return Board(wanted, {each.name: Verified(each.directory, state) for each in wanted.sets}, owner)


def make_directory(path: str, owner: tuple[int, int]) -> None:
    """A directory and those above it, the new ones owned by the person whose files these are."""
    new = [each for each in (Path(path), *Path(path).parents) if not each.exists()]
    for each in reversed(new):
        each.mkdir(mode=0o755, exist_ok=True)
        os.chown(each, *owner)


def disk_full(wanted: Set, missing: int) -> str:
    """What is told of a disk that cannot take what lacks; `missing` in bytes."""
    place = Path(wanted.directory)
    while not place.exists():
        place = place.parent
    room = os.statvfs(place)
    free = room.f_bavail * room.f_frsize
    return (
        f"{wanted.name}: the disk of {wanted.directory} has {progress.amount(free)} free, and "
        f"{progress.amount(missing)} are still to come. What is here stays. Fix: free "
        f"{progress.amount(max(missing - free, 0))} there, and run the deploy again: it goes on"
    )


def gathered(directory: str) -> int:
    """Bytes in the parts of a directory."""
    try:
        with os.scandir(os.path.join(directory, PARTS)) as found:
            return sum(entry.stat().st_size for entry in found if entry.name.endswith(".part"))
    except OSError:
        return 0


def remove_parts(directory: str) -> None:
    """Every file is here: nothing of the work is left."""
    shutil.rmtree(os.path.join(directory, PARTS), ignore_errors=True)


def _size(path: str, otherwise: int = 0) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return otherwise
