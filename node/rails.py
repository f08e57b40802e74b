"""Whether the other nodes answer over the rail that the engine uses, asked about once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

ASK_SECONDS = 1.0
LOST_SECONDS = 6.0
LOST_ASKS = 3
"""Without an answer for this long, to this many questions, a rail carries nothing. Asked once a second that is six in a
row: with a tenth of the packets lost, one in a million. A keeper that looks less often asks no more often."""

Ask = Callable[[str, str], Awaitable[bool | None]]


@dataclass
class _Peer:
    heard: bool = False
    """It has answered once, so that no answer means something."""
    missed: int = 0
    since: float = 0.0
    """When the first question without an answer was asked."""


class RailWatch:
    """Asks in the background; a look at the pair never waits for an answer."""

    def __init__(self, addresses: Mapping[int, str], netdev: str, clock: Callable[[], float], ask: Ask) -> None:
        self._addresses = dict(addresses)
        self._netdev = netdev
        self._clock = clock
        self._ask = ask
        self._peers = {rank: _Peer() for rank in self._addresses}
        self._asked = float("-inf")
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def look(self) -> None:
        """Ask who was not asked in the last second."""
        if self._clock() - self._asked < ASK_SECONDS:
            return
        self._asked = self._clock()
        for rank, address in self._addresses.items():
            task = self._tasks.get(rank)
            if task is None or task.done():
                self._tasks[rank] = asyncio.get_running_loop().create_task(self._once(rank, address))

    def reach(self, rank: int) -> bool | None:
        """None for the head itself, and for a node that has not answered yet: a firewall may forbid the question."""
        peer = self._peers.get(rank)
        if peer is None or not peer.heard:
            return None
        return peer.missed < LOST_ASKS or self._clock() - peer.since < LOST_SECONDS

    def close(self) -> None:
        """Ask no more."""
        for task in self._tasks.values():
            task.cancel()

    async def _once(self, rank: int, address: str) -> None:
        peer, asked = self._peers[rank], self._clock()
        answer = await self._ask(address, self._netdev)
        if answer:
            self._peers[rank] = _Peer(heard=True)
        elif answer is False:
            peer.since = peer.since if peer.missed else asked
            peer.missed += 1
