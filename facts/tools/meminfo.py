"""/proc/meminfo."""

from __future__ import annotations

import re

from facts.tools.garbled import Garbled

_LINE = re.compile(r"([A-Za-z][\w()]*):\s+([0-9]{1,15})(?: (kB))?\s*")


def parse(text: str) -> dict[str, int]:
    """Each line's value in bytes; those that the kernel counts in pages of a kind, such as HugePages_Total, as they
    are."""
    found = {}
    for line in text.splitlines():
        matched = _LINE.fullmatch(line)
        if matched:
            found[matched[1]] = int(matched[2]) * (1024 if matched[3] else 1)
    for name in ("MemTotal", "MemFree", "MemAvailable"):
        if name not in found:
            raise Garbled("/proc/meminfo", text or "nothing")
    return found
