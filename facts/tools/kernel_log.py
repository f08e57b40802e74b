"""The kernel's log: lines that are known to mean something. Nothing in it is ever garbled; most of it means nothing."""

from __future__ import annotations

import re

from facts.host import KernelLine

MOST = 40
"""Of each signature, the last: a driver in trouble repeats itself."""
_SECONDS = re.compile(r"^\[ *([0-9]{1,9}\.[0-9]{1,6})\] ?")
_DATE = re.compile(r"^\[[A-Z][a-z]{2} [A-Z][a-z]{2} +[0-9]+ [0-9:]{8} [0-9]{4}\] ?")
_PREFIX = re.compile(r"^(?:\S+ )?kernel: ")

# First that fits. Names in brackets: field reports.
SIGNATURES = (
    ("gpu-out-of-memory", re.compile(r"NVRM: .*NV_ERR_NO_MEMORY")),  # KRN-02, MEM-06
    ("gpu-xid", re.compile(r"NVRM: Xid")),
    ("gpu-driver", re.compile(r"NVRM: ")),
    ("oom-kill", re.compile(r"oom-kill:constraint=")),  # MEM-12
    ("oom-killed", re.compile(r"Out of memory: Killed process ")),  # MEM-12
    ("oom-invoked", re.compile(r" invoked oom-killer: ")),
    ("pcie-fatal", re.compile(r"AER: .*\(Fatal\)|PCIe Bus Error: severity=.*\(Fatal\)")),  # HW-04
    ("pcie-error", re.compile(r"AER: |PCIe Bus Error: ")),
    ("nic-power", re.compile(r"mlx5_core .*(?:[Dd]etected insufficient power|27W?\b.*[Pp]ower)")),  # NET-22
    (
        "nic-error",
        re.compile(r"mlx5_core .*(?:[Ff]ail|[Ee]rror|timeout|recover|[Hh]ealth|[Ff]atal|FW tracer|syndrome)"),
    ),
    ("lockup", re.compile(r"soft lockup|hard LOCKUP|blocked for more than [0-9]+ seconds")),  # HW-04, HW-05
    ("panic", re.compile(r"Kernel panic")),
    ("disk-error", re.compile(r"I/O error")),
)


def parse(text: str) -> list[KernelLine]:
    """The last lines of each signature, in their order."""
    found: list[KernelLine] = []
    for line in text.splitlines():
        plain = line.strip()
        seconds = _SECONDS.match(plain)
        plain = _PREFIX.sub("", _DATE.sub("", _SECONDS.sub("", plain)))
        signature = next((name for name, pattern in SIGNATURES if pattern.search(plain)), None)
        if signature is not None:
            found.append(KernelLine(signature, plain[:300], float(seconds[1]) if seconds else None))
    kept: list[KernelLine] = []
    seen: dict[str, int] = {}
    for kernel_line in reversed(found):
        seen[kernel_line.signature] = seen.get(kernel_line.signature, 0) + 1
        if seen[kernel_line.signature] <= MOST:
            kept.append(kernel_line)
    return kept[::-1]
