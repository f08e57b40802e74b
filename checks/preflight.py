"""Everything that must be true before the first node is changed; all of it is told at once."""

from __future__ import annotations

from collections.abc import Mapping

from checks import content
from checks.check import Sight, When, run
from checks.registry import CHECKS
from checks.verdict import Verdict, failures
from facts.talk import Talk
from facts.values import NodeFacts
from spec.cluster import Cluster


def refusals(
    cluster: Cluster,
    facts: Mapping[str, NodeFacts],
    reached: content.Reached | None = None,
    *,
    starts: bool = True,
    talk: Talk | None = None,
) -> list[Verdict]:
    """What forbids a deploy. `reached`: what keeps each node from the hub, where that matters. `starts`: whether the
    deploy may start or restart the pair. `talk`: what the nodes heard of each other, where they were asked."""
    sight = Sight(cluster, facts, talk, starts=starts, reached=reached)
    return failures(verdict for _, verdict in run(CHECKS, When.PREFLIGHT, sight))


def staging_refusals(
    cluster: Cluster,
    facts: Mapping[str, NodeFacts],
    reached: content.Reached | None = None,
    *,
    talk: Talk | None = None,
) -> list[Verdict]:
    """What forbids to bring files and image to the nodes: nothing of what only a start of the pair needs."""
    sight = Sight(cluster, facts, talk, starts=False, reached=reached)
    return failures(verdict for _, verdict in run(CHECKS, When.STAGING, sight))
