"""The deep check: every proven byte of weights and drafter is read from the disk again and compared with its sha256.

Everything else that looks at those files reads metadata only, which cannot tell bytes that changed under an unchanged
file: a failing disk, memory or controller. `main.py deep`, once a month by a timer or for `verify.py --deep`.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from node import content, memory, pages, paths, turns, wire
from node.progress import amount, duration
from node.verified import Verified

SERVING_BYTES_PER_SECOND = 200 * 2**20
"""While an engine runs. On GB10 disk, processor and engine share one memory of 273 GB/s, of which this takes under
1 percent, and a tenth of one core of 20; 164 GiB then take 14 minutes. Without an engine there is no cap."""
PROGRESS_SECONDS = 10.0
LOOK_SECONDS = 1.0
"""How long what is known of engine and staging counts as known."""

DEPLOY = "a deploy brings these again, and nothing else: pyinfra inventory.py deploy.py"


@dataclass(frozen=True)
class Found:
    """What became of one directory. `changed` are files that are not, by their metadata, those that were proven: a
    deploy hashes them. `skipped` says why none was read."""

    directory: str
    files: int = 0
    bytes: int = 0
    damaged: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    skipped: str = ""


def main(argv: Sequence[str]) -> int:
    """Check what this node's rank reads. 0: all is well, 1: damaged files, or there is nothing to go by."""
    del argv
    os.umask(0o022)

    def say(text: str) -> None:
        print(text, flush=True)

    try:
        spec = wire.parse_rank(wire.read_text(paths.WANTED_RANK))
        return check(spec.content, paths.WEIGHTS, Pace(paths.ENGINE_CGROUPS, paths.STAGING_LOCK, say), say)
    except (wire.WireError, OSError) as error:
        print(f"deep check: {error}", file=sys.stderr, flush=True)
        return 1


def check(directories: Sequence[str], state: Path, pace: Pace, say: Callable[[str], None]) -> int:
    """Read the directories one after the other, write down what was found, and tell it. Raises OSError."""
    begun = time.monotonic()
    parts = [_Part(directory, state) for directory in directories]
    progress = _Progress(sum(part.size for part in parts), say)
    read = [part.check(pace, progress) for part in parts]
    found = [part.settled(result) for part, result in zip(parts, read, strict=True)]
    seconds = time.monotonic() - begun
    for result in found:
        _mark(result, state)
    document = {
        "at": _now(), "seconds": round(seconds, 1), "bytes": sum(result.bytes for result in found),
        "directories": [asdict(result) for result in found],
    }  # fmt: skip
    wire.write_atomic(state / paths.DEEP_RESULT.name, json.dumps(document), 0o644)
    for line in tell(found, seconds):
        say(line)
    return 1 if any(result.damaged for result in found) else 0


def tell(found: Sequence[Found], seconds: float) -> list[str]:
    """The result for a person, what matters last."""
    lines = [f"deep check: {result.directory}: not read, {result.skipped}" for result in found if result.skipped]
    for result in found:
        if result.changed:
            names = ", ".join(result.changed[:3])
            more = f" and {len(result.changed) - 3} more" if len(result.changed) > 3 else ""
            lines.append(
                f"deep check: {result.directory}: changed since they were proven: {names}{more}; a deploy hashes them"
            )
    files, size = sum(result.files for result in found), sum(result.bytes for result in found)
    damaged = [os.path.join(result.directory, path) for result in found for path in result.damaged]
    if damaged:
        lines.append(f"deep check: damaged, {len(damaged)} of {files}: {', '.join(damaged)}; {DEPLOY}")
    else:
        count = "1 file" if files == 1 else f"{files} files"
        lines.append(f"deep check: {count}, {amount(size)} in {duration(seconds)}: every byte is as it was proven")
    return lines


class Pace:
    """How fast the check may go on: not at all while somebody stages, slowly while an engine runs."""

    def __init__(
        self, cgroups: Sequence[Path], lock: Path, say: Callable[[str], None],
        serving: int = SERVING_BYTES_PER_SECOND,
    ) -> None:  # fmt: skip
        self._cgroups = cgroups
        self._lock = lock
        self._say = say
        self._rate = pages.Rate(serving)
        self._look_at = 0.0
        self._serves = True

    def take(self, count: int) -> None:
        """Wait until `count` more bytes may be read."""
        if time.monotonic() >= self._look_at:
            turns.let_staging_pass(self._say, self._lock)
            self._serves = memory.is_populated(self._cgroups)
            self._look_at = time.monotonic() + LOOK_SECONDS
        if self._serves:
            self._rate.take(count)


