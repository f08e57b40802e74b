"""Cluster + node -> texts and hashes. Pure; the only reader of templates/."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from node import wire
from spec import nfs
from spec.cluster import Cluster, Node
from spec.objects import (
    AGENT_UNIT,
    API_KEY_FILE,
    CGROUP_PARENT,
    DEEP_TIMER,
    DEEP_UNIT,
    KEEPER_UNIT,
    KEY_COMMENT,
    MOUNT_POINT,
    MOUNT_UNIT,
    PROGRAM,
    PROTECTED_UNITS,
    RECORDER_UNIT,
    protection,
    secret_file,
)
from spec.stacks import GidIndex, Secret
from spec.stacks.common import api_address

TEMPLATES = Path(__file__).parent.parent / "templates"

GENERATED = "by Sparkpair; edit group_data/all.py and inventory.py"
"""Stands in the ranks' texts, which the engine hash covers: other words here would restart every pair."""

ADDED: tuple[tuple[str, ...], ...] = (("--cgroup-parent", CGROUP_PARENT),)
"""What we add to a stack's own launch, besides the labels: one cgroup whose kill ends the container and all in it."""

ADDED_LABELS = (wire.LABEL_ENGINE, wire.LABEL_RANK, wire.LABEL_EPOCH, wire.LABEL_GIDS)
"""Labels that the rank agent puts on a container: they testify what runs."""

SERVICE_KNOBS = (
    "smoke_prompt",
    "smoke_expected",
    "smoke_max_tokens",
    "gate_warm_up_seconds",
    "gate_smoke_seconds",
    "gate_tool_call_seconds",
    "gate_reasoning_seconds",
    "gate_reasoning_off_seconds",
    "gate_image_seconds",
    "gate_needle_seconds",
    "gate_needle_tokens",
    "gate_needle_expected",
    "gate_reuse_seconds",
    "load_stall_seconds",
    "start_attempts",
    "memory_wait_seconds",
    "memory_tolerance_gib",
    "memory_warning_mib",
    "memory_emergency_mib",
    "memory_restart_mib",
    "quiet_hours",
    "drop_page_cache",
    "allow_tcp",
    "update_check",
    "update_url",
)
"""Settings that the keeper's file holds under their own names."""

UNITS = (AGENT_UNIT, KEEPER_UNIT)
UPKEEP_UNITS = (DEEP_UNIT, DEEP_TIMER)
DAYS_APART = 7
"""Between the deep checks of two nodes; with four weeks a month of four nodes no two have the same day."""

_environment = Environment(
    loader=FileSystemLoader(TEMPLATES),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,
)


def rank_text(cluster: Cluster, node: Node) -> str:
    """`wanted/rank.json`: one rank's launch, a flag and its value on one line."""
    launch, mount = cluster.launch(node), nfs.mount(cluster, node)
    return _lines(
        {
            "generated": GENERATED,
            "stack": cluster.stack.name,
            "rank": node.rank,
            "name": launch.name,
            "image": launch.image,
            "content": list(launch.content),
            "container": [list(group) for group in (*launch.container, *ADDED)],
            "mounts": [list(mount) for mount in launch.mounts],
            "directories": list(launch.directories),
            "env": [[name, _env_value(value)] for name, value in launch.env],
            "command": [list(group) for group in launch.command],
            # Only there where it is needed, so that the launches of other pairs are what they were.
            **({"mount": {"unit": MOUNT_UNIT, "what": mount.what, "options": mount.options}} if mount else {}),
        }
    )


def service_text(cluster: Cluster) -> str:
    """`wanted/service.json`: what the keeper needs to know that no running rank depends on."""
    knobs = cluster.knobs
    return _lines(
        {
            "generated": GENERATED,
            "nodes": [
                {
                    "rank": node.rank,
                    "name": cluster.call_name(node),
                    "local": node.is_head,
                    "addresses": [] if node.is_head else [str(address) for address in addresses(node)],
                    # The engine's traffic uses these rails: without their carrier no request goes on.
                    "netdevs": [rail.netdev for rail in node.rails[: knobs.nccl_rails]],
                }
                for node in cluster.nodes
            ],
            "api": {
                "port": knobs.api_port,
                "model": cluster.served_model_name,
                "ready_path": cluster.stack.ready_path,
                "metrics_path": cluster.stack.metrics_path,
                "address": str(api_address(knobs)),
                **({"key_file": API_KEY_FILE} if knobs.require_api_key else {}),
                "max_model_len": knobs.max_model_len if isinstance(knobs.max_model_len, int) else None,
                "tools": bool(knobs.tool_call_parser),
                "reasoning": bool(knobs.reasoning_parser),
            },
            "canary": {
                "prompt": knobs.canary_prompt,
                "expect": knobs.canary_expected,
                "max_tokens": knobs.canary_max_tokens,
                "timeout_seconds": knobs.canary_timeout_seconds,
            },
            "update": {"stack_url": cluster.stack.release_url, "stack_release": _release(cluster)},
            "watch_interval_seconds": knobs.watch_interval_seconds,
            "lease_seconds": knobs.lease_seconds,
            "ready_timeout_seconds": knobs.ready_timeout_seconds,
            "stop_grace_seconds": knobs.stop_grace_seconds,
            "canary_interval_seconds": knobs.canary_interval_seconds,
            "stuck_seconds": knobs.stuck_seconds,
            "backoff_seconds": knobs.backoff_seconds,
            "backoff_max_seconds": knobs.backoff_max_seconds,
            "restart_budget": knobs.restart_budget,
            "restart_window_seconds": knobs.restart_window_seconds,
            "generations_kept": knobs.generations_kept,
            **{name: getattr(knobs, name) for name in SERVICE_KNOBS},
            "ports": list(cluster.ports),
            "start_order": list(cluster.start_order),
        }
    )


