"""The rails as they were measured last: a dated file on the head, and what it was true of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from node import paths

PATH = str(paths.FABRIC_GATE)
FORMAT = 1
BANDWIDTH, LATENCY = "bandwidth", "latency"


@dataclass(frozen=True)
class Measured:
    """One measurement: over which rails (by number), from which node to which, with what, and what came of it.

    `gbps` is all rails together, `each` what each of them carried meanwhile. `trouble` is why there is no figure.
    `instead_of` is why it was TCP that was measured and not RDMA; "" where RDMA was.
    """

    kind: str
    rails: tuple[int, ...]
    source: str
    target: str
    tool: str
    gbps: float | None = None
    usec: float | None = None
    each: tuple[float, ...] = ()
    rdma_mtu: int | None = None
    trouble: str = ""
    instead_of: str = ""

    @property
    def by_rdma(self) -> bool:
        return self.tool.startswith("ib_")


@dataclass(frozen=True)
class Collective:
    """A small all-reduce of all ranks in the serving image: by which backend, over which transport of NCCL's ("" where
    it does not say), with which bus bandwidth in GB/s. `trouble` is why it did not end well."""

    backend: str
    transport: str = ""
    gigabytes_per_second: float | None = None
    trouble: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    """/etc/nccl.conf of the image, by name."""
    image: str = ""
    lacking: str = ""
    """Why no collective can run in that image; "" where one can."""


@dataclass(frozen=True)
class Gate:
    """`at` by the head's clock; `of` is what the rails were, in words that are compared."""

    at: str
    of: Mapping[str, str]
    measured: tuple[Measured, ...]
    collective: Collective | None = None


def text(gate: Gate) -> str:
    """As the file holds it."""
    return json.dumps({"format": FORMAT, **asdict(gate)}, indent=1, sort_keys=True) + "\n"


def read(value: object) -> Gate:
    """The gate in the file's JSON. Raises ValueError, KeyError or TypeError where it is of another form."""
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ValueError("it is of another format")
    rows = value["measured"]
    if not isinstance(rows, list):
        raise ValueError("measured is no list")
    found = value.get("collective")
    return Gate(
        at=_text(value["at"]),
        of={_text(name): _text(told) for name, told in _mapping(value["of"]).items()},
        measured=tuple(_measured(row) for row in rows),
        collective=None if found is None else _collective(found),
    )


def _measured(row: dict[str, object]) -> Measured:
    rails, each = row["rails"], row["each"]
    if not isinstance(rails, list) or not isinstance(each, list):
        raise ValueError("rails and each are lists")
    return Measured(
        kind=_text(row["kind"]),
        rails=tuple(_whole(rail) for rail in rails),
        source=_text(row["source"]),
        target=_text(row["target"]),
        tool=_text(row["tool"]),
        gbps=_figure(row["gbps"]),
        usec=_figure(row["usec"]),
        each=tuple(_figure(part) or 0.0 for part in each),
        rdma_mtu=None if row["rdma_mtu"] is None else _whole(row["rdma_mtu"]),
        trouble=_text(row["trouble"]),
        instead_of=_text(row["instead_of"]),
    )


def _collective(row: dict[str, object]) -> Collective:
    return Collective(
        backend=_text(row["backend"]),
        transport=_text(row["transport"]),
        gigabytes_per_second=_figure(row["gigabytes_per_second"]),
        trouble=_text(row["trouble"]),
        settings={_text(name): _text(told) for name, told in _mapping(row["settings"]).items()},
        image=_text(row["image"]),
        lacking=_text(row["lacking"]),
    )


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{str(value)[:60]!r} is no object")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{str(value)[:60]!r} is no text")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{str(value)[:60]!r} is no whole number")
    return value


def _figure(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise ValueError(f"{str(value)[:60]!r} is no figure")
    return float(value)
