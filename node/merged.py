"""Lines of several ranks as one stream, by the RFC 3339 time before each (`docker logs --timestamps` writes it)."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone

STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)(?: |$)")
NANOSECONDS = 10**9

Line = tuple[int, str, str]
"""Rank, time ("" for a line without one), text."""


def split(line: str) -> tuple[int | None, str, str]:
    """Nanoseconds since 1970 (None without a time), the time as it stood there, and the rest of the line."""
    found = STAMP.match(line)
    if found is None:
        return None, "", line
    second, fraction, zone = found.groups()
    try:
        at = datetime.fromisoformat(second + ("+00:00" if zone == "Z" else zone)).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None, "", line
    nanoseconds = int((fraction or "").ljust(9, "0"))
    return int(at.timestamp()) * NANOSECONDS + nanoseconds, found.group(0).rstrip(), line[found.end() :]


def merge(logs: Mapping[int, Sequence[str]]) -> Iterator[Line]:
    """All lines, oldest first. Each rank's own order is kept, whatever its clock did; a line without a time stays
    behind the one before it, and those before a rank's first time stay before that."""
    return (line for _, _, line in heapq.merge(*(_timed(rank, lines) for rank, lines in sorted(logs.items()))))


def _timed(rank: int, lines: Sequence[str]) -> list[tuple[int, int, Line]]:
    read = [split(line) for line in lines]
    now = next((at for at, _, _ in read if at is not None), 0)
    timed = []
    for at, stamp, text in read:
        now = max(now, at or 0)
        timed.append((now, rank, (rank, stamp, text)))
    return timed
