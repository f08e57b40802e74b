"""nvidia-smi's CSV and its -q. On a GB10 the memory is [N/A]: it is the CPU's (field report MEM-17)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from facts.host import Gpu, GpuApp
from facts.tools.garbled import Garbled

NOT_SAID = ("[n/a]", "n/a", "[not supported]", "not supported", "[unknown error]", "[unknown]", "[requires root]", "")
_FIGURE = re.compile(r"(-?[0-9]{1,9}(?:\.[0-9]{1,6})?)\s*(?:%|W|MHz|C|MiB|us)?")
# nvml.h's nvmlClocksEventReason*, in the words of nvidia-smi -q.
REASONS = {
    0x1: "Idle",
    0x2: "Applications Clocks Setting",
    0x4: "SW Power Cap",
    0x8: "HW Slowdown",
    0x10: "Sync Boost",
    0x20: "SW Thermal Slowdown",
    0x40: "HW Thermal Slowdown",
    0x80: "HW Power Brake Slowdown",
    0x100: "Display Clock Setting",
}


def figure(text: str) -> float | None:
    """A number with or without its unit; None where the driver gives none."""
    if text.strip().lower() in NOT_SAID:
        return None
    matched = _FIGURE.fullmatch(text.strip())
    if matched is None:
        raise Garbled("nvidia-smi", text)
    return float(matched[1])


def apps(text: str, containers: Mapping[str, str | None] | None = None) -> list[GpuApp]:
    """`--query-compute-apps=pid,process_name,used_memory --format=csv,noheader`. A command may hold commas."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if not fields[0].isascii() or not fields[0].isdigit() or len(fields[0]) > 9:
            continue
        if len(fields) < 3:
            raise Garbled("nvidia-smi --query-compute-apps", line)
        used = figure(fields[-1])
        container = (containers or {}).get(fields[0])
        command = ", ".join(fields[1:-1])
        found.append(GpuApp(int(fields[0]), command, None if used is None else int(used), container))
    return found


def gpus(text: str) -> list[Gpu]:
    """`--query-gpu=name,driver_version,clocks.sm,clocks.max.sm,utilization.gpu,power.draw,temperature.gpu,
    clocks_event_reasons.active --format=csv,noheader`."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 1:
            continue
        if len(fields) != 8:
            raise Garbled("nvidia-smi --query-gpu", line)
        name, driver, *rest = fields
        sm, most, used, power, heat = (figure(field) for field in rest[:5])
        found.append(Gpu(name, driver, sm, most, used, power, heat, reasons(rest[5])))
    return found


def reasons(text: str) -> tuple[str, ...]:
    """The words for a mask of reasons."""
    if text.lower() in NOT_SAID:
        return ()
    if not re.fullmatch(r"0x[0-9a-fA-F]{1,16}", text):
        raise Garbled("nvidia-smi", text)
    return tuple(word for bit, word in REASONS.items() if int(text, 16) & bit)


def details(text: str) -> dict[str, str]:
    """nvidia-smi -q of the first GPU: each line by its place, as "Clocks Event Reasons/SW Power Cap"."""
    found: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    started = False
    for line in text.splitlines():
        if line.startswith("GPU "):
            if started:
                break
            started = True
            continue
        if not started or not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        while above and above[-1][0] >= depth:
            above.pop()
        name, colon, value = line.partition(" : ")
        if not colon:
            above.append((depth, line.strip()))
            continue
        found["/".join([*(place for _, place in above), name.strip()])] = value.strip()
    if text.strip() and not started:
        raise Garbled("nvidia-smi -q", text)
    return found


def active_reasons(text: str) -> tuple[str, ...]:
    """Of nvidia-smi -q; drivers before 535 say Throttle instead of Event."""
    found = []
    for place, value in details(text).items():
        section, _, name = place.partition("/")
        if section in ("Clocks Event Reasons", "Clocks Throttle Reasons") and value == "Active":
            found.append(name.rpartition("/")[2])
    return tuple(found)
