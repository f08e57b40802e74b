"""A statement and whether it holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from facts.values import Unknown


@dataclass(frozen=True)
class Verdict:
    """What holds, or what was seen instead and what to do. `holds` is None when it could not be found out. What is only
    `told` does not hold either, and forbids nothing: a deploy says it and goes on."""

    where: str
    statement: str
    holds: bool | None
    fix: str = ""
    told: bool = False

    def text(self) -> str:
        """As a refusal or a failure, indented for the list that it stands in."""
        lines = [f"  {self.where}: {self.statement}" if self.where else f"  {self.statement}"]
        first, *more = self.fix.splitlines() or [""]
        if first:
            lines += [f"    Fix: {first}", *(f"      {line}" for line in more)]
        return "\n".join(lines)


def holds(where: str, statement: str) -> Verdict:
    """A statement that is true."""
    return Verdict(where, statement, True)


def broken(where: str, statement: str, fix: str) -> Verdict:
    """What was seen instead, and the remedy."""
    return Verdict(where, statement, False, fix)


def told(where: str, statement: str, fix: str) -> Verdict:
    """What the operator should know of, and what may be done; nothing is refused for it."""
    return Verdict(where, statement, False, fix, told=True)


def unknown(where: str, what: str, reason: Unknown) -> Verdict:
    """A probe that failed: nobody may go on as if the answer were no."""
    return Verdict(where, f"{what} could not be read: {reason.reason}", None, "make that answer, then run again")


def failures(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Those that do not hold and are more than told, each once."""
    return list(dict.fromkeys(verdict for verdict in verdicts if not verdict.holds and not verdict.told))
