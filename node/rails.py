"""Whether the other nodes answer over the rail that the engine uses, asked about once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

ASK_SECONDS = 1.0
LOST_SECONDS = 6.0
"""Without an answer for this long a rail carries nothing; with a tenth of the packets lost, six in a row are one
in a million."""

Ask = Callable[[str, str], Awaitable[bool | None]]


class RailWatch:
    """Asks in the background; a look at the pair never waits for an answer."""

    def __init__(self, addresses: Mapping[int, str], netdev: str, clock: Callable[[], float], ask: Ask) -> None:
        self._addresses = dict(addresses)
        self._netdev = netdev
        self._clock = clock
        self._ask = ask
        self._heard: dict[int, float] = {}
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
        heard = self._heard.get(rank)
        return None if heard is None else self._clock() - heard < LOST_SECONDS

    def close(self) -> None:
        """Ask no more."""
        for task in self._tasks.values():
            task.cancel()

    async def _once(self, rank: int, address: str) -> None:
        if await self._ask(address, self._netdev):
            self._heard[rank] = self._clock()
