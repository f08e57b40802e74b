"""The lock file: what is staged, to the byte. Its form, and its faults.

`lock.py` writes it, the operator commits it, and nothing is downloaded that does not stand in it. Every file of the
hub has its size and sha256 there, every layer of the image its digest and size, by platform.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from node.wire import manifest_identity
from spec.kinds import Kind, Refused, Repository, Revision, shown

FORMAT = 1
LARGEST = 32 * 1024 * 1024
"""Bytes of a lock file; one file takes about 150, and repositories of models have hundreds."""


PERMISSIVE = frozenset(
    {
        "apache-2.0", "mit", "bsd", "bsd-2-clause", "bsd-3-clause", "isc", "zlib", "unlicense", "0bsd", "cc0-1.0",
        "cc-by-4.0", "cdla-permissive-2.0",
    }
)  # fmt: skip
"""Under these, everybody may download, use and change the files for anything."""


class LockError(Exception):
    """A lock file is not what it must be. `lines` holds every fault, each with its place and what was wanted."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


@dataclass(frozen=True)
class LockedFile:
    """One file of a repository; `path` is relative, and no name in it begins with a dot. `size` in bytes."""

    path: str
    size: int
    sha256: str


class Mirror(NamedTuple):
    """Another repository in which every file was the same, to the byte, when the lock was resolved."""

    repository: str
    revision: str


@dataclass(frozen=True)
class FileSet:
    """Weights or drafter: the files of one commit of a repository of the hub, sorted by path."""

    repository: str
    ref: str
    """What was resolved: a branch, a tag, or the commit itself."""
    revision: str
    licence: str
    """As the hub names it; "" where it says nothing."""
    gated: bool
    """Whether the hub wants to know who downloads it."""
    mirrors: tuple[Mirror, ...]
    files: tuple[LockedFile, ...]

    @cached_property
    def identity(self) -> str:
        """Identity of a directory that holds these files and no others, as the nodes compute it."""
        return manifest_identity([(file.path, file.size, file.sha256) for file in self.files])

    @cached_property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def needs_acceptance(self) -> bool:
        """Whether the licence asks more of its user than to be passed on with the files."""
        return self.licence not in PERMISSIVE


@dataclass(frozen=True)
class LockedLayer:
    """One layer as the registry holds it; `size` in bytes, compressed."""

    digest: str
    size: int


@dataclass(frozen=True)
class LockedPlatform:
    """The image for one platform. `config` is the digest of its configuration, which Docker's classic store takes for
    the image's id."""

    digest: str
    config: str
    layers: tuple[LockedLayer, ...]


@dataclass(frozen=True)
class LockedImage:
    """An image. `digest` is the one that knob `image` pins: of an index, or of a single manifest."""

    name: str
    ref: str
    """The tag that it was published under; "" where none is known."""
    digest: str
    platforms: Mapping[str, LockedPlatform]

    @property
    def reference(self) -> str:
        """The image as knob `image` states it."""
        return f"{self.name}@{self.digest}"


@dataclass(frozen=True)
class Lock:
    """A whole lock file. None: the settings name no source for it."""

    image: LockedImage | None
    weights: FileSet | None
    drafter: FileSet | None
    format: int = FORMAT

    @property
    def file_sets(self) -> dict[str, FileSet]:
        """What comes from the hub, by name."""
        both = {"weights": self.weights, "drafter": self.drafter}
        return {name: found for name, found in both.items() if found is not None}


# From text


