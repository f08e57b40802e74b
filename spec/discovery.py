"""Which netdevs and HCAs are the rails: from what the nodes' ports are and hear of each other, from no name or index.

A QSFP port of a Spark is two netdevs on two PCIe domains with one function number (field reports: NET-24), and one
cable carries both. Rails are proven by frames of the peers (NET-01, NET-19): a carrier alone may be somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from itertools import combinations, permutations, product

from spec.cluster import Rail
from spec.contradictions import contradictions
from spec.ports import Heard, Hearing, Look, Port, Remark, dark, written
from spec.rail_addresses import Pool, Row, addresses

__all__ = ["Found", "Heard", "IPv4Network", "Look", "Pool", "Port", "Remark", "find", "must_ask", "written"]


@dataclass(frozen=True)
class Found:
    """The rails of each node by its name, in one order on all of them; none where they are not known. `proven` where
    frames went both ways on every one of them."""

    rails: Mapping[str, tuple[Rail, ...]]
    refusals: tuple[Remark, ...] = ()
    notes: tuple[Remark, ...] = ()
    proven: bool = False

    @property
    def known(self) -> bool:
        """Whether every node has its rails."""
        return bool(self.rails) and all(self.rails.values())


# What is known without a talk


def must_ask(looks: Sequence[Look]) -> bool:
    """Whether the nodes must be asked what they hear: not where rails are in force that nothing speaks against."""
    if _stated(looks):
        return any(
            look.file != tuple((rail.netdev, rail.address) for rail in look.stated) or _may_have_moved(look)
            for look in looks
        )
    return not _kept(looks) or any(_may_have_moved(look) for look in looks)


def as_they_are(looks: Sequence[Look]) -> Found:
    """The rails as stated, or as our own files have them, whatever is cabled: for those that need none to work."""
    if _stated(looks):
        return Found({look.name: look.stated for look in looks})
    return Found(_kept(looks) or {look.name: _own(look) for look in looks})


def _stated(looks: Sequence[Look]) -> bool:
    return bool(looks) and all(look.stated for look in looks)


def _kept(looks: Sequence[Look]) -> dict[str, tuple[Rail, ...]]:
    """The rails of our own files; empty unless every node has one and they fit together."""
    found = {look.name: _own(look) for look in looks}
    if not all(found.values()) or len({len(rails) for rails in found.values()}) != 1:
        return {}
    for rail in zip(*found.values(), strict=True):
        if len({end.network for end in rail}) != 1 or len({end.ip for end in rail}) != len(rail):
            return {}
    return found


def _own(look: Look) -> tuple[Rail, ...]:
    """The rails of a node's own file; none unless each has its port."""
    ends = [(look.port(netdev), address) for netdev, address in look.file]
    rails = [Rail(netdev=port.netdev, hca=port.hca, address=address) for port, address in ends if port is not None]
    return tuple(rails) if len(rails) == len(ends) else ()


def _may_have_moved(look: Look) -> bool:
    """Whether a rail of the file is dark, or lacks its twin, while a port that is no rail has a carrier."""
    rails = {netdev for netdev, _ in look.file}
    idle = [port for port in look.lit if port.netdev not in rails]
    is_dark = any(port.carrier is False for port in look.ports if port.netdev in rails)
    used = {look.qsfp[netdev] for netdev in rails if netdev in look.qsfp}
    return bool(idle) and (is_dark or any(look.qsfp[port.netdev] in used for port in idle))


# The answer


def find(looks: Sequence[Look], heard: Mapping[str, Iterable[Heard]] | None, pool: Pool) -> Found:
    """The rails of the nodes, which stand in rank order. `heard` is what each node heard, None where nobody was asked;
    rails without addresses get them out of the pool."""
    hearing = Hearing(heard or {})
    if _stated(looks):
        rails = {look.name: look.stated for look in looks}
        found = list(contradictions(looks, hearing)) if heard is not None else []
        refusals = tuple(dict.fromkeys(remark for remark, refused in found if refused))
        notes = tuple(dict.fromkeys(remark for remark, refused in found if not refused))
        return Found(rails, refusals, notes, proven=heard is not None and _proven(rails, hearing))
    kept = _kept(looks)
    if heard is None:
        if kept:
            return _addressed(looks, _ports_of(looks), pool)
        return Found(
            {}, (Remark("", "the rails are neither stated nor set up yet", "run deploy.py, which finds them"),)
        )
    chosen = _joined(looks, hearing)
    if chosen:
        found_rails = _addressed(looks, chosen, pool)
        notes = (*found_rails.notes, *_left_out(looks, chosen, hearing))
        return Found(found_rails.rails, found_rails.refusals, notes, proven=found_rails.known)
    reasons = tuple(_why_not(looks, hearing))
    if not kept:
        return Found({}, reasons)
    as_set_up = _addressed(looks, _ports_of(looks), pool)
    return Found(as_set_up.rails, as_set_up.refusals, (*as_set_up.notes, *reasons))


def _ports_of(looks: Sequence[Look]) -> dict[str, list[Port]]:
    """The ports of our own files."""
    return {look.name: [port for netdev, _ in look.file if (port := look.port(netdev))] for look in looks}


def _proven(rails: Mapping[str, Sequence[Rail]], hearing: Hearing) -> bool:
    """Whether on every rail each node hears each other one."""
    return all(
        hearing.both((one, here.netdev), (other, there.netdev))
        for one, other in combinations(rails, 2)
        for here, there in zip(rails[one], rails[other], strict=False)
    )


