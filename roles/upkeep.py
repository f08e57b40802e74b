"""Upkeep: what is done on a node from time to time without a deploy."""

from __future__ import annotations

from pyinfra.api.command import StringCommand
from pyinfra.api.deploy import deploy

from facts.values import item
from operations.core import Commands, node_operation, noop
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
