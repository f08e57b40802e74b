"""What the nodes are, asked as a deploy asks it: the same programs, over the sessions that are open."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from contact.first import Node, at_once
from contact.session import script
from contact.words import Refused
from facts import talk
from facts.node import TIMEOUT_SECONDS, NodeProbe, Query, from_output
from facts.values import NodeFacts


def probe(nodes: Mapping[str, Node], query: Query) -> dict[str, NodeFacts]:
    """The facts of every node, by name, all asked at once. Raises Refused where one cannot be looked at."""
    command = script(NodeProbe().command(query.text()).get_raw_value())

    def one(node: Node) -> NodeFacts:
        return from_output(node.session.run(command, seconds=TIMEOUT_SECONDS).out.splitlines())

    facts = dict(zip(nodes, at_once(one, list(nodes.values())), strict=True))
    lines = [
        f"{nodes[name].place.where}: could not be looked at: {seen.trouble or 'sudo wants a password again'}"
        for name, seen in facts.items()
        if seen.trouble or not seen.sudo
    ]
    if lines:
        raise Refused(lines)
    return facts


def hear(nodes: Mapping[str, Node], netdevs: Mapping[str, Sequence[str]]) -> dict[str, talk.Said]:
    """What each node hears of the others at its netdevs, all of them at the same time. Nothing is changed there."""
    nonce = secrets.token_hex(8)
    taking_part = tuple(name for name in nodes if netdevs[name])

    def one(name: str) -> talk.Said:
        question = talk.Question(name, nonce, taking_part, tuple(netdevs[name]))
        line = script(talk.command(question.text()).get_raw_value())
        return talk.from_output(nodes[name].session.run(line).out.splitlines())

    return dict(zip(taking_part, at_once(one, taking_part), strict=True)) if taking_part else {}
