"""Makes a bundle: one directory with image, weights and drafter, from which a pair without internet converges.

python bundle.py [--platform linux/arm64] [--data knob=value] DIRECTORY [inventory.py]
python bundle.py --check DIRECTORY

Run it on a Linux machine with internet, where the lock file is. What it was stopped at, it goes on with; what is there
already is not read again. With --check every byte is read and compared with SHA256SUMS. Reaches no node.
Exit 0: made, or all is well; 1: refused, or something is damaged.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import huggingface_hub

from facts import hub, published
from lock import NotLocked, settings_of
from node import pages, progress, wire
from node.blobs import Store
from node.download import Process, Start
from node.errand import Errand, Hub, Set
from node.oci import OciError
from node.relay import Relay, Way
from node.stage import Stage, StageError
from node.verified import Verified
from spec import bundle, rules
from spec.bundle import NotBundled, Parts
from spec.cluster import Settings
from spec.lock import FileSet, Lock, LockError, parse

ROOT = Path(__file__).resolve().parent
DONE, REFUSED, INTERRUPTED = 0, 1, 130
STATE = ".sparkpair"
"""Inside the bundle: which files were proven. Not part of it."""
LAYERS_AT_ONCE = 3
LOOK_SECONDS = 0.5
SPARE_BYTES = 64 * 2**20
"""For all that is no payload."""
FETCH = (
    sys.executable, "-IB", "-c",
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from node.main import main; sys.exit(main(['fetch']))",
)  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Make a bundle, or look at one."""
    options = _parser().parse_args(argv)
    directory = options.directory.absolute()
    try:
        if options.check:
            return check(directory, say)
        return make(directory, options)
    except (NotBundled, NotLocked) as error:
        print("\n".join(error.lines), file=sys.stderr)
    except OSError as error:
        print(f"{error.filename or directory}: {error.strerror or error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("\nInterrupted. What is there stays: the same command goes on.", file=sys.stderr)
        # Threads that wait for a network would be waited for.
        sys.stderr.flush()
        os._exit(INTERRUPTED)
    return REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python bundle.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="read every byte and compare with SHA256SUMS")
    parser.add_argument("--platform", default=bundle.PLATFORM, help=f"of the image; {bundle.PLATFORM} is a Spark's")
    parser.add_argument("--data", action="append", default=[], metavar="KNOB=VALUE", help="as pyinfra takes it")
    parser.add_argument("directory", type=Path, help="made if it is not there")
    parser.add_argument("inventory", nargs="?", default="inventory.py", help="inventory.py, unless another is named")
    return parser


def start(request: dict[str, Any], owner: tuple[int, int], home: str) -> Process:
    """The download by this environment's own huggingface_hub."""
    return Process(request, owner, home, FETCH)


def say(text: str) -> None:
    """One line, seen at once. What a staging unit says of itself is true here of this command."""
    print(text.replace("run the deploy again", "run the same command again"), flush=True)


def make(directory: Path, options: argparse.Namespace) -> int:
    """Bring everything that the lock names. Raises NotBundled, NotLocked, OSError."""
    if sys.platform != "linux":
        raise NotBundled(f"a bundle is made on Linux, and this is {sys.platform}: a Spark with internet will do")
    settings = settings_of(options.inventory, options.data)
    name = settings.knobs.lock_file
    text = lock_text(name)
    lock = of_settings(settings, text)
    parts = bundle.parts(lock, options.platform, settings.knobs.accepted_licences)
    far = Hub(settings.knobs.hub_endpoint.rstrip("/"), str(Path(huggingface_hub.__file__).parent.parent))
    for line in fill(directory, text, parts, far, float(settings.knobs.download_stall_seconds)):
        print(line)
    return DONE


