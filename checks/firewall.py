"""A firewall of a node: does it let in what the rails' peers send?

Every port between the peers: NCCL and gloo listen on ports that nobody knows before (field reports: NET-21)."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from checks.check import Check, When, each
from checks.verdict import Verdict, broken, holds, told
from facts.host import Firewall
from facts.values import NodeFacts
from spec.cluster import Cluster, Node, Rail

OPENED = ("ufw", "firewalld")
COMMENT = "Sparkpair: a rail"


@dataclass(frozen=True)
class Opening:
    """What one peer sends to a rail of this node."""

    rail: Rail
    peer: IPv4Address

    @property
    def ufw(self) -> str:
        """As ufw tells such a rule."""
        return f"allow in on {self.rail.netdev} from {self.peer} to {self.rail.ip}"

    @property
    def rich(self) -> str:
        """As firewalld tells such a rule."""
        places = f'source address="{self.peer}" destination address="{self.rail.ip}"'
        return f'rule family="ipv4" {places} accept'

    def command(self, firewall: Firewall) -> str:
        """What opens it, for that firewall."""
        if firewall.manager == "ufw":
            # Before the others: the first rule that fits decides.
            return f"ufw prepend {self.ufw} comment '{COMMENT}'"
        if firewall.manager == "firewalld":
            # The permanent rule and the one that counts now: a reload would end what others let in for a while.
            zone = _zone(firewall, self.rail.netdev)
            words = f"firewall-cmd --quiet{f' --zone={zone}' if zone else ''} --add-rich-rule='{self.rich}'"
            return f"{words} --permanent && {words}"
        for rule in firewall.rules:
            if matched := re.fullmatch(r"((?:ip|inet) \S+ \S+): policy drop", rule):
                fits = f'iifname "{self.rail.netdev}" ip saddr {self.peer} ip daddr {self.rail.ip}'
                return f"nft insert rule {matched[1]} {fits} accept"
        return f"iptables -I INPUT -i {self.rail.netdev} -s {self.peer} -d {self.rail.ip} -j ACCEPT"

    def undo(self, firewall: Firewall) -> str:
        """What takes that rule away again."""
        if firewall.manager == "ufw":
            return f"ufw delete {self.ufw}"
        return self.command(firewall).replace("--add-rich-rule", "--remove-rich-rule").replace(" && ", "; ")


def openings(cluster: Cluster, node: Node) -> list[Opening]:
    """All that the rails need on this node."""
    return [
        Opening(rail, theirs.ip)
        for peer in cluster.peers(node)
        for rail, theirs in zip(node.rails, peer.rails, strict=False)
    ]


def closed(cluster: Cluster, node: Node, seen: NodeFacts) -> list[Opening]:
    """What the node's firewall keeps out; nothing where there is none, or where that is not known."""
    firewall = seen.host.firewall
    if not isinstance(firewall, Firewall) or not firewall.drops:
        return []
    return [one for one in openings(cluster, node) if not _is_open(firewall, one)]


def lets_in(cluster: Cluster, node: Node, seen: NodeFacts, *, before: bool = True) -> Iterator[Verdict]:
    """A statement where a firewall is at work. `before` a deploy it is no trouble where that opens it."""
    firewall = seen.host.firewall
    if not isinstance(firewall, Firewall) or not firewall.drops or not openings(cluster, node):
        return
    shut = closed(cluster, node, seen)
    if not shut:
        yield holds(node.name, f"its firewall ({firewall.manager}) lets the rails' peers in")
        return
    peers = ", ".join(f"{one.peer} on {one.rail.netdev}" for one in shut)
    statement = f"its firewall ({firewall.manager}) keeps the rails' peers out: {peers}"
    commands = "\n".join(f"sudo {one.command(firewall)}" for one in shut)
    if firewall.manager in OPENED and cluster.knobs.open_firewall:
        say = told if before else broken
        yield say(node.name, statement, "deploy.py lets them in, and nobody else (open_firewall)")
    elif firewall.manager in OPENED:
        yield broken(node.name, statement, f"open_firewall = True in group_data/all.py, or by hand:\n{commands}")
    else:
        yield broken(
            node.name,
            statement,
            f"rules that somebody wrote are not changed here. Add these, there and in their file:\n{commands}",
        )


def _is_open(firewall: Firewall, one: Opening) -> bool:
    if firewall.manager == "ufw":
        return _ufw(firewall.rules, one)
    if firewall.manager == "firewalld":
        return _firewalld(firewall.rules, one)
    return any(_nft(rule, one) for rule in firewall.rules)


