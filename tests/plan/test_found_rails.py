"""Plans of an inventory that leaves the rails out: found, kept without a talk, or refused with what was heard."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.plan.cases import Case
from tests.plan.conftest import Outcome, carried_out
from tests.plan.world import World, converged, fresh

pytestmark = pytest.mark.slow
A, B = "@fake/spark-a", "@fake/spark-b"
RAILS = {
    A: {"enp1s0f0np0": "rocep1s0f0", "enP2p1s0f0np0": "roceP2p1s0f0"},
    B: {"enp1s0f1np1": "rocep1s0f1", "enP2p1s0f1np1": "roceP2p1s0f1"},
}


def ports(world: World) -> None:
    """Each rail's netdev has a carrier, as the probe tells it."""
    for name, document in world.nodes.items():
        document["host"] = {
            "level": "brief",
            "hcas": {
                hca: {"netdevs": [netdev], "state": "4: ACTIVE", "pci": pci(netdev)}
                for netdev, hca in RAILS[name].items()
            },
            "netdevs": {
                netdev: {"mac": f"02:00:00:00:00:0{number}", "mtu": "1500", "flags": "0x1003", "carrier": "1"}
                for number, netdev in enumerate(RAILS[name])
            },
        }


def pci(netdev: str) -> str:
    return f"{'0002' if 'P2' in netdev else '0000'}:01:00.{netdev[-1]}"


def left_out(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """No rails; asked to talk the nodes say nothing."""
    del name
    return {key: value for key, value in data.items() if key != "rails"}


def heard(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """No rails; the nodes hear each other one to one."""
    peer = B if name == A else A
    frames = [[ours, peer, theirs] for ours, theirs in zip(RAILS[name], RAILS[peer], strict=True)]
    answer = json.dumps({"heard": frames, "paths": [], "trouble": ""})
    responses = {**data["fake_responses"], "sparkpair-talk": [answer]}
    return {**left_out(name, data), "fake_responses": responses}


CASES = (
    Case("set up", converged, ports, data=left_out),
    Case("fresh and heard", fresh, ports, data=heard),
    Case("fresh and deaf", fresh, ports, options=("--dry",), data=left_out),
)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcome]:
    """The outcome of one case."""
    return carried_out(CASES, tmp_path_factory.mktemp("found")).__getitem__


def test_rails_that_are_set_up_are_the_rails(planned: Callable[[str], Outcome]) -> None:
    """Nobody is asked to talk: no answer would be a refusal."""
    found = planned("set up")
    assert (found.code, found.rows) == (0, {}), found.stderr


def test_found_rails_are_set_up(planned: Callable[[str], Outcome]) -> None:
    found = planned("fresh and heard")
    assert found.code == 0, found.stderr
    assert found.rows["Fabric | Set the rails up"] == [A, B]


def test_nothing_heard_is_refused(planned: Callable[[str], Outcome]) -> None:
    found = planned("fresh and deaf")
    assert found.code == 1
    assert found.error == (
        "Preflight refused; no node was changed.\n"
        "  @fake/spark-a: its ports could not listen: it did not answer\n"
        "    Fix: make that work, then run again\n"
        "  @fake/spark-b: its ports could not listen: it did not answer\n"
        "    Fix: make that work, then run again"
    )
