"""The nodes' clocks: each synchronized, and all of one time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from checks.check import BEFORE_AND_DOCTOR, DOCTOR_ALONE, Check, Sight
from checks.look import look
from checks.verdict import Verdict, holds, told
from facts.host import Clock

APART = 2.0
"""Seconds by which two ranks' logs cannot be read beside each other any more. Leases and deadlines of ours are told by
clocks that nobody sets."""
WRONG = 300.0
"""Seconds by which a certificate of the hub or a registry may look out of date: that of a clock without a battery."""


def synchronized(sight: Sight) -> Iterator[Verdict]:
    """Each node sets its clock by somebody's."""
    found, unread = look(sight, "its clock", lambda seen: seen.host.clock)
    yield from unread
    for name, (_, clock) in found.items():
        if clock.synchronized is False:
            yield told(
                name,
                "its clock is not synchronized" + (f" ({clock.service})" if clock.service else ""),
                "sudo timedatectl set-ntp true; without a way out, name the other node or a router as its server:\n"
                "NTP= in /etc/systemd/timesyncd.conf",
            )
        elif clock.synchronized:
            yield holds(name, "its clock is synchronized")


def skew(sight: Sight) -> Iterator[Verdict]:
    """The nodes agree on the time, as far as the time that their answers took lets anybody tell."""
    found, _ = look(sight, "", lambda seen: seen.host.clock)
    ranges = {name: bounds for name, (_, clock) in found.items() if (bounds := ahead(clock)) is not None}
    wrong = False
    for (one, (low, high)), (other, (least, most)) in combinations(ranges.items(), 2):
        apart = max(low - most, least - high)
        if apart >= APART:
            wrong = True
            first = one if low > most else other
            yield told(
                "",
                f"{first}'s clock is {_seconds(apart)} or more ahead of {other if first == one else one}'s: their logs "
                "cannot be read beside each other",
                "timedatectl on both; sudo timedatectl set-ntp true on the one that is wrong",
            )
    if ranges and all(low > WRONG or high < -WRONG for low, high in ranges.values()):
        wrong = True
        off = min(min(abs(low), abs(high)) for low, high in ranges.values())
        yield told(
            "",
            f"the nodes' clocks and this control machine's are {_seconds(off)} or more apart",
            "date -u on both, against a clock on the wall; certificates look out of date by a wrong one",
        )
    if len(ranges) > 1 and not wrong:
        yield holds("", f"the nodes' clocks are less than {_seconds(_widest(list(ranges.values())))} apart")


def ahead(clock: Clock) -> tuple[float, float] | None:
    """Seconds, at least and at most, that a node's clock is ahead of the control machine's; None where its answer was
    not timed."""
    if clock.asked is None or clock.answered is None or clock.answered < clock.asked:
        return None
    return clock.seconds - clock.answered, clock.seconds - clock.asked


def _widest(ranges: list[tuple[float, float]]) -> float:
    return max(high for _, high in ranges) - min(low for low, _ in ranges)


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.0f} min"


CHECKS = (
    Check("clock.synchronized", "Are the nodes' clocks synchronized?", synchronized, DOCTOR_ALONE),
    Check("clock.skew", "Do the nodes agree on the time?", skew, BEFORE_AND_DOCTOR),
)
