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

head = [("spark-a", {{**ssh("127.0.0.1", "alice", port={port}), "ssh_connect_retries": 0}})]
worker = [("spark-b", {{**ssh("127.0.0.1", "alice", port={port}), "ssh_connect_retries": 0}})]
"""


def test_a_port_that_accepts_and_says_nothing_is_one_line_per_node(tmp_path: Path) -> None:
    """As a wedged node, or one whose sshd is being started, looks from outside."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_close_each, args=(listening,), daemon=True).start()
        (tmp_path / "inventory.py").write_text(INVENTORY.format(port=listening.getsockname()[1]))
        command = Path(sys.executable).with_name("pyinfra")
        argv = [
            command,
            "--config",
            repository.ROOT / "config.py",
            "--dry",
            "inventory.py",
            repository.ROOT / "deploy.py",
        ]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "Traceback" not in said
    for name in ("spark-a", "spark-b"):
        assert f"[{name}] SSH error" in said, said
    assert "spark-a, spark-b cannot be reached (said above, with the reason); no node was changed" in said, said


def _close_each(listening: socket.socket) -> None:
    while True:
        try:
            listening.accept()[0].close()
        except OSError:
            return
