"""The recorder: whose floor it keeps, what it leaves behind, and that nothing of it is in anybody's way."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node import memory, recorder
from node.memory import GIB
from node.recorder import HEADER, Places, Record, Recorder, Sample, row
from tests import repository

MIB = 2**20


class World:
    """A node's memory and its engine's cgroup, as the recorder sees them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.cgroup = place / "cgroup"
        self.cgroup.mkdir()
        self.places = Places(
            rank=str(place / "rank.json"), now=str(place / "memory.json"), record=str(place / "record"),
            cgroups=(str(place / "absent"), str(self.cgroup)), meminfo=str(place / "meminfo"),
            pressure=str(place / "pressure"),
        )  # fmt: skip
        self.ranks(False)
        self.available(100)
        (place / "pressure").write_text("some avg10=1.50 avg60=0 avg300=0 total=1\nfull avg10=0.25 avg60=0 total=1\n")
        self.recorder = Recorder(self.places, "code")

    def ranks(self, populated: bool) -> None:
        (self.cgroup / "cgroup.events").write_text(f"populated {int(populated)}\nfrozen 0\n")

    def started(self, engine: str, since: str) -> None:
        """As the rank agent does it, before the container."""
        (self.place / "rank.json").write_text(json.dumps({"engine": engine, "since": since}))

    def available(self, gib: float) -> None:
        rows = {"MemTotal": 121, "MemFree": gib / 2, "MemAvailable": gib, "Cached": gib / 2, "SwapTotal": 16}
        text = "".join(f"{name}: {int(size * 2**20)} kB\n" for name, size in {**rows, "SwapFree": 15}.items())
        (self.place / "meminfo").write_text(text)

    def look(self, *gib: float) -> dict[str, Any]:
        """A second for each; what is told after the last."""
        for size in gib:
            self.available(size)
            self.recorder.look()
        return json.loads(Path(self.places.now).read_text())

    @property
    def record(self) -> list[str]:
        path = Path(self.places.record) / "record.csv"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_what_is_told_each_second(world: World) -> None:
    """Everything of one second, in bytes and percent."""
    world.started("e" * 64, "2026-12-01T06:00:00+0000")
    world.ranks(True)
    told = world.look(30.0)
    assert told.pop("at") == told.pop("floor_at")
    assert told == {
        "available": 30 * GIB, "free": 15 * GIB, "cached": 15 * GIB, "swap_used": 1 * GIB,
        "psi_some": 1.5, "psi_full": 0.25, "running": True, "engine": "e" * 64, "since": "2026-12-01T06:00:00+0000",
        "floor": 30 * GIB, "samples": 1, "code": "code",
    }  # fmt: skip
    assert sorted(path.name for path in world.place.glob("memory*")) == ["memory.json"]


def test_a_kernel_that_tells_no_pressure(world: World) -> None:
    (world.place / "pressure").unlink()
    told = world.look(30.0)
    assert (told["psi_some"], told["psi_full"]) == (None, None)


@pytest.mark.report("MEM-14")
def test_the_floor_is_that_of_the_rank_that_runs(world: World) -> None:
    """Nothing before its start counts, and it stays after its end until the next starts."""
    assert world.look(5.0, 90.0)["floor"] is None
    world.started("a", "1")
    world.ranks(True)
    told = world.look(40.0, 12.0, 20.0)
    assert (told["floor"], told["engine"], told["samples"]) == (12 * GIB, "a", 3)
    world.ranks(False)
    told = world.look(4.0, 90.0)
    assert (told["floor"], told["engine"], told["running"]) == (12 * GIB, "a", False)
    world.started("b", "2")
    assert world.look(90.0)["engine"] == "a"
    world.ranks(True)
    told = world.look(30.0)
    assert (told["floor"], told["engine"], told["since"], told["samples"]) == (30 * GIB, "b", "2", 1)


def test_the_same_launch_started_again_has_a_floor_of_its_own(world: World) -> None:
    """Also where no second was seen without a rank."""
    world.started("a", "1")
    world.ranks(True)
    world.look(12.0)
    world.started("a", "2")
    assert world.look(30.0)["floor"] == 30 * GIB


def test_a_rank_that_the_agent_did_not_speak_of(world: World) -> None:
    """Its floor is kept all the same; whose it is, is not known."""
    world.ranks(True)
    assert world.look(12.0)["floor"] == 12 * GIB
    world.ranks(False)
    world.look(90.0)
    world.ranks(True)
    told = world.look(30.0)
    assert (told["floor"], told["engine"]) == (30 * GIB, "")


def test_the_floor_outlives_the_recorder(world: World) -> None:
    """A deploy replaces it while the pair serves; a rank that was started meanwhile begins anew."""
    world.started("a", "1")
    world.ranks(True)
    world.look(12.0)
    world.recorder = Recorder(world.places, "new code")
    told = world.look(30.0)
    assert (told["floor"], told["samples"], told["code"]) == (12 * GIB, 2, "new code")
    world.started("b", "2")
    world.recorder = Recorder(world.places, "new code")
    assert world.look(30.0)["floor"] == 30 * GIB


