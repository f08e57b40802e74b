"""NFS mode in checks: what is refused, what is exported, what is proven, what is left, what is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from checks import nfs as checked
from checks.pair import wanted_identities
from checks.preflight import refusals
from checks.sourcing import Way
from facts.values import STATUS, Unknown
from spec import nfs, objects
from spec.cluster import Cluster
from tests.plan import nfs_world
from tests.plan.world import FILES, IDENTITY, World, converged, fresh, unit
from tests.unit import pair

Change = Callable[[World], None]
OVER_NFS = {**pair.UPSTREAM, "weights": "nfs"}
WHAT = "10.200.0.2:/srv/models/tiny"


def cluster(**more: object) -> Cluster:
    return pair.cluster({**OVER_NFS, **more})


def serving() -> World:
    return nfs_world.serving(cluster())


# What is exported and mounted


def test_the_worker_exports_to_the_heads_rails_alone() -> None:
    here = cluster()
    assert nfs.export(here, here.head) is None
    assert nfs.export(here, here.nodes[1]) == nfs.Export(
        "/srv/models/tiny",
        tuple(rail.ip for rail in here.head.rails),
        ("ro", "sync", "no_subtree_check", "root_squash", "sec=sys", "fsid=53706172-6b70-6169-7200-0f5db2c95f29"),
    )


def test_the_head_mounts_over_the_first_rail() -> None:
    here = cluster()
    mount = nfs.mount(here, here.head)
    assert mount is not None
    assert mount.what == WHAT
    assert nfs.mount(here, here.nodes[1]) is None
    assert here.head.weights_path == "/mnt/sparkpair/weights"


def test_the_other_way_round() -> None:
    here = cluster(nfs_server="head")
    assert nfs.mount(here, here.head) is None
    mount = nfs.mount(here, here.nodes[1])
    assert mount is not None
    assert mount.what == "10.200.0.1:/srv/models/tiny"


def test_three_nodes_read_from_one() -> None:
    here = pair.cluster(OVER_NFS, more=1)
    assert [here.mounts_weights(node) for node in here.nodes] == [True, False, True]
    export = nfs.export(here, here.nodes[1])
    assert export is not None
    assert [str(client) for client in export.clients] == ["10.200.0.1", "10.200.1.1", "10.200.0.3", "10.200.1.3"]


def test_local_weights_know_nothing_of_it() -> None:
    here = pair.cluster(pair.UPSTREAM)
    assert [nfs.export(here, node) or nfs.mount(here, node) for node in here.nodes] == [None, None]
    assert here.holder(here.head, here.head.weights_path) == (here.head, "/srv/models/tiny")


def test_files_lie_where_the_server_has_them() -> None:
    here = cluster()
    worker = here.nodes[1]
    assert here.holder(here.head, here.head.weights_path) == (worker, "/srv/models/tiny")
    assert here.holder(worker, worker.weights_path) == (worker, "/srv/models/tiny")
    assert here.holder(here.head, "/elsewhere") == (here.head, "/elsewhere")


def test_the_models_name_stays_when_the_head_mounts_it() -> None:
    assert cluster().served_model_name == pair.cluster(pair.UPSTREAM).served_model_name == "tiny"


def test_an_identity_is_the_servers() -> None:
    """The head's mount is not looked into for it."""
    world = serving()
    plan = checked.weights_plan(world.cluster, world.facts())
    assert plan.identity is not None
    assert list(plan.shares) == ["spark-b"]


# Refusals


def without(tool: str) -> Change:
    def change(world: World) -> None:
        for document in world.nodes.values():
            document["tools"][tool] = None

    return change


def somebody_elses(world: World) -> None:
    world.worker["texts"][checked.TABLE] = "/srv/models/tiny\t10.200.1.1(rw,sync,sec=sys)\n"


def unread(world: World) -> None:
    world.worker["texts"][checked.TABLE] = {"error": "PermissionError: no"}


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (
            without("exportfs"),
            '  spark-b: nfs-kernel-server is not installed, and weights = "nfs" has this node export the weights\n'
            "    Fix: sudo apt-get install nfs-kernel-server",
        ),
        (
            without("mount.nfs4"),
            '  spark-a: nfs-common is not installed, and weights = "nfs" has this node mount the weights of the other\n'
            "    Fix: sudo apt-get install nfs-common",
        ),
        (
            somebody_elses,
            "  spark-b: /srv/models/tiny is exported to 10.200.1.1 already, and not by Sparkpair; which of the two "
            "holds is chance\n    Fix: remove that line from /etc/exports or /etc/exports.d, then: sudo exportfs -ra",
        ),
        (unread, "  spark-b: what it exports could not be read: PermissionError: no\n"
                 "    Fix: make that answer, then run again"),
    ],
    ids=["no server package", "no client package", "exported already", "not readable"],
)  # fmt: skip
def test_refused(change: Change, wanted: str) -> None:
    world = fresh(cluster())
    assert refusals(world.cluster, world.facts()) == []
    change(world)
    assert [verdict.text() for verdict in refusals(world.cluster, world.facts())] == [wanted]


