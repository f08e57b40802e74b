"""Settings (what is stated), Cluster (what is resolved), and the rules that span knobs and nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from itertools import combinations
from pathlib import PurePosixPath
from typing import Literal

from pydantic import BaseModel, ConfigDict

from spec.knobs import KNOBS, Knobs, shown
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
    rails: tuple[Rail, ...]
    weights_path: str | None = None
    drafter_path: str | None = None
    cache_path: str | None = None


class Settings(Frozen):
    """All that the operator stated, validated: the knobs as stated, and the nodes in rank order."""

    knobs: Knobs
    nodes: tuple[StatedNode, ...]

    @property
    def stack(self) -> Stack:
        return STACKS[self.knobs.stack]

    @cached_property
    def effective(self) -> Knobs:
        """The knobs with the stack's defaults where nothing is stated."""
        return self.stack.effective(self.knobs)

    def path(self, node: StatedNode, knob: str) -> str:
        """A node's path as stated for it, for the pair or by the stack; "" where there is none. ~/ still stands."""
        own = getattr(node, knob)
        return str((getattr(self.effective, knob) if own is None else own) or "")


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

    @property
    def is_head(self) -> bool:
        return self.rank == 0


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
        """The node's place in the launch. NCCL runs on the first rail."""
        rail = node.rails[0]
        return Seat(
            rank=node.rank,
            ranks=len(self.nodes),
            netdev=rail.netdev,
            hca=rail.hca,
            address=rail.ip,
            network=rail.network,
            master_address=self.head.rails[0].ip,
            weights_path=node.weights_path,
            drafter_path=node.drafter_path,
            cache_path=node.cache_path,
            model_directory=PurePosixPath(self.head.weights_path).name,
        )

    def launch(self, node: Node) -> Launch:
        """The node's rank as Docker is to start it."""
        return self.stack.launch(self.knobs, self.seat(node))

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


@dataclass(frozen=True)
class Rule:
    """One cross rule: it yields a line per breach, complete in itself, with the fix. It is not asked while a knob that
    it reads was refused by itself, so that one mistake gives one line."""

    reads: frozenset[str]
    breaches: Callable[[Settings], Iterator[str]]


_RULES: list[Rule] = []


def _rule(*reads: str) -> Callable[[Callable[[Settings], Iterator[str]]], Callable[[Settings], Iterator[str]]]:
    def register(breaches: Callable[[Settings], Iterator[str]]) -> Callable[[Settings], Iterator[str]]:
        unknown = set(reads) - set(KNOBS)
        if unknown:
            raise TypeError(f"{breaches.__name__} reads {unknown}, which are no knobs")
        _RULES.append(Rule(frozenset(reads), breaches))
        return breaches

    return register


def broken_rules(settings: Settings, refused: Collection[str] = ()) -> list[str]:
    """A line for each cross rule that the settings break. `refused` names knobs whose stated value is refused already;
    they stand unset in the settings."""
    return [line for rule in _RULES if rule.reads.isdisjoint(refused) for line in rule.breaches(settings)]


# Nodes and rails


@_rule()
def _every_node_has_the_same_number_of_rails(settings: Settings) -> Iterator[str]:
    head, *others = settings.nodes or (None,)
    for node in others:
        if head is not None and len(node.rails) != len(head.rails):
            yield (
                f"inventory: {head.name} has {_count(len(head.rails), 'rail')} and {node.name} has "
                f"{len(node.rails)}; every node states the same rails, in the same order"
            )


@_rule()
def _both_ends_of_a_rail_share_a_network(settings: Settings) -> Iterator[str]:
    head, *others = settings.nodes or (None,)
    for node in others:
        for index, (here, there) in enumerate(zip(head.rails if head else (), node.rails, strict=False)):
            if head is not None and here.network != there.network:
                same_length = here.network.prefixlen == there.network.prefixlen
                seen = (str(here.ip), str(there.ip)) if same_length else (str(here.address), str(there.address))
                yield (
                    f"rail {index}: {head.name} has {seen[0]} and {node.name} has {seen[1]}; "
                    f"both ends of a rail must share one /{here.network.prefixlen}"
                )


@_rule()
def _rails_are_apart(settings: Settings) -> Iterator[str]:
    for node in settings.nodes:
        for (first, one), (second, other) in combinations(enumerate(node.rails), 2):
            if one.ip == other.ip:
                continue  # said as an address that is there twice
            if one.network.overlaps(other.network):
                yield (
                    f"inventory: {node.name}: rail {first} is in {one.network} and rail {second} in {other.network}; "
                    f"each rail needs a network of its own, or the node answers for one on the other"
                )


@_rule()
def _rails_are_not_the_management_network(settings: Settings) -> Iterator[str]:
    networks = dict.fromkeys((index, rail.network) for node in settings.nodes for index, rail in enumerate(node.rails))
    for node in settings.nodes:
        for index, network in networks:
            if node.management_address in network:
                yield (
                    f"inventory: {node.name}: management address {node.management_address} lies in {network}, the "
                    f"network of rail {index}; give the rail another network, such as 10.200.{index}.0/24"
                )


@_rule()
def _addresses_are_there_once(settings: Settings) -> Iterator[str]:
    owners: dict[IPv4Address, list[str]] = {}
    for node in settings.nodes:
        owners.setdefault(node.management_address, []).append(f"{node.name} (management)")
        for index, rail in enumerate(node.rails):
            owners.setdefault(rail.ip, []).append(f"{node.name} (rail {index})")
    for address, where in owners.items():
        if len(where) > 1:
            yield f"inventory: {address} is stated for {' and '.join(where)}; each needs an address of its own"


