"""Addresses for rails whose netdevs were found: those that are there already, else some out of rail_network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network
from itertools import combinations

from spec.ports import Look, Port, Remark

PREFIX = 24
"""Of the networks that rails get out of rail_network."""

Row = list[IPv4Interface]
"""A rail's addresses, one per node in rank order; empty where they are not all there."""


@dataclass(frozen=True)
class Pool:
    """Where addresses are taken from; `insisted` where the operator stated it: then also for rails that have some."""

    network: IPv4Network
    insisted: bool = False


def addresses(
    looks: Sequence[Look], chosen: Mapping[str, Sequence[Port]], kept: Sequence[Row], pool: Pool
) -> tuple[list[Row], list[Remark], list[Remark]]:
    """A row for each rail, refusals, and notes. `kept` are the rows of our own files, [] where these do not agree."""
    count = len(next(iter(chosen.values())))
    there = [_there(looks, chosen, number) for number in range(count)]
    for rows in () if pool.insisted else (kept[:count], there):
        if len(rows) == count and all(rows) and _apart(rows):
            return list(rows), [], []
    given = [_given(looks, number, pool.network) for number in range(count)]
    refusals = list(_taken(looks, chosen, given, pool.network))
    return given, refusals, [] if pool.insisted else list(_readdressed(looks, chosen, given))


def _there(looks: Sequence[Look], chosen: Mapping[str, Sequence[Port]], number: int) -> Row:
    """The addresses that a rail's netdevs have in one network."""
    ends = [_usable(chosen[look.name][number].addresses) for look in looks]
    for address in ends[0]:
        row = [next((other for other in end if other.network == address.network), None) for end in ends]
        managed = any(look.management in address.network for look in looks)
        whole = [end for end in row if end is not None]
        if len(whole) == len(row) and len({end.ip for end in whole}) == len(row) and not managed:
            return whole
    return []


def _usable(held: Iterable[IPv4Interface]) -> list[IPv4Interface]:
    """Those that may be a rail's, by the rules for stated ones; link-local ones change (field reports: NET-18)."""
    return [
        address
        for address in held
        if not address.is_link_local
        and not address.is_loopback
        and 16 <= address.network.prefixlen <= 30
        and address.ip not in (address.network.network_address, address.network.broadcast_address)
    ]


def _apart(rows: Sequence[Row]) -> bool:
    """Whether the rails have networks of their own."""
    return not any(one[0].network.overlaps(other[0].network) for one, other in combinations(rows, 2))


def _given(looks: Sequence[Look], number: int, network: IPv4Network) -> Row:
    """Rail 0 has the first /24, rail 1 the second; the head is .1."""
    base = network.network_address + number * 2 ** (32 - PREFIX)
    return [IPv4Interface((base + rank + 1, PREFIX)) for rank in range(len(looks))]


def _taken(
    looks: Sequence[Look], chosen: Mapping[str, Sequence[Port]], rows: Sequence[Row], network: IPv4Network
) -> Iterator[Remark]:
    """Links of the nodes that have those networks already."""
    for number, row in enumerate(rows):
        wanted = row[0].network
        for look in looks:
            # What is on the chosen netdevs, and on those of a file of ours, goes when the rails are set up.
            own = {port.netdev for port in chosen[look.name]} | {netdev for netdev, _ in look.file}
            held = [
                (name, str(address))
                for name, those in look.links.items()
                if name not in own
                for address in those
                if address.network.overlaps(wanted)
            ]
            if not held and look.management in wanted:
                held = [("the management network", str(look.management))]
            for name, address in held:
                yield Remark(
                    look.name,
                    f"rail_network = {network}: rail {number} would get {wanted}, and {name} has {address}",
                    f'state another one in group_data/all.py, such as rail_network = "{_free(looks, network)}"',
                )


def _free(looks: Sequence[Look], network: IPv4Network) -> IPv4Network:
    """A network of that size in which no node has an address."""
    held = [address.network for look in looks for those in look.links.values() for address in those]
    held += [IPv4Network(look.management) for look in looks]
    others = (IPv4Network((f"10.{second}.0.0", 16)) for second in (*range(200, 256), *range(200)))
    free = (one for one in others if not any(one.overlaps(taken) for taken in (network, *held)))
    return next(free, IPv4Network("172.30.0.0/16"))


def _readdressed(looks: Sequence[Look], chosen: Mapping[str, Sequence[Port]], rows: Sequence[Row]) -> Iterator[Remark]:
    """Addresses that are there and that no rail can keep, each with the rule that it breaks."""
    fix = "nothing to do; or state the rails in inventory.py with addresses of your own"
    for place, look in enumerate(looks):
        given = ", ".join(str(row[place]) for row in rows)
        held = [(port.netdev, address) for port in chosen[look.name] for address in port.addresses]
        shared = [
            (one, other)
            for one, other in combinations(held, 2)
            if one[0] != other[0] and one[1].network.overlaps(other[1].network) and not one[1].is_link_local
        ]
        for one, other in shared:
            yield Remark(
                look.name,
                f"{one[0]} has {one[1]} and {other[0]} has {other[1]}: each rail needs a network of its own, or the "
                f"node answers for one on the other; the rails get {given}",
                fix,
            )
        for netdev, address in held:
            if any((netdev, address) in both for both in shared):
                continue
            if address.is_link_local:
                why = "a link-local address, which changes from boot to boot"
            else:
                why = "its rail has no network that all nodes are in, and that no other rail or link has"
            yield Remark(look.name, f"{netdev} has {address}: {why}; the rails get {given}", fix)
