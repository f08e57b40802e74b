"""The nodes beside each other, and what they were when the pair was good."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checks import host
from checks.check import Sight
from checks.preflight import refusals
from facts.host import Board, FirmwareDevice, Port, Release
from facts.values import Unknown
from spec.objects import GOOD_HOST
from tests.checks.sights import GIB, HEAD, MEMINFO, WORKER, port, sight, sound, statements, without_ranks
from tests.checks.sights import said as told_of
from tests.plan.world import World


def driver(version: str) -> object:
    def change(world: World) -> None:
        world.worker["gpu"] = [["NVIDIA GB10", version]]

    return change


def test_a_sound_pair_is_told_so() -> None:
    """One line for what both have, one for what each has."""
    seen = sight(change=without_ranks)
    for judge in (host.driver, host.kernel, host.page_size, host.system, host.changed, host.unaccounted):
        assert told_of(judge(seen)) == []
    assert statements(host.driver(seen)) == ["every node has driver 580.95.05"]
    assert statements(host.kernel(seen)) == ["the kernel is 6.17.0-1031-nvidia on every node"]
    assert statements(host.system(seen)) == [
        "the system's release is DGX OS 7.4.0 on every node",
        "the BIOS is 5.36_0ACUM018 (2026-06-01) on every node",
        "the firmware of the ConnectX ports is 28.46.1006 on every node",
    ]


def test_drivers_of_two_branches_are_refused_before_a_start() -> None:
    """One image cannot be made for both. A pair that serves is told."""
    other = driver("610.43.02")
    seen = sight(change=other)  # type: ignore[arg-type]
    assert told_of(host.driver(seen)) == [
        "refused  the nodes have drivers of different branches: spark-a 580.95.05, spark-b 610.43.02. The ranks share "
        "one image, which is made for one of them\n"
        "    Fix: bring both to the same: sudo apt-get update && sudo apt-get full-upgrade on both, one after the "
        "other, and a reboot; then nvidia-smi"
    ]
    assert "drivers of different branches" in refusals(seen.cluster, seen.facts)[0].statement
    assert refusals(seen.cluster, seen.facts, starts=False) == []
    [found] = told_of(host.driver(sight(change=other, starts=False)))  # type: ignore[arg-type]
    assert found.startswith(
        "told  the driver's version differs between the nodes: spark-a 580.95.05, spark-b 610.43.02"
    )


def test_what_differs_within_a_branch_is_told() -> None:
    """Driver, kernel, system, BIOS, firmware: an update is done on one node first."""
    [found] = told_of(host.driver(sight(change=driver("580.173.02"))))  # type: ignore[arg-type]
    assert found.startswith("told  the driver's version differs between the nodes: ")
    other = sound(
        kernel="6.17.0-1032-nvidia",
        release=Release("ubuntu", "24.04", "Ubuntu 24.04.5 LTS"),
        board=Board("NVIDIA DGX Spark", "5.40", "2026-08-01"),
        ports=(port(firmware="28.45.4028"), port("enP2p1s0f0np0")),
    )
    seen = sight(worker=other)
    assert [line.split("\n")[0] for line in (*told_of(host.kernel(seen)), *told_of(host.system(seen)))] == [
        "told  the kernel differs between the nodes: spark-a 6.17.0-1031-nvidia, spark-b 6.17.0-1032-nvidia",
        "told  the system's release differs between the nodes: spark-a DGX OS 7.4.0, spark-b Ubuntu 24.04.5 LTS",
        "told  the BIOS differs between the nodes: spark-a 5.36_0ACUM018 (2026-06-01), spark-b 5.40 (2026-08-01)",
        "told  the firmware of the ConnectX ports differs between the nodes: spark-a 28.46.1006, spark-b 28.45.4028 "
        "and 28.46.1006",
    ]
    assert refusals(seen.cluster, seen.facts) == []


@pytest.mark.report("KRN-03")
def test_firmware_that_waits_is_told() -> None:
    """What runs is not what is installed, or an update is offered."""
    devices = (FirmwareDevice("UEFI Device Firmware", "5.36", "5.40"), FirmwareDevice("NVMe", "1", ""))
    assert told_of(host.pending(sight(worker=sound(firmware=devices)))) == [
        f"told  {WORKER}: firmware waits for this node: UEFI Device Firmware 5.36 to 5.40\n"
        "    Fix: sudo fwupdmgr upgrade and a reboot, at a time at which the pair may rest; both nodes the same"
    ]
    seen = sight(sound(firmware=devices[1:]), sound(firmware=()))
    assert statements(host.pending(seen)) == [f"{HEAD}: no firmware waits for it (1 devices)"]
    without = sound(firmware=Unknown("fwupdmgr is not installed"))
    [unread] = [one for one in host.pending(sight(worker=without)) if one.where == WORKER]
    assert (unread.statement, unread.fix, unread.told) == (
        "its firmware could not be read: fwupdmgr is not installed",
        "sudo apt-get install fwupd",
        True,
    )


@pytest.mark.report("KRN-04")
def test_large_pages_are_told() -> None:
    """With what helps: a loader that maps nothing."""
    [found] = told_of(host.page_size(sight(worker=sound(page_size=65536))))
    assert found.startswith(
        f"told  {WORKER}: the kernel has pages of 64 KiB. Weights that are mapped into memory were seen"
    )
    assert "    Fix: leave load_format at the stack's own (instanttensor maps nothing), or boot" in found


def good(seen: Sight, name: str = WORKER, **now: object) -> Sight:
    """What was good is what is seen now; then something moves on one node."""
    kept = host.identity_text(seen.facts[name])
    facts = dict(seen.facts)
    texts = facts[name].texts
    assert not isinstance(texts, Unknown)
    facts[name] = replace(
        facts[name],
        texts={**texts, GOOD_HOST: kept},
        host=replace(facts[name].host, **now),  # type: ignore[arg-type]
    )
    return replace(seen, facts=facts)


@pytest.mark.report("KRN-02")
def test_a_kernel_that_changed_since_the_pair_was_good_is_told() -> None:
    """As after an upgrade of the night, before anybody looks for the fault elsewhere."""
    seen = good(sight(), kernel="7.0.0-1019-nvidia", ports=(port(firmware="28.47.1000"),))
    [found] = told_of(host.changed(seen))
    assert found.startswith(
        f"told  {WORKER}: changed since a deploy last saw the pair good: firmware of the ports 28.46.1006, now "
        "28.47.1000; kernel 6.17.0-1031-nvidia, now 7.0.0-1019-nvidia\n"
    )
    assert "hold it: sudo apt-mark hold PACKAGE" in found
    assert statements(host.changed(good(sight()))) == [
        f"{WORKER}: kernel, driver and firmware are those that the pair was last good with"
    ]


def test_what_is_not_known_now_has_not_changed() -> None:
    """Nor is a file that is damaged a reason for anything; the next deploy writes it."""
    gone: tuple[Port, ...] = ()
    assert told_of(host.changed(good(sight(), kernel=Unknown("uname: no"), ports=gone))) == []
    for text in ("", "{", "[]", '"x"'):
        seen = good(sight())
        texts = seen.facts[WORKER].texts
        assert not isinstance(texts, Unknown)
        facts = {**seen.facts, WORKER: replace(seen.facts[WORKER], texts={**texts, GOOD_HOST: text})}
        assert list(host.changed(replace(seen, facts=facts))) == []


@pytest.mark.report("MEM-09")
def test_memory_that_nobody_has_is_told_while_nobody_uses_the_gpu() -> None:
    """33 GiB are gone after an engine was ended hard; nvidia-smi shows nobody."""
    lost = sound(meminfo={**MEMINFO, "MemFree": 67 * GIB, "MemAvailable": 80 * GIB})
    [found] = told_of(host.unaccounted(sight(worker=lost, change=without_ranks)))
    assert found == (
        f"told  {WORKER}: 35.9 GiB of memory are in use, and no process has them, nor does any use the GPU: the driver "
        "has not given back what an engine had that was ended hard (MEM-09)\n"
        "    Fix: reboot the node before the next start: sudo reboot"
    )
    # While a rank runs, or where it is not known who uses the GPU, nothing can be said.
    assert told_of(host.unaccounted(sight(worker=lost))) == []
    unread = replace(lost, gpu_apps=Unknown("nvidia-smi: no answer"))
    assert told_of(host.unaccounted(sight(worker=unread, change=without_ranks))) == []
    short = replace(lost, meminfo={"MemTotal": 128 * GIB, "MemAvailable": GIB})
    assert told_of(host.unaccounted(sight(worker=short, change=without_ranks))) == []
    assert f"{HEAD}: no memory is lost" in statements(host.unaccounted(sight(worker=lost, change=without_ranks)))[0]
