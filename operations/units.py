"""Long work in transient systemd units: started once, followed by whoever deploys, not ended by a deploy that dies."""

from __future__ import annotations

import hashlib
import shlex
import time
from collections.abc import Sequence
from typing import Any

from pyinfra import logger
from pyinfra.api.command import FunctionCommand, StringCommand
from pyinfra.api.host import Host
from pyinfra.api.state import State

from facts.values import ACTIVE
from operations.core import Commands, callback

POLL_SECONDS = 1.0
QUIET_POLL_SECONDS = 5.0
LAST_LINES = 12
DESCRIPTION = "systemctl show --property=Description --value"


def carry_out(unit: str, description: str, argv: Sequence[str], properties: Sequence[str] = ()) -> Commands:
    """Follow the unit to its end, starting it unless it is at this very work already. Other work that an earlier
    deploy began in it is ended: nobody wants it any more, and it goes on where it stopped if somebody ever does."""
    yield start(unit, description, argv, properties)
    yield FunctionCommand(follow, (unit,), {})


def let_finish(unit: str, description: str, argv: Sequence[str]) -> FunctionCommand:
    """Wait for other work that an earlier deploy began in the unit: for what would begin anew if it were ended."""
    return FunctionCommand(outlast, (unit, _told_apart(description, argv)), {})


def start(unit: str, description: str, argv: Sequence[str], properties: Sequence[str] = ()) -> StringCommand:
    """The command that starts the unit; one that is at this work is left alone, any other is replaced."""
    told = _told_apart(description, argv)
    run = ["systemd-run", "--quiet", f"--unit={unit}", f"--description={told}"]
    run += [f"--property={text}" for text in properties] + ["--", *argv]
    name = shlex.quote(f"{unit}.service")
    return StringCommand(
        f"if {_is_at(name, told)}; then :;"
        f" else systemctl stop {name} 2>/dev/null; systemctl reset-failed {name} 2>/dev/null; {shlex.join(run)}; fi"
    )


def end_other(unit: str, description: str, argv: Sequence[str]) -> StringCommand:
    """The command that ends the unit unless it is at this work: before what its end would take away is laid down."""
    name = shlex.quote(f"{unit}.service")
    return StringCommand(f"{_is_at(name, _told_apart(description, argv))} || systemctl stop {name} 2>/dev/null || true")


def _is_at(name: str, told: str) -> str:
    """The shell's question whether a unit runs and is at the work that is told apart so."""
    return f'systemctl is-active --quiet {name} && [ "$({DESCRIPTION} {name})" = {shlex.quote(told)} ]'


def _told_apart(description: str, argv: Sequence[str]) -> str:
    """The description by which a later deploy knows whether the unit does what it would have it do."""
    return f"{description} [{hashlib.sha256(shlex.join(argv).encode()).hexdigest()[:8]}]"


@callback
def outlast(state: State, host: Host, unit: str, told: str) -> bool:
    """Wait while the unit is at other work, however that ends."""
    del state
    name = shlex.quote(f"{unit}.service")
    look = StringCommand(f"systemctl show --property=ActiveState --value {name}; {DESCRIPTION} {name}")
    said = False
    while True:
        ok, output = host.run_shell_command(look, _sudo=True)
        if not ok or not output.stdout_lines:
            host.log_styled(f"{unit} could not be asked: {output.stderr}", fg="red", log_func=logger.error)
            return False
        active, *does = output.stdout_lines
        if active not in (*ACTIVE, "deactivating") or does == [told]:
            return True
        if not said:
            host.log(f"waiting for what an earlier deploy began: {' '.join(does)}")
            said = True
        time.sleep(POLL_SECONDS)


@callback
def follow(state: State, host: Host, unit: str) -> bool:
    """Tell what the unit says until it ends; False, with its last lines, if it failed."""
    del state
    name = shlex.quote(f"{unit}.service")
    # A unit that ended well is gone, and with it the id of its invocation.
    look = (
        f"systemctl show --property=ActiveState --value {name};"
        f" id=$(systemctl show --property=InvocationID --value {name});"
        ' [ -z "$id" ] || journalctl --quiet _SYSTEMD_INVOCATION_ID=$id --output=cat --lines=1 --no-pager'
    )
    said, began = "", time.monotonic()
    while True:
        ok, output = host.run_shell_command(StringCommand(look), _sudo=True)
        if not ok or not output.stdout_lines:
            host.log_styled(f"{unit} could not be asked: {output.stderr}", fg="red", log_func=logger.error)
            return False
        active, *lines = output.stdout_lines
        if lines and lines[-1] != said:
            said = lines[-1]
            host.log(said)
        if active not in (*ACTIVE, "deactivating"):
            break
        time.sleep(POLL_SECONDS if time.monotonic() - began < 30 else QUIET_POLL_SECONDS)
    if active == "failed":
        # Of this run of it alone, the manager's words on it included: an earlier one failed of something else.
        told = (
            f"id=$(systemctl show --property=InvocationID --value {name}); journalctl --quiet"
            f" _SYSTEMD_INVOCATION_ID=$id + INVOCATION_ID=$id --output=cat --lines={LAST_LINES} --no-pager"
        )
        _, log = host.run_shell_command(StringCommand(told), _sudo=True)
        host.log_styled(f"{unit} failed; its last lines:", fg="red", log_func=logger.error)
        for text in log.stdout_lines:
            host.log_styled(f"  {text}", fg="red", log_func=logger.error)
        return False
    return True


def stop(unit: str) -> StringCommand:
    """The command that stops a unit; one that has ended is fine."""
    return StringCommand("systemctl stop", shlex.quote(f"{unit}.service"))


def shell(argv: Sequence[str], **arguments: Any) -> StringCommand:
    """A command from its words."""
    return StringCommand(shlex.join(argv), **arguments)