def test_packages_are_no_matter_of_local_weights() -> None:
    world = fresh(pair.cluster(pair.UPSTREAM))
    without("exportfs")(world)
    without("mount.nfs4")(world)
    assert refusals(world.cluster, world.facts()) == []


# The table of what is exported


def test_an_export_is_known_whatever_else_is_exported() -> None:
    world = serving()
    export = nfs.export(world.cluster, world.cluster.nodes[1])
    assert export is not None
    world.worker["texts"][checked.TABLE] += "/home\t*(rw,sync)\nnonsense\n"
    found = checked.entries(world.facts()["spark-b"])
    assert not isinstance(found, Unknown)
    assert len(found) == 3
    assert checked.is_exported(export, found)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("10.200.1.1", "10.200.1.9"),
        ("ro,sync,", "rw,sync,"),
        ("/srv/models/tiny\t10.200.0.1", "/srv/models/other\t10.200.0.1"),
        ("root_squash", "no_root_squash"),
        ("fsid=53706172", "fsid=00000000"),
    ],
)
def test_another_export_is_not_the_wanted_one(old: str, new: str) -> None:
    world = serving()
    export = nfs.export(world.cluster, world.cluster.nodes[1])
    assert export is not None
    text = world.worker["texts"][checked.TABLE]
    world.worker["texts"][checked.TABLE] = text.replace(f"({old}", f"({new}").replace(old, new).replace(",ro)", ")")
    found = checked.entries(world.facts()["spark-b"])
    assert not isinstance(found, Unknown)
    assert not checked.is_exported(export, found)


# Verify


def test_all_is_well() -> None:
    assert [(verdict.where, verdict.statement, verdict.holds) for verdict in checked.statements(
        serving().cluster, serving().facts()
    )] == [
        ("spark-a", f"{WHAT} is mounted on /mnt/sparkpair/weights, and answers", True),
        ("spark-b", "/srv/models/tiny is exported read-only to 10.200.0.1 and 10.200.1.1, and to nobody else", True),
    ]  # fmt: skip


def mounted(**now: object) -> Change:
    return lambda world: world.head["mounts"][objects.MOUNT_POINT].update(now)


def idle(world: World) -> None:
    world.worker["units"][objects.NFS_SERVER_UNIT] = unit("inactive", "disabled")


def unexported(world: World) -> None:
    world.worker["texts"][checked.TABLE] = None


ANEW = "run deploy.py, which mounts it anew, as the next start does; a rank that runs goes on with what it has read"


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (mounted(what=None), f"  spark-a: the weights are not mounted on /mnt/sparkpair/weights\n    Fix: {ANEW}"),
        (
            mounted(what="10.9.0.2:/w"),
            f"  spark-a: /mnt/sparkpair/weights is mounted from 10.9.0.2:/w, wanted {WHAT}\n    Fix: {ANEW}",
        ),
        (
            mounted(trouble="Stale file handle"),
            f"  spark-a: /mnt/sparkpair/weights ({WHAT}): Stale file handle\n    Fix: {ANEW}",
        ),
        (
            mounted(trouble="it does not answer within 5 s", silent=True),
            f"  spark-a: /mnt/sparkpair/weights ({WHAT}) could not be read: it does not answer within 5 s\n"
            "    Fix: make that answer, then run again",
        ),
        (mounted(proven=None), f"  spark-a: what {WHAT} holds was not proven from here\n    Fix: run deploy.py"),
        (
            lambda world: world.head.update(mounts={"error": "OSError: no"}),
            "  spark-a: what is mounted on /mnt/sparkpair/weights could not be read: OSError: no\n"
            "    Fix: make that answer, then run again",
        ),
        (
            idle,
            "  spark-b: nfs-server.service is inactive and disabled, wanted active and enabled\n"
            "    Fix: run deploy.py; journalctl -u nfs-server",
        ),
        (
            unexported,
            "  spark-b: /srv/models/tiny is not exported to 10.200.0.1 and 10.200.1.1 as wanted\n"
            "    Fix: run deploy.py",
        ),
        (
            unread,
            "  spark-b: what it exports could not be read: PermissionError: no\n"
            "    Fix: make that answer, then run again",
        ),
        (
            lambda world: world.worker.update(units={"error": "systemctl ended with 1"}),
            "  spark-b: the state of nfs-server.service could not be read: systemctl ended with 1\n"
            "    Fix: make that answer, then run again",
        ),
    ],
)
def test_what_does_not_hold(change: Change, wanted: str) -> None:
    world = serving()
    change(world)
    failed = [v.text() for v in checked.statements(world.cluster, world.facts()) if not v.holds]
    assert failed == [wanted]