def _release(cluster: Cluster) -> str:
    """The release that the wanted image is, by its digest; "" where the stack's project published none such."""
    return cluster.stack.releases.get(str(cluster.knobs.image).rpartition("@")[2], "")


def netplan_text(cluster: Cluster, node: Node) -> str:
    """The node's netplan file of ours: its rails and nothing else."""
    return _environment.get_template("fabric/60-sparkpair.yaml.j2").render(rails=node.rails, mtu=cluster.knobs.rail_mtu)


def authorized_keys_text(cluster: Cluster, public_key: str) -> str:
    """The one line that lets the head's keeper reach a worker's agent, and do nothing else there. The key is empty
    while it is not made yet (a plan of the first deploy): such a line lets nobody in."""
    return _environment.get_template("keeper/authorized_keys.j2").render(
        sources=",".join(str(address) for address in addresses(cluster.head)),
        command=f"{PROGRAM} bridge",
        public_key=f"{_public_key(public_key)} {KEY_COMMENT}" if public_key else "",
    )


def known_hosts_text(cluster: Cluster, host_keys: Mapping[int, str]) -> str:
    """The host keys that the head accepts, by rank: `host_keys[rank]` is "ssh-ed25519 AAAA...", a comment may
    follow."""
    rows = [(f"sparkpair-rank{node.rank}", _public_key(host_keys[node.rank])) for node in cluster.workers]
    return _environment.get_template("keeper/known_hosts.j2").render(rows=rows)


def exports_text(export: nfs.Export) -> str:
    """`/etc/exports.d/sparkpair.exports`: the weights, for those that mount them."""
    return _environment.get_template("nfs/sparkpair.exports.j2").render(
        directory=export.directory, clients=export.clients, options=",".join(export.options)
    )


def mount_text(mount: nfs.Mount) -> str:
    """The unit that mounts the weights of another node."""
    return _environment.get_template(f"nfs/{MOUNT_UNIT}.j2").render(
        what=mount.what, where=MOUNT_POINT, options=mount.options
    )


def wanted_mount_text(mount: nfs.Mount, identity: str, files: Sequence[tuple[str, int, str]]) -> str:
    """`wanted/weights-mount.json`: what a node must find when it mounts the weights of another one."""
    return _lines(
        {
            "generated": GENERATED,
            "what": mount.what,
            "options": mount.options,
            "directory": MOUNT_POINT,
            "identity": identity,
            "files": [list(row) for row in files],
        }
    )


def unit_text(name: str) -> str:
    """A unit file of ours by its name; the same on every node and in every generation."""
    return _environment.get_template(f"keeper/{name}.j2").render(program=PROGRAM)


def upkeep_text(name: str, node: Node) -> str:
    """A unit file of the deep check by its name; the timer's day is the node's own."""
    day = 1 + DAYS_APART * node.rank % 28
    return _environment.get_template(f"weights/{name}.j2").render(program=PROGRAM, day=day)


def recorder_text() -> str:
    """The recorder's unit file."""
    return _environment.get_template(f"memory/{RECORDER_UNIT}.j2").render(program=PROGRAM)


def protection_texts(cluster: Cluster) -> dict[str, str]:
    """What is added to units of the system, by the path of the file; nothing without protect_login."""
    units = PROTECTED_UNITS if cluster.knobs.protect_login else ()
    return {protection(unit): _environment.get_template(f"memory/{unit}.conf.j2").render() for unit in units}


def engine_hash(texts: Sequence[str], identities: Sequence[Sequence[str]]) -> str:
    """The identity of what the running ranks depend on: `texts[rank]`, with the manifest identities of the directories
    in that rank's `content` and then the identities of its secrets, in their order."""
    return wire.engine_hash(list(zip(texts, identities, strict=True)))


def addresses(node: Node) -> tuple[IPv4Address, ...]:
    """Where a node is reached by its peers: the rails first, the management address as the second way."""
    return (*(rail.ip for rail in node.rails), node.management_address)


def _public_key(text: str) -> str:
    """The key without its comment. A node says what its key is, and the answer goes into files that grant access: what
    has not the shape of a key is refused."""
    found = re.fullmatch(r"(ssh-ed25519 [A-Za-z0-9+/]{16,}=*)( [^\r\n]*)?", text.strip())
    if found is None:
        raise ValueError(f"not an ed25519 public key: {text.strip()[:80]!r}")
    return found.group(1)


def _env_value(value: str | GidIndex | Secret) -> object:
    if isinstance(value, Secret):
        return {"secret": secret_file(value.name)}
    if isinstance(value, GidIndex):
        return {"gid_index": {"hca": value.hca, "address": str(value.address)}}
    return value


def _lines(data: Mapping[str, object]) -> str:
    """JSON with a line per entry, and per item where an entry is a list, so that a diff shows what moved."""
    entries = []
    for key, value in data.items():
        if isinstance(value, list) and value:
            items = ",\n".join(f"  {json.dumps(item, ensure_ascii=False)}" for item in value)
            text = f"[\n{items}\n ]"
        else:
            text = json.dumps(value, ensure_ascii=False)
        entries.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(entries) + "\n}\n"
