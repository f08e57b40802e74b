"""Manifests of directories that are on a node, with real files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from node import content, pages, paths, weights
from node.weights import WeightsError, record

SHARD = "model-00001-of-00001.safetensors"


def quiet(_: str) -> None:
    """Nobody listens."""


def model(directory: Path, size: int = 1000) -> Path:
    """A small complete model directory."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / SHARD).write_bytes(bytes(range(256)) * (size // 256 + 1))
    index = {"metadata": {"total_size": size}, "weight_map": {"a": SHARD}}
    (directory / content.INDEX).write_text(json.dumps(index))
    (directory / ".cache").mkdir()
    (directory / ".cache/lock").write_text("not ours")
    return directory


def seen(directory: Path, state: Path) -> dict[str, object]:
    return content.describe(str(directory), str(state))


def test_a_manifest_holds_until_a_file_is_touched(tmp_path: Path) -> None:
    directory, state = model(tmp_path / "model"), tmp_path / "state"
    assert seen(directory, state)["identity"] is None
    identity = record(str(directory), state, quiet)
    now = seen(directory, state)
    assert now["identity"] == identity
    assert [row[0] for row in now["files"]] == ["config.json", SHARD, content.INDEX]  # type: ignore[index,attr-defined]
    os.utime(directory / "config.json", (1, 1))
    now = seen(directory, state)
    assert now["identity"] is None
    assert all(len(row[2]) == 64 for row in now["files"])  # type: ignore[index,attr-defined]
    assert record(str(directory), state, quiet) == identity


def test_the_identity_is_of_the_files_and_not_of_their_place(tmp_path: Path) -> None:
    one, two = model(tmp_path / "one"), model(tmp_path / "deep/two")
    assert record(str(one), tmp_path / "s1", quiet) == record(str(two), tmp_path / "s2", quiet)
    (two / SHARD).write_bytes(b"other")
    (two / content.INDEX).write_text(json.dumps({"weight_map": {"a": SHARD}}))
    assert record(str(one), tmp_path / "s1", quiet) != record(str(two), tmp_path / "s2", quiet)


def test_another_directorys_manifest_is_no_manifest(tmp_path: Path) -> None:
    """Whatever the file is called, the manifest says whose it is."""
    one, two = model(tmp_path / "one"), model(tmp_path / "two")
    state = tmp_path / "state"
    record(str(one), state, quiet)
    (state / content.manifest_name(str(one))).rename(state / content.manifest_name(str(two)))
    assert seen(two, state)["identity"] is None


def test_each_directory_has_names_of_its_own() -> None:
    """Readable, and apart where only the dashes differ; a file name may have 255 bytes."""
    assert content.manifest_name("/srv/models/tiny") == content.manifest_name("/srv/models/tiny/")
    assert content.manifest_name("/srv/models/tiny") == "srv-models-tiny-0f5db2c9.json"
    assert content.marker_name("/srv/models/tiny") == "srv-models-tiny-0f5db2c9.copying"
    assert paths.manifest_path("/srv/models/tiny") == paths.WEIGHTS / "srv-models-tiny-0f5db2c9.json"
    for name in (content.manifest_name, content.marker_name):
        assert name("/srv/models/a-b/c") != name("/srv/models/a/b-c")
        assert len(name("/srv" + "/long" * 100) + ".partial") < 255


def test_hashing_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, state = model(tmp_path / "model"), tmp_path / "state"
    hashed: list[str] = []
    broken = {SHARD}
    real = pages.sha256

    def counting(path: str, progress: Callable[[int], None]) -> str:
        if os.path.basename(path) in broken:
            raise OSError("power")
        hashed.append(os.path.basename(path))
        return real(path, progress)

    monkeypatch.setattr(weights, "READERS", 1)
    monkeypatch.setattr(pages, "sha256", counting)
    with pytest.raises(OSError, match="power"):
        record(str(directory), state, quiet)
    assert "config.json" in hashed
    hashed.clear()
    broken.clear()
    record(str(directory), state, quiet)
    assert SHARD in hashed
    assert "config.json" not in hashed
    assert sorted(path.name for path in state.iterdir()) == [content.manifest_name(str(directory))]


def test_what_is_missing(tmp_path: Path) -> None:
    directory = model(tmp_path / "model", 5000)

    def lacks() -> list[str]:
        return content.missing(str(directory), content.listing(str(directory))[0])

    assert lacks() == []
    (directory / SHARD).write_bytes(b"x" * 1000)
    assert lacks() == ["4000 of 5000 bytes of its shards"]
    (directory / SHARD).unlink()
    (directory / "config.json").unlink()
    assert lacks() == ["config.json", SHARD]
    (directory / content.INDEX).write_text("{")
    assert lacks()[-1].startswith(f"{content.INDEX} (unreadable: ")
    (directory / content.INDEX).unlink()
    assert lacks() == ["config.json", "*.safetensors"]
    with pytest.raises(WeightsError, match="lacks config"):
        record(str(directory), tmp_path / "state", quiet)


def test_links_that_lead_out_are_refused(tmp_path: Path) -> None:
    """As in a Hugging Face cache: the container sees the directory only."""
    directory = model(tmp_path / "model")
    (directory / "inside.json").symlink_to("config.json")
    assert "inside.json" in [entry[0] for entry in content.listing(str(directory))[0]]
    (tmp_path / "blob").write_text("x")
    (directory / "tokenizer.json").symlink_to("../blob")
    assert content.listing(str(directory))[1] == ["tokenizer.json"]
    with pytest.raises(WeightsError, match=r"tokenizer\.json links out of the directory"):
        record(str(directory), tmp_path / "state", quiet)


@pytest.mark.parametrize(
    ("target", "is_inside"),
    [
        ("config.json", True),
        ("sub/../config.json", True),
        ("sub/back", True),
        ("{root}/config.json", False),  # absolute: the container does not have it there
        ("../model/config.json", False),  # out and in again, by a name that the container does not know
        ("sub/absolute", False),
        ("out/model/config.json", False),
        ("loop", False),
    ],
)
def test_a_link_must_stay_inside_on_its_whole_way(tmp_path: Path, target: str, is_inside: bool) -> None:
    directory = model(tmp_path / "model")
    (directory / "sub").mkdir()
    (directory / "sub/back").symlink_to("../config.json")
    (directory / "sub/absolute").symlink_to(directory / "config.json")
    (directory / "out").symlink_to("..")
    (directory / "loop").symlink_to("loop")
    (directory / "it").symlink_to(target.format(root=directory))
    entries, outside = content.listing(str(directory))
    assert set(outside) == {"sub/absolute", "out", "loop"} | (set() if is_inside else {"it"})
    assert ("it" in [entry[0] for entry in entries]) is is_inside


@pytest.mark.parametrize("words", [["hash"], ["copy", "x"], ["frobnicate"], []])
def test_wrong_usage_exits_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        weights.main(words)
    assert end.value.code == 2
    assert "usage: main.py weights" in capsys.readouterr().err


def test_what_cannot_be_done_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert weights.main(["hash", str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
