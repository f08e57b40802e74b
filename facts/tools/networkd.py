"""systemd-networkd's .network files: which of them are about a netdev of ours."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from facts.host import Definition
from facts.tools import ini
from facts.tools.netdevs import Netdev


def definitions(path: str, text: str, netdevs: Iterable[Netdev]) -> list[Definition]:
    """One per netdev that its [Match] names by name, address or driver. One that matches by nothing of these, as by the
    type of a netdev, is about no netdev of ours in particular."""
    read = ini.entries(text)
    match = [entry for entry in read if entry.section == "Match"]
    named = [entry for entry in match if entry.key == "Name"]
    others = [entry for entry in match if entry.key in ("MACAddress", "PermanentMACAddress", "Driver")]
    addresses = tuple(
        entry.value.split("/")[0] if "/" not in entry.value else entry.value
        for entry in read
        if entry.section in ("Network", "Address") and entry.key == "Address" and entry.value
    )
    mtu = next((e.value for e in read if e.section == "Link" and e.key == "MTUBytes"), "")
    found = []
    for netdev in netdevs:
        if not (named or others) or not _fits(match, netdev):
            continue
        words = [word for entry in named for word in entry.value.split()]
        found.append(
            Definition(
                file=path,
                line=(named or others)[0].line,
                id=path.rpartition("/")[2],
                netdev=netdev.name,
                kind="networkd",
                named=words == [netdev.name],
                renderer="networkd",
                addresses=addresses,
                mtu=int(mtu) if mtu.isascii() and mtu.isdigit() and len(mtu) <= 6 else None,
                volatile=path.startswith("/run/"),
            )
        )
    return found


def _fits(match: Iterable[ini.Entry], netdev: Netdev) -> bool:
    """Whether all its conditions that can be judged here hold."""
    wanted: dict[str, list[str]] = {}
    for entry in match:
        wanted.setdefault(entry.key, []).extend(entry.value.split())
    seen = {"Name": netdev.name, "Driver": netdev.driver}
    for key, words in wanted.items():
        if key in seen and not _any(words, seen[key]):
            return False
        if key in ("MACAddress", "PermanentMACAddress"):
            plain = [word.lower().replace("-", ":") for word in words]
            if netdev.mac.lower() not in plain:
                return False
    return True


def _any(patterns: list[str], value: str) -> bool:
    """As systemd.network has it: patterns, one of which must fit; with a ! before the first, none may."""
    if not patterns:
        return True
    turned = patterns[0].startswith("!")
    if turned:
        patterns = [patterns[0][1:], *patterns[1:]]
    return any(fnmatch.fnmatchcase(value, pattern) for pattern in patterns) is not turned
