"""A secret of the engine's: one line in a file of root's alone, read where it is needed and told to nobody. What is
compared and told is its identity, from which it cannot be found without the node's own machine-id.

Plain values: the deploy sends this module to a node with its probe, before anything is installed there.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat

DIRECTORY = "/etc/sparkpair/secrets/"
MACHINE_ID = "/etc/machine-id"
SHORTEST, LONGEST = 16, 4096
"""Characters of a usable secret."""


class SecretError(Exception):
    """A secret cannot be used. The message says why, and nothing of what the file holds."""


class Missing(SecretError):
    """There is no such file."""


def is_place(path: str) -> bool:
    """Whether a secret may lie there: right below the one directory."""
    return re.fullmatch(re.escape(DIRECTORY) + "[A-Za-z0-9][A-Za-z0-9._-]*", path) is not None


def read(path: str) -> str:
    """The secret in a file. Raises SecretError, which names the file."""
    try:
        return _usable(_bytes(path))
    except SecretError as error:
        raise type(error)(f"{path} {error}") from None


def identity(secret: str, machine_id: str = MACHINE_ID) -> str:
    """What tells this secret from another on this node, 64 hex digits. It costs 4 MiB and some 15 ms to find for one
    guess, and the salt stays on the node. Raises SecretError."""
    try:
        with open(machine_id, "rb") as stream:
            salt = stream.read().strip()
    except OSError as error:
        raise SecretError(f"{machine_id} cannot be read: {error.strerror}") from None
    if not salt:
        raise SecretError(f"{machine_id} is empty; sudo systemd-machine-id-setup fills it")
    try:
        return hashlib.scrypt(secret.encode(), salt=salt, n=2**12, r=8, p=1, dklen=32).hex()
    except (AttributeError, ValueError):  # an OpenSSL that was built, or told, to go without it
        raise SecretError("cannot be told apart: this Python has no scrypt") from None


def describe(path: str, machine_id: str = MACHINE_ID) -> dict[str, object]:
    """What a deploy may know of a secret, as JSON: whether it is there, its identity, and else what is wrong."""
    try:
        return {"present": True, "identity": identity(_usable(_bytes(path)), machine_id), "trouble": ""}
    except Missing:
        return {"present": False, "identity": None, "trouble": ""}
    except SecretError as error:
        return {"present": True, "identity": None, "trouble": str(error)}


def _bytes(path: str) -> bytes:
    try:
        # Whatever lies there instead of a file is neither followed nor waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise SecretError("is not a file")
            return stream.read(LONGEST + 2)
    except FileNotFoundError:
        raise Missing("is missing; deploy.py makes one") from None
    except OSError as error:
        why = "is a link" if error.errno == errno.ELOOP else f"cannot be read: {error.strerror}"
        raise SecretError("is not a file" if error.errno == errno.EISDIR else why) from None


def _usable(data: bytes) -> str:
    line = data[:-1] if data.endswith(b"\n") else data
    if not line.strip():
        raise SecretError("is empty")
    if b"\n" in line:
        raise SecretError("has more than one line")
    if not all(33 <= byte <= 126 for byte in line):
        raise SecretError("has blanks, or characters that are not printable ASCII")
    if len(line) < SHORTEST:
        raise SecretError(f"has fewer than {SHORTEST} characters")
    if len(line) > LONGEST:
        raise SecretError(f"has more than {LONGEST} characters")
    return line.decode("ascii")
