"""Rails: the netdevs and HCAs that are stated exist, belong together, and are nobody else's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Interface

from checks import masters
from checks.verdict import Verdict, broken, holds, unknown
from facts.values import Link, NodeFacts, Unknown
from spec.cluster import Cluster, Node, Rail
from spec.discovery import written
from spec.objects import NETPLAN_FILE


def can_be_set_up(cluster: Cluster, node: Node, seen: NodeFacts) -> Iterator[Verdict]:
    """What must be true before a rail is given its address."""
    links = seen.links
    if isinstance(links, Unknown):
        yield unknown(node.name, "its network links", links)
        return
    for number, rail in enumerate(node.rails):
        yield from _exists(node, number, rail, seen, links)
        yield from _address_is_free(node, number, rail, links, _ours(seen))
    yield from masters.nobody_else(cluster, node, seen)
    yield from _management(node, links)
    if isinstance(seen.tools, Unknown):
        yield unknown(node.name, "its programs", seen.tools)
    elif not seen.tools.get("netplan"):
        yield broken(node.name, "netplan is not installed, which sets up the rails", "sudo apt-get install netplan.io")


def _exists(node: Node, number: int, rail: Rail, seen: NodeFacts, links: Mapping[str, Link]) -> Iterator[Verdict]:
    if rail.netdev not in links:
        others = ", ".join(sorted(name for name in links if name.startswith(("en", "eth")))) or "none"
        yield broken(
            node.name,
            f"rail {number}: there is no netdev {rail.netdev} (Ethernet: {others})",
            "name the right one under rails in inventory.py; ibdev2netdev lists them",
        )
        return
    master = links[rail.netdev].master
    if master is not None:
        yield broken(
            node.name,
            f"rail {number}: {rail.netdev} is part of {master}, which would take the rail's packets",
            f"take {rail.netdev} out of {master}, or state other rails in inventory.py",
        )
    hcas = seen.hcas
    if isinstance(hcas, Unknown):
        yield unknown(node.name, "its HCAs", hcas)
        return
    hca = hcas.get(rail.hca)
    if hca is None:
        yield broken(
            node.name,
            f"rail {number}: there is no HCA {rail.hca} (present: {', '.join(sorted(hcas)) or 'none'})",
            "name the right one under rails in inventory.py; ibdev2netdev lists them",
        )
    elif rail.netdev not in hca.netdevs:
        right = next((name for name, other in hcas.items() if rail.netdev in other.netdevs), None)
        yield broken(
            node.name,
            f"rail {number}: HCA {rail.hca} belongs to {', '.join(hca.netdevs) or 'no netdev'}, not to {rail.netdev}",
            f"state {right} for {rail.netdev} in inventory.py" if right else "ibdev2netdev lists what belongs together",
        )


def _ours(seen: NodeFacts) -> frozenset[tuple[str, IPv4Interface]]:
    """What our own file gives to netdevs: such an address goes when the rails are moved to others."""
    text = {} if isinstance(seen.texts, Unknown) else seen.texts
    found = text.get(NETPLAN_FILE)
    return frozenset(written(found)) if isinstance(found, str) else frozenset()


def _address_is_free(
    node: Node, number: int, rail: Rail, links: Mapping[str, Link], ours: frozenset[tuple[str, IPv4Interface]]
) -> Iterator[Verdict]:
    for link in links.values():
        if link.name == rail.netdev:
            continue
        for address in link.addresses:
            if (link.name, address) in ours:
                continue
            if address.ip == rail.ip:
                yield broken(
                    node.name,
                    f"rail {number}: its address {rail.ip} is on {link.name} already",
                    f"state another address for {rail.netdev} in inventory.py, or take it from {link.name}",
                )
            elif address.network.overlaps(rail.network):
                yield broken(
                    node.name,
                    f"rail {number}: its network {rail.network} is also that of {link.name} ({address})",
                    "give the rails networks of their own in inventory.py: one network on two links is one lost route",
                )


def _management(node: Node, links: Mapping[str, Link]) -> Iterator[Verdict]:
    address = node.management_address
    holders = [link.name for link in links.values() if any(held.ip == address for held in link.addresses)]
    if not holders:
        held = ", ".join(str(held) for link in links.values() if link.name != "lo" for held in link.addresses)
        yield broken(
            node.name,
            f"its management address {address} is on none of its links ({held or 'they have none'})",
            "state management_address in inventory.py as the node itself has it",
        )
    for rail in node.rails:
        if rail.netdev in holders:
            yield broken(
                node.name,
                f"its management address {address} is on the rail {rail.netdev}, which the deploy sets up anew",
                "reach the node over another link, and state that address in inventory.py",
            )


def are_set_up(cluster: Cluster, node: Node, seen: NodeFacts) -> Iterator[Verdict]:
    """Each rail has its address, its MTU, a carrier, and the GID that RDMA needs."""
    mtu = cluster.knobs.rail_mtu
    if isinstance(seen.links, Unknown) or isinstance(seen.netdevs, Unknown) or isinstance(seen.hcas, Unknown):
        for what, part in (("links", seen.links), ("netdevs", seen.netdevs), ("HCAs", seen.hcas)):
            if isinstance(part, Unknown):
                yield unknown(node.name, f"its {what}", part)
        return
    for number, rail in enumerate(node.rails):
        link, device, hca = seen.links.get(rail.netdev), seen.netdevs.get(rail.netdev), seen.hcas.get(rail.hca)
        trouble = []
        if link is None or device is None or hca is None:
            trouble.append("the netdev or its HCA is gone")
        else:
            if rail.address not in link.addresses:
                trouble.append(f"has {', '.join(map(str, link.addresses)) or 'no address'}, wanted {rail.address}")
            if others := masters.strays(node, seen).get(rail):
                trouble.append(f"has {', '.join(map(str, others))} as well, which a reboot forgets")
            if link.mtu != mtu:
                trouble.append(f"MTU is {link.mtu}, wanted {mtu}")
            if rail.netdev in masters.managing(node, seen):
                trouble.append("NetworkManager manages it, too")
            if not device.carrier:
                trouble.append("no carrier; is the cable seated on both ends?")
            if hca.roce_v2_index(str(rail.ip)) is None:
                trouble.append(f"{rail.hca} has no RoCE v2 GID for {rail.ip}")
        if trouble:
            yield broken(
                node.name, f"rail {number} ({rail.netdev}): {'; '.join(trouble)}", "run deploy.py; ip addr; rdma link"
            )
        else:
            yield holds(node.name, f"rail {number} ({rail.netdev}) has {rail.address}, MTU {mtu}, carrier and GID")


def in_force(cluster: Cluster, node: Node, seen: NodeFacts, wanted: str) -> bool:
    """Whether the file and what lives agree with what is wanted, and nobody else has a hand in it; `wanted` is the
    digest of the netplan text. A missing carrier or GID is not for a deploy to set."""
    if isinstance(seen.links, Unknown) or isinstance(seen.files, Unknown):
        return False
    file = seen.files.get(NETPLAN_FILE)
    if file is None or file.sha256 != wanted or file.mode != "600":
        return False
    if masters.managing(node, seen) or masters.strays(node, seen) or masters.adoption(node, seen).texts:
        return False
    return all(
        (link := seen.links.get(rail.netdev)) is not None
        and rail.address in link.addresses
        and link.mtu == cluster.knobs.rail_mtu
        for rail in node.rails
    )
