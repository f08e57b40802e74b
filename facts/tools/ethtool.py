"""ethtool DEV, and ethtool -m DEV: what is plugged in."""

from __future__ import annotations

import re
from dataclasses import dataclass

from facts.tools.garbled import Garbled

_SPEED = re.compile(r"([0-9]{1,9})Mb/s(?: .*)?")
_NOT_KNOWN = ("Unknown!", "Unknown! (255)", "Unknown! (-1)")


@dataclass(frozen=True)
class Link:
    """`speed_mbps` None where it is not known, as without a carrier; `detected` None where it is not said."""

    speed_mbps: int | None
    detected: bool | None
    port: str = ""


def parse(text: str) -> Link:
    """`ethtool DEV`."""
    if not text.lstrip().startswith("Settings for ") and "\nSettings for " not in text:
        raise Garbled("ethtool", text or "nothing")
    values = _values(text)
    speed = values.get("Speed")
    matched = _SPEED.fullmatch(speed) if speed is not None else None
    if speed is not None and matched is None and speed not in _NOT_KNOWN:
        raise Garbled("ethtool", f"Speed: {speed}")
    detected = {"yes": True, "no": False}.get(values.get("Link detected", "").partition(" ")[0])
    return Link(int(matched[1]) if matched else None, detected, values.get("Port", ""))


def module(text: str) -> str:
    """`ethtool -m DEV`: maker and part number of what is plugged in; "" where it says neither."""
    values = _values(text)
    return " ".join(word for word in (values.get("Vendor name", ""), values.get("Vendor PN", "")) if word)


def _values(text: str) -> dict[str, str]:
    """The first value of each name."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and line[:1].isspace():
            found.setdefault(name.strip(), value.strip())
    return found
