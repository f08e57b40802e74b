"""A tool's output that is not of the form that it must have."""

from __future__ import annotations


class Garbled(ValueError):
    """`tool` said what cannot be read; `seen` is the part that is wrong."""

    def __init__(self, tool: str, seen: str) -> None:
        super().__init__(f"{tool} said {' '.join(seen.split())[:120]!r}, which cannot be read")
        self.tool = tool
        self.seen = seen


def number(tool: str, text: str, most: int = 2**64) -> int:
    """A whole number in ASCII digits."""
    if not (text.isascii() and text.isdigit()) or len(text) > 20 or int(text) > most:
        raise Garbled(tool, text)
    return int(text)