def parse(text: str, name: str) -> Lock:
    """The lock that a text holds. Raises LockError with every fault; `name` is the file's, for the faults."""
    if len(text) > LARGEST:
        raise LockError([f"{name}: has {len(text)} characters, and a lock has at most {LARGEST}; make lock writes one"])
    try:
        data = json.loads(text, object_pairs_hook=_once)
    except _Twice as twice:
        raise LockError([f"{name}: {twice} stands twice in one place; run make lock, which writes it anew"]) from None
    except RecursionError:
        raise LockError([f"{name}: is nested too deeply for a lock; run make lock, which writes it anew"]) from None
    except ValueError as error:
        where = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        what = error.msg if isinstance(error, json.JSONDecodeError) else "a number too long"
        raise LockError([f"{name}{where}: is not JSON ({what}); run make lock, which writes it anew"]) from None
    if isinstance(data, dict) and "format" in data and _is_not(data["format"], FORMAT):
        raise LockError(
            [
                f"{name}: format = {shown(data['format'])}: this release reads format {FORMAT}; take the release that "
                f"wrote it, or run make lock"
            ]
        )
    reader = _Reader(name)
    lock = reader.lock(data)
    if reader.faults:
        raise LockError([*reader.faults, f"{name}: run make lock, which writes it anew"])
    return lock


class _Twice(ValueError):
    """The name that an object has twice: one of the two would be lost in silence."""


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise _Twice(shown(key))
        found[key] = value
    return found


def _is_not(value: object, wanted: int) -> bool:
    return isinstance(value, bool) or not isinstance(value, int) or value != wanted


_DIGEST = r"sha256:[0-9a-f]{64}"
_LICENCE = r"([a-z0-9][a-z0-9.+_-]{0,79})?"
_PLATFORM = r"[a-z0-9]+/[a-z0-9_]+(/[a-z0-9.]+)?"
_IMAGE_NAME = r"[a-z0-9][a-z0-9._-]*(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
_TAG = r"([A-Za-z0-9_][A-Za-z0-9._-]{0,127})?"
_MOST = 1 << 60
"""Bytes; a larger number is no size of anything."""


