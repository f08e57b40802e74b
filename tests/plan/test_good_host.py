"""What the pair was good with is kept when it is known to be good, and not before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from facts.values import STATUS
from roles import upkeep
from spec import objects
from tests.plan.test_operations import A, B, Bench, _contexts, bench
from tests.plan.world import file, fresh

pytestmark = pytest.mark.report("KRN-02")
__all__ = ["_contexts"]  # used by each test

KERNEL = "6.17.0-1031-nvidia"


def with_kernel(here: Bench, kernel: str = KERNEL) -> Bench:
    for node in here.world.nodes.values():
        node["host"] = {"level": "brief", "kernel": kernel}
    return here


def kept(kernel: str = KERNEL) -> str:
    return json.dumps({"driver": "580.95.05", "kernel": kernel}, indent=1, sort_keys=True) + "\n"


def status(here: Bench, **changes: object) -> None:
    here.world.head["documents"][STATUS]["json"].update(changes)


def test_it_is_written_once_on_every_node() -> None:
    """Then again when something changed and the pair is good with that, too."""
    here = with_kernel(bench())
    done = here.do(upkeep.keep_good_host)
    for name in (A, B):
        [command] = done[name]
        assert command.endswith(f"mv -fT {objects.GOOD_HOST}.sparkpair-new {objects.GOOD_HOST}")
        here.world.nodes[name]["files"][objects.GOOD_HOST] = file(kept(), "644")
    assert Bench(here.world).do(upkeep.keep_good_host) == {A: [], B: []}
    done = with_kernel(Bench(here.world), "7.0.0-1019-nvidia").do(upkeep.keep_good_host)
    assert {name: len(commands) for name, commands in done.items()} == {A: 1, B: 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": "resting"},
        {"phase": "starting"},
        {"accepted": "f" * 64},
        {"last_good": None},
        {"desired": "stop", "phase": "stopped"},
    ],
)
def test_nothing_is_kept_of_a_pair_that_is_not_good(changes: dict[str, object]) -> None:
    """The kernel that it fails with must not become the good one."""
    here = with_kernel(bench())
    status(here, **changes)
    assert here.do(upkeep.keep_good_host) == {A: [], B: []}


def test_a_node_whose_kernel_is_not_known_keeps_what_it_has() -> None:
    """As from a probe that was not asked."""
    assert bench().do(upkeep.keep_good_host) == {A: [], B: []}


def test_a_first_deploy_plans_it() -> None:
    """By its end the pair is good, or the deploy has failed before this row."""
    here = with_kernel(bench(fresh))
    assert planned(here) == [A, B]
    here = with_kernel(bench())
    status(here, desired="stop", phase="stopped", last_good=None)
    assert planned(here) == []


def planned(here: Bench) -> list[str]:
    from pyinfra.api.operation import add_op

    found: dict[Any, Any] = add_op(here.state, upkeep.keep_good_host, run=here.run)
    return sorted(host.name for host, meta in found.items() if meta.will_change)
