"""What the nodes and their rails must be among each other."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network
from itertools import combinations

from spec.cluster import Settings
from spec.rules.frame import error

# Nodes and rails


@error(
    "rails-same-number",
    "Every node states the same number of rails",
    "A rail is one path between the nodes, so it has an end on each.",
)
def _every_node_has_the_same_number_of_rails(settings: Settings) -> Iterator[str]:
    head, *others = settings.nodes or (None,)
    for node in others:
        if head is not None and len(node.rails) != len(head.rails):
            yield (
                f"inventory: {head.name} has {_count(len(head.rails), 'rail')} and {node.name} has "
                f"{len(node.rails)}; every node states the same rails, in the same order, or none does"
            )


@error(
    "R12-rail-network",
    "Both ends of a rail share a network",
    "NCCL binds to the address range of the rail, and finds no device outside it (NCCL_SUBNET of the reference kit).",
)
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


@error(
    "R12-rails-apart",
    "Each rail of a node has a network of its own",
    "In one network, the node answers for one rail on the other.",
)
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


@error(
    "rails-not-management",
    "No rail is the management network",
    "A rail of that network would take the management traffic, and the way in with it.",
)
def _rails_are_not_the_management_network(settings: Settings) -> Iterator[str]:
    networks = dict.fromkeys((index, rail.network) for node in settings.nodes for index, rail in enumerate(node.rails))
    for node in settings.nodes:
        for index, network in networks:
            if node.management_address in network:
                yield (
                    f"inventory: {node.name}: management address {node.management_address} lies in {network}, the "
                    f"network of rail {index}; give the rail another network, such as {_free_network(settings, index)}"
                )


def _free_network(settings: Settings, index: int) -> IPv4Network:
    """A network for a rail in which no node is managed, and which no rail has."""
    managed = [node.management_address for node in settings.nodes]
    taken = [rail.network for node in settings.nodes for rail in node.rails]
    networks = [IPv4Network(f"10.{number}.{index % 256}.0/24") for number in range(200, 256)]
    free = (one for one in networks if not any(address in one for address in managed))
    return next((one for one in free if not any(one.overlaps(other) for other in taken)), networks[0])


@error("R12-addresses-once", "Each address is stated once", "Two owners of one address answer for each other.")
def _addresses_are_there_once(settings: Settings) -> Iterator[str]:
    owners: dict[IPv4Address, list[str]] = {}
    for node in settings.nodes:
        owners.setdefault(node.management_address, []).append(f"{node.name} (management)")
        for index, rail in enumerate(node.rails):
            owners.setdefault(rail.ip, []).append(f"{node.name} (rail {index})")
    for address, where in owners.items():
        if len(where) > 1:
            yield f"inventory: {address} is stated for {' and '.join(where)}; each needs an address of its own"


@error("R12-devices-once", "Each rail has its own netdev and HCA", "A rail is one netdev and its HCA.")
def _devices_are_there_once(settings: Settings) -> Iterator[str]:
    for node in settings.nodes:
        for (first, one), (second, other) in combinations(enumerate(node.rails), 2):
            for what in ("netdev", "hca"):
                if getattr(one, what) == getattr(other, what):
                    yield (
                        f"inventory: {node.name}: rail {first} and rail {second} both name {what} "
                        f"{getattr(one, what)}; a rail is one netdev and its HCA (rdma link shows the pairs)"
                    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
