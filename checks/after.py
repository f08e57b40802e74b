"""Whether the nodes are what was asked for, and the pair runs what was asked for: for verify, and for doctor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from checks import api_key, converged, deep, image, memory, nfs, rails
from checks.check import Check, Sight, Wanted, When, each, together
from checks.verdict import Verdict, unknown
from facts.values import NodeFacts, Unknown
from spec.cluster import Node

RUNS = frozenset({When.VERIFY, When.DOCTOR})


def _as_wanted(
    judge: Callable[[Sight, Wanted, Node, NodeFacts], Iterable[Verdict]],
) -> Callable[[Sight], Iterator[Verdict]]:
    """About each node, against what is wanted there."""

    def judged(sight: Sight) -> Iterator[Verdict]:
        if sight.wanted is not None:
            for name, facts in sight.usable():
                yield from judge(sight, sight.wanted, sight.cluster.node(name), facts)

    return judged


def _is_known(sight: Sight) -> Iterator[Verdict]:
    """Files and launches name the rails of all nodes."""
    for node in sight.cluster.nodes:
        if not node.rails and not sight.whole:
            reason = Unknown("the inventory states none, and the nodes cannot be asked together")
            yield unknown(node.name, "its rails, and so what is wanted of the pair,", reason)


def _ranks(sight: Sight) -> Iterator[Verdict]:
    there = {name for name, _ in sight.usable()}
    if sight.wanted is not None:
        for verdict in converged.ranks_run(sight.cluster, sight.facts, sight.wanted.engine):
            if verdict.where in there:
                yield verdict


def _keeper(sight: Sight) -> Iterator[Verdict]:
    head, wanted = sight.cluster.head, sight.wanted
    for name, seen in sight.usable():
        if name == head.name and wanted is not None:
            yield from converged.keeper_agrees(head, seen, wanted.code, wanted.service, wanted.engine)


def _key(sight: Sight) -> Iterator[Verdict]:
    for name, seen in sight.usable():
        if name == sight.cluster.head.name:
            yield from api_key.kept(sight.cluster, seen)


CHECKS: tuple[Check, ...] = (
    Check(
        "rails.in-force",
        "Has each rail its address, its MTU, a carrier and the GID that RDMA needs?",
        each(lambda sight, node, seen: rails.are_set_up(sight.cluster, node, seen)),
        RUNS,
        ("NET-09", "NET-17", "GID-02", "GID-03", "GID-05"),
    ),
    Check("pair.wanted", "Is it known what is wanted on every node?", _is_known, RUNS),
    Check(
        "node.files",
        "Are the files, programs and units there as wanted?",
        _as_wanted(
            lambda sight, wanted, node, seen: converged.installed(node, seen, wanted.files[node.name], wanted.programs)
        ),
        RUNS,
    ),
    Check(
        "memory.recorded",
        "Is memory recorded, and the login protected as asked?",
        _as_wanted(lambda sight, wanted, node, seen: memory.watched(sight.cluster, node, seen, wanted.code)),
        RUNS,
        ("MEM-10", "MEM-14"),
    ),
    Check(
        "image.layers",
        "Has every node the same image, to the layer?",
        together(lambda sight: image.image_layers(sight.cluster, sight.facts)),
        RUNS,
        ("DKR-05", "DKR-06"),
    ),
    Check(
        "content.agrees",
        "Has every node the same weights and drafter?",
        together(lambda sight: converged.weights_agree(sight.cluster, sight.facts)),
        RUNS,
    ),
    Check(
        "nfs.serves",
        "Are weights over NFS served and mounted as wanted?",
        together(lambda sight: nfs.statements(sight.cluster, sight.facts)),
        RUNS,
    ),
    Check(
        "content.deep",
        "What did the last deep check find?",
        each(lambda sight, node, seen: deep.checked(sight.cluster, node, seen)),
        RUNS,
    ),
    Check("pair.ranks", "Does each node run its rank of the wanted launch?", _ranks, RUNS),
    Check("pair.keeper", "Does the keeper run, and call the pair running?", _keeper, RUNS, ("HW-07",)),
    Check("api.key-kept", "Is the API key there, and root's alone?", _key, RUNS),
)
