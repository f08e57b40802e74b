"""The nodes beside each other: kernel, driver, firmware and system should be the same, and what they were when the pair
was last good."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from checks.check import BEFORE_AND_DOCTOR, DOCTOR_ALONE, Check, Sight
from checks.content import amount
from checks.look import by_node, differ, look, unlike
from checks.verdict import Verdict, broken, holds, told
from facts.host import Port
from facts.values import NodeFacts, Unknown
from spec.objects import GOOD_HOST

UPDATE = "sudo apt-get update && sudo apt-get full-upgrade on both, one after the other, and a reboot"
PAGE = 4096
GIB = 2**30
UNACCOUNTED = 16 * GIB
"""More than this held by nobody is a driver's that was not given back: MEM-09 saw 33 GiB, and what else drivers were
blamed for was 8 (MEM-04)."""
PARTS = (
    "AnonPages", "Buffers", "Cached", "SwapCached", "Slab", "KernelStack", "PageTables", "Percpu", "Hugetlb",
    "VmallocUsed",
)  # fmt: skip
"""Where /proc/meminfo says that memory is, beside what is free. What the driver gives to the GPU is in none."""
NEEDED = ("MemTotal", "MemFree", "AnonPages", "Buffers", "Cached", "Slab")


def driver(sight: Sight) -> Iterator[Verdict]:
    """One branch of the driver on every node: an image brings one user space for all ranks, and no engine is tried with
    two. Refused only where the pair is started: one that serves has shown that it can."""
    versions = {
        name: seen.gpus[0][1]
        for name, seen in sight.usable()
        if not isinstance(seen.gpus, Unknown) and seen.gpus and len(seen.gpus[0]) > 1
    }
    branches = {name: version.partition(".")[0] for name, version in versions.items()}
    if differ(branches) and sight.starts:
        yield broken(
            "",
            f"the nodes have drivers of different branches: {by_node(versions)}. The ranks share one image, which is "
            "made for one of them",
            f"bring both to the same: {UPDATE}; then nvidia-smi",
        )
    elif differ(versions):
        yield unlike("the driver's version", versions, UPDATE)
    elif versions:
        yield holds("", f"every node has driver {next(iter(versions.values()))}")


def kernel(sight: Sight) -> Iterator[Verdict]:
    """The same kernel: told, since ranks do not depend on each other's, and updates are done on one node first."""
    found, unread = look(sight, "the kernel's release", lambda seen: seen.host.kernel)
    yield from unread
    yield from _same("the kernel", {name: text for name, (_, text) in found.items()}, UPDATE)


def page_size(sight: Sight) -> Iterator[Verdict]:
    """KRN-04: 4 KiB pages."""
    found, _ = look(sight, "", lambda seen: seen.host.page_size)
    for name, (_, size) in found.items():
        if size == PAGE:
            yield holds(name, "pages of 4 KiB")
        else:
            yield told(
                name,
                f"the kernel has pages of {size // 1024} KiB. Weights that are mapped into memory were seen to hang "
                "while they are loaded with such a kernel (KRN-04)",
                "leave load_format at the stack's own (instanttensor maps nothing), or boot a kernel with 4 KiB ones:\n"
                "linux-nvidia instead of linux-nvidia-64k",
            )


def system(sight: Sight) -> Iterator[Verdict]:
    """The same DGX OS and firmware of board and ports."""
    releases, _ = look(sight, "", lambda seen: seen.host.release)
    yield from _same(
        "the system's release",
        {name: f"DGX OS {of.dgx}" if of.dgx else of.name or of.id for name, (_, of) in releases.items()},
        UPDATE,
    )
    boards, _ = look(sight, "", lambda seen: seen.host.board)
    yield from _same(
        "the BIOS",
        {name: f"{of.bios_version} ({of.bios_date})" for name, (_, of) in boards.items() if of.bios_version},
        "sudo fwupdmgr refresh && sudo fwupdmgr upgrade on both, and a reboot",
    )
    ports, _ = look(sight, "", lambda seen: seen.host.ports)
    yield from _same(
        "the firmware of the ConnectX ports",
        {name: firmware(of) for name, (_, of) in ports.items() if firmware(of)},
        "sudo fwupdmgr refresh && sudo fwupdmgr upgrade on both, then power both off and on",
    )


def pending(sight: Sight) -> Iterator[Verdict]:
    """KRN-03: firmware that is offered, or installed and waits for a reboot: what runs is not what is installed."""
    found, unread = look(sight, "its firmware", lambda seen: seen.host.firmware)
    yield from unread
    for name, (_, devices) in found.items():
        waiting = [f"{device.name} {device.version} to {device.pending}" for device in devices if device.pending]
        if waiting:
            yield told(
                name,
                f"firmware waits for this node: {', '.join(waiting)}",
                "sudo fwupdmgr upgrade and a reboot, at a time at which the pair may rest; both nodes the same",
            )
        elif devices:
            yield holds(name, f"no firmware waits for it ({len(devices)} devices)")


