"""Launches that the keeper has rejected: a deploy does not hand one over a second time unless it is told to."""

from __future__ import annotations

import re
from collections.abc import Iterator

from checks import pair
from checks.verdict import Verdict, broken
from facts.values import NodeFacts, Rejection, Status, UnknownFact
from spec.cluster import Cluster

SHOWN = 12
"""Digits by which people are told one launch from another."""
NUMBER = re.compile(r"0[0-9]*|[0-9]+e[0-9]+")
AT_REST = ("resting", "empty")


def short(engine: str | None) -> str:
    """An engine hash for a person; with more digits where --data would read these as a number, and change them."""
    if not engine:
        return "one that is not known yet"
    shown = SHOWN
    while shown < len(engine) and NUMBER.fullmatch(engine, 0, shown):
        shown += 1
    return engine[:shown]


def rejection(head: NodeFacts, engine: str | None) -> Rejection | None:
    """Why this launch is not to be handed over; None where it may be, or where the pair is up with it."""
    status = _status(head)
    if status is None or engine is None:
        return None
    if status.accepted == engine and status.phase not in AT_REST:
        return None
    return status.rejected.get(engine)


def is_retried(cluster: Cluster, engine: str | None) -> bool:
    """Whether the operator wants this very launch tried once more."""
    named = cluster.knobs.retry_rejected
    return bool(named) and engine is not None and engine.startswith(str(named))


def refusals(cluster: Cluster, head: NodeFacts, engine: str | None) -> Iterator[Verdict]:
    """The wanted launch was rejected, and nothing has changed since."""
    found = rejection(head, engine)
    if found is None or is_retried(cluster, engine):
        return
    yield broken("", statement(engine, found), remedy(engine))


def statement(engine: str | None, found: Rejection) -> str:
    """Which launch was rejected, when and why."""
    return f"launch {short(engine)} was rejected on {day(found.time)}: {found.reason}"


def remedy(engine: str | None) -> str:
    """What may be done with a launch that was rejected."""
    return (
        "change a setting. Its last lines: sudo sparkpair status --json on the head.\n"
        f"To have it tried once more as it is: --data retry_rejected={short(engine)}"
    )


def outcome(status: Status, engine: str | None) -> str:
    """What became of a launch that was handed over and does not serve."""
    found = status.rejected.get(engine or "")
    now = f"{status.phase}: {status.reason}" if status.reason else status.phase
    if found is None:
        return f"the pair does not serve; it is {now if status.reason else f'{status.phase}: {status.last_failure}'}"
    told = f"launch {short(engine)} was rejected: {found.reason}"
    if status.accepted in (None, engine):
        became = f"No generation is there to return to; the pair is {now}"
    elif status.phase == "running":
        became = f"Generation {short(status.accepted)}, the last that passed its gates, serves again"
    else:
        became = f"The pair returns to generation {short(status.accepted)} and is {now}"
    return f"{told}. {became}. The same settings are refused from now on: change one before you deploy again"


def day(time: str) -> str:
    """A time of the head's clock for a person: to the minute, without the zone."""
    return time[:16].replace("T", " ") or "a day that is not known"


def remarks(cluster: Cluster, head: NodeFacts, engine: str | None) -> Iterator[str]:
    """A request to try a launch again that is of no effect."""
    named = cluster.knobs.retry_rejected
    if not named:
        return
    status = _status(head)
    if status is None:
        return  # an earlier word of the keeper is not there to compare with
    if not any(other.startswith(str(named)) for other in status.rejected):
        yield f"retry_rejected = {named} names no launch that was rejected, and is of no effect"
    elif engine is not None and not is_retried(cluster, engine):
        yield f"retry_rejected = {named} is not the launch of these settings, {short(engine)}, and is of no effect"


def _status(head: NodeFacts) -> Status | None:
    """The keeper's word, where it can be had: without it the keeper itself refuses at the hand-over."""
    try:
        return pair.status_of(head)
    except UnknownFact:
        return None
