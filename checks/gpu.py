"""The GPU's clock as it is at this moment, on each node and beside the other's. Idle is no proof: it is judged under
load."""

from __future__ import annotations

from collections.abc import Iterator

from checks import pair
from checks.check import DOCTOR_ALONE, Check, Sight
from checks.look import look
from checks.verdict import Verdict, broken, holds, told
from facts.host import Gpu
from facts.values import UnknownFact
from node.health import CLAMPED_MHZ, LOADED_PERCENT, SLOW

SLOWER = 0.8
"""Of the other node's clock; ranks wait for each other, so the pair is as slow as its slower node (HW-02: 507 MHz
beside 2230)."""
POWER_OFF = "power the node off, pull its plug for some minutes, start it: a reboot does not help"
HOT = ("thermal", "therm")


def clocks(sight: Sight) -> Iterator[Verdict]:
    """HW-01 to HW-03: a clock that stays down under load."""
    found, unread = look(sight, "the GPU's clock", lambda seen: seen.host.gpu)
    yield from unread
    loaded: dict[str, float] = {}
    for name, (_, gpus) in found.items():
        for gpu in gpus:
            if gpu.sm_mhz is None:
                yield holds(name, f"{gpu.name}: the driver does not tell its clock")
            elif gpu.utilization is None or gpu.utilization < LOADED_PERCENT:
                yield holds(name, f"{_said(gpu)}: idle, so the clock says nothing; ask again under load")
            elif gpu.sm_mhz < CLAMPED_MHZ:
                hot = any(word in reason.lower() for reason in gpu.reasons for word in HOT)
                yield broken(
                    name,
                    f"the GPU is clamped: {_said(gpu)}, wanted {CLAMPED_MHZ:.0f} MHz or more under load"
                    + (f" ({', '.join(gpu.reasons)})" if gpu.reasons else ""),
                    "it is too hot: cool the node" if hot else POWER_OFF,
                )
            else:
                loaded[name] = gpu.sm_mhz
                yield holds(name, f"{_said(gpu)}")
    fastest = max(loaded, key=lambda name: loaded[name], default="")
    for name, clock in loaded.items():
        if clock < SLOWER * loaded[fastest]:
            yield told(
                name,
                f"its GPU runs at {clock:.0f} MHz under load, and {fastest}'s at {loaded[fastest]:.0f}: the pair goes "
                "at the slower one's pace",
                f"nvidia-smi -q -d CLOCK,PERFORMANCE on both: a clock limit that is set on one alone? Else {POWER_OFF}",
            )


def watched(sight: Sight) -> Iterator[Verdict]:
    """What the agents saw of the clock last, which they ask while the pair works: the moment in which doctor asks may
    be an idle one."""
    try:
        status = pair.status_of(sight.facts[sight.cluster.head.name])
    except UnknownFact:
        return  # said of the keeper
    for node in sight.cluster.nodes:
        rank = status.ranks.get(node.rank) if status is not None else None
        if rank is None or not rank.clocks:
            continue
        if rank.clocks.startswith(SLOW):
            seen, _, fix = rank.clocks.removeprefix(SLOW).partition(". Fix: ")
            yield broken(node.name, f"the keeper last saw its GPU clamped: {seen}", fix or POWER_OFF)
        else:
            yield holds(node.name, f"the keeper last saw its GPU at {rank.clocks}")


def _said(gpu: Gpu) -> str:
    parts = [f"{gpu.sm_mhz:.0f} MHz" + ("" if gpu.utilization is None else f" at {gpu.utilization:.0f} %")]
    parts += [] if gpu.power_watts is None else [f"{gpu.power_watts:.0f} W"]
    parts += [] if gpu.temperature is None else [f"{gpu.temperature:.0f} °C"]
    return ", ".join(parts)


CHECKS = (
    Check(
        "gpu.clock",
        "Does the GPU's clock stay up under load?",
        clocks,
        DOCTOR_ALONE,
        ("HW-01", "HW-02", "HW-03", "MEM-17"),
    ),
    Check(
        "gpu.watched",
        "Did its clock stay up while the pair worked?",
        watched,
        DOCTOR_ALONE,
        ("HW-01", "HW-02", "HW-03"),
    ),
)
