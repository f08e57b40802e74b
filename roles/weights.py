"""Weights: the same files on every node, each proven by its digest, brought from wherever they are nearest."""

from __future__ import annotations

import shlex

from pyinfra import logger
from pyinfra.api.command import StringCommand
from pyinfra.api.deploy import deploy

from checks.content import Plan, amount
from checks.sourcing import Share, Way
from facts.values import item
from node import errand
from node.errand import Errand
from node.paths import PROGRAM
from operations import hub, staging
from operations.core import Commands, fail, is_executing, node_operation, noop
from operations.files import write
from operations.run import Run
from operations.units import carry_out, end_other, start, stop
from spec.cluster import Node

HASH_UNIT = "sparkpair-weights-hash"
SERVE_UNIT = "sparkpair-weights-serve"
STAGE_UNIT = "sparkpair-stage"
STAGE_DESCRIPTION = "Sparkpair: bring the weights here"
ERRANDS = "/run/sparkpair"
LONGEST = "RuntimeMaxSec=7d"
"""A download of 164 GiB takes four days at 4 Mbit/s; what takes longer is begun again where it stopped."""


@deploy("Weights")
def weights(run: Run) -> None:
    """Manifests where files are, then what is lacking where they are not, on all nodes at the same time."""
    record_manifests(name="Record the manifest of the weights", run=run)
    hub.install_client(name="Install the download client", run=run, downloads=_downloads)
    serve_weights(name="Start serving the weights on the rails", run=run)
    pull_weights(name="Pull the weights", run=run)
    stop_serving(name="Stop serving the weights", run=run)


@node_operation
def record_manifests(run: Run) -> Commands:
    """Hash what is here, has no manifest that holds, and is not locked."""
    plans = _plans(run)
    paths = [
        plan.paths[run.node.name]
        for plan in plans
        if plan.way(run.node.name) is Way.HASH and not staging.is_for_unit(plan, run.node)
    ]
    if not paths:
        noop("the manifests hold")
        return
    argv = [*PROGRAM, "weights", "hash", *paths]
    yield from carry_out(HASH_UNIT, "Sparkpair: record the manifest of the weights", argv, _properties(run))


@node_operation
def serve_weights(run: Run) -> Commands:
    """Serve what peers lack, read-only, to their rail addresses, until all have it."""
    mine = [plan for plan in _plans(run) if plan.serves(run.node.name)]
    if not mine:
        noop("no peer takes weights from here")
        return
    argv = [*PROGRAM, "serve"]
    for rail in run.node.rails:
        argv += ["--address", str(rail.ip)]
    for peer in run.cluster.peers(run.node):
        for rail in peer.rails:
            argv += ["--peer", str(rail.ip)]
    argv += [f"{plan.name}={plan.paths[run.node.name]}" for plan in mine]
    yield start(SERVE_UNIT, "Sparkpair: serve the weights to the peer", argv, [*_properties(run), LONGEST])


@node_operation
def pull_weights(run: Run) -> Commands:
    """Bring here what is lacking, and prove what was not proven; goes on where an earlier run stopped."""
    plans, node = _plans(run), run.node
    mine = [plan for plan in plans if staging.is_for_unit(plan, node)]
    if is_executing():
        _refuse(plans)
    if not mine:
        noop("the weights are here")
        return
    if not is_executing():
        for plan in mine:
            run.host.log_styled(told(plan, node), fg="yellow", log_func=logger.info)
        if not all(plan.files for plan in mine):
            yield "true"  # in the plan only: what is to be copied is not known before it is hashed where it is
            return
    wanted = staging.errand_for(run, node, plans)
    argv = [*PROGRAM, "stage", errand_path(wanted)]
    if wanted.hub is not None and is_executing():
        # First: a staging unit takes the token away when it ends, whoever laid it down.
        yield end_other(STAGE_UNIT, STAGE_DESCRIPTION, argv)
        yield from hub.put_token(run)
    yield write_errand(wanted)
    yield from carry_out(STAGE_UNIT, STAGE_DESCRIPTION, argv, [*_properties(run), LONGEST])


def errand_path(wanted: Errand) -> str:
    """Where the errand lies for its unit."""
    return f"{ERRANDS}/errand-{staging.work(wanted)}.json"


def write_errand(wanted: Errand) -> StringCommand:
    """The command that lays the errand down, and takes away those of before."""
    path = errand_path(wanted)
    command = write(path, errand.text(wanted), "600")
    return StringCommand(
        f"mkdir -p {ERRANDS} && find {ERRANDS} -name 'errand-*.json' ! -path {shlex.quote(path)} -delete &&",
        *command.bits,
        **command.connector_arguments,
    )


@node_operation
def stop_serving(run: Run) -> Commands:
    """The server is there only while somebody copies."""
    unit = item(run.seen().units, f"{SERVE_UNIT}.service", "its units")
    needed = any(plan.serves(run.node.name) for plan in _plans(run))
    if not unit.is_active and (is_executing() or not needed):
        noop("the weights are not being served")
        return
    yield stop(SERVE_UNIT)


def told(plan: Plan, node: Node) -> str:
    """What this node does for one directory, for a person."""
    share = plan.shares[node.name]
    others = " and ".join(name for name in plan.shares if name != node.name)
    return f"{plan.name} in {plan.paths[node.name]}: {_from_where(share, others)}"


def _from_where(share: Share, others: str) -> str:
    rest = amount(share.size - share.fetch_size)
    match share.way:
        case Way.HASH:
            return "every file is hashed, and brought again only if it differs"
        case Way.FETCH:
            return f"{amount(share.size)} from the hub"
        case Way.EXCHANGE:
            return f"{amount(share.fetch_size)} from the hub, {rest} from {others} over the rails"
        case Way.BUNDLE:
            return f"{amount(share.size)} from the bundle in {share.bundle}"
        case Way.COPY:
            return f"{amount(share.size)} from {others} over the rails"
        case Way.NOTHING:
            return "nothing"


def _downloads(run: Run) -> bool:
    """Whether this node is to download, or may have to where a peer or a file fails it."""
    return any(plan.shares[run.node.name].hub for plan in _plans(run) if run.node.name in plan.shares)


def _properties(run: Run) -> list[str]:
    limit = run.cluster.knobs.stage_memory_mib
    return [f"MemoryMax={limit}M", "Nice=10", "IOSchedulingClass=best-effort", "IOSchedulingPriority=7"]


def _plans(run: Run) -> list[Plan]:
    plans = staging.plans(run)
    for plan in plans:
        if not plan.shares:
            raise fail("\n".join(verdict.text().strip() for verdict in plan.refusals))
    return plans


def _refuse(plans: list[Plan]) -> None:
    """What preflight could not see yet: files of equal names and sizes whose manifests, just made, differ."""
    wrong = [verdict for plan in plans for verdict in plan.refusals]
    if wrong:
        raise fail("\n".join(verdict.text().strip() for verdict in wrong))
