"""A node as the operator names it, and how ssh reaches it from here: as a deploy will, by ~/.ssh/config too."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyinfra.connectors.sshuserclient.client import SSHClient, get_ssh_config

from contact.words import Refused

PORT = 22
CONNECT_SECONDS = 10.0
_WORD = re.compile(r"(?:([A-Za-z_][A-Za-z0-9_.-]*)@)?([A-Za-z0-9][A-Za-z0-9.-]*)(?::([0-9]{1,5}))?")


@dataclass(frozen=True)
class Place:
    """One node: `host` as it was named, `target` what that means to ssh."""

    host: str
    user: str
    port: int
    target: str
    known_hosts: tuple[Path, ...]
    """Files of host keys; new ones go into the first."""
    identities: tuple[str, ...] = ()
    """Private keys that ~/.ssh/config names for it."""
    hops: tuple[str, ...] = ()
    """The machines through which ~/.ssh/config leads there."""
    by_program: bool = False
    """Whether it leads there through a program."""

    @property
    def where(self) -> str:
        """How messages name it."""
        return f"{self.user}@{self.host}" + (f":{self.port}" if self.port != PORT else "")

    @property
    def known_as(self) -> str:
        """Its name in known_hosts."""
        return self.target if self.port == PORT else f"[{self.target}]:{self.port}"

    def connect(self) -> Any:
        """A socket to its ssh. Raises OSError, or paramiko's SSHException of a jump host."""
        if self.hops or self.by_program:
            return SSHClient().parse_config(self.host, {"port": self.port})[1]["sock"]  # type: ignore[no-untyped-call]
        sock = socket.create_connection((self.target, self.port), CONNECT_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock


def parse(word: str, user: str | None) -> Place:
    """[user@]host[:port] as a place. Raises Refused."""
    found = _WORD.fullmatch(word)
    if found is None or not 1 <= int(found[3] or PORT) <= 65535:
        raise Refused([f"{word}: must be an address or a host name, such as 192.168.1.10 or alice@spark-a.local"])
    host = found[2]
    config = _ssh_config(host)
    who = found[1] or user or config.get("user") or _me()
    if not who:
        raise Refused([f"{word}: nobody said who logs in there; name the user, such as alice@{host}"])
    files = str(config.get("userknownhostsfile", "~/.ssh/known_hosts")).split()
    return Place(
        host=host,
        user=str(who),
        port=int(found[3] or PORT),
        target=str(config.get("hostname", host)),
        known_hosts=tuple(Path(file).expanduser() for file in files),
        identities=tuple(config.get("identityfile", ())),
        hops=tuple(word.strip() for word in str(config.get("proxyjump", "")).split(",") if word.strip()),
        by_program="proxycommand" in config,
    )


def _ssh_config(host: str) -> Mapping[str, Any]:
    """What ~/.ssh/config says of a host, as pyinfra reads it."""
    try:
        config = get_ssh_config(None)
        return config.lookup(host) if config else {}
    except Exception as error:  # whatever its parser trips over
        raise Refused([f"~/.ssh/config: cannot be read for {host}: {error}"]) from None


def _me() -> str:
    try:
        return getpass.getuser()
    except (KeyError, ImportError, OSError):
        return ""
