"""Blobs on disk: each is fetched once, readers follow the growing file, and its end is given to nobody before the
digest of the whole is proven."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

from node import oci, pages, wire
from node.journal import log
from node.relay import Source

CHUNK = 1 << 20
ATTEMPTS = 3
"""Fetches of one blob whose bytes turned out wrong."""


class Store:
    """A directory of blobs over a source. What an earlier process left half fetched is gone on with. Threads share
    it."""

    def __init__(self, directory: Path, source: Source) -> None:
        self._directory = directory
        self._source = source
        self._turn = threading.Lock()
        self._growing: dict[str, _Growing] = {}

    def manifest(self, digest: str) -> oci.Manifest:
        """The manifest of that digest, kept from the first time on."""
        path = place(self._directory, digest)
        try:
            return oci.checked(path.read_bytes(), digest, str(path))
        except (OSError, oci.OciError):
            found = self._source.manifest(digest)
            _keep(path, found.body)
            return found

    def read(self, digest: str, size: int, begin: int = 0) -> Iterator[bytes]:
        """The bytes of a blob from `begin` to its end, as they come."""
        path = place(self._directory, digest)
        with self._turn:
            growing = self._growing.get(digest)
            if growing is None and not path.is_file():
                growing = self._growing[digest] = _Growing(self._source, path, digest, size)
                threading.Thread(target=self._fetch, args=(digest, growing), daemon=True).start()
        return from_file(path, begin, size) if growing is None else growing.follow(begin)

    def _fetch(self, digest: str, growing: _Growing) -> None:
        try:
            growing.fetch()
        finally:
            with self._turn:
                del self._growing[digest]


def place(directory: Path, digest: str) -> Path:
    """Where a blob lies once it is proven."""
    return directory / digest.partition(":")[2]


def from_file(path: Path, begin: int, end: int) -> Iterator[bytes]:
    """Bytes of a file, which leave no trace in the page cache. Raises OciError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise oci.OciError(f"{path}: {error.strerror}") from None
    try:
        yield from _parts(descriptor, str(path), begin, end)
    finally:
        os.close(descriptor)


def _parts(descriptor: int, name: str, begin: int, end: int) -> Iterator[bytes]:
    while begin < end:
        count = min(CHUNK - begin % CHUNK, end - begin)
        try:
            part = os.pread(descriptor, count, begin)
            os.posix_fadvise(descriptor, begin, count, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise oci.OciError(f"{name}: {error.strerror}") from None
        if not part:
            raise oci.OciError(f"{name} ends at {begin}, wanted {end} bytes")
        begin += len(part)
        yield part


def _keep(path: Path, body: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{threading.get_ident()}")
    try:
        draft.write_bytes(body)
        os.replace(draft, path)
    except OSError as error:
        raise oci.OciError(f"{path}: {error.strerror}") from None


class _Growing:
    """A blob while it is fetched."""

    def __init__(self, source: Source, path: Path, digest: str, size: int) -> None:
        self._source = source
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._digest = digest
        self._size = size
        self._news = threading.Condition()
        self._written = 0
        self._round = 0
        """Counts the times that bytes turned out wrong: what was read before is not what follows."""
        self._proven = False
        self._trouble = ""
        self._status = 0

    def fetch(self) -> None:
        """Bring the blob; what goes wrong is told to its readers."""
        try:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    self._attempt()
                    break
                except oci.WrongBytes as error:
                    log(f"{error}; fetched again", "warning")
                    self._part.unlink(missing_ok=True)
                    with self._news:
                        self._round += 1
                        self._written = 0
                        self._news.notify_all()
                    if attempt == ATTEMPTS:
                        raise
            self._tell(proven=True)
        except oci.OciError as error:
            self._tell(trouble=str(error), status=error.status)
        except OSError as error:
            self._tell(trouble=f"{error.filename or self._part}: {error.strerror}")
        except Exception as error:  # an unforeseen one too: its readers would wait for ever
            self._tell(trouble=repr(error))
            raise

    def _attempt(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._part.touch(mode=0o600)
        begin = min(self._part.stat().st_size, self._size)
        total = pages.digest(str(self._part), size=begin)
        with pages.Sink(str(self._part), begin) as sink:
            self._grown(sink.written)
            for data in self._source.read(self._digest, self._size, begin):
                total.update(data)
                sink.write(data)
                self._grown(sink.written)
        if f"sha256:{total.hexdigest()}" != self._digest:
            raise oci.WrongBytes(f"blob {self._digest[:19]} has other bytes than its digest says")
        os.replace(self._part, self._path)
        wire.sync_directory(self._path.parent)

    def _grown(self, written: int) -> None:
        if written == self._written:
            return
        with self._news:
            self._written = written
            self._news.notify_all()

    def _tell(self, proven: bool = False, trouble: str = "", status: int = 0) -> None:
        if trouble:
            log(f"blob {self._digest[:19]}: {trouble}", "error")
        with self._news:
            self._proven, self._trouble, self._status = proven, trouble, status
            self._news.notify_all()

    def follow(self, begin: int) -> Iterator[bytes]:
        """The bytes from `begin` on as they are written, the last ones when the whole is proven."""
        with self._news:
            now = self._round
        descriptor = -1
        try:
            while begin < self._size:
                end = self._await(begin, now)
                if descriptor < 0:
                    descriptor = self._open()
                for part in _parts(descriptor, str(self._path), begin, end):
                    begin += len(part)
                    yield part
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _open(self) -> int:
        """The file, which gets its last name at any moment."""
        for path in (self._part, self._path):
            try:
                return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
        raise oci.OciError(f"{self._path} is gone")

    def _await(self, begin: int, began: int) -> int:
        """Up to where may be read now, which is beyond `begin`."""
        with self._news:
            while True:
                if self._trouble:
                    raise oci.OciError(self._trouble, self._status)
                if self._round != began:
                    raise oci.WrongBytes(f"blob {self._digest[:19]} came with wrong bytes and is fetched again")
                if self._proven:
                    return self._size
                end = min(self._written, self._size - 1)
                if end > begin:
                    return end
                self._news.wait()
