"""RoCE GID tables in sysfs. The index of an address moves with link flaps and reboots, so it is read at every start."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SYSFS = Path("/sys/class/infiniband")


class GidError(Exception):
    """No usable GID; the message holds the table that was seen."""


@dataclass(frozen=True)
class Gid:
    """One filled row of an HCA's GID table."""

    index: int
    gid: str
    kind: str


def mapped(address: str) -> str:
    """The GID of an IPv4 address as sysfs spells it: 10.0.0.2 is 0000:0000:0000:0000:0000:ffff:0a00:0002."""
    value = int(ipaddress.IPv4Address(address))
    return f"0000:0000:0000:0000:0000:ffff:{value >> 16:04x}:{value & 0xFFFF:04x}"


def table(hca: str, sysfs: Path = SYSFS, port: int = 1) -> list[Gid]:
    """Rows of the table that hold a GID. Raises GidError if the HCA is not there."""
    base = sysfs / hca / f"ports/{port}"
    if not (base / "gids").is_dir():
        known = ", ".join(sorted(path.name for path in sysfs.iterdir())) if sysfs.is_dir() else "none"
        raise GidError(f"{hca}: no such HCA (present: {known})")
    return list(_rows(base))


def roce_v2_index(hca: str, address: str, sysfs: Path = SYSFS) -> int:
    """The index of the RoCE v2 GID that maps this IPv4 address. Raises GidError with the table; there is no fallback
    index, because a wrong one fails a minute later on the other node, or only runs slower."""
    rows = table(hca, sysfs)
    wanted = mapped(address)
    for row in rows:
        if row.gid == wanted and "v2" in row.kind:
            return row.index
    seen = "; ".join(f"{row.index}: {row.gid} {row.kind}" for row in rows) or "empty"
    raise GidError(
        f"{hca} has no RoCE v2 GID for {address} (table: {seen}). "
        "Has the rail its address? ip addr; the fabric role of deploy.py sets it"
    )


def _rows(base: Path) -> Iterator[Gid]:
    for path in sorted((base / "gids").iterdir(), key=lambda path: int(path.name)):
        gid = path.read_text().strip()
        if set(gid) <= {"0", ":"}:
            continue
        try:
            kind = (base / "gid_attrs/types" / path.name).read_text().strip()
        except OSError:  # the kernel answers EINVAL for a slot that was emptied meanwhile
            continue
        yield Gid(int(path.name), gid, kind)
