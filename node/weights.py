"""Content directories on a node: their manifest, and the copy over the rail to a node that lacks them.

Run in transient units by the deploy, so that neither a lost session nor a killed deploy ends what takes an hour.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import pwd
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from node import content, paths, wire

READ_BYTES = 8 * 1024 * 1024
READERS = 4
"""sha256 keeps one core busy at less than the disk gives; more readers than this only take memory from the engine."""
PROGRESS_SECONDS = 5.0
RSYNC_PORT = paths.WEIGHTS_PORT
RSYNC_TIMEOUT_SECONDS = 30
ROUNDS_WITHOUT_PROGRESS = 20
RETRY_SECONDS = 3.0
FORBIDDEN = set("%#\\[]\r\n")
"""Characters that the rsync daemon's own settings file would read as something else."""


class WeightsError(Exception):
    """The work cannot be done; the message says what to do."""


# Hashing


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


def differing(directory: str, manifest: dict[str, object], say: Callable[[str], None] = print) -> list[str]:
    """Files that are missing or whose bytes are not those of the manifest. Reads all of them."""
    root = os.path.realpath(directory)
    wanted = {path: (size, sha256) for path, size, sha256 in _rows(manifest)}
    entries, _ = content.listing(directory)
    wrong = sorted(set(wanted) - {entry[0] for entry in entries})
    same_size = [entry for entry in entries if entry[0] in wanted and wanted[entry[0]][0] == entry[1]]
    wrong += [entry[0] for entry in entries if entry[0] in wanted and wanted[entry[0]][0] != entry[1]]
    digests = _hash_all(root, same_size, None, say)
    wrong += [path for path, digest in digests.items() if digest != wanted[path][1]]
    return sorted(wrong)


def _hash_all(
    root: str, entries: Sequence[content.Entry], partial: Path | None, say: Callable[[str], None]
) -> dict[str, str]:
    known = _partial(partial)
    digests = {entry[0]: known[entry] for entry in entries if entry in known}
    left = [entry for entry in entries if entry[0] not in digests]
    progress = _Progress("hashed", sum(entry[1] for entry in entries), say)
    progress.add(sum(entry[1] for entry in entries if entry[0] in digests))
    lock = threading.Lock()

    def work(entry: content.Entry) -> None:
        digest = _hash(os.path.join(root, entry[0]), progress)
        with lock:
            digests[entry[0]] = known[entry] = digest
            if partial is not None:
                rows = [[list(key), value] for key, value in sorted(known.items())]
                wire.write_atomic(partial, json.dumps(rows), 0o644)

    with concurrent.futures.ThreadPoolExecutor(READERS) as pool:
        try:
            for done in [pool.submit(work, entry) for entry in left]:
                done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    if partial is not None:
        partial.unlink(missing_ok=True)
    return digests


def _hash(path: str, progress: _Progress) -> str:
    """sha256 of a file, leaving none of it in the page cache: the engine and the cache share one memory on GB10."""
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        offset = 0
        while data := os.read(descriptor, READ_BYTES):
            digest.update(data)
            os.posix_fadvise(descriptor, offset, len(data), os.POSIX_FADV_DONTNEED)
            offset += len(data)
            progress.add(len(data))
    finally:
        os.close(descriptor)
    return digest.hexdigest()


def _partial(path: Path | None) -> dict[content.Entry, str]:
    """What an interrupted run has hashed already; a damaged file counts as none."""
    if path is None:
        return {}
    try:
        return {(row[0], row[1], row[2], row[3]): str(value) for row, value in json.loads(path.read_text())}
    except (OSError, ValueError, TypeError, IndexError):
        return {}


def _write_manifest(
    directory: str, entries: Sequence[content.Entry], digests: dict[str, str], state: Path, wanted: str | None = None
) -> str:
    after, _ = content.listing(directory)
    if after != sorted(entries):
        raise WeightsError(f"{directory} changed while it was read; run again when nothing writes to it")
    files = [(entry[0], entry[1], digests[entry[0]]) for entry in after]
    identity = wire.manifest_identity(files)
    if wanted is not None and identity != wanted:
        raise WeightsError(f"{directory} is {identity[:12]}, wanted {wanted[:12]}")
    manifest = {
        "directory": directory,
        "identity": identity,
        "files": [list(row) for row in sorted(files)],
        "stamps": content.stamps(list(after)),
    }
    wire.write_atomic(state / content.manifest_name(directory), json.dumps(manifest), 0o644)
    return identity


