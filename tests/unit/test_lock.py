"""The lock file: what is taken, every fault at once, what moved; licences; and that a lock is of the settings."""

# Messages stand here in one piece.
# ruff: noqa: E501

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyinfra.api.exceptions import DeployError

from node.wire import manifest_identity
from spec import lock_changes
from spec.cluster import Settings
from spec.licences import acceptance_line, is_accepted, licence_refusal
from spec.load import load, read_file
from spec.lock import (
    FileSet,
    Lock,
    LockedFile,
    LockedImage,
    LockedLayer,
    LockedPlatform,
    LockError,
    Mirror,
    parse,
    path_fault,
    text,
)
from spec.stacks import STACKS
from tests.unit import pair

A, B, C = ("sha256:" + letter * 64 for letter in "abc")
ONE, TWO = "1" * 40, "2" * 40

IMAGE = LockedImage(
    name="ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark",
    ref="v2.3-tier1",
    digest=str(STACKS["vllm-exl3"].defaults["image"]).partition("@")[2],
    platforms={
        "linux/amd64": LockedPlatform(A, B, (LockedLayer(C, 7),)),
        "linux/arm64": LockedPlatform(B, C, (LockedLayer(A, 1 << 30), LockedLayer(C, 7))),
    },
)
WEIGHTS = FileSet(
    repository="brandonmusic/GLM-5.3-Flash-tr3-4bpw",
    ref="main",
    revision=ONE,
    licence="mit",
    gated=False,
    mirrors=(Mirror("Mia-AiLab/GLM-5.3-Flash-EXL3-TR3-4bpw", TWO),),
    files=(
        LockedFile("config.json", 1234, "a" * 64),
        LockedFile("model-00001-of-00001.safetensors", 5 << 30, "b" * 64),
        LockedFile("sub/é 数.txt", 0, "c" * 64),
    ),
)
DRAFTER = FileSet(
    repository="local-inference-lab/GLM-5.3-Flash-DFlash2-MXFP8",
    ref="62f758c0a0e19b9cb76fc098c911b8ed76daff5b",
    revision="62f758c0a0e19b9cb76fc098c911b8ed76daff5b",
    licence="cc-by-nc-nd-4.0",
    gated=True,
    mirrors=(),
    files=(LockedFile("config.json", 2, "d" * 64),),
)
LOCK = Lock(IMAGE, WEIGHTS, DRAFTER)

WRITTEN = f"""\
{{
 "format": 1,
 "image": {{
  "name": "ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark",
  "ref": "v2.3-tier1",
  "digest": "{IMAGE.digest}",
  "platforms": {{
   "linux/amd64": {{
    "digest": "{A}",
    "config": "{B}",
    "layers": [
     {{"digest": "{C}", "size": 7}}
    ]
   }},
   "linux/arm64": {{
    "digest": "{B}",
    "config": "{C}",
    "layers": [
     {{"digest": "{A}", "size": 1073741824}},
     {{"digest": "{C}", "size": 7}}
    ]
   }}
  }}
 }},
 "weights": {{
  "repository": "brandonmusic/GLM-5.3-Flash-tr3-4bpw",
  "ref": "main",
  "revision": "{ONE}",
  "licence": "mit",
  "gated": false,
  "identity": "{WEIGHTS.identity}",
  "size": 5368710354,
  "mirrors": [
   {{"repository": "Mia-AiLab/GLM-5.3-Flash-EXL3-TR3-4bpw", "revision": "{TWO}"}}
  ],
  "files": [
   {{"path": "config.json", "size": 1234, "sha256": "{"a" * 64}"}},
   {{"path": "model-00001-of-00001.safetensors", "size": 5368709120, "sha256": "{"b" * 64}"}},
   {{"path": "sub/\\u00e9 \\u6570.txt", "size": 0, "sha256": "{"c" * 64}"}}
  ]
 }},
 "drafter": {{
  "repository": "local-inference-lab/GLM-5.3-Flash-DFlash2-MXFP8",
  "ref": "62f758c0a0e19b9cb76fc098c911b8ed76daff5b",
  "revision": "62f758c0a0e19b9cb76fc098c911b8ed76daff5b",
  "licence": "cc-by-nc-nd-4.0",
  "gated": true,
  "identity": "{DRAFTER.identity}",
  "size": 2,
  "mirrors": [],
  "files": [
   {{"path": "config.json", "size": 2, "sha256": "{"d" * 64}"}}
  ]
 }}
}}
"""


