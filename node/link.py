"""The keeper's way to one agent: the socket on the head itself, else ssh over the rails, then over management."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from node import paths, wire
from node.journal import log

CONNECT_SECONDS = 3
RETRY_SECONDS = 1.0
POLL_SECONDS = 2.5
"""An agent answers within milliseconds; slower means that the way is cut, and the next one is tried."""


class Away(Exception):
    """The agent cannot be reached now, or did not answer in time."""


class Refusal(Exception):
    """The agent answered no."""


class AgentLink:
    """One connection to one agent, kept open. It reconnects by itself, in the background: a look at the pair never
    waits for a node that is away."""

    def __init__(
        self,
        rank: int,
        name: str,
        addresses: Sequence[str],
        clock: Callable[[], float],
        *,
        argv: Callable[[str], list[str]] | None = None,
        socket: Path = paths.AGENT_SOCKET,
    ) -> None:
        self.rank = rank
        self.name = name
        self.address = ""
        self.heard = clock()
        self.epoch = 0
        """The highest epoch that the agent has named."""
        self._clock = clock
        self._ways = itertools.cycle(addresses) if addresses else None
        self._argv = argv or ssh_argv(rank)
        self._socket = socket
        self._ids = itertools.count(1)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self.trouble = "not connected yet"

    @property
    def silent_seconds(self) -> float:
        """How long no answer has come."""
        return self._clock() - self.heard

    async def call(self, op: str, timeout: float = POLL_SECONDS, **arguments: Any) -> dict[str, Any]:
        """One request. Raises Away or Refusal."""
        async with self._lock:
            if self._writer is None or self._reader is None:
                self._reconnect()
                raise Away(f"{self.name}: {self.trouble}")
            identity = next(self._ids)
            try:
                answer = await asyncio.wait_for(
                    self._exchange({"id": identity, "op": op, **arguments}, identity), timeout
                )
            except (OSError, asyncio.TimeoutError, EOFError, ValueError, wire.WireError) as error:
                self.trouble = (
                    f"no answer within {timeout:g} s"
                    if isinstance(error, asyncio.TimeoutError)
                    else (str(error) or "the connection ended")
                )
                await self._drop()
                self._reconnect()
                raise Away(f"{self.name} by {self.address or 'its socket'}: {self.trouble}") from None
            self.heard = self._clock()
            self.epoch = int(answer.get("epoch", 0))
        if not answer.get("ok"):
            raise Refusal(f"{self.name}: {answer.get('error', 'refused without a reason')}")
        return answer

    async def close(self) -> None:
        """Give the connection up."""
        if self._connecting is not None:
            self._connecting.cancel()
        await self._drop()

    async def _exchange(self, message: dict[str, Any], identity: int) -> dict[str, Any]:
        assert self._reader is not None and self._writer is not None
        self._writer.write(wire.encode(message))
        await self._writer.drain()
        while True:
            line = await self._reader.readline()
            if not line:
                raise EOFError("the connection ended")
            answer = wire.decode(line)
            if answer.get("id") == identity:
                return answer

    def _reconnect(self) -> None:
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        """Try one way; the next call that finds no connection tries the next one."""
        try:
            if self._ways is None:
                reader, writer = await asyncio.open_unix_connection(str(self._socket), limit=wire.MAX_LINE)
            else:
                reader, writer = await self._dial(next(self._ways))
            self._reader, self._writer = reader, writer
        except (OSError, asyncio.TimeoutError, EOFError, wire.WireError, ValueError) as error:
            self.trouble = str(error) or "the connection was refused"
            await asyncio.sleep(RETRY_SECONDS)

    async def _dial(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        process = await asyncio.create_subprocess_exec(
            *self._argv(address),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            limit=wire.MAX_LINE,
        )
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        reader, writer = process.stdout, process.stdin
        try:
            # Only an answer proves the way: ssh connects long before the far side's bridge does.
            writer.write(wire.encode({"id": 0, "op": "hello"}))
            line = await asyncio.wait_for(reader.readline(), CONNECT_SECONDS + 2)
        except (OSError, asyncio.TimeoutError):
            line = b""
        if not line:
            _kill(process)
            said = (await process.stderr.read()).decode(errors="replace").strip().splitlines()
            await process.wait()
            raise OSError(f"{address}: {said[-1] if said else 'no answer'}")
        if self._process is not None:
            _kill(self._process)
        self._process = process
        if address != self.address:
            log(f"reaching {self.name} by {address}")
        self.address = address
        return reader, writer

    async def _drop(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None
        if self._process is not None:
            _kill(self._process)
            await self._process.wait()
            self._process = None


def _kill(process: asyncio.subprocess.Process) -> None:
    try:
        process.kill()
    except ProcessLookupError:
        pass


def ssh_argv(
    rank: int, key: Path = paths.KEEPER_KEY, known_hosts: Path = paths.KEEPER_KNOWN_HOSTS
) -> Callable[[str], list[str]]:
    """The ssh command to an agent's bridge: our key, our pinned host key, whatever else the machine is set up for."""

    def argv(address: str) -> list[str]:
        options = {
            "IdentitiesOnly": "yes",
            "BatchMode": "yes",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": str(known_hosts),
            "GlobalKnownHostsFile": "/dev/null",
            "HostKeyAlias": f"sparkpair-rank{rank}",
            "ConnectTimeout": str(CONNECT_SECONDS),
            "ServerAliveInterval": "5",
            "ServerAliveCountMax": "3",
            "LogLevel": "ERROR",
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return ["ssh", "-F", "/dev/null", "-T", "-i", str(key), *words, f"{paths.PEER_USER}@{address}"]

    return argv
