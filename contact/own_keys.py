"""The operator's own keys: those that log in, and the one that a node is given when none does."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from contact.words import Refused

USUAL = ("id_ed25519", "id_ecdsa", "id_rsa")
"""Files below ~/.ssh that pyinfra looks for as well."""
AGENT = "the ssh agent"
MAX_KEYS = 4
"""sshd ends a connection after six attempts (MaxAuthTries), and two passwords may be among them."""


@dataclass(frozen=True)
class OwnKey:
    """A key pair of the operator's: `place` is its file, or the agent."""

    signer: paramiko.PKey
    place: str

    @property
    def line(self) -> str:
        """As a line of authorized_keys, without a comment."""
        return f"{self.signer.get_name()} {self.signer.get_base64()}"


@dataclass(frozen=True)
class OwnKeys:
    """All that may log in, in the order in which they are tried: ~/.ssh/id_ed25519, the agent's, the others. `locked`
    are files with a passphrase."""

    keys: tuple[OwnKey, ...] = ()
    locked: tuple[Path, ...] = ()
    stated: Path | None = None

    def close(self) -> None:
        """Let go of the agent, which its keys sign by."""
        for key in self.keys:
            agent = key.signer.agent if isinstance(key.signer, paramiko.AgentKey) else None
            if isinstance(agent, paramiko.Agent):
                agent.close()

    @property
    def is_crowded(self) -> bool:
        """Whether the agent holds so many keys that a deploy, which tries those first, would be turned away."""
        return sum(key.place == AGENT for key in self.keys) > MAX_KEYS

    def to_give(self) -> OwnKey | None:
        """The key that a node is given, the first of all. None: one has to be made. Raises Refused where a file is in
        its place that nobody can use."""
        if self.keys:
            return self.keys[0]
        if self.locked:
            raise Refused(
                [
                    f"{self.locked[0]}: has a passphrase, and no agent holds the key; deploys would have to ask for it",
                    f"  ssh-add {self.locked[0]}, then run this again; or name another private key with --key",
                ]
            )
        return None


def find(stated: Path | None, others: tuple[str, ...] = ()) -> OwnKeys:
    """The operator's keys. `others` are files of ~/.ssh/config. Raises Refused where the stated file is none."""
    if stated is not None:
        return _only(stated)
    files = [Path(name).expanduser() for name in others] + [Path.home() / ".ssh" / name for name in USUAL]
    keys = {key.line: key for key in _of_agent()}
    locked = []
    for file in dict.fromkeys(files):
        if not file.is_file():
            continue
        try:
            signer = _load(file)
        except paramiko.PasswordRequiredException:
            if _public(file) not in keys:
                locked.append(file)
            continue
        except Exception:  # of a kind that paramiko, and so a deploy, cannot use
            continue
        own = OwnKey(signer, str(file))
        keys.setdefault(own.line, own)
    order = sorted(keys.values(), key=lambda key: (not key.place.endswith("id_ed25519"), key.place != AGENT))
    return OwnKeys(tuple(order), tuple(locked))


def _only(stated: Path) -> OwnKeys:
    """The one key that the operator named; the agent may hold it for a file with a passphrase."""
    try:
        signer = _load(stated)
    except paramiko.PasswordRequiredException:
        public = _public(stated)
        held = next((key for key in _of_agent() if key.line == public), None)
        return OwnKeys((held,) if held else (), () if held else (stated,), stated)
    except FileNotFoundError:
        raise Refused([f"--key {stated}: no such file; leave --key out to use ~/.ssh or your agent"]) from None
    except Exception as error:
        raise Refused([f"--key {stated}: is no private key that can be used here ({error})"]) from None
    return OwnKeys((OwnKey(signer, str(stated)),), (), stated)


def _load(file: Path) -> paramiko.PKey:
    """The private key in a file. Raises PasswordRequiredException where it has a passphrase, and whatever else."""
    try:
        return paramiko.PKey.from_path(file)
    except TypeError as error:  # cryptography's word for it, which paramiko 4.0 passes on
        raise paramiko.PasswordRequiredException(str(error)) from None


def _of_agent() -> Iterator[OwnKey]:
    try:
        agent = paramiko.Agent()
        held = agent.get_keys()
    except (paramiko.SSHException, OSError):
        return
    if not held:
        agent.close()
    for key in held:
        yield OwnKey(key, AGENT)


def _public(file: Path) -> str:
    """The public half beside a private one, without its comment; "" where there is none."""
    try:
        return " ".join(file.with_name(file.name + ".pub").read_text(encoding="utf-8").split()[:2])
    except (OSError, UnicodeDecodeError):
        return ""


def make() -> OwnKey:
    """A new ~/.ssh/id_ed25519, without a passphrase so that deploys need nobody at the keyboard. Raises Refused."""
    file = Path.home() / ".ssh" / "id_ed25519"
    private = ed25519.Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    text = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path, content, mode in (
            (file, text, 0o600),
            (file.with_suffix(".pub"), public + f" {comment()}\n".encode(), 0o644),
        ):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as written:
                written.write(content)
    except OSError as error:
        raise Refused([f"{error.filename}: cannot be written ({error.strerror}), so no key was made"]) from None
    return OwnKey(paramiko.PKey.from_path(file), str(file))


def comment() -> str:
    """Who and where, as ssh-keygen writes it: what tells an operator later whose line it is."""
    try:
        user = getpass.getuser()
    except (KeyError, ImportError, OSError):
        user = "operator"
    return f"{user}@{socket.gethostname()}"
