"""The processes of this node's rank: how many, whether one was stopped, and what they have done so far."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
STOPPED = "T"
"""By a signal; a process that a debugger holds is `t`."""
NO_TERMINAL = "0"
"""The engine has none. What has one is a person's, in `docker exec -it`, and may be put aside there by Ctrl-Z."""


@dataclass(frozen=True)
class Processes:
    """What the engine's processes are and did."""

    pids: tuple[int, ...]
    stopped: int
    """Of the engine's own, stopped by a signal."""
    io: int
    """Bytes read from and written to disks."""
    cpu: float
    """Seconds of processor time of those that live."""


def look(found: Sequence[int], proc: Path = Path("/proc")) -> Processes:
    """What these processes did; one that has ended meanwhile counts for nothing."""
    stopped, read, cpu = 0, 0, 0.0
    for pid in found:
        try:
            # The name in brackets may hold blanks and brackets of its own.
            fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
            counters = (proc / str(pid) / "io").read_text()
        except OSError:
            continue
        stopped += fields[0] == STOPPED and fields[4] == NO_TERMINAL
        cpu += (int(fields[11]) + int(fields[12])) / TICKS
        read += sum(
            int(line.split()[1]) for line in counters.splitlines() if line.startswith(("read_bytes:", "write_bytes:"))
        )
    return Processes(tuple(found), stopped, read, cpu)
