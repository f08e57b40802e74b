"""A slow GPU, and what a node's own log tells of trouble."""

from __future__ import annotations

from typing import Any

import pytest

from checks import gpu, trouble
from facts.host import Boot, Gpu, KernelLine
from facts.tools import kernel_log
from facts.values import STATUS, Unknown
from node import health
from tests.checks.sights import HEAD, WORKER, sight, sound, statements
from tests.checks.sights import said as told_of
from tests.plan.world import World

POWER = "power the node off, pull its plug for some minutes, start it"


def smi(mhz: float | None, load: float | None = 96.0, **more: Any) -> Any:
    """A node whose nvidia-smi says this."""
    whole: dict[str, Any] = {"power_watts": 61.0, "temperature": 71.0}
    return sound(gpu=(Gpu("NVIDIA GB10", "580.95.05", mhz, 3003.0, load, **{**whole, **more}),))


@pytest.mark.report("HW-01", "HW-03")
def test_a_clock_that_stays_down_under_load() -> None:
    """702 MHz at 96 %: only pulling the plug helps."""
    assert told_of(gpu.clocks(sight(smi(2405), smi(702, power_watts=13.0, reasons=("SW Power Cap",))))) == [
        f"refused  {WORKER}: the GPU is clamped: 702 MHz at 96 %, 13 W, 71 °C, wanted 1500 MHz or more under load (SW "
        f"Power Cap)\n    Fix: {POWER}: a reboot does not help"
    ]
    [hot] = told_of(gpu.clocks(sight(smi(2405), smi(890, reasons=("SW Thermal Slowdown",)))))
    assert hot.endswith("Fix: it is too hot: cool the node")


@pytest.mark.report("HW-02")
def test_a_node_that_is_slower_than_the_other_under_load() -> None:
    """The pair goes at its pace."""
    [found] = told_of(gpu.clocks(sight(smi(2230), smi(1600))))
    assert found.startswith(
        f"told  {WORKER}: its GPU runs at 1600 MHz under load, and {HEAD}'s at 2230: the pair goes at"
    )
    assert told_of(gpu.clocks(sight(smi(2230), smi(2150)))) == []


@pytest.mark.report("HW-03", "MEM-17")
def test_an_idle_gpu_proves_nothing_and_na_is_no_fault() -> None:
    """A clock is down by itself where nothing is to be done."""
    seen = sight(smi(208, 0.0), smi(None, None, power_watts=None, temperature=None))
    assert told_of(gpu.clocks(seen)) == []
    assert statements(gpu.clocks(seen)) == [
        f"{HEAD}: 208 MHz at 0 %, 61 W, 71 °C: idle, so the clock says nothing; ask again under load",
        f"{WORKER}: NVIDIA GB10: the driver does not tell its clock",
    ]
    [verdict] = [one for one in gpu.clocks(sight(sound(gpu=Unknown("nvidia-smi: no answer")))) if one.holds is None]
    assert verdict.told


@pytest.mark.report("HW-01", "HW-02", "HW-03")
def test_what_the_keeper_saw_last_is_told_by_node() -> None:
    """It looks while the pair works; an older keeper, or one that is gone, says nothing."""
    slow = health.judge("507, 96, 12.5, 60, 0x0")
    assert slow is not None

    def seen(world: World) -> None:
        ranks = world.head["documents"][STATUS]["json"]["ranks"]
        ranks["0"]["clocks"], ranks["1"]["clocks"] = "2230 MHz at 96 %, 61 W", slow

    found = sight(change=seen)
    assert told_of(gpu.watched(found)) == [
        f"refused  {WORKER}: the keeper last saw its GPU clamped: 507 MHz at 96 %, 12 W, 60 °C, wanted 1500 MHz or "
        "more under load; a reboot does not help\n"
        f"    Fix: {POWER}"
    ]
    assert statements(gpu.watched(found)) == [f"{HEAD}: the keeper last saw its GPU at 2230 MHz at 96 %, 61 W"]
    assert list(gpu.watched(sight())) == []
    silent = sight(change=lambda world: world.head.update(units={"error": "no answer"}))
    assert list(gpu.watched(silent)) == []


LOG = """
[   12.1] NVRM: loading NVIDIA UNIX Open Kernel Module for aarch64  580.95.05
[   13.0] mlx5_core 0000:01:00.0: Detected insufficient power on the PCIe slot (27W).
[  900.0] NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned
[  901.0] NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from b
[  902.0] VLLM::Worker_TP invoked oom-killer: gfp_mask=0x102cc2(GFP_HIGHUSER)
[  902.1] oom-kill:constraint=CONSTRAINT_NONE,task_memcg=/system.slice/docker-1.scope,task=lmcache,pid=3742074,uid=0
[  903.0] pcieport 0000:00:00.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0
[  903.5] pcieport 0000:00:00.0: AER: Corrected error received: 0000:01:00.0
[  904.0] NVRM: Xid (PCI:000f:01:00): 79, pid='<unknown>', GPU has fallen off the bus
[  905.0] mlx5_core 0000:01:00.1: poll_health:801:(pid 0): device's health compromised - reached miss count
"""


@pytest.mark.report("HW-04", "MEM-06", "MEM-12")
def test_each_sign_in_the_kernels_log_is_told_once() -> None:
    """By its last line; what was corrected, and what says nothing, is none."""
    lines = tuple(kernel_log.parse(LOG))
    found = told_of(trouble.kernel(sight(worker=sound(kernel_lines=lines))))
    assert [line.split("\n")[0].partition(": ")[2][:75] for line in found] == [
        "since its boot the driver found no memory for the GPU, after which a node m",
        "since its boot the kernel ended a process for lack of memory 2 times, the l",
        "since its boot a device on the PCIe bus failed beyond correction: pcieport ",
        "since its boot the GPU had a fault (Xid 79: the GPU has fallen off the bus)",
        "since its boot a ConnectX port is in trouble: mlx5_core 0000:01:00.1: poll_",
    ]
    assert "2 times, the last: NVRM: nvCheckOkFailedNoLog" in found[0]
    assert "nvidia-smi -lgc 0,2000" in found[2]
    quiet = (KernelLine("pcie-error", "AER: Corrected error"), KernelLine("gpu-driver", "NVRM: loading"))
    assert statements(trouble.kernel(sight(worker=sound(kernel_lines=quiet))))[1] == (
        f"{WORKER}: the kernel's log has no sign of trouble since its boot"
    )


@pytest.mark.report("HW-05", "HW-06")
def test_boots_that_ended_in_the_middle_of_work() -> None:
    """Power, or a hang; what ends engines by itself leaves a journal that goes on."""
    boots = (Boot("a", "cut"), Boot("b", "clean"), Boot("c", "cut"), Boot("d", ""))
    [found] = told_of(trouble.boots(sight(worker=sound(boots=boots))))
    assert found.startswith(
        f"told  {WORKER}: 2 of its last 3 boots ended in the middle of work, without a shutdown: power"
    )
    clean = sight(worker=sound(boots=(Boot("a", "clean"), Boot("b", ""))))
    assert statements(trouble.boots(clean)) == [f"{WORKER}: the boots before this one ended with a shutdown"]
    assert list(trouble.boots(sight())) == []
