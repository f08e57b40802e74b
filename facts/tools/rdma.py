"""rdma link, as JSON and as text."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from facts.tools.garbled import Garbled

_LINE = re.compile(r"link (\S+?)/([0-9]{1,3}) (.*)")


@dataclass(frozen=True)
class RdmaLink:
    """A port of an HCA; `netdev` "" where it has none."""

    hca: str
    port: int
    state: str
    physical: str
    netdev: str


def parse_json(text: str) -> list[RdmaLink]:
    """`rdma -j link show`; nothing at all where there is no device."""
    try:
        rows = json.loads(text) if text.strip() else []
    except (ValueError, RecursionError):
        raise Garbled("rdma -j link", text) from None
    if not isinstance(rows, list):
        raise Garbled("rdma -j link", text)
    found = []
    for row in rows:
        if not isinstance(row, dict):
            raise Garbled("rdma -j link", str(row))
        name, port, state = row.get("ifname"), row.get("port"), row.get("state")
        if not isinstance(name, str) or not isinstance(port, int) or not isinstance(state, str):
            raise Garbled("rdma -j link", str(row))
        physical, netdev = str(row.get("physical_state") or ""), str(row.get("netdev") or "")
        found.append(RdmaLink(name, port, state, physical, netdev))
    return sorted(found, key=_order)


def parse(text: str) -> list[RdmaLink]:
    """`rdma link show`."""
    found = []
    for line in text.splitlines():
        if not line.startswith("link "):
            continue
        matched = _LINE.fullmatch(line.rstrip())
        words = matched[3].split() if matched else []
        values = dict(zip(words[::2], words[1::2], strict=False))
        if matched is None or "state" not in values:
            raise Garbled("rdma link", line)
        physical, netdev = values.get("physical_state", ""), values.get("netdev", "")
        found.append(RdmaLink(matched[1], int(matched[2]), values["state"], physical, netdev))
    return sorted(found, key=_order)


def _order(link: RdmaLink) -> tuple[str, int]:
    return link.hca, link.port
