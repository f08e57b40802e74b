"""Whether a node's firewall lets everything of a peer in: NCCL and Gloo listen at random ports, so that one open port
is not enough (field report NET-21)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_network

from facts.host import Firewall


@dataclass(frozen=True)
class Packets:
    """All that comes in at a netdev from one address to another."""

    netdev: str
    source: str
    target: str

    def come_from(self, place: str) -> bool:
        return _is_in(self.source, place)

    def go_to(self, place: str) -> bool:
        return _is_in(self.target, place)


def lets_in(firewall: Firewall, packets: Packets) -> bool:
    """Whether it lets all of them pass. A rule whose conditions are not known here neither lets pass nor drops."""
    if not firewall.manager:
        return True
    if firewall.manager == "ufw":
        found = next((answer for rule in firewall.rules if (answer := _ufw(rule, packets)) is not None), None)
        return not firewall.drops if found is None else found
    if firewall.manager == "firewalld":
        return _firewalld(firewall, packets)
    return _chains(firewall, packets)


def _is_in(address: str, place: str) -> bool:
    try:
        return IPv4Address(address) in ip_network(place.strip("\"'"), strict=False)
    except ValueError:
        return False


def _fits(name: str, netdev: str) -> bool:
    """A netdev by its name; with * or + at its end, every one that begins so."""
    name = name.strip("\"'")
    return netdev.startswith(name[:-1]) if name.endswith(("*", "+")) else name == netdev


# ufw

_UFW = re.compile(
    r"(?P<action>allow|deny|reject|limit)(?: in)?(?: on (?P<on>\S+))?(?: log(?:-all)?)?"
    r"(?: from (?P<source>\S+))?(?: to (?P<target>\S+))?(?: comment .*)?"
)


def _ufw(rule: str, packets: Packets) -> bool | None:
    """What one rule says to all of them; None where it is about some of them only, or about others."""
    found = _UFW.fullmatch(rule)
    if found is None:
        return None
    on, source, target = found["on"], found["source"] or "any", found["target"] or "any"
    if on and not _fits(on, packets.netdev):
        return None
    if (source != "any" and not packets.come_from(source)) or (target != "any" and not packets.go_to(target)):
        return None
    return found["action"] == "allow"


# firewalld


def _firewalld(firewall: Firewall, packets: Packets) -> bool:
    """By the zone that the source is in, else the netdev, else all."""
    zones: dict[str, dict[str, list[str]]] = {}
    for rule in firewall.rules:
        name, _, rest = rule.partition(": ")
        key, _, value = rest.partition(": ")
        zones.setdefault(name, {}).setdefault(key, []).append(value)
    by_source = [zone for zone in zones.values() if any(packets.come_from(word) for word in _words(zone, "sources"))]
    by_netdev = [zone for zone in zones.values() if packets.netdev in _words(zone, "interfaces")]
    chosen = (by_source or by_netdev or [_default(zones)])[0]
    if "ACCEPT" in chosen.get("target", []):
        return True
    for rule in chosen.get("rich rules", []):
        source = re.fullmatch(r'rule(?: family="ipv4")? source address="([^"]+)" accept', rule)
        if source and packets.come_from(source[1]):
            return True
    # Of a zone that drops nothing there is nothing to open; its target was seen to be the default's.
    return not firewall.drops and not by_source and not by_netdev


def _default(zones: Mapping[str, dict[str, list[str]]]) -> dict[str, list[str]]:
    return next((zone for zone in zones.values() if not zone.get("interfaces") and not zone.get("sources")), {})


def _words(zone: Mapping[str, list[str]], key: str) -> list[str]:
    return [word for line in zone.get(key, []) for word in line.split()]


# nftables and iptables


def _chains(firewall: Firewall, packets: Packets) -> bool:
    """Every chain that sees what comes in must let it pass."""
    chains: dict[str, list[str]] = {}
    policies: dict[str, str] = {}
    for rule in firewall.rules:
        if rule.startswith("iptables "):
            _of_iptables(rule, chains, policies)
            continue
        name, _, text = rule.partition(": ")
        chains.setdefault(name, [])
        if text.startswith("policy "):
            policies[name] = text.removeprefix("policy ")
        else:
            chains[name].append(text)
    for name, policy in policies.items():
        found = _verdict(name, chains, packets, 0)
        if (policy if found in (None, "return") else found) != "accept":
            return False
    return True


def _of_iptables(rule: str, chains: dict[str, list[str]], policies: dict[str, str]) -> None:
    """Its notation in that of nft, as far as it is known here."""
    words = rule.split()
    if len(words) >= 4 and words[1] == "-P" and words[2] == "INPUT":
        policies["iptables INPUT"] = words[3].lower()
    if len(words) < 4 or words[1] != "-A":
        return
    text = re.sub(r" -m comment --comment (?:\"[^\"]*\"|\S+)", "", " " + " ".join(words[3:]))
    text = re.sub(r" -i (\S+)", r' iifname "\1"', text)
    text = re.sub(r" -s (\S+)", r" ip saddr \1", text)
    text = re.sub(r" -d (\S+)", r" ip daddr \1", text)
    text = re.sub(r" -j REJECT.*", " reject", text)
    text = re.sub(r" -j (ACCEPT|DROP|RETURN)$", lambda found: f" {found[1].lower()}", text)
    text = re.sub(r" -[jg] (\S+)$", r" jump \1", text)
    chains.setdefault(f"iptables {words[2]}", []).append(text.strip())


_CONDITION = re.compile(
    r'(?P<kind>iifname|iif|ip saddr|ip daddr) (?P<not>!= )?(?P<value>"[^"]*"|\{[^}]*\}|[^\s{]+)(?:\s+|$)'
)
# What is always so of them: they are for this node.
_PASSED = re.compile(
    r"(?:fib daddr type local|-m addrtype --dst-type LOCAL"
    r"|counter(?: packets \d+ bytes \d+)?|log(?: prefix \"[^\"]*\")?)(?:\s+|$)"
)
_END = re.compile(r"(?P<verdict>accept|drop|reject|return|(?:jump|goto) (?P<to>\S+))(?: with .*)?(?: comment .*)?")
DEEPEST = 32


def _verdict(name: str, chains: Mapping[str, list[str]], packets: Packets, depth: int) -> str | None:
    """accept, drop or reject; None where it comes out of the chain at its end."""
    for rule in chains.get(name, []) if depth < DEEPEST else []:
        found = _applies(rule, packets)
        if found is None:
            continue
        if found["to"]:
            place = f"{name.rpartition(' ')[0]} {found['to']}"
            inner = _verdict(place, chains, packets, depth + 1)
            if inner is not None and inner != "return":
                return inner
            if found["verdict"].startswith("goto"):
                return None
            continue
        return str(found["verdict"])
    return None


def _applies(rule: str, packets: Packets) -> re.Match[str] | None:
    """The end of a rule that all the packets come to."""
    rest = rule
    while True:
        if passed := _PASSED.match(rest):
            rest = rest[passed.end() :]
            continue
        condition = _CONDITION.match(rest)
        if condition is None:
            return _END.fullmatch(rest)
        values = [value.strip() for value in condition["value"].strip("{} ").split(",")]
        if condition["kind"] in ("iif", "iifname"):
            holds = any(_fits(value, packets.netdev) for value in values)
        elif condition["kind"] == "ip saddr":
            holds = any(packets.come_from(value) for value in values)
        else:
            holds = any(packets.go_to(value) for value in values)
        if holds is bool(condition["not"]):
            return None
        rest = rest[condition.end() :]
