"""Writes the lock file: what is staged, to the byte. Reaches the hub and the image's registry, and no node.

python lock.py [--check] [--data knob=value] [inventory.py]

Commit what it writes. A branch or a tag that moved is said, file by file. Exit 0: the lock is written, or as it was;
1: refused, or not to be found out, and the lock is as it was. With --check nothing is written, and 2 says that
something moved.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from facts import hub, published
from node.oci import OciError
from spec.cluster import Settings
from spec.licences import acceptance_line, licence_refusal
from spec.lock import FileSet, Lock, LockedImage, LockError, Mirror, parse, text
from spec.lock_changes import Moved, compare, lacks, short
from spec.sources import NEWEST, Source, image_tag, sources

ROOT = Path(__file__).resolve().parent
DONE, REFUSED, MOVED, INTERRUPTED = 0, 1, 2, 130
DETAILS = 20
"""Files that are named of what moved; a repository has hundreds."""


class NotLocked(Exception):
    """The lock cannot be made. `lines` say why."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


@dataclass
class Resolved:
    """A new lock, and what there is to know beside what it holds."""

    lock: Lock
    remarks: list[str] = field(default_factory=list)
    tag_moved: bool = False


def main(argv: Sequence[str]) -> int:
    """Resolve, say what moved, write."""
    options = _parser().parse_args(argv)
    try:
        return run(settings_of(options.inventory, options.data), check=options.check)
    except NotLocked as error:
        print("\n".join(error.lines), file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python lock.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 2 when something moved")
    parser.add_argument("--data", action="append", default=[], metavar="KNOB=VALUE", help="as pyinfra takes it")
    parser.add_argument("inventory", nargs="?", default="inventory.py", help="inventory.py, unless another is named")
    return parser


def settings_of(inventory: str, data: Sequence[str]) -> Settings:
    """The settings as a deploy would read them, the lock file aside. Raises NotLocked with what was refused."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "spec.stated", inventory, *data]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        raise NotLocked(done.stderr.strip().splitlines())
    return Settings.model_validate_json(done.stdout)


def run(settings: Settings, check: bool) -> int:
    """Make the lock of these settings. Raises NotLocked."""
    name = settings.knobs.lock_file
    old, damaged = _former(Path(name))
    resolved = resolve(settings, old)
    written = text(resolved.lock)
    try:
        parse(written, name)
    except LockError as error:
        raise NotLocked(["The hub states what cannot be locked:", *(f"  {line}" for line in error.lines)]) from None
    moved = compare(old, resolved.lock)
    differs = bool(moved) or damaged is not None or old is None
    if differs and not check:
        write(Path(name), written)
    for line in report(name, moved, damaged, resolved, settings.knobs.accepted_licences, check=check):
        print(line)
    return MOVED if check and (differs or resolved.tag_moved) else DONE


def _former(path: Path) -> tuple[Lock | None, str | None]:
    """The lock that is there, and why it cannot be read if it cannot."""
    try:
        return parse(path.read_text(encoding="utf-8"), str(path)), None
    except FileNotFoundError:
        return None, None
    except UnicodeDecodeError:
        return None, f"{path}: is no text"
    except LockError as error:
        return None, error.lines[0]
    except OSError as error:
        raise NotLocked([f"{path}: cannot be read ({error.strerror}); knob lock_file names another"]) from None


# What there is now


def resolve(settings: Settings, old: Lock | None) -> Resolved:
    """The lock of these settings as hub and registry stand. Raises NotLocked with all that could not be found out."""
    stated, faults = sources(settings), list[str]()
    resolved = Resolved(Lock(None, None, None))
    found: dict[str, FileSet] = {}
    if stated:
        try:
            asked = hub.Hub(settings.knobs.hub_endpoint, hub.token())
        except hub.HubError as error:
            faults.append(str(error))
        else:
            for name, source in stated.items():
                try:
                    files = asked.file_set(source.repository, source.ref)
                    found[name] = _with_mirrors(
                        asked, source, files, old.file_sets.get(name) if old else None, resolved
                    )
                except hub.HubError as error:
                    faults.append(f"{name}: {error}")
    image = None
    try:
        image = _image(settings, old, resolved)
    except OciError as error:
        faults.append(f"image: {error}")
    if faults:
        raise NotLocked([f"Not locked; {settings.knobs.lock_file} is as it was.", *(f"  {line}" for line in faults)])
    resolved.lock = Lock(image=image, weights=found.get("weights"), drafter=found.get("drafter"))
    return resolved


def _with_mirrors(asked: hub.Hub, source: Source, files: FileSet, old: FileSet | None, resolved: Resolved) -> FileSet:
    """The files with those mirrors that have every one of them, to the byte."""
    mirrors = []
    for repository in source.mirrors:
        before = next((one for one in old.mirrors if one.repository == repository), None) if old else None
        try:
            other = asked.file_set(repository, NEWEST)
        except hub.HubError as error:
            # A commit does not change, so what was proven of it holds while the hub does not answer.
            if before is not None and old is not None and old.identity == files.identity and not error.gone:
                mirrors.append(before)
                resolved.remarks.append(f"mirror {repository} stays as it was locked: {error}")
            else:
                resolved.remarks.append(f"mirror {repository} is left out: {error}")
            continue
        if apart := lacks(other, files):
            more = f", and {len(apart) - 3} more" if len(apart) > 3 else ""
            resolved.remarks.append(
                f"mirror {repository} is left out: not the same files: {', '.join(apart[:3])}{more}"
            )
        else:
            mirrors.append(Mirror(repository, other.revision))
    return replace(files, mirrors=tuple(mirrors))


def _image(settings: Settings, old: Lock | None, resolved: Resolved) -> LockedImage | None:
    image = settings.effective.image
    if image is None:
        return None
    before = old.image if old else None
    tag = image_tag(settings) or (before.ref if before is not None and before.reference == image else "")
    registry = published.client(image)
    found = published.locked_image(registry, image, tag)
    if tag:
        try:
            now = registry.manifest(tag).digest
        except OciError as error:
            if error.status != 404:
                raise
            resolved.remarks.append(f"image: there is no tag {tag} any more; what is locked is pinned by its digest")
            return found
        if now != found.digest:
            resolved.tag_moved = True
            resolved.remarks.append(
                f"image: tag {tag} moved to {now}; what is locked is what image pins. To take the new one: "
                f'image = "{found.name}@{now}"'
            )
    return found


# What is said and written


def report(
    name: str, moved: Sequence[Moved], damaged: str | None, resolved: Resolved, accepted: str, *, check: bool
) -> Iterator[str]:
    """What became of the lock, what moved, and what is left to do."""
    if damaged is not None:
        yield f"{name}: {'cannot be used' if check else 'was written anew'}, since it was no lock: {damaged}"
    elif moved:
        yield f"{name}: {'would change; make lock writes it' if check else 'written; commit it'}"
    else:
        yield f"{name}: nothing moved"
    for one in moved:
        yield f"  {one.what}: {one.text}"
        yield from (f"    {line}" for line in one.details[:DETAILS])
        if len(one.details) > DETAILS:
            yield f"    and {len(one.details) - DETAILS} more"
    for line in resolved.remarks:
        yield f"  {line}"
    for what, files in resolved.lock.file_sets.items():
        refusal = licence_refusal(files, accepted)
        if refusal is not None:
            yield f"Before the {what} can be downloaded:"
            yield f"  {refusal.splitlines()[0]}"
            yield f"  read it at {files.repository}; to accept it, state in group_data/all.py:"
            yield f"    {acceptance_line(files, accepted)}"
    if resolved.lock.image is not None and not resolved.lock.file_sets:
        yield f"  weights and drafter: no repository is stated; {short(resolved.lock.image.reference)} alone is locked"


def write(path: Path, written: str) -> None:
    """The lock in one step: whoever reads it sees the old one or the new one. Raises NotLocked."""
    target = Path(os.path.realpath(path))
    made = ""
    try:
        handle, made = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(written)
            stream.flush()
            os.fsync(stream.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(made, 0o666 & ~mask)
        os.replace(made, target)
    except OSError as error:
        if made:
            with contextlib.suppress(OSError):
                os.unlink(made)
        raise NotLocked([f"{path}: cannot be written ({error.strerror}); it is as it was"]) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
