"""fwupdmgr get-devices --json and get-upgrades --json."""

from __future__ import annotations

import json

from facts.host import FirmwareDevice
from facts.tools.garbled import Garbled

# fwupd's FwupdDeviceFlags: an update that was staged and waits for a reboot.
PENDING = ("needs-reboot", "needs-shutdown", "needs-activation")


def parse(devices: str, upgrades: str = "") -> list[FirmwareDevice]:
    """The devices that have a version, each with the newest that is offered or that waits; by name."""
    offered: dict[str, str] = {}
    for device in _devices("fwupdmgr get-upgrades", upgrades) if upgrades.strip() else []:
        releases = device.get("Releases")
        versions = [str(one.get("Version") or "") for one in releases or [] if isinstance(one, dict)] \
            if isinstance(releases, list) else []  # fmt: skip
        offered[_key(device)] = versions[0] if versions else ""
    found = []
    for device in _devices("fwupdmgr get-devices", devices):
        version = device.get("Version")
        if not isinstance(version, str) or not version:
            continue
        flags = device.get("Flags")
        waits = isinstance(flags, list) and any(flag in PENDING for flag in flags)
        pending = offered.get(_key(device), "") or ("another version" if waits else "")
        found.append(FirmwareDevice(str(device.get("Name") or ""), version, pending))
    return sorted(found, key=lambda one: (one.name, one.version))


def _key(device: dict[str, object]) -> str:
    return str(device.get("DeviceId") or device.get("Name") or "")


def _devices(tool: str, text: str) -> list[dict[str, object]]:
    """The list in its document. What stands before the document is a warning."""
    start = text.find("{")
    try:
        found = json.loads(text[start:]) if start >= 0 else None
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and isinstance(found.get("Error"), dict):
        return []  # "No upgradable devices" among others, in newer versions
    devices = found.get("Devices") if isinstance(found, dict) else None
    if not isinstance(devices, list) or not all(isinstance(device, dict) for device in devices):
        raise Garbled(tool, text or "nothing")
    return devices
