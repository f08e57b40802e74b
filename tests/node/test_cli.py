"""The sparkpair command: its words, its exit codes, and what it asks of a keeper."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from node import agent, cli, describe, paths, support, updates, wire
from node.release import RELEASE
from tests.node import world
from tests.repository import ROOT

A, B, C = "a" * 64, "ab" * 32, "c" * 64
STATUS: dict[str, Any] = {
    "phase": "running",
    "since": "2026-11-30T18:00:00+0000",
    "reason": "",
    "desired": "run",
    "accepted": A,
    "last_good": A,
    "counters": {"starts": 2, "ready": 2, "failures": 1, "canaries": 9},
    "ranks": {
        "0": {"node": "spark-a", "state": "running", "address": "", "rail_up": True, "error": ""},
        "1": {"node": "spark-b", "state": "exited", "exit_code": 137, "address": "10.200.0.2", "rail_up": False},
    },
    "last_failure": {
        "time": "2026-11-30T17:00:00+0000",
        "reason": "rank 1: the container exited with code 137",
        "logs": {"0": ["a", "b"], "1": []},
    },
}
EARLIER = (
    "running since 2026-11-30T18:00:00+0000\n"
    "generation aaaaaaaaaaaa (the last that passed its gates)\n"
    "rank 0 on spark-a: running\n"
    "rank 1 on spark-b: exited with code 137, by 10.200.0.2, rail without carrier\n"
)
MORE: dict[str, Any] = {
    "code": "7" * 64,
    "release": "0.1.0",
    "update": "the stack's image: v2.4 is out, here is v2.3",
    "memory": {"0": {"available": 3 * 2**30, "floor": 2**30}, "1": {"available": 5 * 2**30, "floor": None}},
    "gates": [
        {"gate": "warm-up", "outcome": "passed", "seconds": 21.34, "detail": ""},
        {"gate": "image", "outcome": "skipped", "seconds": 0, "detail": "the model does not see"},
        {"gate": "needle", "outcome": "failed", "seconds": 4, "detail": "no 4711 in 'I do not know'"},
    ],
    "rollback": {
        "time": "2026-11-30T16:00:00+0000",
        "from": C,
        "to": A,
        "reason": "needle failed",
        "logs": {"1": ["z"]},
    },
    "rejected": {C: {"time": "2026-11-30T16:00:00+0000", "reason": "needle failed"}},
    "generations": [
        {"engine": A, "accepted": "2026-11-30T12:00:00+0000", "good": True, "rejected": None},
        {"engine": B, "accepted": "2026-11-29T12:00:00+0000", "good": False, "rejected": "rank 1: exited"},
    ],
}


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head of its own, without a keeper."""
    for name, value in {
        "KEEPER_SOCKET": "k", "STATUS": "status.json", "HISTORY": "history.jsonl", "CURRENT": "current",
        "WANTED_SERVICE": "service.json", "UPDATE": "update.json",
    }.items():  # fmt: skip
        monkeypatch.setattr(paths, name, tmp_path / value)
    monkeypatch.setattr(cli, "FOLLOW_POLL_SECONDS", 0.01)


