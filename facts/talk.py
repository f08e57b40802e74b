"""What the nodes hear of each other on their rails, proven by frames and packets of theirs and not by any setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
