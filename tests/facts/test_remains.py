"""What removal finds and takes on a node: all that is listed, nothing else, and nothing behind a link or a mount."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checks import remove
from facts import remains, remains_side
from facts.remains import Discard, Remaining, Remains
from facts.values import Unknown
from spec import objects
from spec.objects import OBJECTS, Life, Object, Sort, Taking
from tests.unit import pair

NODE = pair.cluster().head
STAYS = ("/etc/sparkpair", "/etc/sparkpair/secrets", "/var/lib/sparkpair", "/var/lib/sparkpair/rails")
"""Directories of ours that the operator's key keeps, and the files of others that rails were taken over from."""


def asked(root: Path) -> dict[str, Any]:
    """What a removal is told, below another root."""

    def below(paths: list[str]) -> list[str]:
        return [f"{root}{path}" for path in paths]

    return {
        "do": "find",
        "files": below(remove.files()),
        "trees": below(remove.trees(NODE)),
        "empty": below(remove.empties()),
        "unfinished": below(remove.unfinished()),
        "units": [],
        "discards": {},
        "engines": {},
        "there": below([objects.API_KEY_FILE]),
    }


def example(path: str) -> str:
    """A path of that pattern."""
    for name, place in (("<weights_path>", NODE.weights_path), ("<drafter_path>", str(NODE.drafter_path))):
        path = path.replace(name, place)
    return re.sub(r"<[^>]*>", "0123abcd", path).replace("*", "x").split(", ")[0]