def test_the_text_is_the_lock() -> None:
    """One file, mirror and layer per line, and read again it is the same."""
    assert text(LOCK) == WRITTEN
    assert parse(WRITTEN, "sparkpair.lock") == LOCK
    assert text(Lock(None, None, None)) == '{\n "format": 1,\n "image": null,\n "weights": null,\n "drafter": null\n}\n'
    assert parse(text(Lock(None, None, None)), "x") == Lock(None, None, None)


def test_a_set_is_known_by_its_files() -> None:
    """The identity is the one that a node computes of the directory."""
    rows = [
        ("config.json", 1234, "a" * 64),
        ("model-00001-of-00001.safetensors", 5 << 30, "b" * 64),
        ("sub/é 数.txt", 0, "c" * 64),
    ]
    assert WEIGHTS.identity == manifest_identity(rows)
    assert WEIGHTS.size == 5368710354
    assert LOCK.file_sets == {"weights": WEIGHTS, "drafter": DRAFTER}
    assert Lock(None, WEIGHTS, None).file_sets == {"weights": WEIGHTS}
    assert IMAGE.reference == STACKS["vllm-exl3"].defaults["image"]


def faults(body: str) -> list[str]:
    with pytest.raises(LockError) as refused:
        parse(body, "l")
    return list(refused.value.lines)


def changed(*steps: str | int, value: Any) -> str:
    """The written lock with one value in place of another."""
    data = json.loads(WRITTEN)
    place = data
    for step in steps[:-1]:
        place = place[step]
    place[steps[-1]] = value
    return json.dumps(data)


AGAIN = "l: run make lock, which writes it anew"


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("", "l:1: is not JSON (Expecting value); run make lock, which writes it anew"),
        (WRITTEN[:100], "l:5: is not JSON (Unterminated string starting at); run make lock, which writes it anew"),
        (WRITTEN.replace(' "weights"', '<<<<<<< HEAD\n "weights"'), "l:25: is not JSON (Expecting property name enclosed in double quotes); run make lock, which writes it anew"),
        ('{"format": 1, "format": 1}', 'l: "format" stands twice in one place; run make lock, which writes it anew'),
        ("[" * 200_000, "l: is nested too deeply for a lock; run make lock, which writes it anew"),
        ("1" * 5000, "l: is not JSON (a number too long); run make lock, which writes it anew"),
        ('{"format": 2}', "l: format = 2: this release reads format 1; take the release that wrote it, or run make lock"),
        ('{"format": true}', "l: format = True: this release reads format 1; take the release that wrote it, or run make lock"),
    ],
    ids=["empty", "cut off", "unmerged", "twice", "deep", "long number", "newer", "no number"],
)  # fmt: skip
def test_what_is_no_lock_at_all(body: str, line: str) -> None:
    said = [one.replace("l: is not JSON (a number", "l: is not JSON (a number") for one in faults(body)]
    assert said == [line]