@_rule()
def _devices_are_there_once(settings: Settings) -> Iterator[str]:
    for node in settings.nodes:
        for (first, one), (second, other) in combinations(enumerate(node.rails), 2):
            for what in ("netdev", "hca"):
                if getattr(one, what) == getattr(other, what):
                    yield (
                        f"inventory: {node.name}: rail {first} and rail {second} both name {what} "
                        f"{getattr(one, what)}; a rail is one netdev and its HCA (rdma link shows the pairs)"
                    )


# Knobs among each other


@_rule("watch_interval_seconds", "lease_seconds")
def _some_looks_may_fail(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    if knobs.lease_seconds <= 3 * knobs.watch_interval_seconds:
        yield (
            f"lease_seconds = {knobs.lease_seconds}: must be above 3 times watch_interval_seconds "
            f"({knobs.watch_interval_seconds}), so that a rank does not stop because of three looks that failed"
        )


@_rule("backoff_seconds", "backoff_max_seconds")
def _the_longest_pause_is_the_longest(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    if knobs.backoff_max_seconds < knobs.backoff_seconds:
        longest, first = knobs.backoff_max_seconds, knobs.backoff_seconds
        yield f"backoff_max_seconds = {longest}: must be at least backoff_seconds ({first})"


@_rule("canary_timeout_seconds", "ready_timeout_seconds")
def _a_start_has_time_for_its_canary(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    if knobs.canary_timeout_seconds >= knobs.ready_timeout_seconds:
        yield (
            f"canary_timeout_seconds = {knobs.canary_timeout_seconds}: must be below ready_timeout_seconds "
            f"({knobs.ready_timeout_seconds}): a start includes a canary"
        )


@_rule("api_port", "master_port")
def _ports_are_apart(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    if knobs.api_port == knobs.master_port:
        yield f"master_port = {knobs.master_port}: is api_port as well; each needs a port of its own"


@_rule("tensor_parallel_size")
def _one_rank_per_node(settings: Settings) -> Iterator[str]:
    size, nodes = settings.effective.tensor_parallel_size, len(settings.nodes)
    if size is not None and nodes > 1 and size != nodes:
        yield f"tensor_parallel_size = {size}: there are {nodes} nodes with one GPU each; set {nodes} or leave it out"


@_rule("stack", "image")
def _there_is_an_image(settings: Settings) -> Iterator[str]:
    if settings.effective.image is None:
        yield f'image: stack {settings.stack.name} has none of its own; set image = "repository@sha256:..."'


@_rule("stack", "weights_path")
def _there_are_weights(settings: Settings) -> Iterator[str]:
    for node in settings.nodes:
        if not settings.path(node, "weights_path"):
            yield (
                f"weights_path: stack {settings.stack.name} has none of its own and {node.name} states none; "
                f"set it in group_data/all.py, or in that node's data in the inventory"
            )


@_rule("stack", "speculative_method", "drafter_path")
def _there_is_a_drafter(settings: Settings) -> Iterator[str]:
    method = settings.effective.speculative_method
    if method in settings.stack.needs_drafter:
        for node in settings.nodes:
            if not settings.path(node, "drafter_path"):
                yield (
                    f"drafter_path: {node.name} has none and speculative_method is {method}; set drafter_path, "
                    f'or speculative_method = "" for none'
                )


@_rule("stack", "speculative_method", "speculative_tokens")
def _a_method_knows_its_tokens(settings: Settings) -> Iterator[str]:
    knobs, known = settings.effective, settings.stack.speculative_tokens
    if knobs.speculative_method and knobs.speculative_tokens is None and knobs.speculative_method not in known:
        yield (
            f"speculative_tokens: stack {settings.stack.name} has no number for method {knobs.speculative_method}; "
            f"set speculative_tokens"
        )


@_rule("stack")
def _a_knob_of_another_stack(settings: Settings) -> Iterator[str]:
    for name, knob in KNOBS.items():
        stated = getattr(settings.knobs, name)
        if knob.only and knob.only.stack != settings.stack.name and stated is not None:
            yield (
                f"{name} = {shown(stated)}: only the engine of stack {knob.only.stack} knows it, and the stack is "
                f"{settings.stack.name}; leave it out"
            )


@_rule("stack", "speculative_method", "weights_path", "drafter_path", "cache_path")
def _directories_are_apart(settings: Settings) -> Iterator[str]:
    names = ["weights_path", "cache_path"]
    if settings.effective.speculative_method in settings.stack.needs_drafter:
        names.append("drafter_path")
    for node in settings.nodes:
        for one, other in combinations(names, 2):
            first, second = settings.path(node, one), settings.path(node, other)
            if not first or not second:
                continue
            if first == second:
                yield f"{other} = {shown(second)}: is {one} as well on {node.name}; each needs a directory of its own"
            elif first in _above(second):
                yield f"{other} = {shown(second)}: lies in {one} ({first}) on {node.name}; put it elsewhere"
            elif second in _above(first):
                yield f"{one} = {shown(first)}: lies in {other} ({second}) on {node.name}; put it elsewhere"


@_rule("stack", "engine_env")
def _a_variable_is_set_once(settings: Settings) -> Iterator[str]:
    stated = {item.partition("=")[0] for item in settings.knobs.engine_env}
    of_knobs = {variable: name for name, knob in KNOBS.items() if knob.env for variable in knob.env.names}
    for variable in sorted(stated & set(of_knobs)):
        yield f"engine_env: {variable} is what the knob {of_knobs[variable]} sets; use that"
    for variable in sorted((stated & settings.stack.variables) - set(of_knobs)):
        yield f"engine_env: {variable} is set by stack {settings.stack.name} itself; leave it out"


def _above(path: str) -> set[str]:
    return {str(parent) for parent in PurePosixPath(path).parents}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
