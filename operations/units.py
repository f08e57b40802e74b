"""Long work in transient systemd units: started once, followed by whoever deploys, not ended by a deploy that dies."""

from __future__ import annotations

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

PROGRAM = ("/usr/bin/python3", "-sEB", "/usr/local/lib/sparkpair/main.py")
POLL_SECONDS = 1.0
QUIET_POLL_SECONDS = 5.0
LAST_LINES = 12


def carry_out(unit: str, description: str, argv: Sequence[str], properties: Sequence[str] = ()) -> Commands:
    """Start the unit unless it is at work already, and follow it to its end."""
    yield start(unit, description, argv, properties)
    yield FunctionCommand(follow, (unit,), {})


def start(unit: str, description: str, argv: Sequence[str], properties: Sequence[str] = ()) -> StringCommand:
    """The command that starts the unit; one that is active is left alone, one that failed is forgotten first."""
    run = ["systemd-run", "--quiet", f"--unit={unit}", f"--description={description}"]
    run += [f"--property={text}" for text in properties] + ["--", *argv]
    name = shlex.quote(f"{unit}.service")
    return StringCommand(
        "systemctl is-active --quiet", name, "|| { systemctl reset-failed", name, "2>/dev/null;", shlex.join(run), "; }"
    )


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
        _, log = host.run_shell_command(
            StringCommand(f"journalctl --quiet --unit={name} --output=cat --lines={LAST_LINES} --no-pager"), _sudo=True
        )
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
