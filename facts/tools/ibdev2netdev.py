"""ibdev2netdev: a line per port, in any order (field reports' samples S01 and S02)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from facts.tools.garbled import Garbled

_LINE = re.compile(r"(?:\S+ )?(\S+) port ([0-9]{1,3}) ==> (\S+) \((Up|Down)\)")
"""With -v a PCI address stands before, and other words between."""


@dataclass(frozen=True)
class Pairing:
    """A port of an HCA and its netdev; `up` is its carrier."""

    hca: str
    port: int
    netdev: str
    up: bool


def parse(text: str) -> list[Pairing]:
    """Every port, by HCA."""
    found = set()
    for line in text.splitlines():
        matched = _LINE.fullmatch(line.strip())
        if matched:
            found.add(Pairing(matched[1], int(matched[2]), matched[3], matched[4] == "Up"))
        elif "==>" in line:
            raise Garbled("ibdev2netdev", line)
    return sorted(found, key=lambda one: (one.hca, one.port, one.netdev, one.up))
