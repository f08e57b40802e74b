"""The keeper's settings: `wanted/service.json`, rendered by deploy. No default stands here a second time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node import wire
from node.decide import Rules
from node.probe import Api, CanarySettings


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
        ),
        ports=tuple(int(port) for port in data["ports"]),
        watch_interval_seconds=float(data["watch_interval_seconds"]),
        lease_seconds=float(data["lease_seconds"]),
        stop_grace_seconds=float(data["stop_grace_seconds"]),
        generations_kept=int(data["generations_kept"]),
        text=text,
        digest=hashlib.sha256(text.encode()).hexdigest(),
    )
