"""What the probe would answer on a pair: fresh, or converged. Tests change what they are about."""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import node as node_package
from checks.outlook import CURRENT
from checks.pair import wanted_identities
from facts.values import KEEPER_STATE, LEASE, MEMORY, STATUS, NodeFacts, parse
from node import wire
from operations.run import query
from roles.node_os import COMMAND
from spec import objects
from spec.cluster import Cluster, Node
from spec.render import (
    authorized_keys_text,
    engine_hash,
    known_hosts_text,
    netplan_text,
    protection_texts,
    rank_text,
    recorder_text,
    service_text,
    unit_text,
    upkeep_text,
)

KEY = "ssh-ed25519 " + "AAAAC3NzaC1lZDI1NTE5AAAAI" + "K" * 43
HOST_KEY = "ssh-ed25519 " + "AAAAC3NzaC1lZDI1NTE5AAAAI" + "H" * 43
PUBLIC = f"{KEY} {objects.KEY_COMMENT}\n"
LAYERS = ["sha256:" + "1" * 64, "sha256:" + "2" * 64]
FILES = [
    ["config.json", 700, "c" * 64],
    ["model-00001-of-00001.safetensors", 4096, "d" * 64],
    ["model.safetensors.index.json", 300, "e" * 64],
]
IDENTITY = wire.manifest_identity([(str(path), int(str(size)), str(sha)) for path, size, sha in FILES])
KEY_IDENTITY = "5" * 64
GIB = 2**30

Document = dict[str, Any]


@dataclass
class World:
    """The probes' answers by node name."""

    cluster: Cluster
    nodes: dict[str, Document]

    @property
    def head(self) -> Document:
        return self.nodes[self.cluster.head.name]

    @property
    def worker(self) -> Document:
        return self.nodes[self.cluster.workers[0].name]

    def facts(self) -> dict[str, NodeFacts]:
        """As the roles see them."""
        return {name: parse(copy.deepcopy(document)) for name, document in self.nodes.items()}


def fresh(cluster: Cluster) -> World:
    """Nothing of ours on either node; the weights are on the head only."""
    return World(cluster, {node.name: _fresh(cluster, node) for node in cluster.nodes})


def converged(cluster: Cluster) -> World:
    """As after a deploy: the pair serves."""
    world = fresh(cluster)
    for node in cluster.nodes:
        for name in world.nodes[node.name]["content"]:
            _give(world.nodes[node.name], name, identity=True)
        for path in world.nodes[node.name]["secrets"]:
            keep(world.nodes[node.name], path)
    identities = wanted_identities(cluster, world.facts())
    assert identities is not None
    engine = engine_hash([rank_text(cluster, node) for node in cluster.nodes], identities)
    for node in cluster.nodes:
        _converge(cluster, node, world.nodes[node.name], engine)
    world.head["texts"].update(generation(cluster, engine, identities))
    return world


def generation(cluster: Cluster, engine: str, identities: list[list[str]]) -> dict[str, str]:
    """The files of an accepted generation, by path."""
    manifest = json.dumps({"engine": engine, "identities": identities}, indent=1)
    texts = {f"rank{node.rank}": rank_text(cluster, node) for node in cluster.nodes}
    texts |= {"manifest": manifest, "service": service_text(cluster)}
    return {f"{CURRENT}/{name}.json": text for name, text in texts.items()}


def keep(document: Document, path: str, identity: str = KEY_IDENTITY) -> None:
    """A secret is in its file; what it holds no answer says."""
    document["secrets"][path] = {"present": True, "identity": identity, "trouble": ""}
    document["files"][path] = {"kind": "file", "sha256": None, "mode": "600", "owner": "root", "group": "root"}


def file(text: str, mode: str = "644") -> Document:
    """A file as the probe reports it."""
    return {"kind": "file", "sha256": digest(text), "mode": mode, "owner": "root", "group": "root"}


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def unit(active: str = "active", enabled: str = "enabled") -> Document:
    """A unit of ours."""
    sub = {"active": "running", "failed": "failed"}.get(active, "dead")
    return {
        "Id": "", "LoadState": "loaded", "ActiveState": active, "SubState": sub, "UnitFileState": enabled,
        "NeedDaemonReload": "no", "MainPID": "1", "Result": "success", "FragmentPath": "", "InvocationID": "",
    }  # fmt: skip


def holders(gpu: int | None = None, others: int = GIB, largest: list[Document] | None = None) -> Document:
    """Who holds memory: `gpu` and 9 GiB more our rank, where there is one."""
    engine = {"processes": 0 if gpu is None else 5, "anon": 8 * GIB, "shmem": GIB, "gpu": gpu}
    return {"engine": engine, "others": others, "largest": largest or []}


