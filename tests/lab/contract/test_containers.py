"""The whole table in containers on the lab's two hosts, for the real vLLM and for the engine that stands in for it.

A lab pass runs what the loopback tests cannot show of the contract engine, and the case marked quick against the real
one, whose every start takes a minute. The rest is marked chaos; `python -m tests.lab.contract.record` runs all of it
and writes the table of both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab.contract.cases import CASES, Case, Cut, check_answers, check_load, run
from tests.lab.contract.pairs import Containers
from tests.lab.contract.record import ANSWERS, LOAD, containers, healthy

RECORDED = json.loads(Path(__file__).with_name("answers.json").read_text())

IN_A_PASS, LONG = [pytest.mark.lab], [pytest.mark.lab, pytest.mark.chaos]


@pytest.fixture
def start(lab: None) -> Iterator[Callable[[str], Containers]]:
    """A pair of that engine's containers, removed afterwards."""
    made: list[Containers] = []

    def make(engine: str) -> Containers:
        made.append(containers(engine))
        return made[-1]

    yield make
    for one in made:
        one.close()


def _cases() -> Iterator[object]:
    for case in CASES:
        marks = {"contract": IN_A_PASS if case.quick or (case.containers_only and not case.slow) else LONG}
        marks["engine"] = IN_A_PASS if case.quick else LONG
        for engine in marks:
            yield pytest.param(case, engine, marks=marks[engine], id=f"{case.name}-{engine}")


@pytest.mark.parametrize(("case", "engine"), list(_cases()))
def test_case(case: Case, engine: str, start: Callable[[str], Containers]) -> None:
    """A row of the table."""
    ranks = start(engine)
    if isinstance(case.fault, Cut) and ranks.address(0) == ranks.hosts[0].address:
        pytest.skip("the rails have no addresses yet")
    seen = run(case, ranks)
    assert not seen.wrong, seen


@pytest.mark.lab
@pytest.mark.chaos
@pytest.mark.parametrize("engine", ["contract", "engine"])
@pytest.mark.parametrize(("name", "check"), [(ANSWERS, check_answers), (LOAD, check_load)])
def test_healthy(
    name: str, check: Callable[..., dict[str, str]], engine: str, start: Callable[[str], Containers]
) -> None:
    """What a ready pair answers and what its metrics say."""
    assert healthy(start(engine), check) == RECORDED["answers" if name == ANSWERS else "load"]
