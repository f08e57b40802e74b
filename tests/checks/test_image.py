"""How the image gets to each node, the room for it, and whether it is the same and the locked one everywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from checks import image
from checks.image import Plan, Step
from facts.values import Unknown
from spec.cluster import Cluster
from spec.lock import Lock, LockedImage, LockedLayer, LockedPlatform
from tests.plan.world import GIB, LAYERS, World, converged
from tests.unit import pair

A, B = "spark-a", "spark-b"
NO_ROUTE, REFUSED = "No route to host", "Connection refused"
HERE, PULL, SERVE, THROUGH, RELAY = Step.HERE, Step.PULL, Step.SERVE, Step.THROUGH, Step.RELAY
BUNDLE = {"bundle_path": "/media/x"}


def cluster(head: dict[str, Any] | None = None, worker: dict[str, Any] | None = None) -> Cluster:
    return pair.cluster(pair.UPSTREAM, head={**pair.HEAD, **(head or {})}, worker={**pair.WORKER, **(worker or {})})


def without(made: Cluster, *names: str) -> World:
    """A converged pair, without the image on these nodes."""
    world = converged(made)
    for name in names:
        world.nodes[name]["docker"]["images"][made.image] = None
    return world


@pytest.mark.parametrize(
    ("lacking", "reached", "bundles", "wanted"),
    [
        ((), {}, {}, Plan({A: HERE, B: HERE})),
        ((A, B), {A: "", B: ""}, {}, Plan({A: PULL, B: PULL})),
        ((B,), {A: NO_ROUTE, B: ""}, {}, Plan({A: HERE, B: PULL})),
        ((A, B), {A: "", B: NO_ROUTE}, {}, Plan({A: THROUGH, B: RELAY}, A)),
        ((A, B), {A: NO_ROUTE, B: ""}, {}, Plan({A: RELAY, B: THROUGH}, B)),
        ((B,), {A: "", B: NO_ROUTE}, {}, Plan({A: SERVE, B: RELAY}, A)),
        ((A, B), {A: Unknown("no answer"), B: ""}, {}, Plan({A: PULL, B: PULL})),
        ((A, B), {A: NO_ROUTE, B: REFUSED}, {B: ""}, Plan({A: RELAY, B: THROUGH}, B, "/media/x/image")),
        ((A,), {A: "", B: ""}, {B: ""}, Plan({A: RELAY, B: SERVE}, B, "/media/x/image")),
        ((A, B), {A: "", B: ""}, {B: "it holds another image"}, Plan({A: PULL, B: PULL})),
    ],
)
def test_the_way_of_each_node(
    lacking: tuple[str, ...], reached: image.Reached, bundles: image.Reached, wanted: Plan
) -> None:
    made = cluster(worker=BUNDLE)
    assert image.plan(made, without(made, *lacking).facts(), reached, bundles) == wanted


def test_a_daemon_behind_a_proxy_pulls_by_itself() -> None:
    world = without(cluster(), A, B)
    world.worker["docker"]["proxied"] = True
    plan = image.plan(world.cluster, world.facts(), {A: "", B: NO_ROUTE}, {})
    assert plan == Plan({A: PULL, B: PULL})


def test_an_image_that_nobody_gets_is_refused() -> None:
    made = cluster(worker=BUNDLE)
    found = image.plan(
        made,
        without(made, A, B).facts(),
        {A: NO_ROUTE, B: Unknown("it did not answer")},
        {B: "/media/x/image/index.json: No such file or directory"},
    )
    assert [verdict.text() for verdict in found.refusals] == [
        "  the image 192.168.77.1:5000/vllm-cpu@555555555555 is not on spark-a and spark-b, and no node gets it from "
        "192.168.77.1:5000 (spark-a: No route to host; spark-b: it did not answer; the bundle of spark-b: "
        "/media/x/image/index.json: No such file or directory)\n"
        "    Fix: let one node reach that registry, or carry a bundle there: make bundle where there is internet, and "
        "state bundle_path (docs/operations.md#image)"
    ]


def locked(made: Cluster, **changes: Any) -> Cluster:
    """The same pair with a lock, of which the platform may be another than the nodes have."""
    layers = (LockedLayer("sha256:" + "a" * 64, 3 * GIB), LockedLayer("sha256:" + "b" * 64, GIB))
    platform = replace(LockedPlatform("sha256:" + "d" * 64, "sha256:" + "9" * 64, layers), **changes)
    name, _, digest = made.image.partition("@")
    lock = Lock(LockedImage(name, "v1", digest, {"linux/arm64": platform}), None, None)
    return replace(made, settings=made.settings.model_copy(update={"lock": lock}))


def test_room_is_that_of_the_locked_layers() -> None:
    made = cluster()
    assert (image.pull_bytes(made), image.store_bytes(made)) == (GIB, GIB)
    assert (image.pull_bytes(locked(made)), image.store_bytes(locked(made))) == (12 * GIB, 4 * GIB)


@pytest.mark.report("DKR-06")
def test_the_node_that_serves_needs_room_for_what_it_keeps() -> None:
    made = locked(cluster())
    world = without(made, A, B)
    for name in (A, B):
        world.nodes[name]["disks"]["/var/lib/sparkpair"]["free"] = 15 * GIB
    through = Plan({A: THROUGH, B: RELAY}, A)
    assert [verdict.text() for verdict in image.room(made, through, world.facts())] == [
        "  spark-a: 15.0 GiB free on the disk of /; /var/lib/sparkpair/registry needs 4.0 GiB beside 12.0 GiB for the "
        "image while the peer gets the image through this node\n"
        "    Fix: make room for 1.0 GiB: sudo du -xh --max-depth=2 / | sort -h | tail"
    ]
    assert not list(image.room(made, Plan({A: SERVE, B: RELAY}, A), world.facts()))
    assert not list(image.room(made, Plan({A: THROUGH, B: RELAY}, A, "/media/x/image"), world.facts()))
    world.head["docker"]["disk"]["device"] = 2
    assert not list(image.room(made, through, world.facts()))


def told(made: Cluster, world: World) -> list[str]:
    return [verdict.text() for verdict in image.image_layers(made, world.facts()) if not verdict.holds]


@pytest.mark.report("DKR-05")
@pytest.mark.parametrize("image_id", ["9", "d"])
@pytest.mark.report("DKR-05")
def test_the_locked_image_is_known_by_either_store_s_id(image_id: str) -> None:
    made = locked(cluster())
    world = converged(made)
    for node in (world.head, world.worker):
        node["docker"]["images"][made.image]["id"] = f"sha256:{image_id * 64}"
    assert told(made, world) == []


def test_an_image_that_is_not_the_locked_one() -> None:
    made = locked(cluster(), config="sha256:" + "7" * 64)
    world = converged(made)
    world.worker["docker"]["images"][made.image]["id"] = "sha256:" + "7" * 64
    assert told(made, world) == [
        "  spark-a: the image 192.168.77.1:5000/vllm-cpu@555555555555 is here with id 999999999999 and 2 layers; the "
        "lock has 777777777777 with 2\n"
        "    Fix: remove it, then run deploy.py: docker rmi -f 999999999999"
    ]
    world.head["docker"]["images"][made.image].update(platform="linux/amd64")
    assert told(made, world) == [
        "  spark-a: the image 192.168.77.1:5000/vllm-cpu@555555555555 is here for linux/amd64, and the lock has it for "
        "linux/arm64\n"
        "    Fix: run make lock, and look at what it changes"
    ]


@pytest.mark.report("DKR-06", "DKR-05", "RDMA-04")
def test_different_layers_under_one_digest() -> None:
    world = converged(cluster())
    world.worker["docker"]["images"][world.cluster.image].update(id="sha256:" + "8" * 64, layers=LAYERS[:1])
    assert told(world.cluster, world) == [
        "  spark-a and spark-b hold different layers under 192.168.77.1:5000/vllm-cpu@555555555555\n"
        "    Fix: remove it on both, then run deploy.py:\n"
        "      spark-a: docker rmi -f 999999999999\n"
        "      spark-b: docker rmi -f 888888888888"
    ]


@pytest.mark.parametrize(
    ("reference", "wanted"),
    [("ghcr.io/a/b@sha256:1", "ghcr.io"), ("vllm/vllm-openai@sha256:1", "docker.io"), ("localhost/x", "localhost")],
)
def test_the_registry_of_an_image(reference: str, wanted: str) -> None:
    digest = "@sha256:" + "5" * 64
    made = pair.cluster({**pair.UPSTREAM, "image": reference.partition("@")[0] + digest})
    assert image.registry(made) == wanted
