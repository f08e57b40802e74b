"""Preflight: every refusal at once, before anything is changed; then the deploy lock."""

from __future__ import annotations

from collections.abc import Mapping

from checks import access, content, pair, rejected
from checks import preflight as checked
from checks.verdict import Verdict, failures
from facts.values import NodeFacts, UnknownFact
from operations import bundle, image, opinion, staging, wanted
from operations.preflight import refuse
from operations.run import Run


def preflight(run: Run) -> None:
    """Raise DeployError with all that forbids a deploy."""
    refuse(
        run,
        lambda facts: [
            *checked.refusals(run.cluster, facts, _reached(run, facts), starts=_starts(run, facts)),
            *image.refusals(run),
            *bundle.refusals(run),
            # Nobody is asked about a launch that was tried.
            *(_rejected(run, facts) or opinion.refusals(run)),
        ],
    )


def preflight_staging(run: Run) -> None:
    """Raise DeployError with all that forbids to bring files and image here; what runs meanwhile is none of that."""
    refuse(
        run,
        lambda facts: [
            *checked.staging_refusals(run.cluster, facts, _reached(run, facts)),
            *image.refusals(run),
            *bundle.refusals(run),
        ],
    )


def preflight_removal(run: Run) -> None:
    """Raise DeployError with all that forbids to remove what nothing needs."""
    refuse(run, lambda facts: failures(access.access(run.cluster, facts)))


def _starts(run: Run, facts: Mapping[str, NodeFacts]) -> bool:
    """Whether this deploy starts the pair, or starts it anew. What is not known may well do that."""
    try:
        now = pair.accepted(facts[run.cluster.head.name])
        # Without one of the nodes the wanted hash is not known, and it is refused in any case.
        engine = wanted.engine(run) if all(access.usable(seen) for seen in facts.values()) else now.engine
        return pair.todo(now, engine) is not pair.Todo.NOTHING
    except UnknownFact:
        return True


def _rejected(run: Run, facts: Mapping[str, NodeFacts]) -> list[Verdict]:
    if not all(access.usable(seen) for seen in facts.values()):
        return []  # refused already
    try:
        engine = wanted.engine(run)
    except UnknownFact:
        return []  # whoever needs that fact says so
    return list(rejected.refusals(run.cluster, facts[run.cluster.head.name], engine))


def _reached(run: Run, facts: Mapping[str, NodeFacts]) -> content.Reached | None:
    """What keeps each node from the hub, asked where it matters."""
    if not all(access.usable(seen) for seen in facts.values()):
        return None
    return staging.reached(run) if content.must_ask(content.plans(run.cluster, facts)) else None
