"""The programs as processes: bridge, agent and the sparkpair command, on sockets of the test's own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

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


def test_node_programs_import_nothing_but_the_standard_library():
    done = program(
        "import sys; sys.path.insert(0, '.'); before = set(sys.modules)\n"
        "import node.agent, node.keeper, node.cli, node.support, node.updates, node.bridge, node.main\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(name for name in new if name not in sys.stdlib_module_names and name != 'node'))",
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
