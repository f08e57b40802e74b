"""What a download does about failures: again, without xet, from a mirror; and how long it waits before. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

LONGEST_PAUSE_SECONDS = 60.0
TOLD_AT_MOST_SECONDS = 600.0
"""A server that asks for more waiting than this is asked again sooner: its window on requests is five minutes."""
BUSY_IN_A_ROW = 4
"""After so many answers "not now" without a byte between them, the next way is tried."""


@dataclass(frozen=True)
class Rung:
    """One way to download: a repository at a commit, and whether its bytes may come from xet."""

    step: int
    repository: str
    revision: str
    xet: bool


@dataclass
class Ladder:
    """Where one set stands. A rung is left when it fails; from the last one it goes back to the first without xet."""

    repositories: Sequence[tuple[str, str]]
    step: int = 0
    failures: int = 0
    """In a row, without a byte between them."""
    busy: int = 0
    gone: set[str] = field(default_factory=set)

    def rungs(self) -> list[Rung]:
        """All of them: the first repository as it comes, again, without xet, and then the mirrors."""
        (repository, revision), *mirrors = self.repositories
        ways = [(repository, revision, xet) for xet in (True, True, False)]
        ways += [(*mirror, False) for mirror in mirrors]
        return [Rung(step, *way) for step, way in enumerate(ways)]

    def rung(self) -> Rung | None:
        """What to try now; None when no repository is left."""
        rungs = self.rungs()
        for ahead in range(len(rungs)):
            found = rungs[(self.step + ahead) % len(rungs)]
            if found.repository not in self.gone:
                return found
        return None

    def moved(self) -> None:
        """A byte came."""
        self.failures = self.busy = 0

    def failed(self, tried: Rung) -> float:
        """An attempt on this rung failed; how long to wait. Attempts that ran side by side count as one."""
        if tried == self.rung():
            self.failures += 1
            # Without xet, a connection that brought something is worth another.
            self._next(stays=not tried.xet and self.failures == 1)
        return self._pause(max(self.failures, 1))

    def asked_to_wait(self, tried: Rung, seconds: float) -> float:
        """The server is busy; how long to wait, by its own word if it said one."""
        self.busy += 1
        if self.busy % BUSY_IN_A_ROW == 0 and tried == self.rung():
            self._next(stays=False)
        return min(seconds, TOLD_AT_MOST_SECONDS) or self._pause(self.busy)

    def is_gone(self, tried: Rung) -> bool:
        """The repository has not what it should; whether another is left."""
        self.gone.add(tried.repository)
        return self.rung() is not None

    def wrong(self, tried: Rung) -> None:
        """It sent other bytes than the lock states: a mirror next, if there is one."""
        if tried == self.rung():
            self.step = max(self.step, 2)
            self._next(stays=False)

    def _next(self, stays: bool) -> None:
        if not stays:
            self.step = self.step + 1 if self.step + 1 < len(self.rungs()) else 2

    @staticmethod
    def _pause(times: int) -> float:
        return min(2.0 ** (times - 1), LONGEST_PAUSE_SECONDS)


def described(rung: Rung, before: Rung) -> str:
    """What is tried next, for a person."""
    if rung.repository != before.repository:
        return f"now from {rung.repository}"
    return "now without xet" if before.xet and not rung.xet else "again"