def _rows(manifest: dict[str, object]) -> list[tuple[str, int, str]]:
    files = manifest.get("files")
    if not isinstance(files, list):
        raise WeightsError("the manifest has no files")
    return [(str(path), int(size), str(sha256)) for path, size, sha256 in files]


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


def amount(count: int) -> str:
    """Bytes for a person."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


# Serving


@dataclass(frozen=True)
class Module:
    """A directory under the name by which a peer asks for it."""

    name: str
    directory: str


def daemon_settings(modules: Sequence[Module], address: str, peers: Sequence[str], state: Path, pid: Path) -> str:
    """The rsync daemon's settings: one address, the peers only, read-only, nothing but these directories."""
    for module in modules:
        if set(module.directory) & FORBIDDEN or module.directory != module.directory.strip():
            raise WeightsError(f"{module.directory!r} has characters that the rsync daemon cannot take in a path")
    lines = [
        f"address = {address}", f"port = {RSYNC_PORT}", f"pid file = {pid}", f"lock file = {pid.with_suffix('.lock')}",
        "log file = /dev/stderr", "uid = root", "gid = root", "use chroot = yes", "read only = yes", "list = no",
        f"hosts allow = {' '.join(peers)}",
        "hosts deny = *", "reverse lookup = no", f"timeout = {4 * RSYNC_TIMEOUT_SECONDS}", "max connections = 4",
    ]  # fmt: skip
    for module in [*modules, Module("manifests", str(state))]:
        lines += ["", f"[{module.name}]", f"path = {module.directory}"]
    return "\n".join(lines) + "\n"


def serve(modules: Sequence[Module], addresses: Sequence[str], peers: Sequence[str]) -> int:
    """Serve the directories on each address until told to stop. Exit 1 when a daemon ends by itself."""
    run = paths.RUN / "weights"
    run.mkdir(parents=True, exist_ok=True)
    daemons = []
    for address in addresses:
        settings, pid = run / f"rsyncd-{address}.conf", run / f"rsyncd-{address}.pid"
        pid.unlink(missing_ok=True)
        wire.write_atomic(settings, daemon_settings(modules, address, peers, paths.WEIGHTS, pid))
        daemons.append(subprocess.Popen(["rsync", "--daemon", "--no-detach", f"--config={settings}"]))
    print(
        f"serving {', '.join(module.directory for module in modules)} on {', '.join(addresses)} to {', '.join(peers)}"
    )
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    while not stopped and all(daemon.poll() is None for daemon in daemons):
        time.sleep(0.2)
    for daemon in daemons:
        daemon.terminate()
        daemon.wait()
    for path in run.glob("rsyncd-*"):
        path.unlink(missing_ok=True)
    return 0 if stopped else 1


# Copying


@dataclass(frozen=True)
class Source:
    """One way to the node that serves: its address, and this node's own end of that rail."""

    address: str
    netdev: str


@dataclass(frozen=True)
class Copy:
    """One directory to bring here: its module and manifest at the source, what it must be, and where it goes."""

    name: str
    manifest: str
    identity: str
    directory: str


