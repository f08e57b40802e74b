"""The inventory that is proposed: a deploy takes it, and none of the operator's is lost by it."""

from __future__ import annotations

import json
import runpy
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path

import pytest

import discover
from contact import proposal
from contact.place import Place
from contact.proposal import FoundNode, FoundRail
from contact.words import Refused
from facts.values import Link, NodeFacts
from spec import load
from tests import repository

HEAD = FoundNode(
    "spark-a",
    "192.168.1.10",
    "alice",
    rails=(
        FoundRail("enp1s0f0np0", "rocep1s0f0", "10.200.0.1/24"),
        FoundRail("enP2p1s0f0np0", "roceP2p1s0f0", "10.200.1.1/24"),
    ),
    remarks=("enp1s0f1np1 (rocep1s0f1) has a carrier, but no other node is heard there: it is left out",),
)
WORKER = FoundNode(
    "spark-b",
    "spark-b.local",
    "bob",
    address="192.168.1.11",
    port=2222,
    rails=(
        FoundRail("enp1s0f1np1", "rocep1s0f1", "10.200.0.2/24"),
        FoundRail("enP2p1s0f1np1", "roceP2p1s0f1", "10.200.1.2/24"),
    ),
)
TEXT = '''\
"""The two Sparks: how to reach each one, which of them is the head, and its rails.

Proposed by discover.py, from what it found. It is yours to change: discover.py never does.
"""

from spec.transport import ssh

head = [
    (
        "spark-a",
        {
            **ssh("192.168.1.10", user="alice"),
            # enp1s0f1np1 (rocep1s0f1) has a carrier, but no other node is heard there: it is left out
            "rails": [
                {"netdev": "enp1s0f0np0", "hca": "rocep1s0f0", "address": "10.200.0.1/24"},
                {"netdev": "enP2p1s0f0np0", "hca": "roceP2p1s0f0", "address": "10.200.1.1/24"},
            ],
        },
    ),
]

worker = [
    (
        "spark-b",
        {
            **ssh("spark-b.local", user="bob", port=2222),
            "management_address": "192.168.1.11",
            "rails": [
                {"netdev": "enp1s0f1np1", "hca": "rocep1s0f1", "address": "10.200.0.2/24"},
                {"netdev": "enP2p1s0f1np1", "hca": "roceP2p1s0f1", "address": "10.200.1.2/24"},
            ],
        },
    ),
]
'''


@pytest.mark.report("NET-01")
def test_the_whole_text() -> None:
    """With what was left out, and why, beside the rails."""
    assert proposal.text((HEAD, WORKER)) == TEXT


def test_a_deploy_takes_it(tmp_path: Path) -> None:
    """As it stands, with the settings that the repository brings."""
    (tmp_path / "inventory.py").write_text(TEXT)
    inventory = runpy.run_path(str(tmp_path / "inventory.py"))
    hosts = [
        load.StatedHost(name, (group,), False, (load.Source(f"inventory: {name}", data, of_one_node=True),))
        for group in ("head", "worker")
        for name, data in inventory[group]
    ]
    settings = load.load(hosts, load.connection_keys())
    assert [(node.name, str(node.management_address), len(node.rails)) for node in settings.nodes] == [
        ("spark-a", "192.168.1.10", 2),
        ("spark-b", "192.168.1.11", 2),
    ]


@pytest.mark.parametrize(
    ("called", "names"),
    [
        (["spark-1f2a", "Spark-9C01.local"], ["spark-1f2a", "spark-9c01"]),
        (["ubuntu", "ubuntu"], ["spark-a", "spark-b"]),
        (["", "spark-9c01"], ["spark-a", "spark-b"]),
        (["a_b", "c", "d"], ["spark-a", "spark-b", "spark-c"]),
    ],
)
def test_names(called: list[str], names: list[str]) -> None:
    """What the nodes call themselves, where that tells them apart."""
    assert proposal.names(called) == names


def test_the_example_counts_as_none() -> None:
    """The inventory that this repository brings is the one that may be replaced."""
    assert discover._is_example((repository.ROOT / "inventory.py").read_bytes())


def written(there: str | None, target: Path, *, asked: bool) -> discover.Outcome:
    if there is not None:
        target.write_text(there)
    outcome = discover.Outcome(nodes=[HEAD, WORKER], text=TEXT)
    discover._write(outcome, target, asked=asked)
    return outcome


def test_where_it_is_written(tmp_path: Path) -> None:
    """Over nothing, over the example, and over a file that was named; that one is kept."""
    target = tmp_path / "inventory.py"
    assert written(None, target, asked=False).written
    again = written(None, target, asked=False)
    assert (again.path, again.written) == (target, False)
    example = (repository.ROOT / "inventory.py").read_text()
    assert written(example, target, asked=False).written
    assert [path.name for path in tmp_path.iterdir()] == ["inventory.py"]
    named = written("mine = []\n", target, asked=True)
    assert named.kept is not None and named.kept.read_text() == "mine = []\n"
    assert target.read_text() == TEXT


def test_one_of_the_operators_stays(tmp_path: Path) -> None:
    """And the proposal is printed."""
    target = tmp_path / "inventory.py"
    outcome = written("mine = []\n", target, asked=False)
    assert (outcome.path, outcome.written, target.read_text()) == (None, False, "mine = []\n")


def test_how_it_is_called(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One node is none; a place that is not there is refused before a node is reached."""
    assert discover.main(["192.168.1.10"]) == 1
    assert capsys.readouterr().err == (
        "First contact refused; nothing was changed, here or on a node.\n"
        "  1 nodes named; the pair has two, the head first (up to 4 nodes)\n"
    )
    assert discover.main(["a@192.0.2.1", "a@192.0.2.2", "--write", str(tmp_path / "no/x.py"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["refused"] == [
        f"--write {tmp_path}/no/x.py: there is no directory {tmp_path}/no"
    ]
    with pytest.raises(Refused, match="must be an address"):
        discover.place.parse("fe80::1", None)


@dataclass
class _Met:
    """A node that was met, as far as it is asked here."""

    place: Place
    address: IPv4Address
    survey: None = None


def test_a_node_that_is_reached_over_its_rail() -> None:
    """The deploy would set up anew what it comes in by."""
    link = Link("enp1s0f0np0", 9000, (IPv4Interface("10.200.0.1/24"),))
    seen = NodeFacts(True, "alice", "/home/alice", (3, 12), links={link.name: link})
    met = _Met(Place("10.200.0.1", "alice", 22, "10.200.0.1", ()), IPv4Address("10.200.0.1"))
    said = discover._over_a_rail(met, link.name, seen)  # type: ignore[arg-type]
    assert said == (
        "alice@10.200.0.1: is reached over enp1s0f0np0, which is a rail, and a deploy sets that up anew; name its "
        "address on the network that your ssh uses"
    )
    assert discover._over_a_rail(met, "enP2p1s0f0np0", seen) == ""  # type: ignore[arg-type]
