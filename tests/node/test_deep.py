"""The deep check finds bytes that changed under unchanged metadata, and keeps out of the way of others."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from node import content, deep, pages, turns
from node.deep import Found, Pace
from node.verified import Verified

FILES = {"config.json": b"{}", "model-1.safetensors": b"a" * 5000, "model-2.safetensors": b"b" * 70_000}


class World:
    """A directory whose files were proven, and the state of a node."""

    def __init__(self, place: Path) -> None:
        self.directory = place / "weights"
        self.state = place / "state"
        self.lock = place / "lock"
        self.cgroup = place / "cgroup"
        self.said: list[str] = []
        self.directory.mkdir()
        self.state.mkdir()
        verified = Verified(str(self.directory), self.state)
        for name, data in FILES.items():
            (self.directory / name).write_bytes(data)
            verified.record(name, pages.sha256(str(self.directory / name)))

    def pace(self, serving: int = deep.SERVING_BYTES_PER_SECOND) -> Pace:
        return Pace([self.cgroup], self.lock, self.said.append, serving)

    def check(self, *more: str) -> int:
        return deep.check([str(self.directory), *more], self.state, self.pace(), self.said.append)

    def rot(self, name: str, at: int = 0) -> None:
        """Another byte in the file, and nothing that metadata would show."""
        path = self.directory / name
        status = path.stat()
        with path.open("r+b") as stream:
            stream.seek(at)
            stream.write(b"\x00")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    @property
    def damaged(self) -> dict[str, Any] | None:
        path = self.state / content.damaged_name(str(self.directory))
        return json.loads(path.read_text()) if path.exists() else None

    def bring(self, name: str) -> None:
        """As staging does it."""
        new = self.directory / f".{name}"
        new.write_bytes(FILES[name])
        new.replace(self.directory / name)
        Verified(str(self.directory), self.state).record(name, pages.sha256(str(self.directory / name)))

    @property
    def result(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.state / "deep.json").read_text())
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}", data.pop("at"))
        assert data.pop("seconds") < 5
        return data


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_every_byte_is_as_it_was_proven(world: World) -> None:
    """What is well is said and written down, and an earlier finding is taken back."""
    (world.state / content.damaged_name(str(world.directory))).write_text('{"files": ["config.json"]}')
    assert world.check() == 0
    assert [re.sub(r"in \d+ s", "in 0 s", line) for line in world.said] == [
        "deep check: 3 files, 0.1 MiB in 0 s: every byte is as it was proven"
    ]
    assert world.result == {
        "bytes": 75_002,
        "directories": [
            {
                "directory": str(world.directory),
                "files": 3,
                "bytes": 75_002,
                "damaged": [],
                "changed": [],
                "skipped": "",
            }
        ],
    }
    assert world.damaged is None


def test_a_byte_that_changed_silently_is_found(world: World) -> None:
    """The first and the last byte count alike; the finding stays until the bytes are right again."""
    world.rot("config.json")
    world.rot("model-2.safetensors", 69_999)
    assert world.check() == 1
    assert world.said == [
        f"deep check: damaged, 2 of 3: {world.directory}/config.json, {world.directory}/model-2.safetensors; "
        "a deploy brings these again, and nothing else: pyinfra inventory.py deploy.py"
    ]
    assert world.damaged is not None
    assert world.damaged["files"] == ["config.json", "model-2.safetensors"]
    # A deploy that looks at the node is told, and of no other file.
    described = content.describe(str(world.directory), str(world.state))
    assert described["damaged"] == ["config.json", "model-2.safetensors"]
    assert [row[0] for row in described["files"] if row[2]] == ["model-1.safetensors"]  # type: ignore[attr-defined]
    assert world.check() == 1
    for name in ("config.json", "model-2.safetensors"):
        (world.directory / name).write_bytes(FILES[name])
    assert world.check() == 0
    assert world.damaged is None


def test_a_file_that_was_written_is_no_damage(world: World) -> None:
    """Metadata tells that it is another file: a deploy hashes it. One that nobody proved is none of ours."""
    (world.directory / "config.json").write_bytes(b"{ }")
    (world.directory / "README.md").write_bytes(b"new")
    assert world.check() == 0
    assert world.said[0] == (
        f"deep check: {world.directory}: changed since they were proven: README.md, config.json; a deploy hashes them"
    )
    assert world.result["directories"][0]["changed"] == ["README.md", "config.json"]
    assert world.damaged is None


def test_a_file_that_is_written_meanwhile_says_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read of it is half of one and half of the other."""
    hashed = pages.sha256

    def meddle(path: str, *rest: Any) -> str:
        found = hashed(path, *rest)
        if path.endswith("config.json"):
            Path(path).write_bytes(b"[]")
            return "0" * 64
        return found

    monkeypatch.setattr(pages, "sha256", meddle)
    assert world.check() == 0
    assert world.result["directories"][0]["changed"] == ["config.json"]


def test_a_file_that_is_brought_again_meanwhile_is_not_damaged(world: World) -> None:
    """It was read before, and found damaged; staging came in between."""
    world.rot("config.json")

    class Staged(Pace):
        def take(self, count: int) -> None:
            super().take(count)
            if count == len(FILES["model-1.safetensors"]):
                world.bring("config.json")

    pace = Staged([world.cgroup], world.lock, world.said.append)
    assert deep.check([str(world.directory)], world.state, pace, world.said.append) == 0
    [row] = world.result["directories"]
    assert (row["damaged"], row["changed"]) == ([], ["config.json"])
    assert world.damaged is None


