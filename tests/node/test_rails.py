"""Whether a rail carries: told by answers and by questions without one, never by not having asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from node import rails
from node.rails import RailWatch


def watch(answers: Sequence[bool | None], every: float) -> list[bool | None]:
    """What the rail of rank 1 is taken for after each of these answers, asked `every` seconds."""
    now = 100.0
    left = list(answers)
    asked: list[tuple[str, str]] = []

    async def ask(address: str, netdev: str) -> bool | None:
        asked.append((address, netdev))
        return left.pop(0)

    async def run() -> list[bool | None]:
        nonlocal now
        seen = []
        watched = RailWatch({1: "10.200.0.2"}, "enp1s0f0np0", lambda: now, ask)
        assert watched.reach(1) is None
        for _ in answers:
            watched.look()
            await asyncio.gather(*watched._tasks.values())
            seen.append(watched.reach(1))
            now += every
        assert watched.reach(0) is None
        watched.close()
        return seen

    told = asyncio.run(run())
    assert set(asked) == {("10.200.0.2", "enp1s0f0np0")}
    return told


def test_no_answer_for_six_seconds_is_a_cut_and_one_answer_is_none():
    answers = [True, *([False] * 8), True, False]
    assert watch(answers, 1.0) == [*([True] * 7), False, False, True, True]


@pytest.mark.parametrize("every", [5.0, 30.0, 60.0])
def test_a_keeper_that_looks_seldom_needs_three(every: float):
    assert watch([True, False, False, False, True], every) == [True, True, True, False, True]


def test_who_never_answered_may_be_forbidden_to():
    assert watch([False] * 10, 1.0) == [None] * 10


def test_what_could_not_be_asked_says_nothing():
    assert watch([True, *([None] * 20)], 1.0) == [True] * 21


def test_not_having_asked_for_an_hour_is_no_cut():
    now = 0.0

    async def yes(address: str, netdev: str) -> bool | None:
        return True

    async def run() -> None:
        nonlocal now
        watched = RailWatch({1: "10.200.0.2"}, "", lambda: now, yes)
        watched.look()
        await asyncio.gather(*watched._tasks.values())
        now = 3600.0
        assert watched.reach(1) is True

    asyncio.run(run())


def test_a_question_without_an_answer_is_not_asked_twice_at_once():
    calls = 0
    now = 0.0

    async def run(clock: Callable[[], float]) -> None:
        nonlocal now
        gate = asyncio.Event()

        async def slow(address: str, netdev: str) -> bool | None:
            nonlocal calls
            calls += 1
            await gate.wait()
            return True

        watched = RailWatch({1: "10.200.0.2"}, "", clock, slow)
        for _ in range(5):
            watched.look()
            await asyncio.sleep(0)
            now += rails.ASK_SECONDS
        gate.set()
        await asyncio.gather(*watched._tasks.values())

    asyncio.run(run(lambda: now))
    assert calls == 1