def fill(
    directory: Path, lock: str, parts: Parts, far: Hub, stall_seconds: float, start: Start = start
) -> Sequence[str]:  # fmt: skip
    """Bring what is not there; what to tell at the end. Raises NotBundled, OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    # Whoever finds the directory before it is whole sees that it is not.
    (directory / bundle.SUMS).unlink(missing_ok=True)
    try:
        registry = Relay([Way("the registry", published.client(parts.image.reference))])
        store = Store(directory / bundle.BLOBS, registry)
        sizes = image_sizes(directory, parts, store)
        refuse_space(directory, parts, sizes)
        wire.write_atomic(directory / bundle.LOCK, lock, 0o644)
        count = len(sizes) + sum(len(files.files) for files in parts.sets.values())
        size = progress.amount(sum(sizes.values()) + sum(files.size for files in parts.sets.values()))
        wire.write_atomic(directory / bundle.README, bundle.readme(parts, count, size), 0o644)
        bring_image(directory, sizes, store, say)
        write_layout(directory, parts, store)
    except OciError as error:
        raise NotBundled(f"image: {error}") from None
    bring_sets(directory, parts, far, stall_seconds, start)
    write_sums(directory, parts, sizes)
    return bundle.result(parts, str(directory), count, size)


def lock_text(name: str) -> str:
    """The lock file. Raises NotBundled."""
    try:
        return Path(name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotBundled(f"{name} is not there: a bundle is made from the lock file; make lock writes it") from None
    except UnicodeDecodeError:
        raise NotBundled(f"{name} is no text; make lock writes it anew") from None


def of_settings(settings: Settings, text: str) -> Lock:
    """The lock of these settings: no pair would take a bundle of another one. Raises NotBundled with every fault."""
    try:
        lock = parse(text, settings.knobs.lock_file)
    except LockError as error:
        raise NotBundled(*error.lines) from None
    wrong = rules.refusals(settings.model_copy(update={"lock": lock}))
    if wrong:
        raise NotBundled(*wrong)
    return lock


# The image


def image_sizes(directory: Path, parts: Parts, store: Store) -> dict[str, int]:
    """Every blob of the image with its size in bytes: index and manifest, which are fetched for it, configuration and
    layers. A blob of another size that lies there is removed. Raises OciError."""
    digests = dict.fromkeys((parts.image.digest, parts.manifest.digest))
    manifests = {digest: store.manifest(digest) for digest in digests}
    sizes = {digest: len(found.body) for digest, found in manifests.items()}
    try:
        data = json.loads(manifests[parts.manifest.digest].body)
        rows = {str(item["digest"]): int(item["size"]) for item in (data["config"], *data["layers"])}
    except (ValueError, KeyError, TypeError):
        raise OciError(f"{parts.image.name}: its manifest cannot be read") from None
    sizes.update(rows)
    blobs = directory / bundle.BLOBS
    for digest, size in sizes.items():
        path = directory / bundle.blob(digest)
        if path.exists() and path.stat().st_size != size:
            path.unlink()
    wanted = {Path(bundle.blob(digest)).name for digest in sizes}
    for path in sorted(blobs.iterdir()):
        # Of an earlier lock.
        if path.name.removesuffix(".part") not in wanted:
            path.unlink()
    return sizes


def bring_image(directory: Path, sizes: Mapping[str, int], store: Store, say: Callable[[str], None]) -> None:
    """Fetch the blobs that are not there, several at a time; each is put into place when its digest is proven. Raises
    OciError."""
    tasks: queue.SimpleQueue[str] = queue.SimpleQueue()
    lacking = [digest for digest in sizes if not (directory / bundle.blob(digest)).exists()]
    for digest in lacking:
        tasks.put(digest)
    total, meter = sum(sizes.values()), progress.Meter()
    moved = _Counter(total - sum(sizes[digest] for digest in lacking))
    before, failures = moved.count, list[OciError]()

    def work() -> None:
        while not failures:
            try:
                digest = tasks.get_nowait()
            except queue.Empty:
                return
            try:
                for data in store.read(digest, sizes[digest]):
                    moved.add(len(data))
            except OciError as error:
                failures.append(error)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(LAYERS_AT_ONCE)]
    for worker in workers:
        worker.start()
    said = time.monotonic()
    while any(worker.is_alive() for worker in workers):
        for worker in workers:
            worker.join(LOOK_SECONDS / LAYERS_AT_ONCE)
        if time.monotonic() - said >= progress.PROGRESS_SECONDS:
            said = time.monotonic()
            say(progress.line("image", moved.count, total, meter.rate(moved.count - before), 0.0, ()))
    if failures:
        raise failures[0]
    say(f"image: {len(sizes)} blobs, {progress.amount(total)}, are in {directory / bundle.BLOBS}")


class _Counter:
    """Bytes, counted by several threads."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self.count += count


def write_layout(directory: Path, parts: Parts, store: Store) -> None:
    """What makes an OCI layout of the blobs. Raises OciError."""
    digests = dict.fromkeys((parts.image.digest, parts.manifest.digest))
    manifests = {digest: store.manifest(digest) for digest in digests}
    kinds = {digest: (found.media_type, len(found.body)) for digest, found in manifests.items()}
    wire.write_atomic(directory / "image/index.json", bundle.index(parts, kinds), 0o644)
    wire.write_atomic(directory / "image/oci-layout", bundle.IMAGE_LAYOUT, 0o644)


# Weights and drafter


def bring_sets(directory: Path, parts: Parts, far: Hub, stall_seconds: float, start: Start) -> None:
    """Download the files that are not there, as a node does. Raises NotBundled."""
    token = _token()
    for name, files in parts.sets.items():
        place = directory / name
        notice = place / bundle.NOTICE
        if lacking(directory, name, files):
            # The directory holds what the lock names, and nothing else, while it is filled.
            notice.unlink(missing_ok=True)
            try:
                stage = Stage(
                    _errand(place, name, files, far, stall_seconds), (os.getuid(), os.getgid()), token, say,
                    state=directory / STATE, start=start,
                )  # fmt: skip
                if not stage.run():
                    raise NotBundled(f"{name}: not all of it is there; what is there stays")
            except StageError as error:
                raise NotBundled(f"{name}: {error}") from None
        else:
            say(f"{name}: {len(files.files)} files, {progress.amount(files.size)}, are there")
        if bundle.needs_notice(files):
            wire.write_atomic(notice, bundle.notice(name, files), 0o644)