def lay(root: Path, item: Object) -> Path:
    """Make an object, with its parents."""
    path = Path(f"{root}{example(item.path)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    if item.sort is Sort.DIRECTORY:
        path.mkdir(exist_ok=True)
    elif item.sort is Sort.LINK:
        path.symlink_to("nowhere")
    else:
        path.write_text("x")
    return path


ON_DISK = [
    item for item in OBJECTS if example(item.path).startswith("/") and item.sort not in (Sort.USER, Sort.CONTAINER)
]


def left(root: Path) -> set[str]:
    """Every path that is there."""
    return {str(path).removeprefix(str(root)) for path in root.rglob("*")}


def test_everything_of_ours_goes_and_the_operators_stays(tmp_path: Path) -> None:
    places = {lay(tmp_path, item): item for item in ON_DISK}
    strange = tmp_path / "etc/systemd/system/other.service"
    strange.write_text("somebody else's")
    remains_side.take(asked(tmp_path))
    stay = {
        str(path).removeprefix(str(tmp_path))
        for path, item in places.items()
        if item.taking in (Taking.ASKED, Taking.NEVER)
    }
    assert objects.API_KEY_FILE in stay
    ours = {example(item.path) for item in ON_DISK}
    assert (left(tmp_path) & ours) - stay == set(STAYS)
    assert strange.exists()


def test_without_a_key_nothing_of_ours_is_left(tmp_path: Path) -> None:
    for item in ON_DISK:
        if item.life not in (Life.OPERATOR, Life.ASKED):
            lay(tmp_path, item)
    there = remains_side.find(asked(tmp_path))
    assert there["left"] == {}
    remains_side.take(asked(tmp_path))
    assert not [path for path in left(tmp_path) if "sparkpair" in path and not path.startswith("/run/lock/")]
    assert remains_side.find(asked(tmp_path))["paths"] == []


@pytest.mark.parametrize("item", OBJECTS, ids=lambda item: item.path)
def test_an_object_is_taken_as_its_life_says(item: Object) -> None:
    """By one of the rows, unless it is the operator's."""
    by_row = {
        Taking.FILE: item.path in remove.files(),
        Taking.UNIT: item.path.rpartition("/")[2] in remove.units(),
        Taking.TREE: "<" in item.path or item.path in remove.trees(NODE),
        Taking.EMPTY: item.path in remove.empties(),
        Taking.USER: item.path == objects.USER,
        Taking.CONTAINER: item.sort is Sort.CGROUP or item.path.startswith(("<container_name>", *remove.THROWAWAY)),
        Taking.ASKED: bool(item.asked),
        Taking.NEVER: item.path not in remove.files(),
    }
    assert by_row[item.taking]
    if item.taking is Taking.UNIT and item.path.startswith("/"):
        assert item.path in remove.files()
    if item.life in (Life.OPERATOR, Life.ASKED):
        assert item.taking in (Taking.ASKED, Taking.NEVER)
    elif item.taking is Taking.NEVER:
        assert item.path.startswith("/run/lock/"), "held by the removal itself"


def test_a_tree_below_which_only_a_pattern_lies_is_in_a_tree() -> None:
    """What has no path of its own is in a directory that goes as a whole, or is one of the operator's."""
    for item in OBJECTS:
        if item.taking is Taking.TREE and "<" in item.path and not item.path.startswith("<"):
            assert any(remains_side.is_below(item.path, tree) for tree in remove.trees(NODE)), item.path


def test_what_an_interrupted_write_left_goes_too(tmp_path: Path) -> None:
    for name in ("etc/sparkpair/wanted/rank.json.sparkpair-new", "var/lib/sparkpair/keeper/.state.json.a1b2c3",
                 "var/lib/sparkpair/.current.new", "etc/sparkpair/secrets/api-key.sparkpair-new"):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    remains_side.take(asked(tmp_path))
    assert not (tmp_path / "etc/sparkpair").exists()
    assert not (tmp_path / "var/lib/sparkpair").exists()


def test_a_directory_with_something_else_in_it_is_told_and_stays(tmp_path: Path) -> None:
    note = tmp_path / "etc/sparkpair/wanted/notes.txt"
    note.parent.mkdir(parents=True)
    note.write_text("mine")
    there = remains_side.find(asked(tmp_path))
    assert there["left"] == {
        str(note.parent): ["notes.txt"], str(note.parent.parent): ["wanted"],
    }  # fmt: skip
    assert there["paths"] == [], "so that a second removal plans nothing"
    remains_side.take(asked(tmp_path))
    assert note.read_text() == "mine"


def test_a_link_in_the_place_of_a_directory_is_removed_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    tree = tmp_path / "var/lib/sparkpair/generations"
    tree.parent.mkdir(parents=True)
    tree.symlink_to(outside)
    remains_side.take(asked(tmp_path))
    assert (outside / "precious").exists()
    assert not tree.is_symlink()


def test_what_is_mounted_in_it_stops_a_removal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = tmp_path / "var/lib/sparkpair/generations/a"
    keep.mkdir(parents=True)
    monkeypatch.setattr(remains_side, "mount_points", lambda: ["/", str(keep)])
    tree = str(tmp_path / "var/lib/sparkpair/generations")
    assert remains_side.find(asked(tmp_path))["mounted"] == [(tree, str(keep))]
    with pytest.raises(remains_side.Refused, match="something is mounted at"):
        remains_side.take(asked(tmp_path))
    assert keep.exists()


# A directory of the operator's


def test_a_directory_is_discarded_as_a_whole(tmp_path: Path) -> None:
    place = tmp_path / "models/tiny"
    place.mkdir(parents=True)
    (place / "model.safetensors").write_text("x")
    remains_side.discard(str(place), [str(tmp_path / "home")], None)
    assert left(tmp_path) == {"/models"}


def test_a_discard_that_was_killed_is_finished(tmp_path: Path) -> None:
    place = tmp_path / "tiny"
    aside = tmp_path / "tiny.sparkpair-removed"
    aside.mkdir()
    (aside / "model.safetensors").write_text("x")
    remains_side.discard(str(place), [], None)
    assert left(tmp_path) == set()
    place.mkdir()
    aside.mkdir()
    remains_side.discard(str(place), [], None)
    assert left(tmp_path) == set()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("{root}/link", "a symbolic link leads from there to {root}/real"),
        ("{root}/link/inner", "a symbolic link leads from there to {root}/real/inner"),
        ("{root}/file", "it is no directory"),
        ("{root}/missing", "it is no directory"),
        ("{root}/real/../real", "it is no path of a directory below another one"),
        ("/", "it is no path of a directory below another one"),
        ("/home", "it is no path of a directory below another one"),
        ("relative/path", "it is no path of a directory below another one"),
        ("{root}/home", "{root}/home/alice lies in it"),
        ("{root}/home/alice", "{root}/home/alice lies in it"),
        ("{root}/mounted", "a file system is mounted there"),
        ("{root}/disk", "a file system is mounted in it, at {root}/disk/inner"),
        ("{root}/real", ""),
        ("{root}/home/alice/models", ""),
    ],
)
def test_only_a_plain_directory_may_go(tmp_path: Path, path: str, reason: str) -> None:
    root = str(tmp_path)
    for name in ("real/inner", "home/alice/models", "mounted", "disk/inner"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    mounts = ["/", f"{root}/mounted", f"{root}/disk/inner", "/home"]
    found = remains_side.unsafe(path.format(root=root), [f"{root}/home/alice"], mounts, None)
    assert found == reason.format(root=root)


def test_what_the_engine_did_not_write_keeps_a_directory_of_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache_path that is somebody's whole ~/.cache."""
    place = tmp_path / "home/.cache"
    (place / "triton").mkdir(parents=True)
    (place / "jit").mkdir()
    monkeypatch.setattr(remains_side, "ROOT", os.getuid())
    assert remains_side.unsafe(str(place), [], ["/"], ["jit"]) == ""
    monkeypatch.setattr(remains_side, "ROOT", os.getuid() + 1)
    reason = "triton in it is not root's, and so not the engine's"
    assert remains_side.unsafe(str(place), [], ["/"], ["jit"]) == reason
    assert remains_side.unsafe(str(place), [], ["/"], None) == "", "weights are known by their bytes"
    with pytest.raises(remains_side.Refused, match=reason):
        remains_side.discard(str(place), [], ["jit"])
    assert (place / "triton").exists()


def test_a_directory_that_is_not_plain_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(remains_side.Refused, match="is not removed: a symbolic link leads"):
        remains_side.discard(str(tmp_path / "link"), [], None)
    assert left(tmp_path) == {"/real", "/link"}


# As it is sent


def test_the_program_runs_by_itself(tmp_path: Path) -> None:
    lay(tmp_path, next(item for item in OBJECTS if item.path == objects.RANK_FILE))
    models = tmp_path / "models"
    models.mkdir()
    question = {**asked(tmp_path), "discards": {str(models): [str(tmp_path / "home")]}}

    def run(document: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-ISB", "-c", remains.PROGRAM.read_text(), json.dumps(document)]
        return subprocess.run(argv, capture_output=True, text=True, check=False)

    found = Remains().process(["a banner", run(question).stdout.strip()])
    assert isinstance(found, Remaining)
    assert found.paths == tuple(
        f"{tmp_path}{path}" for path in (objects.ETC, f"{objects.ETC}/wanted", objects.RANK_FILE)
    )
    assert found.discards == {str(models): Discard(is_there=True, is_aside=False, unsafe="")}
    assert run({**question, "do": "take"}).returncode == 0
    assert run({"do": "discard", "path": str(models), "protected": [], "engines": None}).returncode == 0
    assert os.listdir(tmp_path) == ["etc"]
    refused = run({"do": "discard", "path": "/home", "protected": [], "engines": None})
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == "/home is not removed: it is no path of a directory below another one\n"


@pytest.mark.parametrize("line", ["", "bash: no", "{", '{"paths": 7}', '{"paths": []}'])
def test_an_answer_that_cannot_be_read_is_unknown(line: str) -> None:
    assert isinstance(Remains().process([line]), Unknown)
    assert isinstance(Remains.default(), Unknown)
