"""What checks of a node's own side are shown in tests: a converged pair, each node with a host of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from checks.check import Sight
from checks.verdict import Verdict
from facts.host import Board, Clock, DockerSide, HostFacts, Port, Release, Session
from facts.values import NodeFacts, parse
from tests.plan.world import World, converged
from tests.unit import pair

HEAD, WORKER = "spark-a", "spark-b"
GIB = 2**30
MEMINFO = {
    "MemTotal": 122 * GIB, "MemFree": 100 * GIB, "MemAvailable": 112 * GIB, "Buffers": GIB, "Cached": 12 * GIB,
    "AnonPages": 4 * GIB, "Slab": 2 * GIB, "PageTables": GIB // 16, "KernelStack": GIB // 32, "CmaTotal": 0,
    "CmaFree": 0,
}  # fmt: skip


def port(netdev: str = "enp1s0f0np0", **changes: Any) -> Port:
    """One that is well."""
    whole: dict[str, Any] = {
        "hca": "roce" + netdev.removesuffix("np0").removeprefix("en"), "netdev": netdev, "mac": "02:00:00:00:00:01",
        "pci": "0000:01:00.0", "state": "ACTIVE", "carrier": True, "mtu": 9000, "speed_mbps": 200000,
        "firmware": "28.46.1006", "link_width": 4,
    }  # fmt: skip
    return Port(**{**whole, **changes})


def sound(**changes: Any) -> HostFacts:
    """A node on which nothing is amiss."""
    whole: dict[str, Any] = {
        "release": Release("ubuntu", "24.04", "Ubuntu 24.04.4 LTS", "7.4.0"),
        "kernel": "6.17.0-1031-nvidia",
        "page_size": 4096,
        "cmdline": ("quiet",),
        "board": Board("NVIDIA DGX Spark", "5.36_0ACUM018", "2026-06-01"),
        "meminfo": MEMINFO,
        "ports": (port(), port("enP2p1s0f0np0", pci="0002:01:00.0")),
        "docker": DockerSide(driver="overlay2", root="/var/lib/docker", settings_runtimes=("nvidia",), packaged=True,
                             user_in_group=True, daemons=((900, "/usr/bin/dockerd -H fd://"),)),
        "session": Session("multi-user.target"),
        "gpu_apps": (),
        "clock": Clock(1000.5, True, "systemd-timesyncd", 1000.0, 1001.0),
        "gpu": (),
        "kernel_lines": (),
        "boots": (),
    }  # fmt: skip
    return HostFacts(**{**whole, **changes})


@cache
def _converged(knobs: tuple[tuple[str, object], ...]) -> World:
    return converged(pair.cluster({**pair.UPSTREAM, **dict(knobs)}))


def sight(
    head: HostFacts | None = None,
    worker: HostFacts | None = None,
    change: Callable[[World], None] | None = None,
    *,
    starts: bool = True,
    knobs: Mapping[str, object] | None = None,
) -> Sight:
    """The pair as these checks are shown it; `change` changes what the probes answered beside."""
    made = _converged(tuple((knobs or {}).items()))
    world = World(made.cluster, copy.deepcopy(made.nodes))
    if change is not None:
        change(world)
    hosts = {HEAD: head or sound(), WORKER: worker or sound()}
    facts: dict[str, NodeFacts] = {
        name: replace(parse(document), host=hosts[name]) for name, document in world.nodes.items()
    }
    return Sight(world.cluster, facts, starts=starts)


def without_ranks(world: World) -> None:
    """Nothing of ours runs."""
    for node in (world.head, world.worker):
        node["docker"]["containers"] = []


def said(verdicts: Any) -> list[str]:
    """What does not hold, as it is printed, with a mark for what is only told."""
    found: list[Verdict] = list(verdicts)
    return [("told" if one.told else "refused") + one.text() for one in found if one.holds is False]


def statements(verdicts: Any) -> list[str]:
    """What holds."""
    found: list[Verdict] = list(verdicts)
    return [f"{one.where}: {one.statement}" if one.where else one.statement for one in found if one.holds]
