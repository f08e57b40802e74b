"""Puts the rails' netplan file into force under guard: what is not confirmed is taken back by the node itself.

Until it is confirmed the new file lives in /run/netplan, where it shadows the one in /etc/netplan: a reboot forgets it,
and taking it back is to remove it. So does somebody else's file that is without the rails from now on. A timer takes
all of it back when no confirmation comes, as when the deploy locked itself out, and does it again until it has
succeeded. What netplan does not know of, addresses that were given by hand and who managed a rail, is written down
before and put back after.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node import paths

NAME = "60-sparkpair.yaml"
BEFORE = f"{NAME}.before"
TIMER = "sparkpair-fabric-rollback"
GUARD_SECONDS = 40
"""From before the first change to taking it back: together with that itself below the 60 s that a node may be away."""
APPLY_SECONDS = 25
ALIVE_SECONDS = 20
"""How long the management address may be away: NetworkManager drops it for about 1 s where netplan restarts it
(field reports: NET-07), and DHCP takes its time."""
RETURN_SECONDS = 5
POLL_SECONDS = 0.2
OURS = ".ours"


class FabricError(Exception):
    """The rails are as they were; the message says what failed."""


@dataclass(frozen=True)
class Address:
    """An address that a netdev must carry, with its prefix and MTU."""

    ip: str
    netdev: str
    mtu: int


@dataclass(frozen=True)
class Edit:
    """Somebody else's file in /etc/netplan, without the rails: its text, made of the file with this digest."""

    sha256: str
    text: str


@dataclass(frozen=True)
class Wanted:
    """What must be true afterwards."""

    management: str
    rails: Sequence[Address]
    adopted: Mapping[str, Edit] = field(default_factory=dict)


@dataclass(frozen=True)
class Places:
    """Where the files are; tests give their own."""

    staged: Path = Path("/etc/sparkpair/fabric") / NAME
    etc: Path = Path("/etc/netplan")
    run: Path = Path("/run/netplan")
    kept: Path = Path("/var/lib/sparkpair/rails/adopted")

    @property
    def trial(self) -> Path:
        """What netplan reads first."""
        return self.run / NAME

    @property
    def before(self) -> Path:
        """The node's network before. netplan reads *.yaml only, and it stands until the network is as it was, or as it
        is wanted: a second attempt finds by it that there is something left to do."""
        return self.run / BEFORE


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


