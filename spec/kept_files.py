"""Writes files so that none is lost: all of them or none, and what stood there is kept under another name."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Written:
    """One file: its path, and where the former one is kept (None: there was none); `same`: it stood there already."""

    path: Path
    kept: Path | None = None
    same: bool = False


class NotWritten(Exception):
    """The files could not be written, and everything is as it was; the text says why."""


def write(directory: Path, files: Mapping[str, str], kept: str = "before-import") -> list[Written]:
    """Write the files below a directory: all of them, or none; a former one is kept as NAME.`kept`. Raises NotWritten;
    whatever else ends it, an interrupt too, leaves everything as it was."""
    made: list[tuple[Path, Path | None]] = []
    staged: dict[str, tuple[Path, Path]] = {}
    done: list[Written] = []
    try:
        if not directory.is_dir():
            raise NotWritten(f"{directory}: no such directory; name one that exists with --output")
        for name, text in files.items():
            target = (directory / name).resolve()
            if _holds(target, text):
                done.append(Written(directory / name, same=True))
                continue
            target.parent.mkdir(exist_ok=True)
            staged[name] = (target, _beside(target, text))
        for name, (target, new) in staged.items():
            former = _keep(target, kept) if target.exists() else None
            made.append((target, former))
            os.replace(new, target)
            done.append(Written(directory / name, former))
    except BaseException as error:
        _undo(made, [new for _, new in staged.values()])
        if not isinstance(error, OSError | RuntimeError):  # RuntimeError: links that lead in a circle
            raise
        raise NotWritten(
            f"{getattr(error, 'filename', None) or directory}: cannot be written: "
            f"{getattr(error, 'strerror', None) or error}; nothing was changed"
        ) from None
    return done


def _holds(target: Path, text: str) -> bool:
    try:
        # Asked first: a pipe would be waited for without end, and a device would be replaced by a file.
        mode = target.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise OSError(errno.EINVAL, "is no regular file", str(target))
        return target.read_bytes() == text.encode()
    except FileNotFoundError:
        return False


def _beside(target: Path, text: str) -> Path:
    """The text in a new file of the same directory, on the disk."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, target.stat().st_mode & 0o777 if target.exists() else 0o644)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


def _keep(target: Path, suffix: str) -> Path:
    """A second name for the file that stands there, one that nobody has."""
    for number in range(1, 10_000):
        kept = target.with_name(f"{target.name}.{suffix}" + (f"-{number}" if number > 1 else ""))
        try:
            os.link(target, kept)
        except FileExistsError:
            continue
        except OSError:  # a file system without hard links
            if kept.exists():
                continue
            try:
                shutil.copy2(target, kept)
            except BaseException:
                kept.unlink(missing_ok=True)
                raise
        return kept
    raise OSError(errno.EEXIST, "10,000 kept files are there already", str(target))


def _undo(made: Sequence[tuple[Path, Path | None]], staged: Sequence[Path]) -> None:
    for target, kept in reversed(made):
        if kept is not None:
            os.replace(kept, target)
            kept.unlink(missing_ok=True)  # two names of one file stay two names
        else:
            target.unlink(missing_ok=True)
    for new in staged:
        new.unlink(missing_ok=True)
