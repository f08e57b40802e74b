"""The errand of a staging unit: what one node shall have, and where it may take it from.

Written by the deploy, which knows all nodes; read by `main.py stage`. Nothing in it is secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from node import wire

FORMAT = 1

# path below the directory, size in bytes, sha256 in hex: as a manifest has them
FileRow = tuple[str, int, str]


@dataclass(frozen=True)
class Way:
    """One way to a peer: its address there, and this node's own end of that rail."""

    address: str
    netdev: str
    spare: bool
    """Whether the pair's traffic leaves this way free: the others are used only while no spare one has carrier."""


@dataclass(frozen=True)
class Peer:
    """Another node that may hold the files."""

    name: str
    ways: tuple[Way, ...]


@dataclass(frozen=True)
class Hub:
    """Where repositories are downloaded from, and the directory in which huggingface_hub lies on this node."""

    endpoint: str
    client: str


@dataclass(frozen=True)
class Set:
    """One directory of files, as the lock states them."""

    name: str
    directory: str
    identity: str
    files: tuple[FileRow, ...]
    hub: tuple[tuple[str, str], ...] = ()
    """Repositories with their commits, the first one first; none: not from the hub."""
    fetch: tuple[str, ...] = ()
    """This node's share of the download."""
    wait: bool = False
    """A peer downloads the rest: it is waited for, for as long as it brings something."""
    bundle: str = ""

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(size for _, size, _ in self.files)


@dataclass(frozen=True)
class Errand:
    """All that a node's staging unit is told."""

    owner: str
    rate: int
    """Bytes per second that download and copy take together; 0: as fast as they can."""
    stall_seconds: float
    hub: Hub | None
    peers: tuple[Peer, ...]
    sets: tuple[Set, ...]


def text(errand: Errand) -> str:
    """The errand as its file has it."""
    hub = None if errand.hub is None else {"endpoint": errand.hub.endpoint, "client": errand.hub.client}
    peers = [{"name": peer.name, "ways": [vars(way) for way in peer.ways]} for peer in errand.peers]
    data = {
        "format": FORMAT, "owner": errand.owner, "rate": errand.rate, "stall_seconds": errand.stall_seconds,
        "hub": hub, "peers": peers, "sets": [vars(wanted) for wanted in errand.sets],
    }  # fmt: skip
    return json.dumps(data, indent=1) + "\n"


def parse(data: str) -> Errand:
    """Read an errand. Raises wire.WireError naming the part that is wrong."""
    try:
        stated = json.loads(data)
    except ValueError as error:
        raise wire.WireError(f"the errand is not JSON: {error}") from None
    if not isinstance(stated, dict):
        raise wire.WireError("the errand is not a JSON object")
    if stated.get("format") != FORMAT:
        raise wire.WireError(f"the errand has format {stated.get('format')!r}, this program reads {FORMAT}")
    try:
        hub = stated["hub"]
        errand = Errand(
            owner=_text(stated, "owner"),
            rate=_number(stated, "rate"),
            stall_seconds=_seconds(stated, "stall_seconds"),
            hub=None if hub is None else Hub(_endpoint(_text(hub, "endpoint")), _place(_text(hub, "client"), "client")),
            peers=tuple(_peer(peer) for peer in _items(stated, "peers")),
            sets=tuple(_set(wanted) for wanted in _items(stated, "sets")),
        )
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise wire.WireError(f"the errand: {reason}") from None
    for what, values in {
        "name": [wanted.name for wanted in errand.sets],
        "directory": [wanted.directory for wanted in errand.sets],
    }.items():
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise wire.WireError(f"the errand: two sets have the {what} {twice[0]}")
    return errand


