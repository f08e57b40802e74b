"""Preflight: every refusal at once, before anything is changed; then the deploy lock."""

from __future__ import annotations

from collections.abc import Mapping

from checks import access, content, rejected
from checks import preflight as checked
from checks.verdict import Verdict, failures
from facts.values import NodeFacts, UnknownFact
from operations import bundle, image, opinion, staging, wanted
from operations.preflight import refuse
from operations.run import Run
from operations.sight import starts


def preflight(run: Run) -> None:
    """Raise DeployError with all that forbids a deploy."""
    refuse(
        run,
        lambda facts: [
            *checked.refusals(run.cluster, facts, _reached(run, facts), starts=starts(run), talk=run.talk),
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
            *checked.staging_refusals(run.cluster, facts, _reached(run, facts), talk=run.talk),
            *image.refusals(run),
            *bundle.refusals(run),
        ],
    )


def preflight_removal(run: Run) -> None:
    """Raise DeployError with all that forbids to remove what nothing needs."""
    refuse(run, lambda facts: failures(access.access(run.cluster, facts)))


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
