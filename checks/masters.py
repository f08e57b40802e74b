"""Masters: who else sets up a rail, and what becomes of that when the deploy does."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Interface

from checks.check import BEFORE_AND_DOCTOR, Check, each
from checks.verdict import Verdict, broken, told, unknown
from facts.host import Definition, NetworkManager, NmDevice
from facts.values import Mention, NodeFacts, Unknown
from spec import foreign
from spec.cluster import Cluster, Node, Rail
from spec.objects import ADOPTED, NETPLAN_FILE

NETPLAN = "/etc/netplan/"
UNMANAGED = "unmanaged"


@dataclass(frozen=True)
class Adoption:
    """Somebody's netplan files without the rails: their new texts by path, and why others must be edited by hand."""

    texts: Mapping[str, str] = field(default_factory=dict)
    odd: Mapping[str, str] = field(default_factory=dict)


def adoption(node: Node, seen: NodeFacts) -> Adoption:
    """What would become of each file that sets up a rail."""
    definitions, files = seen.host.definitions, seen.host.network_texts
    if isinstance(definitions, Unknown):
        return Adoption()
    found: dict[str, set[str]] = {}
    odd: dict[str, str] = {}
    for one in _of_rails(node, definitions):
        if one.kind == "NetworkManager":
            continue
        if one.kind != "netplan":
            odd[one.file] = f"it is {one.kind}'s own"
        elif not one.named:
            odd[one.file] = "what it says is about more than one netdev"
        elif not one.file.startswith(NETPLAN):
            odd[one.file] = f"it is not in {NETPLAN.rstrip('/')}"
        else:
            found.setdefault(one.file, set()).add(one.id)
    texts = {}
    for path, ids in found.items():
        text = None if isinstance(files, Unknown) else files.get(path)
        try:
            if text is None or "\ufffd" in text:
                raise foreign.Odd("it holds a password, is very long, or is no text")
            texts[path] = foreign.without(text, ids)
        except foreign.Odd as error:
            odd[path] = str(error)
    return Adoption({path: text for path, text in texts.items() if path not in odd}, odd)


def nobody_else(cluster: Cluster, node: Node, seen: NodeFacts) -> Iterator[Verdict]:
    """What forbids to set the rails up: files of others that do so, too, and are not ours to change."""
    definitions = seen.host.definitions
    if isinstance(definitions, Unknown):
        yield from _mentioned(node, seen)
        return
    adopts, plan = cluster.knobs.adopt_rails, adoption(node, seen)
    for one in _of_rails(node, definitions):
        statement = f"{_place(node, one)}, and would be again in {NETPLAN_FILE}"
        if one.kind == "NetworkManager":
            if not one.volatile and not adopts and not _is_without_effect(node, seen, one):
                yield broken(
                    node.name,
                    statement,
                    f"adopt_rails = True in group_data/all.py leaves that profile alone, without effect. Or remove it: "
                    f"nmcli connection delete {one.id!r}",
                )
        elif one.file in plan.odd:
            why = f"; adopt_rails leaves that file alone: {plan.odd[one.file]}" if adopts else ""
            fix = (
                f"have {one.id} in {one.file} name the netdevs that it is for, under match: name"
                if _is_pattern(seen, one)
                else f"take {one.netdev} out of {one.file} (the deploy then sets it up)"
            )
            yield broken(node.name, statement, f"{fix}, or state other rails{why}")
        elif not adopts:
            yield broken(
                node.name,
                statement,
                "adopt_rails = True in group_data/all.py takes it over: these lines become comments, and the file as "
                f"it is is kept on the node. Or take them out by hand, or state other rails\n{_lines(seen, one)}",
            )


