"""The inventory that is proposed: pure text of what was found."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

PORT = 22


@dataclass(frozen=True)
class FoundRail:
    """A rail's end on a node, as the inventory states it."""

    netdev: str
    hca: str
    address: str


@dataclass(frozen=True)
class FoundNode:
    """What is known of a node. `address` is stated where `host` is no IPv4 address of its own; `remarks` say what was
    seen of its ports and left out."""

    name: str
    host: str
    user: str
    address: str = ""
    port: int = PORT
    key: str = ""
    rails: tuple[FoundRail, ...] = ()
    remarks: tuple[str, ...] = ()


def names(called: Sequence[str]) -> list[str]:
    """A name for each node: what it calls itself, where all differ and all can be names; else spark-a, spark-b."""
    own = [name.partition(".")[0].lower() for name in called]
    if len(set(own)) == len(own) and all(re.fullmatch(r"[a-z0-9][a-z0-9-]*", name) for name in own):
        return own
    return [f"spark-{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"[: len(own)]]


def text(nodes: Sequence[FoundNode], remarks: Sequence[str] = ()) -> str:
    """inventory.py: the first node is the head. The same for the same nodes, whenever it is made."""
    lines = [
        '"""The two Sparks: how to reach each one, which of them is the head, and its rails.'
        if len(nodes) == 2
        else '"""The Sparks: how to reach each one, which of them is the head, and its rails.',
        "",
        "Proposed by discover.py, from what it found. It is yours to change: discover.py never does.",
        '"""',
        "",
        "from spec.transport import ssh",
    ]
    if remarks:
        lines += ["", *(f"# {line}" for remark in remarks for line in remark.splitlines())]
    for position, members in (("head", nodes[:1]), ("worker", nodes[1:])):
        lines += ["", f"{position} = ["]
        for node in members:
            lines += _node(node)
        lines.append("]")
    return "\n".join(lines) + "\n"


def _node(node: FoundNode) -> Iterator[str]:
    reached = [json.dumps(node.host), f"user={json.dumps(node.user)}"]
    reached += [f"key={json.dumps(node.key)}"] if node.key else []
    reached += [f"port={node.port}"] if node.port != PORT else []
    yield from ("    (", f"        {json.dumps(node.name)},", "        {", f"            **ssh({', '.join(reached)}),")
    if node.address:
        yield f'            "management_address": {json.dumps(node.address)},'
    for remark in node.remarks:
        yield from (f"            # {line}" for line in remark.splitlines())
    if node.rails:
        yield '            "rails": ['
        for rail in node.rails:
            stated = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in vars(rail).items())
            yield f"                {{{stated}}},"
        yield "            ],"
    yield from ("        },", "    ),")


def document(nodes: Sequence[FoundNode]) -> list[Mapping[str, object]]:
    """The same for programs."""
    return [
        {
            "name": node.name,
            "position": "worker" if number else "head",
            "host": node.host,
            "user": node.user,
            "port": node.port,
            "management_address": node.address or node.host,
            "rails": [vars(rail) for rail in node.rails],
            "remarks": list(node.remarks),
        }
        for number, node in enumerate(nodes)
    ]
