"""iptables -S, of tables that nft does not list: the older kind."""

from __future__ import annotations

import re

from facts.host import Firewall
from facts.tools.garbled import Garbled

_POLICY = re.compile(r"-P (\S+) (ACCEPT|DROP)(?: -c \d+ \d+)?")
_BLIND = re.compile(r"-A \S+(?: -m comment --comment (?:\"[^\"]*\"|\S+))? -j (?:DROP|REJECT(?: --reject-with \S+)?)")


def firewall(text: str) -> Firewall:
    """What it does to what comes in."""
    policies = {}
    rules = []
    for line in text.splitlines():
        line = line.strip()
        matched = _POLICY.fullmatch(line)
        if matched:
            policies[matched[1]] = matched[2]
        if line.startswith(("-P ", "-A ")) and len(line.split()) > 2:
            rules.append(line)
    if "INPUT" not in policies:
        raise Garbled("iptables -S", text or "nothing")
    drops = policies["INPUT"] == "DROP" or any(_BLIND.fullmatch(rule) for rule in rules if rule.startswith("-A INPUT "))
    rules = _reached(rules)
    if not drops and not any(re.search(r"-j (DROP|REJECT)\b", rule) for rule in rules):
        return Firewall("", drops=False)
    return Firewall("nftables", drops, tuple(f"iptables {rule}" for rule in rules))


def _reached(rules: list[str]) -> list[str]:
    """Those of INPUT and of the chains that it comes to."""
    reached = {"INPUT"}
    while True:
        here = [rule for rule in rules if rule.split()[1] in reached]
        more = {found[1] for rule in here if (found := re.search(r" -[jg] (\S+)", rule))} - reached
        if not more:
            return here
        reached |= more
