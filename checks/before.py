"""What must be true before the first node is changed, as questions: for preflight, for staging, and for doctor."""

from __future__ import annotations

from collections.abc import Iterator

from checks import access, api_key, content, memory, nfs, rails, rejected, staging
from checks.check import Check, Sight, When, each, together
from checks.verdict import Verdict

STAGING = frozenset({When.STAGING, When.PREFLIGHT, When.DOCTOR})
"""Of files and image as well."""
STARTING = frozenset({When.PREFLIGHT, When.DOCTOR})
"""Of what only a start of the pair needs."""
EVERYWHERE = frozenset({*STAGING, When.VERIFY})


def _content(sight: Sight) -> Iterator[Verdict]:
    for plan in content.plans(sight.cluster, sight.facts, sight.reached):
        yield from plan.refusals
        yield from content.template_is_there(sight.cluster, sight.facts, plan)


def _space(sight: Sight) -> Iterator[Verdict]:
    plans = content.plans(sight.cluster, sight.facts, sight.reached)
    for node in sight.cluster.nodes:
        yield from staging.space(sight.cluster, node, sight.facts[node.name], plans)


def _key(sight: Sight) -> Iterator[Verdict]:
    head = sight.facts[sight.cluster.head.name]
    if access.usable(head):
        yield from api_key.usable(sight.cluster, head)


def _rejected(sight: Sight) -> Iterator[Verdict]:
    """Of a deploy it is asked where the opinion of the engine is: whoever is refused a launch need not hear that."""
    if sight.wanted is not None:
        yield from rejected.refusals(sight.cluster, sight.facts[sight.cluster.head.name], sight.wanted.engine)


CHECKS: tuple[Check, ...] = (
    Check(
        "node.access",
        "Is each node there, a Spark, and open to root without a password?",
        lambda sight: access.access(sight.cluster, sight.facts),
        EVERYWHERE,
        ("SSH-02", "KRN-03", "MEM-17"),
    ),
    Check(
        "rails.stated",
        "Are the stated rails there, nobody else's, and apart from the management network?",
        each(lambda sight, node, seen: rails.can_be_set_up(sight.cluster, node, seen)),
        STAGING,
        ("NET-03", "NET-15", "NET-18"),
    ),
    Check(
        "node.user",
        "Is the name of our user free?",
        each(lambda _, node, seen: staging.user(node, seen)),
        STAGING,
    ),
    Check(
        "docker.answers",
        "Does Docker answer, with the NVIDIA runtime installed?",
        each(lambda _, node, seen: staging.docker(node, seen)),
        EVERYWHERE,
        ("DKR-03",),
    ),
    Check(
        "content.sources",
        "Are weights and drafter here, or to be had?",
        together(_content),
        STAGING,
        ("DKR-07",),
    ),
    Check(
        "disk.space",
        "Is there room for what is to be brought?",
        together(_space),
        STAGING,
        ("DKR-06",),
    ),
    Check(
        "node.ports",
        "Are the ports and the container's name free, or ours?",
        each(lambda sight, node, seen: staging.names_and_ports(sight.cluster, node, seen)),
        STARTING,
        ("CFG-04",),
    ),
    Check(
        "keeper.one",
        "Is the head the only node with a keeper?",
        each(lambda _, node, seen: staging.no_other_keeper(node, seen)),
        STARTING,
    ),
    Check(
        "memory.in-use",
        "Is the memory free that the engine's budget was proven with?",
        each(lambda sight, node, seen: memory.in_use(sight.cluster, node, seen, starts=sight.starts)),
        STARTING,
        ("MEM-04", "MEM-05", "MEM-09"),
    ),
    Check(
        "memory.swap",
        "Is there swap enough for weights that are read through the page cache?",
        each(lambda sight, node, seen: memory.swap(sight.cluster, node, seen)),
        STARTING,
        ("MEM-06",),
    ),
    Check("api.key-usable", "Can the API key that is stored be used?", _key, STARTING),
    Check(
        "head.tools",
        "Has the head what it reaches the workers with?",
        together(lambda sight: staging.tools(sight.cluster, sight.facts)),
        STARTING,
    ),
    Check(
        "node.host-keys",
        "Is each worker's ssh host key known, so that it can be pinned?",
        together(lambda sight: staging.host_keys(sight.cluster, sight.facts)),
        STARTING,
        ("SSH-02",),
    ),
    Check(
        "nfs.possible",
        "Where weights come over NFS, can they?",
        together(lambda sight: nfs.can_be_set_up(sight.cluster, sight.facts)),
        STARTING,
    ),
    Check(
        "launch.rejected",
        "Is the wanted launch none that the keeper has rejected?",
        together(_rejected),
        frozenset({When.DOCTOR}),
    ),
)
