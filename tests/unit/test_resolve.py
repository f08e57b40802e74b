"""What only the nodes know comes into the cluster: each node's own home, its own paths."""

from __future__ import annotations

import pytest

from spec.resolve import expand
from tests.unit import pair


@pytest.mark.parametrize(
    ("path", "home", "expanded"),
    [
        ("~/models/x", "/home/alice", "/home/alice/models/x"),
        ("~/models/x", "/home/alice/", "/home/alice/models/x"),
        ("~/x", "/", "/x"),
        ("/srv/x", "/home/alice", "/srv/x"),
        ("", "/home/alice", ""),
    ],
)
def test_expand(path: str, home: str, expanded: str) -> None:
    """~/ is the node's own home; everything else stays."""
    assert expand(path, home) == expanded


def test_each_node_has_its_own_home() -> None:
    """One setting, two users, two places."""
    cluster = pair.cluster({"weights_path": "~/w"}, worker=pair.node(pair.WORKER, cache_path="/data/cache"))
    assert [(node.user, node.home, node.weights_path) for node in cluster.nodes] == [
        ("alice", "/home/alice", "/home/alice/w"),
        ("bob", "/srv/bob", "/srv/bob/w"),
    ]
    assert [node.cache_path for node in cluster.nodes] == ["/home/alice/glm53-vllm-cache", "/data/cache"]


def test_cluster_is_navigable() -> None:
    """Head, workers, peers, by name."""
    cluster = pair.cluster(more=1)
    assert cluster.head.name == "spark-a"
    assert [node.name for node in cluster.workers] == ["spark-b", "spark-c"]
    assert [node.name for node in cluster.peers(cluster.workers[0])] == ["spark-a", "spark-c"]
    assert cluster.node("spark-c").rank == 2
    assert cluster.start_order == (1, 2, 0)
    with pytest.raises(KeyError, match="there are spark-a, spark-b, spark-c"):
        cluster.node("spark-x")


def test_ranks_are_the_nodes() -> None:
    """Written for N: the launch counts the nodes."""
    cluster = pair.cluster(more=2)
    flags = dict(group for group in cluster.launch(cluster.workers[-1]).command if len(group) == 2)
    assert (flags["--nnodes"], flags["--node-rank"], flags["--tensor-parallel-size"]) == ("4", "3", "4")


def test_served_name_is_the_heads() -> None:
    """An unnamed model is called by its directory on the head, on every rank."""
    cluster = pair.cluster(pair.UPSTREAM, worker=pair.node(pair.WORKER, weights_path="/data/copy-of-it"))
    assert cluster.served_model_name == "tiny"
    assert {cluster.launch(node).command[0] for node in cluster.nodes} == {("vllm", "serve", "/models/tiny")}


def test_a_name_with_a_colon_mounts() -> None:
    """Docker splits a volume at its colons; the model's name may have one."""
    cluster = pair.cluster({**pair.UPSTREAM, "served_model_name": "org/tiny:v1"})
    launch = cluster.launch(cluster.head)
    assert launch.mounts[0] == ("/srv/models/tiny", "/models/org-tiny-v1", "ro")
    assert launch.command[:2] == (("vllm", "serve", "/models/org-tiny-v1"), ("--served-model-name", "org/tiny:v1"))