class Copier:
    """Brings directories over the first rail that has a carrier, and goes on over the other when that one loses it."""

    def __init__(
        self, sources: Sequence[Source], owner: str, state: Path = paths.WEIGHTS, say: Callable[[str], None] = print,
        port: int = RSYNC_PORT, net: Path = Path("/sys/class/net"),
    ) -> None:  # fmt: skip
        account = pwd.getpwnam(owner)
        self._uid, self._gid = account.pw_uid, account.pw_gid
        self._sources = sources
        self._state = state
        self._say = say
        self._port = port
        self._net = net

    def copy(self, wanted: Copy) -> None:
        """Bring one directory here whole, proven by its manifest; goes on where an earlier copy stopped."""
        manifest = self._manifest(wanted)
        rows = _rows(manifest)
        self._refuse_others(wanted.directory, {path for path, _, _ in rows})
        self._state.mkdir(parents=True, exist_ok=True)
        marker = self._state / content.marker_name(wanted.directory)
        wire.write_atomic(marker, wanted.identity, 0o644)
        self._make(Path(wanted.directory))
        total = sum(size for _, size, _ in rows)
        self._say(f"copying {wanted.directory}: {len(rows)} files, {amount(total)}")
        self._fetch(wanted, rows, [])
        wrong = differing(wanted.directory, manifest, self._say)
        if wrong:
            # Same size and time, other bytes: what an earlier hand left here. Taken again whole, once.
            self._say(f"taking {len(wrong)} files again: {', '.join(wrong[:3])}")
            self._fetch(wanted, [row for row in rows if row[0] in wrong], ["--ignore-times"])
            wrong = differing(wanted.directory, manifest, self._say)
        if wrong:
            raise WeightsError(f"{', '.join(wrong[:3])} arrived with other bytes, twice; is a disk or a rail failing?")
        entries, _ = content.listing(wanted.directory)
        digests = {path: sha256 for path, _, sha256 in rows}
        _write_manifest(wanted.directory, entries, digests, self._state, wanted.identity)
        marker.unlink()
        self._say(f"{wanted.directory} is here, {amount(total)}, as its manifest {wanted.identity[:12]} says")

    def _manifest(self, wanted: Copy) -> dict[str, object]:
        self._state.mkdir(parents=True, exist_ok=True)
        received = self._state / (content.manifest_name(wanted.directory) + ".source")
        self._retry(lambda source: self._rsync(source, f"manifests/{wanted.manifest}", str(received), []), lambda: 0)
        try:
            manifest = wire.read_json(received) or {}
        finally:
            received.unlink(missing_ok=True)
        if wire.manifest_identity(_rows(manifest)) != wanted.identity:
            raise WeightsError(f"the source's manifest is not {wanted.identity[:12]} any more; run the deploy again")
        return manifest

    def _refuse_others(self, directory: str, names: set[str]) -> None:
        if not os.path.isdir(directory):
            return
        others = sorted({entry[0] for entry in content.listing(directory)[0]} - names)
        if others:
            raise WeightsError(
                f"{directory} holds {', '.join(others[:3])}, which the source has not. Remove what does not belong"
            )

    def _fetch(self, wanted: Copy, rows: Sequence[tuple[str, int, str]], more: Sequence[str]) -> None:
        names = "".join(f"{path}\0" for path, _, _ in rows).encode()
        listed = self._state / (content.manifest_name(wanted.directory) + ".list")
        listed.write_bytes(names)
        sizes = {path: size for path, size, _ in rows}
        progress = _Rate(sum(sizes.values()), lambda: _held(wanted.directory, sizes), self._say)
        options = ["--from0", f"--files-from={listed}", *more]
        try:
            self._retry(
                lambda source: self._rsync(source, f"{wanted.name}/", wanted.directory + "/", options, progress.tell),
                progress.held,
            )
        finally:
            listed.unlink(missing_ok=True)

    def _retry(self, attempt: Callable[[Source], str], held: Callable[[], int]) -> None:
        """Try the rails in turn until one attempt ends well; give up when nothing more arrives."""
        idle, before, failure = 0, held(), ""
        while idle < ROUNDS_WITHOUT_PROGRESS:
            for source in self._sources:
                if not self._carrier(source.netdev):
                    failure = f"{source.netdev} has no carrier"
                    continue
                failure = attempt(source)
                if not failure:
                    return
                self._say(f"over {source.netdev}: {failure}")
            now = held()
            idle = 0 if now > before else idle + 1
            before = now
            time.sleep(RETRY_SECONDS)
        raise WeightsError(f"nothing arrives: {failure}")

    def _rsync(
        self, source: Source, remote: str, local: str, options: Sequence[str], tell: Callable[[], None] | None = None
    ) -> str:
        """Run one rsync; what went wrong, or nothing. Ended early when its rail loses carrier and another has it."""
        argv = [
            "rsync", "--recursive", "--times", "--copy-links", "--perms", "--chmod=D755,F644", "--owner", "--group",
            f"--chown={self._uid}:{self._gid}", "--inplace", "--partial", f"--timeout={RSYNC_TIMEOUT_SECONDS}",
            f"--contimeout={RSYNC_TIMEOUT_SECONDS}", *options, f"rsync://{source.address}:{self._port}/{remote}", local,
        ]  # fmt: skip
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while True:
            try:
                _, errors = process.communicate(timeout=1.0)
                break
            except subprocess.TimeoutExpired:
                if tell is not None:
                    tell()
                others = [other for other in self._sources if other != source and self._carrier(other.netdev)]
                if others and not self._carrier(source.netdev):
                    process.terminate()
        if process.returncode == 0:
            return ""
        if not self._carrier(source.netdev):
            return "the carrier went"
        said = [line for line in errors.splitlines() if line.strip()]
        return said[0] if said else f"rsync exited {process.returncode}"

    def _carrier(self, netdev: str) -> bool:
        try:
            return (self._net / netdev / "carrier").read_text().strip() == "1"
        except OSError:
            return False

    def _make(self, directory: Path) -> None:
        """The directory and those above it, the new ones owned by the person whose weights these are."""
        new = [path for path in [directory, *directory.parents] if not path.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        for path in new:
            os.chown(path, self._uid, self._gid)


class _Rate:
    """How much of the copy is here, told now and then."""

    def __init__(self, total: int, held: Callable[[], int], say: Callable[[str], None]) -> None:
        self.held = held
        self._total = total
        self._say = say
        self._last = (time.monotonic(), held())

    def tell(self) -> None:
        now = time.monotonic()
        if now - self._last[0] < PROGRESS_SECONDS:
            return
        held = self.held()
        rate = (held - self._last[1]) / (now - self._last[0])
        self._last = (now, held)
        self._say(f"copied {amount(held)} of {amount(self._total)}, {rate / 2**20:.0f} MiB/s")


def _held(directory: str, sizes: dict[str, int]) -> int:
    """Bytes of these files that are here."""
    held = 0
    for path, size in sizes.items():
        try:
            held += min(size, os.stat(os.path.join(directory, path)).st_size)
        except OSError:
            continue
    return held


# The command


def main(argv: list[str]) -> int:
    """main.py weights hash|verify|serve|copy; exit 1 with one line when it cannot be done."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except (WeightsError, wire.WireError, OSError) as error:
        print(error, file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="main.py weights", description=__doc__.splitlines()[0] if __doc__ else None)
    words = parser.add_subparsers(required=True)
    hash_ = words.add_parser("hash", help="make the manifest of each directory")
    hash_.add_argument("directory", nargs="+")
    hash_.set_defaults(run=_run_hash)
    verify = words.add_parser("verify", help="read every file and compare it with the manifest")
    verify.add_argument("directory", nargs="+")
    verify.set_defaults(run=_run_verify)
    served = words.add_parser("serve", help="serve directories to the peers over the rails")
    served.add_argument("--address", action="append", required=True)
    served.add_argument("--peer", action="append", required=True)
    served.add_argument("module", nargs="+", metavar="NAME=DIRECTORY")
    served.set_defaults(run=_run_serve)
    copied = words.add_parser("copy", help="bring directories here")
    copied.add_argument("--source", action="append", required=True, metavar="ADDRESS@NETDEV")
    copied.add_argument("--owner", required=True, help="the user who owns the files here")
    copied.add_argument("wanted", nargs="+", metavar="NAME=MANIFEST=IDENTITY=DIRECTORY")
    copied.set_defaults(run=_run_copy)
    return parser


def _run_hash(arguments: argparse.Namespace) -> int:
    for directory in arguments.directory:
        print(f"hashing {directory}", flush=True)
        print(f"{directory} is {record(directory, say=_say)}", flush=True)
    return 0


def _run_verify(arguments: argparse.Namespace) -> int:
    code = 0
    for directory in arguments.directory:
        manifest = content.read_manifest(str(paths.manifest_path(directory)), directory)
        if manifest is None:
            raise WeightsError(f"{directory} has no manifest; the deploy makes it")
        wrong = differing(directory, manifest, _say)
        print(f"{directory}: {'differs: ' + ', '.join(wrong) if wrong else 'as its manifest says'}")
        code = 1 if wrong else code
    return code


def _run_serve(arguments: argparse.Namespace) -> int:
    modules = [Module(*text.split("=", 1)) for text in arguments.module]
    return serve(modules, arguments.address, arguments.peer)


def _run_copy(arguments: argparse.Namespace) -> int:
    copier = Copier([Source(*text.rsplit("@", 1)) for text in arguments.source], arguments.owner, say=_say)
    for text in arguments.wanted:
        copier.copy(Copy(*text.split("=", 3)))
    return 0


def _say(text: str) -> None:
    print(text, flush=True)
