"""Mounts and loop devices: each host's own sized disk, its root, and clearing what a killed run left."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from lab import settings
from lab.settings import Host
from lab.shell import LabError, quiet, run

SHARES = {"docker": "/var/lib/docker", "containerd": "/var/lib/containerd", "srv": "/srv"}
"""Places that need a real file system below, not our overlay: Docker would silently fall back to its slow vfs."""


def mounts_below(place: Path) -> list[Path]:
    """Mount points in and below a directory, innermost first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = Path(re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), line.split()[4]))
        if point == place or place in point.parents:
            found.append(point)
    return sorted(found, key=lambda point: len(point.parts), reverse=True)


def unmount_below(place: Path) -> None:
    """Unmount all that is mounted in and below a directory."""
    for point in mounts_below(place):
        if not quiet("umount", point):
            run("umount", "--lazy", point)


def loops_of(place: Path) -> list[str]:
    """Loop devices whose file lies below a directory, deleted files included."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        file = Path(backing.read_text().strip().removesuffix(" (deleted)"))
        if place in file.parents:
            found.append(f"/dev/{backing.parts[3]}")
    return found


def detach_below(place: Path) -> None:
    """Detach the loop devices of files below a directory."""
    for device in loops_of(place):
        quiet("losetup", "--detach", device)


def create(host: Host, layers: Sequence[Path]) -> bool:
    """Mount the host's disk and root, making the disk when there is none; tell whether it was made."""
    fresh = not host.disk_file.exists()
    for place in (host.disk, host.root):
        place.mkdir(parents=True, exist_ok=True)
    if fresh:
        draft = host.disk_file.with_suffix(".new")
        run("truncate", "-s", f"{settings.DISK_GIB}G", draft)
        # Nothing is written ahead: the file takes from the machine only what the host wrote.
        run("mkfs.ext4", "-q", "-F", "-m", "0", "-L", host.name, "-E", "lazy_itable_init=1,lazy_journal_init=1", draft)
        draft.replace(host.disk_file)
    # discard: what the host deletes goes back to the machine.
    run("mount", "-o", "loop,discard,noatime", host.disk_file, host.disk)
    for name in ("up", "work", *SHARES):
        (host.disk / name).mkdir(exist_ok=True)
    mount_overlay(host.root, layers, host.disk / "up", host.disk / "work", source=host.namespace)
    return fresh


def mount_overlay(root: Path, layers: Sequence[Path], upper: Path, work: Path, source: str = "lab") -> None:
    """Mount an overlay; `layers` from the top down."""
    for place in (root, upper, work):
        place.mkdir(parents=True, exist_ok=True)
    lower = ":".join(str(layer) for layer in layers)
    run("mount", "-t", "overlay", source, "-o", f"lowerdir={lower},upperdir={upper},workdir={work}", root)


def remove(host: Host, keep_disk: bool) -> None:
    """Unmount a host's file systems and, unless it is kept, throw its disk away."""
    unmount_below(host.directory)
    detach_below(host.directory)
    left = mounts_below(host.directory)
    if left:
        raise LabError(f"still mounted: {', '.join(map(str, left))}; see `fuser -vm {left[0]}`")
    if not keep_disk:
        shutil.rmtree(host.directory, ignore_errors=True)


def free_gib(place: Path) -> float:
    """Space left on the file system that holds a directory."""
    return shutil.disk_usage(place).free / 2**30
