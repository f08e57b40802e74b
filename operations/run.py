"""One run of a verb over all nodes: the cluster, and what is true on each node."""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pyinfra.api.exceptions import DeployError
from pyinfra.api.host import Host
from pyinfra.api.inventory import Inventory
from pyinfra.context import ctx_host, ctx_inventory, ctx_state

import node as node_package
from checks import access, discovery, nfs, outlook
from checks.memory import EARLYOOM_SETTINGS, OTHER_GUARDS
from facts.gate import PATH as GATE
from facts.node import Query, node_facts
from facts.talk import Talk
from facts.values import DEEP_RESULT, KEEPER_STATE, LEASE, MEMORY, STATUS, NodeFacts
from node import wire
from node.paths import ENGINE_CGROUPS
from operations.talk import talk
from spec import objects, rules
from spec.cluster import Cluster, Node, Rail, Settings, StatedNode
from spec.discovery import as_they_are, must_ask

Resolve = Callable[[Settings, Mapping[str, NodeFacts], Mapping[str, tuple[Rail, ...]]], Cluster]

TRANSIENT_UNITS = (
    "sparkpair-weights-hash.service",
    "sparkpair-weights-serve.service",
    "sparkpair-stage.service",
    "sparkpair-image-pull.service",
    "sparkpair-image-registry.service",
    "sparkpair-nfs-prove.service",
)
NFS_UNITS = (objects.NFS_SERVER_UNIT, objects.MOUNT_UNIT)
TOOLS = (
    "docker",
    "exportfs",
    "ib_write_bw",
    "ib_write_lat",
    "ip",
    "iperf3",
    "mount.nfs4",
    "netplan",
    "nvidia-ctk",
    "ssh",
    "ssh-keygen",
    "systemd-run",
    "useradd",
)


@dataclass(frozen=True)
class Run:
    """What every role is given: what is wanted, and a look at any node."""

    cluster: Cluster
    hosts: Mapping[str, Host]
    talk: Talk | None = None
    """What the nodes heard of each other; None where they were not asked."""

    @property
    def node(self) -> Node:
        """The node that is being prepared or worked on."""
        return self.cluster.node(ctx_host.get().name)

    @property
    def host(self) -> Host:
        return self.hosts[self.node.name]

    def seen(self, node: Node | None = None) -> NodeFacts:
        """The facts of a node, this one's by default."""
        name = (node or self.node).name
        return node_facts(self.hosts[name], query(self.cluster.settings, _stated(self.cluster.settings, name)))

    def all_seen(self) -> dict[str, NodeFacts]:
        """The facts of every node, by name."""
        return {node.name: self.seen(node) for node in self.cluster.nodes}

    @cached_property
    def programs(self) -> dict[str, bytes]:
        """The programs that a node gets, by path."""
        return wire.programs(Path(node_package.__file__ or "").parent)

    @cached_property
    def programs_hash(self) -> str:
        return wire.programs_hash(self.programs)


def begin(settings: Settings, resolve: Resolve) -> Run:
    """Look at every node, each host of pyinfra at its own first, find rails that are not stated, and resolve the
    cluster. The nodes talk where rails are not in force. Raises DeployError where rails are stated nowhere and cannot
    be found; what contradicts stated ones, preflight says."""
    hosts, facts = _looked(settings)
    looks = discovery.looks(settings.nodes, facts)
    now = as_they_are(looks).rails
    if not all(access.usable(seen) for seen in facts.values()):
        return Run(resolve(settings, facts, now), hosts)  # whoever looks at the nodes says so
    said = talk(hosts, looks, now, settings.effective.rail_mtu) if must_ask(looks) else None
    found = discovery.found(settings, facts, said)
    if not found.known:
        lines = [discovery.refusal(remark).text() for remark in (*found.refusals, *found.notes)]
        raise DeployError("\n".join(["Preflight refused; no node was changed.", *lines]))
    _judge(settings, found.rails)
    return Run(resolve(settings, facts, found.rails), hosts, said)


def examine(settings: Settings, resolve: Resolve) -> Run:
    """The same for whoever wants to see all that there is: the nodes talk in any case, and rails that cannot be found
    are none."""
    hosts, facts = _looked(settings)
    usable = [node for node in settings.nodes if access.usable(facts[node.name])]
    looks = discovery.looks(settings.nodes, facts)
    rails = as_they_are(looks).rails
    there = {look.name for look in looks} & {node.name for node in usable}
    said = talk(hosts, [look for look in looks if look.name in there], rails, settings.effective.rail_mtu)
    if len(usable) == len(settings.nodes):
        found = discovery.found(settings, facts, said)
        rails = found.rails if found.known else rails
    return Run(resolve(settings, facts, rails), hosts, said)


