"""What deploy, keeper and agents agree on: the rank file, the engine hash, the message format."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node import secret

MAX_LINE = 4 * 1024 * 1024
"""Bytes in one message, bounded because a line is held in memory on a node that serves."""

LABEL_ENGINE = "sparkpair.engine"
LABEL_RANK = "sparkpair.rank"
LABEL_EPOCH = "sparkpair.epoch"
LABEL_GIDS = "sparkpair.gids"
"""Rows of GID tables as they were at the start, "rocep1s0f0/10.200.0.1=3" each: NCCL keeps them, should they move."""


class WireError(Exception):
    """A rank file, a message or a state file is not what it must be."""


@dataclass(frozen=True)
class GidIndex:
    """A value that moves with link flaps: the index of a RoCE v2 GID, looked up at every start."""

    hca: str
    address: str


@dataclass(frozen=True)
class Secret:
    """A value that stands in a file of root's alone on the node, read at every start and written nowhere else."""

    path: str


@dataclass(frozen=True)
class Mount:
    """The weights over NFS: systemd's unit that mounts them, SERVER:DIRECTORY, and the options. The unit's own text is
    what counts; that the rank's text names them makes it another launch when they change."""

    unit: str
    what: str
    options: str


@dataclass(frozen=True)
class RankSpec:
    """One rank's launch as the operator wants it: the parsed `/etc/sparkpair/wanted/rank.json`."""

    rank: int
    name: str
    image: str
    content: tuple[str, ...]
    container: tuple[tuple[str, ...], ...]
    mounts: tuple[tuple[str, str, str], ...]
    directories: tuple[str, ...]
    env: tuple[tuple[str, str | GidIndex | Secret], ...]
    command: tuple[tuple[str, ...], ...]
    mount: Mount | None = None
    """What must be mounted before the rank starts; None where it reads from the node's own disk."""

    @property
    def secrets(self) -> tuple[tuple[str, str], ...]:
        """The variables whose values are secrets, and the files that hold them."""
        return tuple((name, stated.path) for name, stated in self.env if isinstance(stated, Secret))


