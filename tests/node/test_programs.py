"""The programs as processes: bridge, agent and the sparkpair command, on sockets of the test's own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from node import cli, paths, wire
from node.link import ssh_argv

ROOT = Path(__file__).parents[2]


def program(code: str, **run: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-sB", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
        **run,  # type: ignore
    )


def test_the_bridge_joins_both_ways_and_ends_with_the_keeper(tmp_path: Path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def answer() -> None:
            client, _ = server.accept()
            with client:
                while data := client.recv(100):
                    client.sendall(data.upper())

        thread = threading.Thread(target=answer)
        thread.start()
        done = program(
            f"import pathlib; from node import bridge, paths; paths.AGENT_SOCKET = pathlib.Path({str(path)!r}); "
            "raise SystemExit(bridge.main([]))",
            input="hello\n",
        )
        thread.join()
    assert done.returncode == 0
    assert done.stdout == "HELLO\n", "what was asked before the end is still answered"


def test_the_bridge_says_what_is_wrong_when_there_is_no_agent(tmp_path: Path):
    done = program(
        f"import pathlib; from node import bridge, paths; paths.AGENT_SOCKET = pathlib.Path({str(tmp_path / 's')!r}); "
        "raise SystemExit(bridge.main([]))",
        input="",
    )
    assert done.returncode == 1
    assert done.stderr == f"{tmp_path / 's'}: No such file or directory. Is sparkpair-agent.service running?\n"


@pytest.mark.parametrize("word", ["bridge", "agent", "keeper"])
def test_services_take_no_arguments(word: str):
    done = subprocess.run(
        [sys.executable, "-sB", "-m", "node.main", word, "sh", "-c", "id"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, f"{word} takes no arguments\n")


def test_ssh_uses_our_key_and_our_pin_only():
    argv = ssh_argv(1)("10.200.0.2")
    assert argv[:5] == ["ssh", "-F", "/dev/null", "-T", "-i"]
    assert argv[5] == "/etc/sparkpair/ssh/id_ed25519"
    assert argv[-1] == "sparkpair@10.200.0.2"
    options = set(argv[argv.index("-o") :])
    assert {
        "StrictHostKeyChecking=yes",
        "IdentitiesOnly=yes",
        "BatchMode=yes",
        "GlobalKnownHostsFile=/dev/null",
        "UserKnownHostsFile=/etc/sparkpair/ssh/known_hosts",
        "HostKeyAlias=sparkpair-rank1",
    } <= options


STATUS = {
    "phase": "running",
    "since": "2026-11-30T18:00:00+0000",
    "reason": "",
    "desired": "run",
    "accepted": "a" * 64,
    "last_good": "a" * 64,
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


def test_status_reads_well():
    assert cli.describe(STATUS) == (
        "running since 2026-11-30T18:00:00+0000\n"
        "generation aaaaaaaaaaaa (the last that passed its gates)\n"
        "rank 0 on spark-a: running\n"
        "rank 1 on spark-b: exited with code 137, by 10.200.0.2, rail without carrier\n"
        "starts 2, of which answered 2; failures 1; canaries 9\n"
        "last failure 2026-11-30T17:00:00+0000: rank 1: the container exited with code 137"
    )
    assert cli.last_lines(STATUS["last_failure"]) == [  # type: ignore[arg-type]
        "rank 0, last lines:",
        "  a",
        "  b",
        "rank 1, last lines:",
        "  (none)",
    ]


def serve_status(path: Path, phases: list[str]) -> threading.Thread:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def run() -> None:
        with server:
            for phase in phases:
                client, _ = server.accept()
                with client:
                    client.recv(4096)
                    client.sendall(wire.encode({"ok": True, "status": {**STATUS, "phase": phase}}))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("phases", "code"),
    [(["starting", "gating", "running"], 0), (["stopping", "resting"], 1), (["stopped"], 3)],
)
def test_follow_prints_each_phase_once_and_says_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], phases: list[str], code: int
):
    monkeypatch.setattr(paths, "KEEPER_SOCKET", tmp_path / "k")
    monkeypatch.setattr(cli, "FOLLOW_POLL_SECONDS", 0.01)
    thread = serve_status(tmp_path / "k", phases)
    assert cli.main(["follow"]) == code
    thread.join()
    printed = [line for line in capsys.readouterr().out.splitlines() if "rank 0 running" in line]
    assert printed == [f"{phase} (rank 0 running, rank 1 exited)" for phase in phases]


def test_no_keeper_is_its_own_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(paths, "KEEPER_SOCKET", tmp_path / "k")
    assert cli.main(["status"]) == 4
    assert capsys.readouterr().err == (
        f"the keeper does not answer on {tmp_path / 'k'} (No such file or directory). Is this the head? "
        "systemctl status sparkpair-keeper; journalctl -u sparkpair-keeper\n"
    )


def test_status_as_json_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(paths, "KEEPER_SOCKET", tmp_path / "k")
    thread = serve_status(tmp_path / "k", ["running"])
    assert cli.main(["status", "--json"]) == 0
    thread.join()
    assert json.loads(capsys.readouterr().out) == STATUS


def test_node_programs_import_nothing_but_the_standard_library():
    done = program(
        "import sys; sys.path.insert(0, '.'); before = set(sys.modules)\n"
        "import node.agent, node.keeper, node.cli, node.bridge, node.main\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(name for name in new if name not in sys.stdlib_module_names and name != 'node'))",
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