def _errand(place: Path, name: str, files: FileSet, far: Hub, stall_seconds: float) -> Errand:
    rows = tuple((file.path, file.size, file.sha256) for file in files.files)
    wanted = Set(
        name=name, directory=str(place), identity=files.identity, files=rows,
        hub=((files.repository, files.revision), *((one.repository, one.revision) for one in files.mirrors)),
        fetch=tuple(file.path for file in files.files),
    )  # fmt: skip
    return Errand(owner="", rate=0, stall_seconds=stall_seconds, hub=far, peers=(), sets=(wanted,))


def _token() -> str | None:
    try:
        return hub.token()
    except hub.HubError as error:
        raise NotBundled(str(error)) from None


def lacking(directory: Path, name: str, files: FileSet) -> int:
    """Bytes of a set that are not there proven; parts of files that are on their way count as there."""
    verified = Verified(str(directory / name), directory / STATE)
    parts = directory / name / ".sparkpair"
    missing = 0
    for file in files.files:
        if verified.sha256(file.path) == file.sha256:
            continue
        part = parts / f"{file.sha256[:16]}.part"
        missing += max(file.size - (part.stat().st_size if part.exists() else 0), 1)
    return missing


# The disk, and the sums


def refuse_space(directory: Path, parts: Parts, sizes: Mapping[str, int]) -> None:
    """Raise NotBundled if the disk cannot take what is still to come."""
    needed = sum(_missing(directory / bundle.blob(digest), size) for digest, size in sizes.items())
    needed += sum(lacking(directory, name, files) for name, files in parts.sets.items())
    free = shutil.disk_usage(directory).free
    if needed + SPARE_BYTES > free:
        raise NotBundled(
            f"{directory}: {progress.amount(free)} free, and {progress.amount(needed)} are still to come",
            "free some of it, or name a directory on another disk",
        )


def _missing(blob: Path, size: int) -> int:
    """Bytes of a blob that are not there; its part counts."""
    part = Path(f"{blob}.part")
    return 0 if blob.exists() else size - (min(part.stat().st_size, size) if part.exists() else 0)


def write_sums(directory: Path, parts: Parts, sizes: Mapping[str, int]) -> None:
    """SHA256SUMS: the lock's digests, which every file was compared with, and those of the few texts."""
    rows = {**bundle.locked_sums(parts), **{bundle.blob(digest): digest.partition(":")[2] for digest in sizes}}
    texts = [bundle.README, bundle.LOCK, "image/index.json", "image/oci-layout"]
    texts += [f"{name}/{bundle.NOTICE}" for name, files in parts.sets.items() if bundle.needs_notice(files)]
    rows.update({path: pages.sha256(str(directory / path)) for path in texts})
    wire.write_atomic(directory / bundle.SUMS, bundle.sums(rows), 0o644)


def check(directory: Path, say: Callable[[str], None]) -> int:
    """Read every byte of a bundle. Raises NotBundled, OSError."""
    try:
        rows = bundle.read_sums((directory / bundle.SUMS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotBundled(f"{directory} has no {bundle.SUMS}: it is no bundle, or one that is not finished") from None
    except ValueError as error:
        raise NotBundled(f"{directory / bundle.SUMS}: {error}; make the bundle again") from None
    wrong = [f"{path}: is not there" for path in rows if not (directory / path).is_file()]
    there = {path: (directory / path).stat().st_size for path in rows if (directory / path).is_file()}
    total, meter, read = sum(there.values()), progress.Meter(), _Counter(0)
    said = time.monotonic()

    def step(count: int) -> None:
        nonlocal said
        read.add(count)
        if time.monotonic() - said >= progress.PROGRESS_SECONDS:
            said = time.monotonic()
            say(progress.line("read", read.count, total, meter.rate(read.count), 0.0, ()))

    for path in there:
        try:
            found = pages.sha256(str(directory / path), step)
        except OSError as error:
            wrong.append(f"{path}: cannot be read ({error.strerror})")
            continue
        if found != rows[path]:
            wrong.append(f"{path}: other bytes (sha256 {found[:12]}, wanted {rows[path][:12]})")
    if wrong:
        print(f"{directory}: {len(wrong)} of {len(rows)} files are not as {bundle.SUMS} says")
        print(*wrong, sep="\n")
        print("Fix: remove these files, and run make bundle again where there is internet: it brings them, no others")
        return REFUSED
    say(f"{directory}: {len(rows)} files, {progress.amount(total)}: every byte as {bundle.SUMS} says")
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
