"""Rails that are found, and stated ones against what the nodes hear of each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Network

from checks.check import ALWAYS, Check, Sight, When
from checks.verdict import Verdict, broken, holds, told, unknown
from facts.talk import Talk
from facts.values import NodeFacts, Unknown
from spec.cluster import Settings, StatedNode
from spec.discovery import Found, Look, Pool, Remark, find, written
from spec.objects import NETPLAN_FILE

HEADERS = 28
"""IPv4 and ICMP: what of the MTU is not payload."""
SEEN = frozenset({When.VERIFY, When.DOCTOR})


def looks(nodes: Sequence[StatedNode], facts: Mapping[str, NodeFacts], talk: Talk | None = None) -> list[Look]:
    """What discovery is told of each node."""
    return [_look(node, facts[node.name], talk) for node in nodes]


def _look(node: StatedNode, seen: NodeFacts, talk: Talk | None) -> Look:
    ports = seen.host.ports
    text = {} if isinstance(seen.texts, Unknown) else seen.texts
    links = {} if isinstance(seen.links, Unknown) else seen.links
    said = talk.said.get(node.name) if talk else None
    return Look(
        name=node.name,
        management=node.management_address,
        ports=() if isinstance(ports, Unknown) else ports,
        stated=node.rails,
        file=written(_text(text.get(NETPLAN_FILE))),
        links={name: link.addresses for name, link in links.items()},
        deaf=f"its ports are not known: {ports.reason}" if isinstance(ports, Unknown) else said.trouble if said else "",
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def pool(settings: Settings) -> Pool:
    """Where addresses come from; a network that is stated holds for rails that have addresses as well."""
    return Pool(IPv4Network(settings.effective.rail_network), "rail_network" in settings.knobs.model_fields_set)


def found(settings: Settings, facts: Mapping[str, NodeFacts], talk: Talk | None) -> Found:
    """The rails, as far as they can be known by that."""
    heard = {name: said.heard for name, said in talk.said.items()} if talk else None
    return find(looks(settings.nodes, facts, talk), heard, pool(settings))


def refusal(remark: Remark) -> Verdict:
    """A remark that forbids to go on."""
    return broken(remark.where, remark.statement, remark.fix)


def _found(sight: Sight) -> Iterator[Verdict]:
    if not sight.whole or not isinstance(sight.talk, Talk):
        return
    answer = found(sight.cluster.settings, sight.facts, sight.talk)
    yield from map(refusal, answer.refusals)
    for note in answer.notes:
        yield told(note.where, note.statement, note.fix)
    if answer.proven:
        for number, ends in enumerate(zip(*answer.rails.values(), strict=False)):
            named = zip(answer.rails, ends, strict=True)
            yield holds(
                "", f"rail {number}: {' and '.join(f'{name} ({end.netdev})' for name, end in named)} are joined"
            )


def _packets(sight: Sight) -> Iterator[Verdict]:
    if not isinstance(sight.talk, Talk):
        return
    mtu = sight.cluster.knobs.rail_mtu
    for name, _ in sight.usable():
        node, said = sight.cluster.node(name), sight.talk.said.get(name)
        if said is None or (said.trouble and not said.paths):
            if node.rails:
                yield unknown(
                    name, "what passes its rails", Unknown(said.trouble if said else "no other node takes part")
                )
            continue
        tried = {(path.netdev, path.peer): path for path in said.paths}
        for peer in sight.cluster.peers(node):
            for number, (ours, theirs) in enumerate(zip(node.rails, peer.rails, strict=False)):
                what, path = f"rail {number}: {node.name} to {peer.name}", tried.get((ours.netdev, str(theirs.ip)))
                ping = path.ping if path else "no answer"
                if ping:
                    yield broken(
                        "",
                        f"{what}: {mtu - HEADERS} bytes do not pass unfragmented: {ping}",
                        "compare MTU and carrier on both ends: ip -s link; a switch between them must pass 9000 bytes, "
                        "too",
                    )
                    continue
                yield holds("", f"{what}: {mtu - HEADERS} bytes pass unfragmented")
                # Of a peer that was not heard the port is not known.
                if path and path.tcp and any((ours.netdev, peer.name) == (one.at, one.node) for one in said.heard):
                    yield broken(
                        "",
                        f"{what}: packets pass, and a TCP connection to a port at random does not: {path.tcp}",
                        f"a firewall on {peer.name} or {node.name}: run deploy.py, which opens it for the rails' peers "
                        f"(knob open_firewall); sudo nft list ruleset shows the rest",
                    )


CHECKS: tuple[Check, ...] = (
    Check(
        "rails.found",
        "Are the rails those ports over which the nodes hear each other, and is no other port taken for one?",
        _found,
        ALWAYS,
        ("NET-01", "NET-02", "NET-03", "NET-12", "NET-18", "NET-19", "NET-24"),
    ),
    Check(
        "rails.packets",
        "Do packets of full size pass each rail, in each direction, and connections to any port?",
        _packets,
        SEEN,
        ("NET-09", "NET-21"),
    ),
)
