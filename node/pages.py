"""Reading and writing large files without keeping them in the page cache: on GB10 the cache and the engine share one
memory. Also the one rate that several threads share."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import mmap
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

BLOCK_BYTES = 4096
"""What O_DIRECT wants offsets, lengths and addresses to be multiples of: no disk's logical block is larger."""
BUFFER_BYTES = 4 * 1024 * 1024
"""Per file. O_DIRECT in pieces of 4 MiB reaches what larger ones do and takes a seventh of the processor time that
writing through the cache and dropping it takes (docs/decisions/0015)."""


def sha256(path: str, progress: Callable[[int], None] = lambda count: None, size: int | None = None) -> str:
    """The sha256 of a file, or of its first `size` bytes, in hex. Raises OSError."""
    return digest(path, progress, size).hexdigest()


def digest(path: str, progress: Callable[[int], None] = lambda count: None, size: int | None = None) -> hashlib._Hash:
    """As sha256, still open for the bytes that follow. A file that ends before `size` counts as far as it goes."""
    found = hashlib.sha256()
    descriptor, is_direct = opened(path, os.O_RDONLY)
    try:
        left = os.fstat(descriptor).st_size if size is None else size
        if left <= BUFFER_BYTES:
            with buffer() as held:
                count = min(os.preadv(descriptor, [held], 0), left)
                found.update(held[:count])
                progress(count)
        else:
            _digest_large(descriptor, left, found, progress)
        if not is_direct:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return found


def _digest_large(descriptor: int, left: int, found: hashlib._Hash, progress: Callable[[int], None]) -> None:
    """One buffer is hashed while the other is read."""
    buffers = [buffer() for _ in range(2)]
    offset = turn = 0
    with ThreadPoolExecutor(1) as pool:
        under_way = None
        while left > 0:
            count = min(os.preadv(descriptor, [buffers[turn]], offset), left)
            if under_way is not None:
                under_way.result()
            if count == 0:
                return
            under_way = pool.submit(found.update, buffers[turn][:count])
            progress(count)
            offset, left, turn = offset + count, left - count, 1 - turn


def buffer() -> memoryview:
    """Memory for one piece, aligned as O_DIRECT wants it."""
    return memoryview(mmap.mmap(-1, BUFFER_BYTES))


def drop(path: str) -> None:
    """Take a file that another wrote out of the page cache, its unwritten pages written first. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


class Sink:
    """Writes a file from `offset` on, cutting off what stood there; made when it is not there. Raises OSError.

    What arrives may be put straight into its buffer (`space`, `filled`) or handed over (`write`). What is buffered
    counts as written only after `close`, which also makes it durable.
    """

    def __init__(self, path: str, offset: int = 0) -> None:
        self._path = path
        self._descriptor, self._is_direct = opened(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        self._buffer = buffer()
        self._failed = True
        try:
            if os.fstat(self._descriptor).st_size < offset:
                raise OSError(errno.EINVAL, f"ends before {offset}", path)
            os.ftruncate(self._descriptor, offset)
            self._at = offset - offset % BLOCK_BYTES
            self._held = offset - self._at
            if self._held:
                os.preadv(self._descriptor, [self._buffer[:BLOCK_BYTES]], self._at)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._failed = False

    @property
    def offset(self) -> int:
        """How many bytes the file will have when it is closed now."""
        return self._at + self._held

    @property
    def written(self) -> int:
        """How many bytes others can read by now."""
        return self._at

    def space(self) -> memoryview:
        """Where the next bytes go; never empty."""
        return self._buffer[self._held :]

    def filled(self, count: int) -> None:
        """The first `count` bytes of the space have arrived."""
        self._held += count
        if self._held == BUFFER_BYTES:
            self._put(BUFFER_BYTES)

    def write(self, data: bytes | memoryview) -> None:
        """Append these bytes."""
        left = memoryview(data)
        while left:
            space = self.space()
            count = min(len(space), len(left))
            space[:count] = left[:count]
            self.filled(count)
            left = left[count:]

    def close(self) -> None:
        """Write what is held, and return when the disk has it all. After a failed write: only let go."""
        if self._descriptor < 0:
            return
        try:
            if not self._failed:
                whole = self._held - self._held % BLOCK_BYTES
                if whole:
                    self._put(whole)
                if self._held:
                    if self._is_direct:
                        _through_the_cache(self._descriptor)
                        self._is_direct = False
                    self._put(self._held)
                os.fsync(self._descriptor)
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Sink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        try:
            self.close()
        except OSError:
            # The first failure is the one that is told.
            return

    def _put(self, count: int) -> None:
        """Write the first `count` held bytes; the rest moves to the front."""
        begin, done = self._at, 0
        self._failed = True
        while done < count:
            try:
                done += os.pwritev(self._descriptor, [self._buffer[done:count]], self._at + done)
            except OSError as error:
                error.filename = self._path
                raise
        self._failed = False
        self._at += count
        rest = self._held - count
        self._buffer[:rest] = bytes(self._buffer[count : self._held])
        self._held = rest
        if not self._is_direct:
            os.fdatasync(self._descriptor)
            os.posix_fadvise(self._descriptor, begin, count, os.POSIX_FADV_DONTNEED)


def opened(path: str, flags: int) -> tuple[int, bool]:
    """A descriptor past the page cache, or through it where the file system knows no other way; and whether past."""
    flags |= os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT, 0o644), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.open(path, flags, 0o644), False


def _through_the_cache(descriptor: int) -> None:
    """Let a descriptor write what is no whole block."""
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT)


class Rate:
    """At most so many bytes a second, by all threads that share it; 0: as fast as it goes."""

    def __init__(self, bytes_per_second: int) -> None:
        self._bytes_per_second = bytes_per_second
        self._lock = threading.Lock()
        self._free_at = 0.0

    def take(self, count: int, stop: threading.Event | None = None) -> None:
        """Wait until `count` more bytes may pass, or until `stop`."""
        if not self._bytes_per_second:
            return
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._free_at)
            self._free_at = begin + count / self._bytes_per_second
        if begin > now:
            (stop or threading.Event()).wait(begin - now)