@dataclass(frozen=True)
class Guard:
    """A node whose rails are changed."""

    places: Places = field(default_factory=Places)
    call: Run = run
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def apply(self, wanted: Wanted) -> None:
        """Put the staged file into force on trial. Raises FabricError when the node is as before."""
        self._arm()
        try:
            self._try(wanted)
        except (FabricError, OSError, ValueError, KeyError) as error:
            try:
                notes = self.restore()
            except (FabricError, OSError, ValueError, KeyError) as again:
                raise FabricError(
                    f"{error}. Taking the rails back failed as well: {again}. The node tries that again by itself, "
                    f"every {GUARD_SECONDS} s"
                ) from None
            raise FabricError(". ".join([str(error), "The rails are as they were", *notes])) from None

    def confirm(self) -> None:
        """Make what is on trial permanent: somebody outside has reached the node since."""
        where = self.places
        with self._alone():
            if not where.trial.exists():
                raise FabricError("nothing is on trial: the confirmation came too late, and the rails are as they were")
            adopted: dict[str, str] = json.loads(where.before.read_text())["adopted"]
            for name, sha256 in adopted.items():
                _is_as_read(where.etc / name, sha256)
            where.etc.mkdir(parents=True, exist_ok=True)
            _put(_text(where.trial), where.etc / NAME)
            # After ours is there: if this ends in between, a rail has two masters for a while, and never none.
            for name in adopted:
                self._adopt(name)
            where.trial.unlink()
            self.call(["netplan", "generate"])
            where.before.unlink()
            self._disarm()

    def restore(self) -> list[str]:
        """Take back what is on trial; the timer's work, or that of an apply that failed. May be repeated until it ends
        well, and only then is the timer ended. Returns what is left for somebody to do."""
        where = self.places
        notes: list[str] = []
        with self._alone():
            where.trial.unlink(missing_ok=True)
            if where.before.exists():
                before = json.loads(where.before.read_text())
                for name in before["adopted"]:
                    (where.run / name).unlink(missing_ok=True)
                failed = None
                try:
                    self.call(["netplan", "generate"])
                    self.call(["netplan", "apply"])
                except FabricError as error:  # the addresses can be put back without it
                    failed = error
                notes = self._put_back(before)
                if failed:
                    raise failed
                where.before.unlink()
            self._disarm()
        return notes

    def _try(self, wanted: Wanted) -> None:
        where = self.places
        where.run.mkdir(parents=True, exist_ok=True)
        for name, edit in wanted.adopted.items():
            _is_as_read(where.etc / name, edit.sha256)
        if not where.before.exists():  # of an attempt that could not be taken back yet, what was before holds
            _put(json.dumps(self._look(wanted)), where.before)
        for name, edit in wanted.adopted.items():
            _put(edit.text, where.run / name)
        former = self._former(wanted)
        _put(_text(where.staged), where.trial)
        self.call(["netplan", "generate"])
        rails = [rail.netdev for rail in wanted.rails]
        # netplan tells NetworkManager by a udev rule, which counts from the next boot: until then NetworkManager goes
        # on with its DHCP, and takes the addresses away when nobody answers that (seen 45 s after netplan apply).
        for netdev in self._managed(rails):
            self.call(["nmcli", "device", "set", netdev, "managed", "no"])
        self.call(["netplan", "apply"])
        until = self.clock() + ALIVE_SECONDS
        while lacks := self._lacking(wanted, rails):
            if self.clock() > until:
                raise FabricError(f"after netplan apply, {'; '.join(lacks)} within {ALIVE_SECONDS} s")
            self.pause(POLL_SECONDS)
        held = _addresses(self._links())
        for rail in wanted.rails:
            for address in held[rail.netdev]:
                if address != rail.ip:
                    self.call(["ip", "address", "delete", address, "dev", rail.netdev])
        # networkd lets go of a netdev that no file names any more, and leaves it as it is.
        for netdev in former:
            for address in held[netdev]:
                if address in former[netdev]:
                    self.call(["ip", "address", "delete", address, "dev", netdev])

    def _former(self, wanted: Wanted) -> dict[str, list[str]]:
        """Netdevs that our file sets up now and will not any more, with their addresses there: the cable was moved."""
        file = self.places.etc / NAME
        found: dict[str, list[str]] = {}
        netdev = ""
        for line in _text(file).splitlines() if file.exists() else []:
            if matched := re.fullmatch(r' {4}"(\S+)":', line):
                netdev = matched[1]
            elif netdev and (matched := re.fullmatch(r' {6}addresses: \["(\S+)"\]', line)):
                found[netdev] = [matched[1]]
        rails = {rail.netdev for rail in wanted.rails}
        links = self._links() if set(found) - rails else {}
        return {name: those for name, those in found.items() if name in links and name not in rails}

    def _look(self, wanted: Wanted) -> dict[str, Any]:
        """What is to be as it was."""
        links = self._links()
        held = _addresses(links)
        rails = [rail.netdev for rail in wanted.rails]
        managed = self._managed(rails)
        management = next((name for name, those in held.items() if _ip(those, wanted.management)), None)
        return {
            "management": management,
            "address": wanted.management,
            "routes": self._routes(management) if management else [],
            "links": {
                name: {"addresses": held[name], "mtu": links[name]["mtu"]}
                for name in [*rails, *self._former(wanted), *([management] if management else [])]
                if name in links
            },
            "managed": managed,
            "adopted": {name: edit.sha256 for name, edit in wanted.adopted.items()},
        }

    def _put_back(self, before: Mapping[str, Any]) -> list[str]:
        """What netplan does not know of."""
        notes = []
        management = before["management"]
        if management and not self._returns(before):
            self.call(["ip", "link", "set", management, "up"])
            for address in before["links"][management]["addresses"]:
                self._tolerate(["ip", "address", "replace", address, "dev", management])
            routes = self._routes(management)
            for route in routes:
                if route not in before["routes"]:
                    self._tolerate(["ip", "route", "delete", *_route(route), "dev", management])
            for route in before["routes"]:
                if route not in routes:
                    self._tolerate(["ip", "route", "replace", *_route(route), "dev", management])
            notes.append(
                f"{management} has its management address {before['address']} and its routes again, but netplan's own "
                f"files say otherwise: netplan apply takes them away, and so does the next boot. Correct the files "
                f"(netplan get), then deploy again"
            )
        now = self._links()
        held = _addresses(now)
        for name, was in before["links"].items():
            if name == management or name not in now:
                continue
            for address in held[name]:
                if address not in was["addresses"]:
                    self._tolerate(["ip", "address", "delete", address, "dev", name])
            if name in before["managed"]:
                continue  # NetworkManager sets it up itself
            for address in was["addresses"]:
                if address not in held[name]:
                    self._tolerate(["ip", "address", "replace", address, "dev", name])
            if now[name]["mtu"] != was["mtu"]:
                self._tolerate(["ip", "link", "set", name, "mtu", str(was["mtu"])])
        for name in before["managed"]:
            self._tolerate(["nmcli", "device", "set", name, "managed", "yes"])
        return notes

    def _returns(self, before: Mapping[str, Any]) -> bool:
        """Whether the way in comes back by itself, as it does where NetworkManager or DHCP gives it."""
        netdev = before["management"]
        until = self.clock() + RETURN_SECONDS
        while True:
            held = _addresses(self._links()).get(netdev, [])
            if _ip(held, before["address"]) and self._routes(netdev) == before["routes"]:
                return True
            if self.clock() > until:
                return False
            self.pause(POLL_SECONDS)

    def _routes(self, netdev: str) -> list[dict[str, Any]]:
        """Those that somebody made: what the kernel makes of an address comes and goes with it."""
        routes = json.loads(self.call(["ip", "-j", "route", "show", "dev", netdev]))
        return [
            {key: route[key] for key in ("dst", "gateway", "metric") if key in route}
            for route in routes
            if route.get("protocol") != "kernel"
        ]

    def _lacking(self, wanted: Wanted, rails: Sequence[str]) -> list[str]:
        links = self._links()
        held = _addresses(links)
        lacks = []
        if not any(_ip(those, wanted.management) for those in held.values()):
            lacks.append(f"the management address {wanted.management} is gone")
        for rail in wanted.rails:
            if rail.ip not in held.get(rail.netdev, []):
                lacks.append(f"{rail.netdev} has not got {rail.ip}")
            elif links[rail.netdev].get("mtu") != rail.mtu:
                lacks.append(f"{rail.netdev} has MTU {links[rail.netdev].get('mtu')}, not {rail.mtu}")
        if not lacks:
            lacks += [f"NetworkManager manages {netdev} still" for netdev in self._managed(rails)]
        return lacks

    def _managed(self, rails: Sequence[str]) -> list[str]:
        """The rails that NetworkManager manages; none where it does not run."""
        try:
            said = self.call(["nmcli", "-t", "-f", "DEVICE,STATE", "device", "status"])
        except (FabricError, OSError):
            return []
        states = dict(line.split(":", 1) for line in said.splitlines() if ":" in line)
        return [netdev for netdev in rails if states.get(netdev, "unmanaged") != "unmanaged"]

    def _links(self) -> dict[str, Any]:
        return {link["ifname"]: link for link in json.loads(self.call(["ip", "-j", "address", "show"]))}

    def _adopt(self, name: str) -> None:
        """Keep somebody's file as it is, and as it is from now on; the second tells later whether it is still ours."""
        where = self.places
        file = where.etc / name
        where.kept.mkdir(parents=True, exist_ok=True, mode=0o700)
        shutil.copy2(file, where.kept / f"{name}.new")
        os.chown(where.kept / f"{name}.new", file.stat().st_uid, file.stat().st_gid)
        os.replace(where.kept / f"{name}.new", where.kept / name)
        text = _text(where.run / name)
        _put(text, where.kept / f"{name}{OURS}", like=file)
        _put(text, file, like=file)
        (where.run / name).unlink()

    def _tolerate(self, argv: Sequence[str]) -> None:
        with suppress(FabricError):
            self.call(argv)

    def _arm(self) -> None:
        self._disarm()
        self.call([
            "systemd-run", "--collect", f"--unit={TIMER}", f"--on-active={GUARD_SECONDS}",
            f"--on-unit-inactive={GUARD_SECONDS}", "--timer-property=AccuracySec=100ms",
            "--description=Sparkpair: take the rails' new settings back, unless they are confirmed",
            *paths.PROGRAM, "fabric", "restore",
        ])  # fmt: skip

    def _disarm(self) -> None:
        self._tolerate(["systemctl", "stop", f"{TIMER}.timer"])  # which fails where it is not armed

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """The timer and a deploy do not take back, or confirm, at the same time."""
        self.places.run.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.places.run, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _addresses(links: Mapping[str, Any]) -> dict[str, list[str]]:
    """IPv4 addresses with their prefixes, by netdev."""
    return {
        name: [f"{info['local']}/{info['prefixlen']}" for info in link["addr_info"] if ":" not in info["local"]]
        for name, link in links.items()
    }


