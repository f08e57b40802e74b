"""Weights: the same files on every node, proven by a manifest made once, copied over the rail where they lack."""

from __future__ import annotations

from pyinfra.api.deploy import deploy

from checks import content
from checks.content import Plan, Step
from facts.values import item
from node.content import manifest_name
from node.paths import PROGRAM
from operations.core import Commands, fail, is_executing, node_operation, noop
from operations.run import Run
from operations.units import carry_out, start, stop
from spec.cluster import Node

HASH_UNIT = "sparkpair-weights-hash"
SERVE_UNIT = "sparkpair-weights-serve"
COPY_UNIT = "sparkpair-weights-copy"
PROPERTIES = ("MemoryMax=1G", "Nice=10", "IOSchedulingClass=best-effort", "IOSchedulingPriority=7")
LONGEST_COPY = "RuntimeMaxSec=24h"


@deploy("Weights")
def weights(run: Run) -> None:
    """Manifests where files are, then copies to where they are not; a row ends on all nodes before the next begins."""
    record_manifests(name="Record the manifest of the weights", run=run)
    serve_weights(name="Start serving the weights on the rails", run=run)
    copy_weights(name="Copy the weights over the rail", run=run)
    stop_serving(name="Stop serving the weights", run=run)


@node_operation
def record_manifests(run: Run) -> Commands:
    """Hash what is here and has no manifest that holds."""
    paths = [plan.paths[run.node.name] for plan in _plans(run) if plan.steps[run.node.name] is Step.HASH]
    if not paths:
        noop("the manifests hold")
        return
    yield from carry_out(
        HASH_UNIT, "Sparkpair: record the manifest of the weights", [*PROGRAM, "weights", "hash", *paths], PROPERTIES
    )


@node_operation
def serve_weights(run: Run) -> Commands:
    """Serve what another node lacks, read-only, to that node's rail addresses, until the copy is done."""
    mine = [plan for plan in _plans(run) if plan.source == run.node.name and Step.COPY in plan.steps.values()]
    if not mine:
        noop("every node has the weights")
        return
    argv = [*PROGRAM, "weights", "serve"]
    for rail in run.node.rails:
        argv += ["--address", str(rail.ip)]
    for peer in run.cluster.peers(run.node):
        for rail in peer.rails:
            argv += ["--peer", str(rail.ip)]
    argv += [f"{plan.name}={plan.paths[run.node.name]}" for plan in mine]
    yield start(SERVE_UNIT, "Sparkpair: serve the weights to the peer", argv, [*PROPERTIES, LONGEST_COPY])


@node_operation
def copy_weights(run: Run) -> Commands:
    """Bring here what is missing; goes on where an earlier copy stopped."""
    plans = _plans(run)
    mine = [plan for plan in plans if plan.steps[run.node.name] is Step.COPY]
    if is_executing():
        _refuse_differences(plans)
    if not mine:
        noop("the weights are here")
        return
    for name in sorted({str(plan.source) for plan in mine}):
        argv = copy_argv(run.cluster.node(name), run.node, [plan for plan in mine if plan.source == name])
        yield from carry_out(COPY_UNIT, "Sparkpair: copy the weights here", argv, [*PROPERTIES, LONGEST_COPY])


@node_operation
def stop_serving(run: Run) -> Commands:
    """The daemon is there only while somebody copies."""
    unit = item(run.seen().units, f"{SERVE_UNIT}.service", "its units")
    needed = any(plan.source == run.node.name and Step.COPY in plan.steps.values() for plan in _plans(run))
    if not unit.is_active and (is_executing() or not needed):
        noop("the weights are not being served")
        return
    yield stop(SERVE_UNIT)


def copy_argv(source: Node, node: Node, plans: list[Plan]) -> list[str]:
    """The node's own program, told the rails by which it reaches the source, in order, and what to bring."""
    argv = [*PROGRAM, "weights", "copy", "--owner", node.user]
    for theirs, ours in zip(source.rails, node.rails, strict=True):
        argv += ["--source", f"{theirs.ip}@{ours.netdev}"]
    return argv + [
        f"{plan.name}={manifest_name(plan.paths[source.name])}={plan.identity}={plan.paths[node.name]}"
        for plan in plans
    ]


def _plans(run: Run) -> list[Plan]:
    plans = content.plans(run.cluster, run.all_seen())
    for plan in plans:
        if not plan.steps:
            raise fail("\n".join(verdict.text().strip() for verdict in plan.refusals))
    return plans


def _refuse_differences(plans: list[Plan]) -> None:
    """What preflight could not see yet: files of equal names and sizes whose manifests, just made, differ."""
    wrong = [verdict for plan in plans for verdict in plan.refusals]
    if wrong:
        raise fail("\n".join(verdict.text().strip() for verdict in wrong))
