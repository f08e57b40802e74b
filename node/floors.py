"""The lowest that each node's memory came to while a generation ran: kept with it, and warned of once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from node.journal import log
from node.store import Store

NOTE_SECONDS = 600.0
"""Between two writes of a generation's floor, which sinks for days."""
RELIEF = 1.25
"""A node that has this many times the warning's bytes again may be warned of anew."""


class Floors:
    """Of the ranks that run now. Bytes by rank."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._noted = clock()
        self._warned: set[int] = set()
        self.now: dict[int, int] = {}

    def begin(self) -> None:
        """Other ranks are started."""
        self.now.clear()

    def note(self, rank: int, name: str, engine: str | None, answer: dict[str, Any], warning: int) -> str:
        """Take an agent's answer in. Returns what to warn of, once; "" for nothing."""
        recorded = answer.get("memory") or {}
        if recorded.get("floor") is not None and recorded.get("engine") == engine:
            self.now[rank] = int(recorded["floor"])
            if self._clock() - self._noted > NOTE_SECONDS:
                self.keep(engine)
        available = answer.get("memory_available")
        if available is None or not warning:
            return ""
        if available > RELIEF * warning:
            self._warned.discard(rank)
        if available >= warning or rank in self._warned:
            return ""
        self._warned.add(rank)
        return (
            f"{name} has {available / 2**20:.0f} MiB of memory left (memory_warning_mib); a node that runs out wedges"
        )

    def keep(self, engine: str | None) -> None:
        """Write the floors beside their generation; those of earlier runs of it count too."""
        if engine is None or not self.now:
            return
        self._noted = self._clock()
        former = self._store.noted(engine, "memory").get("floor", {})
        floors = {str(rank): min(floor, int(former.get(str(rank), floor))) for rank, floor in sorted(self.now.items())}
        if floors == former:
            return
        try:
            self._store.note(engine, "memory", {"floor": floors})
        except OSError as error:
            log(f"the memory floor could not be kept: {error}", "warning")
