"""The forced command of the keeper's key: joins stdin and stdout to the agent's socket and can do nothing else."""

from __future__ import annotations

import os
import socket
import sys
import threading

from node import paths


def main(argv: list[str]) -> int:
    """Copy both ways until one side ends. Exit 1 when the agent does not answer."""
    if argv:
        print("bridge takes no arguments", file=sys.stderr)
        return 2
    agent = socket.socket(socket.AF_UNIX)
    try:
        agent.connect(str(paths.AGENT_SOCKET))
    except OSError as error:
        print(f"{paths.AGENT_SOCKET}: {error.strerror}. Is sparkpair-agent.service running?", file=sys.stderr)
        return 1
    threading.Thread(target=_copy_in, args=(agent,), daemon=True).start()
    while data := agent.recv(65536):
        _write_all(data)
    return 0


def _copy_in(agent: socket.socket) -> None:
    while data := os.read(0, 65536):
        try:
            agent.sendall(data)
        except OSError:
            break
    # The keeper has gone: the agent answers what it has read and closes, which ends the main thread too.
    try:
        agent.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def _write_all(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]
