"""ss -ltnp: who listens."""

from __future__ import annotations

import re

from facts.host import Listener
from facts.tools.garbled import Garbled

_PLACE = re.compile(r"(.+):([0-9]{1,5})")
_USER = re.compile(r'\("((?:[^"\\]|\\.)*)",pid=([0-9]{1,9}),fd=[0-9]+\)')


def parse(text: str) -> list[Listener]:
    """Every listening socket, once for each process that holds it; by port."""
    found = set()
    for line in text.splitlines():
        words = line.split(None, 5)
        if not words or words[0] != "LISTEN":
            continue
        place = _PLACE.fullmatch(words[3]) if len(words) >= 5 else None
        if place is None or int(place[2]) > 65535:
            raise Garbled("ss -ltnp", line)
        address = place[1].strip("[]").partition("%")[0] or "*"
        users = _USER.findall(words[5]) if len(words) > 5 else []
        for command, pid in users:
            found.add(Listener(address, int(place[2]), int(pid), command))
        if not users:
            found.add(Listener(address, int(place[2]), None, ""))
    if text.strip() and not found and "Local Address" not in text:
        raise Garbled("ss -ltnp", text)
    return sorted(found, key=lambda one: (one.port, one.address, one.pid or 0, one.command))
