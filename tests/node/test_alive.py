"""What the processes of a rank show."""

from __future__ import annotations

from pathlib import Path

from node import alive

IO = "rchar: 9\nwchar: 9\nread_bytes: 4096\nwrite_bytes: 512\n"


def process(root: Path, pid: int, state: str, terminal: int, ticks: int = 0) -> None:
    place = root / str(pid)
    place.mkdir()
    (place / "stat").write_text(f"{pid} (a (b) c) {state} 1 1 1 {terminal} -1 0 0 0 0 0 {ticks} {ticks} 0 0 20\n")
    (place / "io").write_text(IO)


def test_what_processes_did_and_which_of_the_engines_own_stand_still(tmp_path: Path):
    process(tmp_path, 1, "S", 0, ticks=alive.TICKS)
    process(tmp_path, 2, "T", 0)
    process(tmp_path, 3, "t", 0)  # a debugger holds it
    process(tmp_path, 4, "T", 34816)  # a person's, in docker exec -it
    seen = alive.look([1, 2, 3, 4, 5], tmp_path)
    assert seen == alive.Processes((1, 2, 3, 4, 5), stopped=1, io=4 * 4608, cpu=2.0)
