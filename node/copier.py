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
from typing import Protocol

from node import pages, parts, paths, peer
from node.connection import Connection, WayError
from node.errand import FileRow, Peer, Way

CONNECTIONS_PER_WAY = 2
INDEX_SECONDS = 2.0
"""How often a peer that is still downloading is asked what it has by now."""
POLL_SECONDS = 0.5
"""How soon a carrier that came back, or a stop, is seen."""
LONGEST_BACK_OFF_SECONDS = 5.0
PIECE_BYTES = 1024 * 1024
"""Received at once: few system calls, and still in the processor's cache when it is hashed."""
MOST_INDEX_BYTES = 16 * 1024 * 1024
TRIES = 2
"""Wrong bytes that a peer sent whole are asked for once more."""


class CopyError(Exception):
    """A peer brings other bytes than it should; the message says which and what to do."""


class _Over(Exception):
    """The job is over while a file is under way: it was stopped, or another thread cannot go on."""


class Desk(Protocol):
    """What the caller keeps of a set: which files lack and who brings them. Several threads call it."""

    def claim(self, offered: Sequence[FileRow]) -> FileRow | None:
        """One of these that lacks and that nobody brings; now the Copier does. Of two files with one sha256, which
        share a part, only one may be under way."""

    def release(self, row: FileRow) -> None:
        """It was not brought after all; its part stays."""

    def reached(self, row: FileRow, count: int) -> None:
        """So many bytes of it are here, unproven; less than before when a part was thrown away."""

    def brought(self, row: FileRow) -> None:
        """It is in its place, proven and on the disk."""

    def is_complete(self) -> bool:
        """Whether no file lacks any more, whoever brought them."""


@dataclass(frozen=True)
class Job:
    """One set to bring: its name at the peers, its directory and the owner (uid, gid) here, and its desk."""

    name: str
    directory: str
    owner: tuple[int, int]
    desk: Desk


@dataclass
class _Lane:
    """A way, and how it went lately."""

    way: Way
    failures: int = 0
    retry_at: float = 0.0
    trouble: str = ""


@dataclass
class _Source:
    """A peer during one job: its lanes, and what it offered when it was last asked."""

    peer: Peer
    lanes: list[_Lane]
    offered: tuple[FileRow, ...] = ()
    asked_at: float = float("-inf")
    asking: threading.Lock = field(default_factory=threading.Lock)


