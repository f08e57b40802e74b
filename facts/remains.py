"""What a node still has of ours, for whoever removes it. Asked for that alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.facts import FactBase

from facts import remains_side
from facts.values import Unknown

PROGRAM = Path(remains_side.__file__)


@dataclass(frozen=True)
class Discard:
    """A directory of the operator's that removal may be told to take: whether it is there, whether it was set aside by
    a removal that did not finish, and why it must not be taken (empty: it may be)."""

    is_there: bool
    is_aside: bool
    unsafe: str


@dataclass(frozen=True)
class Remaining:
    """Paths that removal takes; directories of ours that stay, with what lies in them; units with what systemd says of
    them (ActiveState, UnitFileState); what is there of the rest."""

    paths: tuple[str, ...]
    left: Mapping[str, tuple[str, ...]]
    units: Mapping[str, tuple[str, str]]
    discards: Mapping[str, Discard]
    there: frozenset[str]
    mounted: tuple[tuple[str, str], ...] = ()
    """Paths that removal would take and in which something is mounted, and where."""


class Remains(FactBase["Remaining | Unknown"]):
    """All of it in one program, or why it is not known."""

    @staticmethod
    def default() -> Remaining | Unknown:
        """No answer at all."""
        return Unknown("it did not answer")

    def command(self, asked: str) -> StringCommand:
        """`asked` is what remains_side.find is told."""
        return run(asked)

    def process(self, output: list[str]) -> Remaining | Unknown:
        """The last line that is an answer."""
        for line in reversed(output):
            if line.startswith("{"):
                return read(line)
        return Unknown(f"it answered {' '.join(output)[:80]!r}")


def run(asked: str) -> StringCommand:
    """The program with what it is told, as a shell line."""
    program = QuoteString(PROGRAM.read_text(encoding="utf-8"))
    return StringCommand(": sparkpair-remains; /usr/bin/python3 -ISB -c", program, QuoteString(asked))


def read(line: str) -> Remaining | Unknown:
    try:
        data = json.loads(line)
        return Remaining(
            paths=tuple(map(str, data["paths"])),
            left={str(path): tuple(map(str, names)) for path, names in data["left"].items()},
            units={str(name): (str(active), str(state)) for name, (active, state) in data["units"].items()},
            discards={
                str(path): Discard(bool(row["there"]), bool(row["aside"]), str(row["unsafe"]))
                for path, row in data["discards"].items()
            },
            there=frozenset(map(str, data["there"])),
            mounted=tuple((str(path), str(mount)) for path, mount in data["mounted"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Unknown(f"its answer cannot be read: {error}")
