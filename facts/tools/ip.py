"""ip -j address, link and route; and ip address as a person reads it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from ipaddress import IPv4Interface

from facts.tools.garbled import Garbled

_LINK = re.compile(r"[0-9]+: ([^\s:@]+)(?:@[^\s:]+)?: <([A-Z0-9_,-]*)> .*?\bmtu ([0-9]{1,10})\b.*")
_ADDRESS = re.compile(r"inet ([0-9./]+) .*")
_MAC = re.compile(r"link/\S+ ([0-9a-f:]{17}) .*")


@dataclass(frozen=True)
class Link:
    """A netdev with its IPv4 addresses. `dynamic` where any of them was leased."""

    name: str
    mac: str
    mtu: int
    flags: tuple[str, ...]
    master: str = ""
    addresses: tuple[IPv4Interface, ...] = ()
    dynamic: bool = False


@dataclass(frozen=True)
class Route:
    """A route of the main table; `target` "default" for that."""

    target: str
    netdev: str
    gateway: str
    source: str


def links(text: str) -> dict[str, Link]:
    """`ip -j address show` or `ip -j link show`."""
    found = {}
    for row in _rows("ip -j address", text):
        if not row:
            continue  # how it says that it leaves one out
        name, mtu = row.get("ifname"), row.get("mtu")
        if not isinstance(name, str) or not isinstance(mtu, int):
            raise Garbled("ip -j address", str(row))
        of_ipv4 = [info for info in _objects(row.get("addr_info")) if info.get("family") == "inet"]
        flags = row.get("flags")
        found[name] = Link(
            name=name,
            mac=str(row.get("address") or ""),
            mtu=mtu,
            flags=tuple(map(str, flags)) if isinstance(flags, list) else (),
            master=str(row.get("master") or ""),
            addresses=tuple(_interface(f"{info.get('local')}/{info.get('prefixlen')}") for info in of_ipv4),
            dynamic=any(info.get("dynamic") is True for info in of_ipv4),
        )
    return found


def routes(text: str) -> list[Route]:
    """`ip -j route show`."""
    found = []
    for row in _rows("ip -j route", text):
        target = row.get("dst")
        if not isinstance(target, str):
            raise Garbled("ip -j route", str(row))
        words = (str(row.get(key) or "") for key in ("dev", "gateway", "prefsrc"))
        found.append(Route(target, *words))
    return found


def parse(text: str) -> dict[str, Link]:
    """`ip address show`."""
    found: dict[str, Link] = {}
    name = ""
    for line in text.splitlines():
        matched = _LINK.fullmatch(line.rstrip())
        words = line.strip()
        if matched:
            name = matched[1]
            master = re.search(r" master (\S+)", words)
            found[name] = Link(name, "", int(matched[3]), tuple(matched[2].split(",")), master[1] if master else "")
        elif line[:1].isdigit():
            raise Garbled("ip address", line)
        elif name and (address := _ADDRESS.fullmatch(words + " ")):
            link = found[name]
            found[name] = Link(
                link.name, link.mac, link.mtu, link.flags, link.master,
                (*link.addresses, _interface(address[1])), link.dynamic or " dynamic " in words,
            )  # fmt: skip
        elif name and (mac := _MAC.fullmatch(words + " ")):
            link = found[name]
            found[name] = Link(link.name, mac[1], link.mtu, link.flags, link.master, link.addresses, link.dynamic)
    return found


def _rows(tool: str, text: str) -> list[dict[str, object]]:
    """It prints nothing at all where there is nothing, or an empty list."""
    try:
        found = json.loads(text) if text.strip() else []
    except (ValueError, RecursionError):
        raise Garbled(tool, text) from None
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise Garbled(tool, text)
    return found


def _objects(value: object) -> list[dict[str, object]]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise Garbled("ip -j address", str(value))
    return value


def _interface(text: str) -> IPv4Interface:
    try:
        return IPv4Interface(text)
    except ValueError:
        raise Garbled("ip address", text) from None
