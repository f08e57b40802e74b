"""What must be installed and running, as digests: for whoever compares without writing."""

from __future__ import annotations

from checks import pair
from operations.run import Run, digest
from spec import nfs, objects
from spec.cluster import Node
from spec.render import (
    UPKEEP_UNITS,
    engine_hash,
    exports_text,
    mount_text,
    netplan_text,
    protection_texts,
    rank_text,
    recorder_text,
    service_text,
    unit_text,
    upkeep_text,
)


def files(run: Run, node: Node) -> dict[str, str]:
    """The files whose text follows from the settings alone, by path."""
    texts = {
        objects.NETPLAN_STAGED: netplan_text(run.cluster, node),
        objects.NETPLAN_FILE: netplan_text(run.cluster, node),
        objects.RANK_FILE: rank_text(run.cluster, node),
        f"{objects.UNIT_DIRECTORY}/{objects.AGENT_UNIT}": unit_text(objects.AGENT_UNIT),
        **{f"{objects.UNIT_DIRECTORY}/{name}": upkeep_text(name, node) for name in UPKEEP_UNITS},
        f"{objects.UNIT_DIRECTORY}/{objects.RECORDER_UNIT}": recorder_text(),
        **protection_texts(run.cluster),
    }
    if node.is_head:
        texts[objects.SERVICE_FILE] = service_text(run.cluster)
        texts[f"{objects.UNIT_DIRECTORY}/{objects.KEEPER_UNIT}"] = unit_text(objects.KEEPER_UNIT)
    export, mount = nfs.export(run.cluster, node), nfs.mount(run.cluster, node)
    if export is not None:
        texts[objects.EXPORTS_FILE] = exports_text(export)
    if mount is not None:
        texts[objects.MOUNT_FILE] = mount_text(mount)
    return {path: digest(text) for path, text in texts.items()}


def service(run: Run) -> str:
    """What the keeper must have loaded."""
    return digest(service_text(run.cluster))


def engine(run: Run) -> str | None:
    """The engine hash of what is wanted; None while the weights have no identity yet."""
    identities = pair.wanted_identities(run.cluster, run.all_seen())
    if identities is None:
        return None
    return engine_hash([rank_text(run.cluster, node) for node in run.cluster.nodes], identities)
