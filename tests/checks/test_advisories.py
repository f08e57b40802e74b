"""Advisories: what is known of kernels, drivers and firmware, told to whom it concerns and to nobody else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from checks.advice import advice
from checks.advisories import ADVISORIES, CHECKS
from checks.check import When, run
from checks.preflight import refusals
from facts.host import Board, HostFacts, Release
from facts.values import Unknown
from tests import repository
from tests.checks.sights import GIB, MEMINFO, WORKER, port, sight, sound
from tests.plan.world import World

MIB = 2**20


def concerned(worker: HostFacts, driver: str = "580.173.02") -> dict[str, str]:
    """The advisories that concern the worker, with what was seen."""

    def change(world: World) -> None:
        world.worker["gpu"] = [["NVIDIA GB10", driver]]

    found = run(CHECKS, When.DOCTOR, sight(worker=worker, change=change))
    return {check.name: one.statement.partition(": ")[0] for check, one in found if one.told and one.where == WORKER}


def test_a_sound_node_is_concerned_by_none() -> None:
    """And nothing is said, of which there would be as many lines as there are advisories."""
    assert concerned(sound()) == {}
    assert list(run(CHECKS, When.DOCTOR, sight())) == []


@pytest.mark.report("KRN-02")
@pytest.mark.parametrize(
    ("total", "free", "seen"),
    [
        (0, 919 * MIB, "919.0 MiB of CMA are free where there are 0 B in all"),
        (32 * MIB, 9523 * MIB, "9.3 GiB of CMA are free where there are 32.0 MiB in all"),
        (64 * MIB, 60 * MIB, None),
        (0, 0, None),
    ],
)
def test_memory_kept_for_the_next_kernel_is_seen_by_what_it_does(total: int, free: int, seen: str | None) -> None:
    """On a kernel of any name: one that has it off concerns nobody."""
    worker = sound(kernel="7.0.0-1019-nvidia", meminfo={**MEMINFO, "CmaTotal": total, "CmaFree": free})
    assert concerned(worker).get("advisory.kernel-handover") == seen


@pytest.mark.report("KRN-02")
def test_without_these_figures_kernel_and_command_line_tell() -> None:
    """As far as they can."""
    bare = {"MemTotal": 122 * GIB}
    suspect: dict[str, Any] = {"kernel": "7.0.0-1019-nvidia", "meminfo": bare}
    assert concerned(sound(**suspect)) == {
        "advisory.kernel-handover": "kernel 7.0.0-1019-nvidia without kho=off on its command line"
    }
    assert concerned(sound(**suspect, cmdline=("quiet", "kho=off"))) == {}
    assert concerned(sound(**suspect, cmdline=Unknown("no"))) == {}
    assert concerned(sound(kernel="7.1.0-1001-nvidia", meminfo=bare)) == {}
    assert concerned(sound(kernel=Unknown("no"), meminfo=Unknown("no"))) == {}


@pytest.mark.report("KRN-03")
@pytest.mark.parametrize(("kernel", "is_it"), [("6.17.0-1008-nvidia", True), ("6.17.0-10080-nvidia", False)])
def test_the_kernel_that_is_disputed(kernel: str, is_it: bool) -> None:
    """Told as that, to doctor alone."""
    found = concerned(sound(kernel=kernel))
    assert found == ({"advisory.kernel-1008": f"kernel {kernel}"} if is_it else {})


@pytest.mark.report("MEM-04")
def test_the_driver_that_costs_memory() -> None:
    """Another of its branch concerns nobody yet."""
    assert concerned(sound(), "610.43.02") == {"advisory.driver-610": "driver 610.43.02"}
    assert concerned(sound(), "610.57.01") == {}


@pytest.mark.report("NET-22")
def test_the_firmware_that_came_up_degraded() -> None:
    """With that system alone."""
    ports, dgx = (port(firmware="28.45.4028"),), Release("ubuntu", "24.04", "Ubuntu 24.04.4 LTS", "7.5.0")
    assert concerned(sound(ports=ports, release=dgx)) == {
        "advisory.ports-4028": "firmware 28.45.4028 on the ConnectX ports, with DGX OS 7.5.0"
    }
    assert concerned(sound(ports=ports)) == {}


@pytest.mark.report("NET-12")
def test_the_bios_that_gives_two_lanes() -> None:
    """Seen by both: a narrow port, and an old BIOS. A port without a cable says nothing."""
    old = Board("NVIDIA DGX Spark", "5.30", "2026-01-15")
    narrow = (port(), port("enP2p1s0f0np0", link_width=2))
    assert concerned(sound(ports=narrow, board=old)) == {
        "advisory.bios-lanes": "enP2p1s0f0np0 has 2 PCIe lanes, and the BIOS is of 2026-01-15"
    }
    assert concerned(sound(ports=narrow)) == {}
    assert concerned(sound(board=old)) == {}
    assert concerned(sound(ports=(port(), port("enP2p1s0f0np0", link_width=2, carrier=None)), board=old)) == {}
    assert concerned(sound(ports=narrow, board=Board("", "", ""))) == {}


@pytest.mark.report("KRN-02")
def test_a_deploy_says_it_and_goes_on() -> None:
    """With what helps and where it stands, as one line of the outlook; doctor's own are not in it."""
    worker = sound(kernel="6.17.0-1008-nvidia", meminfo={**MEMINFO, "CmaFree": 919 * MIB})
    seen = sight(worker=worker)
    assert refusals(seen.cluster, seen.facts) == []
    lines = advice(seen.cluster, seen.facts)
    [line] = [line for line in lines if "CMA" in line]
    assert line.startswith(
        f"{WORKER}: 919.0 MiB of CMA are free where there are 0 B in all: the kernel keeps memory for "
    )
    assert "/&kho=off /' /etc/default/grub && sudo update-grub, and a reboot of the node; or boot a 6.17" in line
    assert "https://github.com/NVIDIA/NV-Kernels/pull/591" in line
    assert not [line for line in lines if "6.17.0-1008" in line and "31 days" in line]


def test_each_names_who_says_so_and_a_report() -> None:
    """A warning without a source is a rumour."""
    for one in ADVISORIES:
        assert one.sources, one.name
        assert one.reports, one.name
        assert all(source.startswith("https://") for source in one.sources), one.name


def test_each_stands_on_the_page() -> None:
    """With its name, and what it says."""
    page = repository.text(Path("docs/troubleshooting.md")) or ""
    for one in ADVISORIES:
        assert f"(`{one.name}`)" in page, one.name
        assert any(words and words in one.known for words in re.findall(r"^\| `([^`…]+)", page, re.MULTILINE)), one.name
