"""What the keeper is to be asked, from what it says and what is wanted."""

from __future__ import annotations

import pytest

from checks import pair
from checks.pair import Accepted, Todo
from facts.values import KEEPER_STATE, STATUS, UnknownFact
from spec.objects import KEEPER_UNIT
from tests.plan.world import World, converged, fresh
from tests.plan.world import unit as unit_of
from tests.unit import pair as pairs

OLD, NEW = "0" * 64, "1" * 64


@pytest.mark.parametrize(
    ("phase", "accepted", "desired", "todo"),
    [
        ("running", NEW, "run", Todo.NOTHING),
        ("starting", NEW, "run", Todo.NOTHING),
        ("stopping", NEW, "run", Todo.NOTHING),
        ("backoff", NEW, "run", Todo.NOTHING),
        ("waiting", NEW, "run", Todo.NOTHING),
        ("resting", NEW, "run", Todo.START),
        ("running", OLD, "run", Todo.RESTART),
        ("starting", OLD, "run", Todo.RESTART),
        ("backoff", OLD, "run", Todo.RESTART),
        ("resting", OLD, "run", Todo.START),
        ("empty", None, "run", Todo.START),
        ("stopped", OLD, "stop", Todo.NOTHING),
        ("stopped", NEW, "stop", Todo.NOTHING),
        ("silent", OLD, "run", Todo.RESTART),
        ("silent", NEW, "run", Todo.NOTHING),
    ],
)
def test_what_is_to_be_done(phase: str, accepted: str | None, desired: str, todo: Todo) -> None:
    assert pair.todo(Accepted(accepted, desired, phase), NEW) is todo


@pytest.mark.parametrize(("accepted", "todo"), [(None, Todo.START), (OLD, Todo.RESTART)])
def test_weights_that_are_not_hashed_yet_are_other_weights(accepted: str | None, todo: Todo) -> None:
    assert pair.todo(Accepted(accepted, "run", "running" if accepted else "empty"), None) is todo


def world() -> World:
    return converged(pairs.cluster(pairs.UPSTREAM))


def head(of: World) -> Accepted:
    return pair.accepted(of.facts()["spark-a"])


def test_a_keeper_that_runs_is_believed() -> None:
    assert head(world()).phase == "running"


def test_a_keeper_that_died_is_not_believed_but_what_it_keeps_is() -> None:
    """Its last word may be from before the crash; what it wrote to disk holds over reboots."""
    here = world()
    here.head["units"][KEEPER_UNIT] = unit_of("failed")
    here.head["documents"][STATUS]["json"]["phase"] = "running"
    here.head["documents"][KEEPER_STATE]["json"]["memory"] = {"accepted": OLD, "desired": "stop"}
    assert head(here) == Accepted(OLD, "stop", "silent")


def test_a_head_without_a_keeper_has_accepted_nothing() -> None:
    assert head(fresh(pairs.cluster(pairs.UPSTREAM))) == Accepted(None, "run", "empty")


def test_a_damaged_word_is_not_no_word() -> None:
    here = world()
    here.head["documents"][STATUS] = {"error": "it is damaged"}
    with pytest.raises(UnknownFact, match="the keeper's state could not be read: it is damaged"):
        head(here)