def parse_rank(text: str) -> RankSpec:
    """Read a rank file. Raises WireError naming the part that is wrong."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise WireError(f"rank file is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise WireError("rank file is not a JSON object")
    try:
        return RankSpec(
            rank=_typed(data, "rank", int),
            name=_typed(data, "name", str),
            image=_typed(data, "image", str),
            content=tuple(_strings(data, "content")),
            container=_groups(data, "container"),
            mounts=tuple(_mount(item) for item in _typed(data, "mounts", list)),
            directories=tuple(_strings(data, "directories")),
            env=tuple(_env(item) for item in _typed(data, "env", list)),
            command=_groups(data, "command"),
            mount=_nfs(data["mount"]) if "mount" in data else None,
        )
    except (TypeError, ValueError, KeyError) as error:
        raise WireError(f"rank file: {error}") from None


def docker_run(spec: RankSpec, engine: str, epoch: int, gid_index: Mapping[GidIndex, int]) -> list[str]:
    """The `docker run` of one rank. Ours are the three labels; the rest is the rank file, in its order. A secret is
    only named: the client takes its value from its own environment, which nobody but root can read."""
    labels = {LABEL_ENGINE: engine, LABEL_RANK: str(spec.rank), LABEL_EPOCH: str(epoch)}
    if gid_index:
        rows = sorted(f"{wanted.hca}/{wanted.address}={index}" for wanted, index in gid_index.items())
        labels[LABEL_GIDS] = ",".join(rows)
    argv = ["docker", "run", "-d", "--name", spec.name]
    argv += [word for group in spec.container for word in group]
    for label, value in labels.items():
        argv += ["--label", f"{label}={value}"]
    for source, target, mode in spec.mounts:
        argv += ["-v", f"{source}:{target}:{mode}" if mode else f"{source}:{target}"]
    for name, stated in spec.env:
        if isinstance(stated, Secret):
            argv += ["-e", name]
        else:
            argv += ["-e", f"{name}={gid_index[stated] if isinstance(stated, GidIndex) else stated}"]
    return [*argv, spec.image, *(word for group in spec.command for word in group)]


def engine_hash(ranks: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Identity of what the running ranks depend on: each rank's text, with the manifest identities of its content
    directories and then the identities of its secrets, in rank order. 64 hex digits."""
    canonical = json.dumps([[text, list(identities)] for text, identities in ranks], separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def manifest_identity(files: Sequence[tuple[str, int, str]]) -> str:
    """Identity of a content directory: sha256 over its sorted (path, size in bytes, sha256) rows."""
    canonical = json.dumps(sorted([list(row) for row in files]), separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def programs(package: Path) -> dict[str, bytes]:
    """The files that a node gets, by their path below /usr/local/lib/sparkpair, from a copy of this package."""
    files = {f"node/{path.name}": path.read_bytes() for path in sorted(package.glob("*.py"))}
    # In a checkout main.py lies beside the others, on a node one level up.
    inside = files.pop("node/main.py", None)
    files["main.py"] = inside if inside is not None else (package.parent / "main.py").read_bytes()
    return files


def programs_hash(files: Mapping[str, bytes]) -> str:
    """Which version of the programs: sha256 over names and contents."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode() + files[name])
    return digest.hexdigest()


def encode(message: Mapping[str, Any]) -> bytes:
    """One message as a line of JSON."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """The message in a line. Raises WireError for anything else."""
    try:
        message = json.loads(line)
    except ValueError as error:
        raise WireError(f"not a message: {line[:80]!r} ({error})") from None
    if not isinstance(message, dict):
        raise WireError(f"not a message: {line[:80]!r}")
    return message


def write_atomic(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace a file so that a power cut leaves the former or the new content, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(text)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make a rename in this directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_text(path: Path) -> str:
    """A text file of ours. Raises WireError for one that cannot be read, or is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise WireError(f"{path} is damaged: {error}") from None


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file; None if there is no such file. Raises WireError for a damaged one."""
    if not path.exists():
        return None
    text = read_text(path)
    try:
        data = json.loads(text)
    except ValueError as error:
        raise WireError(f"{path} is damaged: {error}") from None
    if not isinstance(data, dict):
        raise WireError(f"{path} is damaged: not a JSON object")
    return data


def _typed(data: Mapping[str, Any], key: str, kind: type) -> Any:
    value = data.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{key} is {value!r}, wanted {kind.__name__}")
    return value


def _strings(data: Mapping[str, Any], key: str) -> list[str]:
    values = _typed(data, key, list)
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{key} is {values!r}, wanted strings")
    return list(values)


def _groups(data: Mapping[str, Any], key: str) -> tuple[tuple[str, ...], ...]:
    groups = _typed(data, key, list)
    for group in groups:
        if not isinstance(group, list) or not all(isinstance(word, str) for word in group):
            raise ValueError(f"{key} has {group!r}, wanted a list of strings")
    return tuple(tuple(group) for group in groups)


def _mount(item: Any) -> tuple[str, str, str]:
    if not isinstance(item, list) or len(item) not in (2, 3) or not all(isinstance(part, str) for part in item):
        raise ValueError(f"mounts has {item!r}, wanted [source, target, mode]")
    return (item[0], item[1], item[2] if len(item) == 3 else "")


def _nfs(item: Any) -> Mount:
    names = ("unit", "what", "options")
    if not isinstance(item, dict) or set(item) != set(names) or not all(isinstance(item[name], str) for name in names):
        raise ValueError(f"mount is {item!r}, wanted unit, what and options")
    if not re.fullmatch(r"[A-Za-z0-9_-]+\.mount", item["unit"]):
        raise ValueError(f"mount has {item['unit']!r}, wanted a unit NAME.mount")
    return Mount(item["unit"], item["what"], item["options"])


def _env(item: Any) -> tuple[str, str | GidIndex | Secret]:
    if isinstance(item, list) and len(item) == 2 and isinstance(item[0], str):
        name, value = item
        if isinstance(value, str):
            return (name, value)
        if isinstance(value, dict) and set(value) == {"gid_index"}:
            wanted = value["gid_index"]
            return (name, GidIndex(hca=str(wanted["hca"]), address=str(wanted["address"])))
        if isinstance(value, dict) and set(value) == {"secret"}:
            return (name, _secret(name, value["secret"]))
    raise ValueError(f"env has {item!r}, wanted [name, value]")


def _secret(name: str, path: Any) -> Secret:
    # The name goes into the environment of the docker client, which reads some itself; the engine's own are enough.
    if not re.fullmatch("VLLM_[A-Z0-9_]+", name):
        raise ValueError(f"env has {name!r} for a secret, wanted a variable VLLM_...")
    if not isinstance(path, str) or not secret.is_place(path):
        raise ValueError(f"env has {path!r} for {name}, wanted a file in {secret.DIRECTORY}")
    return Secret(path)
