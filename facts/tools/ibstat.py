"""ibstat. A port that is down says "Rate: 40", which means nothing (field reports' sample S06)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from facts.tools.garbled import Garbled

_DEVICE = re.compile(r"CA '([^']+)'")
_PORT = re.compile(r"\s+Port ([0-9]{1,3}):")


@dataclass(frozen=True)
class Port:
    """A port of an HCA; `rate_gbps` None while it is not active."""

    hca: str
    port: int
    state: str
    physical: str
    rate_gbps: int | None
    firmware: str
    type: str


def parse(text: str) -> list[Port]:
    """Every port that says its state, by HCA."""
    found = []
    device: dict[str, str] = {}
    ports: list[tuple[dict[str, str], int, dict[str, str]]] = []
    values: dict[str, str] = {}
    for line in text.splitlines():
        matched = _DEVICE.fullmatch(line.strip())
        if matched:
            device = values = {"hca": matched[1]}
        elif line.startswith("CA "):
            raise Garbled("ibstat", line)
        elif device and (port := _PORT.fullmatch(line.rstrip())):
            values = {}
            ports.append((device, int(port[1]), values))
        elif device:
            name, colon, value = line.strip().partition(":")
            if colon:
                values.setdefault(name, value.strip())
    for device, number, values in ports:
        if "State" not in values:
            raise Garbled("ibstat", f"CA {device['hca']!r}, port {number}, without a state")
        found.append(_port(device, number, values))
    if not ports and not device and text.strip():
        raise Garbled("ibstat", text)
    return sorted(found, key=lambda port: (port.hca, port.port))


def _port(device: dict[str, str], number: int, values: dict[str, str]) -> Port:
    rate = values.get("Rate", "")
    is_active = values["State"] == "Active"
    return Port(
        hca=device["hca"],
        port=number,
        state=values["State"].upper(),
        physical=values.get("Physical state", ""),
        rate_gbps=int(rate) if is_active and re.fullmatch(r"[0-9]{1,4}", rate) else None,
        firmware=device.get("Firmware version", ""),
        type=device.get("CA type", ""),
    )
