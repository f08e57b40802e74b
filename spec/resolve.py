"""Settings + facts -> Cluster: what only the nodes know, their rails among it where these are not stated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from spec.cluster import Cluster, Node, Rail, Settings, StatedNode
from spec.objects import MOUNT_POINT


class NodeFacts(Protocol):
    """What resolve reads from a node's facts."""

    @property
    def user(self) -> str:
        """The user that pyinfra logs in as (not root, even where sudo is used)."""

    @property
    def home(self) -> str:
        """That user's home directory."""


def resolve(
    settings: Settings,
    facts_by_name: Mapping[str, NodeFacts],
    rails: Mapping[str, tuple[Rail, ...]] | None = None,
) -> Cluster:
    """The cluster. `facts_by_name` has an entry for every node of the settings, and so have `rails` where they were
    found (spec.discovery); otherwise they are those that are stated."""
    nodes = (
        _node(settings, stated, facts_by_name[stated.name], stated.rails if rails is None else rails[stated.name])
        for stated in settings.nodes
    )
    return Cluster(settings=settings, nodes=tuple(nodes))


def _node(settings: Settings, stated: StatedNode, facts: NodeFacts, rails: tuple[Rail, ...]) -> Node:
    def path(knob: str) -> str:
        return expand(settings.path(stated, knob), facts.home)

    return Node(
        name=stated.name,
        rank=stated.rank,
        position=stated.position,
        local=stated.local,
        management_address=stated.management_address,
        rails=rails,
        user=facts.user,
        home=facts.home,
        weights_path=MOUNT_POINT if settings.mounts_weights(stated) else path("weights_path"),
        drafter_path=path("drafter_path") or None,
        cache_path=path("cache_path"),
        nccl_ib_gid_index=settings.gid_index(stated),
        bundle_path=path("bundle_path") or None,
    )


def expand(path: str, home: str) -> str:
    """The path with ~/ replaced by that node's own home."""
    return f"{home.rstrip('/')}/{path[2:]}" if path.startswith("~/") else path
