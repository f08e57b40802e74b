"""What moved from one lock to the next, in words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from spec.licences import UNKNOWN
from spec.lock import FileSet, Lock, LockedImage


@dataclass(frozen=True)
class Moved:
    """One thing that is not as it was: `what` is image, weights or drafter, `text` says it on one line, `details` name
    the single files or layers."""

    what: str
    text: str
    details: tuple[str, ...] = ()


def compare(old: Lock | None, new: Lock) -> tuple[Moved, ...]:
    """What moved from one lock to the next, in words; nothing for locks that are equal."""
    before = old or Lock(None, None, None)
    moved = list(_image_moved(before.image, new.image))
    for name in ("weights", "drafter"):
        moved += _files_moved(name, getattr(before, name), getattr(new, name))
    return tuple(moved)


def _image_moved(old: LockedImage | None, new: LockedImage | None) -> Iterator[Moved]:
    if old == new:
        return
    if new is None:
        assert old is not None
        yield Moved("image", f"no longer locked; it was {short(old.reference)}")
        return
    if old is None:
        yield Moved("image", f"{short(new.reference)}: new", tuple(_platform_lines(new)))
        return
    if old.reference != new.reference:
        have = {layer.digest for platform in old.platforms.values() for layer in platform.layers}
        details = []
        for name, platform in new.platforms.items():
            fresh = [layer for layer in platform.layers if layer.digest not in have]
            size = volume(sum(layer.size for layer in fresh))
            details.append(f"{name}: {len(fresh)} of {len(platform.layers)} layers are new ({size})")
        yield Moved("image", f"{short(old.reference)} -> {short(new.reference)}", tuple(details))
        return
    if old.ref != new.ref:
        yield Moved("image", f"tag {old.ref or 'unknown'} -> {new.ref or 'unknown'}, the same image")
    if old.platforms != new.platforms:
        # A digest says all that is in an image, so the old text was not made from it.
        yield Moved(
            "image", "what was locked of its platforms is not what the digest says", tuple(_platform_lines(new))
        )


def _platform_lines(image: LockedImage) -> Iterator[str]:
    for name, platform in image.platforms.items():
        layers = "1 layer" if len(platform.layers) == 1 else f"{len(platform.layers)} layers"
        yield f"{name}: {layers}, {volume(sum(layer.size for layer in platform.layers))}"


def _files_moved(name: str, old: FileSet | None, new: FileSet | None) -> Iterator[Moved]:
    if old == new:
        return
    if new is None:
        assert old is not None
        yield Moved(name, f"no longer locked; it was {_source(old)}")
        return
    if old is None:
        yield Moved(name, f"{_source(new)}: new, {_count(len(new.files))}, {volume(new.size)}")
        return
    yield from _sources_moved(name, old, new)
    yield from _rows_moved(name, old, new)


def _sources_moved(name: str, old: FileSet, new: FileSet) -> Iterator[Moved]:
    if old.repository != new.repository or (old.ref != new.ref and old.revision != new.revision):
        yield Moved(name, f"{_source(old)} -> {_source(new)}")
    elif old.revision != new.revision:
        yield Moved(name, f"{new.repository}: {new.ref} moved from {old.revision[:12]} to {new.revision[:12]}")
    elif old.ref != new.ref:
        yield Moved(name, f"{new.repository}: resolved from {new.ref}, before from {old.ref}; the same commit")
    if old.licence != new.licence:
        yield Moved(name, f"licence {old.licence or UNKNOWN} -> {new.licence or UNKNOWN}")
    if old.gated != new.gated:
        yield Moved(name, "is gated now: a token is needed" if new.gated else "is gated no longer")
    for mirror in old.mirrors:
        if mirror not in new.mirrors:
            yield Moved(name, f"mirror {mirror.repository} at {mirror.revision[:12]}: no longer")
    for mirror in new.mirrors:
        if mirror not in old.mirrors:
            yield Moved(name, f"mirror {mirror.repository} at {mirror.revision[:12]}: new")


def _rows_moved(name: str, old: FileSet, new: FileSet) -> Iterator[Moved]:
    before = {file.path: file for file in old.files}
    after = {file.path: file for file in new.files}
    added = [path for path in after if path not in before]
    removed = [path for path in before if path not in after]
    changed = [path for path in after if path in before and after[path] != before[path]]
    if not (added or removed or changed):
        return
    fetched = sum(after[path].size for path in (*added, *changed))
    words = ((len(added), "added"), (len(changed), "changed"), (len(removed), "removed"))
    counts = ", ".join(f"{number} {word}" for number, word in words if number)
    details = (
        *(f"added {path} ({volume(after[path].size)})" for path in sorted(added)),
        *(f"changed {path} ({volume(before[path].size)} -> {volume(after[path].size)})" for path in sorted(changed)),
        *(f"removed {path}" for path in sorted(removed)),
    )
    yield Moved(name, f"{counts}, of {_count(len(after))}; {volume(fetched)} to fetch", details)


def lacks(mirror: FileSet, wanted: FileSet) -> list[str]:
    """What a mirror has not, or has otherwise, of the files that are wanted; what it has besides does no harm."""
    has = {file.path: file for file in mirror.files}
    return [
        f"{file.path} ({'other bytes' if file.path in has else 'missing'})"
        for file in wanted.files
        if has.get(file.path) != file
    ]


def _source(files: FileSet) -> str:
    branch = "" if files.ref == files.revision else f"{files.ref} "
    return f"{files.repository} {branch}at {files.revision[:12]}"


def _count(number: int) -> str:
    return "1 file" if number == 1 else f"{number} files"


def short(reference: str) -> str:
    """An image's reference with as much of its digest as a person compares."""
    return re.sub(r"(sha256:[0-9a-f]{12})[0-9a-f]{52}", r"\1", reference)


_UNITS: tuple[tuple[int, str], ...] = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def volume(size: int) -> str:
    """A number of bytes for a person."""
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return "1 byte" if size == 1 else f"{size} bytes"
