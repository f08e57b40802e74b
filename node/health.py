"""How a node's GPU is: Xids in the kernel's log, and the clock that it really runs at."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KMSG = Path("/dev/kmsg")
RECORD_BYTES = 8192
"""The kernel gives one record for each read, and refuses a smaller buffer (CONSOLE_EXT_LOG_MAX)."""
RECORDS_AT_ONCE = 2000
"""For one call; what is left is read at the next. A whole ring is some 10,000 records."""
XIDS_KEPT = 20
WORDS = 120
SMI_SECONDS = 10.0
SMI_END_SECONDS = 2.0
SMI_BYTES = 4096
SMI_FIELDS = ("clocks.sm", "utilization.gpu", "power.draw", "temperature.gpu", "clocks_event_reasons.active")

SLOW = "slow: "
CLAMPED_MHZ = 1500.0
"""Below this under load a GB10 is clamped. Reports: 702, 507, 695 to 890 MHz where 2223 to 2411 are usual
(HW-01 to HW-03)."""
LOADED_PERCENT = 80.0
"""Utilisation from which the clock counts; an idle GPU clocks down by itself."""
_HOT = 0x20 | 0x40
"""NVML's bits for thermal slowdown, by software and by hardware."""

CATALOGUE = "NVIDIA's Xid catalogue"


@dataclass(frozen=True)
class Xid:
    """What a number means. Fatal: no start gets further before the GPU is reset, which on a Spark is a boot."""

    meaning: str
    fatal: bool
    fix: str


_AGAIN = "nothing, if the pair is up again; if it repeats, another image"
_BOOT = "reboot the node; if it repeats, NVIDIA's support"
_POWER = "power the node off, pull its plug for a minute, start it; if it repeats, NVIDIA's support"

XIDS: dict[int, Xid] = {
    8: Xid("a channel of the GPU stood still", False, _AGAIN),
    13: Xid("a kernel of the engine went wrong on the GPU", False, _AGAIN),
    31: Xid("a kernel of the engine used memory that is not its own", False, _AGAIN),
    32: Xid("the GPU was given damaged commands", False, _AGAIN),
    39: Xid("a copy engine went wrong", False, _AGAIN),
    43: Xid("the GPU ended a channel of the engine", False, _AGAIN),
    45: Xid("channels were cleared after another fault, or when a process was killed", False, "nothing"),
    46: Xid("the GPU stopped", True, _BOOT),
    48: Xid("memory failed beyond correction", True, _BOOT),
    62: Xid("the GPU's own controller halted", True, _BOOT),
    63: Xid("a bad row of memory was replaced", False, "nothing; it takes effect at the next boot"),
    64: Xid("a bad row of memory could not be replaced", True, _BOOT),
    69: Xid("the GPU was given a wrong class of work", False, _AGAIN),
    79: Xid("the GPU has fallen off the bus", True, _POWER),
    92: Xid("memory is corrected more often than it should be", False, "watch it; NVIDIA's support, if it grows"),
    94: Xid("memory failed, and only the engine was hit", False, _AGAIN),
    95: Xid("memory failed, and nobody knows who was hit", True, _BOOT),
    119: Xid("the GPU's firmware does not answer", True, _BOOT),
    120: Xid("the GPU's firmware crashed", True, _BOOT),
    140: Xid("memory failed beyond correction", True, _BOOT),
    143: Xid("the GPU was not initialised", True, _POWER),
    154: Xid("the driver says what the GPU needs", False, "what the line names"),
    158: Xid("the GPU did not answer in time", True, _BOOT),
}
"""Those that a single GPU without NVLink can have, by what the catalogue says to do at once: what it restarts the
application for is not fatal, what it resets the GPU or restarts the machine for is."""
UNKNOWN = Xid("not in our table", False, f"look it up in {CATALOGUE}")
FALLEN = 79
NEEDS = 154

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]{1,20})\): (\d{1,4})(?:,|$) ?(.{0,400})")
_FALLEN = re.compile(r"NVRM: (?:.{0,80}has )?fallen off the bus")  # some drivers say it without an Xid
_REASON = re.compile(r"pid='?[^,]{1,40}, (?:name=[^,]{1,80}, )?")
_MUST_BOOT = re.compile(r"to 0x\d{1,4} \((?:Node Reboot|OS Reboot|GPU Reset|Drain and Reset)")
_WELL = re.compile(r"to 0x0 \(None\)")


@dataclass
class _Seen:
    xid: int
    words: str
    fatal: bool
    at: float
    count: int = 1