class Copier:
    """Several connections over each way of each peer; what one leaves unfinished another goes on with."""

    def __init__(
        self, peers: Sequence[Peer], rate: pages.Rate, stall_seconds: float, say: Callable[[str], None],
        net: Path = Path("/sys/class/net"), port: int = paths.WEIGHTS_PORT,
    ) -> None:  # fmt: skip
        self._peers = peers
        self._rate = rate
        self._stall_seconds = stall_seconds
        self._say = say
        self._net = net
        self._port = port
        self._arrived_at = time.monotonic()
        self._lanes: list[_Lane] = []

    @property
    def silent_seconds(self) -> float:
        """How long no byte of a file has come from any peer: since `bring` began, or the last one."""
        return time.monotonic() - self._arrived_at

    @property
    def trouble(self) -> str:
        """What keeps each way from bringing anything, for a message; empty when nothing does."""
        seen = dict.fromkeys(self._trouble(lane) for lane in self._lanes)
        return "; ".join(text for text in seen if text)

    def bring(self, job: Job, stop: threading.Event) -> None:
        """Bring what the desk lets it claim, until the set is complete or `stop` is set.

        Raises CopyError, and OSError of this node's own disk as it is (ENOSPC); files brought until then stay.
        """
        parts.prepare(job.directory, job.owner)
        self._arrived_at = time.monotonic()
        sources = [_Source(each, [_Lane(way) for way in each.ways]) for each in self._peers]
        self._lanes = [lane for source in sources for lane in source.lanes]
        crew = _Crew(self, job, stop)
        threads = [
            threading.Thread(target=crew.work, args=(source, lane), daemon=True)
            for source in sources
            for lane in source.lanes
            for _ in range(CONNECTIONS_PER_WAY)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if crew.failure is not None:
            raise crew.failure

    def arrived(self, count: int, stop: threading.Event) -> None:
        """So many bytes came; returns when more may."""
        self._arrived_at = time.monotonic()
        self._rate.take(count, stop)

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

    def _trouble(self, lane: _Lane) -> str:
        if not self.has_carrier(lane.way):
            return f"{lane.way.netdev} has no carrier"
        return f"over {lane.way.netdev}: {lane.trouble}" if lane.trouble else ""


class _Crew:
    """The threads of one job."""

    def __init__(self, copier: Copier, job: Job, stop: threading.Event) -> None:
        self._copier = copier
        self._job = job
        self._stop = stop
        self._changed = threading.Condition()
        self._wrong: dict[tuple[str, str], int] = {}
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
        """Bring one file; False when the peer offers none that lacks."""
        row = self._job.desk.claim(source.offered)
        if row is None:
            self._ask(source, connection)
            row = self._job.desk.claim(source.offered)
        if row is None:
            return False
        try:
            is_here = self._fetch(source, row, connection)
        except BaseException:
            self._job.desk.release(row)
            self._tell()
            raise
        if is_here:
            self._job.desk.brought(row)
        else:
            source.offered = tuple(other for other in source.offered if other != row)
            self._job.desk.release(row)
        self._tell()
        return True

    def _ask(self, source: _Source, connection: Connection) -> None:
        """Learn what the peer has by now, unless it was asked just before."""
        with source.asking:
            if time.monotonic() - source.asked_at < INDEX_SECONDS:
                return
            body = connection.get(peer.index_target(self._job.name))
            text = body.read(MOST_INDEX_BYTES)
            source.offered = _offered(text, connection) if body.code == 200 else ()
            source.asked_at = time.monotonic()

    def _fetch(self, source: _Source, row: FileRow, connection: Connection) -> bool:
        """Bring one file into its place; False when the peer has it no more. Raises CopyError, WayError, OSError."""
        path, size, sha256 = row
        while True:
            offset = parts.held(self._job.directory, sha256, size)
            digest = self._receive(row, offset, connection)
            if digest is None:
                return False
            if digest == sha256:
                parts.place(self._job.directory, path, sha256, self._job.owner)
                return True
            os.unlink(parts.part_path(self._job.directory, sha256))
            if offset:
                # Whoever began it may have left what is wrong.
                continue
            key = (source.peer.name, path)
            self._wrong[key] = self._wrong.get(key, 0) + 1
            if self._wrong[key] >= TRIES:
                raise CopyError(
                    f"{os.path.join(self._job.directory, path)} came from {source.peer.name} with other bytes, "
                    f"{TRIES} times: sha256 {digest[:12]}, wanted {sha256[:12]}. Is a disk or a rail failing there?"
                )

    def _receive(self, row: FileRow, offset: int, connection: Connection) -> str | None:
        """Take the rest of a file into its part, and return the sha256 of the whole; None: the peer has it no more."""
        path, size, sha256 = row
        part = parts.part_path(self._job.directory, sha256)
        digest = pages.digest(part, size=offset) if offset else hashlib.sha256()
        self._job.desk.reached(row, offset)
        if offset == size and size:
            return digest.hexdigest()
        body = connection.get(peer.file_target(self._job.name, path), offset)
        if body.code == 404 or body.headers.get(peer.DIGEST_HEADER.lower(), sha256) != sha256:
            return None
        body.expect(206 if offset else 200, size - offset)
        with pages.Sink(part, offset) as sink:
            # Another source, which runs as the owner, may go on with it.
            os.chown(part, *self._job.owner)
            while sink.offset < size:
                space = sink.space()[: min(PIECE_BYTES, size - sink.offset)]
                count = body.read_into(space)
                digest.update(space[:count])
                sink.filled(count)
                self._job.desk.reached(row, sink.offset)
                self._copier.arrived(count, self._stop)
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
        return self._stop.is_set() or self.failure is not None or self._job.desk.is_complete()

    def _pause(self) -> None:
        """Until another thread got on, or it is time to look again."""
        with self._changed:
            if not self._is_over():
                self._changed.wait(POLL_SECONDS)

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()


def _offered(text: bytes, connection: Connection) -> tuple[FileRow, ...]:
    """The rows of a peer's index. Raises WayError."""
    try:
        return tuple((str(path), int(size), str(sha256)) for path, size, sha256 in json.loads(text)["files"])
    except (ValueError, TypeError, KeyError):
        raise WayError(f"{connection.place} does not answer as a server of ours: {text[:80]!r}") from None


def _close(connection: Connection | None) -> None:
    if connection is not None:
        connection.close()
