"""getconf PAGESIZE."""

from __future__ import annotations

from facts.tools.garbled import Garbled, number

SIZES = (4096, 16384, 65536)


def parse(text: str) -> int:
    """The size of a page in bytes."""
    words = text.split()
    size = number("getconf PAGESIZE", words[-1], 2**20) if words else 0
    if size not in SIZES:
        raise Garbled("getconf PAGESIZE", text or "nothing")
    return size
