"""What the nodes hold of a generation, looked at before the pair is returned to it."""

from __future__ import annotations

from collections.abc import Iterator

from checks import generations
from checks.generations import Need
from checks.verdict import Verdict, broken
from facts.node import Query, node_facts
from facts.values import KeptGeneration, Unknown
from node import wire
from operations.run import Run
from spec.objects import MOUNT_POINT, VAR


def refusals(run: Run, to: KeptGeneration) -> Iterator[Verdict]:
    """What this generation needs and a node has not got any more."""
    places = {rank: f"{VAR}/generations/{to.engine}/rank{rank}.json" for rank in range(len(to.identities))}
    head = run.cluster.head
    texts = node_facts(run.hosts[head.name], Query(texts=tuple(places.values()))).texts
    for node in run.cluster.nodes:
        place = places.get(node.rank, f"{VAR}/generations/{to.engine}")
        text = texts if isinstance(texts, Unknown) else texts.get(place)
        try:
            if not isinstance(text, str):
                raise wire.WireError(text.reason if isinstance(text, Unknown) else "it is not there")
            need = generations.need(text)
        except wire.WireError as error:
            yield broken(head.name, f"{place}, the launch of {node.name}, cannot be read: {error}", "name another one")
            continue
        seen = node_facts(run.hosts[node.name], _query(need))
        yield from generations.lost(node, need, to.identities[node.rank], seen)


def _query(need: Need) -> Query:
    content = {str(place): path for place, path in enumerate(need.content) if path != MOUNT_POINT}
    return Query(images=(need.image,), content=content)
