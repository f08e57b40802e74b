"""A pair to test with: two hosts as pyinfra states them, and what is loaded and resolved from them.

The nodes differ in everything that may differ: user, home, netdev names, HCAs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spec.cluster import Cluster, Settings
from spec.load import Source, StatedHost, connection_keys, load
from spec.resolve import resolve

DIGEST = "sha256:" + "5" * 64
CPU_IMAGE = f"192.168.77.1:5000/vllm-cpu@{DIGEST}"

HEAD: dict[str, Any] = {
    "ssh_hostname": "192.168.1.10",
    "ssh_user": "alice",
    "rails": [
        {"netdev": "enp1s0f0np0", "hca": "rocep1s0f0", "address": "10.200.0.1/24"},
        {"netdev": "enP2p1s0f0np0", "hca": "roceP2p1s0f0", "address": "10.200.1.1/24"},
    ],
}
WORKER: dict[str, Any] = {
    "ssh_hostname": "192.168.1.11",
    "ssh_user": "bob",
    "rails": [
        {"netdev": "enp1s0f1np1", "hca": "rocep1s0f1", "address": "10.200.0.2/24"},
        {"netdev": "enP2p1s0f1np1", "hca": "roceP2p1s0f1", "address": "10.200.1.2/24"},
    ],
}
UPSTREAM: dict[str, Any] = {"stack": "vllm", "image": CPU_IMAGE, "weights_path": "/srv/models/tiny"}
"""The least that the upstream stack must be told."""

CONNECTION = connection_keys()


@dataclass(frozen=True)
class Facts:
    """What resolve reads of a node."""

    user: str
    home: str


FACTS = {
    "spark-a": Facts("alice", "/home/alice"),
    "spark-b": Facts("bob", "/srv/bob"),
    **{name: Facts(name, f"/home/{name}") for name in ("spark-c", "spark-d", "spark-e", "spark-f")},
}


def node(base: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """A node's inventory data with changes; a change to None takes the key out."""
    data = {**copy.deepcopy(dict(base)), **changes}
    return {key: value for key, value in data.items() if value is not None}


def third(index: int = 3) -> dict[str, Any]:
    """Another worker."""
    return {
        "ssh_hostname": f"192.168.1.1{index}",
        "rails": [
            {"netdev": "enp1s0f0np0", "hca": "rocep1s0f0", "address": f"10.200.0.{index}/24"},
            {"netdev": "enP2p1s0f0np0", "hca": "roceP2p1s0f0", "address": f"10.200.1.{index}/24"},
        ],
    }


def host(
    name: str,
    group: str | tuple[str, ...],
    own: Mapping[str, object],
    everywhere: Mapping[str, object] | None = None,
    cli: Mapping[str, object] | None = None,
    grouped: Mapping[str, object] | None = None,
) -> StatedHost:
    """A host as pyinfra states it, its data by door."""
    groups = (group,) if isinstance(group, str) else group
    sources = [Source("--data", cli or {}), Source(f"inventory: {name}", own, of_one_node=True)]
    if grouped:
        sources.append(Source(f"group_data/{groups[0]}.py", grouped))
    sources.append(Source("group_data/all.py", everywhere or {}))
    return StatedHost(name, groups, name.startswith("@local"), tuple(sources))


def hosts(
    everywhere: Mapping[str, object] | None = None,
    head: Mapping[str, object] = HEAD,
    worker: Mapping[str, object] = WORKER,
    cli: Mapping[str, object] | None = None,
    more: int = 0,
) -> list[StatedHost]:
    """The pair, and `more` workers."""
    pair = [host("spark-a", "head", head, everywhere, cli), host("spark-b", "worker", worker, everywhere, cli)]
    return pair + [host(f"spark-{'cdef'[i]}", "worker", third(i + 3), everywhere, cli) for i in range(more)]


def settings(everywhere: Mapping[str, object] | None = None, **arguments: Any) -> Settings:
    """The pair's settings; `everywhere` is group_data/all.py."""
    return load(hosts(everywhere, **arguments), CONNECTION)


def cluster(everywhere: Mapping[str, object] | None = None, **arguments: Any) -> Cluster:
    """The pair, resolved."""
    return resolve(settings(everywhere, **arguments), FACTS)
