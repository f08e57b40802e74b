"""What a deploy does for weights over NFS: nothing where all is well, and in which order otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pyinfra.api.operation import add_op
from pyinfra.api.operations import run_ops

from checks import nfs as checked
from facts.values import KEEPER_STATE, STATUS
from roles import nfs
from spec import objects
from spec.cluster import Cluster
from tests.plan import nfs_world, world
from tests.plan.cases import Case
from tests.plan.conftest import cluster_of
from tests.plan.test_operations import A, B, Bench, _contexts  # noqa: F401  (a fixture that is used by being here)
from tests.plan.world import World

pytestmark = pytest.mark.slow

ROWS = (nfs.export_weights, nfs.install_mount, nfs.prove_mount, nfs.mount_anew, nfs.remove_mount, nfs.remove_export)
NOTHING: dict[str, list[str]] = {A: [], B: []}


def over_nfs() -> Cluster:
    return cluster_of(Case("x", always={"weights": "nfs"}))


def serving() -> Bench:
    return Bench(nfs_world.serving(over_nfs()))


def left(engine: str | None = None, **status: object) -> Bench:
    """Both nodes have what NFS mode left, and local weights are wanted."""
    cluster = cluster_of(Case("x"))
    here, then = world.converged(cluster), nfs_world.serving(over_nfs())
    for name, document in here.nodes.items():
        for part in ("mounts", "units"):
            document[part].update({key: value for key, value in then.nodes[name][part].items() if "sparkpair" in key})
        document["texts"][checked.TABLE] = then.nodes[name]["texts"][checked.TABLE]
        for path in (objects.EXPORTS_FILE, objects.MOUNT_FILE, objects.WANTED_MOUNT):
            document["files"][path] = then.nodes[name]["files"][path]
    if engine:
        status["accepted"] = engine
    here.head["documents"][STATUS]["json"].update(status)
    here.head["documents"][KEEPER_STATE]["json"]["memory"].update(
        {key: value for key, value in status.items() if key in ("accepted", "desired")}
    )
    return Bench(here)


def carried_out(here: Bench, *rows: Any) -> dict[str, list[str]]:
    """Plan several operations, then carry them out; what was done, by node."""
    for row in rows:
        add_op(here.state, row, run=here.run)
    run_ops(here.state)
    return {name: here.commands(name) for name in here.hosts}


def test_where_all_is_well_nothing_is_done() -> None:
    assert carried_out(serving(), *ROWS) == NOTHING


def test_with_local_weights_nothing_is_done() -> None:
    assert carried_out(Bench(world.converged(cluster_of(Case("x")))), *ROWS) == NOTHING


def test_a_first_export() -> None:
    """The directory that Debian's package does not bring, the file, the server for good, then the kernel's table."""
    here = Bench(world.converged(over_nfs()))
    here.world.worker["files"][objects.EXPORTS_DIRECTORY] = None
    done = here.do(nfs.export_weights)
    assert done[A] == []
    assert [text.split(" && ")[0] for text in done[B]] == [
        "install -d -m 755 /etc/exports.d",
        "umask 077",
        "systemctl enable --quiet --now nfs-server.service",
        "exportfs -ra",
    ]


def unexported(here: World) -> None:
    here.worker["texts"][checked.TABLE] = ""


def asleep(here: World) -> None:
    here.worker["units"][objects.NFS_SERVER_UNIT] = world.unit("inactive", "enabled")


def unproven(here: World) -> None:
    here.head["mounts"][objects.MOUNT_POINT]["proven"] = None


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (unexported, ["exportfs -ra"]),
        (asleep, ["systemctl enable --quiet --now nfs-server.service"]),
        (unproven, ["exportfs -ra"]),
    ],
)
def test_an_export_that_is_not_in_force(change: Callable[[World], None], wanted: list[str]) -> None:
    here = serving()
    change(here.world)
    assert here.do(nfs.export_weights) == {A: [], B: wanted}


def test_a_changed_unit_is_told_to_systemd_and_to_nobody_else() -> None:
    here = serving()
    here.world.head["files"][objects.MOUNT_FILE] = world.file("other")
    here.world.head["units"][objects.MOUNT_UNIT]["NeedDaemonReload"] = "yes"
    done = here.do(nfs.install_mount)
    assert done[B] == []
    assert len(done[A]) == 2
    assert done[A][0].endswith(f"mv -fT {objects.MOUNT_FILE}.sparkpair-new {objects.MOUNT_FILE}")
    assert done[A][1] == "systemctl daemon-reload"


@pytest.mark.parametrize("part", ["identity", "what", "options"])
def test_a_mount_is_proven_anew_for_other_files_and_another_mount(part: str) -> None:
    here = serving()
    here.world.head["mounts"][objects.MOUNT_POINT]["proven"][part] = "other"
    done = here.do(nfs.prove_mount)
    assert done[B] == []
    written, run, *looks = done[A]
    assert written.endswith(f"mv -fT {objects.WANTED_MOUNT}.sparkpair-new {objects.WANTED_MOUNT}")
    assert "--unit=sparkpair-nfs-prove" in run
    assert "--property=PrivateMounts=yes" in run
    assert "main.py nfs prove" in run
    assert looks


@pytest.mark.parametrize(
    ("now", "phase", "wanted"),
    [
        ({"trouble": "Stale file handle"}, "running", ["systemctl restart mnt-sparkpair-weights.mount"]),
        ({"what": None}, "running", ["systemctl restart mnt-sparkpair-weights.mount"]),
        ({"what": "10.9.0.2:/w"}, "running", ["systemctl restart mnt-sparkpair-weights.mount"]),
        ({"trouble": "it does not answer within 5 s", "silent": True}, "running", []),
        ({"trouble": "Stale file handle"}, "starting", []),
    ],
)
def test_a_mount_of_no_use_is_made_anew_under_a_pair_that_runs(
    now: Mapping[str, object], phase: str, wanted: list[str]
) -> None:
    here = serving()
    here.world.head["mounts"][objects.MOUNT_POINT].update(now)
    here.world.head["documents"][STATUS]["json"]["phase"] = phase
    assert here.do(nfs.mount_anew) == {A: wanted, B: []}


def test_what_is_left_is_removed() -> None:
    manifest = "/var/lib/sparkpair/weights/mnt-sparkpair-weights-bbe12aaa.json"
    assert carried_out(left(), nfs.remove_mount, nfs.remove_export) == {
        A: [
            "systemctl stop mnt-sparkpair-weights.mount; "
            f"rm -f {objects.MOUNT_FILE} {objects.WANTED_MOUNT} {manifest}; systemctl daemon-reload; "
            "rmdir /mnt/sparkpair/weights /mnt/sparkpair 2>/dev/null; "
            "! grep -q ' /mnt/sparkpair/weights ' /proc/self/mountinfo"
        ],
        B: ["rm -f /etc/exports.d/sparkpair.exports && { ! command -v exportfs >/dev/null || exportfs -ra; }"],
    }


@pytest.mark.parametrize(
    ("status", "is_removed"),
    [
        ({"engine": "f" * 64}, False),
        ({"engine": "f" * 64, "desired": "stop", "phase": "stopped"}, False),
        ({"desired": "stop", "phase": "stopped"}, True),
        ({"phase": "starting"}, False),
        ({"phase": "running"}, True),
    ],
    ids=["another launch", "stopped, another launch", "stopped, this launch", "not up yet", "serves"],
)
def test_what_the_accepted_launch_may_need_stays(status: dict[str, object], is_removed: bool) -> None:
    done = carried_out(left(**status), nfs.remove_mount, nfs.remove_export)  # type: ignore[arg-type]
    assert [bool(commands) for commands in done.values()] == [is_removed, is_removed]
