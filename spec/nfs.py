"""NFS mode (`weights = "nfs"`): what one node exports, and what the others mount. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from ipaddress import IPv4Address

from spec.cluster import Cluster, Node

FSID = "53706172-6b70-6169-7200-"
"""Begins the `fsid` of every export of ours ("Sparkpair" in ASCII), so that they are known in the kernel's table even
when the file that named them is gone."""

EXPORT_OPTIONS: tuple[tuple[str, str], ...] = (
    ("ro", "nobody writes the weights over NFS"),
    ("sync", "the default, said because older tools complain where it is not"),
    ("no_subtree_check", "a file may be replaced by a deploy; the check would make handles to it stale for no gain"),
    ("root_squash", "the engine's root is nobody here: it reads what everybody may read, and nothing else"),
    ("sec=sys", "the rails join the nodes and nobody else; there is no Kerberos on them"),
)
"""Beside the `fsid`, which keeps handles valid over a reboot on any file system."""

MOUNT_OPTIONS: tuple[tuple[str, str], ...] = (
    ("vers=4.2", "one TCP port and no helpers; the reference kit v2.3-tier1 mounts with it too"),
    ("proto=tcp", "works on every kernel; RDMA needs modules that DGX OS does not load"),
    ("ro", "as it is exported"),
    ("hard", "a server that is away is waited for: soft would give the engine's mapped files an error, and kill it"),
    ("timeo=600", "60 s before a request is sent again: TCP repeats what a rail loses, a busy server is not hurried"),
    ("retrans=2", "the kernel's default: how often that happens before it says 'server not responding'"),
    ("retry=1", "minutes that a mount waits for a server that still boots; the rank agent reports and tries again"),
    ("rsize=1048576", "1 MiB, the most that NFS moves in one request: the weights are read in long runs"),
    ("nconnect=4", "connections: one TCP stream is bounded by one core, and a rail is faster"),
    ("nosuid", "nothing there is to be run"),
    ("nodev", "nor is it a device"),
    ("noexec", "see nosuid; Python sources among the weights are read, not executed"),
    ("_netdev", "systemd orders it after the network"),
    ("nofail", "and lets nothing wait for it, at boot or else"),
)


@dataclass(frozen=True)
class Mount:
    """Where a node's weights come from: `what` is SERVER:DIRECTORY, `options` as mount(8) takes them."""

    what: str
    options: str


@dataclass(frozen=True)
class Export:
    """A directory and who may mount it."""

    directory: str
    clients: tuple[IPv4Address, ...]
    options: tuple[str, ...]


def mount(cluster: Cluster, node: Node) -> Mount | None:
    """What a node is to mount; None for one that has the weights itself. The server is reached on its first rail: the
    pair does not serve without it anyway, so that NFS adds no cable that must work."""
    server = cluster.nfs_server
    if server is None or not cluster.mounts_weights(node):
        return None
    return Mount(
        what=f"{server.first_rail.ip}:{server.weights_path}",
        options=",".join(option for option, _ in MOUNT_OPTIONS),
    )


def export(cluster: Cluster, node: Node) -> Export | None:
    """What a node is to export: to each rail address of those that mount it, and to nobody else."""
    if cluster.nfs_server is None or cluster.mounts_weights(node):
        return None
    options = (*(option for option, _ in EXPORT_OPTIONS), f"fsid={fsid(node.weights_path)}")
    clients = tuple(rail.ip for peer in cluster.peers(node) for rail in peer.rails)
    return Export(node.weights_path, clients, options)


def fsid(directory: str) -> str:
    """The identity of an export: the same at every boot, whatever the disk calls itself."""
    return FSID + hashlib.sha256(directory.encode()).hexdigest()[:12]
