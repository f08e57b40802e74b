"""What the node's own log tells of trouble: of memory, of the bus, and of boots that ended in the middle of work."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from checks.check import DOCTOR_ALONE, Check, Sight
from checks.look import look
from checks.verdict import Verdict, holds, told
from facts.host import KernelLine
from node.health import UNKNOWN, XIDS

LONGEST = 160


POWER = "power the node off, pull its plug for some minutes, start it"


@dataclass(frozen=True)
class Sign:
    """A kind of line in the kernel's log: what it means, and what to do."""

    meaning: str
    fix: str


_MEMORY = Sign(
    "the kernel ended a process for lack of memory",
    "sudo sparkpair status has the least memory that was left; smaller budgets: docs/operations.md#memory",
)
SIGNS = {
    "oom-kill": _MEMORY,
    "oom-killed": _MEMORY,
    "oom-invoked": _MEMORY,
    "gpu-out-of-memory": Sign(
        "the driver found no memory for the GPU, after which a node may hang as a whole",
        "smaller budgets: docs/operations.md#memory; and what is said of this kernel and driver by advisory.*",
    ),
    "pcie-fatal": Sign(
        "a device on the PCIe bus failed beyond correction",
        f"end the load and reboot; where it comes again: {POWER}, and NVIDIA's support with this line;\n"
        "an owner saw no more of it with a cooler GPU: sudo nvidia-smi -lgc 0,2000",
    ),
    "nic-error": Sign("a ConnectX port is in trouble", f"where it comes again: {POWER}"),
    "lockup": Sign("the kernel stood still for a while", "journalctl -k shows for whom; where it comes again: reboot"),
    "panic": Sign("the kernel panicked", "journalctl -b -1 -k -e, and the kernel that was good"),
    "disk-error": Sign("a disk failed to read or write", "sudo smartctl -a of the disk in the line"),
}
"""By facts.tools.kernel_log's name for them. Of its others: that a port detected too little power says nothing
(NET-22), nor do PCIe errors that were corrected."""
_XID = re.compile(r"NVRM: Xid \([^)]*\): (\d{1,4})")


def kernel(sight: Sight) -> Iterator[Verdict]:
    """Lines of the kernel's log, each kind once, by its last line."""
    found, unread = look(sight, "the kernel's log", lambda seen: seen.host.kernel_lines)
    yield from unread
    for name, (_, lines) in found.items():
        kinds: dict[Sign, list[str]] = {}
        for line in lines:
            sign = _sign(line)
            if sign is not None:
                kinds.setdefault(sign, []).append(line.text)
        for sign, texts in kinds.items():
            times = "" if len(texts) == 1 else f" {len(texts)} times, the last"
            yield told(name, f"since its boot {sign.meaning}{times}: {texts[-1][:LONGEST].strip()}", sign.fix)
        if not kinds:
            yield holds(name, "the kernel's log has no sign of trouble since its boot")


def _sign(line: KernelLine) -> Sign | None:
    found = _XID.search(line.text)
    if found:
        xid = XIDS.get(int(found[1]), UNKNOWN)
        return Sign(f"the GPU had a fault (Xid {found[1]}: {xid.meaning})", xid.fix)
    return SIGNS.get(line.signature)


def boots(sight: Sight) -> Iterator[Verdict]:
    """HW-05, HW-06: how the boots before this one ended. A journal that ends in the middle of work is power or a hard
    lock-up; where it goes on while the engine ends, somebody ended the engine."""
    found, unread = look(sight, "its boots", lambda seen: seen.host.boots)
    yield from unread
    for name, (_, rows) in found.items():
        cut = [row for row in rows if row.ended == "cut"]
        judged = [row for row in rows if row.ended]
        if cut:
            yield told(
                name,
                f"{len(cut)} of its last {len(judged)} boots ended in the middle of work, without a shutdown: power "
                "went, or the node hung as a whole. A program that ends engines leaves a journal that goes on",
                "journalctl -b -1 -e shows the last lines before; sudo sparkpair status what memory was left. Where "
                "both say\nnothing and it comes again: NVIDIA's field diagnostics, and their support",
            )
        elif judged:
            yield holds(name, "the boots before this one ended with a shutdown")


CHECKS = (
    Check(
        "trouble.kernel",
        "Does the kernel's log have signs of trouble?",
        kernel,
        DOCTOR_ALONE,
        ("HW-04", "MEM-06", "MEM-12"),
    ),
    Check(
        "trouble.boots", "Did the boots before this one end with a shutdown?", boots, DOCTOR_ALONE, ("HW-05", "HW-06")
    ),
)
