"""Weights over NFS: what the nodes need for it, what the server exports, what the others mount, and what is left of it
where the weights are local again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from checks import content, pair
from checks.outlook import rank_text
from checks.verdict import Verdict, broken, holds, unknown
from facts.values import Content, Mounted, NodeFacts, Proven, Unknown, UnknownFact
from spec import nfs
from spec.cluster import Cluster, Node
from spec.objects import EXPORTS_FILE, MOUNT_FILE, MOUNT_POINT, NFS_SERVER_UNIT, WANTED_MOUNT

TABLE = "/var/lib/nfs/etab"
"""What the server's programs have the kernel export, one line for each directory and client, every option spelled out
(nfs-utils, exportfs(8))."""
_LINE = re.compile(r"(?P<directory>\S+)\t(?P<client>[^\s()]+)\((?P<options>[^()]*)\)")

Entry = tuple[str, str, frozenset[str]]
"""An export in force: directory, client, options."""


# What the server exports


def entries(seen: NodeFacts) -> list[Entry] | Unknown:
    """Every export in force on a node."""
    text = seen.texts if isinstance(seen.texts, Unknown) else seen.texts.get(TABLE)
    if isinstance(text, Unknown):
        return text
    return [
        (found["directory"], found["client"], frozenset(found["options"].split(",")))
        for found in map(_LINE.fullmatch, (text or "").splitlines())
        if found
    ]


def is_ours(entry: Entry) -> bool:
    """Whether an export is one of ours, by its `fsid`."""
    return any(option.startswith(f"fsid={nfs.FSID}") for option in entry[2])


def is_exported(export: nfs.Export, table: list[Entry]) -> bool:
    """Whether the table has this export, for each of its clients, and no other of ours."""
    ours = {entry[:2]: entry[2] for entry in table if is_ours(entry)}
    wanted = {(export.directory, str(client)) for client in export.clients}
    return set(ours) == wanted and all(set(export.options) <= options for options in ours.values())


# Before a deploy


def can_be_set_up(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> Iterator[Verdict]:
    """The packages are there, and nobody exports the same to the same nodes."""
    for node in cluster.nodes:
        seen, export, mount = facts[node.name], nfs.export(cluster, node), nfs.mount(cluster, node)
        if export is None and mount is None:
            continue
        tool, package, why = (
            ("exportfs", "nfs-kernel-server", "export the weights")
            if export is not None
            else ("mount.nfs4", "nfs-common", "mount the weights of the other")
        )
        if isinstance(seen.tools, Unknown):
            yield unknown(node.name, "its programs", seen.tools)
        elif not seen.tools.get(tool):
            yield broken(
                node.name,
                f'{package} is not installed, and weights = "nfs" has this node {why}',
                f"sudo apt-get install {package}",
            )
        if export is not None:
            yield from _nobody_elses(node, seen, export)


def _nobody_elses(node: Node, seen: NodeFacts, export: nfs.Export) -> Iterator[Verdict]:
    table = entries(seen)
    if isinstance(table, Unknown):
        yield unknown(node.name, "what it exports", table)
        return
    clients = {str(client) for client in export.clients}
    for directory, client, options in table:
        if directory == export.directory and client in clients and not is_ours((directory, client, options)):
            yield broken(
                node.name,
                f"{directory} is exported to {client} already, and not by Sparkpair; which of the two holds is chance",
                "remove that line from /etc/exports or /etc/exports.d, then: sudo exportfs -ra",
            )


# What a node that mounts has


def mounted(seen: NodeFacts) -> Mounted | Unknown:
    """The place for weights from another node."""
    if isinstance(seen.mounts, Unknown):
        return seen.mounts
    return seen.mounts.get(MOUNT_POINT, Unknown(f"{MOUNT_POINT} was not looked at"))


def weights_plan(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> content.Plan:
    """Where the weights are and what they are."""
    return next(plan for plan in content.plans(cluster, facts) if plan.name == "weights")


def is_proven(mount: nfs.Mount, identity: str | None, seen: NodeFacts) -> bool:
    """Whether these files were found under this mount, on this node."""
    now = mounted(seen)
    return not isinstance(now, Unknown) and now.proven == Proven(str(identity), mount.what, mount.options)


def is_broken(mount: nfs.Mount, seen: NodeFacts) -> bool:
    """Whether something else is mounted, or nothing, or what cannot be looked into for another reason than a server
    that is silent: of that one nothing is known, and mounting it again would only wait for it too."""
    now = mounted(seen)
    return not isinstance(now, Unknown) and not now.silent and (now.what != mount.what or bool(now.trouble))


# What is left


def mount_is_left(seen: NodeFacts) -> bool:
    """Whether a node has anything of a mount of ours."""
    now = mounted(seen)
    held = not isinstance(now, Unknown) and (now.what is not None or now.proven is not None)
    return held or any(_is_there(seen, path) for path in (MOUNT_FILE, WANTED_MOUNT))


def export_is_left(seen: NodeFacts) -> bool:
    """Whether a node has anything of an export of ours."""
    table = entries(seen)
    return _is_there(seen, EXPORTS_FILE) or (not isinstance(table, Unknown) and any(map(is_ours, table)))


def _is_there(seen: NodeFacts, path: str) -> bool:
    return not isinstance(seen.files, Unknown) and seen.files.get(path) is not None


# For verify


def statements(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> Iterator[Verdict]:
    """The server serves what it should, and each mount is the wanted one and answers. Where no rank runs, nothing needs
    to be mounted."""
    if cluster.nfs_server is None:
        return
    identity = weights_plan(cluster, facts).identity
    for node in cluster.nodes:
        export, mount = nfs.export(cluster, node), nfs.mount(cluster, node)
        if export is not None:
            yield from _server(node, facts[node.name], export)
        if mount is not None:
            if _runs(facts[cluster.head.name]):
                yield from _mounted_well(node, facts[node.name], mount)
            is_known = not isinstance(mounted(facts[node.name]), Unknown)
            if is_known and not is_proven(mount, identity, facts[node.name]):
                yield broken(node.name, f"what {mount.what} holds was not proven from here", "run deploy.py")


def _server(node: Node, seen: NodeFacts, export: nfs.Export) -> Iterator[Verdict]:
    table = entries(seen)
    unit = seen.units if isinstance(seen.units, Unknown) else seen.units.get(NFS_SERVER_UNIT)
    if isinstance(table, Unknown):
        yield unknown(node.name, "what it exports", table)
        return
    if isinstance(unit, Unknown):
        yield unknown(node.name, f"the state of {NFS_SERVER_UNIT}", unit)
        return
    clients = " and ".join(map(str, export.clients))
    if unit is None or unit.active != "active" or unit.file_state != "enabled":
        state = f"{unit.active} and {unit.file_state or 'not installed'}" if unit else "not there"
        yield broken(
            node.name, f"{NFS_SERVER_UNIT} is {state}, wanted active and enabled",
            "run deploy.py; journalctl -u nfs-server",
        )  # fmt: skip
    elif not is_exported(export, table):
        yield broken(node.name, f"{export.directory} is not exported to {clients} as wanted", "run deploy.py")
    else:
        yield holds(node.name, f"{export.directory} is exported read-only to {clients}, and to nobody else")


def _runs(head: NodeFacts) -> bool:
    """Whether the pair runs, or nobody knows."""
    try:
        return pair.accepted(head).phase == "running"
    except UnknownFact:
        return True


def _mounted_well(node: Node, seen: NodeFacts, mount: nfs.Mount) -> Iterator[Verdict]:
    now = mounted(seen)
    anew = "run deploy.py, which mounts it anew, as the next start does; a rank that runs goes on with what it has read"
    if isinstance(now, Unknown):
        yield unknown(node.name, f"what is mounted on {MOUNT_POINT}", now)
    elif now.silent:
        yield unknown(node.name, f"{MOUNT_POINT} ({now.what})", Unknown(now.trouble))
    elif now.what is None:
        yield broken(node.name, f"the weights are not mounted on {MOUNT_POINT}", anew)
    elif now.what != mount.what:
        yield broken(node.name, f"{MOUNT_POINT} is mounted from {now.what}, wanted {mount.what}", anew)
    elif now.trouble:
        yield broken(node.name, f"{MOUNT_POINT} ({now.what}): {now.trouble}", anew)
    else:
        yield holds(node.name, f"{mount.what} is mounted on {MOUNT_POINT}, and answers")


# To be told


def advice(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> Iterator[str]:
    """What NFS means for a start, and which copy nobody reads any more; told while it is about to become so."""
    for node in cluster.nodes:
        if not cluster.mounts_weights(node) or _reads_over_nfs(cluster, facts, node):
            continue
        yield (
            f'{node.name}: with weights = "nfs" each start reads its weights over the rail; the reference kit\'s is '
            f"published with 12 to 13 minutes to the API, and with about 7 from a local disk through the page cache"
        )
        seen = facts[node.name].content
        local = None if isinstance(seen, Unknown) else seen.get("weights")
        if isinstance(local, Content) and local.present:
            size = content.amount(sum(size for _, size, _ in local.files))
            yield (
                f"{node.name}: {local.path} ({size}) is read by nobody then, and stays; sudo rm -r {local.path} frees "
                f'its room (back with weights = "local", it is brought again where it is missing)'
            )


def _reads_over_nfs(cluster: Cluster, facts: Mapping[str, NodeFacts], node: Node) -> bool:
    """Whether the accepted launch of a node's rank does so."""
    head = facts[cluster.head.name].texts
    text = None if isinstance(head, Unknown) else head.get(rank_text(node.rank))
    return isinstance(text, str) and '"mount": {' in text
