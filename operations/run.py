"""One run of a verb over all nodes: the cluster, and what is true on each node."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pyinfra.api.exceptions import DeployError
from pyinfra.api.host import Host
from pyinfra.api.inventory import Inventory
from pyinfra.context import ctx_host, ctx_inventory, ctx_state

import node as node_package
from checks import nfs, outlook
from checks.memory import EARLYOOM_SETTINGS, OTHER_GUARDS
from facts.gate import PATH as GATE
from facts.node import Query, node_facts
from facts.values import DEEP_RESULT, KEEPER_STATE, LEASE, MEMORY, STATUS, NodeFacts
from node import wire
from node.paths import ENGINE_CGROUPS
from spec import objects
from spec.cluster import Cluster, Node, Settings, StatedNode

TRANSIENT_UNITS = (
    "sparkpair-weights-hash.service",
    "sparkpair-weights-serve.service",
    "sparkpair-stage.service",
    "sparkpair-image-pull.service",
    "sparkpair-image-registry.service",
    "sparkpair-nfs-prove.service",
)
NFS_UNITS = (objects.NFS_SERVER_UNIT, objects.MOUNT_UNIT)
TOOLS = (
    "docker",
    "exportfs",
    "ib_write_bw",
    "ib_write_lat",
    "ip",
    "iperf3",
    "mount.nfs4",
    "netplan",
    "nvidia-ctk",
    "ssh",
    "ssh-keygen",
    "systemd-run",
    "useradd",
)


@dataclass(frozen=True)
class Run:
    """What every role is given: what is wanted, and a look at any node."""

    cluster: Cluster
    hosts: Mapping[str, Host]

    @property
    def node(self) -> Node:
        """The node that is being prepared or worked on."""
        return self.cluster.node(ctx_host.get().name)

    @property
    def host(self) -> Host:
        return self.hosts[self.node.name]

    def seen(self, node: Node | None = None) -> NodeFacts:
        """The facts of a node, this one's by default."""
        name = (node or self.node).name
        return node_facts(self.hosts[name], query(self.cluster.settings, _stated(self.cluster.settings, name)))

    def all_seen(self) -> dict[str, NodeFacts]:
        """The facts of every node, by name."""
        return {node.name: self.seen(node) for node in self.cluster.nodes}

    @cached_property
    def programs(self) -> dict[str, bytes]:
        """The programs that a node gets, by path."""
        return wire.programs(Path(node_package.__file__ or "").parent)

    @cached_property
    def programs_hash(self) -> str:
        return wire.programs_hash(self.programs)


def begin(settings: Settings, resolve: Callable[[Settings, Mapping[str, NodeFacts]], Cluster]) -> Run:
    """Look at every node, each host of pyinfra at its own first, and resolve the cluster."""
    inventory: Inventory = ctx_inventory.get()
    hosts = {host.name: host for host in inventory}
    left_out = [name for name, host in hosts.items() if not ctx_state.get().is_host_in_limit(host)]
    if left_out:
        raise DeployError(
            "Preflight refused; no node was changed.\n"
            f"  this run leaves out {', '.join(left_out)}: the nodes serve as one, so they are deployed as one.\n"
            "    Fix: run again without --limit and --exclude"
        )
    mine = ctx_host.get().name
    order = sorted(settings.nodes, key=lambda node: node.name != mine)
    facts = {node.name: node_facts(hosts[node.name], query(settings, node)) for node in order}
    return Run(cluster=resolve(settings, facts), hosts={node.name: hosts[node.name] for node in settings.nodes})


def query(settings: Settings, node: StatedNode) -> Query:
    """All that any role or check asks about one node, in one question."""
    knobs = settings.effective
    paths = {"weights": node.weights_path or knobs.weights_path, "drafter": node.drafter_path or knobs.drafter_path}
    content = {name: str(path) for name, path in paths.items() if path}
    return Query(
        files=tuple(
            item.path
            for item in objects.OBJECTS
            if item.path.startswith("/")
            and item.where.holds(node.rank == 0)
            and not set("*<") & set(item.path)
            # Whoever looks at it waits for the server: `mounts` does, and does not wait.
            and item.path != objects.MOUNT_POINT
        ),
        texts=(
            f"{objects.KEY_FILE}.pub",
            nfs.TABLE,
            EARLYOOM_SETTINGS,
            objects.GOOD_HOST,
            *((objects.KNOWN_HOSTS,) if node.rank == 0 else ()),
            *outlook.texts(len(settings.nodes), node.rank == 0),
        ),
        trees=(objects.LIB,),
        documents=(LEASE, STATUS, KEEPER_STATE, DEEP_RESULT, MEMORY, *((GATE,) if node.rank == 0 else ())),
        accounts=(objects.USER,),
        tools=TOOLS,
        netdevs=tuple(rail.netdev for rail in node.rails),
        images=(str(knobs.image),),
        units=(
            objects.AGENT_UNIT,
            objects.KEEPER_UNIT,
            objects.DEEP_UNIT,
            objects.DEEP_TIMER,
            objects.RECORDER_UNIT,
            *objects.PROTECTED_UNITS,
            *OTHER_GUARDS,
            *NFS_UNITS,
            *TRANSIENT_UNITS,
        ),
        content=content,
        state=f"{objects.VAR}/weights",
        mounts=(objects.MOUNT_POINT,),
        secrets=(objects.API_KEY_FILE,) if node.rank == 0 and knobs.require_api_key else (),
        overlays=settings.stack.overlays,
        disks=(*content.values(), objects.VAR),
        ports=(knobs.api_port, knobs.master_port),
        gpu=True,
        cgroups=tuple(str(cgroup) for cgroup in ENGINE_CGROUPS) if knobs.memory_used_max_gib else (),
        host="full" if os.environ.get("SPARKPAIR_DOCTOR") == "1" else "brief",
    )


def digest(text: str) -> str:
    """sha256 of a text as the probe reports it for a file."""
    return hashlib.sha256(text.encode()).hexdigest()


def _stated(settings: Settings, name: str) -> StatedNode:
    return next(node for node in settings.nodes if node.name == name)
