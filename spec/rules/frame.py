"""The rules that span knobs and nodes: each once, with its severity, its reason and where the reason comes from.

An error is what the engine refuses or what wedges a node; a warning is what a published configuration does all the
same, or what costs something that the operator may not have meant. docs/rules.md is generated from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import Enum

from spec.cluster import Settings
from spec.knobs import KNOBS, shown
from spec.presets import values_of

KIT = "reference kit v2.3-tier1"
FIELD = "field reports"


class Severity(Enum):
    """What a breach means for a run."""

    ERROR = "refused"
    WARNING = "told"


Breaches = Callable[[Settings], Iterator[str]]


@dataclass(frozen=True)
class Rule:
    """One cross rule: it yields a line per breach, complete in itself, with the fix. It is not asked while a knob that
    it reads was refused by itself, so that one mistake gives one line; nor of another stack than `only`."""

    id: str
    severity: Severity
    title: str
    why: str
    source: str
    reads: frozenset[str]
    only: str | None
    breaches: Breaches


RULES: dict[str, Rule] = {}


def _register(
    severity: Severity, id: str, title: str, why: str, source: str, reads: tuple[str, ...], only: str | None
) -> Callable[[Breaches], Breaches]:
    def register(breaches: Breaches) -> Breaches:
        unknown = set(reads) - set(KNOBS)
        if unknown or id in RULES:
            raise TypeError(f"rule {id} reads {unknown}, which are no knobs" if unknown else f"two rules {id}")
        RULES[id] = Rule(id, severity, title, why, source, frozenset(reads), only, breaches)
        return breaches

    return register


def error(
    id: str, title: str, why: str, source: str = "", reads: tuple[str, ...] = (), only: str | None = None
) -> Callable[[Breaches], Breaches]:
    """Declare a rule whose breach is refused. Raises TypeError for an id that is there, or a knob that is none."""
    return _register(Severity.ERROR, id, title, why, source, reads, only)


def warning(
    id: str, title: str, why: str, source: str = "", reads: tuple[str, ...] = (), only: str | None = None
) -> Callable[[Breaches], Breaches]:
    """Declare a rule whose breach is told, and forbids nothing."""
    return _register(Severity.WARNING, id, title, why, source, reads, only)


def broken(settings: Settings, severity: Severity, refused: Collection[str] = ()) -> list[str]:
    """A line for each breach of that severity. `refused` names knobs whose stated value is refused already; they stand
    unset in the settings."""
    return [
        line
        for rule in RULES.values()
        if rule.severity is severity and rule.reads.isdisjoint(refused) and rule.only in (None, settings.stack.name)
        for line in rule.breaches(settings)
    ]


def left_out(settings: Settings, name: str) -> str:
    """The fix that brings a knob of the stack's back to its default: to leave it out, unless a preset states it too."""
    if name in values_of(settings.knobs.preset):
        return f"set {name} = {shown(settings.stack.defaults[name])}"
    return f"leave {name} out"


def said(settings: Settings, name: str) -> str:
    """`knob = value` of the effective value, and where it comes from if nobody stated it."""
    text = f"{name} = {shown(getattr(settings.effective, name))}"
    if getattr(settings.knobs, name) is not None:
        return text
    if name in values_of(settings.knobs.preset):
        return f"{text} (preset {settings.knobs.preset})"
    return f"{text} (the stack's default)"
