"""Every refusal at once, before anything is changed; then the deploy lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyinfra.api.exceptions import DeployError

from checks import access
from checks.verdict import Verdict
from facts.values import NodeFacts
from operations import lock
from operations.run import Run


def refuse(run: Run, judge: Callable[[Mapping[str, NodeFacts]], list[Verdict]]) -> None:
    """Raise DeployError with all that is found of this run. A real one has the deploy lock afterwards."""
    facts = run.all_seen()
    if lock.is_real_run() and access.usable(facts[run.cluster.head.name]):
        other = lock.claim(run.hosts[run.cluster.head.name])
        if other:
            raise DeployError(f"Preflight refused; no node was changed.\n  {other}")
    found = judge(facts)
    if found:
        lines = "\n".join(verdict.text() for verdict in found)
        raise DeployError(f"Preflight refused; no node was changed.\n{lines}")