_UFW = re.compile(
    r"(?P<action>allow|deny|reject|limit)(?: in)?(?: on (?P<netdev>\S+))?(?: log(?:-all)?)?"
    r"(?: from (?P<source>\S+))?(?: to (?P<target>\S+))?(?: comment .*)?"
)


def _ufw(rules: tuple[str, ...], one: Opening) -> bool:
    """Whether the first rule about all that this peer sends lets it in. Rules about a port or protocol alone count
    neither way."""
    for rule in rules:
        matched = _UFW.fullmatch(rule)
        if matched is None:
            continue
        is_about = (
            matched["netdev"] in (None, one.rail.netdev)
            and _holds(matched["source"], one.peer)
            and _holds(matched["target"], one.rail.ip)
        )
        if is_about:
            return matched["action"] == "allow"
    return False


def _firewalld(rules: tuple[str, ...], one: Opening) -> bool:
    for rule in rules:
        zone, _, rest = rule.partition(": ")
        kind, _, words = rest.partition(": ")
        if zone == "trusted" and kind == "interfaces" and one.rail.netdev in words.split():
            return True
        if zone == "trusted" and kind == "sources" and any(_holds(word, one.peer) for word in words.split()):
            return True
        if "rich rule" in kind and words.endswith(" accept") and " port " not in words and " service " not in words:
            source = re.search(r'source address="([^"]+)"', words)
            target = re.search(r'destination address="([^"]+)"', words)
            if source and _holds(source[1], one.peer) and _holds(target[1] if target else None, one.rail.ip):
                return True
    return False


def _nft(rule: str, one: Opening) -> bool:
    """Whether a rule that lets something in may be about this peer: one that is about ports is not, and of a set or a
    chain that is jumped to nobody knows better than whoever wrote it."""
    if not re.search(r"\baccept\b|-j ACCEPT\b", rule) or re.search(
        r"\bdport\b|--dports?\b|\bct state\b|--c?t?state", rule
    ):
        return False
    names = [_fits(found, lambda name: _is_name(name, one.rail.netdev)) for found in _NETDEVS.finditer(rule)]
    places = [_fits(found, lambda place: _is_within(place, one.peer)) for found in _SOURCES.finditer(rule)]
    told = [*names, *places]
    return all(told) if told else "--match-set" in rule


_WHICH = r' (?P<not>!= )?(?:vmap )?(?P<those>\{[^}]*\}|"[^"]*"|\S+)'
_NETDEVS = re.compile(r"(?P<but>! )?(?:\biifname|\biif|-i)" + _WHICH)
_SOURCES = re.compile(r"(?P<but>! )?(?:\bip saddr|-s)" + _WHICH)


def _fits(found: re.Match[str], is_it: Callable[[str], bool]) -> bool:
    """Whether a condition may hold: of one word, of those in braces, of a named set, or of all others."""
    if found["those"].startswith("@"):
        return True
    words = [word.partition(":")[0].strip(' "') for word in found["those"].strip("{}").split(",")]
    return any(map(is_it, words)) is not bool(found["not"] or found["but"])


def _is_name(name: str, netdev: str) -> bool:
    return fnmatch.fnmatchcase(netdev, name.replace("+", "*"))


def _is_within(place: str, address: IPv4Address) -> bool:
    low, dash, high = place.partition("-")
    try:
        return IPv4Address(low) <= address <= IPv4Address(high) if dash else _holds(place, address)
    except ValueError:
        return False


def _zone(firewall: Firewall, netdev: str) -> str:
    for rule in firewall.rules:
        zone, _, rest = rule.partition(": ")
        if rest.startswith("interfaces: ") and netdev in rest.split()[1:]:
            return zone
    return ""


def _holds(place: str | None, address: IPv4Address) -> bool:
    if place is None or place == "any":
        return True
    try:
        return address in IPv4Network(place, strict=False)
    except ValueError:
        return False


CHECKS: tuple[Check, ...] = (
    Check(
        "rails.firewall-before",
        "Does a node's firewall keep out what its peers will send over the rails?",
        each(lambda sight, node, seen: lets_in(sight.cluster, node, seen)),
        frozenset({When.PREFLIGHT}),
        ("NET-21",),
    ),
    Check(
        "rails.firewall",
        "Does each node's firewall let in what its peers send over the rails?",
        each(lambda sight, node, seen: lets_in(sight.cluster, node, seen, before=False)),
        frozenset({When.VERIFY, When.DOCTOR}),
        ("NET-21",),
    ),
)
