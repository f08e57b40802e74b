"""plan.py: its exit code is the verdict that pyinfra's own does not give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import plan
from tests import repository
from tests.plan.cases import CASES, Case
from tests.plan.conftest import Outcome, lay_out

VERDICTS = {"converged": plan.NOTHING, "a watch interval": plan.CHANGES, "no sudo": plan.REFUSED}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit code and output by case; all run at once, since most of it is waiting for Python to start."""
    cases: dict[str, Case] = {case.name: case for case in CASES if case.name in VERDICTS}
    running: dict[str, subprocess.Popen[str]] = {}
    for name, case in cases.items():
        place: Path = tmp_path_factory.mktemp("plan") / "run"
        lay_out(case, place)
        argv = [sys.executable, str(repository.ROOT / "plan.py")]
        running[name] = subprocess.Popen(argv, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return {name: (process.wait(60), process.communicate()[0]) for name, process in running.items()}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_exit_code(answers: dict[str, tuple[int, str]], name: str) -> None:
    assert answers[name][0] == VERDICTS[name]


def test_what_is_said(answers: dict[str, tuple[int, str]]) -> None:
    assert answers["converged"][1] == "No changes. The nodes are as group_data says.\n"
    assert answers["a watch interval"][1] == (
        "2 changes pending:\n"
        "  Keeper | Install the keeper's settings  @fake/spark-a\n"
        "  Keeper | Start the new keeper           @fake/spark-a\n"
        "A pair that serves goes on serving.\n"
    )
    assert answers["no sudo"][1] == ""


def test_an_interruption_is_said(outcomes: dict[str, Outcome]) -> None:
    rows = [(name, hosts) for name, hosts in outcomes["a knob"].rows.items()]
    assert plan.summary(rows).splitlines()[-1] == "Serving is interrupted once."


def test_a_pause_is_said(outcomes: dict[str, Outcome]) -> None:
    """The rails go down for a moment: no restart, and yet not nothing."""
    rows = [(name, hosts) for name, hosts in outcomes["the rails' MTU"].rows.items()]
    assert plan.summary(rows).splitlines()[-1] == (
        "A pair that serves is not restarted; traffic over the rails pauses, and its answers with it."
    )
