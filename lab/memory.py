"""Stand-in for memory that something else on a host holds: a copy of /proc/meminfo with less available lies over it.

Nothing is really taken. Whoever opens /proc/meminfo on that host from then on reads the copy, until it is given back.
"""

from __future__ import annotations

from lab import hosts
from lab.settings import Host
from lab.shell import run

COPY = "/run/lab-memory"


def leave(host: Host, mib: int) -> None:
    """From now on the host shows so many MiB as available, and no free memory beyond that."""
    give_back(host)
    kib = mib * 1024
    values = {"MemAvailable": kib, "MemFree": kib // 2, "Cached": kib // 2}
    edit = "; ".join(f"s/^({name}:) .*/\\1 {value} kB/" for name, value in values.items())
    run(*hosts.exec_command(host, f"sed -E '{edit}' /proc/meminfo > {COPY} && mount --bind {COPY} /proc/meminfo"))


def give_back(host: Host) -> None:
    """The host shows its memory as it is again."""
    there = f"grep -q '{COPY.removeprefix('/run')} /proc/meminfo ' /proc/self/mountinfo"
    run(*hosts.exec_command(host, f"while {there}; do umount /proc/meminfo; done; rm -f {COPY}"))
