"""How a stack describes one rank's launch: what it is given (Seat) and what it gives back (Launch)."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network
from types import MappingProxyType
from typing import Literal

from spec.knobs import KNOBS, Knob, Knobs
from spec.stacks.image_checks import ImageCheck, ImageTests

Groups = tuple[tuple[str, ...], ...]
"""Arguments, a flag and its value together, so that a turned knob is one changed line."""


@dataclass(frozen=True)
class GidIndex:
    """Stands for the row of a RoCE v2 address in an HCA's table: it moves after a link flap (3 to 4 was seen), so the
    rank agent looks it up at every start."""

    hca: str
    address: IPv4Address


@dataclass(frozen=True)
class Secret:
    """Stands for the text of a file of root's alone on the node, which no text of ours may hold: the rank agent reads
    it at every start."""

    name: str


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
    model_directory: str
    """Last part of the weights' path on the head: what a model is called that was given no name."""
    further: tuple[tuple[str, IPv4Address, IPv4Network], ...] = ()
    """HCA, address and network of each rail that NCCL uses besides the first."""
    gid_index: int | None = None
    """Row of the HCA's table as the operator states it; None: looked up at every start."""


@dataclass(frozen=True)
class Launch:
    """One rank as Docker is to start it."""

    name: str
    image: str
    content: tuple[str, ...]
    container: Groups
    mounts: Groups
    directories: tuple[str, ...]
    env: tuple[tuple[str, str | GidIndex | Secret], ...]
    command: Groups


@dataclass(frozen=True)
class Stack:
    """One way to serve: image, defaults, launch, and how to tell that it lives."""

    name: str
    title: str
    image: str | None
    defaults: Mapping[str, object]
    releases: Mapping[str, str]
    """Which release an image is, by its digest."""
    release_url: str
    """Where the stack's project states its newest release as one line; empty where it does not."""
    revisions: Mapping[str, str]
    """The commit of a repository that was proven, by the repository."""
    quantized_drafters: Mapping[str, bool]
    """Whether a repository's drafter is quantized, for those that are known."""
    overlays: tuple[str, ...]
    """Directories whose files an earlier kit put over the image's own, below the login user's home."""
    image_checks: tuple[ImageCheck, ...]
    """What an image of this stack must hold by itself."""
    image_tests: ImageTests | None
    """The engine's own tests that run in the image; None where none are known."""
    launch: Callable[[Knobs, Seat], Launch]
    served_name: Callable[[Knobs, Seat], str]
    speculative_tokens: Mapping[str, int]
    """How many tokens each method proposes when the operator does not say; a method that is not here must be told."""
    needs_drafter: frozenset[str]
    """Methods that read a drafter's directory."""
    spelling: Mapping[str, str]
    """What this engine calls a flag, where that is not the knob's own word for it."""
    published_start_seconds: float | None
    """From a start to the API, as the stack's project publishes it; None where nothing is published."""
    published_start_source: str
    """Who says so; empty where nothing is published."""
    published_nfs_start_seconds: float | None
    """The same with the weights over NFS."""
    start_order: Literal["workers-first", "head-first"]
    ready_path: str
    metrics_path: str

    def effective(self, stated: Knobs, preset: Mapping[str, object] = MappingProxyType({})) -> Knobs:
        """The knobs, with the preset's values in place of what is unset, and this stack's defaults in place of the
        rest."""
        known = {**self.defaults, **preset}
        filled = {name: known[name] for name in Knobs.model_fields if getattr(stated, name) is None and name in known}
        return Knobs.model_validate({**stated.model_dump(), **filled})

    @cached_property
    def variables(self) -> frozenset[str]:
        """Names of the variables that the launch sets before anything is stated."""
        return frozenset(name for name, _ in self.launch(self.effective(Knobs()), _ANY_SEAT).env)


_ANY_SEAT = Seat(
    rank=0,
    ranks=2,
    netdev="netdev",
    hca="hca",
    address=IPv4Address("10.200.0.1"),
    network=IPv4Network("10.200.0.0/24"),
    master_address=IPv4Address("10.200.0.1"),
    weights_path="/weights",
    drafter_path="/drafter",
    cache_path="/cache",
    model_directory="weights",
)


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
    if knob.leaves_it_to_the_engine(value) or value is False:
        return ()
    return ((spelling,),) if value is True else ((spelling, written(value)),)


def env_pairs(knobs: Knobs, *, of: Collection[str] = (), but: Collection[str] = ()) -> tuple[tuple[str, str], ...]:
    """The variables that knobs stand for, in order of declaration: `of` these knobs only, or of all `but` these."""
    return tuple(
        (variable, written(value))
        for name, knob in KNOBS.items()
        if knob.env
        and (not of or name in of)
        and name not in but
        and not knob.leaves_it_to_the_engine(value := getattr(knobs, name))
        for variable in knob.env.names
    )


def compact_json(value: object) -> str:
    """JSON without spaces, as one argument."""
    return json.dumps(value, separators=(",", ":"))
