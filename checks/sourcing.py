"""Where each node gets the files of a locked directory: from its own disk, the hub, a bundle or its peers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from facts.values import Content

Row = tuple[str, int, str]
"""A file as it must be: path below the directory, size in bytes, sha256."""


class Way(Enum):
    """What a node does for one directory."""

    NOTHING = "nothing"
    HASH = "its files hashed"
    FETCH = "a download"
    EXCHANGE = "a download of its share, the rest from its peer"
    BUNDLE = "the files of the bundle"
    COPY = "a copy"


@dataclass(frozen=True)
class Share:
    """One node's part. `lacks` are the files that it does not hold; `fetch` those that it downloads, first to last;
    `wait` says that peers bring others meanwhile, or may: a file that proves to be damaged when it is hashed is nearer
    there than at the hub. `hub`: it may download at all."""

    way: Way
    lacks: tuple[Row, ...] = ()
    fetch: tuple[str, ...] = ()
    hub: bool = False
    wait: bool = False
    bundle: str = ""

    @property
    def size(self) -> int:
        """Bytes that it lacks."""
        return sum(size for _, size, _ in self.lacks)

    @property
    def fetch_size(self) -> int:
        """Bytes that it downloads."""
        mine = set(self.fetch)
        return sum(size for path, size, _ in self.lacks if path in mine)


def lacking(wanted: Sequence[Row], here: Content) -> tuple[Row, ...]:
    """The files that a node must be brought. One of the right size that was not hashed yet counts as held: it is hashed
    before it is used, and brought if it proves to be another."""
    held = {path: (size, digest) for path, size, digest in here.files}
    damaged = set(here.damaged)

    def is_here(row: Row) -> bool:
        path, size, sha256 = row
        return path not in damaged and path in held and held[path] in ((size, sha256), (size, None))

    return tuple(row for row in wanted if not is_here(row))


def shares(
    wanted: Sequence[Row], seen: Mapping[str, Content], online: Mapping[str, bool], bundles: Mapping[str, str],
    published: frozenset[str],
) -> tuple[dict[str, Share], tuple[Row, ...]]:  # fmt: skip
    """A share for each node of `seen`, and the files that nobody can bring.

    `online` says who reaches the hub, `bundles` who has a bundle and where; `published` are the paths that hub and
    bundle hold (what an operator put beside the weights, they do not).
    """
    lacks = {name: lacking(wanted, here) for name, here in seen.items()}
    nowhere = [row for row in wanted if all(row in lacks[name] for name in seen)]
    holders = [name for name in seen if name in bundles]
    downloaders = [name for name in seen if online.get(name)] if not holders else []
    available = [row for row in nowhere if row[0] in published] if holders or downloaders else []
    # Dealt out as if nobody held anything: a run that follows one which was cut off gives each node what it was at
    # before, parts and all, and nothing that the other's unit still downloads.
    dealt = _split([row for row in wanted if row[0] in published], downloaders)
    due = {row[0] for row in available}
    split = {name: tuple(path for path in paths if path in due) for name, paths in dealt.items()}
    found = {}
    for name, here in seen.items():
        hub = bool(online.get(name))
        if not lacks[name]:
            is_done = here.identity is not None and here.copying is None
            in_doubt = _may_come_from_peers(name, seen, lacks)
            found[name] = Share(Way.NOTHING) if is_done else Share(Way.HASH, hub=hub, wait=in_doubt)
            continue
        mine = split.get(name, ())
        rest = (len(lacks[name]) > len(mine) and len(seen) > 1) or _may_come_from_peers(name, seen, lacks)
        if name in bundles and any(row in lacks[name] for row in nowhere):
            others = any(row[0] not in published for row in lacks[name])
            found[name] = Share(Way.BUNDLE, lacks[name], (), hub, others, bundles[name])
        elif mine:
            way = Way.EXCHANGE if len(lacks[name]) > len(mine) and len(seen) > 1 else Way.FETCH
            found[name] = Share(way, lacks[name], mine, hub, rest)
        else:
            found[name] = Share(Way.COPY, lacks[name], (), hub, True)
    return found, tuple(row for row in nowhere if row not in available)


def _may_come_from_peers(name: str, seen: Mapping[str, Content], lacks: Mapping[str, tuple[Row, ...]]) -> bool:
    """Whether a peer holds a file that this node has yet to prove."""
    unproven = {path for path, _, digest in seen[name].files if digest is None} - {row[0] for row in lacks[name]}
    return any(unproven - {row[0] for row in lacks[peer]} for peer in seen if peer != name)


def _split(rows: Sequence[Row], names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The files dealt out so that every node downloads about as many bytes; each file to one node."""
    if not names:
        return {}
    dealt: dict[str, list[Row]] = {name: [] for name in names}
    for row in sorted(rows, key=lambda row: (-row[1], row[0])):
        least = min(names, key=lambda name: sum(size for _, size, _ in dealt[name]))
        dealt[least].append(row)
    return {name: tuple(path for path, _, _ in sorted(given)) for name, given in dealt.items()}
