"""A converged pair in NFS mode, as its probes answer."""

from __future__ import annotations

from checks import nfs as checked
from spec import nfs, objects
from spec.cluster import Cluster
from spec.render import exports_text, mount_text, wanted_mount_text
from tests.plan.world import World, converged, file, unit


def serving(cluster: Cluster) -> World:
    """One node exports, the others mount, and all is well."""
    world = converged(cluster)
    for node in cluster.nodes:
        document = world.nodes[node.name]
        export, mount = nfs.export(cluster, node), nfs.mount(cluster, node)
        if export is not None:
            document["texts"][checked.TABLE] = table(export)
            document["units"][objects.NFS_SERVER_UNIT] = unit()
            document["files"][objects.EXPORTS_FILE] = file(exports_text(export))
        if mount is not None:
            plan = checked.weights_plan(cluster, world.facts())
            proven = {"identity": plan.identity, "what": mount.what, "options": mount.options}
            document["mounts"][objects.MOUNT_POINT] = {
                "what": mount.what, "trouble": "", "silent": False, "proven": proven,
            }  # fmt: skip
            document["units"][objects.MOUNT_UNIT] = unit("active", "static")
            document["files"][objects.MOUNT_FILE] = file(mount_text(mount))
            wanted = wanted_mount_text(mount, str(plan.identity), plan.files)
            document["files"][objects.WANTED_MOUNT] = file(wanted)
    return world


def table(export: nfs.Export) -> str:
    """As nfs-utils writes it: every option spelled out, some twice."""
    more = "wdelay,hide,nocrossmnt,secure,no_all_squash,secure_locks,acl,no_pnfs,anonuid=65534,anongid=65534,ro"
    return "".join(f"{export.directory}\t{client}({','.join(export.options)},{more})\n" for client in export.clients)