def _ip(held: Sequence[str], wanted: str) -> bool:
    return any(address.partition("/")[0] == wanted for address in held)


def _route(route: Mapping[str, Any]) -> list[str]:
    words = [str(route["dst"])]
    for key, word in (("gateway", "via"), ("metric", "metric")):
        if key in route:
            words += [word, str(route[key])]
    return words


def _text(file: Path) -> str:
    """As the probe reads it, whose text the digests are of."""
    return file.read_text("utf-8", errors="replace")


def _is_as_read(file: Path, sha256: str) -> None:
    if not file.exists() or hashlib.sha256(_text(file).encode()).hexdigest() != sha256:
        raise FabricError(f"{file} was changed since the deploy read it; deploy again")


def _put(text: str, path: Path, like: Path | None = None) -> None:
    """netplan refuses files that others may read, so it is never anything else; mode and owner of another file."""
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
        if like is not None:
            status = like.stat()
            os.fchown(stream.fileno(), status.st_uid, status.st_gid)
            os.fchmod(stream.fileno(), status.st_mode & 0o7777)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)


def main(argv: list[str]) -> int:
    """main.py fabric apply|confirm|restore; exit 1 with one line when it was taken back."""
    parser = argparse.ArgumentParser(prog="main.py fabric", description="The rails' netplan file, under guard.")
    words = parser.add_subparsers(dest="word", required=True)
    applied = words.add_parser("apply", help="put the staged file into force on trial")
    applied.add_argument("--management", required=True, metavar="ADDRESS")
    applied.add_argument("--rail", action="append", required=True, metavar="NETDEV=ADDRESS/PREFIX=MTU")
    applied.add_argument("--adopted", action="store_true", help="read somebody else's files without the rails, as JSON")
    words.add_parser("confirm", help="make it permanent")
    words.add_parser("restore", help="take it back")
    arguments = parser.parse_args(argv)
    if shutil.which("netplan") is None:
        print("netplan is not installed: sudo apt-get install netplan.io", file=sys.stderr)
        return 1
    guard = Guard()
    try:
        if arguments.word == "apply":
            edits = json.load(sys.stdin) if arguments.adopted else {}
            adopted = {str(name): Edit(edit["sha256"], edit["text"]) for name, edit in edits.items()}
            guard.apply(Wanted(arguments.management, [_rail(text) for text in arguments.rail], adopted))
        elif arguments.word == "confirm":
            guard.confirm()
        else:
            for note in guard.restore():
                print(note)
    except (FabricError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _rail(text: str) -> Address:
    netdev, address, mtu = text.split("=")
    return Address(address, netdev, int(mtu))
