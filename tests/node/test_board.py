"""What a staging unit is told, what it knows is here, and who brings what."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node import content, errand, progress, wire
from node.board import AVOID_SECONDS, Board
from node.errand import Errand, FileRow, Hub, Peer, Set, Way
from node.verified import Verified, stamp

ONE, TWO, TWIN = ("a/one", 4, "1" * 64), ("two", 4, "2" * 64), ("twin", 4, "2" * 64)


def wanted(directory: str, *rows: FileRow, **more: Any) -> Set:
    return Set("weights", directory, wire.manifest_identity(rows), tuple(sorted(rows)), **more)


def an_errand(*sets: Set, **more: Any) -> Errand:
    way = Way("10.200.0.2", "enp1s0f0np0", True)
    stated: dict[str, Any] = {
        "owner": "spark", "rate": 5, "stall_seconds": 120.0, "hub": Hub("https://hub.example", "/usr/local/lib/hub"),
        "peers": (Peer("lab-worker", (way,)),), "sets": sets,
    }  # fmt: skip
    return Errand(**{**stated, **more})


SET = wanted("/srv/w", ONE, TWO, hub=(("a/b", "1" * 40),), fetch=("two",), wait=True, bundle="/media/x")


def test_an_errand_is_read_as_it_was_written() -> None:
    """With everything in it, and with nothing."""
    for made in (an_errand(SET), an_errand(hub=None, peers=())):
        assert errand.parse(errand.text(made)) == made
    assert SET.size == 8


def stated(**changes: Any) -> dict[str, Any]:
    """An errand as JSON, with other parts in its set."""
    data: dict[str, Any] = json.loads(errand.text(an_errand(SET)))
    data["sets"][0].update(changes)
    return data


REFUSED: list[tuple[dict[str, Any], str]] = [
    (stated() | {"format": 2}, "the errand has format 2, this program reads 1"),
    (stated() | {"owner": ""}, "the errand: owner is '', wanted a text"),
    (stated() | {"rate": -1}, "the errand: rate is -1, wanted a whole number from 0 on"),
    (stated() | {"stall_seconds": 0}, "the errand: stall_seconds is 0, wanted seconds above 0"),
    (
        stated() | {"hub": {"endpoint": "https://me:secret@hub.example", "client": "/x"}},
        "the errand: the hub's endpoint is none: wanted http(s)://host[:port], without user or password",
    ),
    (stated(directory="srv/w"), "the errand: the directory of weights is 'srv/w', wanted a whole path"),
    (stated(bundle="/media/../etc"), "the errand: the bundle of weights is '/media/../etc', wanted a whole path"),
    (
        stated(identity="0" * 64),
        f"the errand: weights has the identity '{'0' * 12}', its files {SET.identity[:12]!r}",
    ),
    (
        stated(files=[["../x", 1, "1" * 64]]),
        "the errand: weights has the file '../x', wanted a path below the directory, no name with a dot first",
    ),
    (stated(files=[["x", -1, "1" * 64]]), "the errand: weights: x has the size -1, wanted bytes"),
    (stated(files=[["x", 1, "1"]]), "the errand: weights: x has the sha256 '1', wanted 64 hex digits"),
    (stated(fetch=["three"]), "the errand: weights shall fetch 'three', which is none of its files"),
    (
        stated(hub=[["a/b", "main"]]),
        "the errand: weights has the repository 'a/b' at 'main', wanted owner/name and 40 hex digits",
    ),
    (stated() | {"sets": stated()["sets"] * 2}, "the errand: two sets have the name weights"),
    ({key: value for key, value in stated().items() if key != "peers"}, "the errand: it lacks 'peers'"),
]


@pytest.mark.parametrize(("data", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_an_errand_that_is_none_is_refused(data: dict[str, Any], message: str) -> None:
    """By the part that is wrong, and without a password that stands where none belongs."""
    with pytest.raises(wire.WireError) as refusal:
        errand.parse(json.dumps(data))
    assert str(refusal.value) == message


class Disk:
    """A content directory with a board over it, and a clock of the test's own."""

    def __init__(self, place: Path) -> None:
        self.directory, self.state, self.now = place / "w", place / "state", 0.0

    def put(self, path: str, data: bytes) -> None:
        (self.directory / path).parent.mkdir(parents=True, exist_ok=True)
        (self.directory / path).write_bytes(data)

    @property
    def verified(self) -> Verified:
        return Verified(str(self.directory), self.state)

    def board(self, *rows: FileRow, **more: Any) -> Board:
        made = an_errand(wanted(str(self.directory), *rows, hub=(("a/b", "1" * 40),)), **more)
        return Board(made, {"weights": self.verified}, (os.getuid(), os.getgid()), clock=lambda: self.now)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def test_a_file_is_known_again_until_it_changes(disk: Disk) -> None:
    """By size, time and inode; what the manifest proves counts too, and what a deep check found does not."""
    disk.put("two", b"data")
    disk.put("x", b"proven by the manifest")
    entries, _ = content.listing(str(disk.directory))
    manifest = {"directory": str(disk.directory), "identity": "i", "stamps": content.stamps(entries),
                "files": [["x", 22, "9" * 64], ["two", 4, "8" * 64]]}  # fmt: skip
    disk.state.mkdir()
    (disk.state / content.manifest_name(str(disk.directory))).write_text(json.dumps(manifest))
    disk.verified.record("two", "2" * 64)
    assert disk.verified.held() == [("two", 4, "2" * 64), ("x", 22, "9" * 64)]
    assert disk.verified.good([TWO, ONE]) == {"two"}
    damaged = disk.state / content.damaged_name(str(disk.directory))
    damaged.write_text(json.dumps({"at": "now", "files": ["two", "x"]}))
    assert disk.verified.held() == []
    disk.verified.record("two", "2" * 64)
    assert json.loads(damaged.read_text()) == {"at": "now", "files": ["x"]}
    disk.put("two", b"else")
    os.utime(disk.directory / "two", ns=(0, 0))
    assert disk.verified.sha256("two") is None
    disk.verified.record("x", "9" * 64)
    assert not damaged.exists()


