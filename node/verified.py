"""Which files of a content directory were hashed, and are still those: the record by which nothing is read twice."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from node import content, paths, wire

# size in bytes, modification time in nanoseconds, inode, sha256 in hex
Stamp = tuple[int, int, int, str]


class Verified:
    """The `.verified` record of one directory, with what its manifest proves as well. Threads may share it.

    A row counts while size, modification time and inode of the file are those that it was hashed with. It is written
    after each file, so that an interruption loses at most the file that was being worked on.
    """

    def __init__(self, directory: str, state: Path = paths.WEIGHTS) -> None:
        self.directory = directory
        self._path = state / content.verified_name(directory)
        self._damaged_path = state / content.damaged_name(directory)
        self._lock = threading.Lock()
        self._manifest = _of_manifest(state / content.manifest_name(directory), directory)
        self._rows = content.read_verified(str(self._path), directory)
        self._damaged = set(content.read_damaged(str(self._damaged_path)))

    def sha256(self, path: str) -> str | None:
        """The sha256 of a file as it stands there now; None for one that is not there, was not hashed as it is, or was
        found damaged since."""
        row = self._row(path)
        return None if row is None else row[3]

    def proven(self, path: str) -> str | None:
        """The sha256 that a file was hashed with, if by its metadata it is that file still: what a deep check has found
        in it does not count."""
        row = self._stamped(path)
        return None if row is None else row[3]

    def _row(self, path: str) -> Stamp | None:
        return None if path in self._damaged else self._stamped(path)

    def _stamped(self, path: str) -> Stamp | None:
        rows = [known[path] for known in (self._rows, self._manifest) if path in known]
        if not rows:
            return None
        try:
            now = stamp(os.path.join(self.directory, path))
        except OSError:
            return None
        return next((row for row in rows if row[:3] == now), None)

    def good(self, rows: Iterable[tuple[str, int, str]]) -> set[str]:
        """Which of these files are here with the bytes that the rows state."""
        return {path for path, _, sha256 in rows if self.sha256(path) == sha256}

    def held(self) -> list[tuple[str, int, str]]:
        """Every file that is here as it was hashed: path, size, sha256."""
        rows = [(path, self._row(path)) for path in sorted({*self._rows, *self._manifest})]
        return [(path, row[0], row[3]) for path, row in rows if row is not None]

    def is_damaged(self, path: str) -> bool:
        """Whether a deep check found other bytes in the file, and nobody has brought it again since."""
        return path in self._damaged

    def record(self, path: str, sha256: str) -> None:
        """The file was just written with these bytes and brought to the disk. Raises OSError."""
        self.record_as(path, stamp(os.path.join(self.directory, path)), sha256)

    def record_as(self, path: str, seen: tuple[int, int, int], sha256: str) -> None:
        """The file was hashed; `seen` is its stamp from before: a file that somebody wrote meanwhile is then not
        taken for the one that was read. Raises OSError."""
        row = (*seen, sha256)
        with self._lock:
            self._rows[path] = row
            self._write()
            if path in self._damaged:
                self._damaged.discard(path)
                self._write_damaged()

    def _write(self) -> None:
        rows = {path: list(row) for path, row in sorted(self._rows.items())}
        wire.write_atomic(self._path, json.dumps({"directory": self.directory, "files": rows}), 0o644)

    def _write_damaged(self) -> None:
        """The files that are still damaged; no file when none is."""
        if not self._damaged:
            self._damaged_path.unlink(missing_ok=True)
            return
        kept = wire.read_json(self._damaged_path) or {}
        wire.write_atomic(self._damaged_path, json.dumps({**kept, "files": sorted(self._damaged)}), 0o644)


def stamp(path: str) -> tuple[int, int, int]:
    """By what a file is known again without being read: size, modification time in nanoseconds, inode."""
    status = os.stat(path)
    return (status.st_size, status.st_mtime_ns, status.st_ino)


def _of_manifest(path: Path, directory: str) -> dict[str, Stamp]:
    """What the manifest proves, if it has stamps."""
    manifest = content.read_manifest(str(path), directory) or {}
    files, stamps = manifest.get("files"), manifest.get("stamps")
    if not isinstance(files, list) or not isinstance(stamps, list):
        return {}
    try:
        digests = {str(name): str(sha256) for name, _, sha256 in files}
        rows = {str(name): (int(size), int(time), int(inode)) for name, size, time, inode in stamps}
    except (TypeError, ValueError):
        return {}
    return {name: (*row, digests[name]) for name, row in rows.items() if name in digests}
