"""How far a staging unit is, in one line for a person, now and then."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

PROGRESS_SECONDS = 5.0
WINDOW_SECONDS = 20.0
"""The rate is that of so long a time, so that a pause shows and a burst does not."""
NAMED = 2


def line(name: str, here: int, total: int, rate: float, quiet: float, files: Sequence[tuple[str, str]]) -> str:
    """`weights: 12.3 of 164.0 GiB, 850 MiB/s, 3 min left: model-00012.safetensors (hub)`.

    Bytes, bytes per second, and seconds since anything moved; files as (path, source), the latest to move first.
    """
    unit = 30 if total >= 2**30 else 20
    amounts = f"{here / 2**unit:.1f} of {total / 2**unit:.1f} {'GiB' if unit == 30 else 'MiB'}"
    pace = f"{rate / 2**20:.0f} MiB/s" if rate >= 10 * 2**20 else f"{rate / 2**20:.1f} MiB/s"
    left = f"{duration((total - here) / rate)} left" if rate > 0 else "no end in sight"
    if quiet >= 2 * PROGRESS_SECONDS:
        pace, left = f"nothing for {quiet:.0f} s", "waiting"
    named = ", ".join(f"{path} ({source})" for path, source in files[:NAMED])
    more = f" and {len(files) - NAMED} more" if len(files) > NAMED else ""
    return f"{name}: {amounts}, {pace}, {left}" + (f": {named}{more}" if named else "")


def amount(count: int) -> str:
    """Bytes for a person."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def duration(seconds: float) -> str:
    """A time for a person."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 100 * 60 else f"{seconds / 3600:.1f} h"


class Meter:
    """Bytes moved over time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque([(clock(), 0)])

    def rate(self, moved: int) -> float:
        """Bytes per second lately; `moved` counts since the start."""
        now = self._clock()
        while len(self._seen) > 1 and now - self._seen[0][0] > WINDOW_SECONDS:
            self._seen.popleft()
        began, before = self._seen[0]
        self._seen.append((now, moved))
        return (moved - before) / (now - began) if now > began else 0.0
