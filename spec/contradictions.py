"""Stated rails against what was heard: both are said where they differ (field reports: NET-03, NET-19)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spec.cluster import Rail
from spec.ports import End, Hearing, Look, Port, Remark, dark


def contradictions(looks: Sequence[Look], hearing: Hearing) -> Iterator[tuple[Remark, bool]]:
    """Each remark on the stated rails, and whether it is a refusal."""
    for look in looks:
        if look.deaf:
            fix = "make that work; verify.py tries the rails"
            yield (
                Remark(look.name, f"its rails are taken as stated, since it could not listen: {look.deaf}", fix),
                False,
            )
            continue
        for number, rail in enumerate(look.stated):
            port = look.port(rail.netdev)
            if port is None:
                continue  # a check of its own says what there is
            if not port.carrier:
                yield _unlit(look, number, port, hearing)
                continue
            for peer in looks:
                if peer.name == look.name or peer.deaf or len(peer.stated) <= number:
                    continue
                far = peer.stated[number]
                if peer.is_lit(far.netdev) and not hearing.both((look.name, rail.netdev), (peer.name, far.netdev)):
                    yield _unlike(look, number, rail, peer, hearing), True


def _unlit(look: Look, number: int, port: Port, hearing: Hearing) -> tuple[Remark, bool]:
    """A stated rail without a carrier: refused where another port of the node has one."""
    stated = {rail.netdev for rail in look.stated}
    others = [other for other in look.lit if other.netdev not in stated]
    what = f"rail {number}: {port.netdev} is stated, and {dark(port)}"
    if port.carrier is None:
        fix = f"sudo ip link set {port.netdev} up; then run again"
        return Remark(look.name, f"{what}: whether it is cabled as stated is not known", fix), False
    if not others:
        return Remark(look.name, f"{what}", "seat the cable on both ends"), False
    seen = ", ".join(f"{_name(other)} has one and hears {hearing.said((look.name, other.netdev))}" for other in others)
    return Remark(look.name, f"{what}; {seen}", _restate(look)), True


def _unlike(look: Look, number: int, rail: Rail, peer: Look, hearing: Hearing) -> Remark:
    """A rail that has a carrier, and does not reach what is stated as its other end."""
    end, far = (look.name, rail.netdev), peer.stated[number].netdev
    heard = [netdev for name, netdev in hearing.at(end) if name == peer.name]
    what = f"rail {number}: {rail.netdev} is stated to reach {peer.name} ({far})"
    if far in heard:
        fix = "replace the cable, or look at the switch between them"
        return Remark(look.name, f"{what}; it hears that, and is not heard there: one direction alone passes", fix)
    rails = [other.netdev for other in peer.stated]
    if heard and heard[0] in rails:
        return Remark(
            look.name,
            f"{what}, and hears {peer.name} ({heard[0]}), which is stated as rail {rails.index(heard[0])} there",
            f"state the rails of {peer.name} in the other order in inventory.py, or leave rails out on every node",
        )
    elsewhere = [_heard_at(look, other, hearing) for other in look.lit if _hears(look, other, peer, hearing, end)]
    seen = "; ".join([f"{what}, and hears {hearing.said(end)}", *elsewhere])
    return Remark(look.name, seen, _restate(look))


def _hears(look: Look, port: Port, peer: Look, hearing: Hearing, but: End) -> bool:
    end = (look.name, port.netdev)
    return end != but and any(name == peer.name for name, _ in hearing.at(end))


def _heard_at(look: Look, port: Port, hearing: Hearing) -> str:
    return f"{_name(port)} hears {hearing.said((look.name, port.netdev))}"


def _name(port: Port) -> str:
    return f"{port.netdev} ({port.hca})"


def _restate(look: Look) -> str:
    return f"state for {look.name} in inventory.py what is cabled, or leave rails out there on every node"
