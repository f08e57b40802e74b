"""The keeper's progress for whoever waits for a pair, and what became of it."""

from __future__ import annotations

from pyinfra import logger
from pyinfra.api.host import Host
from pyinfra.api.state import State

from checks import pair, rejected
from facts.node import forget
from operations.core import callback
from operations.run import Run
from operations.units import shell
from spec import objects

MARGIN_SECONDS = 120
told: list[str] = []
"""What was said of launches that were rejected in this run; config.py ends the run with another word then."""


@callback
def follow(state: State, host: Host, run: Run, engine: str | None) -> bool:
    """Tell the keeper's progress; False, with both ranks' last lines, when this launch does not get up."""
    del state
    timeout = run.cluster.knobs.ready_timeout_seconds + MARGIN_SECONDS
    argv = [objects.CLI, "follow", "--timeout", str(timeout), *(["--engine", engine] if engine else [])]
    ok, _ = host.run_shell_command(shell(argv), _sudo=True, print_output=True)
    if not ok:
        forget(host)
        status = pair.status_of(run.seen())
        why = rejected.outcome(status, engine) if status else "the pair does not serve; the keeper does not answer"
        text = f"{why}. More: sudo sparkpair status; docs/troubleshooting.md"
        if status and engine in status.rejected:
            told.append(text)
        host.log_styled(text, fg="red", log_func=logger.error)
    return bool(ok)
