"""lspci -D: a line per PCI function."""

from __future__ import annotations

import re
from dataclasses import dataclass

from facts.tools.garbled import Garbled

_LINE = re.compile(
    r"((?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (?:\"?)([^:\"]+)(?:\"?): (.+?)(?: \(rev [0-9a-f]+\))?"
)
_START = re.compile(r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b")


@dataclass(frozen=True)
class Function:
    """A PCI function: its address with the domain, its class and what it is."""

    slot: str
    kind: str
    name: str


def parse(text: str) -> list[Function]:
    """Every function, by address."""
    found = []
    for line in text.splitlines():
        if not _START.match(line):
            continue
        matched = _LINE.fullmatch(line.rstrip())
        if matched is None:
            raise Garbled("lspci", line)
        slot = matched[1] if matched[1].count(":") == 2 else f"0000:{matched[1]}"
        found.append(Function(slot, matched[2], matched[3]))
    return sorted(found, key=lambda function: function.slot)


def connectx(functions: list[Function]) -> list[Function]:
    """The functions of a ConnectX-7: four on a Spark."""
    return [function for function in functions if "ConnectX-7" in function.name]
