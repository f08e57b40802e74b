"""Files that are being brought: the part beside the content, the same for every source, and its way into its place."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from node import wire

DIRECTORY = ".sparkpair"
"""Below a content directory; its first character keeps it out of the content (node/content.py)."""


def part_path(directory: str, sha256: str) -> str:
    """Where the bytes of a file gather until its sha256 proves them."""
    return os.path.join(directory, DIRECTORY, f"{sha256[:16]}.part")


def held(directory: str, sha256: str, size: int) -> int:
    """How many bytes of a part are there to go on from; one that is too long is worth nothing. Raises OSError."""
    try:
        found = os.stat(part_path(directory, sha256)).st_size
    except FileNotFoundError:
        return 0
    return found if found <= size else 0


def prepare(directory: str, owner: tuple[int, int]) -> None:
    """Make the directory and the place of its parts; what is new belongs to (uid, gid). Raises OSError."""
    make(os.path.join(directory, DIRECTORY), owner)


def place(directory: str, path: str, sha256: str, owner: tuple[int, int]) -> None:
    """Put a proven part where it belongs, over what stood there. Raises OSError."""
    part, target = part_path(directory, sha256), os.path.join(directory, path)
    make(os.path.dirname(target), owner)
    os.chown(part, *owner)
    os.chmod(part, 0o644)
    os.replace(part, target)
    wire.sync_directory(Path(target).parent)


def clear(directory: str) -> None:
    """Remove the place of the parts when none is left in it. Raises OSError."""
    try:
        os.rmdir(os.path.join(directory, DIRECTORY))
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise


def make(directory: str, owner: tuple[int, int]) -> None:
    """A directory and those above it; the new ones belong to (uid, gid), for all to read. Raises OSError."""
    new = []
    above = directory
    while not os.path.isdir(above):
        new.append(above)
        above = os.path.dirname(above)
    for each in reversed(new):
        try:
            os.mkdir(each, 0o755)
        except FileExistsError:
            continue
        os.chmod(each, 0o755)
        os.chown(each, *owner)