def test_a_part_belongs_to_no_source(disk: Disk) -> None:
    """What one began another goes on with; it counts when its sha256 is that of the whole."""
    board = disk.board(ONE, TWO)
    first = board.take("hub")
    assert first is not None
    assert (first.path, first.offset) == ("a/one", 0)
    Path(first.part).write_bytes(b"on")
    board.progress(first, 2)
    board.give_back(first)
    again = board.take("lab-worker")
    assert again == replace(first, offset=2)
    assert board.under_way() == [("weights", "a/one", "lab-worker", 0.0)]
    Path(first.part).write_bytes(b"one.")
    assert board.done(first, ONE[2])
    assert (disk.directory / "a/one").read_bytes() == b"one."
    assert disk.verified.held() == [ONE]
    assert [path for _, path in board.lacking()] == ["two"]
    assert (board.here("weights"), board.is_done("weights"), board.over.is_set()) == (4, False, False)


def test_files_of_one_content_are_brought_one_after_the_other(disk: Disk) -> None:
    """They share a part."""
    board = disk.board(TWO, TWIN)
    job = board.take("hub")
    assert job is not None
    assert board.take("lab-worker") is None
    board.give_back(job)
    assert board.take("lab-worker") == job


def test_after_wrong_bytes_the_others_come_first(disk: Disk) -> None:
    """For a while; a source that sends them twice is believed no more, and the errand ends with the file's name."""
    board = disk.board(TWO)
    for expected in (True, False):
        job = board.take("hub")
        assert job is not None
        Path(job.part).write_bytes(b"evil")
        assert not board.done(job, "f" * 64)
        assert not Path(job.part).exists()
        assert board.take("hub") is None
        disk.now += AVOID_SECONDS
        assert bool(board.lacking()) is expected
    assert [path for _, path in board.refused()] == ["two"]
    assert board.over.is_set()


def test_what_a_source_cannot_give_is_left_to_the_others(disk: Disk) -> None:
    """Without a word on its bytes."""
    board = disk.board(TWO)
    job = board.take("bundle")
    assert job is not None
    board.decline("bundle", job)
    [(of, path)] = board.lacking()
    assert board.has_declined("bundle", of, path)
    assert not board.has_declined("hub", of, path)


def test_files_of_the_right_size_are_read_first(disk: Disk) -> None:
    """Others are to be brought, and so are those that a deep check found damaged."""
    disk.put("a/one", b"1234")
    disk.put("two", b"12345")
    board = disk.board(ONE, TWO)
    job = board.take_unread("disk")
    assert job is not None
    assert board.take_unread("disk") is None
    seen = stamp(str(disk.directory / "a/one"))
    assert not board.read(job, "f" * 64, seen)
    assert [path for _, path in board.lacking()] == ["a/one", "two"]
    disk.state.mkdir()
    (disk.state / content.damaged_name(str(disk.directory))).write_text(json.dumps({"files": ["a/one"]}))
    assert disk.board(ONE).take_unread("disk") is None


def test_a_file_that_is_written_while_it_is_read_is_not_the_one_that_was_read(disk: Disk) -> None:
    """Its stamp is the one from before."""
    disk.put("two", b"data")
    seen = stamp(str(disk.directory / "two"))
    for written, is_good in ((b"else", False), (b"data", True)):
        board = disk.board(TWO)
        job = board.take_unread("disk")
        assert job is not None
        disk.put("two", written)
        os.utime(disk.directory / "two", ns=(0, 0 if is_good else 1))
        assert board.read(job, TWO[2], stamp(str(disk.directory / "two")) if is_good else seen) is is_good
        assert disk.verified.sha256("two") == (TWO[2] if is_good else None)


def test_how_long_a_source_has_been_quiet(disk: Disk) -> None:
    """Since the start, its last byte, or its last word."""
    board = disk.board(TWO)
    disk.now = 10
    assert board.quiet_seconds(["hub", "lab-worker"]) == 10
    board.heard("lab-worker")
    disk.now = 12
    assert (board.quiet_seconds(["hub"]), board.quiet_seconds(["hub", "lab-worker"])) == (12, 2)


def test_progress_is_one_line() -> None:
    """With the unit of the whole, and with what it waits for."""
    files = [("model-00012.safetensors", "hub"), ("b", "lab-worker"), ("c", "hub")]
    gib = 2**30
    assert progress.line("weights", int(12.3 * gib), 164 * gib, 850 * 2**20, 1, files[:1]) == (
        "weights: 12.3 of 164.0 GiB, 850 MiB/s, 3 min left: model-00012.safetensors (hub)"
    )
    assert progress.line("weights", gib, 164 * gib, 2.5 * 2**20, 1, files) == (
        "weights: 1.0 of 164.0 GiB, 2.5 MiB/s, 18.5 h left: model-00012.safetensors (hub), b (lab-worker) and 1 more"
    )
    assert progress.line("drafter", 2**20, 5 * 2**20, 0, 35, files[:1]) == (
        "drafter: 1.0 of 5.0 MiB, nothing for 35 s, waiting: model-00012.safetensors (hub)"
    )
    assert progress.line("drafter", 0, 5 * 2**20, 0, 1, []) == "drafter: 0.0 of 5.0 MiB, 0.0 MiB/s, no end in sight"
