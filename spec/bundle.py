"""What a bundle holds, from the lock alone: its parts, and every text in it. Pure.

A bundle is a directory from which a pair without internet converges: README.txt, the lock file, SHA256SUMS, image/ (an
OCI image layout), weights/ and drafter/.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spec.licences import MEANINGS, accepted_as, licence_refusal
from spec.lock import FileSet, Lock, LockedImage, LockedPlatform

SUMS = "SHA256SUMS"
LOCK = "sparkpair.lock"
README = "README.txt"
NOTICE = "FOR-OWN-USE-ONLY.txt"
BLOBS = "image/blobs/sha256"
PLATFORM = "linux/arm64"
"""Of a DGX Spark, and of the images for it."""
WITHOUT_DRAFTER = (
    'Without it the pair needs another drafter, or none: preset = "mtp-fallback", or speculative_method = ""'
)


@dataclass(frozen=True)
class Parts:
    """What goes into a bundle. `left_out` says, by name, why something that the lock names does not."""

    image: LockedImage
    platform: str
    sets: Mapping[str, FileSet]
    left_out: Mapping[str, str]

    @property
    def manifest(self) -> LockedPlatform:
        """The image for the bundle's platform."""
        return self.image.platforms[self.platform]


class NotBundled(Exception):
    """There is no bundle to be made of this lock. `lines` say why, and what to do."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def parts(lock: Lock, platform: str, accepted: str) -> Parts:
    """What a bundle of this lock holds. `accepted` is the value of knob accepted_licences. Raises NotBundled."""
    faults = []
    if lock.image is None:
        faults.append("the lock names no image; run make lock")
    elif platform not in lock.image.platforms:
        there = ", ".join(sorted(lock.image.platforms))
        faults.append(f"the image in the lock is for {there}, not for {platform}; name one of them with --platform")
    if lock.weights is None:
        faults.append("the lock names no weights: state weights_repository, then make lock")
    sets, left_out = {}, {}
    for name, files in lock.file_sets.items():
        refusal = licence_refusal(files, accepted)
        if refusal is None:
            sets[name] = files
        elif name == "weights":
            faults.append(f"weights: {refusal}")
        else:
            left_out[name] = refusal
    if faults or lock.image is None:
        raise NotBundled(*faults)
    return Parts(lock.image, platform, sets, left_out)


def needs_notice(files: FileSet) -> bool:
    """Whether the files may be had, and not be passed on."""
    return files.needs_acceptance


def notice(name: str, files: FileSet) -> str:
    """What stands beside files that are for whoever made the bundle."""
    licence = accepted_as(files)
    return (
        f"FOR OWN USE ONLY\n\n"
        f"The files in this directory are {files.repository} at {files.revision},\n"
        f"under {licence}: {MEANINGS.get(licence, 'read it at the repository')}.\n\n"
        f"Whoever made this bundle accepted that licence for themselves. Do not pass this directory on: everybody\n"
        f"downloads the {name} from its source, and accepts the licence there.\n"
    )


def readme(made: Parts, files: int, size: str) -> str:
    """For a person who finds the directory on a disk. `size` is a text."""
    rows = [
        f"  image/      {made.image.name}\n              {made.image.digest}, for {made.platform}",
        *(
            f"  {name + '/':<11} {held.repository} at {held.revision}\n"
            f"              licence: {held.licence or 'none stated'}"
            f"{'; FOR OWN USE ONLY, see ' + name + '/' + NOTICE if needs_notice(held) else ''}"
            for name, held in made.sets.items()
        ),
    ]
    absent = "".join(
        f"\nNot in it: the {name}. {' '.join(why.splitlines())}.\n{WITHOUT_DRAFTER}.\n"
        for name, why in made.left_out.items()
    )
    return (
        f"A bundle of Sparkpair: all that a pair of DGX Sparks without internet needs to serve,\n"
        f"{files} files, {size}. Made from {LOCK}, which is beside this file.\n\n" + "\n".join(rows) + f"\n{absent}\n"
        f"Use it: copy this directory whole to a disk of one of the nodes (one is enough), state where in that\n"
        f'node\'s entry of inventory.py, "bundle_path": "/path/to/it", and deploy with the same {LOCK}.\n'
        f"The other node gets everything over the rails. Afterwards the disk may be taken away.\n\n"
        f"Check it: in this directory, sha256sum --quiet -c {SUMS}\n"
    )


def blob(digest: str) -> str:
    """Where a blob of the image lies in the bundle."""
    return f"{BLOBS}/{digest.partition(':')[2]}"


def index(made: Parts, kinds: Mapping[str, tuple[str, int]]) -> str:
    """image/index.json: what the settings name, which nodes look for, and the manifest of the platform that is here,
    if that is another. `kinds` are media type and size in bytes by digest."""
    system, architecture, *variant = made.platform.split("/")
    platform = {"os": system, "architecture": architecture, **({"variant": variant[0]} if variant else {})}
    entries = []
    for digest, (media_type, size) in kinds.items():
        entry: dict[str, object] = {"mediaType": media_type, "digest": digest, "size": size}
        if digest == made.manifest.digest:
            entry["platform"] = platform
        if digest == made.image.digest:
            entry["annotations"] = {"org.opencontainers.image.ref.name": made.image.ref or made.image.digest}
        entries.append(entry)
    return json.dumps({"schemaVersion": 2, "manifests": entries}, indent=1) + "\n"


IMAGE_LAYOUT = '{"imageLayoutVersion": "1.0.0"}\n'
"""image/oci-layout."""


def sums(rows: Mapping[str, str]) -> str:
    """SHA256SUMS as sha256sum reads it, from sha256 by path below the bundle."""
    return "".join(f"{sha256}  {path}\n" for path, sha256 in sorted(rows.items()))


def read_sums(text: str) -> dict[str, str]:
    """The rows of a SHA256SUMS. Raises ValueError for what is none."""
    rows = {}
    for number, line in enumerate(text.splitlines(), 1):
        sha256, gap, path = line[:64], line[64:66], line[66:]
        if gap not in ("  ", " *") or len(sha256) != 64 or set(sha256) - set("0123456789abcdef") or not path:
            raise ValueError(f"line {number} is no line of sha256sum")
        if path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"line {number} names a file outside of the bundle")
        rows[path] = sha256
    return rows


def locked_sums(made: Parts) -> dict[str, str]:
    """What the lock says of the files of weights and drafter."""
    return {f"{name}/{file.path}": file.sha256 for name, held in made.sets.items() for file in held.files}


def result(made: Parts, directory: str, files: int, size: str) -> Sequence[str]:
    """What is told at the end."""
    lines = [f"{directory}: {files} files, {size}, as {LOCK} says; {SUMS} is written"]
    for name, why in made.left_out.items():
        first, *more = why.splitlines()
        lines += [f"Not in it: the {name}: {first}", *(f"  {line}" for line in more)]
        lines.append(f"  {WITHOUT_DRAFTER}")
    lines += [
        f"For own use only: {name} ({accepted_as(held)}); {name}/{NOTICE} says so"
        for name, held in made.sets.items()
        if needs_notice(held)
    ]
    return lines
