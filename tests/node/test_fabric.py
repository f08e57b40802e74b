"""The rails under guard: what is not confirmed is taken back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from node import fabric
from node.fabric import Address, FabricError, Places

RAIL = Address("10.200.0.1/24", "enp1s0f0np0", 9000)
APPLY = [
    "systemctl stop sparkpair-fabric-rollback.timer",
    "systemd-run",
    "netplan generate",
    "netplan apply",
    "ip -j address show",
]


class Node:
    """A node's programs, played by the test; `after` is what ip says once netplan has been applied."""

    def __init__(self, place: Path, after: list[dict[str, Any]]) -> None:
        self.places = Places(place / "staged.yaml", place / "etc/60.yaml", place / "run/60.yaml")
        self.places.staged.write_text("new\n")
        self.after = after
        self.calls: list[str] = []
        self.failing: list[str] = []
        """What fails, once each, in this order."""
        self.seconds = 0.0

    def call(self, argv: Sequence[str]) -> str:
        text = " ".join(argv)
        self.calls.append("systemd-run" if argv[0] == "systemd-run" else text)
        if self.failing and text.startswith(self.failing[0]):
            del self.failing[0]
            raise FabricError(f"{text} exited 1: no")
        return json.dumps(self.after) if argv[0] == "ip" else ""

    def pause(self, seconds: float) -> None:
        self.seconds += seconds

    def apply(self) -> None:
        fabric.apply("192.168.1.10", [RAIL], self.places, self.call, self.pause, lambda: self.seconds)


def links(management: str = "192.168.1.10", rail: str = "10.200.0.1", mtu: int = 9000) -> list[dict[str, Any]]:
    return [
        {"ifname": "enP7s7", "mtu": 1500, "addr_info": [{"local": management, "prefixlen": 24}]},
        {"ifname": "enp1s0f0np0", "mtu": mtu, "addr_info": [{"local": rail, "prefixlen": 24}]},
    ]


def test_on_trial_and_then_permanent(tmp_path: Path) -> None:
    """Before it is confirmed a reboot forgets it: it is in /run only."""
    node = Node(tmp_path, links())
    node.apply()
    assert node.calls == APPLY
    assert node.places.trial.read_text() == "new\n"
    assert not node.places.persistent.exists()
    node.calls.clear()
    fabric.confirm(node.places, node.call)
    assert node.calls == ["netplan generate", "systemctl stop sparkpair-fabric-rollback.timer"]
    assert node.places.persistent.read_text() == "new\n"
    assert node.places.persistent.stat().st_mode & 0o777 == 0o600
    assert not node.places.trial.exists()


@pytest.mark.parametrize(
    ("after", "wanted"),
    [
        (links(management="192.168.1.99"), "the management address 192.168.1.10 is gone"),
        (links(rail="10.200.0.7"), "enp1s0f0np0 has not got 10.200.0.1/24"),
        (links(mtu=1500), "enp1s0f0np0 has MTU 1500, not 9000"),
    ],
)
def test_taken_back_when_the_node_is_not_as_it_must_be(
    tmp_path: Path, after: list[dict[str, Any]], wanted: str
) -> None:
    node = Node(tmp_path, after)
    with pytest.raises(FabricError, match=rf"^after netplan apply, {wanted} within 30 s\. The rails are as they were$"):
        node.apply()
    assert node.calls[-3:] == ["netplan generate", "netplan apply", "systemctl stop sparkpair-fabric-rollback.timer"]
    assert not node.places.trial.exists()


def test_taken_back_when_netplan_refuses_the_file(tmp_path: Path) -> None:
    node = Node(tmp_path, links())
    node.failing = ["netplan generate"]
    with pytest.raises(FabricError, match=r"^netplan generate exited 1: no\. The rails are as they were$"):
        node.apply()
    assert not node.places.trial.exists()


@pytest.mark.parametrize("step", ["netplan generate", "netplan apply"])
def test_what_could_not_be_taken_back_at_once_is_by_the_timer(tmp_path: Path, step: str) -> None:
    """The first error is told, and whoever takes back later finds that there is something left to do."""
    node = Node(tmp_path, links())
    node.failing = ["netplan apply", step, step]
    with pytest.raises(FabricError) as told:
        node.apply()
    assert str(told.value) == (
        f"netplan apply exited 1: no. Taking the rails back failed as well: {step} exited 1: no. "
        "The node tries that again by itself, every 90 s"
    )
    assert not node.places.trial.exists()
    assert node.calls.count("systemctl stop sparkpair-fabric-rollback.timer") == 1  # before it was armed
    with pytest.raises(FabricError, match=f"^{step} exited 1: no$"):
        fabric.restore(node.places, node.call)
    node.calls.clear()
    fabric.restore(node.places, node.call)
    assert node.calls == ["netplan generate", "netplan apply", "systemctl stop sparkpair-fabric-rollback.timer"]
    node.calls.clear()
    fabric.restore(node.places, node.call)
    assert node.calls == ["systemctl stop sparkpair-fabric-rollback.timer"]


def test_what_is_being_taken_back_is_not_confirmed(tmp_path: Path) -> None:
    node = Node(tmp_path, links())
    node.apply()
    node.failing = ["netplan apply"]
    with pytest.raises(FabricError):
        fabric.restore(node.places, node.call)
    with pytest.raises(FabricError, match=r"^nothing is on trial"):
        fabric.confirm(node.places, node.call)


def test_a_new_trial_ends_what_was_left_of_the_last(tmp_path: Path) -> None:
    node = Node(tmp_path, links())
    node.apply()
    node.failing = ["netplan apply"]
    with pytest.raises(FabricError):
        fabric.restore(node.places, node.call)
    node.apply()
    fabric.confirm(node.places, node.call)
    assert list(node.places.trial.parent.iterdir()) == []


def test_an_answer_that_cannot_be_read_takes_the_rails_back(tmp_path: Path) -> None:
    node = Node(tmp_path, [{"no": "name"}])
    with pytest.raises(FabricError, match=r"The rails are as they were$"):
        node.apply()
    assert not node.places.trial.exists()


def test_nothing_is_put_in_force_without_the_timer(tmp_path: Path) -> None:
    node = Node(tmp_path, links())
    node.failing = ["systemd-run"]
    with pytest.raises(FabricError, match="systemd-run"):
        node.apply()
    assert "netplan apply" not in node.calls
    assert not node.places.trial.exists()


def test_a_late_confirmation_is_refused(tmp_path: Path) -> None:
    node = Node(tmp_path, links())
    node.apply()
    fabric.restore(node.places, node.call)
    with pytest.raises(FabricError, match=r"^nothing is on trial: the confirmation came too late"):
        fabric.confirm(node.places, node.call)
    assert not node.places.persistent.exists()


def test_taking_back_nothing_touches_no_network(tmp_path: Path) -> None:
    node = Node(tmp_path, links())
    fabric.restore(node.places, node.call)
    assert node.calls == ["systemctl stop sparkpair-fabric-rollback.timer"]


def test_a_program_that_fails_says_what_it_said() -> None:
    with pytest.raises(FabricError, match=r"^sh -c echo why >&2; exit 3 exited 3: why$"):
        fabric.run(["sh", "-c", "echo why >&2; exit 3"])