@pytest.mark.parametrize(
    ("steps", "value", "line"),
    [
        (("image",), 7, "l: image: must be an object with name, ref, digest, platforms, not 7"),
        (("image", "name"), "UPPER/x", 'l: image: name = "UPPER/x": must be a registry and a repository, without tag and digest'),
        (("image", "name"), "ghcr.io/x:v1", 'l: image: name = "ghcr.io/x:v1": must be a registry and a repository, without tag and digest'),
        (("image", "ref"), "a b", 'l: image: ref = "a b": must be a tag, or ""'),
        (("image", "digest"), "sha256:" + "A" * 64, f'l: image: digest = "sha256:{"A" * 64}": must be sha256: and 64 hex digits'),
        (("image", "platforms"), {}, "l: image: platforms = {}: must be an object with one entry per platform"),
        (("image", "platforms", "linux/arm64", "layers", 1, "size"), -1, 'l: image: "linux/arm64": layer 1: size = -1: must be a number of bytes, 0 or more'),
        (("image", "platforms", "linux/arm64", "config"), None, 'l: image: "linux/arm64": config = None: must be sha256: and 64 hex digits'),
        (("weights", "repository"), "nobody", 'l: weights: repository = "nobody": must be a repository such as owner/name'),
        (("weights", "ref"), "a..b", 'l: weights: ref = "a..b": must be a branch, a tag or a commit of 40 hex digits'),
        (("weights", "revision"), "main", 'l: weights: revision = "main": must be a commit of 40 hex digits'),
        (("weights", "licence"), "A licence", 'l: weights: licence = "A licence": must be a licence as the hub names it, or ""'),
        (("weights", "gated"), 0, "l: weights: gated = 0: must be true or false"),
        (("weights", "size"), 1, "l: weights: size = 1: its files come to 5368710354 bytes; it was changed by hand"),
        (("weights", "identity"), "0" * 64, f'l: weights: identity = "{"0" * 64}": its files have another; it was changed by hand'),
        (("weights", "files", 0, "sha256"), "1" * 64, f'l: weights: identity = "{WEIGHTS.identity}": its files have another; it was changed by hand'),
        (("weights", "mirrors", 0, "revision"), "x", 'l: weights: mirror 0: revision = "x": must be a commit of 40 hex digits'),
        (("weights", "mirrors"), {}, "l: weights: mirrors: must be a list, not {}"),
        (("weights", "more"), 1, 'l: weights: "more" has no place there; there are repository, ref, revision, licence, gated, identity, size, mirrors, files'),
        (("weights", "files"), [], "l: weights: files: there is none; a repository has at least one"),
        (("weights", "files", 0, "size"), 1.5, "l: weights: config.json: size = 1.5: must be a number of bytes, 0 or more"),
        (("weights", "files", 0, "size"), True, "l: weights: config.json: size = True: must be a number of bytes, 0 or more"),
        (("weights", "files", 0, "size"), 1 << 61, f"l: weights: config.json: size = {1 << 61}: must be a number of bytes, 0 or more"),
        (("weights", "files", 0, "sha256"), "a" * 63, f'l: weights: config.json: sha256 = "{"a" * 63}": must be 64 hex digits'),
        (("weights", "files", 1, "path"), "config.json", "l: weights: config.json: is there twice"),
        (("weights", "files", 1, "path"), "config.json/x", "l: weights: config.json/x: config.json is a file, and cannot be its directory as well"),
        (("weights", "files", 0, "path"), "../x", 'l: weights: file 0: path = "../x": must be a relative path such as model.safetensors, below its directory and without empty, . or .. parts'),
        (("drafter", "files", 0), "config.json", 'l: drafter: file 0: must be an object with path, size, sha256, not "config.json"'),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else None,
)  # fmt: skip
def test_a_fault_has_its_place(steps: tuple[str | int, ...], value: Any, line: str) -> None:
    """Each value that is wrong is said with where it stands and what it must be."""
    said = faults(changed(*steps, value=value))
    assert line in said
    assert said[-1] == AGAIN
    # What a broken row stands for is not said a second time as what it lacks.
    assert all(one == line or "is missing" in one for one in said[:-1])


def test_every_fault_is_said_at_once() -> None:
    data = json.loads(WRITTEN)
    data["image"]["digest"] = "latest"
    data["weights"]["files"][0]["path"] = ".cache/x"
    data["weights"]["files"][1]["size"] = -5
    del data["drafter"]["revision"]
    assert faults(json.dumps(data)) == [
        'l: image: digest = "latest": must be sha256: and 64 hex digits',
        'l: weights: file 0: path = ".cache/x": must have no part that begins with a dot',
        "l: weights: model-00001-of-00001.safetensors: size = -5: must be a number of bytes, 0 or more",
        "l: drafter: revision is missing",
        AGAIN,
    ]


@pytest.mark.parametrize("path", ["a", "a/b/c.json", "a b", "é", "a" * 200, "-x", "a..b", "~x", "a:b%?#"])
def test_a_path_below_its_directory_is_taken(path: str) -> None:
    assert path_fault(path) is None


WHERE = "must be a relative path such as model.safetensors"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("", WHERE),
        (7, WHERE),
        *((path, f"{WHERE}, below its directory and without empty, . or .. parts") for path in ("/etc/passwd", "..", "a/../b", "a//b", "a/", "./a")),
        *((path, "must have no part that begins with a dot") for path in (".gitattributes", "a/.b", "...")),
        *((path, "must not contain control characters, line breaks or \\") for path in ("a\nb", "a\x00", "a\\b", "a\x7f", "\ud800")),
        *((path, "must have at most 200 bytes in each part, and 1024 in all") for path in ("a" * 201, "é" * 101, "/".join(["a" * 99] * 11))),
    ],
)  # fmt: skip
def test_a_path_that_leads_elsewhere_is_refused(path: object, why: str) -> None:
    assert path_fault(path) == why


