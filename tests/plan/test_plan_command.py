"""plan.py: its exit code is the verdict that pyinfra's own does not give, and its text is what a person decides by."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import plan
from tests import repository
from tests.plan.cases import CASES
from tests.plan.conftest import Outcome, lay_out
from tests.plan.test_interrupted import SLOW

VERDICTS = {
    "converged": plan.NOTHING,
    "a watch interval": plan.CHANGES,
    "no sudo": plan.REFUSED,
    "stopped on purpose, and a knob": plan.CHANGES,
    "fresh": plan.CHANGES,
}
AS_JSON = ("a watch interval", "no sudo")
PLAN = [sys.executable, str(repository.ROOT / "plan.py")]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit code and output by case; all run at once, since most of it is waiting for Python to start."""
    running: dict[str, subprocess.Popen[str]] = {}
    for name, *options in [*([name] for name in VERDICTS), *([name, "--json"] for name in AS_JSON)]:
        case = next(case for case in CASES if case.name == name)
        place: Path = tmp_path_factory.mktemp("plan") / "run"
        lay_out(case, place)
        running[" ".join([name, *options])] = subprocess.Popen(
            [*PLAN, *options], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    return {name: (process.wait(60), process.communicate()[0]) for name, process in running.items()}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_exit_code(answers: dict[str, tuple[int, str]], name: str) -> None:
    assert answers[name][0] == VERDICTS[name]


@pytest.mark.parametrize("name", AS_JSON)
def test_the_exit_code_with_json_is_the_same(answers: dict[str, tuple[int, str]], name: str) -> None:
    assert answers[f"{name} --json"][0] == VERDICTS[name]


def test_what_is_said(answers: dict[str, tuple[int, str]]) -> None:
    assert answers["converged"][1] == "No changes. The nodes are as group_data says.\n"
    assert answers["a watch interval"][1] == (
        "2 changes pending:\n"
        "  Keeper | Install the keeper's settings  @fake/spark-a\n"
        "  Keeper | Start the new keeper           @fake/spark-a\n"
        "\n"
        "Settings that change      old  new  becomes     ranks  costs\n"
        "  watch_interval_seconds  1    2    the keeper  -      the keeper reloads\n"
        "A pair that serves goes on serving; its keeper reloads its settings.\n"
    )
    assert answers["no sudo"][1] == ""


def test_a_stopped_pair_is_said_to_be(answers: dict[str, tuple[int, str]]) -> None:
    assert (
        "The pair is stopped on purpose and stays so; nothing is interrupted.\n"
        in (answers["stopped on purpose, and a knob"][1])
    )


def test_a_first_deploy_is_said_to_be(answers: dict[str, tuple[int, str]]) -> None:
    assert "\nFirst start; beside the defaults  default " in answers["fresh"][1]


def test_one_document(answers: dict[str, tuple[int, str]]) -> None:
    found = json.loads(answers["a watch interval --json"][1])
    assert found["verdict"] == "changes"
    assert found["operations"] == [
        {"name": "Keeper | Install the keeper's settings", "nodes": ["@fake/spark-a"]},
        {"name": "Keeper | Start the new keeper", "nodes": ["@fake/spark-a"]},
    ]
    assert found["settings"] == [
        {"knob": "watch_interval_seconds", "old": 1, "new": 2, "becomes": "the keeper", "ranks": [], "cost": "service"}
    ]
    assert found["start"]["seconds"] == 51.7
    assert found["interrupts"] == {"serving": False, "docker": [], "rails": []}
    assert json.loads(answers["no sudo --json"][1]) == {"format": 1, "verdict": "refused"}


def rows(outcome: Outcome) -> list[plan.Row]:
    return list(outcome.rows.items())


def test_one_change_is_one(outcomes: dict[str, Outcome]) -> None:
    found = rows(outcomes["the keeper died"])
    assert plan.summary(found, {"quiet": True, "text": ["No setting changes."]}) == (
        "1 change pending:\n  Keeper | Start the new keeper  @fake/spark-a\n\nNo setting changes."
    )


# What pyinfra says may be anything

STAND_IN = """#!{python}
import os, sys
outlook, output, code = {told!r}
if outlook is not None:
    open(os.environ["SPARKPAIR_PLAN"], "w").write(outlook)
sys.stdout.write(output)
sys.exit(code)
"""
GOOD = json.dumps({"plan": []})
QUIET = json.dumps({"text": [], "quiet": True})


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Put a program in pyinfra's place that tells this outlook, prints this plan and ends with this code."""

    def pretend(outlook: str | None, output: str, code: int = 0) -> None:
        program = tmp_path / "pyinfra"
        program.write_text(STAND_IN.format(python=sys.executable, told=(outlook, output, code)))
        program.chmod(0o755)
        monkeypatch.setattr(plan, "pyinfra", lambda: str(program))

    yield pretend


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ((QUIET, "{"), "pyinfra's plan cannot be read: "),
        ((QUIET, "[]"), "pyinfra's plan cannot be read: "),
        ((QUIET, '{"plan": [{}]}'), "pyinfra's plan cannot be read: "),
        ((None, GOOD), "the deploy's outlook cannot be read: "),
        (("", GOOD), "the deploy's outlook cannot be read: "),
        (('{"text": [', GOOD), "the deploy's outlook cannot be read: "),
        (('{"text": 1, "quiet": true}', GOOD), "the deploy's outlook cannot be read: "),
        (("[]", GOOD), "the deploy's outlook cannot be read: "),
        ((QUIET, GOOD, 1), ""),
        ((None, "", 130), ""),
    ],
)
def test_what_cannot_be_read_is_refused(
    pretended: object, capfd: pytest.CaptureFixture[str], told: tuple[object, ...], message: str
) -> None:
    """One line, no traceback, and nothing that looks like a plan."""
    pretended(*told)  # type: ignore[operator]
    assert plan.main([]) == plan.REFUSED
    output, errors = capfd.readouterr()
    assert output == ""
    assert errors.startswith(message)
    assert "Traceback" not in errors


