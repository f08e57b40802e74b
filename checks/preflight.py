"""Everything that must be true before the first node is changed; all of it is told at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from checks import access, api_key, content, memory, rails, staging
from checks.verdict import Verdict, failures
from facts.values import NodeFacts
from spec.cluster import Cluster


def refusals(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> list[Verdict]:
    """What forbids a deploy."""
    return failures(_verdicts(cluster, facts))


def _verdicts(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> Iterator[Verdict]:
    yield from access.access(cluster, facts)
    usable = [node for node in cluster.nodes if access.usable(facts[node.name])]
    for node in usable:
        seen = facts[node.name]
        yield from rails.can_be_set_up(node, seen)
        yield from staging.docker(node, seen)
        yield from staging.names_and_ports(cluster, node, seen)
        yield from staging.no_other_keeper(node, seen)
        yield from memory.in_use(cluster, node, seen)
        yield from memory.swap(cluster, node, seen)
        if node.is_head:
            yield from api_key.usable(cluster, seen)
    if len(usable) < len(cluster.nodes):
        return  # what spans the nodes cannot be judged without one of them
    plans = content.plans(cluster, facts)
    for plan in plans:
        yield from plan.refusals
        yield from content.template_is_there(cluster, facts, plan)
    for node in cluster.nodes:
        yield from staging.space(cluster, node, facts[node.name], plans)
    yield from staging.copying_tools(cluster, facts, plans)
    yield from staging.host_keys(cluster, facts)
