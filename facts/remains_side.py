"""Sent to a node as text and run there as root: finds what removal is to take of files, directories and units, or takes
the files. What it is told to take is listed in spec/objects.py; it follows no symbolic link, crosses no mount, and
leaves a directory in which something of anybody else lies."""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

UNFINISHED = ".sparkpair-new"
ASIDE = ".sparkpair-removed"
SHOWN = 5
ROOT = 0


class Refused(Exception):
    """Something is not removed; the message says what and why."""


def main() -> None:
    """{"do": "find" | "take" | "discard", ...}: an answer in JSON, or exit 1 with one line."""
    asked = json.loads(sys.argv[1])
    try:
        if asked["do"] == "find":
            sys.stdout.write(json.dumps(find(asked)) + "\n")
        elif asked["do"] == "take":
            take(asked)
        else:
            discard(asked["path"], asked["protected"], asked["engines"])
    except (Refused, OSError) as error:
        sys.exit(str(error))


def find(asked: dict[str, Any]) -> dict[str, Any]:
    """What is there of it. `left` are directories of ours that stay, with what keeps them."""
    mounts = mount_points()
    taken = _taken(asked)
    left: dict[str, list[str]] = {}
    directories = _directories(asked["empty"], taken, left)
    return {
        "paths": sorted([*taken, *directories]),
        "left": left,
        "units": units(asked["units"]),
        "discards": {
            path: _state(path, protected, mounts, asked["engines"].get(path))
            for path, protected in asked["discards"].items()
        },
        "mounted": held(taken, mounts),
        "there": [path for path in asked["there"] if os.path.lexists(path)],
    }


def take(asked: dict[str, Any]) -> None:
    """Remove it. Raises Refused before the first removal where a mount lies in it."""
    taken = _taken(asked)
    for path, mount in held(taken, mount_points()):
        raise Refused(f"{path} is not removed: something is mounted at {mount}; umount it first")
    for path in taken:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    for path in _directories(asked["empty"], set(), {}):
        os.rmdir(path)


def held(taken: Iterable[str], mounts: Iterable[str]) -> list[tuple[str, str]]:
    """What is not to be removed before something is umounted, and where that is mounted."""
    plain = {path: os.path.realpath(path) for path in taken if not os.path.islink(path)}
    return sorted((path, mount) for path, real in plain.items() for mount in mounts if is_below(mount, real))


def discard(path: str, protected: list[str], engines: list[str] | None) -> None:
    """Remove a directory that the operator named, as a whole: set aside first, so that half of it never stands in its
    place. Raises Refused."""
    aside = path + ASIDE
    if os.path.lexists(path):
        if os.path.lexists(aside):
            shutil.rmtree(aside)
        reason = unsafe(path, protected, mount_points(), engines)
        if reason:
            raise Refused(f"{path} is not removed: {reason}")
        os.rename(path, aside)
    if os.path.lexists(aside):
        shutil.rmtree(aside)


def unsafe(path: str, protected: Iterable[str], mounts: Iterable[str], engines: list[str] | None) -> str:
    """Why a directory must not be removed; empty where it may be. `engines` are names that were made in it for the
    engine; it writes as root, so that anything else there is somebody's. None: what is in it was proven otherwise."""
    if not path.startswith("/") or os.path.normpath(path) != path or path.count("/") < 2:
        return "it is no path of a directory below another one"
    real = os.path.realpath(path)
    if real != path:
        return f"a symbolic link leads from there to {real}"
    if not os.path.isdir(path):
        return "it is no directory"
    for other in protected:
        if is_below(os.path.realpath(other), path):
            return f"{other} lies in it"
    for mount in mounts:
        if is_below(mount, path):
            return "a file system is mounted there" if mount == path else f"a file system is mounted in it, at {mount}"
    others = [] if engines is None else sorted(set(os.listdir(path)) - set(engines))
    others = [name for name in others if os.lstat(os.path.join(path, name)).st_uid != ROOT]
    return f"{', '.join(others[:SHOWN])} in it is not root's, and so not the engine's" if others else ""


def is_below(path: str, directory: str) -> bool:
    """Whether a path is the directory or in it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def mount_points() -> list[str]:
    """Where something is mounted on this node."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as stream:
        return [line.split()[4].encode().decode("unicode_escape") for line in stream]


def units(names: list[str]) -> dict[str, list[str]]:
    """ActiveState and UnitFileState of those that systemd knows anything of."""
    if not names:
        return {}
    done = subprocess.run(
        ["systemctl", "show", "--property=Id,ActiveState,UnitFileState", *names],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = {}
    for block in done.stdout.strip().split("\n\n"):
        row = dict(line.partition("=")[::2] for line in block.splitlines())
        active, state = row.get("ActiveState", "inactive"), row.get("UnitFileState", "")
        if active != "inactive" or state.startswith("enabled"):
            found[row["Id"]] = [active, state]
    return found


def _state(path: str, protected: list[str], mounts: list[str], engines: list[str] | None) -> dict[str, Any]:
    is_there, is_aside = os.path.lexists(path), os.path.lexists(path + ASIDE)
    reason = unsafe(path, protected, mounts, engines) if is_there else ""
    return {"there": is_there, "aside": is_aside, "unsafe": reason}


def _taken(asked: dict[str, Any]) -> set[str]:
    """Files and whole directories that are there: of a file also what an interrupted write of it left."""
    found = {path for path in asked["trees"] if os.path.lexists(path)}
    for pattern in asked["files"]:
        directory, name = os.path.split(pattern)
        found.update(glob.glob(pattern))
        found.update(glob.glob(f"{directory}/.{name}.*"))
    for pattern in [*asked["files"], *asked["unfinished"]]:
        found.update(glob.glob(pattern + UNFINISHED))
    return {path for path in found if not any(path != tree and is_below(path, tree) for tree in asked["trees"])}


def _directories(wanted: list[str], taken: set[str], left: dict[str, list[str]]) -> list[str]:
    """Those that will be empty, deepest first."""
    going: list[str] = []
    for path in sorted(wanted, key=lambda path: -path.count("/")):
        if os.path.islink(path) or not os.path.isdir(path) or any(is_below(path, tree) for tree in taken):
            continue
        if os.path.ismount(path):
            left[path] = ["something that is mounted there"]
            continue
        others = [name for name in sorted(os.listdir(path)) if f"{path}/{name}" not in taken | set(going)]
        if others:
            left[path] = others[:SHOWN]
        else:
            going.append(path)
    return going


if __name__ == "__main__":
    main()
