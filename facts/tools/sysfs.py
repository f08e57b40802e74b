"""RDMA devices and their netdevs as sysfs has them: the ports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv4Interface

from facts.host import Port
from facts.tools.garbled import Garbled

UP = 0x1
"""IFF_UP of linux/if.h."""
_STATE = re.compile(r"([0-9]+): ([A-Z_]+)")
UNKNOWN_SPEED = 2**31 - 1
"""SPEED_UNKNOWN of linux/ethtool.h is -1, which some drivers write without its sign."""


def ports(
    hcas: Mapping[str, object], netdevs: Mapping[str, object], addresses: Mapping[str, tuple[IPv4Interface, ...]]
) -> list[Port]:
    """A port for each netdev of each HCA, by HCA; those of netdevs that are not here are left out."""
    found = []
    for hca, value in sorted(hcas.items()):
        device = _rows(value, hca)
        names = device.get("netdevs")
        for netdev in names if isinstance(names, list) else []:
            seen = _rows(netdevs.get(str(netdev), {}), str(netdev))
            if seen.get("mac"):
                found.append(_port(hca, str(netdev), device, seen, addresses.get(str(netdev), ())))
    return found


def _port(
    hca: str,
    netdev: str,
    device: Mapping[str, object],
    seen: Mapping[str, object],
    addresses: tuple[IPv4Interface, ...],
) -> Port:
    mtu = whole(seen.get("mtu"))
    if mtu is None:
        raise Garbled(f"/sys/class/net/{netdev}/mtu", str(seen.get("mtu")))
    speed = whole(seen.get("speed"))
    width = whole(device.get("width")) or whole(seen.get("width"))
    return Port(
        hca=hca,
        netdev=netdev,
        mac=_word(seen, "mac"),
        pci=_word(device, "pci") or _word(seen, "pci"),
        state=state(_word(device, "state")),
        carrier=carrier(_word(seen, "flags"), _word(seen, "carrier")),
        mtu=mtu,
        addresses=addresses,
        speed_mbps=speed if speed is not None and 0 < speed < UNKNOWN_SPEED else None,
        firmware=_word(device, "firmware"),
        link_width=width or None,
        link_speed=_word(device, "speed") or _word(seen, "link_speed"),
    )


def state(text: str) -> str:
    """ "4: ACTIVE" without its number."""
    matched = _STATE.fullmatch(text)
    return matched[2] if matched else text.upper()


def carrier(flags: str, text: str) -> bool | None:
    """None while the netdev is administratively down: the kernel does not say then."""
    if re.fullmatch(r"0x[0-9a-fA-F]{1,8}", flags) and not int(flags, 16) & UP:
        return None
    return {"1": True, "0": False}.get(text)


def whole(value: object) -> int | None:
    """A number in a file; None where it says none, or a negative one for that."""
    text = value if isinstance(value, str) else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None


def _word(values: Mapping[str, object], name: str) -> str:
    value = values.get(name)
    return value if isinstance(value, str) else ""


def _rows(value: object, name: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise Garbled("sysfs", f"{name}: {value}")
    return value
