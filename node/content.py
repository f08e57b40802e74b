"""A content directory (weights, drafter): which files belong to it, what it lacks, and whether its manifest holds.

Plain tuples and lists: the deploy sends this module to a node with its probe, before anything is installed there.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat

INDEX = "model.safetensors.index.json"
LONGEST_CHAIN = 40
"""Links that the kernel follows in one path."""

# path below the directory, size in bytes, modification time in nanoseconds, inode
Entry = tuple[str, int, int, int]


def manifest_name(directory: str) -> str:
    """The manifest's file name: the directory's path with "/" as "-", so that a person finds it, and what tells /a-b/c
    from /a/b-c."""
    return _plain_name(directory) + ".json"


def _plain_name(directory: str) -> str:
    below = directory.strip("/")
    # A file name may have 255 bytes, endings included.
    return f"{below.replace('/', '-')[-200:]}-{hashlib.sha256(f'/{below}'.encode()).hexdigest()[:8]}"


def listing(directory: str) -> tuple[list[Entry], list[str]]:
    """The directory's files, sorted, and the links that lead out of it. Raises OSError.

    Names that begin with a dot are left out: downloaders keep their own records there. A link is followed when it
    stays inside on its whole way: only the directory is mounted into the container, under another path, and only it is
    what an rsync daemon sees. An absolute link dangles there, as does one that leaves and comes back.
    """
    root = os.path.realpath(directory)
    entries: list[Entry] = []
    outside: list[str] = []
    for current, directories, files in os.walk(root, onerror=_raise):
        directories[:] = sorted(name for name in directories if not name.startswith("."))
        for name in sorted(files) + [name for name in directories if os.path.islink(os.path.join(current, name))]:
            if name.startswith("."):
                continue
            path = os.path.join(current, name)
            below = os.path.relpath(path, root)
            if os.path.islink(path) and not _stays_inside(below, root):
                outside.append(below)
                continue
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode):
                entries.append((below, status.st_size, status.st_mtime_ns, status.st_ino))
    return sorted(entries), sorted(outside)


def _stays_inside(below: str, root: str) -> bool:
    """Whether a path can be followed without an absolute link, and without ever leaving the root."""
    steps = below.split("/")
    here: list[str] = []
    links = 0
    while steps:
        step = steps.pop(0)
        if step == "..":
            if not here:
                return False
            here.pop()
        elif step not in ("", "."):
            place = os.path.join(root, *here, step)
            if not os.path.islink(place):
                here.append(step)
                continue
            target = os.readlink(place)
            links += 1
            if os.path.isabs(target) or links > LONGEST_CHAIN:
                return False
            steps = target.split("/") + steps
    return True


def missing(directory: str, entries: list[Entry]) -> list[str]:
    """What a model directory lacks, in words: config.json, or a shard that its index names. Empty: it is complete."""
    sizes = {entry[0]: entry[1] for entry in entries}
    lacks = [] if "config.json" in sizes else ["config.json"]
    if INDEX not in sizes:
        if not any(path.endswith(".safetensors") for path in sizes):
            lacks.append("*.safetensors")
        return lacks
    try:
        with open(os.path.join(directory, INDEX), encoding="utf-8") as stream:
            index = json.load(stream)
        shards = sorted(set(index["weight_map"].values()))
        total = int((index.get("metadata") or {}).get("total_size", 0))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [*lacks, f"{INDEX} (unreadable: {error})"]
    lacks += [shard for shard in shards if shard not in sizes]
    held = sum(sizes[shard] for shard in shards if shard in sizes)
    if not lacks and held < total:
        lacks.append(f"{total - held} of {total} bytes of its shards")
    return lacks


def read_manifest(path: str, directory: str) -> dict[str, object] | None:
    """The manifest of this directory, or None when there is none that can be used."""
    try:
        with open(path, encoding="utf-8") as stream:
            data = json.load(stream)
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict) or data.get("directory") != directory:
        return None
    if not isinstance(data.get("identity"), str) or not isinstance(data.get("files"), list):
        return None
    return data


def holds(manifest: dict[str, object], entries: list[Entry]) -> bool:
    """Whether the files are those of the manifest, by size, modification time and inode: metadata only."""
    return manifest.get("stamps") == stamps(entries)


def stamps(entries: list[Entry]) -> list[list[object]]:
    """What is compared at every run, as it stands in the manifest."""
    return [list(entry) for entry in entries]


def marker_name(directory: str) -> str:
    """The file that stands beside the manifest while a copy into the directory is unfinished; it holds the identity."""
    return _plain_name(directory) + ".copying"


def describe(directory: str, state: str) -> dict[str, object]:
    """What a deploy needs to know of a content directory, as JSON; `state` is where manifests are. Raises OSError."""
    manifest = os.path.join(state, manifest_name(directory))
    copying = _text(os.path.join(state, marker_name(directory)))
    if not os.path.isdir(directory):
        return {"present": False, "files": [], "outside": [], "missing": [], "identity": None, "copying": copying}
    entries, outside = listing(directory)
    kept = read_manifest(manifest, directory)
    valid = kept is not None and copying is None and holds(kept, entries)
    return {
        "present": bool(entries),
        "files": kept["files"] if valid and kept else [[entry[0], entry[1], None] for entry in entries],
        "outside": outside,
        "missing": missing(directory, entries) if entries else [],
        "identity": kept["identity"] if valid and kept else None,
        "copying": copying,
    }


def _text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read().strip()
    except FileNotFoundError:
        return None


def _raise(error: OSError) -> None:
    raise error
