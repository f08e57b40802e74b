"""firewall-cmd --list-all-zones."""

from __future__ import annotations

import re
from collections.abc import Mapping

from facts.host import Firewall
from facts.tools.garbled import Garbled

_HEAD = re.compile(r"(\S+)(?: \([a-z, ]+\))?")
_LINE = re.compile(r"\s+([a-z][a-z -]*): ?(.*)")


def parse(text: str) -> dict[str, dict[str, str]]:
    """Each zone's lines; rich rules, a line each, joined by a newline."""
    found: dict[str, dict[str, str]] = {}
    zone: dict[str, str] | None = None
    last = ""
    for line in text.splitlines():
        if not line.strip():
            continue
        matched = _LINE.fullmatch(line)
        head = _HEAD.fullmatch(line.rstrip())
        if matched and zone is not None:
            last = matched[1]
            zone[last] = matched[2].strip()
        elif head and not line[0].isspace():
            zone = found.setdefault(head[1], {})
            last = ""
        elif zone is not None and last:
            zone[last] = f"{zone[last]}\n{line.strip()}".strip()
    found = {name: lines for name, lines in found.items() if "target" in lines}
    if not found:
        raise Garbled("firewall-cmd --list-all-zones", text or "nothing")
    return found


def firewall(zones: Mapping[str, Mapping[str, str]], default: str) -> Firewall:
    """Whether the zone of whatever is in no other drops; the rules as "zone: key: value"."""
    if default not in zones:
        raise Garbled("firewall-cmd --get-default-zone", default or "nothing")
    rules = []
    for name, lines in zones.items():
        if name != default and not lines.get("interfaces") and not lines.get("sources"):
            continue
        shown = [(key, value) for key, value in lines.items() if value and value != "no"]
        rules += [f"{name}: {key}: {line}" for key, value in shown for line in value.splitlines()]
    return Firewall("firewalld", zones[default]["target"] != "ACCEPT", tuple(rules))
