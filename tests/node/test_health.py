"""The GPU's health from the kernel's log and nvidia-smi: real lines, garbage, and what never answers."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node import health
from node.health import XIDS, Clocks, Kernel, judge

XID_13 = (
    "NVRM: Xid (PCI:000f:01:00): 13, pid=4242, name=python3, Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0): "
    "Illegal Instruction Parameter"
)
XID_79 = "NVRM: Xid (PCI:000f:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
XID_119 = "NVRM: Xid (PCI:000f:01:00): 119, pid=3849, name=KMS thread, Timeout after 45s of waiting for RPC response"
XID_154 = "NVRM: Xid (PCI:000f:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
XID_154_NONE = "NVRM: Xid (PCI:000f:01:00): 154, GPU recovery action changed from 0x2 (Drain P2P) to 0x0 (None)"
SILENT = "NVRM: fallen off the bus and is not responding to commands."
OTHER = "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)"


class Ring:
    """/dev/kmsg as far as it matters: each read gives one record, and an empty one says so at once."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._writer = os.open(path, os.O_WRONLY)

    def kernel(self) -> Kernel:
        kernel = Kernel(self.path, clock=lambda: 1000.0)
        kernel.xids()
        return kernel

    def say(self, kernel: Kernel, message: str, at: float = 5.0) -> list[dict[str, object]]:
        os.write(self._writer, f"4,339,{at * 1e6:.0f},-;{message}\n SUBSYSTEM=pci\n".encode())
        return kernel.xids()

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


@pytest.fixture
def ring(tmp_path: Path):
    ring = Ring(tmp_path / "kmsg")
    yield ring
    ring.close()


def test_an_xid_is_read_dated_and_explained(ring: Ring):
    kernel = ring.kernel()
    assert ring.say(kernel, OTHER) == []
    [row] = ring.say(kernel, XID_79, at=990.0)
    assert abs(time.mktime(time.strptime(str(row.pop("time"))[:19], "%Y-%m-%dT%H:%M:%S")) - (time.time() - 10)) < 3
    assert row == {
        "xid": 79,
        "words": "GPU has fallen off the bus.",
        "count": 1,
        "at": 990.0,
        "fatal": True,
        "meaning": "the GPU has fallen off the bus",
        "fix": XIDS[79].fix,
    }
    kernel.close()


def test_many_of_one_kind_are_one_row(ring: Ring):
    kernel = ring.kernel()
    for at in range(91):
        rows = ring.say(kernel, XID_13, at=float(at))
    [row] = rows
    assert (row["xid"], row["count"], row["at"], row["fatal"]) == (13, 91, 90.0, False)
    assert str(row["words"]).startswith("Graphics SM Warp Exception")
    kernel.close()


@pytest.mark.parametrize(
    ("line", "number", "fatal"),
    [
        (XID_13, 13, False),
        (XID_119, 119, True),
        (XID_154, 154, True),
        (XID_154_NONE, 154, False),
        (SILENT, 79, True),
        ("NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.", 79, True),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", 14, False),
        ("NVRM: Xid (PCI:000f:01:00): 999", 999, False),
    ],
    ids=lambda value: str(value)[-24:],
)
def test_what_is_fatal(ring: Ring, line: str, number: int, fatal: bool):
    kernel = ring.kernel()
    [row] = ring.say(kernel, line)
    assert (row["xid"], row["fatal"]) == (number, fatal)
    assert row["meaning"]
    assert row["fix"]
    kernel.close()


def test_what_the_driver_says_it_needs_is_the_fix(ring: Ring):
    kernel = ring.kernel()
    [row] = ring.say(kernel, XID_154)
    assert str(row["fix"]).startswith("reboot the node")
    kernel.close()


def test_after_a_reset_nothing_is_fatal_until_the_next(ring: Ring):
    kernel = ring.kernel()
    ring.say(kernel, XID_119)
    assert [row["fatal"] for row in ring.say(kernel, XID_154)] == [True, True]
    assert [row["fatal"] for row in ring.say(kernel, XID_154_NONE)] == [False, False, False]
    assert [row["fatal"] for row in ring.say(kernel, XID_119, at=9.0)] == [False, False, True]
    kernel.close()


def test_memory_is_bounded_and_keeps_what_is_fatal(ring: Ring):
    kernel = ring.kernel()
    ring.say(kernel, XID_79, at=1.0)
    for number in range(200, 500):
        rows = ring.say(kernel, f"NVRM: Xid (PCI:000f:01:00): {number}, {'x' * 2000}", at=float(number))
    assert len(rows) == health.XIDS_KEPT
    assert rows[0]["xid"] == 79
    assert all(len(str(row["words"])) <= health.WORDS for row in rows)
    kernel.close()


def test_no_log_has_no_xids(tmp_path: Path):
    assert Kernel(tmp_path / "none").xids() == []
    directory = Kernel(tmp_path)
    assert directory.xids() == []
    assert directory.xids() == []


