"""How pyinfra reaches a node: SSH without Nagle's delay. Imports nothing of ours, so that any inventory may use it.

A refusal is pyinfra's own InventoryError, which pyinfra prints as one line; any other exception in an inventory is
printed with a traceback.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import paramiko
from pyinfra.api.exceptions import InventoryError


def ssh(host: str, user: str, key: str | None = None, port: int = 22, known_hosts: str | None = None) -> dict[str, Any]:
    """pyinfra's connection data for one node. `key` is the file of a private key on this machine; without it the SSH
    agent and the usual keys are tried. `known_hosts` is a file of host keys to use instead of ~/.ssh/known_hosts."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.:-]*", host):
        raise InventoryError(f"inventory: host = {host!r}: must be an address or a host name, without user and port")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", user):
        raise InventoryError(f"inventory: {host}: user = {user!r}: must be the name of a user on the node")
    if isinstance(port, bool) or not 1 <= port <= 65535:
        raise InventoryError(f"inventory: {host}: port = {port!r}: must be 1 to 65535")
    data: dict[str, Any] = {
        "ssh_hostname": host,
        "ssh_user": user,
        "ssh_port": port,
        # A node that has just rebooted refuses the first connections.
        "ssh_connect_retries": 3,
        "ssh_connect_retry_min_delay": 1.0,
        "ssh_connect_retry_max_delay": 3.0,
        "ssh_paramiko_connect_kwargs": {"transport_factory": _without_nagle},
    }
    if key is not None:
        data["ssh_key"] = _key(host, key)
    if known_hosts is not None:
        data["ssh_known_hosts_file"] = str(Path(known_hosts).expanduser())
    return data


def _key(host: str, key: str) -> str:
    """The key's file with ~ expanded. Checked here: pyinfra would only say that no authentication method is left."""
    path = Path(key).expanduser()
    if not path.is_file():
        raise InventoryError(
            f"inventory: {host}: key = {key!r}: no such file on this machine; name one of ~/.ssh, make one with "
            f"ssh-keygen -t ed25519, or leave key out to use your SSH agent"
        )
    if path.suffix == ".pub":
        raise InventoryError(
            f"inventory: {host}: key = {key!r}: is the public half; name the private one, {path.with_suffix('').name}"
        )
    return str(path)


def _without_nagle(sock: Any, **arguments: Any) -> paramiko.Transport:
    """A transport with Nagle's algorithm off; paramiko leaves it on, at 48 ms per command instead of 3 (pyinfra
    3.10)."""
    # The channel through a jump host is no socket and has no such option.
    if hasattr(sock, "setsockopt"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return paramiko.Transport(sock, **arguments)
