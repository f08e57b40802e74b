"""An image in a directory (OCI image layout), as a bundle carries it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from node import oci
from node.blobs import from_file


class Layout:
    """Answers from a layout's blobs. What it holds is compared with its digest by whoever keeps it, as from any way."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def manifest(self, digest: str) -> oci.Manifest:
        """The manifest of that digest. Raises OciError."""
        path = self._path(digest)
        try:
            return oci.checked(path.read_bytes(), digest, str(path))
        except OSError as error:
            raise oci.OciError(f"{path}: {error.strerror}", 404) from None

    def read(self, digest: str, size: int, begin: int = 0) -> Iterator[bytes]:
        """The bytes of a blob from `begin` to its end. Raises OciError."""
        path = self._path(digest)
        try:
            found = path.stat().st_size
        except OSError as error:
            raise oci.OciError(f"{path}: {error.strerror}", 404) from None
        if found != size:
            raise oci.WrongBytes(f"{path} has {found} bytes, wanted {size}; copy the bundle again")
        return from_file(path, begin, size)

    def _path(self, digest: str) -> Path:
        return self._directory / "blobs/sha256" / digest.partition(":")[2]
