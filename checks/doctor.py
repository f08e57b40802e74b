"""What doctor found, for a person and for a program. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from checks.check import Check, Sight, When
from checks.verdict import Verdict, told
from facts.values import Unknown
from spec import objects

Finding = tuple[Check, Verdict]
MARKS = {"holds": "ok     ", "told": "told   ", "broken": "FAILED ", "unknown": "UNKNOWN"}
DEPLOY = "run deploy.py"


@dataclass(frozen=True)
class Effort:
    """What looking at a node took: seconds, and how many commands were run there."""

    seconds: float
    commands: int


@dataclass(frozen=True)
class Report:
    """Everything that was found, and what it took, by node."""

    nodes: tuple[str, ...]
    asked: tuple[Check, ...]
    findings: tuple[Finding, ...]
    effort: Mapping[str, Effort]

    @property
    def verdict(self) -> str:
        """The worst of all: what is told is no fault."""
        kinds = {kind(verdict) for _, verdict in self.findings}
        return next((name for name in ("broken", "unknown") if name in kinds), "holds")


def kind(verdict: Verdict) -> str:
    """In one word."""
    if verdict.told:
        return "told"
    return {True: "holds", False: "broken", None: "unknown"}[verdict.holds]


def is_deployed(sight: Sight) -> bool:
    """Whether anything of ours is on a node that can be looked at. What is not known may well be there."""
    for _, seen in sight.usable():
        if isinstance(seen.trees, Unknown) or seen.trees.get(objects.LIB):
            return True
    return not sight.usable()


def asked(checks: Sequence[Check], sight: Sight) -> tuple[list[Check], list[Finding]]:
    """The checks to ask, and what is said of those that are left out: before the first deploy, those of its result."""
    mine = [check for check in checks if When.DOCTOR in check.when]
    if is_deployed(sight):
        return mine, []
    result = [check for check in mine if When.VERIFY in check.when and When.PREFLIGHT not in check.when]
    fresh = Check("pair.deployed", "Is Sparkpair deployed?", lambda _: (), frozenset({When.DOCTOR}))
    statement = f"nothing is deployed yet, so {len(result)} questions about it were not asked"
    return [check for check in mine if check not in result], [(fresh, told("", statement, DEPLOY))]


def lines(report: Report) -> Iterator[str]:
    """Grouped by node, those that span the nodes last; the remedy under what does not hold."""
    for place in (*report.nodes, ""):
        here = [(check, verdict) for check, verdict in report.findings if _place(report, verdict) == place]
        if place:
            yield f"{place}{_effort(report.effort.get(place))}"
        elif here:
            yield "the pair"
        seen = set()
        for check, verdict in here:
            if verdict in seen:
                continue
            seen.add(verdict)
            statement = verdict.statement if verdict.where in ("", place) else f"{verdict.where}: {verdict.statement}"
            yield f"  {MARKS[kind(verdict)]} {check.name}: {statement}"
            first, *more = verdict.fix.splitlines() or [""]
            if first and not verdict.holds:
                yield f"          Fix: {first}"
                yield from (f"            {line}" for line in more)
    yield summary(report)


def summary(report: Report) -> str:
    """The numbers, in one line."""
    counts = _counts(report)
    parts = [f"{counts['holds']} hold"]
    parts += [f"{counts['broken']} do not"] if counts["broken"] else []
    parts += [f"{counts['unknown']} are not known"] if counts["unknown"] else []
    parts += [f"{counts['told']} are only told"] if counts["told"] else []
    statements = sum(counts.values())
    return f"{len(report.asked)} questions, {statements} statements: {', '.join(parts)}."


def document(report: Report) -> dict[str, object]:
    """One JSON document (docs/operations.md). A check of which nothing was said found nothing against its question."""
    by_check: dict[str, list[Verdict]] = {check.name: [] for check in report.asked}
    checks = {check.name: check for check in report.asked}
    for check, verdict in report.findings:
        checks.setdefault(check.name, check)
        known = by_check.setdefault(check.name, [])
        if verdict not in known:
            known.append(verdict)
    return {
        "format": 1,
        "verdict": report.verdict,
        "counts": _counts(report),
        "nodes": {
            name: {"seconds": round(effort.seconds, 3), "commands": effort.commands}
            for name, effort in report.effort.items()
        },
        "checks": [
            {
                "name": name,
                "asks": checks[name].asks,
                "reports": list(checks[name].reports),
                "verdicts": [
                    {"where": verdict.where, "verdict": kind(verdict), "statement": verdict.statement,
                     "fix": "" if verdict.holds else verdict.fix}
                    for verdict in verdicts
                ],
            }
            for name, verdicts in by_check.items()
        ],
    }  # fmt: skip


def _counts(report: Report) -> dict[str, int]:
    unique = list(dict.fromkeys(verdict for _, verdict in report.findings))
    return {name: sum(1 for verdict in unique if kind(verdict) == name) for name in MARKS}


def _place(report: Report, verdict: Verdict) -> str:
    return verdict.where if verdict.where in report.nodes else ""


def _effort(effort: Effort | None) -> str:
    if effort is None:
        return ""
    number = "1 command" if effort.commands == 1 else f"{effort.commands} commands"
    return f" ({number} there, {effort.seconds:.1f} s)"
