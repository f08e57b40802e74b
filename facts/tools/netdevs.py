"""By what somebody's file may mean a netdev."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Netdev:
    """Its name, its MAC address and its driver; the last two "" where they are not known."""

    name: str
    mac: str = ""
    driver: str = ""
