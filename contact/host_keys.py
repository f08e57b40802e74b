"""Host keys: what known_hosts says of a node, and a line for one that the operator confirmed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.hostkeys import HostKeyEntry

from contact.place import Place
from contact.words import Refused


@dataclass(frozen=True)
class Known:
    """A line of a known_hosts file that is about this node."""

    file: Path
    line: int
    key: paramiko.PKey


def known(place: Place) -> tuple[Known, ...]:
    """All that is pinned of this node. Raises Refused where a file is there and cannot be read."""
    found = []
    for file in place.known_hosts:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Refused([f"{file}: cannot be read ({error.strerror}), so no host key can be compared"]) from None
        found += [Known(file, number, key) for number, key in _keys(text, place.known_as)]
    return tuple(found)


def _keys(text: str, name: str) -> Iterator[tuple[int, paramiko.PKey]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith(("#", "@")):
            continue
        try:
            entry = HostKeyEntry.from_line(line)
        except Exception:  # a damaged line is about nobody
            continue
        if entry is not None and any(_is_named(pattern, name) for pattern in entry.hostnames):
            yield number, entry.key


def _is_named(pattern: str, name: str) -> bool:
    if pattern.startswith("|1|"):
        try:
            return paramiko.HostKeys.hash_host(name, pattern) == pattern
        except Exception:
            return False
    return pattern == name


def judge(place: Place, key: paramiko.PKey) -> bool:
    """Whether this key is pinned already. Raises Refused where another one is: it is never taken in its place."""
    pinned = known(place)
    if any(one.key == key for one in pinned):
        return True
    other = next((one for one in pinned if one.key.get_name() == key.get_name()), None)
    if other is None:
        return False
    raise Refused(
        [
            f"{place.where}: its host key is not the one that is pinned, so nothing was sent to it",
            f"  it shows {key.fingerprint} ({key.get_name()})",
            f"  pinned is {other.key.fingerprint} ({other.file}, line {other.line})",
            "  Another machine may answer at this address, or somebody between. Compare at the node itself, on its own "
            "screen: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
            f"  If it was installed anew: ssh-keygen -R '{place.known_as}', then run this again",
        ]
    )


def pin(place: Place, key: paramiko.PKey) -> None:
    """A line at the end of the first file. Raises Refused."""
    file = place.known_hosts[0]
    line = f"{place.known_as} {key.get_name()} {key.get_base64()}\n"
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as known_hosts:
            size = known_hosts.seek(0, os.SEEK_END)
            if size:
                known_hosts.seek(size - 1)
                if known_hosts.read(1) != b"\n":
                    line = "\n" + line
            known_hosts.write(line.encode())
    except OSError as error:
        raise Refused([f"{file}: cannot be written ({error.strerror}), so the host key is not pinned"]) from None
