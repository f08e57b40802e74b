"""The sources of a staging unit that are on the node itself: files that are there already, and a bundle."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable

from node import pages
from node.board import Board, Job
from node.errand import Set
from node.verified import stamp

DISK, BUNDLE = "disk", "bundle"
TELL_SECONDS = 0.2
READ_AGAIN = 64 * 1024 * 1024
"""How often what was read of a bundle is taken out of the page cache."""


def hash_files(board: Board) -> None:
    """Hash what is there with the right size and was not hashed as it is; with other bytes it is to be brought."""
    while (job := board.take_unread(DISK)) is not None:
        place = os.path.join(job.directory, job.path)
        try:
            seen = stamp(place)
            board.read(job, pages.sha256(place, _Count(board, job)), seen)
        except _Over:
            return


class _Over(Exception):
    """There is no use in reading on."""


class _Count:
    """Tells the board how far a file was read, and ends the reading when it is over."""

    def __init__(self, board: Board, job: Job) -> None:
        self._board, self._job = board, job
        self._at = 0
        self._told = time.monotonic()

    def __call__(self, count: int) -> None:
        self._at += count
        if time.monotonic() - self._told >= TELL_SECONDS:
            self._told = time.monotonic()
            self._board.progress(self._job, self._at)
            if self._board.over.is_set():
                raise _Over


def copy_bundle(board: Board, say: Callable[[str], None]) -> None:
    """Copy what the bundle has of what lacks. A file that it does not give is left to the other sources."""

    def may(wanted: Set, path: str) -> bool:
        return bool(wanted.bundle) and not board.has_declined(BUNDLE, wanted, path)

    bundles = {wanted.name: wanted.bundle for wanted in board.errand.sets}
    while not board.over.is_set():
        job = board.take(BUNDLE, may)
        if job is None:
            board.over.wait(TELL_SECONDS)
            continue
        place = os.path.join(bundles[job.set], job.path)
        try:
            sha256 = _copy(board, job, place)
        except _Unreadable as error:
            board.decline(BUNDLE, job)
            say(f"{job.set}: {place} cannot be read from the bundle: {error}")
            continue
        except BaseException:
            board.give_back(job)
            raise
        if sha256 is not None and not board.done(job, sha256):
            board.decline(BUNDLE, job)
            say(f"{job.set}: {place} has other bytes than the lock states (sha256 {sha256[:12]})")


class _Unreadable(Exception):
    """The bundle does not give a file."""


def _copy(board: Board, job: Job, place: str) -> str | None:
    """The rest of a file into its part; its sha256, or None when it is over before."""
    digest = pages.digest(job.part, size=job.offset) if job.offset else hashlib.sha256()
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _Unreadable(error.strerror) from None
    try:
        with pages.Sink(job.part, job.offset) as sink:
            dropped = told = 0
            while sink.offset < job.size:
                space = sink.space()[: job.size - sink.offset]
                try:
                    count = os.preadv(descriptor, [space], sink.offset)
                except OSError as error:
                    raise _Unreadable(error.strerror) from None
                if count == 0:
                    raise _Unreadable(f"it ends after {sink.offset} of {job.size} bytes")
                digest.update(space[:count])
                sink.filled(count)
                if sink.offset - told >= READ_AGAIN or sink.offset == job.size:
                    told = sink.offset
                    os.posix_fadvise(descriptor, dropped, sink.offset - dropped, os.POSIX_FADV_DONTNEED)
                    dropped = sink.offset
                board.progress(job, sink.offset)
                if board.over.is_set():
                    board.give_back(job)
                    return None
    finally:
        os.close(descriptor)
    return digest.hexdigest()