def recorded(code: str) -> Document:
    """What the recorder writes."""
    return {
        "at": "2026-12-01T07:00:00+0000", "available": 12 * GIB, "free": 9 * GIB, "cached": 3 * GIB, "swap_used": 0,
        "psi_some": 0.0, "psi_full": 0.0, "running": True, "engine": "e" * 64, "since": "2026-12-01T06:00:00+0000",
        "floor": 11 * GIB, "floor_at": "2026-12-01T06:01:00+0000", "samples": 3600, "code": code,
    }  # fmt: skip


def image(reference: str) -> Document:
    """An image of ours as the probe reports it."""
    tags = [f"{objects.IMAGE_REPOSITORY}:{reference.partition('@sha256:')[2][:12]}"]
    return {"id": "sha256:" + "9" * 64, "layers": LAYERS, "tags": tags, "platform": "linux/arm64"}


def programs() -> dict[str, bytes]:
    return wire.programs(Path(node_package.__file__ or "").parent)


def _fresh(cluster: Cluster, node: Node) -> Document:
    stated = next(stated for stated in cluster.settings.nodes if stated.rank == node.rank)
    asked = query(cluster.settings, stated)
    rails = {rail.netdev: {"mtu": 1500, "flags": ["UP", "LOWER_UP"], "addresses": []} for rail in node.rails}
    content = {
        name: {
            "path": path.replace("~", node.home), "present": False, "files": [], "outside": [], "missing": [],
            "identity": None, "copying": None,
        }
        for name, path in asked.content.items()
    }  # fmt: skip
    document: Document = {
        "format": 1,
        "sudo": True,
        "user": node.user,
        "home": node.home,
        "python": [3, 12, 3],
        "hostname": f"host-{node.rank}",
        "machine_id": f"{node.rank:016x}",
        "boot_id": "b",
        "machine": "aarch64",
        "gpu": [["NVIDIA GB10", "580.95.05"]],
        "files": dict.fromkeys(asked.files),
        "texts": dict.fromkeys(asked.texts),
        "trees": {path: {} for path in asked.trees},
        "documents": dict.fromkeys(asked.documents),
        "accounts": dict.fromkeys(asked.accounts),
        "tools": {name: f"/usr/bin/{name}" for name in asked.tools},
        "rails": {name: {"present": True, "carrier": True} for name in asked.netdevs},
        "network_files": [],
        "hcas": {
            rail.hca: {
                "netdevs": [rail.netdev],
                "state": "4: ACTIVE",
                "gids": [[1, "fe80:0000:0000:0000:005a:00ff:fe00:0100", "RoCE v2"]],
            }
            for rail in node.rails
        },
        "links": {
            "lo": {"mtu": 65536, "flags": ["UP"], "addresses": ["127.0.0.1/8"]},
            "enP7s7": {"mtu": 1500, "flags": ["UP"], "addresses": [f"{node.management_address}/24"]},
            "docker0": {"mtu": 1500, "flags": ["UP"], "addresses": ["172.17.0.1/16"]},
            **rails,
        },
        "docker": {
            "client": "/usr/bin/docker",
            "runtime": "/usr/bin/nvidia-container-runtime",
            "toolkit": "/usr/bin/nvidia-ctk",
            "registered": False,
            "answers": True,
            "trouble": "",
            "version": "28.1.1",
            "root": "/var/lib/docker",
            "runtimes": ["io.containerd.runc.v2", "runc"],
            "disk": {"at": "/var/lib/docker", "device": 1, "free": 2000 * GIB},
            "proxied": False,
            "images": dict.fromkeys(asked.images),
            "containers": [],
        },
        "content": content,
        "mounts": {path: {"what": None, "trouble": "", "silent": False, "proven": None} for path in asked.mounts},
        "secrets": {path: {"present": False, "identity": None, "trouble": ""} for path in asked.secrets},
        "overlays": {},
        "disks": {path.replace("~", node.home): {"at": "/", "device": 1, "free": 2000 * GIB} for path in asked.disks},
        "memory": {"MemTotal": 128 * GIB, "MemAvailable": 123 * GIB, "SwapTotal": 16 * GIB},
        "holders": holders() if asked.cgroups else None,
        "ports": {str(port): None for port in asked.ports},
        "host_key": HOST_KEY,
        "units": {name: {**unit("inactive", ""), "LoadState": "not-found"} for name in asked.units},
    }
    if node.is_head:
        for name in content:
            _give(document, name, identity=False)
    return document


def _give(document: Document, name: str, *, identity: bool) -> None:
    files = [[path, size, sha if identity else None] for path, size, sha in FILES]
    document["content"][name].update(present=True, files=files, identity=IDENTITY if identity else None)


