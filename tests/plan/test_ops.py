"""The small verbs of ops/: what they print, what they plan, and how they end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plan.conftest import Outcome

Outcomes = Callable[[str], Outcome]
HEAD = "@fake/spark-a"


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("status", "running since T\ngeneration abc\n"),
        ("status, only planned", "running since T\n"),
        ("logs", "rank 0: a\nrank 1: b\n"),
        ("history", "T  start abc\n"),
        ("version", "Sparkpair 0.1.0\n"),
        ("check-update", "nothing newer\n"),
    ],
)
def test_what_only_looks_prints_and_asks_nobody(outcome: Outcomes, case: str, told: str) -> None:
    """On standard output, where nothing else is; nobody is there to confirm, and nothing is to be confirmed."""
    seen = outcome(case)
    assert (seen.code, seen.stdout) == (0, told), seen.stderr


@pytest.mark.parametrize(
    ("case", "told", "error"),
    [
        ("status of a pair that rests", "resting since T: 6 failures\n", "sparkpair status ended with exit code 1"),
        (
            "status of a stopped pair",
            "stopped since T\n",
            "sparkpair status ended with exit code 3: the pair is stopped on purpose",
        ),
        (
            "status where nothing is installed",
            "no file\n",
            "sparkpair status ended with exit code 127: Sparkpair is not installed there; run deploy.py",
        ),
        ("status of a head that says nothing", "", "sparkpair status could not be asked: no answer"),
        ("no support bundle", "", "no support bundle: it sent nothing"),
    ],
)
def test_an_answer_that_is_no_ends_with_1(outcome: Outcomes, case: str, told: str, error: str) -> None:
    seen = outcome(case)
    assert (seen.code, seen.stdout, seen.error) == (1, told, f"{HEAD}: {error}")


def test_a_support_bundle_is_kept_here_and_for_its_owner_alone(outcome: Outcomes) -> None:
    seen = outcome("a support bundle")
    assert seen.code == 0, seen.stderr
    archive = Path(seen.stdout.strip())
    assert archive.parent == Path(seen.place) and archive.read_bytes() == b"a bundle"
    assert archive.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("case", "row"),
    [
        ("stop", "Keeper | Stop the pair"),
        ("start", "Keeper | Start the pair"),
        ("restart", "Keeper | Restart the pair"),
        ("warm-up", "Keeper | Ask the gates of the pair"),
    ],
)
def test_what_changes_something_is_one_row_on_the_head(outcome: Outcomes, case: str, row: str) -> None:
    assert outcome(case).rows == {row: [HEAD]}


@pytest.mark.parametrize("case", ["stop what is stopped", "start what runs"])
def test_what_is_so_already_is_no_row(outcome: Outcomes, case: str) -> None:
    assert outcome(case).rows == {}


def test_an_order_is_followed_to_its_end(outcome: Outcomes) -> None:
    assert outcome("stop, done").code == 0
    for case, wanted in (("stop, and it goes on", "stopped"), ("restart, and it rests", "running")):
        seen = outcome(case)
        assert seen.code == 1
        assert f"the pair is not {wanted}. More: sudo sparkpair status" in seen.stderr


def test_nothing_to_start(outcome: Outcomes) -> None:
    assert outcome("start what was never deployed").error == "nothing was deployed yet; run deploy.py"


@pytest.mark.parametrize("verb", ["status", "stop", "a support bundle"])
def test_no_password_is_asked_for(outcome: Outcomes, verb: str) -> None:
    """pyinfra would ask for it, and put it into the node's process list."""
    assert outcome(f"{verb}, and sudo wants a password").error == (
        f"Refused; nothing was changed.\n  {HEAD}: sudo wants a password from alice. It is not asked for: it would "
        "show in the node's process list\n    Fix: sudo visudo -f /etc/sudoers.d/sparkpair, with this line:\n"
        "      alice ALL=(ALL) NOPASSWD:ALL"
    )


@pytest.mark.parametrize("case", ["status without the head", "stop without the head"])
def test_a_run_that_leaves_the_head_out_does_not_end_well(outcome: Outcomes, case: str) -> None:
    assert outcome(case).error == (
        f"Refused; nothing was changed.\n  {HEAD} is the head, which alone is asked, and this run leaves it out.\n"
        f"    Fix: --limit {HEAD}, or no limit"
    )


def test_the_guards_hold_for_them(outcome: Outcomes) -> None:
    assert outcome("restart, and nobody to confirm").error.startswith("nobody can confirm the plan here; add -y")
    for case in ("a small verb, mistyped inventory", "a small verb, mistyped inventory, from lab/"):
        assert outcome(case).error.startswith("there is no inventory inventroy.py in PLACE")
    assert "max_len: no such knob" in outcome("a small verb, unknown knob").error