@dataclass
class _Reader:
    """Reads values one by one and keeps every fault; what it returns counts only if there is none."""

    name: str
    faults: list[str] = field(default_factory=list)

    def fault(self, place: str, text: str) -> None:
        self.faults.append(f"{self.name}: {place}: {text}" if place else f"{self.name}: {text}")

    def entries(self, value: object, place: str, keys: Sequence[str]) -> Mapping[str, object]:
        """The object's values, exactly these; of a fault, no value at all."""
        if not isinstance(value, dict):
            self.fault(place, f"must be an object with {', '.join(keys)}, not {shown(value)}")
            return {}
        for key in value:
            if key not in keys:
                self.fault(place, f"{shown(key)} has no place there; there are {', '.join(keys)}")
        for key in keys:
            if key not in value:
                self.fault(place, f"{key} is missing")
        return value

    def items(self, value: object, place: str) -> Sequence[object]:
        if isinstance(value, list):
            return value
        self.fault(place, f"must be a list, not {shown(value)}")
        return []

    def text(self, found: Mapping[str, object], key: str, place: str, pattern: str, wanted: str) -> str:
        value = found.get(key)
        if isinstance(value, str) and re.fullmatch(pattern, value):
            return value
        if key in found:
            self.fault(place, f"{key} = {shown(value)}: must be {wanted}")
        return ""

    def of_kind(self, found: Mapping[str, object], key: str, place: str, kind: Kind) -> str:
        try:
            return str(kind.parse(found[key])) if key in found else ""
        except Refused as refused:
            self.fault(place, f"{key} = {shown(found[key])}: {refused}")
            return ""

    def size(self, found: Mapping[str, object], key: str, place: str) -> int:
        value = found.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST:
            return value
        if key in found:
            self.fault(place, f"{key} = {shown(value)}: must be a number of bytes, 0 or more")
        return 0

    def digest(self, found: Mapping[str, object], key: str, place: str) -> str:
        return self.text(found, key, place, _DIGEST, "sha256: and 64 hex digits")

    def lock(self, data: object) -> Lock:
        found = self.entries(data, "", ("format", "image", "weights", "drafter"))
        image, weights, drafter = (found.get(key) for key in ("image", "weights", "drafter"))
        return Lock(
            image=None if image is None else self.image(image),
            weights=None if weights is None else self.file_set(weights, "weights"),
            drafter=None if drafter is None else self.file_set(drafter, "drafter"),
        )

    def image(self, data: object) -> LockedImage:
        found = self.entries(data, "image", ("name", "ref", "digest", "platforms"))
        platforms = found.get("platforms", {})
        if not isinstance(platforms, dict) or ("platforms" in found and not platforms):
            self.fault("image", f"platforms = {shown(platforms)}: must be an object with one entry per platform")
            platforms = {}
        for key in platforms:
            if not re.fullmatch(_PLATFORM, key):
                self.fault("image", f"platform {shown(key)}: must be named as linux/arm64 is")
        return LockedImage(
            name=self.text(found, "name", "image", _IMAGE_NAME, "a registry and a repository, without tag and digest"),
            ref=self.text(found, "ref", "image", _TAG, 'a tag, or ""'),
            digest=self.digest(found, "digest", "image"),
            platforms={key: self.platform(value, f"image: {shown(key)}") for key, value in sorted(platforms.items())},
        )

    def platform(self, data: object, place: str) -> LockedPlatform:
        found = self.entries(data, place, ("digest", "config", "layers"))
        layers = []
        for number, item in enumerate(self.items(found.get("layers", []), f"{place}: layers")):
            at = f"{place}: layer {number}"
            layer = self.entries(item, at, ("digest", "size"))
            layers.append(LockedLayer(self.digest(layer, "digest", at), self.size(layer, "size", at)))
        return LockedPlatform(self.digest(found, "digest", place), self.digest(found, "config", place), tuple(layers))

    def file_set(self, data: object, place: str) -> FileSet:
        keys = ("repository", "ref", "revision", "licence", "gated", "identity", "size", "mirrors", "files")
        found = self.entries(data, place, keys)
        gated = found.get("gated", False)
        if not isinstance(gated, bool):
            self.fault(place, f"gated = {shown(gated)}: must be true or false")
        before = len(self.faults)
        files = self.files(found.get("files", []), place)
        made = FileSet(
            repository=self.of_kind(found, "repository", place, Repository()),
            ref=self.of_kind(found, "ref", place, Revision()),
            revision=self.text(found, "revision", place, r"[0-9a-f]{40}", "a commit of 40 hex digits"),
            licence=self.text(found, "licence", place, _LICENCE, 'a licence as the hub names it, or ""'),
            gated=gated is True,
            mirrors=self.mirrors(found.get("mirrors", []), place),
            files=files,
        )
        size = self.size(found, "size", place)
        identity = self.text(found, "identity", place, r"[0-9a-f]{64}", "64 hex digits")
        if len(self.faults) == before:  # else the sum of what could not be read is said to be wrong as well
            if size != made.size:
                self.fault(place, f"size = {size}: its files come to {made.size} bytes; it was changed by hand")
            elif identity != made.identity:
                self.fault(place, f"identity = {shown(identity)}: its files have another; it was changed by hand")
        return made

    def mirrors(self, data: object, place: str) -> tuple[Mirror, ...]:
        mirrors = []
        for number, item in enumerate(self.items(data, f"{place}: mirrors")):
            at = f"{place}: mirror {number}"
            found = self.entries(item, at, ("repository", "revision"))
            repository = self.of_kind(found, "repository", at, Repository())
            wanted = "a commit of 40 hex digits"
            mirrors.append(Mirror(repository, self.text(found, "revision", at, r"[0-9a-f]{40}", wanted)))
        return tuple(mirrors)

    def files(self, data: object, place: str) -> tuple[LockedFile, ...]:
        files: dict[str, LockedFile] = {}
        listed = self.items(data, f"{place}: files")
        if isinstance(data, list) and not data:
            self.fault(place, "files: there is none; a repository has at least one")
        for number, item in enumerate(listed):
            at = f"{place}: file {number}"
            found = self.entries(item, at, ("path", "size", "sha256"))
            path = found.get("path")
            if "path" in found and (why := path_fault(path)):
                self.fault(at, f"path = {shown(path)}: {why}")
            elif isinstance(path, str):
                at = f"{place}: {path}"
                if path in files:
                    self.fault(at, "is there twice")
            size = self.size(found, "size", at)
            sha256 = self.text(found, "sha256", at, r"[0-9a-f]{64}", "64 hex digits")
            if isinstance(path, str):
                files[path] = LockedFile(path, size, sha256)
        for path in files:
            if above := next((parent for parent in _parents(path) if parent in files), None):
                self.fault(f"{place}: {path}", f"{above} is a file, and cannot be its directory as well")
        return tuple(files[path] for path in sorted(files))


