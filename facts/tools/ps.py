"""ps -eo pid,comm,args."""

from __future__ import annotations

import re
from dataclasses import dataclass

from facts.tools.garbled import Garbled

_LINE = re.compile(r"\s*([0-9]{1,9})\s+(\S+)(?:\s+(.*?))?\s*")


@dataclass(frozen=True)
class Process:
    """A process with its name, of which the kernel keeps 15 letters, and its command line."""

    pid: int
    name: str
    line: str


def parse(text: str) -> list[Process]:
    """Every process, by pid; the heading is none."""
    found = []
    for line in text.splitlines():
        matched = _LINE.fullmatch(line)
        if matched:
            found.append(Process(int(matched[1]), matched[2], matched[3] or ""))
        elif re.match(r"\s*[0-9]+\s*$", line):
            raise Garbled("ps", line)
    if not found:
        raise Garbled("ps", text or "nothing")  # ps itself is always there
    return sorted(found, key=lambda process: process.pid)
