"""How pyinfra reaches a node: SSH without Nagle's delay. Imports nothing of ours, so that any inventory may use it."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import paramiko


class InventoryError(Exception):
    """An inventory states something that cannot work; the text says what to do."""


def ssh(
    host: str, user: str, key: str | None = None, port: int = 22, known_hosts: str | None = None
) -> dict[str, Any]:
    """pyinfra's connection data for one node. `key` is a private key's file on this machine; without it the agent and the
    usual keys are tried."""
    data: dict[str, Any] = {
        "ssh_hostname": host,
        "ssh_user": user,
        "ssh_port": port,
        # A node that is just rebooting refuses the first connections.
        "ssh_connect_retries": 3,
        "ssh_paramiko_connect_kwargs": {"transport_factory": _without_nagle},
    }
    if key is not None:
        data["ssh_key"] = _file(key, "ssh key")
    if known_hosts is not None:
        data["ssh_known_hosts_file"] = os.path.expanduser(known_hosts)
    return data


def _file(path: str, what: str) -> str:
    full = Path(path).expanduser()
    if not full.is_file():
        raise InventoryError(f"inventory: {what} {path} is not a file; name one that is (ls ~/.ssh), or leave it out")
    return str(full)


def _without_nagle(sock: Any, **arguments: Any) -> paramiko.Transport:
    """An SSH transport with Nagle's algorithm off: paramiko leaves it on, which costs 45 ms per command (3 ms without)."""
    # A jump host's channel is no socket and has no such option.
    if hasattr(sock, "setsockopt"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return paramiko.Transport(sock, **arguments)
