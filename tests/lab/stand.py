"""What must outlive every fault: the last good generation, all kept ones, the history and the wanted files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lab.settings import HEAD, HOSTS, Host
from tests.lab import pair

LOOK = r"""
cd /var/lib/sparkpair || exit
for name in last-good current; do test -L $name && echo "link $name $(readlink $name)"; done
tell() { while read -r sum path; do echo "$1 $path $sum"; done; }
find generations -name 'rank*.json' -exec sha256sum {} + 2>/dev/null | tell kept
find /etc/sparkpair/wanted -type f -exec sha256sum {} + | tell wanted
"""


@dataclass(frozen=True)
class Stand:
    """What one look at both nodes found."""

    found: Mapping[str, Mapping[str, str]]
    """Of each node: what (sort and path) and its contents' sha256, or where a link points."""
    history: Sequence[Mapping[str, object]]

    def assert_kept(self, *, moved: Sequence[str] = (), pruned: bool = False) -> None:
        """Nothing that was there has changed since, apart from what `moved` names. With `pruned`, new generations may
        have pushed old ones out; never the last good one."""
        now = look()
        good = last_good()
        lost = [
            f"{host}: {what}: {value} -> {now.found[host].get(what, 'gone')}"
            for host, known in self.found.items()
            for what, value in known.items()
            if now.found[host].get(what) != value and not any(word in what for word in moved)
            if not (pruned and what.startswith("kept ") and what not in now.found[host] and good not in what)
        ]
        assert not lost, f"lost or changed: {lost}"
        assert list(now.history[: len(self.history)]) == list(self.history), "the history lost entries"


def look() -> Stand:
    """Look at both nodes."""
    return Stand({host.name: _found(host) for host in HOSTS.values()}, pair.history())


def _found(host: Host) -> dict[str, str]:
    found = {}
    for line in pair.on(host, LOOK).splitlines():
        what, _, value = line.rpartition(" ")
        found[what] = value
    return found


def last_good() -> str:
    """The hash of the generation that passed its gates last, by its link."""
    return pair.on(HEAD, "basename $(readlink /var/lib/sparkpair/last-good)").strip()
