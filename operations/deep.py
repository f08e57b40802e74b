"""The deep check on every node at once, started and followed; what it found is then read like any other fact."""

from __future__ import annotations

import gevent
from pyinfra.api.command import StringCommand
from pyinfra.api.exceptions import DeployError
from pyinfra.context import ctx_state

from facts.node import forget
from facts.values import item
from operations.run import Run
from operations.units import follow
from spec import objects

UNIT = objects.DEEP_UNIT
_SHOW = "systemctl show --value --property"
# One that the timer has started is followed. Else there is an invocation that was not there before as soon as it
# began, however soon it ends.
START = (
    f"systemctl reset-failed {UNIT} 2>/dev/null; "
    f'[ "$({_SHOW}=ActiveState {UNIT})" != activating ] || exit 0; '
    f"before=$({_SHOW}=InvocationID {UNIT}); systemctl start --no-block {UNIT} || exit 1; "
    f'for i in $(seq 100); do [ "$({_SHOW}=InvocationID {UNIT})" = "$before" ] || exit 0; sleep 0.1; done; '
    f"echo {UNIT} did not begin within 10 s >&2; exit 1"
)


def check(run: Run) -> None:
    """Have every byte read again on all nodes, and return when all have ended. Raises DeployError, UnknownFact."""
    lacking = [
        node.name for node in run.cluster.nodes if item(run.seen(node).units, UNIT, "its units").load != "loaded"
    ]
    if lacking:
        raise DeployError(
            f"Deep check refused; no byte was read.\n  {', '.join(lacking)}: no {UNIT} is there\n    Fix: run deploy.py"
        )
    hosts = [run.hosts[node.name] for node in run.cluster.nodes]
    before = {node.name: run.seen(node).deep for node in run.cluster.nodes}
    for host in hosts:
        ok, output = host.run_shell_command(StringCommand(START), _sudo=True)
        if not ok:
            raise DeployError(f"Deep check refused; no byte was read.\n  {host.name}: {output.stderr.strip()}")
    state = ctx_state.get()
    # What it found is stated afterwards, so neither end of it is the end here.
    gevent.joinall(
        [gevent.spawn(follow, state, host, UNIT.removesuffix(".service")) for host in hosts], raise_error=True
    )
    for host in hosts:
        forget(host)
    silent = [name for name, former in before.items() if run.seen(run.cluster.node(name)).deep in (None, former)]
    if silent:
        raise DeployError(
            f"Deep check failed; nothing is known of the bytes.\n  {', '.join(silent)}: it ended without a result\n"
            f"    Fix: see journalctl -u {UNIT} there, then run again"
        )