class _Part:
    """One directory to check."""

    def __init__(self, directory: str, state: Path) -> None:
        self._directory = directory
        self._skipped = self._why_not(state)
        self._proven: dict[str, tuple[int, str]] = {}
        self._changed: list[str] = []
        self._verified = Verified(directory, state)
        if not self._skipped:
            self._list()
        self.size = sum(size for size, _ in self._proven.values())

    def _why_not(self, state: Path) -> str:
        if _is_network(self._directory):
            return "its files are on another node, which checks them"
        if (state / content.marker_name(self._directory)).exists():
            return "files are still being brought there; a deploy goes on with that"
        if not os.path.isdir(self._directory):
            return "there is no such directory; a deploy brings the files"
        return ""

    def _list(self) -> None:
        entries, _ = content.listing(self._directory)
        for path, size, _, _ in entries:
            sha256 = self._verified.proven(path)
            if sha256 is None:
                self._changed.append(path)
            else:
                self._proven[path] = (size, sha256)
        if not self._proven:
            self._skipped = "nothing there was proven yet; a deploy does that"
            self._changed = []

    def check(self, pace: Pace, progress: _Progress) -> Found:
        """Read every proven file. Raises OSError for what is no matter of the disk."""
        damaged, changed = [], list(self._changed)
        done = size = 0
        for path, (length, sha256) in sorted(self._proven.items()):
            progress.file = path
            is_good = self._is_good(path, sha256, pace, progress)
            # Whatever was read: of a file that somebody wrote meanwhile it says nothing.
            if self._verified.proven(path) != sha256:
                changed.append(path)
                continue
            done, size = done + 1, size + length
            if not is_good:
                damaged.append(path)
        return Found(self._directory, done, size, tuple(damaged), tuple(sorted(changed)), self._skipped)

    def settled(self, found: Found) -> Found:
        """What holds at the end: a damaged file that was brought again since it was read is another one."""
        anew = [path for path in found.damaged if self._verified.proven(path) is None]
        damaged = tuple(path for path in found.damaged if path not in anew)
        return replace(found, damaged=damaged, changed=tuple(sorted((*found.changed, *anew))))

    def _is_good(self, path: str, sha256: str, pace: Pace, progress: _Progress) -> bool:
        def step(count: int) -> None:
            progress.add(count)
            pace.take(count)

        full = os.path.join(self._directory, path)
        try:
            pages.drop(full)  # where O_DIRECT is not to be had, the disk is to be read all the same
            return pages.sha256(full, step) == sha256
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EUCLEAN, errno.ENODATA):
                raise
            return False  # the disk cannot give it: that is what is looked for


class _Progress:
    """Says how far it is, now and then."""

    def __init__(self, total: int, say: Callable[[str], None]) -> None:
        self.file = ""
        self._total = total
        self._say = say
        self._done = 0
        self._began = self._said = time.monotonic()

    def add(self, count: int) -> None:
        """So many bytes more were read."""
        self._done += count
        now = time.monotonic()
        if now - self._said < PROGRESS_SECONDS:
            return
        self._said = now
        rate = self._done / (now - self._began)
        left = duration((self._total - self._done) / rate)
        self._say(
            f"deep check: {amount(self._done)} of {amount(self._total)}, {rate / 2**20:.0f} MiB/s, {left} left: "
            f"{self.file}"
        )


def _mark(found: Found, state: Path) -> None:
    """The list of damaged files beside the manifest, there only when there are some."""
    if found.skipped:
        return
    path = state / content.damaged_name(found.directory)
    if found.damaged:
        wire.write_atomic(path, json.dumps({"at": _now(), "files": list(found.damaged)}), 0o644)
    else:
        path.unlink(missing_ok=True)


def _is_network(directory: str, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether a directory lies on a file system of another machine; asked without touching that, which may hang."""
    place, deepest, kind = os.path.normpath(directory), "", ""
    for line in mounts.read_text(encoding="utf-8").splitlines():
        fields, _, rest = line.partition(" - ")
        point = fields.split()[4].replace("\\040", " ")
        if len(point) >= len(deepest) and f"{place}/".startswith(point.rstrip("/") + "/"):
            deepest, kind = point, rest.split()[0]
    return kind.startswith(("nfs", "fuse.nfs"))


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
