"""Lines of several ranks by time: nothing is lost, and no rank's own order is touched."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node import merged
from node.agent import Agent, Places, telling


@pytest.mark.parametrize(
    ("line", "at", "text"),
    [
        ("1970-01-01T00:00:01.000000002Z a b", 1_000_000_002, "a b"),
        ("1970-01-01T01:00:01.5+01:00 x", 1_500_000_000, "x"),
        ("1970-01-01T00:00:00Z", 0, ""),
        ("1970-01-01T00:00:01", None, "1970-01-01T00:00:01"),
        ("2026-13-01T00:00:01Z no such month", None, "2026-13-01T00:00:01Z no such month"),
        ("INFO 12-01 06:00:00 plain", None, "INFO 12-01 06:00:00 plain"),
    ],
)
def test_a_time_is_read_or_is_text(line: str, at: int | None, text: str) -> None:
    nanoseconds, _, rest = merged.split(line)
    assert (nanoseconds, rest) == (at, text)


LINES = st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 9)), st.text("ab", max_size=2)), max_size=6)


@given(logs=st.dictionaries(st.integers(0, 2), LINES, max_size=3))
def test_nothing_is_lost_and_each_rank_keeps_its_order(logs: dict[int, list[tuple[int | None, str]]]) -> None:
    written = {
        rank: [text if at is None else f"1970-01-01T00:00:0{at}Z {text}" for at, text in lines]
        for rank, lines in logs.items()
    }
    stream = list(merged.merge(written))
    for rank, lines in logs.items():
        assert [text for one, _, text in stream if one == rank] == [text for _, text in lines]
    if all(lines == sorted(lines, key=lambda line: line[0] or 0) for lines in logs.values()) and all(
        at is not None for lines in logs.values() for at, _ in lines
    ):
        stamps = [stamp for _, stamp, _ in stream]
        assert stamps == sorted(stamps)


def test_a_rank_that_has_ended_tells_times_when_asked(tmp_path: Path) -> None:
    """Its last lines are kept as Docker gave them."""

    class NoRank:
        def containers(self, label: str) -> list[object]:
            return []

    places = Places(
        logs=tmp_path, state=tmp_path / "s", lease=tmp_path / "l", wanted=tmp_path / "w", admitted=tmp_path / "a"
    )
    (tmp_path / "20261201T000000-a-rank0.log").write_text("2026-12-01T06:00:01.5Z one\nplain\n")

    async def ask(**more: object) -> object:
        return (await Agent(NoRank(), places).handle({"op": "logs", "lines": 9, **more}))["lines"]  # type: ignore[arg-type]

    assert asyncio.run(ask()) == ["one", "plain"]
    assert asyncio.run(ask(times=True)) == ["2026-12-01T06:00:01.5Z one", "plain"]


def test_looks_at_health_and_metrics_are_no_lines_of_the_engine() -> None:
    looked = [f'INFO:     127.0.0.1:4 - "GET /{path} HTTP/1.1" 200 OK' for path in ("health", "metrics")]
    kept = [
        'INFO:     127.0.0.1:4 - "GET /health HTTP/1.1" 503 Service Unavailable',
        'INFO:     127.0.0.1:4 - "GET /v1/models HTTP/1.1" 200 OK',
        'INFO:     127.0.0.1:4 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        "CUDA error",
    ]
    assert telling([looked[0], kept[0], f"2026-12-01T06:00:00Z {looked[1]}", *kept[1:], looked[0]]) == kept
