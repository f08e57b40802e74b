"""One deploy at a time: a lock on the head, held by a program at the other end of a channel of this very run.

The program ends when the channel does, and when nothing has come through it for a while: a deploy that was killed, or
whose network is gone, holds no lock. It says who holds it, so that a second deploy can say whom to ask.
"""

from __future__ import annotations

import getpass
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import gevent
from gevent.lock import RLock
from pyinfra.api.exceptions import OperationError
from pyinfra.api.host import Host
from pyinfra.context import ctx_state

PATH = "/run/lock/sparkpair-deploy.lock"
BEAT_SECONDS = 5.0
SILENCE_SECONDS = 45.0
ANSWER_SECONDS = 20.0

# Holds the lock while it hears something; the second argument says who holds it.
HOLDER = """
import fcntl, os, select, sys
path, who, silence = sys.argv[1], sys.argv[2], float(sys.argv[3])
file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("held " + (os.read(file, 1000).decode(errors="replace").strip() or "{}"), flush=True)
    sys.exit(1)
os.ftruncate(file, 0)
os.write(file, who.encode())
print("ours", flush=True)
while select.select([0], [], [], silence)[0] and os.read(0, 100):
    pass
os.ftruncate(file, 0)
"""


class Channel(Protocol):
    """Two ends of a program on the head."""

    def read_line(self) -> str: ...
    def write(self, data: bytes) -> None: ...
    def ended(self) -> bool: ...
    def close(self) -> None: ...


class _Ssh:
    """A channel of pyinfra's own connection."""

    def __init__(self, client: Any, command: str) -> None:
        self._channel = client.get_transport().open_session(timeout=ANSWER_SECONDS)
        self._channel.settimeout(ANSWER_SECONDS)
        self._channel.exec_command(command)

    def read_line(self) -> str:
        line = b""
        while not line.endswith(b"\n"):
            part = self._channel.recv(1)
            if not part:
                break
            line += part
        return line.decode(errors="replace").strip()

    def write(self, data: bytes) -> None:
        # Not sendall: on a channel that has been closed it tries for ever.
        if self._channel.send(data) == 0:
            raise OSError("the channel is closed")

    def ended(self) -> bool:
        return bool(self._channel.closed or self._channel.exit_status_ready())

    def close(self) -> None:
        """Let go, and wait until the holder has: the next look must not meet it."""
        self._channel.shutdown_write()
        self._channel.recv_exit_status()
        self._channel.close()


class _Pipe:
    """A child process; its end of the pipe closes with this process."""

    def __init__(self, command: str) -> None:
        self._process = subprocess.Popen(
            ["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def read_line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode(errors="replace").strip()

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@dataclass
class _Lock:
    """The lock of this run; it is taken once, by whichever host comes first."""

    turn: Any = field(default_factory=RLock)
    head: Host | None = None
    channel: Channel | None = None
    refusal: str = ""
    lost: str = ""


_lock = _Lock()


def is_real_run() -> bool:
    """Whether this run will change anything. pyinfra tells a deploy nothing of --dry."""
    words = set(sys.argv)
    if {"--dry", "--debug-operations", "--debug-facts"} & words:
        return False
    return "--json" not in words or not ctx_state.get().check_for_changes


def claim(head: Host) -> str:
    """Before a real run: the refusal if another deploy is at work, else nothing.

    A run that will ask its operator first only looks, and takes the lock at its first step: nothing is heard from it
    while it waits at the prompt.
    """
    with _lock.turn:
        if _lock.head is None:
            _lock.head = head
            _lock.refusal = _take(head)
            if ctx_state.get().check_for_changes:
                channel, _lock.channel = _lock.channel, None
                if channel is not None:
                    channel.close()
            else:
                _keep()
        return _lock.refusal


def must_hold() -> None:
    """Have the lock before a step, or raise OperationError: without it another deploy may be at work."""
    with _lock.turn:
        if _lock.head is None:
            return
        if _lock.channel is None:
            refusal = _take(_lock.head)
            if refusal:
                raise OperationError(f"{refusal}\n  This run has changed nothing.")
            _keep()
        elif _lock.lost or _lock.channel.ended():
            raise OperationError(
                f"the deploy lock on {_lock.head.name} was lost ({_lock.lost or 'its holder ended'}); stopped before "
                "the next step. Run the same command again: it goes on where this run stopped"
            )


def _take(head: Host) -> str:
    who = {
        "who": f"{getpass.getuser()}@{socket.gethostname()}",
        "pid": os.getpid(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S %Z"),
    }
    holder = ["/usr/bin/python3", "-ISB", "-c", HOLDER, PATH, json.dumps(who), str(SILENCE_SECONDS)]
    line = f'if [ "$(id -u)" = 0 ]; then exec {shlex.join(holder)}; else exec {shlex.join(["sudo", "-n", *holder])}; fi'
    channel = _open(head, f"exec sh -c {shlex.quote(line)}")
    if channel is None:
        return ""
    answer = channel.read_line()
    if answer == "ours":
        _lock.channel, _lock.lost = channel, ""
        return ""
    if not answer.startswith("held "):
        return f"{head.name}: the deploy lock could not be taken: {answer or 'no answer'}"
    try:
        other = json.loads(answer.removeprefix("held "))
        name = f"that of {other['who']} (process {other['pid']}, since {other['since']})"
    except (ValueError, KeyError, TypeError):
        name = "that of somebody who left no name"
    return (
        f"another deploy is at work, {name}.\n"
        f"    Fix: wait until it has ended. On {head.name}, what the keeper does is told by: sudo sparkpair follow"
    )


def _open(head: Host, command: str) -> Channel | None:
    """None for a connector that has no channel to hold, as the one that only pretends."""
    client = getattr(head.connector, "client", None)
    if client is not None:
        return _Ssh(client, command)
    if head.name.startswith("@local"):
        return _Pipe(command)
    return None


def _keep() -> None:
    """Let the holder hear from this run from now on."""
    if _lock.channel is not None:
        gevent.spawn(_beat, _lock.channel)


def _beat(channel: Channel) -> None:
    while channel is _lock.channel:
        try:
            channel.write(b".")
        except OSError as error:
            _lock.lost = str(error) or "the connection is gone"
            return
        gevent.sleep(BEAT_SECONDS)