@dataclass
class Kernel:
    """The Xids of this boot, as far as the kernel's ring still has them. The GPU stays as it is until the next boot, so
    an Xid from before this process counts as well."""

    path: Path = KMSG
    clock: Callable[[], float] = field(default=lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
    _handle: int | None = None
    _seen: dict[tuple[int, bool], _Seen] = field(default_factory=dict)

    def xids(self) -> list[dict[str, Any]]:
        """What was seen until now, oldest first; at most the last XIDS_KEPT. Each has `xid`, `words` (the line's own),
        `count`, `time` (the last one's), `at` (the same in seconds since boot), `fatal`, `meaning` and `fix`. Never
        blocks; a log that cannot be read has none."""
        self._read()
        now, wall = self.clock(), time.time()
        rows = []
        for seen in sorted(self._seen.values(), key=lambda one: one.at):
            known = XIDS.get(seen.xid, UNKNOWN)
            moment = time.localtime(wall - max(0.0, now - seen.at))
            rows.append(
                {
                    "xid": seen.xid,
                    "words": seen.words,
                    "count": seen.count,
                    "at": round(seen.at, 3),
                    "time": time.strftime("%Y-%m-%dT%H:%M:%S%z", moment),
                    "fatal": seen.fatal,
                    "meaning": known.meaning,
                    "fix": _BOOT if seen.fatal and not known.fatal else known.fix,
                }
            )
        return rows

    def close(self) -> None:
        """Let the log go."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _read(self) -> None:
        if self._handle is None:
            try:
                self._handle = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                return
        for _ in range(RECORDS_AT_ONCE):
            try:
                record = os.read(self._handle, RECORD_BYTES)
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.EINVAL):  # overwritten before it was read; longer than a record
                    continue
                if error.errno not in (errno.EAGAIN, errno.EINTR):
                    self.close()
                return
            if not record:
                return
            self._note(record.decode(errors="replace"))

    def _note(self, record: str) -> None:
        head, _, message = record.partition(";")
        line = message.partition("\n")[0]
        found = _XID.search(line)
        if found:
            number, words = int(found[2]), _REASON.sub("", found[3], count=1)
        elif _FALLEN.search(line):
            number, words = FALLEN, "GPU has fallen off the bus"
        else:
            return
        fatal = XIDS.get(number, UNKNOWN).fatal or (number == NEEDS and _MUST_BOOT.search(words) is not None)
        words = "".join(character if character.isprintable() else " " for character in words)[:WORDS].strip()
        at = _since_boot(head)
        if number == NEEDS and _WELL.search(words):  # it was reset meanwhile
            for seen in self._seen.values():
                seen.fatal = False
        known = self._seen.get((number, fatal))
        if known is not None:
            known.count, known.at, known.words, known.fatal = known.count + 1, max(known.at, at), words, fatal
            return
        self._seen[number, fatal] = _Seen(number, words, fatal, at)
        if len(self._seen) > XIDS_KEPT:  # what is not fatal goes first
            least = min(self._seen, key=lambda key: (key[1], self._seen[key].at))
            del self._seen[least]


def _since_boot(head: str) -> float:
    """Seconds since boot from a record's head: `6,339,5140900,-`, level, number, microseconds, flags."""
    try:
        return int(head.split(",")[2]) / 1e6
    except (IndexError, ValueError):
        return 0.0


def judge(row: str) -> str | None:
    """A row of nvidia-smi in words: `2405 MHz at 96 %, 61 W, 71 °C`; it begins with `slow: ` when the clock is clamped
    under load. None: the clock is not told, as by a driver that answers `[N/A]`."""
    cells = [cell.strip() for cell in row.split(",")]
    values = dict(zip(SMI_FIELDS, cells, strict=False))
    clock, load = _number(values.get("clocks.sm")), _number(values.get("utilization.gpu"))
    if clock is None:
        return None
    told = [f"{clock:.0f} MHz" + ("" if load is None else f" at {load:.0f} %")]
    power, heat = _number(values.get("power.draw")), _number(values.get("temperature.gpu"))
    told += [] if power is None else [f"{power:.0f} W"]
    told += [] if heat is None else [f"{heat:.0f} °C"]
    state = ", ".join(told)
    if load is None or load < LOADED_PERCENT or clock >= CLAMPED_MHZ:
        return state
    if _bits(values.get("clocks_event_reasons.active")) & _HOT:
        return f"{SLOW}{state}, wanted {CLAMPED_MHZ:.0f} MHz or more under load; the GPU is too hot. Fix: cool the node"
    return (
        f"{SLOW}{state}, wanted {CLAMPED_MHZ:.0f} MHz or more under load; a reboot does not help. "
        "Fix: power the node off, pull its plug for some minutes, start it"
    )


class Clocks:
    """Asks nvidia-smi, which may hang with its driver: then it is not asked again before it has ended."""

    def __init__(self, program: str = "nvidia-smi", timeout: float = SMI_SECONDS) -> None:
        self._argv = (
            program,
            f"--query-gpu={','.join(SMI_FIELDS)}",
            "--format=csv,noheader,nounits",
        )
        self._timeout = timeout
        self._running: asyncio.subprocess.Process | None = None

    async def __call__(self) -> str | None:
        """The GPU's clock in words, see `judge`; None when it cannot be asked."""
        if self._running is not None and self._running.returncode is None:
            return None
        try:
            self._running = process = await asyncio.create_subprocess_exec(
                *self._argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except OSError:
            return None
        assert process.stdout is not None
        try:
            text = await asyncio.wait_for(_some(process.stdout), self._timeout)
        except asyncio.TimeoutError:
            return None
        finally:
            await _end(process)
        rows = text.splitlines()
        return judge(rows[0]) if rows else None


clocks = Clocks()


async def _some(stream: asyncio.StreamReader) -> str:
    """What a program prints, as far as it is of use."""
    data = b""
    while len(data) < SMI_BYTES and (more := await stream.read(SMI_BYTES - len(data))):
        data += more
    return data.decode(errors="replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    try:
        process.kill()
    except ProcessLookupError:
        pass
    try:
        await asyncio.wait_for(process.communicate(), SMI_END_SECONDS)  # it ends when its pipe is empty, too
    except asyncio.TimeoutError:
        pass  # the kernel holds it: it is not asked again meanwhile


def _number(cell: str | None) -> float | None:
    """A figure of nvidia-smi, with its unit or without; `[N/A]`, `Not Supported` and the like are none."""
    found = re.match(r"(\d{1,9}(?:\.\d{1,6})?)(?: (?:MHz|%|W|C))?$", cell or "")
    return float(found[1]) if found else None


def _bits(cell: str | None) -> int:
    try:
        return int(cell or "0", 16)
    except ValueError:
        return 0
