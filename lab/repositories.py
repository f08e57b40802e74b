"""Stand-in repositories for the hub double: content that is generated as it is read, commits, branches that move."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Protocol

from lab import model

MIB = 1 << 20
BLOCK = MIB
"""Bytes of a generated file that are made at once."""

LFS_FROM = 8 * MIB
"""Files of this size and more are Git LFS files, which the hub sends from its CDN; so are *.safetensors of any size."""

READER = "hf_reader_of_the_simulated_hub"
"""A token that every gated repository here lets in. It opens nothing anywhere else."""
STRANGER = "hf_stranger_of_the_simulated_hub"
"""A token of a user who has not asked for access to the gated repositories."""
TOKENS = {READER: "reader", STRANGER: "stranger"}


class Content(Protocol):
    """What a file holds."""

    @property
    def size(self) -> int: ...

    @property
    def key(self) -> str:
        """What tells this content from others without reading it."""

    def read(self, start: int, end: int) -> Iterator[bytes]:
        """Its bytes from `start` up to, and without, `end`."""


@dataclass(frozen=True)
class Stated:
    """Bytes that are held in memory."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def key(self) -> str:
        return f"stated {hashlib.sha256(self.data).hexdigest()}"

    def read(self, start: int, end: int) -> Iterator[bytes]:
        if start < end:
            yield self.data[start:end]


@dataclass(frozen=True)
class OnDisk:
    """A file of the machine that serves; it must not change while it is served."""

    path: Path

    @cached_property
    def size(self) -> int:
        return self.path.stat().st_size

    @property
    def key(self) -> str:
        status = self.path.stat()
        return f"on disk {self.path} {status.st_size} {status.st_mtime_ns}"

    def read(self, start: int, end: int) -> Iterator[bytes]:
        with self.path.open("rb") as stream:
            stream.seek(start)
            while start < end and (part := stream.read(min(BLOCK, end - start))):
                start += len(part)
                yield part


@cache
def _noise() -> bytes:
    """One block that does not compress, twice, so that any turn of it is one slice."""
    return random.Random(4).randbytes(BLOCK) * 2


@dataclass(frozen=True)
class Generated:
    """Pseudo-random bytes of a seed, made when they are read: a file of any size takes no disk.

    Each block is the same noise, turned by an amount of its own and begun with a digest of seed and place, so that
    no two blocks of any two files are alike and making one costs a copy.
    """

    seed: str
    size: int

    @property
    def key(self) -> str:
        return f"generated 1 {self.seed} {self.size}"

    def _block(self, number: int) -> bytes:
        mark = hashlib.sha256(f"{self.seed} {number}".encode()).digest()
        turn = int.from_bytes(mark[:4], "big") % BLOCK
        return mark + _noise()[turn : turn + BLOCK - len(mark)]

    def read(self, start: int, end: int) -> Iterator[bytes]:
        while start < end:
            number, inside = divmod(start, BLOCK)
            part = self._block(number)[inside : min(BLOCK, inside + end - start)]
            start += len(part)
            yield part


@dataclass(frozen=True)
class Joined:
    """One content after the other."""

    parts: tuple[Content, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def key(self) -> str:
        return "joined " + ", ".join(part.key for part in self.parts)

    def read(self, start: int, end: int) -> Iterator[bytes]:
        before = 0
        for part in self.parts:
            yield from part.read(max(0, start - before), min(part.size, end - before))
            before += part.size


def shard(seed: str, size: int) -> Content:
    """A safetensors file of exactly `size` bytes with one tensor, named by its seed, of generated values."""
    head = b""
    body = size
    for _ in range(3):  # the header names the body's size, whose digits may change the header's
        head = json.dumps({f"{seed}.weight": {"dtype": "U8", "shape": [body], "data_offsets": [0, body]}}).encode()
        head += b" " * (-len(head) % 8)
        body = size - 8 - len(head)
    return Joined((Stated(struct.pack("<Q", len(head)) + head), Generated(seed, body)))


class Digests:
    """The sha256 of contents, computed once; with a file, once for all runs."""

    def __init__(self, place: Path | None = None) -> None:
        self.place = place
        self._known: dict[str, str] = {}
        if place is not None and place.exists():
            self._known = json.loads(place.read_text())

    def of(self, content: Content) -> str:
        """The content's sha256 in hex."""
        known = self._known.get(content.key)
        if known is None:
            total = hashlib.sha256()
            for part in content.read(0, content.size):
                total.update(part)
            known = self._known[content.key] = total.hexdigest()
            if self.place is not None:
                self.place.parent.mkdir(parents=True, exist_ok=True)
                self.place.write_text(json.dumps(self._known, indent=1))
        return known


@dataclass(frozen=True)
class Commit:
    """The files of a repository at one point of its history."""

    identity: str
    files: Mapping[str, Content]


@dataclass
class Repository:
    """A model repository of the hub double."""

    name: str
    licence: str = "apache-2.0"
    gated: bool = False
    readers: frozenset[str] = frozenset({"reader"})
    """Users whom a gated or private repository lets in."""
    private: bool = False
    cas: str = ""
    """"": its files are not on xet. "silent", "failing": they are, and so is the store that would hold them."""
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, files: Mapping[str, Content], branch: str = "main", tag: str = "") -> str:
        """Add a commit that holds exactly these files, let the branch point to it, and tell its 40 hex digits."""
        text = json.dumps([self.name, len(self.commits), {path: files[path].key for path in sorted(files)}])
        identity = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        self.commits[identity] = Commit(identity, dict(sorted(files.items())))
        self.branches[branch] = identity
        if tag:
            self.tags[tag] = identity
        return identity

    def move(self, branch: str, revision: str) -> None:
        """Let a branch point to another commit. Raises KeyError when there is none."""
        found = self.find(revision)
        if found is None:
            raise KeyError(revision)
        self.branches[branch] = found.identity

    def find(self, revision: str) -> Commit | None:
        """The commit that a branch, a tag or (the first digits of) a commit names."""
        wanted = self.branches.get(revision) or self.tags.get(revision) or revision
        if wanted in self.commits:
            return self.commits[wanted]
        fitting = [name for name in self.commits if len(wanted) >= 7 and name.startswith(wanted)]
        return self.commits[fitting[0]] if len(fitting) == 1 else None


