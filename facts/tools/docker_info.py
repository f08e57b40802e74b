"""docker info's JSON, as the daemon's socket gives it, and the daemon's settings file."""

from __future__ import annotations

import json
from dataclasses import dataclass

from facts.tools.garbled import Garbled

CONTAINERD = "io.containerd.snapshotter.v1"


@dataclass(frozen=True)
class Info:
    """What of the daemon's word is asked here."""

    runtimes: tuple[str, ...]
    default_runtime: str
    security: tuple[str, ...]
    driver: str
    root: str
    containerd_store: bool


def parse(text: str) -> Info:
    """`GET /info`, or docker info --format '{{json .}}'."""
    found = _object(text, "docker info")
    if "ServerVersion" not in found and "Runtimes" not in found:
        raise Garbled("docker info", text)
    runtimes = found.get("Runtimes") or {}
    if not isinstance(runtimes, dict):
        raise Garbled("docker info", f"Runtimes: {runtimes}")
    return Info(
        runtimes=tuple(sorted(map(str, runtimes))),
        default_runtime=str(found.get("DefaultRuntime") or ""),
        security=security(found.get("SecurityOptions")),
        driver=str(found.get("Driver") or ""),
        root=str(found.get("DockerRootDir") or ""),
        containerd_store=has_containerd_store(found.get("DriverStatus")),
    )


def security(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def has_containerd_store(status: object) -> bool:
    """Whether images lie in containerd's store, where docker save writes other bytes."""
    return isinstance(status, list) and any(isinstance(row, list) and CONTAINERD in row for row in status)


def settings_runtimes(text: str) -> tuple[str, ...]:
    """The runtimes in /etc/docker/daemon.json, however each is written: with args, runtimeArgs or neither."""
    if not text.strip():
        return ()
    runtimes = _object(text, "/etc/docker/daemon.json").get("runtimes") or {}
    if not isinstance(runtimes, dict):
        raise Garbled("/etc/docker/daemon.json", f"runtimes: {runtimes}")
    return tuple(sorted(map(str, runtimes)))


def _object(text: str, tool: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise Garbled(tool, text or "nothing") from None
    if not isinstance(found, dict):
        raise Garbled(tool, text)
    return found