NAMES = st.text("abz0-é ", min_size=1, max_size=6).filter(lambda name: not name.startswith("."))
FILES = st.dictionaries(
    st.lists(NAMES, min_size=1, max_size=3).map("/".join), st.tuples(st.integers(0, 1 << 50), st.binary(min_size=32, max_size=32)), min_size=1, max_size=6
).filter(lambda files: not any(other.startswith(f"{one}/") for one in files for other in files))  # fmt: skip


@given(FILES)
def test_what_is_written_is_read(files: dict[str, tuple[int, bytes]]) -> None:
    """Whatever paths, sizes and digests; and nothing has moved then."""
    rows = tuple(LockedFile(path, size, digest.hex()) for path, (size, digest) in sorted(files.items()))
    lock = Lock(None, replace(WEIGHTS, files=rows), None)
    assert parse(text(lock), "x") == lock
    assert lock_changes.compare(lock, parse(text(lock), "x")) == ()


@given(st.text(max_size=40) | st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["format", "image", "weights", "drafter", "files", "path", "platforms"]), inner, max_size=4), max_leaves=12).map(json.dumps))  # fmt: skip
def test_whatever_is_no_lock_is_refused_in_words(body: str) -> None:
    """By LockError alone, and every line on one line with the file's name."""
    try:
        parse(body, "l")
    except LockError as refused:
        assert refused.lines
        assert all(line.startswith("l:") and "\n" not in line and len(line) < 300 for line in refused.lines)


# What moved


def said(old: Lock | None, new: Lock) -> list[str]:
    return [
        line
        for moved in lock_changes.compare(old, new)
        for line in (f"{moved.what}: {moved.text}", *(f"  {detail}" for detail in moved.details))
    ]


def test_a_first_lock_is_new() -> None:
    assert said(None, LOCK) == [
        "image: ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark@sha256:44b2dbafe8d8: new",
        "  linux/amd64: 1 layer, 7 bytes",
        "  linux/arm64: 2 layers, 1.0 GiB",
        "weights: brandonmusic/GLM-5.3-Flash-tr3-4bpw main at 111111111111: new, 3 files, 5.0 GiB",
        "drafter: local-inference-lab/GLM-5.3-Flash-DFlash2-MXFP8 at 62f758c0a0e1: new, 1 file, 2 bytes",
    ]
    assert said(LOCK, LOCK) == []
    assert said(LOCK, Lock(None, None, None)) == [
        "image: no longer locked; it was ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark@sha256:44b2dbafe8d8",
        "weights: no longer locked; it was brandonmusic/GLM-5.3-Flash-tr3-4bpw main at 111111111111",
        "drafter: no longer locked; it was local-inference-lab/GLM-5.3-Flash-DFlash2-MXFP8 at 62f758c0a0e1",
    ]


