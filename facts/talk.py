"""What the nodes hear of each other on their rails, proven by frames and packets of theirs and not by any setting."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path as FilePath

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.facts import FactBase

SECONDS = 4.0
"""For the whole talk, where not everybody is heard: a node may start 3 s after the others."""

_BOOTSTRAP = (
    "import base64,sys,zlib;"
    "exec(compile(zlib.decompress(base64.b64decode(sys.argv.pop())),'<talk>','exec'),{'__name__':'__main__'})"
)


@dataclass(frozen=True)
class Heard:
    """A frame of another node that arrived: at which netdev of this node, from which node and its netdev."""

    at: str
    node: str
    netdev: str


@dataclass(frozen=True)
class Path:
    """One rail from a node to a peer's address: "" where it passes, else what was seen."""

    netdev: str
    peer: str
    """The peer's address on the rail."""
    ping: str
    """One packet of the rail's whole MTU, unfragmented."""
    tcp: str
    """A connection to a port that the peer opened at random for it."""


@dataclass(frozen=True)
class Said:
    """One node's part: what it heard, and how its packets to each peer's rail addresses fared."""

    heard: tuple[Heard, ...] = ()
    paths: tuple[Path, ...] = ()
    trouble: str = ""
    """Why this node could not take part; "" where it did."""


@dataclass(frozen=True)
class Talk:
    """All nodes' parts, by node name."""

    said: Mapping[str, Said] = field(default_factory=dict)


@dataclass(frozen=True)
class Way:
    """A path to be tried: from a netdev and its own address to a peer's address on that rail."""

    netdev: str
    own: str
    node: str
    peer: str
    mtu: int


@dataclass(frozen=True)
class Question:
    """What one node is told: its name among those that take part, where to send and listen, and which ways to try.
    `nonce` is the same for all of one talk, and no other's."""

    name: str
    nonce: str
    nodes: tuple[str, ...]
    netdevs: tuple[str, ...]
    paths: tuple[Way, ...] = ()
    seconds: float = SECONDS

    def text(self) -> str:
        """As the node's side reads it."""
        return json.dumps(asdict(self), separators=(",", ":"))


@cache
def _payload() -> str:
    source = (FilePath(__file__).parent / "talk_side.py").read_text(encoding="utf-8")
    return base64.b64encode(zlib.compress(source.encode(), 9)).decode()


def command(question: str) -> StringCommand:
    """The shell line for a node, for root and for a user with sudo alike: raw frames are for root alone."""
    python = StringCommand("$1 /usr/bin/python3 -ISB -c", QuoteString(_BOOTSTRAP), QuoteString(question), _payload())
    return StringCommand(
        ": sparkpair-talk; run() {",
        python,
        "; };",
        'if [ "$(id -u)" = 0 ]; then run ""; else run "sudo -n"; fi 2>&1; true',
    )


class TalkSide(FactBase[Said]):
    """One node's part of a talk. All nodes are to be asked at the same time."""

    @staticmethod
    def default() -> Said:
        """No answer at all."""
        return Said(trouble="it did not answer")

    def command(self, question: str) -> StringCommand:
        """See `command` of this module."""
        return command(question)

    def process(self, output: list[str]) -> Said:
        """See `from_output`."""
        return from_output(output)


def from_output(output: Sequence[str]) -> Said:
    """One node's part, in the last line that is an answer; what is none is the trouble."""
    for line in reversed(output):
        if line.startswith("{"):
            try:
                return _said(json.loads(line))
            except (ValueError, TypeError, KeyError, RecursionError):
                return Said(trouble=f"its answer is damaged: {line[:80]!r}")
    return Said(trouble=f"it answered {' '.join(output)[-160:]!r}" if output else "it did not answer")


def _said(answer: Mapping[str, object]) -> Said:
    return Said(
        heard=tuple(Heard(*row) for row in _rows(answer["heard"], 3)),
        paths=tuple(Path(*row) for row in _rows(answer["paths"], 4)),
        trouble=str(answer["trouble"]),
    )


def _rows(value: object, width: int) -> list[list[str]]:
    if not isinstance(value, list):
        raise TypeError
    for row in value:
        if not isinstance(row, list) or len(row) != width or not all(isinstance(text, str) for text in row):
            raise TypeError
    return value
