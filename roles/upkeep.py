"""Upkeep: what is done on a node from time to time without a deploy."""

from __future__ import annotations

from pyinfra.api.command import StringCommand
from pyinfra.api.deploy import deploy

from checks import pair
from checks.host import identity_text
from checks.pair import Todo
from facts.values import Unknown, UnknownFact, item
from operations import wanted
from operations.core import Commands, is_executing, node_operation, noop
from operations.files import put
from operations.run import Run
from spec import objects
from spec.render import upkeep_text


@deploy("Upkeep")
def upkeep(run: Run) -> None:
    """The deep check, and the timer that starts it."""
    install_unit(name=f"Install {objects.DEEP_UNIT}", run=run, unit=objects.DEEP_UNIT)
    install_unit(name=f"Install {objects.DEEP_TIMER}", run=run, unit=objects.DEEP_TIMER)
    start_timer(name=f"Start {objects.DEEP_TIMER}", run=run)


@node_operation
def install_unit(run: Run, unit: str) -> Commands:
    """The unit's file, and systemd told of it. A check that is at work goes on."""
    yield from put(run, f"{objects.UNIT_DIRECTORY}/{unit}", upkeep_text(unit, run.node), "644")
    if item(run.seen().units, unit, "its units").needs_reload:
        yield StringCommand("systemctl daemon-reload")


@node_operation
def start_timer(run: Run) -> Commands:
    """Due from now on, over reboots too."""
    now = item(run.seen().units, objects.DEEP_TIMER, "its units")
    if now.is_active and now.file_state == "enabled":
        noop(f"{objects.DEEP_TIMER} is active and enabled")
        return
    yield StringCommand("systemctl enable --quiet --now", objects.DEEP_TIMER)


@deploy("Upkeep")
def good_host(run: Run) -> None:
    """The last row of all: what the pair was good with is kept when it is known to be."""
    keep_good_host(name="Keep which kernel, driver and firmware are good", run=run)


@node_operation
def keep_good_host(run: Run) -> Commands:
    """Written after the pair has passed its gates with them: a deploy that fails, or that finds the pair at rest, keeps
    what was good before (field reports: KRN-02)."""
    seen = run.seen()
    if isinstance(seen.host.kernel, Unknown):
        noop("its kernel is not known")
    elif _is_good(run):
        yield from put(run, objects.GOOD_HOST, identity_text(seen), "644")
    else:
        noop("the pair is not known to be good")


def _is_good(run: Run) -> bool:
    """Whether the pair runs what is wanted and passed its gates; in a plan also whether it may do so by then."""
    head = run.seen(run.cluster.head)
    try:
        status, engine = pair.status_of(head), wanted.engine(run)
        if status is not None and engine is not None and (status.phase, status.accepted) == ("running", engine):
            return status.last_good == engine
        return not is_executing() and pair.todo(pair.accepted(head), engine) is not Todo.NOTHING
    except UnknownFact:
        return False
