"""What a node holds of images and their layers, for whoever removes what nobody needs. Asked for that alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.facts import FactBase

from facts import leftovers_side
from facts.values import Unknown

PROGRAM = Path(leftovers_side.__file__)


@dataclass(frozen=True)
class HeldImage:
    """An image with all its names, by tag and by digest. `size` in bytes, shared layers included."""

    id: str
    names: tuple[str, ...]
    size: int


@dataclass(frozen=True)
class Leftovers:
    """Every image, the ids that containers need, the references that launches name, and the bytes of the registry's
    store (None: there is none)."""

    images: tuple[HeldImage, ...]
    used: frozenset[str]
    launched: frozenset[str]
    store: int | None


class Holdings(FactBase["Leftovers | Unknown"]):
    """All of it in one program, or why it is not known."""

    @staticmethod
    def default() -> Leftovers | Unknown:
        """No answer at all."""
        return Unknown("it did not answer")

    def command(self, launches: Sequence[str], store: str) -> StringCommand:
        """`launches` are patterns of rank files."""
        asked = json.dumps({"launches": list(launches), "store": store})
        program = QuoteString(PROGRAM.read_text(encoding="utf-8"))
        return StringCommand("/usr/bin/python3 -ISB -c", program, QuoteString(asked))

    def process(self, output: list[str]) -> Leftovers | Unknown:
        """The last line that is an answer."""
        for line in reversed(output):
            if line.startswith("{"):
                return _read(line)
        return Unknown(f"it answered {' '.join(output)[:80]!r}")


def _read(line: str) -> Leftovers | Unknown:
    try:
        data = json.loads(line)
        if "error" in data:
            return Unknown(str(data["error"]))
        return Leftovers(
            images=tuple(
                HeldImage(str(item["id"]), tuple(str(name) for name in item["names"]), int(item["size"]))
                for item in data["images"]
            ),
            used=frozenset(str(name) for name in data["used"]),
            launched=frozenset(str(name) for name in data["launched"]),
            store=None if data["store"] is None else int(data["store"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        return Unknown(f"its answer cannot be read: {error}")
