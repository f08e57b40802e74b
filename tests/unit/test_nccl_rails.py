"""NCCL over one rail or both: what the launch says, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pyinfra.api.exceptions import DeployError

from node import wire
from spec.render import rank_text, service_text
from spec.stacks import GidIndex
from tests.unit import pair


def variables(knobs: dict[str, Any]) -> list[dict[str, object]]:
    """Each rank's variables that say where NCCL finds the peer."""
    cluster = pair.cluster(knobs)
    names = ("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_RANGE", "NCCL_IB_MERGE_NICS", "NCCL_SOCKET_IFNAME")
    return [
        {name: value for name, value in cluster.launch(node).env if name in names or name.startswith("SPARKPAIR_")}
        for node in cluster.nodes
    ]


def test_one_rail_is_the_reference_launch() -> None:
    head, _ = variables({})
    rail = pair.cluster({}).head.rails[0]
    assert head == {
        "NCCL_IB_HCA": "rocep1s0f0",
        "NCCL_IB_GID_INDEX": GidIndex("rocep1s0f0", rail.ip),
        "NCCL_IB_ADDR_RANGE": "10.200.0.0/24",
        "NCCL_SOCKET_IFNAME": "enp1s0f0np0",
        "NCCL_IB_MERGE_NICS": "0",
    }


@pytest.mark.report("NET-12")
def test_two_rails_are_named_and_their_gids_looked_up_each() -> None:
    """NCCL would take one index for both HCAs, so it is given the networks; the agent looks for both GIDs."""
    _, worker = variables({"nccl_rails": 2})
    one, two = pair.cluster({}).workers[0].rails
    assert worker == {
        "NCCL_IB_HCA": "rocep1s0f1,roceP2p1s0f1",
        "SPARKPAIR_GID_INDEX_0": GidIndex("rocep1s0f1", one.ip),
        "SPARKPAIR_GID_INDEX_1": GidIndex("roceP2p1s0f1", two.ip),
        "NCCL_IB_ADDR_RANGE": "10.200.0.0/23",
        "NCCL_SOCKET_IFNAME": "enp1s0f1np1",
        "NCCL_IB_MERGE_NICS": "1",
    }


def test_the_agent_is_told_of_both() -> None:
    """The rank's text names both GIDs, and the keeper watches both netdevs."""
    cluster = pair.cluster({"nccl_rails": 2})
    spec = wire.parse_rank(rank_text(cluster, cluster.head))
    looked_up = [value for _, value in spec.env if isinstance(value, wire.GidIndex)]
    assert looked_up == [
        wire.GidIndex("rocep1s0f0", "10.200.0.1"),
        wire.GidIndex("roceP2p1s0f0", "10.200.1.1"),
    ]
    assert '["enp1s0f0np0","enP2p1s0f0np0"]' in service_text(cluster).replace(" ", "").replace("\n", "")


@pytest.mark.parametrize(
    ("knobs", "rails", "says"),
    [
        ({"nccl_rails": 2}, 1, "nccl_rails = 2: spark-a has one rail; state both of its port in the inventory"),
        ({"nccl_rails": 2, "nccl_ib_gid_index": 3}, 2, "nccl_ib_gid_index = 3 (spark-a) would hold for both HCAs"),
        ({"nccl_rails": 3}, 2, "nccl_rails = 3: must be at most 2"),
    ],
)
def test_what_cannot_be_is_refused(knobs: dict[str, Any], rails: int, says: str) -> None:
    head = pair.node(pair.HEAD, rails=pair.HEAD["rails"][:rails])
    worker = pair.node(pair.WORKER, rails=pair.WORKER["rails"][:rails])
    with pytest.raises(DeployError) as refused:
        pair.settings(knobs, head=head, worker=worker)
    assert says in str(refused.value)
