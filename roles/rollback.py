"""Rollback: the pair returns to a generation that passed its gates. The keeper does it; this asks and follows."""

from __future__ import annotations

from collections.abc import Mapping

from pyinfra.api.command import FunctionCommand
from pyinfra.api.deploy import deploy
from pyinfra.api.host import Host
from pyinfra.api.state import State

from checks import access, generations, pair
from checks.rejected import short
from checks.verdict import Verdict, failures
from facts.values import KeptGeneration, NodeFacts
from operations import generations as held
from operations.core import Commands, node_operation, noop
from operations.follow import follow
from operations.preflight import refuse
from operations.run import Run
from operations.units import shell
from spec import objects


def preflight_rollback(run: Run) -> KeptGeneration:
    """The generation to return to. Raise DeployError with all that forbids it."""
    chosen: list[KeptGeneration] = []

    def judge(facts: Mapping[str, NodeFacts]) -> list[Verdict]:
        wrong = failures(access.access(run.cluster, facts))
        if wrong:
            return wrong
        to = generations.choose(run.cluster, facts[run.cluster.head.name])
        if isinstance(to, Verdict):
            return [to]
        chosen.append(to)
        return failures(held.refusals(run, to))

    refuse(run, judge)
    return chosen[0]


@deploy("Rollback")
def rollback(run: Run, to: KeptGeneration) -> None:
    """One row, which interrupts serving."""
    take_back(name=f"Return the pair to generation {short(to.engine)}, which interrupts serving", run=run, to=to)


@node_operation
def take_back(run: Run, to: KeptGeneration) -> Commands:
    """Ask the keeper, and follow it until the pair answers; it finishes even if this run dies."""
    if not run.node.is_head:
        noop("the keeper is on the head")
        return
    status = pair.status_of(run.seen())
    if status is not None and status.accepted == to.engine:
        noop(f"the pair is held to generation {short(to.engine)} already")
        return
    yield shell([objects.CLI, "rollback", to.engine])
    yield FunctionCommand(follow, (run, to.engine), {})
    yield FunctionCommand(tell, (), {})


def tell(state: State, host: Host) -> bool:
    """What the operator has to do next."""
    del state
    host.log(
        "The settings still make the launch that was left: a deploy refuses it until one of them is changed, or "
        "retry_rejected names it"
    )
    return True
