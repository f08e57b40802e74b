"""NFS: one node exports the weights, the others mount them. Of no effect, and taken away, where each node has its own.

A changed mount is a changed launch, which the keeper restarts the pair for: the rank agent mounts anew before it starts
a rank. What is mounted while a rank runs is touched here only where it is of no use to anybody any more.
"""

from __future__ import annotations

import shlex

from pyinfra.api.command import StringCommand
from pyinfra.api.deploy import deploy

from checks import nfs as checked
from checks import pair
from facts.values import item, known
from node.paths import PROGRAM, manifest_path
from operations import wanted
from operations.core import Commands, is_executing, node_operation, noop
from operations.files import put, write
from operations.run import Run, digest
from operations.units import carry_out
from spec import nfs as spec
from spec import objects
from spec.render import exports_text, mount_text, wanted_mount_text

PROVE_UNIT = "sparkpair-nfs-prove"
PROPERTIES = ("PrivateMounts=yes", "MemoryMax=256M", "RuntimeMaxSec=300")
"""What it mounts is seen by nobody else, and goes with it."""


@deploy("NFS")
def nfs(run: Run) -> None:
    """Export where the weights are, then prove from the other nodes what they see."""
    export_weights(name="Export the weights", run=run)
    install_mount(name=f"Install {objects.MOUNT_UNIT}", run=run)
    prove_mount(name="Prove the weights over NFS", run=run)
    mount_anew(name="Mount the weights anew", run=run)


@deploy("NFS")
def leave_nfs(run: Run) -> None:
    """Last of all: the pair that ran before read by it."""
    remove_mount(name=f"Remove {objects.MOUNT_UNIT}", run=run)
    remove_export(name="Remove the export of the weights", run=run)


@node_operation
def export_weights(run: Run) -> Commands:
    """The exports file, the server at work now and at every boot, and the kernel told, where its table differs."""
    export = spec.export(run.cluster, run.node)
    if export is None:
        noop("this node exports nothing")
        return
    directory = item(run.seen().files, objects.EXPORTS_DIRECTORY, "what is installed")
    if directory is None:  # Debian's package brings only /etc/exports
        yield StringCommand("install -d -m 755", objects.EXPORTS_DIRECTORY)
    yield from put(run, objects.EXPORTS_FILE, exports_text(export), "644")
    unit = item(run.seen().units, objects.NFS_SERVER_UNIT, "its units")
    if unit.active != "active" or unit.file_state != "enabled":
        yield StringCommand("systemctl enable --quiet --now", objects.NFS_SERVER_UNIT)
    is_exported = checked.is_exported(export, known(checked.entries(run.seen()), "what it exports"))
    if not is_exported or not _is_proven_everywhere(run):
        # Before a proof in any case: what the kernel has looked up of a directory that was replaced goes with it.
        yield StringCommand("exportfs -ra")


@node_operation
def install_mount(run: Run) -> Commands:
    """The unit's file, and systemd told of it. What is mounted stays as it is until the next rank starts."""
    mount = spec.mount(run.cluster, run.node)
    if mount is None:
        noop("this node mounts nothing")
        return
    yield from put(run, objects.MOUNT_FILE, mount_text(mount), "644")
    if item(run.seen().units, objects.MOUNT_UNIT, "its units").needs_reload:
        yield StringCommand("systemctl daemon-reload")


@node_operation
def prove_mount(run: Run) -> Commands:
    """Mount it aside and compare names and sizes with what the server proved: a mount that does not work is told
    before the pair is touched."""
    mount = spec.mount(run.cluster, run.node)
    if mount is None:
        noop("this node mounts nothing")
        return
    plan = checked.weights_plan(run.cluster, run.all_seen())
    if plan.identity is None and not is_executing():
        yield "true"  # in the plan only: what is to be found is not known before it is hashed where it is
        return
    text = wanted_mount_text(mount, str(plan.identity), plan.files)
    now = item(run.seen().files, objects.WANTED_MOUNT, "what is installed")
    if checked.is_proven(mount, plan.identity, run.seen()) and now is not None and now.sha256 == digest(text):
        noop("the weights were proven over NFS")
        return
    yield write(objects.WANTED_MOUNT, text, "644")
    yield from carry_out(PROVE_UNIT, "Sparkpair: prove the weights over NFS", [*PROGRAM, "nfs", "prove"], PROPERTIES)


@node_operation
def mount_anew(run: Run) -> Commands:
    """For a launch that is accepted as it is: where its mount is gone, stale or another one. A rank that runs is not
    disturbed: its container holds the mount that it was started with."""
    mount = spec.mount(run.cluster, run.node)
    if mount is None:
        noop("this node mounts nothing")
        return
    now, engine = pair.accepted(run.seen(run.cluster.head)), wanted.engine(run)
    # Before files are hashed nobody knows; a plan takes it that they are the same.
    is_other = engine != now.engine and (engine is not None or is_executing())
    if now.engine is None or is_other or now.phase != "running":
        noop("the next start mounts it")
        return
    if not checked.is_broken(mount, run.seen()):
        noop(f"{mount.what} is mounted")
        return
    yield StringCommand("systemctl restart", objects.MOUNT_UNIT)


@node_operation
def remove_mount(run: Run) -> Commands:
    """What a node that mounted the weights has of it."""
    if spec.mount(run.cluster, run.node) is not None or not checked.mount_is_left(run.seen()):
        noop("nothing is left of a mount")
        return
    if _is_still_needed(run):
        noop("the launch that the keeper holds the pair to may still read over NFS")
        return
    files = shlex.join([objects.MOUNT_FILE, objects.WANTED_MOUNT, str(manifest_path(objects.MOUNT_POINT))])
    place = objects.MOUNT_POINT
    yield StringCommand(
        f"systemctl stop {objects.MOUNT_UNIT}; rm -f {files}; systemctl daemon-reload;",
        f"rmdir {place} {place.rpartition('/')[0]} 2>/dev/null; ! grep -q ' {place} ' /proc/self/mountinfo",
    )


@node_operation
def remove_export(run: Run) -> Commands:
    """What a node that exported the weights has of it. The server goes on: whose it is otherwise is not known here."""
    if spec.export(run.cluster, run.node) is not None or not checked.export_is_left(run.seen()):
        noop("nothing is left of an export")
        return
    if _is_still_needed(run):
        noop("the launch that the keeper holds the pair to may still read over NFS")
        return
    yield StringCommand("rm -f", objects.EXPORTS_FILE, "&& { ! command -v exportfs >/dev/null || exportfs -ra; }")


def _is_proven_everywhere(run: Run) -> bool:
    identity = checked.weights_plan(run.cluster, run.all_seen()).identity
    return all(
        checked.is_proven(mount, identity, run.seen(node))
        for node in run.cluster.nodes
        if (mount := spec.mount(run.cluster, node)) is not None
    )


def _is_still_needed(run: Run) -> bool:
    """Whether a rank may yet be started that reads as before: until the pair runs what is wanted now. A plan takes it
    that the deploy gets there, unless the pair is stopped on purpose."""
    now = pair.accepted(run.seen(run.cluster.head))
    if now.engine in (None, wanted.engine(run)):
        return is_executing() and now.desired != "stop" and now.phase != "running"
    return is_executing() or now.desired == "stop"