def test_what_can_be_read(pretended: object, capfd: pytest.CaptureFixture[str]) -> None:
    pretended(QUIET, GOOD)  # type: ignore[operator]
    assert plan.main(["other.py"]) == plan.NOTHING
    assert capfd.readouterr().out == "No changes. The nodes are as group_data says.\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_plan_that_was_killed(tmp_path: Path, number: signal.Signals) -> None:
    """Its file has no name at any time."""
    place, temporary = tmp_path / "run", tmp_path / "tmp"
    temporary.mkdir()
    lay_out(replace(SLOW, name="killed"), place)
    process = subprocess.Popen(
        PLAN, cwd=place, env={**os.environ, "TMPDIR": str(temporary)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    while "Preparing" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(0.2)
    os.killpg(process.pid, number)
    output, errors = process.communicate(timeout=30)
    assert process.returncode != 0
    assert output == ""
    assert "Traceback" not in errors
    assert list(temporary.iterdir()) == []


def test_without_pyinfra_there_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Run by a Python that has none, it says what to run."""
    monkeypatch.setattr(plan, "pyinfra", lambda: "/nowhere/pyinfra")
    assert plan.main([]) == plan.REFUSED
    out, err = capfd.readouterr()
    assert out == ""
    assert err == (
        "/nowhere/pyinfra cannot be run (No such file or directory); in the checkout: make venv, then "
        ".venv/bin/python plan.py\n"
    )


def test_help_runs_nothing(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(plan, "pyinfra", lambda: "/nowhere/pyinfra")
    assert plan.main(["--help"]) == plan.NOTHING
    assert "python plan.py [--json]" in capfd.readouterr().out


def test_where_something_waits_nobody_says_that_all_is_as_wanted(
    pretended: object, capfd: pytest.CaptureFixture[str]
) -> None:
    """As with a stopped pair whose next launch is installed: a deploy has nothing to do, and yet not all is well."""
    pretended(json.dumps({"text": ["what waits"], "quiet": False}), GOOD)  # type: ignore[operator]
    assert plan.main([]) == plan.NOTHING
    assert capfd.readouterr().out == "Nothing to do for a deploy.\n\nwhat waits\n"
