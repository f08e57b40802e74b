"""Files of sections and keys, as systemd and NetworkManager have them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A key with its value, in a section that may come several times (`part` counts them)."""

    line: int
    part: int
    section: str
    key: str
    value: str


def entries(text: str) -> list[Entry]:
    """Every key, in order; what is neither a section nor a key is passed over, as the programs do."""
    found, section, part, held = [], "", 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        line = held + line.strip()
        held = ""
        if not line or line[0] in "#;":
            continue
        if line.endswith("\\"):
            held = line[:-1].rstrip() + " "
            continue
        if line.startswith("[") and line.endswith("]"):
            section, part = line[1:-1], part + 1
            continue
        key, equals, value = line.partition("=")
        if equals and section:
            found.append(Entry(number, part, section, key.strip(), value.strip()))
    return found
