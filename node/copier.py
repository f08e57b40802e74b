"""Brings files from peers over all their ways at once: whole files, hashed as they arrive, proven before they count."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from node import pages, paths
from node.board import Board, Job
from node.connection import DIGEST_HEADER, Connection, WayError, file_target, index_target
from node.errand import FileRow, Peer, Set, Way

CONNECTIONS_PER_WAY = 4
"""Each reads, hashes and writes in turn: the others keep disk and rail busy meanwhile. Two reached 0.78 of what the
disk gives, four 0.89 (docs/decisions/0015); each takes 4 MiB here."""
INDEX_SECONDS = 2.0
"""How often a peer that is still downloading is asked what it has by now."""
POLL_SECONDS = 0.5
"""How soon a carrier that came back, or a stop, is seen."""
LONGEST_BACK_OFF_SECONDS = 5.0
PIECE_BYTES = 1024 * 1024
"""Received at once: few system calls, and still in the processor's cache when it is hashed."""
MOST_INDEX_BYTES = 16 * 1024 * 1024


class _Over(Exception):
    """There is no use in going on with the file that is under way."""


@dataclass
class _Lane:
    """A way, and how it went lately."""

    way: Way
    failures: int = 0
    retry_at: float = 0.0
    trouble: str = ""


@dataclass
class _Source:
    """A peer: its lanes, and what it had of each set when it was last asked."""

    peer: Peer
    lanes: list[_Lane]
    offered: dict[str, set[str]] = field(default_factory=dict)
    index: dict[str, bytes] = field(default_factory=dict)
    """Its answers: another one than before says that the peer is at work."""
    asked_at: float = float("-inf")
    asking: threading.Lock = field(default_factory=threading.Lock)

    def offers(self, wanted: Set, path: str) -> bool:
        """Whether it has a file of a set, as it is wanted."""
        return path in self.offered.get(wanted.name, ())


