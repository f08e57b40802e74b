"""How pyinfra reaches a node: SSH without Nagle's delay. Imports nothing of ours, so that any inventory may use it.

A refusal is pyinfra's own InventoryError, which pyinfra prints as one line; any other exception in an inventory is
printed with a traceback.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
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


def changed_host_key(name: str, shown: paramiko.PKey, pinned: paramiko.PKey, file: str | None) -> str:
    """What is said of a node that shows another host key than the one that this machine has pinned. `name` is as ssh
    looks it up: the address, or [address]:port."""
    place = file or str(Path.home() / ".ssh/known_hosts")
    line = _line(place, name, pinned)
    at = f"{place} line {line}" if line else place
    return (
        f"its ssh host key has changed: {name} shows {fingerprint(shown)}, and {at} has {fingerprint(pinned)}. It was "
        "not accepted: somebody else may answer there\n"
        "    Fix: if you know why it changed (installed anew, another board): compare on the node's own console,\n"
        "      ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub; where it is the same, forget the old one and run "
        "again:\n"
        f"      ssh-keygen -R {shlex.quote(name)} -f {shlex.quote(place)}"
    )


def fingerprint(key: paramiko.PKey) -> str:
    """As ssh-keygen -l says it."""
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    return f"{key.get_name()} SHA256:{digest}"


def _line(file: str, name: str, pinned: paramiko.PKey) -> int | None:
    """Where in the file that key stands for that name, hashed names among them."""
    try:
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for number, line in enumerate(lines, 1):
        keys = paramiko.HostKeys()
        try:
            entry = paramiko.hostkeys.HostKeyEntry.from_line(line, number)
        except (paramiko.SSHException, paramiko.hostkeys.InvalidHostKey, ValueError):
            continue
        if entry is not None and entry.key == pinned:
            keys.add(entry.hostnames[0], pinned.get_name(), pinned)
            if name in entry.hostnames or keys.lookup(name) is not None:
                return number
    return None
