"""What is known of certain kernels, drivers and firmwares on a Spark, each with who says so. A version alone refuses
nothing: it may have been mended since, and a launch that does not come up says it by itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from checks.check import BEFORE_AND_DOCTOR, DOCTOR_ALONE, Check, Sight, When
from checks.content import amount
from checks.verdict import Verdict, told
from facts.values import NodeFacts, Unknown

MIB = 2**20
SCRATCH = 256 * MIB
"""Free CMA beyond all CMA there is: seen were 919 MiB and 9.3 GiB, and on a kernel without hand-over nothing."""
BIOS = "2026-04"
"""Before it, some boards gave the second half of a port two lanes only."""
LANES = 4


@dataclass(frozen=True)
class Advisory:
    """`seen` says what of a node it is about, "" where it is not. `known` ends the sentence."""

    name: str
    seen: Callable[[NodeFacts], str]
    known: str
    fix: str
    sources: tuple[str, ...]
    reports: tuple[str, ...] = ()
    when: frozenset[When] = BEFORE_AND_DOCTOR


def _release(seen: NodeFacts) -> str:
    return "" if isinstance(seen.host.kernel, Unknown) else seen.host.kernel


def _handover(seen: NodeFacts) -> str:
    """By what it does to memory, else by kernel and command line: any later kernel that has it off is no suspect."""
    info, words = seen.host.meminfo, seen.host.cmdline
    if not isinstance(info, Unknown) and "CmaFree" in info and "CmaTotal" in info:
        excess = info["CmaFree"] - info["CmaTotal"]
        if excess < SCRATCH:
            return ""
        return f"{amount(info['CmaFree'])} of CMA are free where there are {amount(info['CmaTotal'])} in all"
    if not _release(seen).startswith("7.0.") or isinstance(words, Unknown) or "kho=off" in words:
        return ""
    return f"kernel {_release(seen)} without kho=off on its command line"


def _kernel_1008(seen: NodeFacts) -> str:
    return f"kernel {_release(seen)}" if re.match(r"6\.17\.0-1008(?!\d)", _release(seen)) else ""


def _driver_610(seen: NodeFacts) -> str:
    if isinstance(seen.gpus, Unknown):
        return ""
    return next((f"driver {row[1]}" for row in seen.gpus if len(row) > 1 and row[1].startswith("610.43")), "")


def _ports_4028(seen: NodeFacts) -> str:
    release, ports = seen.host.release, seen.host.ports
    if isinstance(release, Unknown) or isinstance(ports, Unknown) or release.dgx != "7.5.0":
        return ""
    has = any(port.firmware == "28.45.4028" for port in ports)
    return "firmware 28.45.4028 on the ConnectX ports, with DGX OS 7.5.0" if has else ""


def _lanes(seen: NodeFacts) -> str:
    ports, board = seen.host.ports, seen.host.board
    if isinstance(ports, Unknown) or isinstance(board, Unknown):
        return ""
    narrow = [port for port in ports if port.carrier and port.link_width is not None and port.link_width < LANES]
    if not narrow or not board.bios_date or board.bios_date[: len(BIOS)] >= BIOS:
        return ""
    lanes = ", ".join(f"{port.netdev} has {port.link_width} PCIe lanes" for port in narrow)
    return f"{lanes}, and the BIOS is of {board.bios_date}"


ADVISORIES = (
    Advisory(
        "advisory.kernel-handover",
        _handover,
        "the kernel keeps memory for a hand-over to the next kernel (KHO) in which nothing can be pinned, so that RDMA "
        "cannot register memory once the weights are loaded: ibv_reg_mr_iova2 fails with Cannot allocate memory",
        "sudo sed -i 's/^GRUB_CMDLINE_LINUX_DEFAULT=\"/&kho=off /' /etc/default/grub && sudo update-grub, and a reboot "
        "of the node;\nor boot a 6.17 kernel and hold it. With kho=off some 9 GiB are free again",
        (
            "https://github.com/NVIDIA/NV-Kernels/pull/591",
            "https://github.com/MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark/issues/259",
            "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1358",
        ),
        ("KRN-02",),
    ),
    Advisory(
        "advisory.kernel-1008",
        _kernel_1008,
        "one owner traced 31 days of boots without a GPU to this kernel (DGX OS 7.4.0); others dispute it",
        "if nvidia-smi fails here: the next kernel of DGX OS, and fwupdmgr get-upgrades for a BIOS that waits",
        ("https://forums.developer.nvidia.com/t/366026",),
        ("KRN-03",),
        DOCTOR_ALONE,
    ),
    Advisory(
        "advisory.driver-610",
        _driver_610,
        "with this branch about 4 GiB less are free for the engine, and how much differs from boot to boot, so that "
        "one start fits and the next does not; 580.173.02 is good",
        "the branch 580: sudo apt-get install the signed linux-modules-nvidia-580-open package of your kernel, and "
        "hold it",
        ("https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/114",),
        ("MEM-04",),
    ),
    Advisory(
        "advisory.ports-4028",
        _ports_4028,
        "with these the ports were seen to come up degraded after some boots: 13 Gb/s over a link that says 200",
        "make fabric-test measures it. If it is so: power the node off, pull its plug for some minutes, start it",
        ("https://github.com/NVIDIA/dgx-spark-playbooks/pull/108",),
        ("NET-22",),
        DOCTOR_ALONE,
    ),
    Advisory(
        "advisory.bios-lanes",
        _lanes,
        f"a BIOS before {BIOS} may give the second half of a port two lanes, which is half the port's speed",
        "sudo fwupdmgr refresh && sudo fwupdmgr upgrade, and a reboot",
        ("https://github.com/tonyd2wild/DeepSeek-v4-Flash-Vision-Exp-DSpark-1M-NVFP4-KV-2x-DGX-Spark/pull/35",),
        ("NET-12",),
    ),
)


def _check(advisory: Advisory) -> Check:
    def judge(sight: Sight) -> Iterator[Verdict]:
        for name, seen in sight.usable():
            what = advisory.seen(seen)
            if what:
                fix = advisory.fix + "".join(f"\n{source}" for source in advisory.sources)
                yield told(name, f"{what}: {advisory.known}", fix)

    return Check(advisory.name, f"Is a node concerned: {advisory.known}?", judge, advisory.when, advisory.reports)


CHECKS = tuple(_check(advisory) for advisory in ADVISORIES)
