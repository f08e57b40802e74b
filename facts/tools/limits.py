"""/proc/PID/limits."""

from __future__ import annotations

import re

from facts.tools.garbled import Garbled, number

_LINE = re.compile(r"(Max [a-z ]+?)\s{2,}(\S+)\s+(\S+)(?:\s+\S+)?\s*")


def parse(text: str) -> dict[str, int | None]:
    """Each soft limit by its name, as "Max locked memory"; None is unlimited."""
    found: dict[str, int | None] = {}
    for line in text.splitlines():
        matched = _LINE.fullmatch(line)
        if matched:
            found[matched[1]] = None if matched[2] == "unlimited" else number("/proc/PID/limits", matched[2])
    if "Max locked memory" not in found:
        raise Garbled("/proc/PID/limits", text or "nothing")
    return found
