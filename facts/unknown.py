"""Unknown is not no."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unknown:
    """A part that could not be read, and why."""

    reason: str
