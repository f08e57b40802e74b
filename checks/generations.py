"""Generations to return to: which one a rollback takes, what it needs that may be gone, what a deploy takes from it."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from checks import content, pair
from checks.rejected import day, short
from checks.verdict import Verdict, broken, unknown
from facts.values import KeptGeneration, NodeFacts, Status, Unknown, UnknownFact
from node import wire
from spec.cluster import Cluster, Node
from spec.objects import MOUNT_POINT


@dataclass(frozen=True)
class Stranded:
    """A generation that cannot be returned to, and why."""

    engine: str
    reason: str


def to_return_to(status: Status) -> list[KeptGeneration]:
    """What a rollback may take by itself, newest first: it passed its gates, and is not what the pair is held to."""
    return [
        one
        for one in status.generations
        if one.is_good and one.engine != status.accepted and not one.rejected and one.engine not in status.rejected
    ]


# A rollback on request


def choose(cluster: Cluster, head: NodeFacts) -> KeptGeneration | Verdict:
    """The generation that the operator wants back, or why there is none. It may be the one that the pair is held to
    already, where it was named."""
    try:
        status = pair.status_of(head)
    except UnknownFact as error:
        return Verdict(cluster.head.name, str(error), None, "make that answer, then run again")
    if status is None:
        fix = "sudo systemctl restart sparkpair-keeper, and journalctl -u sparkpair-keeper if it ends again"
        return broken(cluster.head.name, "the keeper does not run, and it is what returns to a generation", fix)
    if status.desired == "stop":
        return broken("", "the pair is stopped on purpose", f"sudo sparkpair start on {cluster.head.name} first")
    if cluster.knobs.rollback_to:
        return _named(str(cluster.knobs.rollback_to), status)
    found = to_return_to(status)
    if not found:
        return broken("", f"no other generation has passed its gates. {_kept(status)}", "deploy the settings you want")
    return found[0]


def _named(prefix: str, status: Status) -> KeptGeneration | Verdict:
    found = [one for one in status.generations if one.engine.startswith(prefix)]
    if len(found) != 1:
        many = "names more than one generation" if found else "names no generation that is kept"
        return broken("", f"rollback_to = {prefix} {many}. {_kept(status)}", "name one of these")
    if not found[0].is_good:
        return broken(
            "",
            f"generation {short(found[0].engine)} has never passed its gates. {_kept(status)}",
            "name one that has, or deploy its settings",
        )
    return found[0]


def _kept(status: Status) -> str:
    rows = [
        f"{short(one.engine)} ({', '.join(_notes(one, status))})" for one in status.generations
    ] or ["none that the keeper tells of"]  # fmt: skip
    return f"Kept are: {', '.join(rows)}"


def _notes(one: KeptGeneration, status: Status) -> Iterator[str]:
    yield f"accepted {day(one.accepted)}"
    yield "good" if one.is_good else "never good"
    if one.engine == status.accepted:
        yield "the one in force"
    if one.rejected or one.engine in status.rejected:
        yield "rejected"


# What a generation needs


@dataclass(frozen=True)
class Need:
    """What one rank of a generation cannot be started without: its image, directories, and rail addresses."""

    image: str
    content: tuple[str, ...]
    addresses: tuple[str, ...]


def need(rank_text: str) -> Need:
    """Read from a rank's launch. Raises WireError."""
    spec = wire.parse_rank(rank_text)
    addresses = {value.address for _, value in spec.env if isinstance(value, wire.GidIndex)}
    return Need(spec.image, spec.content, tuple(sorted(addresses)))


def lost(node: Node, wanted: Need, identities: Sequence[str], seen: NodeFacts) -> Iterator[Verdict]:
    """What a node has not got any more of it. `identities` are those of its content, as it was accepted."""
    where = node.name
    if isinstance(seen.docker, Unknown):
        yield unknown(where, "Docker", seen.docker)
    else:
        image = seen.docker.images.get(wanted.image, Unknown("not looked at"))
        if isinstance(image, Unknown):
            yield unknown(where, f"the image {wanted.image}", image)
        elif image is None:
            yield broken(where, f"the image {wanted.image} is gone", f"docker pull {wanted.image} on {where}")
    if isinstance(seen.links, Unknown):
        yield unknown(where, "its network links", seen.links)
    else:
        held = {str(address.ip) for link in seen.links.values() for address in link.addresses}
        for address in wanted.addresses:
            if address not in held:
                yield broken(where, f"the address {address} is gone", "deploy the settings that had it")
    for path, identity in zip(wanted.content, identities, strict=False):
        if path == MOUNT_POINT:
            continue  # the node that holds these files is asked for them
        here = content.find(seen, path)
        if isinstance(here, Unknown):
            yield unknown(where, path, here)
        elif not here.is_whole:
            yield broken(where, f"{path} is gone or not whole", "deploy settings that name it, which brings it")
        elif here.identity != identity:
            yield broken(where, f"{path} holds other files than it was accepted with", "deploy the settings you want")


# What a deploy takes from generations


def stranded(
    generations: Sequence[KeptGeneration], gone: frozenset[str], replaced: Mapping[str, str]
) -> tuple[Stranded, ...]:
    """The good ones that cannot be returned to after addresses are `gone` and files were `replaced`: the identity that
    was, and where it was."""
    return tuple(_stranded(one, gone, replaced) for one in generations if one.is_good and _reason(one, gone, replaced))


def _stranded(one: KeptGeneration, gone: frozenset[str], replaced: Mapping[str, str]) -> Stranded:
    return Stranded(one.engine, _reason(one, gone, replaced))


def _reason(one: KeptGeneration, gone: frozenset[str], replaced: Mapping[str, str]) -> str:
    addresses = sorted(gone & set(one.addresses), key=ipaddress.ip_address)
    places = sorted({replaced[identity] for row in one.identities for identity in row if identity in replaced})
    reasons = []
    if addresses:
        reasons.append(f"its ranks use {' and '.join(addresses)}, which no node will have")
    if places:
        reasons.append(f"the files in {' and '.join(places)} will be others")
    return "; ".join(reasons)
