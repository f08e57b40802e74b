"""timedatectl show."""

from __future__ import annotations

from dataclasses import dataclass

from facts.tools.garbled import Garbled


@dataclass(frozen=True)
class Time:
    """Whether the clock is steered, whether it is meant to be (`ntp`), and its zone."""

    synchronized: bool
    ntp: bool
    zone: str


def parse(text: str) -> Time:
    """All of it, whatever the order."""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    words = {"yes": True, "no": False}
    synchronized, ntp = values.get("NTPSynchronized", ""), values.get("NTP", "")
    if synchronized not in words or ntp not in words:
        raise Garbled("timedatectl show", text or "nothing")
    return Time(words[synchronized], words[ntp], values.get("Timezone", ""))