def test_a_moved_branch_is_said_file_by_file() -> None:
    config, shard, _ = WEIGHTS.files
    files = (replace(config, sha256="e" * 64), replace(shard, path="model.safetensors"))
    moved = replace(WEIGHTS, revision=TWO, licence="", gated=True, mirrors=(), files=files)
    assert said(LOCK, replace(LOCK, weights=moved)) == [
        "weights: brandonmusic/GLM-5.3-Flash-tr3-4bpw: main moved from 111111111111 to 222222222222",
        "weights: licence mit -> unknown",
        "weights: is gated now: a token is needed",
        "weights: mirror Mia-AiLab/GLM-5.3-Flash-EXL3-TR3-4bpw at 222222222222: no longer",
        "weights: 1 added, 1 changed, 2 removed, of 2 files; 5.0 GiB to fetch",
        "  added model.safetensors (5.0 GiB)",
        "  changed config.json (1.2 KiB -> 1.2 KiB)",
        "  removed model-00001-of-00001.safetensors",
        "  removed sub/é 数.txt",
    ]
    assert said(replace(LOCK, weights=moved), LOCK)[2:4] == [
        "weights: is gated no longer",
        "weights: mirror Mia-AiLab/GLM-5.3-Flash-EXL3-TR3-4bpw at 222222222222: new",
    ]


def test_another_source_and_another_name_for_the_same() -> None:
    elsewhere = replace(WEIGHTS, repository="a/b", ref="v1")
    assert said(LOCK, replace(LOCK, weights=elsewhere)) == [
        "weights: brandonmusic/GLM-5.3-Flash-tr3-4bpw main at 111111111111 -> a/b v1 at 111111111111"
    ]
    assert said(LOCK, replace(LOCK, weights=replace(WEIGHTS, ref="v1", revision=TWO))) == [
        "weights: brandonmusic/GLM-5.3-Flash-tr3-4bpw main at 111111111111 -> brandonmusic/GLM-5.3-Flash-tr3-4bpw v1 at 222222222222"
    ]
    assert said(LOCK, replace(LOCK, weights=replace(WEIGHTS, ref="v1"))) == [
        "weights: brandonmusic/GLM-5.3-Flash-tr3-4bpw: resolved from v1, before from main; the same commit"
    ]


def test_another_image_says_what_it_moves() -> None:
    """Layers that the old one has, for whatever platform, are not moved again."""
    arm = LockedPlatform(A, B, (LockedLayer(C, 7), LockedLayer(B, 3 << 20)))
    other = replace(IMAGE, digest=C, platforms={"linux/arm64": arm})
    assert said(LOCK, replace(LOCK, image=other)) == [
        f"image: ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark@sha256:44b2dbafe8d8 -> ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark@{C[:19]}",
        "  linux/arm64: 1 of 2 layers are new (3.0 MiB)",
    ]
    assert said(LOCK, replace(LOCK, image=replace(IMAGE, ref=""))) == [
        "image: tag v2.3-tier1 -> unknown, the same image"
    ]
    assert said(LOCK, replace(LOCK, image=replace(IMAGE, platforms={"linux/arm64": arm}))) == [
        "image: what was locked of its platforms is not what the digest says",
        "  linux/arm64: 2 layers, 3.0 MiB",
    ]


# Licences


def test_a_permissive_licence_needs_no_word() -> None:
    assert not WEIGHTS.needs_acceptance
    assert licence_refusal(WEIGHTS, "") is None


