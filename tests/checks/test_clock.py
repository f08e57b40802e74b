"""The nodes' clocks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import clock
from checks.check import Sight
from facts.host import Clock, HostFacts
from tests.checks.sights import HEAD, WORKER, sight, sound, statements
from tests.checks.sights import said as told_of


def at(seconds: float, asked: float | None, answered: float | None) -> HostFacts:
    """A node that said this time, asked between those of the control machine."""
    return sound(clock=Clock(seconds, True, "", asked, answered))


def test_a_clock_that_nobody_sets_is_told() -> None:
    """With how to set it where there is no way out; what is not known is not told."""
    seen = sight(worker=sound(clock=Clock(1.0, False, "systemd-timesyncd")))
    assert told_of(clock.synchronized(seen)) == [
        f"told  {WORKER}: its clock is not synchronized (systemd-timesyncd)\n"
        "    Fix: sudo timedatectl set-ntp true; without a way out, name the other node or a router as its server:\n"
        "      NTP= in /etc/systemd/timesyncd.conf"
    ]
    assert statements(clock.synchronized(seen)) == [f"{HEAD}: its clock is synchronized"]
    assert list(clock.synchronized(sight(sound(clock=Clock(1.0)), sound(clock=Clock(1.0))))) == []


@pytest.mark.parametrize(
    ("head", "worker", "told"),
    [
        (at(1000.5, 1000, 1001), at(1000.9, 1000, 1001), None),
        # Asked one after the other, and slowly: no skew by itself.
        (at(1000.5, 1000, 1001), at(1030, 1025, 1031), None),
        (at(1000.5, 1000, 1001), at(1090.5, 1000, 1001), f"{WORKER}'s clock is 89.0 s or more ahead of {HEAD}'s"),
        (at(1603.9, 1000, 1001), at(1000.5, 1000, 1001), f"{HEAD}'s clock is 10 min or more ahead of {WORKER}'s"),
        (at(1000.5, 1000, 1001), at(1090.5, None, None), None),
    ],
)
def test_nodes_of_different_times_are_told(head: HostFacts, worker: HostFacts, told: str | None) -> None:
    """By how much at least, since an answer takes its time."""
    found = told_of(clock.skew(sight(head, worker)))
    assert [line.partition(": ")[0] for line in found] == ([f"told  {told}"] if told else [])


def test_two_that_agree_and_are_both_wrong_are_told() -> None:
    """Or this machine is: certificates look out of date."""
    [found] = told_of(clock.skew(sight(at(10, 9000, 9001), at(11, 9000, 9001))))
    assert found.startswith("told  the nodes' clocks and this control machine's are 150 min or more apart\n")


times = st.floats(0, 2e9)


@settings(max_examples=50)
@given(true=times, ahead=st.floats(-3600, 3600), before=st.floats(0, 60), after=st.floats(0, 60))
def test_a_skew_lies_within_what_is_said(true: float, ahead: float, before: float, after: float) -> None:
    """However long the answer took."""
    bounds = clock.ahead(Clock(true + ahead, True, "", true - before, true + after))
    assert bounds is not None
    assert bounds[0] - 1e-3 <= ahead <= bounds[1] + 1e-3


def test_an_impossible_stamp_says_nothing() -> None:
    """The control machine's own clock was set meanwhile."""
    assert clock.ahead(Clock(5.0, True, "", 10.0, 9.0)) is None
    seen: Sight = sight(at(5, 10, 9), at(5, 10, 9))
    assert list(clock.skew(seen)) == []
