"""Nodes that cannot be reached: one line each and one sentence, whatever ssh's library has to say of it."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path

from tests import repository

INVENTORY = """
from spec.transport import ssh

def node(last):
    return {{
        **ssh("127.0.0.1", "alice", port={port}),
        "ssh_connect_retries": 0,
        "management_address": f"192.168.1.{{last}}",
        "rails": [{{"netdev": "enp1s0f0np0", "hca": "rocep1s0f0", "address": f"10.200.0.{{last}}/24"}}],
    }}

head = [("spark-a", node(10))]
worker = [("spark-b", node(11))]
"""


def dry(directory: Path, port: int, *options: str) -> tuple[int, str]:
    """A plan against that port: its exit code, and all that it said."""
    (directory / "inventory.py").write_text(INVENTORY.format(port=port))
    command = Path(sys.executable).with_name("pyinfra")
    words = [
        "--config",
        repository.ROOT / "config.py",
        "--dry",
        *options,
        "inventory.py",
        repository.ROOT / "deploy.py",
    ]
    done = subprocess.run([command, *words], cwd=directory, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_port_that_accepts_and_says_nothing_is_one_line_per_node(tmp_path: Path) -> None:
    """As a wedged node, or one whose sshd is being started, looks from outside."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_close_each, args=(listening,), daemon=True).start()
        code, said = dry(tmp_path, listening.getsockname()[1])
    assert code == 1, said
    assert "Traceback" not in said
    for name in ("spark-a", "spark-b"):
        assert f"[{name}] SSH error" in said, said
    assert "spark-a, spark-b cannot be reached (said above, with the reason); no node was changed" in said, said


def test_settings_are_judged_before_a_node_is_reached(tmp_path: Path) -> None:
    """A typo is told although no node answers, and at once."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    code, said = dry(tmp_path, port, "--data", "max_nun_seqs=3", "--data", "preset=many-agents")
    assert code == 1, said
    assert "Traceback" not in said
    assert "SSH error" not in said
    assert said.rstrip().endswith(
        "Settings refused; no node was changed.\n"
        "  --data: max_nun_seqs: no such knob (did you mean max_num_seqs? docs/knobs.md)"
    ), said


def _close_each(listening: socket.socket) -> None:
    while True:
        try:
            listening.accept()[0].close()
        except OSError:
            return