def as_set_up(settings: Settings, resolve: Resolve) -> Run:
    """The same for whoever needs no rail to work: they are those that are stated, or that are set up; else none."""
    hosts, facts = _looked(settings)
    return Run(resolve(settings, facts, as_they_are(discovery.looks(settings.nodes, facts)).rails), hosts)


def _name_places() -> None:
    """Tell inspect of the files on the stack that are no module's, as deploy.py is none: pyinfra has it look up each
    operation's place, and for such a file it searches all modules each time, 11 ms per operation (Python 3.11). It may
    go when pyinfra does without inspect.stack()."""
    known = getattr(inspect, "modulesbyfile", None)  # its own cache
    frame = inspect.currentframe()
    while known is not None and frame is not None:
        file, name = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
        if getattr(sys.modules.get(name), "__file__", None) != file:
            known.setdefault(file, "")
        frame = frame.f_back


def _looked(settings: Settings) -> tuple[dict[str, Host], dict[str, NodeFacts]]:
    _name_places()
    inventory: Inventory = ctx_inventory.get()
    hosts = {host.name: host for host in inventory}
    left_out = [name for name, host in hosts.items() if not ctx_state.get().is_host_in_limit(host)]
    if left_out:
        raise DeployError(
            "Preflight refused; no node was changed.\n"
            f"  this run leaves out {', '.join(left_out)}: the nodes serve as one, so they are deployed as one.\n"
            "    Fix: run again without --limit and --exclude"
        )
    mine = ctx_host.get().name
    order = sorted(settings.nodes, key=lambda node: node.name != mine)
    facts = {node.name: node_facts(hosts[node.name], query(settings, node)) for node in order}
    return {node.name: hosts[node.name] for node in settings.nodes}, facts


def _judge(settings: Settings, rails: Mapping[str, tuple[Rail, ...]]) -> None:
    """Raise DeployError where rails that were found break a rule that stated ones are judged by."""
    if all(node.rails for node in settings.nodes):
        return
    nodes = tuple(node.model_copy(update={"rails": rails[node.name]}) for node in settings.nodes)
    lines = rules.refusals(settings.model_copy(update={"nodes": nodes}))
    if lines:
        raise DeployError("\n".join(["Settings refused; no node was changed.", *(f"  {line}" for line in lines)]))


def query(settings: Settings, node: StatedNode) -> Query:
    """All that any role or check asks about one node, in one question."""
    knobs = settings.effective
    paths = {"weights": node.weights_path or knobs.weights_path, "drafter": node.drafter_path or knobs.drafter_path}
    content = {name: str(path) for name, path in paths.items() if path}
    return Query(
        files=tuple(
            item.path
            for item in objects.OBJECTS
            if item.path.startswith("/")
            and item.where.holds(node.rank == 0)
            and not set("*<") & set(item.path)
            # Whoever looks at it waits for the server: `mounts` does, and does not wait.
            and item.path != objects.MOUNT_POINT
        ),
        texts=(
            f"{objects.KEY_FILE}.pub",
            nfs.TABLE,
            EARLYOOM_SETTINGS,
            objects.GOOD_HOST,
            objects.FIREWALL_RULES,
            *((objects.KNOWN_HOSTS,) if node.rank == 0 else ()),
            *outlook.texts(len(settings.nodes), node.rank == 0),
        ),
        trees=(objects.LIB,),
        documents=(LEASE, STATUS, KEEPER_STATE, DEEP_RESULT, MEMORY, *((GATE,) if node.rank == 0 else ())),
        accounts=(objects.USER,),
        tools=TOOLS,
        netdevs=tuple(rail.netdev for rail in node.rails),
        images=(str(knobs.image),),
        units=(
            objects.AGENT_UNIT,
            objects.KEEPER_UNIT,
            objects.DEEP_UNIT,
            objects.DEEP_TIMER,
            objects.RECORDER_UNIT,
            *objects.PROTECTED_UNITS,
            *OTHER_GUARDS,
            *NFS_UNITS,
            *TRANSIENT_UNITS,
        ),
        content=content,
        state=f"{objects.VAR}/weights",
        mounts=(objects.MOUNT_POINT,),
        secrets=(objects.API_KEY_FILE,) if node.rank == 0 and knobs.require_api_key else (),
        overlays=settings.stack.overlays,
        disks=(*content.values(), objects.VAR),
        ports=(knobs.api_port, knobs.master_port),
        gpu=True,
        cgroups=tuple(str(cgroup) for cgroup in ENGINE_CGROUPS) if knobs.memory_used_max_gib else (),
        host="full" if os.environ.get("SPARKPAIR_DOCTOR") == "1" else "brief",
    )


def digest(text: str) -> str:
    """sha256 of a text as the probe reports it for a file."""
    return hashlib.sha256(text.encode()).hexdigest()


def _stated(settings: Settings, name: str) -> StatedNode:
    return next(node for node in settings.nodes if node.name == name)