def test_a_log_that_appears_later_is_read(tmp_path: Path):
    kernel = Kernel(tmp_path / "kmsg")
    assert kernel.xids() == []
    (tmp_path / "kmsg").write_text(f"4,1,5000000,-;{XID_79}\n")
    assert [row["xid"] for row in kernel.xids()] == [79]
    kernel.close()


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=300))
def test_any_record_is_taken(text: str):
    kernel = Kernel(Path("/nonexistent"))
    kernel._note(text)
    kernel._note(f"4,x,y;NVRM: Xid (PCI:0): 79, {text}")
    assert [row["xid"] for row in kernel.xids() if row["xid"] == 79] == [79]


def test_the_kernels_own_log_is_read_without_waiting():
    kernel = Kernel()
    begun = time.monotonic()
    assert isinstance(kernel.xids(), list)
    assert time.monotonic() - begun < 5.0
    kernel.close()


@pytest.mark.report("MEM-17")
@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("2405, 96, 61.50, 71, 0x0000000000000000", "2405 MHz at 96 %, 62 W, 71 °C"),
        ("208, 0, 4.20, 38, 0x0000000000000001", "208 MHz at 0 %, 4 W, 38 °C"),
        ("2223 MHz, 0 %, [N/A], Not Supported, [N/A]", "2223 MHz at 0 %"),
        ("2405, [N/A], [N/A], [N/A], [N/A]", "2405 MHz"),
        ("695, 79, 12.00, 50, 0x0000000000000000", "695 MHz at 79 %, 12 W, 50 °C"),
        ("[N/A], 96, 61, 71, 0x0", None),
        ("Not Supported", None),
        ("", None),
        ("Failed to initialize NVML: Driver/library version mismatch", None),
        ("No devices were found", None),
    ],
)
def test_a_row_of_nvidia_smi_in_words(row: str, said: str | None):
    assert judge(row) == said


@pytest.mark.report("HW-01", "HW-02", "HW-03")
@pytest.mark.parametrize(
    "row",
    [
        "702, 96, 25, 60, 0x0000000000000000",
        "507 MHz, 96 %, 13.00 W, 45, 0x0000000000000000",
        "695 MHz, 96 %",
        "858, 96, [N/A], [N/A], 0x0000000000000004",
    ],
)
@pytest.mark.report("HW-01", "HW-02")
def test_a_clamped_clock_is_told_with_what_helps(row: str):
    said = judge(row)
    assert said is not None
    assert re.match(
        r"slow: \d+ MHz at 96 %.*, wanted 1500 MHz or more under load; a reboot does not help\. Fix: ", said
    )


def test_heat_is_told_as_heat():
    said = judge("900, 99, 80, 96, 0x0000000000000040")
    assert said is not None
    assert said.endswith("the GPU is too hot. Fix: cool the node")


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=100))
def test_any_row_is_taken(row: str):
    said = judge(row)
    assert said is None or "MHz" in said


def program(tmp_path: Path, body: str) -> str:
    path = tmp_path / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_nvidia_smi_is_asked(tmp_path: Path):
    row = "2405, 96, 61.50, 71, 0x0000000000000000"
    asked = Clocks(program(tmp_path, f'printf "%s\\n" "$@" >"$0.argv"; echo "{row}"; echo "{row}"'))
    assert asyncio.run(asked()) == "2405 MHz at 96 %, 62 W, 71 °C"
    assert (tmp_path / "nvidia-smi.argv").read_text().splitlines() == [
        "--query-gpu=clocks.sm,utilization.gpu,power.draw,temperature.gpu,clocks_event_reasons.active",
        "--format=csv,noheader,nounits",
    ]


@pytest.mark.report("MEM-17")
def test_a_node_without_nvidia_smi_is_not_known(tmp_path: Path):
    assert asyncio.run(Clocks(str(tmp_path / "none"))()) is None


def test_one_that_fails_is_not_known(tmp_path: Path):
    words = 'Field "clocks_event_reasons.active" is not a valid field to query.'
    assert asyncio.run(Clocks(program(tmp_path, f"echo '{words}'; exit 2"))()) is None


def test_one_that_hangs_is_ended_and_one_that_floods_is_cut_short(tmp_path: Path):
    async def ask(body: str, timeout: float) -> str | None:
        asked = Clocks(program(tmp_path, body), timeout=timeout)
        answer = await asked()
        assert asked._running is not None
        await asyncio.wait_for(asked._running.wait(), 5.0)
        return answer

    assert asyncio.run(ask("exec sleep 60", 0.2)) is None
    assert asyncio.run(ask("exec yes '2405, 96, 61, 71, 0x0'", 5.0)) == "2405 MHz at 96 %, 61 W, 71 °C"


def test_one_that_does_not_die_is_not_asked_again(tmp_path: Path):
    """A process in the kernel's hands outlives SIGKILL; a second one would only join it."""

    class Stuck:
        returncode = None

    asked = Clocks(program(tmp_path, "echo 2405, 96, 61, 71, 0x0"))
    asked._running = Stuck()  # type: ignore[assignment]
    assert asyncio.run(asked()) is None


def test_the_table_of_xids_says_what_to_do():
    assert {number for number, xid in XIDS.items() if xid.fatal} >= {48, 62, 64, 79, 95, 119, 120, 140, 143}
    for xid in XIDS.values():
        assert xid.fatal == (xid.fix.startswith(("reboot", "power")))