@contextmanager
def keeper(*answers: Mapping[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """A keeper that gives these answers, one after another; what it was asked."""
    asked: list[dict[str, Any]] = []
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(paths.KEEPER_SOCKET))
    server.listen()
    server.settimeout(10)

    def run() -> None:
        with server:
            for answer in answers:
                client, _ = server.accept()
                with client:
                    asked.append(json.loads(client.recv(65536)))
                    client.sendall(wire.encode(answer))

    thread = threading.Thread(target=run)
    thread.start()
    yield asked
    thread.join()


def says(**changes: Any) -> dict[str, Any]:
    """An answer to the question for the state."""
    return {"ok": True, "status": {**STATUS, **changes}}


def test_a_status_of_an_earlier_keeper_reads_well() -> None:
    assert describe.status(STATUS) == EARLIER + (
        "starts 2, of which answered 2; failures 1; canaries 9\n"
        "last failure 2026-11-30T17:00:00+0000: rank 1: the container exited with code 137"
    )
    assert describe.last_lines(STATUS["last_failure"]) == [
        "rank 0, last lines:",
        "  a",
        "  b",
        "rank 1, last lines:",
        "  (none)",
    ]


def test_a_status_tells_gates_memory_and_the_way_back() -> None:
    assert describe.status({**STATUS, **MORE}) == EARLIER + (
        "memory available: rank 0 3.0 GiB, lowest 1.0 GiB; rank 1 5.0 GiB\n"
        "starts 2, of which answered 2; failures 1; canaries 9\n"
        "gates, asked last: warm-up 21.3 s, image skipped, needle FAILED (no 4711 in 'I do not know')\n"
        "went back from cccccccccccc to aaaaaaaaaaaa 2026-11-30T16:00:00+0000: needle failed\n"
        "last failure 2026-11-30T17:00:00+0000: rank 1: the container exited with code 137\n"
        "the stack's image: v2.4 is out, here is v2.3\n"
        "Sparkpair 0.1.0, programs 777777777777"
    )


def test_many_rejected_launches_are_counted() -> None:
    rejected = {f"{number}" * 64: {"time": f"2026-11-0{number}", "reason": "r"} for number in range(1, 6)}
    told = [line for line in describe.status({**STATUS, "rejected": rejected}).splitlines() if "rejected" in line]
    assert [line.split()[1] for line in told] == ["555555555555", "444444444444", "333333333333", "2"]


@pytest.mark.parametrize(
    ("phase", "code"), [("running", 0), ("gating", 0), ("resting", 1), ("empty", 1), ("stopped", 3)]
)
def test_the_exit_code_of_a_status(phase: str, code: int) -> None:
    with keeper(says(phase=phase)):
        assert cli.main(["status"]) == code


def test_status_as_json_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    with keeper(says()):
        assert cli.main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == STATUS


def test_no_keeper_is_its_own_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status"]) == 4
    assert capsys.readouterr().err == (
        f"the keeper does not answer on {paths.KEEPER_SOCKET} (No such file or directory). Is this the head? "
        "systemctl status sparkpair-keeper; journalctl -u sparkpair-keeper\n"
    )


@pytest.mark.parametrize(
    ("phases", "code"),
    [(["starting", "gating", "running"], 0), (["stopping", "resting"], 1), (["stopped"], 3)],
)
def test_follow_prints_each_phase_once_and_says_how_it_ended(
    capsys: pytest.CaptureFixture[str], phases: list[str], code: int
) -> None:
    with keeper(*(says(phase=phase) for phase in phases)):
        assert cli.main(["follow"]) == code
    printed = [line for line in capsys.readouterr().out.splitlines() if "rank 0 running" in line]
    assert printed == [f"{phase} (rank 0 running, rank 1 exited)" for phase in phases]


def test_a_keeper_that_is_replaced_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    """As long as the time allows; one that stays away is told as that."""
    assert cli.main(["follow", "--timeout", "0.05"]) == 4
    assert capsys.readouterr().err.startswith("the keeper does not answer on")

    def begin() -> None:
        with keeper(says()):
            pass

    late = threading.Timer(0.1, begin)
    late.start()
    assert cli.main(["follow"]) == 0
    late.join()


@pytest.mark.parametrize("phase", ["running", "resting"])
def test_follow_ends_with_the_last_lines_of_the_launch_that_it_follows(
    phase: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gone back: 5, with the lines of the launch that was rejected; resting: 1, with those of the last failure."""
    begun = says(phase="starting", accepted=C)
    reason = "3 failures in 9 s, the last: rank 1: the container exited with code 137"
    with keeper(begun, says(**MORE, phase="starting"), says(**MORE, phase=phase, reason=reason)):
        assert cli.main(["follow", "--engine", C]) == (5 if phase == "running" else 1)
    told = capsys.readouterr().out.splitlines()
    if phase == "running":
        assert told[-3:] == [
            "went back from cccccccccccc to aaaaaaaaaaaa 2026-11-30T16:00:00+0000: needle failed",
            "rank 1, last lines:",
            "  z",
        ]
    else:
        assert told[-2:] == ["rank 1, last lines:", "  (none)"]


def test_follow_tells_no_lines_of_a_failure_that_is_not_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with keeper(says(phase="resting", reason="generation cccccccccccc is damaged on this head; run deploy.py again")):
        assert cli.main(["follow"]) == 1
    assert "last lines" not in capsys.readouterr().out


def test_follow_is_no_success_when_another_launch_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with keeper(says()):
        assert cli.main(["follow", "--engine", B]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == (
        "aaaaaaaaaaaa is served, not abababababab: another was accepted"
    )


@pytest.mark.parametrize("word", ["start", "stop", "restart"])
def test_an_order_is_passed_on_and_its_answer_told(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with keeper({"ok": True, "note": "already running"}, {"ok": False, "error": "nothing was deployed yet"}) as asked:
        assert cli.main([word]) == 0
        assert cli.main([word]) == 1
    assert asked == [{"op": word}, {"op": word}]
    said = capsys.readouterr()
    assert (said.out, said.err) == ("already running\n", "nothing was deployed yet\n")


def test_a_rejected_launch_is_accepted_when_told_twice() -> None:
    with keeper({"ok": True}, {"ok": True}) as asked:
        cli.main(["accept", A])
        cli.main(["accept", A, "--again"])
    assert asked == [{"op": "accept", "engine": A}, {"op": "accept", "engine": A, "again": True}]


LOGS = {
    "0": ["before any time", "2026-12-01T06:00:01.000000002Z one", "Traceback:", "2026-12-01T06:00:03.5Z four"],
    "1": ["2026-12-01T07:00:01.000000003+01:00 two", "2026-12-01T06:00:02Z three"],
}


def test_logs_are_one_stream_by_time(capsys: pytest.CaptureFixture[str]) -> None:
    with keeper({"ok": True, "logs": LOGS}) as asked:
        assert cli.main(["logs", "--lines", "9"]) == 0
    assert asked == [{"op": "logs", "lines": 9, "times": True}]
    assert capsys.readouterr().out.splitlines() == [
        "rank 0: before any time", "rank 0: one", "rank 0: Traceback:", "rank 1: two", "rank 1: three", "rank 0: four",
    ]  # fmt: skip


def test_logs_of_one_rank_with_their_times(capsys: pytest.CaptureFixture[str]) -> None:
    with keeper({"ok": True, "logs": LOGS}):
        assert cli.main(["logs", "--rank", "0", "--times"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "rank 0: before any time",
        "rank 0: 2026-12-01T06:00:01.000000002Z one",
        "rank 0: Traceback:",
        "rank 0: 2026-12-01T06:00:03.5Z four",
    ]


def test_there_are_only_so_many_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    with keeper({"ok": True, "logs": LOGS}):
        assert cli.main(["logs", "--rank", "2"]) == 1
    assert capsys.readouterr().err == "there is no rank 2; there are 0, 1\n"


def test_as_many_lines_as_an_agent_tells() -> None:
    assert cli.LINES_MOST == agent.LOG_LINES_ASKED


def test_a_rollback_names_the_whole_hash() -> None:
    with keeper({"ok": True}, says(**MORE), {"ok": True}) as asked:
        assert cli.main(["rollback"]) == 0
        assert cli.main(["rollback", "abab"]) == 0
    assert asked == [{"op": "rollback"}, {"op": "status"}, {"op": "rollback", "engine": B}]


def test_a_rollback_to_what_is_not_kept_lists_what_is(capsys: pytest.CaptureFixture[str]) -> None:
    twins = [{**MORE["generations"][0], "engine": "aaaa" + "0" * 60}, *MORE["generations"]]
    with keeper(says(**MORE), says(**{**MORE, "generations": twins}), says()):
        assert [cli.main(["rollback", prefix]) for prefix in ("dddd", "aaaa", "aaaa")] == [1, 1, 1]
    assert capsys.readouterr().err.splitlines() == [
        "no generation that is kept begins with dddd; there are:",
        "  aaaaaaaaaaaa  accepted 2026-11-30T12:00:00+0000, passed its gates",
        "  abababababab  accepted 2026-11-29T12:00:00+0000, rejected: rank 1: exited",
        "aaaa begins 2 generations; there are:",
        "  aaaa00000000  accepted 2026-11-30T12:00:00+0000, passed its gates",
        "  aaaaaaaaaaaa  accepted 2026-11-30T12:00:00+0000, passed its gates",
        "  abababababab  accepted 2026-11-29T12:00:00+0000, rejected: rank 1: exited",
        "no generation that is kept begins with aaaa; none is told of",
    ]


@pytest.mark.parametrize(
    ("state", "code", "end"),
    [
        ("passed", 0, []),
        ("failed", 1, ["a gate failed; the pair goes on serving"]),
        ("busy", 1, ["a gate found no free slot beside the requests that run; again when there are fewer"]),
    ],
)
def test_a_warm_up_tells_each_gate_once_and_how_it_ended(
    state: str, code: int, end: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    gates = MORE["gates"]
    pending = [says(gating="pending", gates=gates[:count]) for count in (0, 1, 1)]
    with keeper({"ok": True}, *pending, says(gating=state, gates=gates)) as asked:
        assert cli.main(["warm-up"]) == code
    assert asked[0] == {"op": "warm-up"}
    told = ["warm-up 21.3 s", "image skipped", "needle FAILED (no 4711 in 'I do not know')"]
    assert capsys.readouterr().out.splitlines() == told + end


def test_a_warm_up_that_ends_with_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    with keeper({"ok": True}, says(gating=None, phase="stopping")):
        assert cli.main(["warm-up"]) == 1
    assert capsys.readouterr().err == "the gates ended with the engine or the keeper; the pair is stopping\n"


HISTORY = (
    '{"time": "T1", "event": "accepted", "engine": "' + A + '"}\n'
    '{"time": "T2", "event": "failed", "engine": "' + A + '", "reason": "rank 1: exited"}\n'
    '{"time": "T3", "event": "ready", "engine": "' + A + '", "seconds": 51.7, "former": "' + B + '"}\n'
    '{"time": "T4", "event": "stop requ'
)


def test_history_is_a_line_per_event(capsys: pytest.CaptureFixture[str]) -> None:
    paths.HISTORY.write_text(HISTORY)
    assert cli.main(["history", "--lines", "3"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "T2  failed aaaaaaaaaaaa: rank 1: exited",
        "T3  ready aaaaaaaaaaaa (seconds 51.7, former abababababab)",
        """(unreadable: '{"time": "T4", "event": "stop requ')""",
    ]
    assert cli.main(["history", "--json"]) == 0
    assert capsys.readouterr().out == HISTORY + "\n"


def test_no_history_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["history"]) == 0
    assert capsys.readouterr().out == ""


def test_version_tells_what_is_installed_and_what_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = wire.programs_hash(wire.programs(Path(cli.__file__).parent))
    paths.CURRENT.mkdir()
    rank = {"rank": 0, "name": "n", "image": "registry/e@sha256:1", "content": [], "container": [], "mounts": []}
    rank |= {"directories": [], "env": [], "command": []}
    (paths.CURRENT / "rank0.json").write_text(json.dumps(rank))
    (paths.CURRENT / "service.json").write_text(json.dumps({"update": {"stack_release": "v2.3"}}))
    with keeper(says(code=code), says(code="7" * 64)):
        assert cli.main(["version"]) == 0
        assert cli.main(["version"]) == 0
    installed, image = (
        f"Sparkpair {RELEASE}, programs {code[:12]}",
        "image registry/e@sha256:1, release v2.3 of its stack",
    )
    assert capsys.readouterr().out.splitlines() == [
        installed,
        image,
        installed,
        "the keeper runs other programs, 777777777777; deploy.py replaces it",
        image,
    ]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "sparkpair: the following arguments are required: WORD"),
        (["logs", "--lines", "0"], "argument --lines: '0' is not a number of lines from 1 to 5000"),
        (["rollback", "xyz"], "argument HASH: 'xyz' is not 4 to 64 hex digits"),
        (["follow", "--timeout", "-1"], "argument --timeout: '-1' is not a positive number of seconds"),
        (["status", "--jsno"], "unrecognized arguments: --jsno"),
    ],
)
def test_wrong_usage_is_one_line(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(argv)
    assert end.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert said in line and line.endswith("--help")


def test_help_lists_words_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    told = capsys.readouterr().out
    assert cli.EXIT_CODES.strip() in told
    assert "warm-up" in told and "all ranks' last lines, merged by time" in told


def test_a_reader_that_has_seen_enough_is_no_failure() -> None:
    """As `sparkpair history | head -1`."""
    paths.HISTORY.write_text(HISTORY.splitlines()[0] + "\n")
    code = (
        "import pathlib; from node import cli, paths; "
        f"paths.HISTORY = pathlib.Path({str(paths.HISTORY)!r}); raise SystemExit(cli.main(['history']))"
    )
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-sB", "-c", code], cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_check_update_asks_now_whatever_was_seen_today(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And also where the knob keeps the keeper from asking."""
    data = json.loads(world.settings(8000).text)
    data |= {"update_check": False, "update": {"stack_url": "https://far/LATEST", "stack_release": "v2.3"}}
    paths.WANTED_SERVICE.write_text(json.dumps(data))
    names = iter(["v2.4", "v2.3-tier1"])
    monkeypatch.setattr(updates, "look", lambda url: next(names))
    assert [cli.main(["check-update"]), cli.main(["check-update"])] == [0, 0]

    def away(url: str) -> str:
        raise updates.NotSeen("far gave no answer within 3 s")

    monkeypatch.setattr(updates, "look", away)
    assert cli.main(["check-update"]) == 1
    paths.WANTED_SERVICE.unlink()
    assert cli.main(["check-update"]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "the stack's image: v2.4 is out, here is v2.3",
        "the stack's image: v2.3 is here, and the newest is v2.3-tier1: nothing newer",
        "the stack's image: not found out: far gave no answer within 3 s",
    ]
    assert said.err == f"{paths.WANTED_SERVICE}: No such file or directory; run deploy.py\n"


def test_a_support_bundle_needs_no_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[Any, bool]] = []

    def make(output: Path | None, status: object, *, engine_logs: bool) -> Path:
        seen.append((status, engine_logs))
        if output is not None:
            raise support.NotMade(f"{output} is there already; name another file")
        return tmp_path / "made"

    monkeypatch.setattr(support, "make", make)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert cli.main(["support-bundle", "--without-engine-logs"]) == 0
    with keeper(says()):
        assert cli.main(["support-bundle", "--output", "x"]) == 1
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert cli.main(["support-bundle"]) == 1
    [(nobody, without), (status, whole)] = seen
    assert nobody.startswith("the keeper does not answer on") and status == STATUS and (without, whole) == (False, True)
    said = capsys.readouterr()
    assert said.out == f"{tmp_path / 'made'}\n"
    assert said.err.splitlines() == [
        "x is there already; name another file",
        "what the nodes tell of themselves is root's: sudo sparkpair support-bundle",
    ]