def _parents(path: str) -> Iterator[str]:
    parts = path.split("/")
    yield from ("/".join(parts[:count]) for count in range(1, len(parts)))


def path_fault(path: object) -> str | None:
    """What forbids this path in a lock; None if nothing does. A downloaded file never leaves its directory, and lies
    where the nodes look: names that begin with a dot are the downloaders' own."""
    wanted = "must be a relative path such as model.safetensors"
    if not isinstance(path, str) or not path:
        return wanted
    if re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\\]", path):
        return "must not contain control characters, line breaks or \\"
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return f"{wanted}, below its directory and without empty, . or .. parts"
    if any(part.startswith(".") for part in parts):
        return "must have no part that begins with a dot"
    if len(path.encode()) > 1024 or any(len(part.encode()) > 200 for part in parts):
        return "must have at most 200 bytes in each part, and 1024 in all"
    return None


# To text


def text(lock: Lock) -> str:
    """The lock as a file: one file, mirror or layer per line, so that a diff shows the one that moved."""
    image = "null" if lock.image is None else _image_text(lock.image)
    sets = ("null" if found is None else _file_set_text(found) for found in (lock.weights, lock.drafter))
    weights, drafter = sets
    return f'{{\n "format": {lock.format},\n "image": {image},\n "weights": {weights},\n "drafter": {drafter}\n}}\n'


def _json(value: object) -> str:
    return json.dumps(value)


def _rows(rows: Sequence[Mapping[str, object]], indent: str) -> str:
    if not rows:
        return "[]"
    return "[\n" + ",\n".join(f"{indent} {_json(row)}" for row in rows) + f"\n{indent}]"


def _image_text(image: LockedImage) -> str:
    platforms = []
    for name in sorted(image.platforms):
        found = image.platforms[name]
        layers = _rows([{"digest": layer.digest, "size": layer.size} for layer in found.layers], "    ")
        platforms.append(
            f'   {_json(name)}: {{\n    "digest": {_json(found.digest)},\n    "config": {_json(found.config)},\n'
            f'    "layers": {layers}\n   }}'
        )
    return (
        f'{{\n  "name": {_json(image.name)},\n  "ref": {_json(image.ref)},\n  "digest": {_json(image.digest)},\n'
        '  "platforms": {\n' + ",\n".join(platforms) + "\n  }\n }"
    )


def _file_set_text(files: FileSet) -> str:
    plain: dict[str, object] = {
        "repository": files.repository,
        "ref": files.ref,
        "revision": files.revision,
        "licence": files.licence,
        "gated": files.gated,
        "identity": files.identity,
        "size": files.size,
    }
    mirrors = _rows([{"repository": one.repository, "revision": one.revision} for one in files.mirrors], "  ")
    ordered = sorted(files.files, key=lambda file: file.path)
    listed = _rows([{"path": file.path, "size": file.size, "sha256": file.sha256} for file in ordered], "  ")
    head = ",\n".join(f"  {_json(key)}: {_json(value)}" for key, value in plain.items())
    return f'{{\n{head},\n  "mirrors": {mirrors},\n  "files": {listed}\n }}'