@pytest.mark.parametrize(
    ("licence", "accepted", "lines"),
    [
        ("cc-by-nc-nd-4.0", "", ["a/b is under cc-by-nc-nd-4.0 (CC BY-NC-ND 4.0: not for commercial purposes, and no changed copy may be passed on; it is downloaded from its source by each user, and never redistributed), and accepted_licences does not name it", 'read it at the repository; to accept it, state in group_data/all.py: accepted_licences = "cc-by-nc-nd-4.0"']),
        ("other", "cc-by-nc-nd-4.0", ["a/b is under other (a licence of its own; read it there), and accepted_licences does not name it", 'read it at the repository; to accept it, state in group_data/all.py: accepted_licences = "cc-by-nc-nd-4.0,other"']),
        ("", "", ["a/b is under unknown (the repository states no licence; ask its owner what you may do), and accepted_licences does not name it", 'read it at the repository; to accept it, state in group_data/all.py: accepted_licences = "unknown"']),
        ("llama4", "", ["a/b is under llama4 (not among those that allow everything; read it there), and accepted_licences does not name it", 'read it at the repository; to accept it, state in group_data/all.py: accepted_licences = "llama4"']),
    ],
    ids=["the drafter's", "beside another", "none stated", "one of its own"],
)  # fmt: skip
def test_a_licence_waits_for_the_operators_word(licence: str, accepted: str, lines: list[str]) -> None:
    """What it is, what it means and the line that accepts it; and with that line it is accepted."""
    files = replace(DRAFTER, repository="a/b", licence=licence)
    assert files.needs_acceptance
    refusal = licence_refusal(files, accepted)
    assert refusal is not None and refusal.splitlines() == lines
    stated: dict[str, Any] = {}
    exec(acceptance_line(files, accepted), stated)
    assert is_accepted(files, pair.settings({"accepted_licences": stated["accepted_licences"]}).knobs.accepted_licences)
    assert licence_refusal(files, stated["accepted_licences"]) is None


# In the settings


def loaded(everywhere: dict[str, Any] | None = None, lock: Lock | str | None = LOCK) -> Settings:
    body = text(lock) if isinstance(lock, Lock) else lock
    return load(pair.hosts(everywhere), pair.CONNECTION, lambda path: body if path.endswith(".lock") else None)


def refused(everywhere: dict[str, Any] | None = None, lock: Lock | str | None = LOCK) -> list[str]:
    with pytest.raises(DeployError) as error:
        loaded(everywhere, lock)
    first, *lines = str(error.value).splitlines()
    assert first == "Settings refused; no node was changed."
    return [line.strip() for line in lines]


def test_a_lock_of_the_settings_is_part_of_them() -> None:
    assert loaded().lock == LOCK
    assert loaded(lock=None).lock is None
    assert pair.settings().lock is None
    assert loaded({"lock_file": "locks/a.lock"}).lock == LOCK
    assert loaded({"weights_revision": ONE}).lock == LOCK
    assert loaded({"drafter_repository": DRAFTER.repository, "drafter_revision": DRAFTER.revision}).lock == LOCK
    assert loaded({"speculative_method": ""}, replace(LOCK, drafter=None)).lock == replace(LOCK, drafter=None)
    assert loaded(dict(pair.UPSTREAM), Lock(None, None, None)).lock == Lock(None, None, None)


