"""What is read of a node's memory, and what is done about it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node import memory
from node.memory import GIB, Emergency, Meminfo, Pressure

# A GB10 after a copy of the weights: field-reports.md, MEM-01 (`grep -E ... /proc/meminfo`); the other lines are left
# as a kernel 6.17 has them.
AFTER_A_COPY = (
    "MemTotal:       127600000 kB\nMemFree:         2097152 kB\nMemAvailable:   122683392 kB\n"
    "Buffers:           98304 kB\nCached:         119537664 kB\nSwapCached:            0 kB\n"
    "SwapTotal:      16777212 kB\nSwapFree:       16777000 kB\nHugePages_Total:       0\n"
)


def meminfo_file(place: Path, free: float, available: float, cached: float) -> Path:
    """A meminfo with these GiB."""
    rows = {"MemTotal": 121.7, "MemFree": free, "MemAvailable": available, "Cached": cached, "SwapTotal": 16.0}
    text = "".join(f"{name}: {int(gib * 2**20)} kB\n" for name, gib in {**rows, "SwapFree": 16.0}.items())
    path = place / "meminfo"
    path.write_text(text)
    return path


def test_meminfo(tmp_path: Path) -> None:
    """kB of the kernel are bytes here."""
    path = tmp_path / "meminfo"
    path.write_text(AFTER_A_COPY)
    found = memory.meminfo(path)
    assert found == Meminfo(
        total=127600000 * 1024, free=2 * GIB, available=117 * GIB, cached=114 * GIB,
        swap_total=16777212 * 1024, swap_free=16777000 * 1024,
    )  # fmt: skip
    assert found.swap_used == 212 * 1024


def test_a_figure_that_lacks_is_named(tmp_path: Path) -> None:
    """Rather than taken for nothing."""
    path = tmp_path / "meminfo"
    path.write_text(AFTER_A_COPY.replace("MemAvailable", "MemAvail"))
    with pytest.raises(OSError, match="it has no MemAvailable"):
        memory.meminfo(path)


def test_this_machine_is_read() -> None:
    """The real files have the form that is expected."""
    found = memory.meminfo()
    assert 0 < found.available <= found.total


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "some avg10=1.53 avg60=0.88 avg300=0.20 total=8432\nfull avg10=0.41 avg60=0.02 avg300=0.00 total=701\n",
            Pressure(1.53, 0.41),
        ),
        ("some avg10=1.53 avg60=0.88 avg300=0.20 total=8432\n", None),
        ("some avg10=?\n", None),
        ("\n", None),
    ],
)
def test_pressure(tmp_path: Path, text: str, wanted: Pressure | None) -> None:
    """What cannot be read is not known, and that is no fault: a kernel may be built without it."""
    path = tmp_path / "memory"
    path.write_text(text)
    assert memory.psi(path) == wanted
    assert memory.psi(tmp_path / "absent") is None


def test_processes_of_a_cgroup(tmp_path: Path) -> None:
    """Those below it too; a cgroup that is not there has none."""
    for name, pids in (("slice", ""), ("slice/docker-1.scope", "41\n42\n"), ("slice/docker-1.scope/init", "43\n")):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "cgroup.procs").write_text(pids)
    assert sorted(memory.processes([tmp_path / "slice", tmp_path / "absent"])) == [41, 42, 43]


@pytest.mark.parametrize(("events", "wanted"), [("populated 1\nfrozen 0\n", True), ("populated 0\nfrozen 0\n", False)])
def test_whether_a_rank_is_there(tmp_path: Path, events: str, wanted: bool) -> None:
    """One file says so."""
    (tmp_path / "cgroup.events").write_text(events)
    assert memory.is_populated([tmp_path / "absent", tmp_path]) is wanted
    assert memory.is_populated([tmp_path / "absent"]) is False


@pytest.mark.report("MEM-01", "MEM-02")
def test_a_full_page_cache_is_dropped(tmp_path: Path) -> None:
    """Pages only, and it is told what that was for."""
    info, switch = meminfo_file(tmp_path, free=2, available=117, cached=114), tmp_path / "drop_caches"
    said = memory.drop_page_cache(switch, info)
    assert switch.read_text() == "1"
    wanted = "dropped the page cache: 114.0 GiB were cached, 114.0 GiB are; 2.0 GiB were free, 2.0 GiB are"
    assert said == wanted  # the file of this test does not change by it


@pytest.mark.report("MEM-01")
@pytest.mark.parametrize(
    ("free", "available", "cached"),
    [
        (112, 115.5, 3.9),  # less than another kit finds worth it
        (60, 62, 40),  # what is cached is tmpfs, or mapped and in use: it would not come back
        (2, 3, 1),  # somebody else has the memory: dropping helps nobody
    ],
)
def test_what_would_not_help_is_left(tmp_path: Path, free: float, available: float, cached: float) -> None:
    """A cache is somebody's speed."""
    info, switch = meminfo_file(tmp_path, free, available, cached), tmp_path / "drop_caches"
    assert memory.drop_page_cache(switch, info) == ""
    assert not switch.exists()


