"""The keeper's settings: `wanted/service.json`, rendered by deploy. No default stands here a second time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node import gates, wire
from node.decide import Rules
from node.door import Api
from node.probe import CanarySettings

MIB, GIB = 2**20, 2**30


@dataclass(frozen=True)
class NodeEntry:
    """One node as the keeper must know it."""

    rank: int
    name: str
    local: bool
    addresses: tuple[str, ...]
    """In the order to try: rails, then management."""
    netdevs: tuple[str, ...]
    """The netdevs that the engine's traffic needs."""


@dataclass(frozen=True)
class MemorySettings:
    """How a node's memory is guarded. Bytes; 0 turns a threshold off."""

    warning_bytes: int
    emergency_bytes: int
    drop_page_cache: bool


@dataclass(frozen=True)
class UpdateSettings:
    """Whether and where newer releases are looked for."""

    check: bool
    url: str
    """Of Sparkpair's own newest release; "" where there is none."""
    stack_url: str
    """Of the newest release of the stack's image; "" where its project publishes none."""
    stack_release: str
    """The release that the launch's image is; "" where it is not known."""


@dataclass(frozen=True)
class Service:
    """Supervision settings of the pair."""

    nodes: tuple[NodeEntry, ...]
    api: Api
    canary: CanarySettings
    rules: Rules
    ports: tuple[int, ...]
    watch_interval_seconds: float
    lease_seconds: float
    stop_grace_seconds: float
    generations_kept: int
    gates: gates.Gates
    memory: MemorySettings
    update: UpdateSettings
    text: str
    """As loaded; a generation keeps the one that it was accepted with."""
    digest: str
    """sha256 of the text as loaded: deploy compares it to decide whether this keeper is the wanted one."""


def load(path: Path) -> Service:
    """Read the settings. Raises WireError naming what is missing or wrong."""
    try:
        text = path.read_text()
    except OSError as error:
        raise wire.WireError(f"{path}: {error.strerror}; run deploy.py") from None
    try:
        return parse(text)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise wire.WireError(f"{path} is damaged: {error!r}; run deploy.py") from None


def parse(text: str) -> Service:
    """The settings in a text. Raises ValueError, KeyError or TypeError."""
    data: Mapping[str, Any] = json.loads(text)
    nodes = tuple(
        NodeEntry(
            rank=int(item["rank"]),
            name=str(item["name"]),
            local=bool(item["local"]),
            addresses=tuple(str(address) for address in item["addresses"]),
            netdevs=tuple(str(name) for name in item["netdevs"]),
        )
        for item in sorted(data["nodes"], key=lambda item: int(item["rank"]))
    )
    if [node.rank for node in nodes] != list(range(len(nodes))) or not nodes:
        raise ValueError(f"ranks are {[node.rank for node in nodes]}, wanted 0, 1, ...")
    api, canary = data["api"], data["canary"]
    return Service(
        nodes=nodes,
        api=Api(
            int(api["port"]),
            str(api["model"]),
            str(api["ready_path"]),
            str(api["metrics_path"]),
            # Generations of earlier releases were accepted with texts that have neither.
            str(api.get("address", "127.0.0.1")),
            str(api.get("key_file", "")),
        ),
        canary=CanarySettings(
            str(canary["prompt"]), str(canary["expect"]), int(canary["max_tokens"]), float(canary["timeout_seconds"])
        ),
        rules=Rules(
            start_order=tuple(int(rank) for rank in data["start_order"]),
            lease_seconds=float(data["lease_seconds"]),
            ready_timeout_seconds=float(data["ready_timeout_seconds"]),
            canary_interval_seconds=float(data["canary_interval_seconds"]),
            stuck_seconds=float(data["stuck_seconds"]),
            backoff_seconds=float(data["backoff_seconds"]),
            backoff_max_seconds=float(data["backoff_max_seconds"]),
            restart_budget=int(data["restart_budget"]),
            restart_window_seconds=float(data["restart_window_seconds"]),
            # What follows is not in the texts of earlier releases, with which kept generations were accepted.
            load_stall_seconds=float(data.get("load_stall_seconds", 0)),
            start_attempts=int(data.get("start_attempts", 2)),
            memory_wait_seconds=float(data.get("memory_wait_seconds", 120)),
            memory_tolerance_bytes=int(data.get("memory_tolerance_gib", 6)) * GIB,
            memory_restart_bytes=int(data.get("memory_restart_mib", 0)) * MIB,
            quiet_minutes=quiet_minutes(str(data.get("quiet_hours", ""))),
        ),
        ports=tuple(int(port) for port in data["ports"]),
        watch_interval_seconds=float(data["watch_interval_seconds"]),
        lease_seconds=float(data["lease_seconds"]),
        stop_grace_seconds=float(data["stop_grace_seconds"]),
        generations_kept=int(data["generations_kept"]),
        gates=gates.parse(data),
        memory=MemorySettings(
            warning_bytes=int(data.get("memory_warning_mib", 0)) * MIB,
            emergency_bytes=int(data.get("memory_emergency_mib", 0)) * MIB,
            drop_page_cache=bool(data.get("drop_page_cache", False)),
        ),
        update=UpdateSettings(
            check=bool(data.get("update_check", False)),
            url=str(data.get("update_url", "")),
            stack_url=str(data.get("update", {}).get("stack_url", "")),
            stack_release=str(data.get("update", {}).get("stack_release", "")),
        ),
        text=text,
        digest=hashlib.sha256(text.encode()).hexdigest(),
    )


def quiet_minutes(hours: str) -> tuple[int, int] | None:
    """HH:MM-HH:MM as minutes of the day, begin and end; None for "". Raises ValueError."""
    if not hours:
        return None
    begin, end = (
        int(hour) * 60 + int(minute) for hour, _, minute in (part.partition(":") for part in hours.split("-"))
    )
    return begin, end