def is_lfs(path: str, content: Content) -> bool:
    """Whether the hub keeps this file in Git LFS."""
    return path.endswith(".safetensors") or content.size >= LFS_FROM


def of_directory(directory: Path) -> dict[str, Content]:
    """The files below a directory, read into memory."""
    return {
        str(path.relative_to(directory)): Stated(path.read_bytes())
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def model_files(
    seed: str, shard_mib: tuple[int, ...], extra: Mapping[str, Content] | None = None
) -> dict[str, Content]:
    """A model directory of generated shards with config, tokenizer and an index that fits the shards."""
    count = len(shard_mib)
    names = [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
    shards = {name: shard(f"{seed}-{name}", mib * MIB) for name, mib in zip(names, shard_mib, strict=True)}
    total = sum(json_tensor_bytes(content) for content in shards.values())
    index = {
        "metadata": {"total_size": total},
        "weight_map": {f"{seed}-{name}.weight": name for name in names},
    }
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "vocab_size": 512,
              "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 128}  # fmt: skip
    return {
        "README.md": text_file(f"# {seed}\n\nGenerated; it is no model.\n"),
        "config.json": json_file(config),
        "generation_config.json": json_file({"temperature": 0.0}),
        "tokenizer/vocabulary with a space.txt": text_file("\n".join(f"token {number}" for number in range(512))),
        "model.safetensors.index.json": json_file(index),
        **shards,
    }


def json_tensor_bytes(content: Content) -> int:
    """Bytes of the tensors of a shard: its size without the header."""
    length = struct.unpack("<Q", b"".join(content.read(0, 8)))[0]
    return content.size - 8 - int(length)


def text_file(text: str) -> Content:
    """A file of text."""
    return Stated(text.encode())


def json_file(data: object) -> Content:
    """A file of JSON."""
    return text_file(json.dumps(data, indent=1) + "\n")


BIG = (300, 280, 250, 220, 200, 180, 150, 130, 118, 110, 60, 50)
"""Sizes in MiB of the shards of lab/big: 2 GiB in all."""
MIDDLE = (30, 25, 20, 15, 10)
"""Sizes in MiB of the shards of lab/middle: 100 MiB in all."""


def of_the_lab() -> list[Repository]:
    """What the simulated far side offers; each has the tag "first" on its first commit."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "tiny"
        model.make(place)
        tiny = of_directory(place)
    notice = {"NOTICE.txt": text_file("The second commit.\n")}
    big, middle = model_files("big", BIG), model_files("middle", MIDDLE)
    newer = {**middle, "model-00005-of-00005.safetensors": shard("middle-newer", MIDDLE[-1] * MIB),
             "README.md": text_file("# middle\n\nThe second commit.\n")}  # fmt: skip
    made = [
        (Repository("lab/tiny"), [tiny, {**tiny, **notice}]),
        (Repository("mirror/tiny"), [tiny]),
        (Repository("lab/big", licence="mit"), [big]),
        (Repository("mirror/big", licence="mit"), [big]),
        (Repository("lab/middle", licence="mit"), [middle, newer]),
        (Repository("mirror/middle", licence="mit"), [middle]),
        (Repository("lab/gated", licence="mit", gated=True), [model_files("gated", (24, 8))]),
        (Repository("lab/drafter", licence="cc-by-nc-nd-4.0"), [model_files("drafter", (16,))]),
        (Repository("lab/xet-silent", licence="mit", cas="silent"), [model_files("xet", (16,))]),
        (Repository("lab/xet-failing", licence="mit", cas="failing"), [model_files("xet", (16,))]),
    ]
    for repository, commits in made:
        identities = [repository.commit(files) for files in commits]
        repository.tags["first"] = identities[0]
        repository.branches["main"] = identities[0]
        repository.branches["newest"] = identities[-1]
    return [repository for repository, _ in made]