@pytest.mark.parametrize("text", ["", "[]", '{"floor": "much", "samples": null, "engine": 7}'])
def test_a_damaged_word_of_the_former_is_nothing(world: World, text: str) -> None:
    Path(world.places.now).write_text(text)
    world.recorder = Recorder(world.places, "code")
    world.ranks(True)
    assert world.look(30.0)["floor"] == 30 * GIB


def test_a_row_is_the_worst_of_ten_seconds() -> None:
    """The least of what is there, the most of the rest."""
    samples = [
        Sample("t1", 9 * MIB, 5 * MIB, 3 * MIB, 2 * MIB, 0.5, None),
        Sample("t2", 7 * MIB, 6 * MIB, 4 * MIB, 1 * MIB, 2.5, None),
    ]
    assert row(samples, "e" * 64) == "t2,7,5,4,2,2.5,,eeeeeeeeeeee\n"
    assert HEADER.count(",") == row(samples, "").count(",")


def test_the_record_is_written_once_a_minute(world: World) -> None:
    """A line for ten seconds; what is held is written at the end."""
    world.look(*[50.0] * 59)
    assert world.record == []
    world.look(40.0)
    assert [line.split(",")[1] for line in world.record] == ["available_mib", *["51200"] * 5, "40960"]
    world.look(*[30.0] * 10)
    assert len(world.record) == 7
    world.recorder.end()
    assert world.record[-1].split(",")[1] == "30720"


def test_the_record_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files, each with its heading; nothing is lost where one ends."""
    monkeypatch.setattr(recorder, "FILE_BYTES", 1000)
    record = Record(str(tmp_path))
    for number in range(200):
        record.add(f"{number:09}\n")
    record.write()
    texts = [(tmp_path / name).read_text() for name in ("record.1.csv", "record.csv")]
    assert all(text.startswith(HEADER) and len(text) <= 1000 + len(HEADER) for text in texts)
    numbers = [int(line) for text in texts for line in text.splitlines()[1:]]
    assert numbers == list(range(numbers[0], 200))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["record.1.csv", "record.csv"]


def test_a_torn_line_stays_alone(tmp_path: Path) -> None:
    """A power cut may leave half of one: nothing is synced."""
    (tmp_path / "record.csv").write_text(f"{HEADER}2026-12-01T06:0")
    record = Record(str(tmp_path))
    record.add("whole\n")
    record.write()
    assert (tmp_path / "record.csv").read_text() == f"{HEADER}2026-12-01T06:0\nwhole\n"


def test_a_full_disk_is_survived_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No part of a row stays, the last hour is held, and it is written when there is room again."""
    record = Record(str(tmp_path))
    record.add("first\n")
    record.write()
    real = os.write

    def full(file: int, data: bytes) -> int:
        return real(file, data[:3])

    monkeypatch.setattr(os, "write", full)
    for number in range(400):
        record.add(f"{number}\n")
    assert (tmp_path / "record.csv").read_text() == f"{HEADER}first\n"
    monkeypatch.setattr(os, "write", real)
    record.write()
    assert (tmp_path / "record.csv").read_text().splitlines()[2:] == [str(number) for number in range(40, 400)]
    reason = os.strerror(errno.ENOSPC)
    assert capsys.readouterr().err.splitlines() == [
        f"{tmp_path}/record.csv: {reason}; the record of memory has a gap from here on",
        f"{tmp_path}/record.csv is written again",
    ]


def test_a_place_that_cannot_be_written_is_told_once(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.recorder = Recorder(world.places._replace(now=str(world.place / "gone/memory.json")), "code")
    world.recorder.look()
    world.recorder.look()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "No such file or directory" in said[0]


def until(found: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_program_itself(world: World) -> None:
    """As systemd starts it, once it knows its places: lean, and it goes when it is told to."""
    argument = json.dumps({"code": "c", "places": world.places._asdict()})
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from node import main; "
        "print(main.main(sys.argv[1:]), 'hashlib' in sys.modules)"
    )
    argv = [sys.executable, "-sEB", "-c", code, str(repository.ROOT), "recorder", argument]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        until(lambda: memory.recorded(world.places.now).get("code") == "c")
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=10)[0] == "0 False\n"


def test_it_finds_its_places_by_itself(tmp_path: Path) -> None:
    """Started without arguments it becomes itself with them: those that all programs share, and their hash."""
    told = tmp_path / "told"
    script = (
        "import json, os, sys\nsys.path.insert(0, sys.argv[1])\nfrom node import paths, recorder, wire\n"
        "def execv(program, argv):\n    open(sys.argv[2], 'w').write(json.dumps(argv)); sys.exit(0)\n"
        "os.execv = execv\nrecorder.main([])\n"
    )
    subprocess.run([sys.executable, "-sEB", "-c", script, str(repository.ROOT), str(told)], check=True)
    *before, argument = json.loads(told.read_text())
    assert before[1:4] == ["-sEB", "-c", script]
    given = json.loads(argument)
    places = Places(**{**given["places"], "cgroups": tuple(given["places"]["cgroups"])})
    assert (places.now, places.rank, places.record) == (
        "/run/sparkpair/memory.json", "/run/sparkpair/rank.json", "/var/lib/sparkpair/memory",
    )  # fmt: skip
    assert places.cgroups[1] == "/sys/fs/cgroup/sparkpair-engine.slice"
    assert len(given["code"]) == 64
