"""Preflight: every refusal at once, before anything is changed; then the deploy lock."""

from __future__ import annotations

from pyinfra.api.exceptions import DeployError

from checks import access
from checks.preflight import refusals
from operations import lock, opinion
from operations.run import Run


def preflight(run: Run) -> None:
    """Raise DeployError with all that forbids this run."""
    facts = run.all_seen()
    if lock.is_real_run() and access.usable(facts[run.cluster.head.name]):
        other = lock.claim(run.hosts[run.cluster.head.name])
        if other:
            raise DeployError(f"Preflight refused; no node was changed.\n  {other}")
    found = [*refusals(run.cluster, facts), *opinion.refusals(run)]
    if found:
        lines = "\n".join(verdict.text() for verdict in found)
        raise DeployError(f"Preflight refused; no node was changed.\n{lines}")
