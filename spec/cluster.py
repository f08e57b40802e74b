"""Settings (what is stated) and Cluster (what is resolved)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import PurePosixPath
from typing import Literal

from pydantic import BaseModel, ConfigDict

from spec.knobs import Knobs
from spec.lock import Lock
from spec.presets import values_of
from spec.stacks import STACKS, Launch, Seat, Stack

Position = Literal["head", "worker"]


class Frozen(BaseModel):
    """A value that does not change once it is made."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Rail(Frozen):
    """One network path between the nodes. One QSFP port carries two: two netdevs on separate PCIe links, one cable."""

    netdev: str
    hca: str
    address: IPv4Interface

    @property
    def ip(self) -> IPv4Address:
        return self.address.ip

    @property
    def network(self) -> IPv4Network:
        return self.address.network


class StatedNode(Frozen):
    """A node as the inventory states it; paths may still start with ~/."""

    name: str
    rank: int
    position: Position
    local: bool
    management_address: IPv4Address
    rails: tuple[Rail, ...] = ()
    """None stated: they are found (spec.discovery)."""
    weights_path: str | None = None
    drafter_path: str | None = None
    cache_path: str | None = None
    bundle_path: str | None = None
    nccl_ib_gid_index: int | None = None


class Settings(Frozen):
    """All that the operator stated, validated: the knobs as stated, the nodes in rank order, and what is locked."""

    knobs: Knobs
    nodes: tuple[StatedNode, ...]
    lock: Lock | None = None
    """None: there is no lock file, so nothing is downloaded."""

    @property
    def stack(self) -> Stack:
        return STACKS[self.knobs.stack]

    @cached_property
    def effective(self) -> Knobs:
        """The knobs: as stated, else as the preset says, else as the stack says."""
        return self.stack.effective(self.knobs, values_of(self.knobs.preset))

    def path(self, node: StatedNode, knob: str) -> str:
        """A node's path as stated for it, for the pair or by the stack; "" where there is none. ~/ still stands."""
        own = getattr(node, knob)
        return str((getattr(self.effective, knob) if own is None else own) or "")

    @property
    def nfs_rank(self) -> int | None:
        """The rank whose node holds the weights for all; None where each node holds them."""
        if self.effective.weights != "nfs":
            return None
        return 0 if self.effective.nfs_server == "head" else 1

    def mounts_weights(self, node: StatedNode) -> bool:
        """Whether a node reads the weights of another one over NFS."""
        return self.nfs_rank not in (None, node.rank)

    def gid_index(self, node: StatedNode) -> int | None:
        """The row of the GID table that is stated for a node or for all; None where it is looked up."""
        own = node.nccl_ib_gid_index
        return self.effective.nccl_ib_gid_index if own is None else own


class Node(Frozen):
    """A node with everything known: every path is absolute."""

    name: str
    rank: int
    position: Position
    local: bool
    management_address: IPv4Address
    rails: tuple[Rail, ...]
    user: str
    home: str
    weights_path: str
    drafter_path: str | None
    cache_path: str
    nccl_ib_gid_index: int | None = None
    bundle_path: str | None = None

    @property
    def is_head(self) -> bool:
        return self.rank == 0

    @property
    def first_rail(self) -> Rail:
        """The rail that the ranks meet on. Whoever asks for an image alone, and of rails that are not found, gets one
        that is nowhere: no deploy gets that far."""
        return self.rails[0] if self.rails else Rail(netdev="none", hca="none", address=IPv4Interface("0.0.0.0/32"))


@dataclass(frozen=True)
class Cluster:
    """What is to be made true: settings and nodes, resolved."""

    settings: Settings
    nodes: tuple[Node, ...]

    @property
    def stack(self) -> Stack:
        return self.settings.stack

    @property
    def knobs(self) -> Knobs:
        """The effective knobs."""
        return self.settings.effective

    @property
    def head(self) -> Node:
        return self.nodes[0]

    @property
    def workers(self) -> tuple[Node, ...]:
        return self.nodes[1:]

    def node(self, name: str) -> Node:
        """The node of that inventory name."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(f"no node {name}; there are {', '.join(node.name for node in self.nodes)}")

    def peers(self, node: Node) -> tuple[Node, ...]:
        """Every node but this one."""
        return tuple(other for other in self.nodes if other.rank != node.rank)

    def seat(self, node: Node) -> Seat:
        """The node's place in the launch. NCCL runs on the first rail, or on the first two."""
        rail = node.first_rail
        return Seat(
            rank=node.rank,
            ranks=len(self.nodes),
            netdev=rail.netdev,
            hca=rail.hca,
            address=rail.ip,
            network=rail.network,
            further=tuple((more.hca, more.ip, more.network) for more in node.rails[1 : self.knobs.nccl_rails]),
            master_address=self.head.first_rail.ip,
            weights_path=node.weights_path,
            drafter_path=node.drafter_path,
            cache_path=node.cache_path,
            # As stated for the head, wherever it reads them from: NFS does not change the model's name for clients.
            model_directory=PurePosixPath(self.settings.path(self.settings.nodes[0], "weights_path")).name,
            gid_index=node.nccl_ib_gid_index,
        )

    def launch(self, node: Node) -> Launch:
        """The node's rank as Docker is to start it."""
        return self.stack.launch(self.knobs, self.seat(node))

    def mounts_weights(self, node: Node) -> bool:
        """Whether a node reads the weights of another one over NFS."""
        return self.settings.nfs_rank not in (None, node.rank)

    @property
    def nfs_server(self) -> Node | None:
        """The node that exports the weights; None where each node holds them."""
        return None if self.settings.nfs_rank is None else self.nodes[self.settings.nfs_rank]

    def holder(self, node: Node, path: str) -> tuple[Node, str]:
        """On which node the files lie that a node sees at a path of its launch, and where there."""
        server = self.nfs_server
        if server is not None and self.mounts_weights(node) and path == node.weights_path:
            return server, server.weights_path
        return node, path

    def bundle(self, node: Node, name: str) -> str:
        """Where a node's bundle holds the weights or the drafter; "" where the node has none."""
        return f"{node.bundle_path}/{name}" if node.bundle_path else ""

    @property
    def start_order(self) -> tuple[int, ...]:
        """Ranks in the order in which the keeper starts them."""
        workers = tuple(node.rank for node in self.workers)
        return (*workers, 0) if self.stack.start_order == "workers-first" else (0, *workers)

    @property
    def image(self) -> str:
        """The engine's image, by digest."""
        return self.launch(self.head).image

    @property
    def container_name(self) -> str:
        """The name of each rank's container."""
        return self.launch(self.head).name

    @property
    def served_model_name(self) -> str:
        """The model's name for clients."""
        return self.stack.served_name(self.knobs, self.seat(self.head))

    @property
    def api_port(self) -> int:
        return self.knobs.api_port

    def call_name(self, node: Node) -> str:
        """What the keeper calls a node: by position, so that the head may be reached by ssh today and be the control
        machine itself tomorrow without any wanted text changing."""
        if node.is_head:
            return "head"
        return "worker" if len(self.nodes) == 2 else f"worker{node.rank}"

    @property
    def ports(self) -> tuple[int, ...]:
        """TCP ports that the engine listens on, on the head."""
        return (self.knobs.api_port, self.knobs.master_port)
