"""The manifest of content directories that are on a node and in no lock: every file is hashed where it is.

Run in a transient unit by the deploy, so that neither a lost session nor a killed deploy ends what takes minutes.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from node import content, pages, paths, wire
from node.progress import PROGRESS_SECONDS, amount

READERS = 4
"""sha256 keeps one core busy at less than the disk gives; more readers than this only take memory from the engine."""


class WeightsError(Exception):
    """The work cannot be done; the message says what to do."""


def record(directory: str, state: Path = paths.WEIGHTS, say: Callable[[str], None] = print) -> str:
    """Make the manifest of a directory where its files are, and return its identity.

    What was hashed is kept as it goes: after an interruption only files that were not finished are read again.
    """
    root = os.path.realpath(directory)
    entries, outside = content.listing(directory)
    if outside:
        raise WeightsError(
            f"{directory}: {', '.join(outside[:3])} {'links' if len(outside) == 1 else 'link'} out of the directory, "
            "which is all that the container sees. Put the files themselves there: cp -RL"
        )
    lacks = content.missing(directory, entries)
    if lacks:
        raise WeightsError(f"{directory} lacks {', '.join(lacks[:5])}")
    digests = _hash_all(root, entries, state / (content.manifest_name(directory) + ".partial"), say)
    return _write_manifest(directory, entries, digests, state)


def _hash_all(root: str, entries: Sequence[content.Entry], partial: Path, say: Callable[[str], None]) -> dict[str, str]:
    known = _partial(partial)
    digests = {entry[0]: known[entry] for entry in entries if entry in known}
    left = [entry for entry in entries if entry[0] not in digests]
    progress = _Progress("hashed", sum(entry[1] for entry in entries), say)
    progress.add(sum(entry[1] for entry in entries if entry[0] in digests))
    lock = threading.Lock()

    def work(entry: content.Entry) -> None:
        digest = pages.sha256(os.path.join(root, entry[0]), progress.add)
        with lock:
            digests[entry[0]] = known[entry] = digest
            rows = [[list(key), value] for key, value in sorted(known.items())]
            wire.write_atomic(partial, json.dumps(rows), 0o644)

    with concurrent.futures.ThreadPoolExecutor(READERS) as pool:
        try:
            for done in [pool.submit(work, entry) for entry in left]:
                done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    partial.unlink(missing_ok=True)
    return digests


def _partial(path: Path) -> dict[content.Entry, str]:
    """What an interrupted run has hashed already; a damaged file counts as none."""
    try:
        return {(row[0], row[1], row[2], row[3]): str(value) for row, value in json.loads(path.read_text())}
    except (OSError, ValueError, TypeError, IndexError):
        return {}


def _write_manifest(directory: str, entries: Sequence[content.Entry], digests: dict[str, str], state: Path) -> str:
    after, _ = content.listing(directory)
    if after != sorted(entries):
        raise WeightsError(f"{directory} changed while it was read; run again when nothing writes to it")
    files = [(entry[0], entry[1], digests[entry[0]]) for entry in after]
    identity = wire.manifest_identity(files)
    manifest = {
        "directory": directory,
        "identity": identity,
        "files": [list(row) for row in sorted(files)],
        "stamps": content.stamps(list(after)),
    }
    wire.write_atomic(state / content.manifest_name(directory), json.dumps(manifest), 0o644)
    return identity


class _Progress:
    """Says how far it is, now and then."""

    def __init__(self, verb: str, total: int, say: Callable[[str], None]) -> None:
        self._verb = verb
        self._total = total
        self._say = say
        self._done = 0
        self._began = time.monotonic()
        self._said = self._began
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now - self._said >= PROGRESS_SECONDS:
                self._said = now
                rate = self._done / (now - self._began)
                self._say(f"{self._verb} {amount(self._done)} of {amount(self._total)}, {rate / 2**20:.0f} MiB/s")


def main(argv: list[str]) -> int:
    """main.py weights hash DIRECTORY ...; exit 1 with one line when it cannot be done."""
    parser = argparse.ArgumentParser(prog="main.py weights", description=__doc__.splitlines()[0] if __doc__ else None)
    words = parser.add_subparsers(required=True)
    words.add_parser("hash", help="make the manifest of each directory").add_argument("directory", nargs="+")
    arguments = parser.parse_args(argv)
    try:
        for directory in arguments.directory:
            _say(f"hashing {directory}")
            _say(f"{directory} is {record(directory, say=_say)}")
    except (WeightsError, wire.WireError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _say(text: str) -> None:
    print(text, flush=True)
