"""Puts the rails' netplan file into force under guard: what is not confirmed is taken back by the node itself.

Until it is confirmed the new file lives in /run/netplan, where it shadows the one in /etc/netplan: a reboot forgets it,
and taking it back is to remove it. A timer does that when no confirmation comes, as when the deploy locked itself out,
and does it again until it has succeeded.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from node import paths

NAME = "60-sparkpair.yaml"
STAGED = Path("/etc/sparkpair/fabric") / NAME
PERSISTENT = Path("/etc/netplan") / NAME
TRIAL = Path("/run/netplan") / NAME
TIMER = "sparkpair-fabric-rollback"
GUARD_SECONDS = 90
APPLY_SECONDS = 60
ALIVE_SECONDS = 30
POLL_SECONDS = 0.5


class FabricError(Exception):
    """The rails are as they were; the message says what failed."""


@dataclass(frozen=True)
class Address:
    """An address that a netdev must carry, with its prefix and MTU; the management address needs neither."""

    ip: str
    netdev: str = ""
    mtu: int = 0


@dataclass(frozen=True)
class Places:
    """Where the files are; tests give their own."""

    staged: Path = STAGED
    persistent: Path = PERSISTENT
    trial: Path = TRIAL

    @property
    def marker(self) -> Path:
        """The trial's file while it is being taken back. netplan reads *.yaml only, and it stands until the network is
        as it was: a second attempt finds by it that there is something left to do."""
        return self.trial.with_name(f"{self.trial.name}.taken-back")


Run = Callable[[Sequence[str]], str]


def run(argv: Sequence[str]) -> str:
    """Run a program; its output, or FabricError with what it said."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=APPLY_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise FabricError(f"{' '.join(argv)} took more than {APPLY_SECONDS} s") from None
    if done.returncode != 0:
        raise FabricError(f"{' '.join(argv)} exited {done.returncode}: {(done.stderr or done.stdout).strip()[-600:]}")
    return done.stdout


def apply(
    management: str, rails: Sequence[Address], places: Places | None = None, call: Run = run,
    pause: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic,
) -> None:  # fmt: skip
    """Put the staged file into force on trial. Raises FabricError when the node is as before."""
    where = places or Places()
    _arm(call)
    try:
        where.trial.parent.mkdir(parents=True, exist_ok=True)
        _put(where.staged.read_text(), where.trial)
        where.marker.unlink(missing_ok=True)
        call(["netplan", "generate"])
        call(["netplan", "apply"])
        _await(management, rails, call, pause, clock)
    except (FabricError, OSError, ValueError, KeyError) as error:
        try:
            restore(where, call)
        except (FabricError, OSError) as again:
            raise FabricError(
                f"{error}. Taking the rails back failed as well: {again}. The node tries that again by itself, "
                f"every {GUARD_SECONDS} s"
            ) from None
        raise FabricError(f"{error}. The rails are as they were") from None


def confirm(places: Places | None = None, call: Run = run) -> None:
    """Make what is on trial permanent: somebody outside has reached the node since."""
    where = places or Places()
    if not where.trial.exists():
        raise FabricError("nothing is on trial: the confirmation came too late, and the rails are as they were")
    where.persistent.parent.mkdir(parents=True, exist_ok=True)
    _put(where.trial.read_text(), where.persistent)
    where.trial.unlink()
    call(["netplan", "generate"])
    _disarm(call)


def restore(places: Places | None = None, call: Run = run) -> None:
    """Take back what is on trial; the timer's work, or that of an apply that failed. May be repeated until it ends
    well, and only then is the timer ended."""
    where = places or Places()
    if where.trial.exists():
        os.replace(where.trial, where.marker)
    if where.marker.exists():
        call(["netplan", "generate"])
        call(["netplan", "apply"])
        where.marker.unlink()
    _disarm(call)


def _arm(call: Run) -> None:
    _disarm(call)
    call([
        "systemd-run", "--collect", f"--unit={TIMER}", f"--on-active={GUARD_SECONDS}",
        f"--on-unit-inactive={GUARD_SECONDS}", "--timer-property=AccuracySec=1s",
        "--description=Sparkpair: take the rails' new settings back, unless they are confirmed",
        *paths.PROGRAM, "fabric", "restore",
    ])  # fmt: skip


def _disarm(call: Run) -> None:
    try:
        call(["systemctl", "stop", f"{TIMER}.timer"])
    except FabricError:
        pass  # it is not armed


def _put(text: str, path: Path) -> None:
    """netplan refuses files that others may read, so it is never anything else."""
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)


def _await(
    management: str, rails: Sequence[Address], call: Run, pause: Callable[[float], None], clock: Callable[[], float]
) -> None:
    until = clock() + ALIVE_SECONDS
    while True:
        lacks = _lacking(management, rails, call)
        if not lacks:
            return
        if clock() > until:
            raise FabricError(f"after netplan apply, {'; '.join(lacks)} within {ALIVE_SECONDS} s")
        pause(POLL_SECONDS)


def _lacking(management: str, rails: Sequence[Address], call: Run) -> list[str]:
    links = {link["ifname"]: link for link in json.loads(call(["ip", "-j", "address", "show"]))}
    held = {
        (name, info.get("local"), info.get("prefixlen")) for name, link in links.items() for info in link["addr_info"]
    }
    lacks = []
    if management not in {ip for _, ip, _ in held}:
        lacks.append(f"the management address {management} is gone")
    for rail in rails:
        ip, _, prefix = rail.ip.partition("/")
        if (rail.netdev, ip, int(prefix)) not in held:
            lacks.append(f"{rail.netdev} has not got {rail.ip}")
        elif links[rail.netdev].get("mtu") != rail.mtu:
            lacks.append(f"{rail.netdev} has MTU {links[rail.netdev].get('mtu')}, not {rail.mtu}")
    return lacks


def main(argv: list[str]) -> int:
    """main.py fabric apply|confirm|restore; exit 1 with one line when it was taken back."""
    parser = argparse.ArgumentParser(prog="main.py fabric", description="The rails' netplan file, under guard.")
    words = parser.add_subparsers(dest="word", required=True)
    applied = words.add_parser("apply", help="put the staged file into force on trial")
    applied.add_argument("--management", required=True, metavar="ADDRESS")
    applied.add_argument("--rail", action="append", required=True, metavar="NETDEV=ADDRESS/PREFIX=MTU")
    words.add_parser("confirm", help="make it permanent")
    words.add_parser("restore", help="take it back")
    arguments = parser.parse_args(argv)
    if shutil.which("netplan") is None:
        print("netplan is not installed: sudo apt-get install netplan.io", file=sys.stderr)
        return 1
    try:
        if arguments.word == "apply":
            apply(arguments.management, [_rail(text) for text in arguments.rail])
        elif arguments.word == "confirm":
            confirm()
        else:
            restore()
    except (FabricError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _rail(text: str) -> Address:
    netdev, address, mtu = text.split("=")
    return Address(address, netdev, int(mtu))