def _joined(looks: Sequence[Look], hearing: Hearing) -> dict[str, list[Port]]:
    """The ports of each rail's ends by node: one QSFP port of each, whose netdevs hear each other; lower ports first,
    and netdevs that hear several of the peer's are paired by their domains. Empty where nothing joins all nodes."""
    best: list[list[Port]] = []
    for keys in product(*(look.twins for look in looks)):
        ports = [look.twins[key] for look, key in zip(looks, keys, strict=True)]
        # Where one netdev is dark its twin may stand in either place.
        for orders in product(*(permutations(twins) for twins in ports)):
            rails = [list(rail) for rail in zip(*orders, strict=False) if _all_hear(looks, rail, hearing)]
            if len(rails) > len(best):
                best = rails
    return {look.name: [rail[number] for rail in best] for number, look in enumerate(looks)} if best else {}


def _all_hear(looks: Sequence[Look], rail: Sequence[Port], hearing: Hearing) -> bool:
    ends = [(look.name, port.netdev) for look, port in zip(looks, rail, strict=True)]
    return all(hearing.both(one, other) for one, other in combinations(ends, 2))


def _addressed(looks: Sequence[Look], chosen: Mapping[str, Sequence[Port]], pool: Pool) -> Found:
    """The rails with their addresses."""
    kept = _kept(looks)
    rows: list[Row] = [[rail.address for rail in rails] for rails in zip(*kept.values(), strict=True)]
    rows, refusals, notes = addresses(looks, chosen, rows, pool)
    rails = {
        look.name: tuple(
            Rail(netdev=port.netdev, hca=port.hca, address=row[place])
            for port, row in zip(chosen[look.name], rows, strict=True)
        )
        for place, look in enumerate(looks)
    }
    return Found({} if refusals else rails, tuple(refusals), tuple(notes))


# What else was seen


def _left_out(looks: Sequence[Look], chosen: Mapping[str, Sequence[Port]], hearing: Hearing) -> Iterator[Remark]:
    """Rails that have moved, ports that are no rails though they have a carrier, and rails that lack their twin."""
    for look in looks:
        rails = {port.netdev for port in chosen[look.name]}
        used = {look.qsfp[netdev] for netdev in rails}
        names = ", ".join(sorted(rails))
        gone = [netdev for netdev, _ in look.file if netdev not in rails and not look.is_lit(netdev)]
        if gone:
            statement = f"{', '.join(gone)} has no carrier any more; the rails move to {names}"
            yield Remark(look.name, statement, "nothing to do, if the cable was moved on purpose")
        for port in look.ports:
            if port.netdev in rails:
                continue
            what, is_twin = f"{port.netdev} ({port.hca})", look.qsfp[port.netdev] in used
            said = hearing.said((look.name, port.netdev))
            if not port.carrier:
                if is_twin:
                    yield Remark(
                        look.name,
                        f"{what} {dark(port)}, and its twin {names} is a rail: half of the port is left out",
                        f"sudo ip link set {port.netdev} up; then run again",
                    )
            elif is_twin:
                yield Remark(
                    look.name,
                    f"{what} is the twin of {names}, hears {said}, and joins no rail: half of the port is left out",
                    "see that both netdevs of the port are up on every node, and that a switch between carries both",
                )
            elif hearing.at((look.name, port.netdev)):
                yield Remark(
                    look.name,
                    f"{what} hears {said}, and is left out: the rails are on one port, {names}",
                    "nothing to do; or state the rails in inventory.py",
                )
            else:
                yield Remark(
                    look.name,
                    f"{what} has a carrier, but no other node is heard there: it is left out",
                    "nothing to do, if its cable leads elsewhere",
                )


def _why_not(looks: Sequence[Look], hearing: Hearing) -> Iterator[Remark]:
    """Why there is no rail that joins all nodes, as far as that can be seen."""
    before = [remark for look in looks if (remark := _cannot_hear(look))]
    if before:
        yield from before
        return
    heard = "; ".join(
        f"{look.name} {port.netdev} hears {hearing.said((look.name, port.netdev))}"
        for look in looks
        for port in look.lit
    )
    apart = [
        f"{one.name} and {other.name}"
        for one, other in combinations(looks, 2)
        if not hearing.joined(one.name, other.name)
    ]
    if apart:
        yield Remark(
            "",
            f"no cable was found between {', nor between '.join(apart)}: {heard}",
            "connect one QSFP port of each node: two nodes by one cable, more of them by a switch",
        )
    else:
        yield Remark(
            "",
            f"no rail joins all {len(looks)} nodes, though each hears each other one: {heard}",
            "connect one port of each node to one switch; nodes in a ring have no rail that all of them are on",
        )


def _cannot_hear(look: Look) -> Remark | None:
    if look.deaf:
        return Remark(look.name, f"its ports could not listen: {look.deaf}", "make that work, then run again")
    if not look.ports:
        return Remark(
            look.name,
            "it has no RDMA device with a netdev, so nothing that could be a rail",
            "sudo modprobe mlx5_ib; ibdev2netdev then lists them",
        )
    if look.lit:
        return None
    off = [port.netdev for port in look.ports if port.carrier is None]
    return Remark(
        look.name,
        f"none of its ports has a carrier: {', '.join(f'{port.netdev} {dark(port)}' for port in look.ports)}",
        f"sudo ip link set {off[0]} up, and the others; then run again" if off else "seat the cable on both ends",
    )
