"""Every path, unit, user and key that we make on a node, once. docs/objects.md is generated from this list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Where = Literal["every node", "head", "workers"]
Sort = Literal["directory", "file", "link", "socket", "unit", "user", "key", "state"]


@dataclass(frozen=True)
class Object:
    """One thing of ours on a node."""

    path: str
    sort: Sort
    where: Where
    owner: str
    mode: str
    made_by: str
    enabled_by: str
    removed_by: str
    why: str
    generation: bool = False


PREFIX_ETC = "/etc/sparkpair"
PREFIX_VAR = "/var/lib/sparkpair"
PREFIX_RUN = "/run/sparkpair"
PREFIX_LIB = "/usr/local/lib/sparkpair"
RANK_FILE = f"{PREFIX_ETC}/wanted/rank.json"
SERVICE_FILE = f"{PREFIX_ETC}/wanted/service.json"
NETPLAN_FILE = "/etc/netplan/60-sparkpair.yaml"
AGENT_UNIT = "sparkpair-agent.service"
KEEPER_UNIT = "sparkpair-keeper.service"
USER = "sparkpair"
PEER_HOME = f"{PREFIX_ETC}/peer"
AUTHORIZED_KEYS = f"{PEER_HOME}/.ssh/authorized_keys"
KEY_FILE = f"{PREFIX_ETC}/ssh/id_ed25519"
KNOWN_HOSTS = f"{PREFIX_ETC}/ssh/known_hosts"
CLI = "/usr/local/bin/sparkpair"
CGROUP_PARENT = "sparkpair-engine.slice"

OBJECTS: tuple[Object, ...] = ()