def test_a_disk_that_gives_no_bytes_is_damage(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input/output error is the plainest finding; a right that is missing is none."""
    hashed = pages.sha256

    def failing(path: str, *rest: Any) -> str:
        if path.endswith("model-1.safetensors"):
            raise OSError(5, "Input/output error", path)
        return hashed(path, *rest)

    monkeypatch.setattr(pages, "sha256", failing)
    assert world.check() == 1
    assert world.damaged is not None
    assert world.damaged["files"] == ["model-1.safetensors"]

    def refused(path: str, *_: Any) -> str:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(pages, "sha256", refused)
    with pytest.raises(PermissionError):
        world.check()
    assert world.damaged["files"] == ["model-1.safetensors"]


def test_what_is_not_there_to_be_read_is_said(world: World, tmp_path: Path) -> None:
    """Why a directory was passed over stands in the result; its earlier finding stays."""
    unfinished, unproven = tmp_path / "unfinished", tmp_path / "unproven"
    for directory in (unfinished, unproven):
        directory.mkdir()
        (directory / "config.json").write_bytes(b"{}")
    (world.state / content.marker_name(str(unfinished))).write_text("0" * 64)
    kept = world.state / content.damaged_name(str(unfinished))
    kept.write_text('{"files": ["config.json"]}')
    assert world.check(str(unfinished), str(unproven), str(tmp_path / "none")) == 0
    assert world.said[:3] == [
        f"deep check: {unfinished}: not read, files are still being brought there; a deploy goes on with that",
        f"deep check: {unproven}: not read, nothing there was proven yet; a deploy does that",
        f"deep check: {tmp_path}/none: not read, there is no such directory; a deploy brings the files",
    ]
    assert json.loads(kept.read_text()) == {"files": ["config.json"]}


def test_nfs_is_the_other_nodes(tmp_path: Path) -> None:
    """The deepest mount that holds the directory decides."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n"
        "90 22 0:51 / /mnt/a\\040b ro,relatime shared:50 - nfs4 10.200.0.2:/srv/weights ro,vers=4.2\n"
        "91 90 8:1 / /mnt/a\\040b/local rw - ext4 /dev/sda1 rw\n"
    )
    places = ["/srv/weights", "/mnt/a b/tiny", "/mnt/a b", "/mnt/a bc", "/mnt/a b/local/x"]
    assert [deep._is_network(place, mounts) for place in places] == [False, True, True, False, False]


def test_it_is_slow_while_an_engine_runs_only(world: World) -> None:
    """The cap holds while processes are in the engine's cgroup."""

    def seconds(pace: Pace) -> float:
        begun = time.monotonic()
        for _ in range(5):
            pace.take(1000)
        return time.monotonic() - begun

    assert seconds(world.pace(20_000)) < 0.1
    world.cgroup.mkdir()
    (world.cgroup / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    assert seconds(world.pace(20_000)) < 0.1
    (world.cgroup / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    assert 0.19 < seconds(world.pace(20_000)) < 0.5


def test_staging_goes_first(world: World) -> None:
    """While somebody stages nothing is read, and it goes on by itself when that ends."""
    done = threading.Event()

    def check() -> None:
        world.check()
        done.set()

    with turns.staging(world.lock):
        thread = threading.Thread(target=check)
        thread.start()
        while not world.said:
            time.sleep(0.01)
        assert world.said == ["waiting while files are staged"]
        assert not done.wait(0.1)
    assert done.wait(5)
    thread.join()
    assert world.said[-1].endswith("every byte is as it was proven")
    with turns.staging(world.lock):
        pass  # and it is left free


def test_progress_says_how_long(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes, rate, time left and file, now and then."""
    monkeypatch.setattr(deep, "PROGRESS_SECONDS", 0.0)
    world.check()
    form = r"deep check: 0\.\d MiB of 0\.1 MiB, \d+ MiB/s, (\d+ s|\d+ min) left: (config\.json|model-[12]\.safetensors)"
    assert [line for line in world.said[:-1] if not re.fullmatch(form, line)] == []
    assert len(world.said) == 4


def test_the_result_of_several_directories_is_one_line() -> None:
    """Files and bytes are counted together."""
    found = [Found("/a", 40, 160 * 2**30), Found("/b", 3, 4 * 2**30)]
    assert deep.tell(found, 843.0) == ["deep check: 43 files, 164.0 GiB in 14 min: every byte is as it was proven"]
    many = Found("/a", 1, 2**20, changed=("a", "b", "c", "d", "e"))
    assert deep.tell([many], 1.0) == [
        "deep check: /a: changed since they were proven: a, b, c and 2 more; a deploy hashes them",
        "deep check: 1 file, 1.0 MiB in 1 s: every byte is as it was proven",
    ]


def test_a_node_without_a_launch_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing was deployed here: one line, no traceback."""
    assert deep.main([]) == 1
    assert capsys.readouterr().err == (
        "deep check: /etc/sparkpair/wanted/rank.json is damaged: "
        "[Errno 2] No such file or directory: '/etc/sparkpair/wanted/rank.json'\n"
    )