def _set(data: Mapping[str, Any]) -> Set:
    name = _text(data, "name")
    if not re.fullmatch("[a-z][a-z0-9_-]*", name):
        raise ValueError(f"a set is named {name!r}, wanted small letters, digits, - and _")
    files = tuple(_row(row, name) for row in _items(data, "files"))
    paths = {path for path, _, _ in files}
    if len(paths) != len(files):
        raise ValueError(f"{name} names a file twice")
    identity = _text(data, "identity")
    if wire.manifest_identity(files) != identity:
        raise ValueError(f"{name} has the identity {identity[:12]!r}, its files {wire.manifest_identity(files)[:12]!r}")
    fetch = tuple(_items(data, "fetch"))
    strangers = sorted(str(path) for path in set(fetch) - paths)
    if strangers:
        raise ValueError(f"{name} shall fetch {strangers[0]!r}, which is none of its files")
    wait, bundle = data["wait"], data["bundle"]
    if not isinstance(wait, bool) or not isinstance(bundle, str):
        raise ValueError(f"{name} has wait {wait!r} and bundle {bundle!r}, wanted true or false, and a text")
    return Set(
        name=name,
        directory=_place(_text(data, "directory"), f"the directory of {name}"),
        identity=identity,
        files=tuple(sorted(files)),
        hub=tuple(_repository(row, name) for row in _items(data, "hub")),
        fetch=fetch,
        wait=wait,
        bundle=_place(bundle, f"the bundle of {name}") if bundle else "",
    )


def _row(row: Any, name: str) -> FileRow:
    if not isinstance(row, list) or len(row) != 3:
        raise ValueError(f"{name} has the file {row!r}, wanted [path, size, sha256]")
    path, size, sha256 = row
    parts = path.split("/") if isinstance(path, str) else [""]
    # Names that begin with a dot are no content (node/content.py), ".." among them.
    if any(not part or part.startswith(".") or set(part) & set("\0\r\n\\") for part in parts):
        raise ValueError(f"{name} has the file {path!r}, wanted a path below the directory, no name with a dot first")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ValueError(f"{name}: {path} has the size {size!r}, wanted bytes")
    if not isinstance(sha256, str) or not re.fullmatch("[0-9a-f]{64}", sha256):
        raise ValueError(f"{name}: {path} has the sha256 {sha256!r}, wanted 64 hex digits")
    return (path, size, sha256)


def _repository(row: Any, name: str) -> tuple[str, str]:
    if not isinstance(row, list) or len(row) != 2 or not all(isinstance(part, str) for part in row):
        raise ValueError(f"{name} has the repository {row!r}, wanted [repository, commit]")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", row[0]) or not re.fullmatch("[0-9a-f]{40}", row[1]):
        raise ValueError(f"{name} has the repository {row[0]!r} at {row[1]!r}, wanted owner/name and 40 hex digits")
    return (row[0], row[1])


def _peer(data: Mapping[str, Any]) -> Peer:
    ways = []
    for way in _items(data, "ways"):
        if not isinstance(way["spare"], bool):
            raise ValueError(f"a way has spare {way['spare']!r}, wanted true or false")
        ways.append(Way(_text(way, "address"), _text(way, "netdev"), way["spare"]))
    return Peer(_text(data, "name"), tuple(ways))


def _endpoint(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None or parts.query:
        raise ValueError("the hub's endpoint is none: wanted http(s)://host[:port], without user or password")
    return url.rstrip("/")


def _place(path: str, what: str) -> str:
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise ValueError(f"{what} is {path!r}, wanted a whole path")
    return path


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data[key]
    if not isinstance(value, str) or not value:
        raise ValueError(f"{key} is {value!r}, wanted a text")
    return value


def _number(data: Mapping[str, Any], key: str) -> int:
    value = data[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{key} is {value!r}, wanted a whole number from 0 on")
    return value


def _seconds(data: Mapping[str, Any], key: str) -> float:
    value = data[key]
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e6:
        raise ValueError(f"{key} is {value!r}, wanted seconds above 0")
    return float(value)


def _items(data: Mapping[str, Any], key: str) -> list[Any]:
    value = data[key]
    if not isinstance(value, list):
        raise ValueError(f"{key} is {value!r}, wanted a list")
    return value
