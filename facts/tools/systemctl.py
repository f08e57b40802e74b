"""systemctl show: lines of Name=value, a blank line between units."""

from __future__ import annotations

from facts.tools.garbled import Garbled, number

UNLIMITED = 2**64 - 1
"""How the kernel writes infinity, and systemd of before 2016 passed it on."""


def parse(text: str) -> dict[str, dict[str, str]]:
    """Properties by unit."""
    found: dict[str, dict[str, str]] = {}
    for block in text.replace("\r\n", "\n").split("\n\n"):
        properties = {}
        for line in block.split("\n"):
            name, equals, value = line.partition("=")
            if equals and name.isalnum():
                properties[name] = value
        if "Id" in properties:
            found[properties["Id"]] = properties
    if text.strip() and not found:
        raise Garbled("systemctl show", text)
    return found


def limit(properties: dict[str, str], name: str) -> int | None:
    """A resource limit in bytes; None is unlimited."""
    value = properties.get(name)
    if value is None:
        raise Garbled("systemctl show", f"no {name}")
    if value == "infinity":
        return None
    bytes_ = number("systemctl show", value)
    return None if bytes_ == UNLIMITED else bytes_
