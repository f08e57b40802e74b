"""Staging: brings the directories of an errand here, from every source at the same time, and proves them.

`main.py stage ERRAND` runs as root in a transient unit, so that neither ssh nor a deploy ends it. It may be killed at
any moment: files count when their sha256 is proven, parts are gone on with, and what was hashed is not read again.
"""

from __future__ import annotations

import argparse
import errno
import functools
import json
import os
import pwd
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from node import board, content, errand, local, pages, paths, progress, turns, wire
from node.copier import Copier
from node.download import SOURCE as HUB
from node.download import Download, Process, Start
from node.errand import Errand, Set
from node.verified import Verified

LOOK_SECONDS = 0.5
HUB_PATIENCE_SECONDS = 1800.0
"""So long without a byte, with a hub among the sources, before it gives up: a line that is down over lunch is no reason
to come back to a node."""
PEER_PATIENCE = 5
"""In stalls, without a hub: a peer that was switched off does not serve again before the next deploy."""
LOCAL_PATIENCE_SECONDS = 5.0
"""Without either: nobody else will come."""


class StageError(Exception):
    """The directory cannot be staged as it is; the message says what to do."""


class Stage:
    """One errand from beginning to end."""

    def __init__(
        self, wanted: Errand, owner: tuple[int, int], token: str | None, say: Callable[[str], None],
        state: Path = paths.WEIGHTS, port: int = paths.WEIGHTS_PORT, net: Path = Path("/sys/class/net"),
        start: Start = Process,
    ) -> None:  # fmt: skip
        self._wanted, self._state, self._say = wanted, state, say
        self._sealed: set[str] = set()
        self._meter = progress.Meter()
        for each in wanted.sets:
            _refuse_others(each)
        self.board = board.board(wanted, owner, state)
        self._begin()
        rate = pages.Rate(wanted.rate)
        self._copier = Copier(wanted.peers, rate, wanted.stall_seconds, say, net, port) if wanted.peers else None
        self._download = None
        if wanted.hub is not None:
            self._download = Download(self.board, wanted.hub, token, wanted.rate, rate, say, start)

    def _begin(self) -> None:
        """Mark what is unfinished, before a byte of it changes; refuse what the disks cannot take."""
        self._state.mkdir(parents=True, exist_ok=True)
        missing: dict[int, int] = {}
        for each in self._wanted.sets:
            if self.board.is_done(each.name):
                continue
            wire.write_atomic(self._state / content.marker_name(each.directory), each.identity, 0o644)
            device, free = _disk(each.directory)
            missing[device] = missing.get(device, 0) + self.board.missing(each)
            if missing[device] > free:
                self.board.fail(board.disk_full(each, missing[device]))

    def run(self) -> bool:
        """Bring everything; whether it is all here. Says why if not."""
        sources: dict[str, Callable[[], None]] = {local.DISK: lambda: local.hash_files(self.board)}
        if any(each.bundle for each in self._wanted.sets):
            sources[local.BUNDLE] = lambda: local.copy_bundle(self.board, self._say)
        if self._download is not None:
            sources[HUB] = self._download.run
        if self._copier is not None:
            copier = self._copier
            sources["peers"] = lambda: copier.bring(self.board)
        threads = [threading.Thread(target=self._guarded, args=(source,)) for source in sources.values()]
        for thread in threads:
            thread.start()
        try:
            self._watch()
        finally:
            self.board.over.set()
            for thread in threads:
                thread.join()
        self._seal()
        return self._tell_end()

    def _guarded(self, source: Callable[[], None]) -> None:
        """A source; what it cannot cope with ends the errand."""
        try:
            source()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                self.board.full()
            else:
                self.board.fail(f"{error.filename or 'the disk'}: {error.strerror or error}")
        except Exception as error:
            # A fault of ours: the journal is to have all of it.
            traceback.print_exc()
            self.board.fail(f"{type(error).__name__}: {error}")

    def _watch(self) -> None:
        """Tell how far it is until it is over, or until nothing moves any more."""
        said = time.monotonic()
        while not self.board.over.wait(LOOK_SECONDS):
            self._seal()
            if time.monotonic() - said >= progress.PROGRESS_SECONDS:
                said = time.monotonic()
                self._tell()
            self._lose_patience()

    def _tell(self) -> None:
        under_way = self.board.under_way()
        lacking = [wanted.name for wanted, _ in self.board.lacking()]
        name = under_way[0][0] if under_way else lacking[0] if lacking else ""
        for wanted in self._wanted.sets:
            if wanted.name == name:
                files = [(path, source) for of, path, source, _ in under_way if of == name]
                rate, quiet = self._meter.rate(self.board.moved), self.board.quiet_seconds(self._sources())
                self._say(progress.line(name, self.board.here(name), wanted.size, rate, quiet, files))

    def _lose_patience(self) -> None:
        limit = LOCAL_PATIENCE_SECONDS
        if self._copier is not None:
            limit = PEER_PATIENCE * self._wanted.stall_seconds
        if self._download is not None:
            limit = HUB_PATIENCE_SECONDS
        if self.board.quiet_seconds(self._sources()) <= limit:
            return
        lacking = self.board.lacking()
        reasons = [f"{HUB}: {self._download.trouble}"] if self._download and self._download.trouble else []
        reasons += [self._copier.trouble] if self._copier and self._copier.trouble else []
        why = "; ".join(reasons) or "no source has them"
        names = ", ".join(path for _, path in lacking[:3])
        self.board.fail(
            f"nothing arrives, {len(lacking)} files lack ({names}): {why}. What is here stays. Fix: see to that, and "
            "run the deploy again: it goes on"
        )

    def _sources(self) -> list[str]:
        return [local.DISK, local.BUNDLE, HUB, *(peer.name for peer in self._wanted.peers)]

    def _seal(self) -> None:
        """The manifest of each set that is whole."""
        for each in self._wanted.sets:
            if each.name not in self._sealed and self.board.is_done(each.name):
                self._sealed.add(each.name)
                try:
                    seal(each, self.board.verified[each.name], self._state)
                except StageError as error:
                    self.board.fail(str(error))
                    return
                self._say(
                    f"{each.name}: {len(each.files)} files, {progress.amount(each.size)}, are in {each.directory} as "
                    f"the lock says ({each.identity[:12]})"
                )

    def _tell_end(self) -> bool:
        refused = self.board.refused()
        for wanted in self._wanted.sets:
            names = [path for of, path in refused if of.name == wanted.name]
            if names:
                self._say(
                    f"{wanted.name}: {', '.join(names[:3])} arrived with other bytes than the lock states, twice. Fix: "
                    "make lock, if the repository was changed; else a disk, a rail or a proxy on the way is failing"
                )
        if self.board.failure:
            self._say(self.board.failure)
        return not refused and not self.board.failure and len(self._sealed) == len(self._wanted.sets)


