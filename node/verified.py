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
        self._manifest = state / content.manifest_name(directory)
        self._lock = threading.Lock()
        self._rows = {**_of_manifest(self._manifest, directory), **_read(self._path, directory)}

    def sha256(self, path: str) -> str | None:
        """The sha256 of a file as it stands there now; None for one that is not there or was not hashed as it is."""
        row = self._rows.get(path)
        if row is None:
            return None
        try:
            return row[3] if _stamp(os.path.join(self.directory, path)) == row[:3] else None
        except OSError:
            return None

    def good(self, rows: Iterable[tuple[str, int, str]]) -> set[str]:
        """Which of these files are here with the bytes that the rows state."""
        return {path for path, _, sha256 in rows if self.sha256(path) == sha256}

    def record(self, path: str, sha256: str) -> None:
        """The file was just hashed, or written with these bytes and brought to the disk. Raises OSError."""
        row = (*_stamp(os.path.join(self.directory, path)), sha256)
        with self._lock:
            self._rows[path] = row
            self._write()

    def drop(self, path: str) -> None:
        """The file is not what the row says."""
        with self._lock:
            if self._rows.pop(path, None) is not None:
                self._write()

    def _write(self) -> None:
        rows = {path: list(row) for path, row in sorted(self._rows.items())}
        wire.write_atomic(self._path, json.dumps({"directory": self.directory, "files": rows}), 0o644)


def _stamp(path: str) -> tuple[int, int, int]:
    status = os.stat(path)
    return (status.st_size, status.st_mtime_ns, status.st_ino)


def _read(path: Path, directory: str) -> dict[str, Stamp]:
    """The rows of the record; a damaged one counts as none, since all that it saves is reading."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["directory"] != directory:
            return {}
        return {str(name): (int(a), int(b), int(c), str(d)) for name, (a, b, c, d) in data["files"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


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
