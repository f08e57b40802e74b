"""nmcli -t: fields between colons, with \\: for a colon within one."""

from __future__ import annotations

import re

from facts.host import NmDevice, NmProfile
from facts.tools.garbled import Garbled


def devices(text: str) -> list[NmDevice]:
    """`nmcli -t -f DEVICE,TYPE,STATE,CONNECTION device`."""
    return [NmDevice(*row) for row in _rows("nmcli device", text, 4) if row[0]]


def profiles(text: str) -> list[NmProfile]:
    """`nmcli -t -f NAME,UUID,TYPE,FILENAME,DEVICE connection show`; the netdev is that on which it is in force."""
    rows = _rows("nmcli connection show", text, 5)
    return [NmProfile(name=row[0], uuid=row[1], file=row[3], netdev=row[4]) for row in rows if row[1]]


def _rows(tool: str, text: str, fields: int) -> list[list[str]]:
    found = []
    for line in text.splitlines():
        row = _split(line)
        # A warning, as of another version of the daemon: within a field a colon has a backslash before it.
        if len(row) == 1 or re.search(r"(?<!\\): ", line):
            continue
        if len(row) != fields:
            raise Garbled(tool, line)
        found.append(row)
    return found


def _split(line: str) -> list[str]:
    fields, held, escaped = [], "", False
    for letter in line:
        if escaped:
            held, escaped = held + letter, False
        elif letter == "\\":
            escaped = True
        elif letter == ":":
            fields.append(held)
            held = ""
        else:
            held += letter
    return [*fields, held]