def test_a_cache_that_cannot_be_dropped_is_told(tmp_path: Path) -> None:
    """In a container /proc/sys is read-only: the start goes on."""
    info = meminfo_file(tmp_path, free=2, available=117, cached=114)
    assert memory.drop_page_cache(tmp_path, info) == f"the page cache could not be dropped: {tmp_path}: Is a directory"


def feed(emergency: Emergency, *samples: tuple[float, int]) -> list[bool]:
    return [emergency.feed(now, available) for now, available in samples]


@pytest.mark.report("MEM-07")
def test_an_emergency_takes_three_seconds() -> None:
    """On end: one sample above the threshold begins anew. Then it is said once."""
    emergency = Emergency(100)
    below = [(0.0, 99), (1.0, 50), (2.0, 99), (3.0, 99)]
    assert feed(emergency, *below) == [False, False, False, True]
    assert feed(emergency, (4.0, 99), (5.0, 99), (6.5, 99), (7.0, 99)) == [False, False, False, True]
    assert feed(emergency, (8.0, 99), (9.0, 100), (10.0, 99), (11.5, 99)) == [False] * 4


def test_a_gap_is_no_proof() -> None:
    """What was between two samples nobody saw."""
    assert feed(Emergency(100), (0.0, 99), (9.0, 99), (9.5, 99)) == [False, False, True]


def test_a_threshold_of_nothing_is_never_reached() -> None:
    assert feed(Emergency(0), *[(float(second), 0) for second in range(10)]) == [False] * 10


@given(st.lists(st.tuples(st.floats(0.1, 2.0), st.integers(0, 200)), max_size=40))
def test_an_emergency_is_never_said_early(steps: list[tuple[float, int]]) -> None:
    """Whenever it is said, every sample of the three seconds before was below."""
    emergency, now, seen = Emergency(100), 0.0, []
    for step, available in steps:
        now += step
        seen.append((now, available))
        if emergency.feed(now, available):
            recent = [value for at, value in seen if at > now - 3.0]
            assert all(value < 100 for value in recent)
            assert now - seen[0][0] >= 3.0


@pytest.mark.report("MEM-10", "MEM-12")
def test_the_engine_goes_first(tmp_path: Path) -> None:
    """Its processes get the score, once; those that ended are passed over, and a higher score stays."""
    for pid, score in ((41, 0), (42, 500), (43, 900), (45, -100)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "oom_score_adj").write_text(f"{score}\n")
    assert memory.spare([41, 42, 43, 44, 45], 500, tmp_path) == 2
    scores = [int((tmp_path / str(pid) / "oom_score_adj").read_text()) for pid in (41, 42, 43, 45)]
    assert scores == [500, 500, 900, 500]


def test_a_real_process_is_told() -> None:
    """The kernel takes the score."""
    child = os.fork()
    if child == 0:
        os._exit(0 if memory.spare([os.getpid()], 501) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(("text", "wanted"), [('{"floor": 1}', {"floor": 1}), ("[1]", {}), ('{"flo', {}), (None, {})])
def test_what_the_recorder_wrote(tmp_path: Path, text: str | None, wanted: dict[str, object]) -> None:
    """What cannot be read is nothing."""
    path = tmp_path / "memory.json"
    if text is not None:
        path.write_text(text)
    assert memory.recorded(path) == wanted
