"""nft list ruleset: the chains that see what comes in, and whether they drop what nobody allowed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from facts.host import Firewall
from facts.tools.garbled import Garbled

_TABLE = re.compile(r"table (ip|ip6|inet|arp|bridge|netdev) (\S+) \{.*")
_CHAIN = re.compile(r"chain (\S+) \{.*")
_BASE = re.compile(r"type (\w+) hook (\w+)(?: devices? .*?)? priority [^;]*;(?: policy (\w+);)?.*")
_JUMP = re.compile(r"(?:counter(?: packets \d+ bytes \d+)? )?(?:jump|goto) (\S+)")
_DROP = re.compile(r"(?:counter(?: packets \d+ bytes \d+)? )?(?:log .*?)?(?:drop|reject(?: with .*)?)(?: comment .*)?")
_ENDS = re.compile(r"(?:^|\s)(?:drop|reject(?: with .*)?)(?: comment .*)?$")


@dataclass
class Chain:
    """A chain: `hook` "" where it is only jumped to; `policy` "accept" where none is said."""

    table: str
    name: str
    hook: str = ""
    kind: str = ""
    policy: str = "accept"
    rules: list[str] = field(default_factory=list)


def parse(text: str) -> list[Chain]:
    """Every chain. Sets, maps and other objects are passed over, whatever their depth."""
    found: list[Chain] = []
    table, chain, depth, deeper = "", None, 0, 0
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        opened = _braces(line)
        if depth == 0:
            matched = _TABLE.fullmatch(line)
            if matched is None:
                if opened:
                    raise Garbled("nft list ruleset", line)
                continue
            table = f"{matched[1]} {matched[2]}"
        elif depth == 1 and opened > 0:
            matched = _CHAIN.fullmatch(line)
            chain = Chain(table, matched[1]) if matched else None
            if chain is not None:
                found.append(chain)
        elif depth == 2 and chain is not None and line != "}":
            _take(chain, line)
        elif depth > 2 and deeper and chain is not None:
            chain.rules[-1:] = [f"{''.join(chain.rules[-1:])} {line}"]
        depth += opened
        deeper = depth > 2
        if depth < 0:
            raise Garbled("nft list ruleset", line)
    if depth:
        raise Garbled("nft list ruleset", f"{text[-60:]}, and then no more")
    return found


def firewall(text: str) -> Firewall:
    """What it does to what comes in by IPv4."""
    chains = [chain for chain in parse(text) if chain.table.split()[0] in ("ip", "inet")]
    byname = {(chain.table, chain.name): chain for chain in chains}
    bases = [chain for chain in chains if chain.hook == "input" and chain.kind == "filter"]
    reached: list[Chain] = []
    for base in bases:
        _reach(base, byname, reached)
    drops = any(_drops(base, byname, set()) for base in bases)
    filters = drops or any(_ENDS.search(rule) for chain in reached for rule in chain.rules)
    if not filters:
        return Firewall("", drops=False)
    rules = []
    for chain in reached:
        if chain.hook:
            rules.append(f"{chain.table} {chain.name}: policy {chain.policy}")
        rules += [f"{chain.table} {chain.name}: {rule}" for rule in chain.rules]
    return Firewall("nftables", drops, tuple(rules))


def _take(chain: Chain, line: str) -> None:
    matched = _BASE.fullmatch(line)
    if matched is None:
        chain.rules.append(line)
        return
    chain.kind, chain.hook, chain.policy = matched[1], matched[2], matched[3] or "accept"


def _reach(chain: Chain, byname: dict[tuple[str, str], Chain], reached: list[Chain]) -> None:
    """The chain and all that it can come to."""
    waiting = [chain]
    while waiting:
        one = waiting.pop(0)
        if any(one is other for other in reached):
            continue
        reached.append(one)
        for rule in one.rules:
            matched = re.search(r"\b(?:jump|goto) (\S+)", rule)
            target = byname.get((one.table, matched[1])) if matched else None
            if target is not None:
                waiting.append(target)


def _drops(chain: Chain, byname: dict[tuple[str, str], Chain], seen: set[str]) -> bool:
    """Whether what no rule lets pass ends in a drop."""
    waiting, seen = [chain], {chain.name}
    while waiting:
        one = waiting.pop()
        if one.policy == "drop" or any(_DROP.fullmatch(rule) for rule in one.rules):
            return True
        for rule in one.rules:
            matched = _JUMP.fullmatch(rule)
            target = byname.get((one.table, matched[1])) if matched else None
            if target is not None and target.name not in seen:
                seen.add(target.name)
                waiting.append(target)
    return False


def _braces(line: str) -> int:
    """How much deeper it ends than it began; what is quoted does not count."""
    plain = re.sub(r'"[^"]*"', "", line)
    return plain.count("{") - plain.count("}")