def test_a_stated_lock_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is looked for where pyinfra was started; the default one may be missing."""
    monkeypatch.chdir(tmp_path)
    assert load(pair.hosts(), pair.CONNECTION, read_file).lock is None
    with pytest.raises(DeployError) as error:
        load(pair.hosts({"lock_file": "other.lock"}), pair.CONNECTION, read_file)
    assert str(error.value).splitlines()[1:] == [
        f'  lock_file = "other.lock": there is no {tmp_path}/other.lock; make lock writes it, or leave lock_file out'
    ]
    (tmp_path / "sparkpair.lock").write_text(text(LOCK))
    assert load(pair.hosts(), pair.CONNECTION, read_file).lock == LOCK
    (tmp_path / "sparkpair.lock").write_bytes(b"\xff\xfe")
    with pytest.raises(DeployError) as error:
        load(pair.hosts(), pair.CONNECTION, read_file)
    assert str(error.value).splitlines()[1:] == ["  sparkpair.lock: is no text; run make lock, which writes it anew"]
    (tmp_path / "sparkpair.lock").unlink()
    (tmp_path / "sparkpair.lock").mkdir()
    with pytest.raises(DeployError) as error:
        load(pair.hosts(), pair.CONNECTION, read_file)
    assert str(error.value).splitlines()[1:] == [
        '  lock_file = "sparkpair.lock": cannot be read (Is a directory); it must be a file of yours'
    ]


def test_a_damaged_lock_is_refused_beside_all_else() -> None:
    assert refused({"max_num_seqs": 0}, changed("weights", "size", value=1)) == [
        "group_data/all.py: max_num_seqs = 0: must be at least 1",
        "sparkpair.lock: weights: size = 1: its files come to 5368710354 bytes; it was changed by hand",
        "sparkpair.lock: run make lock, which writes it anew",
    ]


def test_a_refused_lock_file_is_said_once() -> None:
    assert refused({"lock_file": "locks/"}) == [
        'group_data/all.py: lock_file = "locks/": must be a file\'s path, such as sparkpair.lock'
    ]


@pytest.mark.parametrize(
    ("stated", "lock", "lines"),
    [
        (
            {"image": f"ghcr.io/a/b@{A}", "image_release": "v2.3"},
            LOCK,
            [f"sparkpair.lock: image is {IMAGE.reference}, and the settings say ghcr.io/a/b@{A}; run make lock"],
        ),
        (
            {"weights_repository": "a/b"},
            LOCK,
            ["sparkpair.lock: weights are of brandonmusic/GLM-5.3-Flash-tr3-4bpw, and weights_repository is a/b; run make lock"],
        ),
        (
            {"weights_revision": "v2"},
            LOCK,
            ["sparkpair.lock: weights are main of brandonmusic/GLM-5.3-Flash-tr3-4bpw, and the settings say v2; run make lock"],
        ),
        (
            {"drafter_repository": "incoai/GLM-5.3-Flash-DFlash2"},
            LOCK,
            ["sparkpair.lock: drafter are of local-inference-lab/GLM-5.3-Flash-DFlash2-MXFP8, and drafter_repository is incoai/GLM-5.3-Flash-DFlash2; run make lock"],
        ),
        (
            {"drafter_revision": ""},
            LOCK,
            ["sparkpair.lock: drafter are 62f758c0a0e19b9cb76fc098c911b8ed76daff5b of local-inference-lab/GLM-5.3-Flash-DFlash2-MXFP8, and the settings say main; run make lock"],
        ),
        (
            {},
            replace(LOCK, drafter=None, weights=None),
            [
                "sparkpair.lock: has no weights, and weights_repository is brandonmusic/GLM-5.3-Flash-tr3-4bpw; run make lock",
                "sparkpair.lock: has no drafter, and drafter_repository is local-inference-lab/GLM-5.3-Flash-DFlash2-MXFP8; run make lock",
            ],
        ),
        (
            {**pair.UPSTREAM},
            Lock(None, WEIGHTS, None),
            ["sparkpair.lock: weights are of brandonmusic/GLM-5.3-Flash-tr3-4bpw, and weights_repository is not stated; run make lock"],
        ),
    ],
    ids=["image", "weights", "revision", "drafter", "drafter's newest", "nothing", "no repository"],
)  # fmt: skip
def test_a_lock_of_other_settings_is_refused(stated: dict[str, Any], lock: Lock, lines: list[str]) -> None:
    """With what it names and what the settings say."""
    assert refused(stated, lock) == lines
