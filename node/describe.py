"""What the keeper says of the pair, as text for a person: one statement per line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

GIB = 2**30
REJECTED_TOLD = 3
LAST_LINES = 12


def status(status: Mapping[str, Any]) -> str:
    """The state as `sparkpair status` prints it. A keeper of an earlier release says less."""
    lines = [f"{status['phase']} since {status['since']}" + (f": {status['reason']}" if status.get("reason") else "")]
    lines.append(f"generation {short(status.get('accepted'))} ({_standing(status)})")
    lines += _ranks(status)
    lines += _memory(status)
    count = status.get("counters", {})
    lines.append(
        f"starts {count.get('starts', 0)}, of which answered {count.get('ready', 0)}; "
        f"failures {count.get('failures', 0)}; canaries {count.get('canaries', 0)}"
    )
    if status.get("gates"):
        lines.append(f"gates, asked last: {gates(status['gates'])}")
    back = status.get("rollback") or {}
    if back:
        lines.append(rollback(back))
    # What is told of the way back is not told once more as a rejection and as a failure.
    rejected = status.get("rejected") or {}
    lines += _rejected({engine: entry for engine, entry in rejected.items() if engine != back.get("from")})
    failure = status.get("last_failure")
    if failure and failure["reason"] != back.get("reason"):
        lines.append(f"last failure {failure['time']}: {failure['reason']}")
    if status.get("update"):
        lines.append(str(status["update"]))
    if status.get("release"):
        lines.append(f"Sparkpair {status['release']}, programs {short(status.get('code'))}")
    return "\n".join(lines)


def gates(results: Sequence[Mapping[str, Any]]) -> str:
    """The outcome of each gate, on one line."""
    return ", ".join(gate(one) for one in results)


def gate(result: Mapping[str, Any]) -> str:
    """The outcome of one gate: a failure in capitals, with what was seen."""
    name, outcome, detail = result.get("gate"), str(result.get("outcome")), result.get("detail")
    if outcome == "passed":
        return f"{name} {float(result.get('seconds') or 0):.1f} s"
    word = outcome.upper() if outcome == "failed" else outcome
    return f"{name} {word} ({detail})" if detail and outcome != "skipped" else f"{name} {word}"


def rollback(back: Mapping[str, Any]) -> str:
    """That the last good launch is served again, and why."""
    return (
        f"went back from {short(back.get('from'))} to {short(back.get('to'))} {back.get('time')}: {back.get('reason')}"
    )


def generation(entry: Mapping[str, Any]) -> str:
    """One generation of those that are kept."""
    standing = "passed its gates" if entry.get("good") else "has not passed its gates"
    if entry.get("rejected"):
        standing = f"rejected: {entry['rejected']}"
    return f"{str(entry.get('engine'))[:12]}  accepted {entry.get('accepted')}, {standing}"


def last_lines(failure: Mapping[str, Any]) -> list[str]:
    """Every rank's last lines of a failure, for a report."""
    lines = []
    for rank, tail in sorted((failure.get("logs") or {}).items()):
        lines.append(f"rank {rank}, last lines:")
        lines += [f"  {line}" for line in tail[-LAST_LINES:]] or ["  (none)"]
    return lines


def event(entry: Mapping[str, Any]) -> str:
    """One entry of the history."""
    details = {key: value for key, value in entry.items() if key not in ("time", "event", "engine")}
    reason = details.pop("reason", "")
    text = f"{entry.get('time')}  {entry.get('event')}"
    if entry.get("engine"):
        text += f" {short(entry['engine'])}"
    if details:
        text += " (" + ", ".join(f"{name} {_plain(value)}" for name, value in details.items()) + ")"
    return f"{text}: {reason}" if reason else text


def short(engine: object) -> str:
    """A hash for a person."""
    return str(engine)[:12] if engine else "none"


def gib(number: object) -> str:
    """Bytes for a person."""
    return f"{number / GIB:.1f} GiB" if isinstance(number, int | float) else "unknown"


def _standing(status: Mapping[str, Any]) -> str:
    good = status.get("last_good")
    if good and good == status.get("accepted"):
        return "the last that passed its gates"
    return f"last good: {short(good)}" if good else "none has passed its gates yet"


def _ranks(status: Mapping[str, Any]) -> list[str]:
    lines = []
    for rank, seen in sorted(status.get("ranks", {}).items()):
        what = seen.get("away") or seen.get("state")
        if seen.get("state") == "exited":
            what = f"exited with code {seen.get('exit_code')}"
        if seen.get("error"):
            what = f"{what}: {seen['error']}"
        way = f", by {seen['address']}" if seen.get("address") else ""
        rail = ", rail without carrier" if seen.get("rail_up") is False else ""
        lines.append(f"rank {rank} on {seen.get('node')}: {what}{way}{rail}")
    return lines


def _memory(status: Mapping[str, Any]) -> list[str]:
    """Available now, and the lowest since the rank's start: what must not come near nothing."""
    told = []
    for rank, seen in sorted((status.get("memory") or {}).items()):
        if seen:
            floor = f", lowest {gib(seen['floor'])}" if seen.get("floor") is not None else ""
            told.append(f"rank {rank} {gib(seen.get('available'))}{floor}")
    return [f"memory available: {'; '.join(told)}"] if told else []


def _rejected(rejected: Mapping[str, Any]) -> list[str]:
    newest = sorted(rejected.items(), key=lambda item: str(item[1].get("time")), reverse=True)
    lines = [
        f"rejected {short(engine)} {entry.get('time')}: {entry.get('reason')}"
        for engine, entry in newest[:REJECTED_TOLD]
    ]
    if len(newest) > REJECTED_TOLD:
        lines.append(f"rejected: {len(newest) - REJECTED_TOLD} more, told by sparkpair status --json")
    return lines


def _plain(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return short(value) if re.fullmatch(r"[0-9a-f]{64}", str(value)) else str(value)