def firmware(ports: tuple[Port, ...]) -> str:
    """The versions on a node's ports; one where all have the same."""
    return " and ".join(sorted({port.firmware for port in ports if port.firmware}))


def _same(what: str, values: Mapping[str, str], fix: str) -> Iterator[Verdict]:
    if differ(values):
        yield unlike(what, values, fix)
    elif values:
        yield holds("", f"{what} is {next(iter(values.values()))} on every node")


def identity(seen: NodeFacts) -> dict[str, str]:
    """What an update can change below the pair's feet. What is not known is left out."""
    host = seen.host
    rows = {
        "kernel": host.kernel,
        "driver": seen.gpus[0][1] if not isinstance(seen.gpus, Unknown) and seen.gpus and len(seen.gpus[0]) > 1 else "",
        "firmware of the ports": "" if isinstance(host.ports, Unknown) else firmware(host.ports),
        "BIOS": "" if isinstance(host.board, Unknown) else host.board.bios_version,
        "DGX OS": "" if isinstance(host.release, Unknown) else host.release.dgx,
    }
    return {name: value for name, value in rows.items() if isinstance(value, str) and value}


def identity_text(seen: NodeFacts) -> str:
    """The same as it is kept."""
    return json.dumps(identity(seen), indent=1, sort_keys=True) + "\n"


def changed(sight: Sight) -> Iterator[Verdict]:
    """KRN-02: what is another since the pair was last seen to be good."""
    for name, seen in sight.usable():
        kept = _kept(seen)
        if kept is None:
            continue
        now = identity(seen)
        moved = [
            f"{what} {kept[what]}, now {now[what]}" for what in sorted(kept) if now.get(what, kept[what]) != kept[what]
        ]
        if moved:
            yield told(
                name,
                f"changed since a deploy last saw the pair good: {'; '.join(moved)}",
                "if the pair does not start since, or is slower, this is the first suspect: boot the former kernel "
                "(GRUB, Advanced options),\nor install the former driver, and hold it: sudo apt-mark hold PACKAGE. The "
                "next deploy that sees it good keeps the new ones",
            )
        else:
            yield holds(name, "kernel, driver and firmware are those that the pair was last good with")


def _kept(seen: NodeFacts) -> dict[str, str] | None:
    text = None if isinstance(seen.texts, Unknown) else seen.texts.get(GOOD_HOST)
    if not isinstance(text, str):
        return None
    try:
        rows = json.loads(text)
    except ValueError:
        return None  # the next deploy writes it anew
    if not isinstance(rows, dict):
        return None
    return {str(name): str(value) for name, value in rows.items()}


def unaccounted(sight: Sight) -> Iterator[Verdict]:
    """MEM-09: memory that is in use and nobody's, while nobody uses the GPU."""
    found, _ = look(sight, "", lambda seen: seen.host.meminfo)
    for name, (seen, info) in found.items():
        apps = seen.host.gpu_apps
        if isinstance(apps, Unknown) or apps or any(part not in info for part in NEEDED) or _a_rank_is_there(seen):
            continue
        rest = info["MemTotal"] - info["MemFree"] - sum(info.get(part, 0) for part in PARTS)
        if rest > UNACCOUNTED:
            yield told(
                name,
                f"{amount(rest)} of memory are in use, and no process has them, nor does any use the GPU: the driver "
                "has not given back what an engine had that was ended hard (MEM-09)",
                "reboot the node before the next start: sudo reboot",
            )
        else:
            yield holds(name, f"no memory is lost: {amount(max(rest, 0))} are the driver's and the kernel's own")


def _a_rank_is_there(seen: NodeFacts) -> bool:
    if isinstance(seen.docker, Unknown) or isinstance(seen.docker.containers, Unknown):
        return True  # nobody knows
    return any(container.is_ours and container.state != "exited" for container in seen.docker.containers)


CHECKS = (
    Check("host.driver", "Have the nodes the same driver?", driver, BEFORE_AND_DOCTOR),
    Check("host.kernel", "Have the nodes the same kernel?", kernel, BEFORE_AND_DOCTOR, ("KRN-02",)),
    Check(
        "host.changed",
        "Are kernel, driver and firmware those that the pair was good with?",
        changed,
        BEFORE_AND_DOCTOR,
        ("KRN-02",),
    ),
    Check("host.pages", "Has the kernel pages of 4 KiB?", page_size, BEFORE_AND_DOCTOR, ("KRN-04",)),
    Check("host.system", "Have the nodes the same system and firmware?", system, DOCTOR_ALONE),
    Check("host.pending", "Does firmware wait for a reboot?", pending, DOCTOR_ALONE, ("KRN-03",)),
    Check(
        "host.memory",
        "Is all memory accounted for while nothing runs?",
        unaccounted,
        BEFORE_AND_DOCTOR,
        ("MEM-09",),
    ),
)