class Copier:
    """Several connections over each way of each peer; what one leaves unfinished another goes on with."""

    def __init__(
        self, peers: Sequence[Peer], rate: pages.Rate, stall_seconds: float, say: Callable[[str], None],
        net: Path = Path("/sys/class/net"), port: int = paths.WEIGHTS_PORT,
    ) -> None:  # fmt: skip
        self._sources = [_Source(each, [_Lane(way) for way in each.ways]) for each in peers]
        self._rate = rate
        self._stall_seconds = stall_seconds
        self._say = say
        self._net = net
        self._port = port

    @property
    def trouble(self) -> str:
        """What keeps each way from bringing anything, for a message; empty when nothing does."""
        seen = dict.fromkeys(self._trouble(lane) for source in self._sources for lane in source.lanes)
        return "; ".join(text for text in seen if text)

    def bring(self, board: Board) -> None:
        """Bring what lacks on the board and a peer has, under the peer's name as source, until the board is over.

        Raises OSError of this node's own disk as it is (ENOSPC); files brought until then stay.
        """
        crew = _Crew(self, board)
        threads = [
            threading.Thread(target=crew.work, args=(source, lane), daemon=True)
            for source in self._sources
            for lane in source.lanes
            for _ in range(CONNECTIONS_PER_WAY)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if crew.failure is not None:
            raise crew.failure

    def take(self, count: int, over: threading.Event) -> None:
        """Returns when so many more bytes may come, or when it is over."""
        self._rate.take(count, over)

    def connect(self, way: Way, check: Callable[[], None]) -> Connection:
        """A new connection over this way. Raises WayError."""
        return Connection(way.address, self._port, check, self._stall_seconds)

    def may_use(self, source: _Source, lane: _Lane) -> bool:
        """Whether a lane is to work now: it has carrier, and no spare lane that is in order could instead."""
        if not self.has_carrier(lane.way) or time.monotonic() < lane.retry_at:
            return False
        spare = [other for other in source.lanes if other.way.spare]
        return lane.way.spare or not any(self.has_carrier(other.way) and not other.failures for other in spare)

    def has_carrier(self, way: Way) -> bool:
        """Whether this node's own end of the rail sees the other one."""
        try:
            return (self._net / way.netdev / "carrier").read_text().strip() == "1"
        except OSError:
            return False

    def failed(self, lane: _Lane, error: WayError) -> None:
        """Wait before this lane is tried again, and tell it when it is news."""
        if str(error) != lane.trouble:
            self._say(f"over {lane.way.netdev}: {error}")
        lane.trouble = str(error)
        lane.failures += 1
        lane.retry_at = time.monotonic() + min(0.25 * 2**lane.failures, LONGEST_BACK_OFF_SECONDS)

    def say_wrong(self, source: _Source, job: Job, digest: str) -> None:
        """The bytes of a file are not those of the lock; the board lets it be tried again."""
        self._say(
            f"{os.path.join(job.directory, job.path)}: {source.peer.name} brought sha256 {digest[:12]}, "
            f"wanted {job.sha256[:12]}; thrown away"
        )

    def _trouble(self, lane: _Lane) -> str:
        if not self.has_carrier(lane.way):
            return f"{lane.way.netdev} has no carrier"
        return f"over {lane.way.netdev}: {lane.trouble}" if lane.trouble else ""


class _Crew:
    """The threads of one call."""

    def __init__(self, copier: Copier, board: Board) -> None:
        self._copier = copier
        self._board = board
        self._changed = threading.Condition()
        self.failure: Exception | None = None

    def work(self, source: _Source, lane: _Lane) -> None:
        """One connection's life: claim, fetch, again."""
        connection: Connection | None = None
        try:
            while not self._is_over():
                if not self._copier.may_use(source, lane):
                    _close(connection)
                    connection = None
                    self._pause()
                    continue
                try:
                    connection = connection or self._copier.connect(lane.way, partial(self._check, lane.way))
                    if not self._fetch_one(source, connection):
                        self._pause()
                    if not connection.is_idle:
                        _close(connection)
                        connection = None
                    lane.failures, lane.trouble = 0, ""
                except WayError as error:
                    _close(connection)
                    connection = None
                    self._copier.failed(lane, error)
        except _Over:
            return
        except Exception as error:  # told by bring, in the caller's thread
            self.failure = self.failure or error
        finally:
            _close(connection)
            self._tell()

    def _fetch_one(self, source: _Source, connection: Connection) -> bool:
        """Bring one file; False when the peer has none that lacks. Raises WayError, OSError."""
        job = self._take(source)
        if job is None:
            self._ask(source, connection)
            job = self._take(source)
        if job is None:
            return False
        try:
            digest = self._receive(job, connection)
        except BaseException:
            self._board.give_back(job)
            raise
        if digest is None:
            source.offered[job.set].discard(job.path)
            self._board.give_back(job)
        elif not self._board.done(job, digest):
            self._copier.say_wrong(source, job, digest)
        self._tell()
        return True

    def _take(self, source: _Source) -> Job | None:
        return self._board.take(source.peer.name, source.offers)

    def _ask(self, source: _Source, connection: Connection) -> None:
        """Learn what the peer has by now, unless it was asked just before."""
        with source.asking:
            if time.monotonic() - source.asked_at < INDEX_SECONDS:
                return
            for wanted in self._board.errand.sets:
                body = connection.get(index_target(wanted.name))
                text = body.read(MOST_INDEX_BYTES)
                rows = _rows(text, connection) if body.code == 200 else set()
                if source.index.get(wanted.name, text) != text:
                    self._board.heard(source.peer.name)
                source.index[wanted.name] = text
                source.offered[wanted.name] = {row[0] for row in rows.intersection(wanted.files)}
            source.asked_at = time.monotonic()

    def _receive(self, job: Job, connection: Connection) -> str | None:
        """Take the rest of a file into its part, and return the sha256 of the whole; None: the peer has it no more."""
        digest = pages.digest(job.part, size=job.offset) if job.offset else hashlib.sha256()
        if job.offset == job.size and job.size:
            return digest.hexdigest()
        body = connection.get(file_target(job.set, job.path), job.offset)
        if body.code == 404 or body.headers.get(DIGEST_HEADER.lower()) not in (job.sha256, None):
            return None
        body.expect(206 if job.offset else 200, job.size - job.offset)
        with pages.Sink(job.part, job.offset) as sink:
            while sink.offset < job.size:
                space = sink.space()[: min(PIECE_BYTES, job.size - sink.offset)]
                count = body.read_into(space)
                digest.update(space[:count])
                sink.filled(count)
                self._board.progress(job, sink.offset)
                self._copier.take(count, self._board.over)
                self._check_over()
        return digest.hexdigest()

    def _check(self, way: Way) -> None:
        """Asked while a connection waits for bytes."""
        self._check_over()
        if not self._copier.has_carrier(way):
            raise WayError(f"{way.netdev} has no carrier")

    def _check_over(self) -> None:
        if self._is_over():
            raise _Over

    def _is_over(self) -> bool:
        return self._board.over.is_set() or self.failure is not None

    def _pause(self) -> None:
        """Until another thread got on, or it is time to look again."""
        with self._changed:
            if not self._is_over():
                self._changed.wait(POLL_SECONDS)

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()


def _rows(text: bytes, connection: Connection) -> set[FileRow]:
    """What a peer's index states. Raises WayError."""
    try:
        return {(str(path), int(size), str(sha256)) for path, size, sha256 in json.loads(text)["files"]}
    except (ValueError, TypeError, KeyError):
        raise WayError(f"{connection.place} does not answer as a server of ours: {text[:80]!r}") from None


def _close(connection: Connection | None) -> None:
    if connection is not None:
        connection.close()
