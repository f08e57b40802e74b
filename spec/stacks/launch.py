"""How a stack describes one rank's launch: what it is given (Seat) and what it gives back (Launch)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Literal

from spec.knobs import KNOBS, Knob, Knobs

Groups = tuple[tuple[str, ...], ...]
"""Arguments, a flag and its value together, so that a turned knob is one changed line."""


@dataclass(frozen=True)
class GidIndex:
    """Stands for the row of a RoCE v2 address in an HCA's table: it moves after a link flap (3 to 4 was seen), so the
    rank agent looks it up at every start."""

    hca: str
    address: IPv4Address


@dataclass(frozen=True)
class Seat:
    """What one rank is to know of its place: who it is, where the others are, what lies where on its node."""

    rank: int
    ranks: int
    netdev: str
    hca: str
    address: IPv4Address
    network: IPv4Network
    master_address: IPv4Address
    weights_path: str
    drafter_path: str | None
    cache_path: str


@dataclass(frozen=True)
class Launch:
    """One rank as Docker is to start it."""

    name: str
    image: str
    content: tuple[str, ...]
    container: Groups
    mounts: Groups
    directories: tuple[str, ...]
    env: tuple[tuple[str, str | GidIndex], ...]
    command: Groups


@dataclass(frozen=True)
class Metrics:
    """What the engine calls the counters that tell progress; the keeper and verify read them at metrics_path."""

    running: str
    waiting: str
    prompt_tokens: str
    generation_tokens: str


@dataclass(frozen=True)
class Stack:
    """One way to serve: image, defaults, launch, and how to tell that it lives."""

    name: str
    title: str
    image: str | None
    defaults: Mapping[str, object]
    launch: Callable[[Knobs, Seat], Launch]
    served_name: Callable[[Knobs, Seat], str]
    start_order: Literal["workers-first", "head-first", "together"]
    ready_path: str
    metrics_path: str
    metrics: Metrics

    def effective(self, stated: Knobs) -> Knobs:
        """The knobs with this stack's defaults in place of what is unset."""
        filled = {
            name: self.defaults[name]
            for name in Knobs.model_fields
            if getattr(stated, name) is None and name in self.defaults
        }
        return Knobs.model_validate({**stated.model_dump(), **filled})


def written(value: object) -> str:
    """A value as the engine's command line and environment take it."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def flag_groups(
    knobs: Knobs,
    place: Mapping[str, Callable[[], Groups]],
    spelling: Mapping[str, str],
) -> Groups:
    """The flags that knobs stand for, in order of declaration. `place` says what is written at a knob that is more than
    its own flag; `spelling` is what this engine calls a flag."""
    groups: list[tuple[str, ...]] = []
    for name, knob in KNOBS.items():
        if name in place:
            groups += place[name]()
        elif knob.flag:
            groups += _flag(knob, getattr(knobs, name), spelling.get(knob.flag.name, knob.flag.name))
    return tuple(groups)


def _flag(knob: Knob, value: object, spelling: str) -> Groups:
    if value is None or value == "" or value is False or value == "auto" and knob.name == "kv_cache_memory_bytes":
        return ()
    return ((spelling,),) if value is True else ((spelling, written(value)),)


def env_pairs(knobs: Knobs) -> tuple[tuple[str, str], ...]:
    """The variables that knobs stand for, in order of declaration."""
    return tuple(
        (variable, written(value))
        for name, knob in KNOBS.items()
        if knob.env and (value := getattr(knobs, name)) is not None and value != ""
        for variable in knob.env.names
    )


def compact_json(value: object) -> str:
    """JSON without spaces, as one argument."""
    return json.dumps(value, separators=(",", ":"))
