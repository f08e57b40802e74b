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
PARTS = ".sparkpair"
"""Directory for files on their way, below the one that they are for: on the same disk, and out of every listing."""
SMALL_BYTES = 1 << 20
"""Up to this size a look reads a file that was not hashed yet: what an operator put beside the weights, such as a chat
template, is then known by its bytes at once."""

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
    stays inside on its whole way: only the directory is mounted into the container, under another path. An absolute
    link dangles there, as does one that leaves and comes back.
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


def verified_name(directory: str) -> str:
    """The file beside the manifest that holds the digests of single files, as each was proven."""
    return _plain_name(directory) + ".verified"


def damaged_name(directory: str) -> str:
    """The file beside the manifest that names the files in which a deep check found other bytes."""
    return _plain_name(directory) + ".damaged"


def read_verified(path: str, directory: str) -> dict[str, tuple[int, int, int, str]]:
    """{path below the directory: (size, modification time in nanoseconds, inode, sha256)}; a damaged file counts as
    none: what it held is hashed again."""
    try:
        with open(path, encoding="utf-8") as stream:
            data = json.load(stream)
        if data["directory"] != directory:
            return {}
        return {str(name): (int(row[0]), int(row[1]), int(row[2]), str(row[3])) for name, row in data["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return {}


def read_damaged(path: str) -> list[str]:
    """The files that a deep check found damaged. A list that cannot be read is told as a file of its own name."""
    try:
        with open(path, encoding="utf-8") as stream:
            return sorted(str(name) for name in json.load(stream)["files"])
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError):
        return [f"(unreadable: {path})"]


def digests(directory: str, state: str, entries: list[Entry]) -> dict[str, str]:
    """sha256 of the files whose bytes were proven and that, by size, time and inode, are still those. Files that a
    deep check found damaged are not among them."""
    known = read_verified(os.path.join(state, verified_name(directory)), directory)
    kept = read_manifest(os.path.join(state, manifest_name(directory)), directory)
    if kept is not None:
        stamped = {tuple(row) for row in _lists(kept.get("stamps"))}
        rows = {str(row[0]): str(row[2]) for row in _lists(kept["files"])}
        for entry in entries:
            if entry in stamped and entry[0] in rows:
                known.setdefault(entry[0], (*entry[1:], rows[entry[0]]))
    damaged = set(read_damaged(os.path.join(state, damaged_name(directory))))
    return {
        entry[0]: known[entry[0]][3]
        for entry in entries
        if entry[0] in known and known[entry[0]][:3] == entry[1:] and entry[0] not in damaged
    }


def _lists(value: object) -> list[list[object]]:
    return [row for row in value if isinstance(row, list) and len(row) >= 3] if isinstance(value, list) else []


def describe(directory: str, state: str) -> dict[str, object]:
    """What a deploy needs to know of a content directory, as JSON; `state` is where manifests are. Raises OSError."""
    manifest = os.path.join(state, manifest_name(directory))
    copying = _text(os.path.join(state, marker_name(directory)))
    if not os.path.isdir(directory):
        return {
            "present": False, "files": [], "outside": [], "missing": [], "identity": None, "copying": copying,
            "damaged": [], "parts": 0,
        }  # fmt: skip
    entries, outside = listing(directory)
    damaged = read_damaged(os.path.join(state, damaged_name(directory)))
    kept = read_manifest(manifest, directory)
    valid = kept is not None and copying is None and not damaged and holds(kept, entries)
    known = digests(directory, state, entries)
    for entry in entries:
        if entry[0] not in known and entry[0] not in damaged and entry[1] <= SMALL_BYTES:
            known[entry[0]] = _digest(os.path.join(directory, entry[0]))
    return {
        "present": bool(entries),
        "files": kept["files"] if valid and kept else [[entry[0], entry[1], known.get(entry[0])] for entry in entries],
        "outside": outside,
        "missing": missing(directory, entries) if entries else [],
        "identity": kept["identity"] if valid and kept else None,
        "copying": copying,
        "damaged": damaged,
        "parts": _parts(os.path.join(directory, PARTS)),
    }


def _digest(path: str) -> str:
    with open(path, "rb") as stream:
        return hashlib.sha256(stream.read()).hexdigest()


def _parts(directory: str) -> int:
    """Bytes of files on their way that are here already, as the disk counts them."""
    try:
        with os.scandir(directory) as found:
            return sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in found)
    except FileNotFoundError:
        return 0


def _text(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read().strip()
    except FileNotFoundError:
        return None


def _raise(error: OSError) -> None:
    raise error
