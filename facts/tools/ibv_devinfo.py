"""ibv_devinfo: what the verbs library says of each HCA, the MTU that RDMA really uses among it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from facts.tools.garbled import Garbled

_DEVICE = re.compile(r"hca_id:\s*(\S+)")
_PORT = re.compile(r"\s+port:\s+([0-9]{1,3})")
_VALUE = re.compile(r"\s+(\w+):\s+(\S.*?)\s*")
_MTU = re.compile(r"([0-9]{3,4}) \([0-9]\)")


@dataclass(frozen=True)
class Device:
    """An HCA and its port: `active_mtu` in bytes, None where it is not said."""

    hca: str
    firmware: str
    board: str
    state: str
    active_mtu: int | None
    layer: str


def parse(text: str) -> list[Device]:
    """The first port of every HCA, by name."""
    found = []
    devices: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        matched = _DEVICE.fullmatch(line.strip())
        if matched:
            devices.append((matched[1], []))
        elif line.startswith("hca_id"):
            raise Garbled("ibv_devinfo", line)
        elif devices:
            devices[-1][1].append(line)
    for hca, lines in devices:
        found.append(_device(hca, lines))
    if not found and text.strip() and "No IB devices found" not in text:
        raise Garbled("ibv_devinfo", text)
    return sorted(found, key=lambda device: device.hca)


def _device(hca: str, lines: list[str]) -> Device:
    values: dict[str, str] = {}
    ports = 0
    for line in lines:
        ports += _PORT.fullmatch(line) is not None
        matched = _VALUE.fullmatch(line)
        if matched and ports <= 1:
            values[matched[1]] = matched[2]
    if "state" not in values:
        raise Garbled("ibv_devinfo", f"hca_id: {hca}, without a state")
    mtu = values.get("active_mtu")
    size = _MTU.fullmatch(mtu) if mtu is not None else None
    if mtu is not None and size is None:
        raise Garbled("ibv_devinfo", f"{hca}: active_mtu: {mtu}")
    return Device(
        hca=hca,
        firmware=values.get("fw_ver", ""),
        board=values.get("board_id", ""),
        state=values["state"].split()[0].removeprefix("PORT_"),
        active_mtu=int(size[1]) if size else None,
        layer=values.get("link_layer", ""),
    )