def test_where_no_rank_runs_nothing_needs_to_be_mounted() -> None:
    """After a reboot of a pair that was stopped on purpose."""
    world = serving()
    mounted(what=None)(world)
    world.head["documents"][STATUS]["json"].update(phase="stopped", desired="stop")
    found = checked.statements(world.cluster, world.facts())
    assert [(verdict.where, verdict.holds) for verdict in found] == [("spark-b", True)]


@pytest.mark.parametrize(
    ("now", "is_broken"),
    [
        ({}, False),
        ({"what": None}, True),
        ({"what": "10.9.0.2:/w"}, True),
        ({"trouble": "Stale file handle"}, True),
        ({"trouble": "it does not answer within 5 s", "silent": True}, False),
    ],
)
def test_what_a_deploy_mounts_anew(now: Mapping[str, object], is_broken: bool) -> None:
    world = serving()
    mounted(**now)(world)
    mount = nfs.mount(world.cluster, world.cluster.head)
    assert mount is not None
    assert checked.is_broken(mount, world.facts()["spark-a"]) is is_broken


# What is left, and what is told


def test_what_is_left() -> None:
    facts = serving().facts()
    assert (checked.mount_is_left(facts["spark-a"]), checked.export_is_left(facts["spark-a"])) == (True, False)
    assert (checked.mount_is_left(facts["spark-b"]), checked.export_is_left(facts["spark-b"])) == (False, True)
    for seen in fresh(pair.cluster(pair.UPSTREAM)).facts().values():
        assert (checked.mount_is_left(seen), checked.export_is_left(seen)) == (False, False)


def test_what_nfs_means_is_told_as_long_as_it_is_not_so() -> None:
    world = converged(pair.cluster(pair.UPSTREAM))
    assert list(checked.advice(world.cluster, world.facts())) == []
    assert list(checked.advice(cluster(), world.facts())) == [
        'spark-a: with weights = "nfs" each start reads its weights over the rail; the reference kit\'s is published '
        "with 12 to 13 minutes to the API, and with about 7 from a local disk through the page cache",
        "spark-a: /srv/models/tiny (5.0 KiB) is read by nobody then, and stays; sudo rm -r /srv/models/tiny frees its "
        'room (back with weights = "local", it is brought again where it is missing)',
    ]
    then = serving()
    assert list(checked.advice(then.cluster, then.facts())) == []


# Where the server gets them from


def test_a_copy_that_is_no_longer_read_is_lent_to_the_server() -> None:
    """The head has the weights on its own disk, and is to read the worker's, who has none."""
    world = fresh(cluster())
    plan = checked.weights_plan(world.cluster, world.facts())
    assert plan.refusals == ()
    assert {name: share.way for name, share in plan.shares.items()} == {"spark-b": Way.COPY, "spark-a": Way.HASH}
    assert (plan.source, plan.paths["spark-a"]) == ("spark-a", "/srv/models/tiny")
    world.head["content"]["weights"].update(identity=IDENTITY, files=FILES)
    plan = checked.weights_plan(world.cluster, world.facts())
    assert (plan.way("spark-a"), plan.way("spark-b"), plan.identity) == (Way.NOTHING, Way.COPY, IDENTITY)
    assert plan.serves("spark-a")
    assert wanted_identities(world.cluster, world.facts()) == [[IDENTITY], [IDENTITY]]


def test_a_copy_that_is_not_whole_is_lent_to_nobody() -> None:
    world = fresh(cluster())
    world.head["content"]["weights"].update(missing=["config.json"])
    plan = checked.weights_plan(world.cluster, world.facts())
    assert list(plan.paths.values()) == ["/mnt/sparkpair/weights", "/srv/models/tiny"]
    assert [verdict.statement for verdict in plan.refusals] == [
        "weights: no node has them whole; spark-b has nothing in /srv/models/tiny"
    ]


def test_a_server_that_has_them_asks_nobody() -> None:
    plan = checked.weights_plan(serving().cluster, serving().facts())
    assert list(plan.shares) == ["spark-b"]
