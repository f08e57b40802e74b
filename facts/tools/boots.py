"""journalctl --list-boots, and how a boot's journal ends (field reports HW-05 and HW-06)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from facts.host import Boot
from facts.tools.garbled import Garbled

_LINE = re.compile(r"\s*(-?[0-9]{1,6}) ([0-9a-f]{32}) .*")
# systemd's own last words, of a boot that it ended itself.
_CLEAN = re.compile(
    r"systemd-shutdown\[1\]|systemd\[1\]: Shutting down\.|Reached target .*(?:[Rr]eboot|[Pp]ower.?[Oo]ff|[Ss]hutdown)"
    r"|Journal stopped|[Ff]inal .*[Rr]eboot"
)


def parse(text: str) -> list[tuple[int, str]]:
    """(offset, id) of each boot, the running one, which is 0, last."""
    found = {}
    for line in text.splitlines():
        matched = _LINE.fullmatch(line)
        if matched:
            found[int(matched[1])] = matched[2]
        elif re.match(r"\s*-?[0-9]+ [0-9a-f]", line):
            raise Garbled("journalctl --list-boots", line)
    if text.strip() and not found:
        raise Garbled("journalctl --list-boots", text)
    return sorted(found.items())


def ended(text: str) -> str:
    """How a boot's last lines say that it ended: "clean" where systemd ended it, "cut" where it was in the middle of
    something, "" where there are none."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("-- ")]
    if not lines:
        return ""
    return "clean" if any(_CLEAN.search(line) for line in lines) else "cut"


def boots(text: str, ends: Mapping[int, str]) -> list[Boot]:
    """The boots, the running one first; `ends` are the last lines by offset. Each says how the one before ended."""
    listed = parse(text)[::-1]
    found = []
    for number, (_, boot) in enumerate(listed):
        before = listed[number + 1][0] if number + 1 < len(listed) else None
        found.append(Boot(boot, ended(ends.get(before, "")) if before is not None else ""))
    return found