def _converge(cluster: Cluster, node: Node, document: Document, engine: str) -> None:
    code = programs()
    files = document["files"]
    for item in objects.OBJECTS:
        if item.path in files and item.sort is objects.Sort.DIRECTORY and item.life is not objects.Life.WORK:
            owner, _, group = item.owner.partition(":")
            files[item.path] = {
                "kind": "directory", "sha256": None, "mode": item.mode.lstrip("0"), "owner": owner, "group": group,
            }  # fmt: skip
    netplan = netplan_text(cluster, node)
    texts = {
        objects.CLI: (COMMAND, "755"),
        objects.NETPLAN_STAGED: (netplan, "600"),
        objects.NETPLAN_FILE: (netplan, "600"),
        objects.RANK_FILE: (rank_text(cluster, node), "600"),
        f"{objects.UNIT_DIRECTORY}/{objects.AGENT_UNIT}": (unit_text(objects.AGENT_UNIT), "644"),
    }
    for name in (objects.DEEP_UNIT, objects.DEEP_TIMER):
        texts[f"{objects.UNIT_DIRECTORY}/{name}"] = (upkeep_text(name, node), "644")
    texts[f"{objects.UNIT_DIRECTORY}/{objects.RECORDER_UNIT}"] = (recorder_text(), "644")
    texts |= {path: (text, "644") for path, text in protection_texts(cluster).items()}
    document["texts"][objects.NETPLAN_FILE] = netplan
    document["units"][objects.AGENT_UNIT] = unit()
    document["units"][objects.DEEP_UNIT] = unit("inactive", "static")
    document["units"][objects.DEEP_TIMER] = unit()
    document["units"][objects.RECORDER_UNIT] = unit()
    document["documents"][MEMORY] = {"json": recorded(wire.programs_hash(code))}
    document["documents"][LEASE] = {"json": {"epoch": 2, "code": wire.programs_hash(code)}}
    if node.is_head:
        keys = {peer.rank: HOST_KEY for peer in cluster.workers}
        texts[objects.SERVICE_FILE] = (service_text(cluster), "600")
        texts[f"{objects.UNIT_DIRECTORY}/{objects.KEEPER_UNIT}"] = (unit_text(objects.KEEPER_UNIT), "644")
        texts[objects.KNOWN_HOSTS] = (known_hosts_text(cluster, keys), "644")
        texts[objects.KEY_FILE] = ("private", "600")
        texts[f"{objects.KEY_FILE}.pub"] = (PUBLIC, "644")
        document["texts"][f"{objects.KEY_FILE}.pub"] = PUBLIC
        document["texts"][objects.SERVICE_FILE] = service_text(cluster)
        document["units"][objects.KEEPER_UNIT] = unit()
        document["documents"][STATUS] = {"json": _status(cluster, engine)}
        document["documents"][KEEPER_STATE] = {
            "json": {"memory": {"accepted": engine, "desired": "run"}, "last_start_seconds": 51.7}
        }
    else:
        texts[objects.AUTHORIZED_KEYS] = (authorized_keys_text(cluster, PUBLIC), "644")
        document["accounts"][objects.USER] = {"home": objects.PEER_HOME, "shell": "/bin/sh", "password": "*"}
    files.update({path: file(text, mode) for path, (text, mode) in texts.items()})
    document["trees"][objects.LIB] = {path: hashlib.sha256(data).hexdigest() for path, data in code.items()}
    for rail in node.rails:
        document["links"][rail.netdev].update(mtu=cluster.knobs.rail_mtu, addresses=[str(rail.address)])
        mapped = f"0000:0000:0000:0000:0000:ffff:{int(rail.ip) >> 16:04x}:{int(rail.ip) & 0xFFFF:04x}"
        document["hcas"][rail.hca]["gids"].append([3, mapped, "RoCE v2"])
    docker = document["docker"]
    docker.update(registered=True, runtimes=["io.containerd.runc.v2", "nvidia", "runc"])
    docker["images"] = {cluster.image: image(cluster.image)}
    docker["containers"] = [
        {
            "id": f"{node.rank}" * 64,
            "names": [cluster.container_name],
            "state": "running",
            "labels": {wire.LABEL_ENGINE: engine, wire.LABEL_RANK: str(node.rank), wire.LABEL_EPOCH: "2"},
        }
    ]
    if node.is_head:
        for port in document["ports"]:
            document["ports"][port] = {"pid": 4711, "command": "vllm", "container": "0" * 64}


def _status(cluster: Cluster, engine: str) -> Document:
    code = wire.programs_hash(programs())
    return {
        "phase": "running", "since": "2026-11-30T12:00:00+0000", "reason": "", "desired": "run", "accepted": engine,
        "last_good": engine, "epoch": 2, "code": code, "service": digest(service_text(cluster)), "counters": {},
        "ranks": {
            str(node.rank): {"node": node.name, "state": "running", "code": code, "rail_up": True}
            for node in cluster.nodes
        },
        "last_failure": None, "last_start_seconds": 51.7,
    }  # fmt: skip