def repairs(cluster: Cluster, node: Node, seen: NodeFacts) -> Iterator[Verdict]:
    """What the deploy finds and sets right: nothing of it is refused."""
    numbers = {rail.netdev: number for number, rail in enumerate(node.rails)}
    managed = managing(node, seen)
    for netdev, device in managed.items():
        profile = f" by the profile {device.connection!r}" if device.connection else ""
        yield told(
            node.name,
            f"rail {numbers[netdev]}: NetworkManager manages {netdev}{profile}, {device.state}: its addresses go when "
            f"nobody answers its DHCP, or when the cable is out for a moment",
            "the deploy sets it up with netplan, and NetworkManager lets go of it",
        )
    definitions = seen.host.definitions
    if not isinstance(definitions, Unknown):
        plan = adoption(node, seen)
        for one in _of_rails(node, definitions):
            if one.file in plan.texts and cluster.knobs.adopt_rails:
                yield told(
                    node.name,
                    f"{_place(node, one)}; the deploy takes it over",
                    f"its lines there become comments; the file as it is is kept in {ADOPTED} on the node",
                )
            elif one.kind == "NetworkManager" and one.netdev not in managed and not _is_ours(seen):
                last = "which a reboot forgets" if one.volatile else "which has no effect any more after the deploy"
                if one.volatile or cluster.knobs.adopt_rails:
                    yield told(node.name, f"{_place(node, one)}, {last}", "the deploy sets the rail up with netplan")
    for rail, addresses in strays(node, seen).items():
        if rail.netdev not in managed:
            yield told(
                node.name,
                f"rail {numbers[rail.netdev]}: {rail.netdev} has {', '.join(map(str, addresses))}, which "
                f"{NETPLAN_FILE} does not give it",
                "the deploy takes that address away; whoever needs it puts it on another netdev",
            )


def managing(node: Node, seen: NodeFacts) -> dict[str, NmDevice]:
    """The rails that NetworkManager manages, by netdev; none where that is not known."""
    manager = seen.host.network_manager
    if not isinstance(manager, NetworkManager) or not manager.running:
        return {}
    rails = {rail.netdev for rail in node.rails}
    return {device.netdev: device for device in manager.devices if device.netdev in rails and device.state != UNMANAGED}


def strays(node: Node, seen: NodeFacts) -> dict[Rail, tuple[IPv4Interface, ...]]:
    """Addresses on a rail that are not the rail's."""
    if isinstance(seen.links, Unknown):
        return {}
    found = {}
    for rail in node.rails:
        link = seen.links.get(rail.netdev)
        others = tuple(address for address in link.addresses if address != rail.address) if link else ()
        if others:
            found[rail] = others
    return found


def _of_rails(node: Node, definitions: tuple[Definition, ...]) -> list[Definition]:
    rails = {rail.netdev for rail in node.rails}
    return [one for one in definitions if one.netdev in rails]


def _place(node: Node, one: Definition | Mention) -> str:
    numbers = {rail.netdev: number for number, rail in enumerate(node.rails)}
    return f"rail {numbers[one.netdev]}: {one.netdev} is set up in {one.file} line {one.line}"


def _is_ours(seen: NodeFacts) -> bool:
    return not isinstance(seen.files, Unknown) and seen.files.get(NETPLAN_FILE) is not None


def _is_without_effect(node: Node, seen: NodeFacts, one: Definition) -> bool:
    """A profile of a rail that is ours already, and that NetworkManager keeps its hands off."""
    return _is_ours(seen) and one.netdev not in managing(node, seen)


def _is_pattern(seen: NodeFacts, one: Definition) -> bool:
    """Whether the netdev, which is meant, stands nowhere in the file, so that nobody can take it out."""
    texts = {} if isinstance(seen.host.network_texts, Unknown) else seen.host.network_texts
    return one.kind == "netplan" and not one.named and one.file in texts and one.netdev not in texts[one.file]


def _lines(seen: NodeFacts, one: Definition) -> str:
    texts = seen.host.network_texts
    if isinstance(texts, Unknown) or one.file not in texts:
        return ""
    try:
        _, lines = foreign.excerpt(texts[one.file], one.id)
    except foreign.Odd:
        return ""
    return textwrap.dedent("\n".join(lines))


def _mentioned(node: Node, seen: NodeFacts) -> Iterator[Verdict]:
    """Where the files could not be read as what they are: any line that names a rail counts."""
    if isinstance(seen.mentions, Unknown):
        yield unknown(node.name, "its network settings", seen.mentions)
        return
    rails = {rail.netdev for rail in node.rails}
    for mention in seen.mentions:
        if mention.netdev not in rails:
            continue
        yield broken(
            node.name,
            f"{_place(node, mention)}, and would be again in {NETPLAN_FILE}",
            f"take {mention.netdev} out of {mention.file} (the deploy then sets it up), or state other rails",
        )


CHECKS: tuple[Check, ...] = (
    Check(
        "rails.masters",
        "Does anything else have a hand in a rail: NetworkManager, a file that a reboot forgets, an address by hand?",
        each(lambda sight, node, seen: repairs(sight.cluster, node, seen)),
        BEFORE_AND_DOCTOR,
        ("NET-06", "NET-08", "NET-15", "NET-17", "NET-25"),
    ),
)
