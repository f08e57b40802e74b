"""The weights over NFS, on a node that reads another's: proven by a deploy, mounted anew before each rank.

`prove` tries in a mount namespace of its own, so that the mount that a running rank uses is not touched. `check` is run
in a process of its own, because a server that is gone holds whoever touches the mount.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from node import content, paths, wire

MOUNT_SECONDS = 100.0
"""Longer than the unit's TimeoutSec=90, within which systemd itself says what is wrong."""
CHECK_SECONDS = 60.0
PROVE_SECONDS = 90.0
MANY = 3
"""Files that a message names."""

Run = Callable[[Sequence[str], float], Awaitable["tuple[int, str]"]]
"""Runs a program with a deadline in seconds: its exit code, and what it printed."""


class MountError(Exception):
    """The weights cannot be read over NFS; the message says why, and what to do."""


async def mount_anew(mount: wire.Mount, run: Run, units: Path = paths.UNITS) -> None:
    """Make the mount be as the installed unit says, whatever state the old one is in, and look at what is there.

    Always anew: a mount that is stale, that hangs, or that has a former address or former options is then no case of
    its own. The unit unmounts lazily, so that a server that is gone does not hold this up.
    """
    unit = units / mount.unit
    if not unit.is_file():
        raise MountError(
            f"this launch reads its weights over NFS from {mount.what}, and {unit} is not here; "
            f'run deploy.py with weights = "nfs"'
        )
    code, _ = await run(["systemctl", "restart", mount.unit], MOUNT_SECONDS)
    if code != 0:
        why = await _reason(mount.unit, run)
        raise MountError(f"{mount.what} could not be mounted: {why}. {_at_the_server(mount)}")
    code, said = await run([*paths.PROGRAM, "nfs", "check", str(paths.WEIGHTS_MOUNT)], CHECK_SECONDS)
    if code == 124:
        raise MountError(f"{mount.what} was mounted and does not answer. {_at_the_server(mount)}")
    if code != 0:
        raise MountError(said.strip().splitlines()[-1] if said.strip() else f"{mount.what} could not be looked at")


async def _reason(unit: str, run: Run) -> str:
    """The last line that mount(8) left in the journal, without its own prefix."""
    _, said = await run(["journalctl", "--quiet", "--unit", unit, "--output=cat", "--lines=6", "--no-pager"], 10.0)
    lines = [line.strip() for line in said.splitlines() if line.startswith("mount")]
    return lines[-1].partition(": ")[2] if lines else f"systemctl status {unit} says more"


def _at_the_server(mount: wire.Mount) -> str:
    return f"On the node that is {mount.what.partition(':')[0]}: systemctl status nfs-server; sudo exportfs -ra"


def check(directory: str, manifest: Path) -> None:
    """Compare what is mounted with the manifest: every file is there in its size and can be read. Takes metadata, and
    one byte of each file. Raises MountError."""
    kept = content.read_manifest(str(manifest), directory)
    if kept is None:
        raise MountError(f"{manifest} is missing: {directory} was never proven; run deploy.py")
    look(directory, directory, kept["files"])


def look(place: str, named: str, files: Any) -> None:
    """`place` is where it is mounted, `named` what a message calls it. Raises MountError."""
    wrong, closed = [], []
    for path, size, _ in files:
        full = os.path.join(place, path)
        try:
            found = os.stat(full).st_size
            with open(full, "rb", buffering=0) as stream:
                stream.read(1)
        except FileNotFoundError:
            wrong.append(f"{path} is not there")
        except PermissionError:
            closed.append(path)
        except OSError as error:
            raise MountError(f"{named}/{path}: {error.strerror}") from None
        else:
            if found != size:
                wrong.append(f"{path} has {found} bytes, wanted {size}")
    if wrong:
        more = f", and {len(wrong) - MANY} more" if len(wrong) > MANY else ""
        raise MountError(
            f"{named} does not show the files that were verified on the server: {', '.join(wrong[:MANY])}{more}; "
            "run deploy.py"
        )
    if closed:
        raise MountError(
            f"{named}: {', '.join(closed[:MANY])} cannot be read, since root is nobody over NFS; "
            "on the server, where the weights are: chmod -R a+rX ."
        )


def prove(wanted: Path, state: Path, say: Callable[[str], None] = print, aside: Path = Path("/run")) -> None:
    """Mount what is wanted in a place of its own, look at it, and write the manifest that the agent goes by: the
    server's rows, with the stamps that they have from here. Raises MountError."""
    data = wire.read_json(wanted)
    if data is None:
        raise MountError(f"{wanted} is missing; run deploy.py")
    what, options, directory = str(data["what"]), str(data["options"]), str(data["directory"])
    place = tempfile.mkdtemp(prefix="sparkpair-nfs-", dir=aside)
    try:
        _mount(what, options, place)
        try:
            look(place, what, data["files"])
            entries, _ = content.listing(place)
        finally:
            _unmount(place)
    finally:
        # The empty directory and nothing in it: where it could not be unmounted, those are the server's files.
        os.rmdir(place)
    manifest = {
        "directory": directory,
        "identity": data["identity"],
        "files": data["files"],
        "stamps": content.stamps(entries),
        "mount": {"what": what, "options": options},
    }
    wire.write_atomic(state / content.manifest_name(directory), json.dumps(manifest), 0o644)
    total = sum(int(row[1]) for row in data["files"])
    say(f"{len(data['files'])} files ({total / 2**30:.1f} GiB) of {what} are here over NFS")


def _mount(what: str, options: str, place: str) -> None:
    try:
        done = subprocess.run(
            ["mount", "-t", "nfs4", "-o", options, what, place],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PROVE_SECONDS,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise MountError(f"{what}: no answer within {PROVE_SECONDS:.0f} s. {_of(what)}") from None
    if done.returncode != 0:
        said = done.stdout.decode(errors="replace").strip().splitlines()
        raise MountError(f"{what} could not be mounted: {said[0] if said else 'mount said nothing'}. {_of(what)}")


def _unmount(place: str) -> None:
    """Lazily: a server that went silent meanwhile is not waited for."""
    subprocess.run(["umount", "--lazy", "--no-canonicalize", place], stdin=subprocess.DEVNULL, check=False)


def _of(what: str) -> str:
    return _at_the_server(wire.Mount("", what, ""))


def main(argv: list[str]) -> int:
    """nfs check DIRECTORY | nfs prove"""
    parser = argparse.ArgumentParser(prog="main.py nfs", description="Weights that lie on another node.")
    words = parser.add_subparsers(required=True, dest="word")
    words.add_parser("check", help="compare what is mounted with its manifest").add_argument("directory")
    words.add_parser("prove", help="try the wanted mount, and record what it holds")
    arguments = parser.parse_args(argv)
    try:
        if arguments.word == "check":
            check(arguments.directory, paths.manifest_path(arguments.directory))
        else:
            prove(paths.WANTED_MOUNT, paths.WEIGHTS, lambda text: print(text, flush=True))
    except (MountError, wire.WireError, OSError, KeyError, TypeError, ValueError) as error:
        print(error if not isinstance(error, KeyError) else f"{paths.WANTED_MOUNT} has no {error}", file=sys.stderr)
        return 1
    return 0
