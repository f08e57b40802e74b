"""Everything that must be true before the first node is changed; all of it is told at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from checks import access, api_key, content, memory, nfs, rails, staging
from checks.verdict import Verdict, failures
from facts.values import NodeFacts
from spec.cluster import Cluster


def refusals(
    cluster: Cluster, facts: Mapping[str, NodeFacts], reached: content.Reached | None = None, *, starts: bool = True
) -> list[Verdict]:
    """What forbids a deploy. `reached`: what keeps each node from the hub, where that matters. `starts`: whether the
    deploy may start or restart the pair."""
    return failures(_verdicts(cluster, facts, reached, starts))


def staging_refusals(
    cluster: Cluster, facts: Mapping[str, NodeFacts], reached: content.Reached | None = None
) -> list[Verdict]:
    """What forbids to bring files and image to the nodes: nothing of what only a start of the pair needs."""
    return failures(_staging_verdicts(cluster, facts, reached))


def _verdicts(
    cluster: Cluster, facts: Mapping[str, NodeFacts], reached: content.Reached | None, starts: bool
) -> Iterator[Verdict]:
    yield from _staging_verdicts(cluster, facts, reached)
    for node in cluster.nodes:
        seen = facts[node.name]
        if not access.usable(seen):
            continue
        yield from staging.names_and_ports(cluster, node, seen)
        yield from staging.no_other_keeper(node, seen)
        yield from memory.in_use(cluster, node, seen, starts=starts)
        yield from memory.swap(cluster, node, seen)
        if node.is_head:
            yield from api_key.usable(cluster, seen)
    if all(access.usable(seen) for seen in facts.values()):
        yield from staging.tools(cluster, facts)
        yield from staging.host_keys(cluster, facts)
        yield from nfs.can_be_set_up(cluster, facts)


def _staging_verdicts(
    cluster: Cluster, facts: Mapping[str, NodeFacts], reached: content.Reached | None
) -> Iterator[Verdict]:
    yield from access.access(cluster, facts)
    usable = [node for node in cluster.nodes if access.usable(facts[node.name])]
    for node in usable:
        yield from rails.can_be_set_up(node, facts[node.name])
        yield from staging.user(node, facts[node.name])
        yield from staging.docker(node, facts[node.name])
    if len(usable) < len(cluster.nodes):
        return  # what spans the nodes cannot be judged without one of them
    plans = content.plans(cluster, facts, reached)
    for plan in plans:
        yield from plan.refusals
        yield from content.template_is_there(cluster, facts, plan)
    for node in cluster.nodes:
        yield from staging.space(cluster, node, facts[node.name], plans)