def seal(wanted: Set, verified: Verified, state: Path) -> None:
    """Write the manifest of a directory whose files are all proven, unless it holds already. Raises StageError when
    they are not those, by their metadata, that were proven."""
    entries, outside = content.listing(wanted.directory)
    path = state / content.manifest_name(wanted.directory)
    marker = state / content.marker_name(wanted.directory)
    rows = {name: sha256 for name, _, sha256 in wanted.files}
    if outside or {entry[0] for entry in entries} != set(rows) or len(verified.good(wanted.files)) != len(rows):
        raise StageError(f"{wanted.directory} changed while it was staged. Fix: run again when nothing writes to it")
    kept = content.read_manifest(str(path), wanted.directory)
    if kept is None or kept["identity"] != wanted.identity or not content.holds(kept, entries):
        manifest = {
            "directory": wanted.directory,
            "identity": wanted.identity,
            "files": [list(row) for row in wanted.files],
            "stamps": content.stamps(entries),
        }
        wire.write_atomic(path, json.dumps(manifest), 0o644)
    marker.unlink(missing_ok=True)
    board.remove_parts(wanted.directory)


def _refuse_others(wanted: Set) -> None:
    """What the engine would see beside the files of the lock."""
    if not os.path.isdir(wanted.directory):
        return
    entries, outside = content.listing(wanted.directory)
    names = {path for path, _, _ in wanted.files}
    others = sorted({*(entry[0] for entry in entries), *outside} - names)
    if others:
        raise StageError(
            f"{wanted.directory} holds {', '.join(others[:3])}, which the lock does not have. Fix: remove what does "
            "not belong there"
        )


def _disk(directory: str) -> tuple[int, int]:
    """Which file system it is, or will be, and the bytes that are free for the user there."""
    place = Path(directory)
    while not place.exists():
        place = place.parent
    room = os.statvfs(place)
    return place.stat().st_dev, room.f_bavail * room.f_frsize


def take_token(path: Path = paths.HUB_TOKEN) -> str | None:
    """The operator's token, which is not there any more afterwards."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (FileNotFoundError, ValueError):
        token = ""
    path.unlink(missing_ok=True)
    return token or None


def main(argv: list[str]) -> int:
    """main.py stage ERRAND; 0 when all is here and proven, 1 with one line that names the fix."""
    parser = argparse.ArgumentParser(prog="main.py stage", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("errand", type=Path)
    arguments = parser.parse_args(argv)
    os.umask(0o022)

    def say(text: str) -> None:
        print(text, flush=True)

    try:
        token = take_token()
        wanted = errand.parse(wire.read_text(arguments.errand))
        try:
            account = pwd.getpwnam(wanted.owner)
        except KeyError:
            raise StageError(f"there is no user {wanted.owner} here") from None
        with turns.staging():
            stage = Stage(wanted, (account.pw_uid, account.pw_gid), token, say)
            end = functools.partial(stage.board.fail, "stopped. What is here stays; a deploy goes on")
            # In a thread of its own: this one may hold the event's lock, which is not its own a second time.
            signal.signal(signal.SIGTERM, lambda number, frame: threading.Thread(target=end).start())
            return 0 if stage.run() else 1
    except (StageError, wire.WireError, OSError) as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    finally:
        paths.HUB_TOKEN.unlink(missing_ok=True)
