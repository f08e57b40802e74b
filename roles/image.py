"""Image: the engine's image on every node, pulled by digest, with the same layers. What runs meanwhile goes on."""

from __future__ import annotations

import shlex

from pyinfra.api.command import StringCommand
from pyinfra.api.deploy import deploy

from checks import image as checked
from checks.image import Plan, Step, short
from checks.verdict import failures
from facts.values import Image, item, known
from node import oci
from node.paths import LOOPBACK, PROGRAM, REGISTRY_PORT
from operations.core import Commands, fail, is_executing, node_operation, noop
from operations.image import plan
from operations.run import Run
from operations.units import carry_out, let_finish, start
from spec import objects
from spec.cluster import Node

PULL_UNIT = "sparkpair-image-pull"
REGISTRY_UNIT = objects.REGISTRY_UNIT.removesuffix(".service")
PULL_DESCRIPTION = "Sparkpair: pull the engine image"
REGISTRY_DESCRIPTION = "Sparkpair: serve the engine image while it is pulled"
REGISTRY_PROPERTIES = (
    "Type=notify", "MemoryMax=512M", "Nice=10", "IOSchedulingClass=best-effort", "IOSchedulingPriority=7",
    "RuntimeMaxSec=24h",
)  # fmt: skip


@deploy("Image")
def image(run: Run) -> None:
    """Where a node cannot pull by itself, a registry on each for the time; then pull, name, compare."""
    start_registry(name="Start the registry for the peer", run=run)
    pull_image(name="Pull the engine image", run=run)
    stop_registry(name="Stop the registry for the peer", run=run)
    set_name(name="Set the name of the engine image", run=run)
    compare_layers(name="Compare the layers", run=run)


@node_operation
def start_registry(run: Run) -> Commands:
    """Serve the image to this node's own Docker, and on the node that gets it from elsewhere to the peers."""
    found = plan(run)
    if not found.runs_registry(run.node.name):
        noop("no node needs it")
        return
    yield start(REGISTRY_UNIT, REGISTRY_DESCRIPTION, registry_argv(run, run.node, found), REGISTRY_PROPERTIES)


@node_operation
def pull_image(run: Run) -> Commands:
    """Pull by digest in a unit of its own; a pull that is at work already is followed."""
    reference = run.cluster.image
    if _here(run) is not None:
        noop(f"{short(reference)} is here")
        return
    argv = pull_argv(run, run.node, plan(run))
    # Layers that are half here are lost when a pull is ended, and the next image often shares them.
    yield let_finish(PULL_UNIT, PULL_DESCRIPTION, argv)
    yield from carry_out(PULL_UNIT, PULL_DESCRIPTION, argv, ["MemoryMax=512M"])


@node_operation
def stop_registry(run: Run) -> Commands:
    """It is there only while somebody pulls; what it kept is in Docker now."""
    seen, will_run = run.seen(), plan(run).runs_registry(run.node.name) and not is_executing()
    unit = item(seen.units, objects.REGISTRY_UNIT, "its units")
    kept = item(seen.files, objects.REGISTRY_STORE, "what is installed")
    if not unit.is_active and kept is None and not will_run:
        noop("no registry runs")
        return
    yield StringCommand("systemctl stop", objects.REGISTRY_UNIT, "; rm -rf", shlex.quote(objects.REGISTRY_STORE))


@node_operation
def set_name(run: Run) -> Commands:
    """Give an image that was pulled by digest a name, without which `docker image prune` takes it."""
    found, wanted = _here(run), checked.tag(run.cluster)
    if found is not None and wanted in found.tags:
        noop(f"it is named {wanted}")
        return
    if found is None and not is_executing():
        noop("the pull names it")
        return
    if found is None:
        raise fail(f"{short(run.cluster.image)} is not here after the pull; see: journalctl -u {PULL_UNIT}")
    yield StringCommand("docker tag", shlex.quote(found.id), shlex.quote(wanted))


@node_operation
def compare_layers(run: Run) -> Commands:
    """Stop when the nodes hold different layers under one digest: their ranks would not be of one engine."""
    if is_executing():
        wrong = failures(checked.image_layers(run.cluster, run.all_seen()))
        if wrong:
            raise fail("\n".join(verdict.text().strip() for verdict in wrong))
    noop("every node holds the same layers")
    yield from ()


def registry_argv(run: Run, node: Node, found: Plan) -> list[str]:
    """The registry of a node: where it listens, whom it answers, and where it has the image from."""
    argv = [*PROGRAM, "registry", "--image", run.cluster.image, "--listen", f"{LOOPBACK}:{REGISTRY_PORT}"]
    argv += ["--stall-seconds", str(run.cluster.knobs.download_stall_seconds)]
    if found.steps[node.name] is Step.RELAY:
        server = run.cluster.node(str(found.server))
        for rail in server.rails:
            argv += ["--peer-registry", f"{rail.ip}:{REGISTRY_PORT}"]
        return argv
    for rail in node.rails:
        argv += ["--listen", f"{rail.ip}:{REGISTRY_PORT}"]
    for peer in run.cluster.peers(node):
        for rail in peer.rails:
            argv += ["--client", str(rail.ip)]
    if found.layout:
        return [*argv, "--layout", found.layout]
    return [*argv, "--store", objects.REGISTRY_STORE, "--docker-config", _login(node)]


def pull_argv(run: Run, node: Node, found: Plan) -> list[str]:
    """The pull of a node, from the image's registry or from this node's own, by the same digest."""
    argv, tag = [*PROGRAM, "pull"], ["--tag", checked.tag(run.cluster)]
    if found.steps[node.name] in (Step.THROUGH, Step.RELAY):
        reference = oci.parse(run.cluster.image)
        return [*argv, f"{LOOPBACK}:{REGISTRY_PORT}/{reference.repository}@{reference.digest}", *tag]
    # The login that the operator made for a private registry is in their own home.
    return [*argv, run.cluster.image, *tag, "--docker-config", _login(node)]


def _login(node: Node) -> str:
    return f"{node.home}/.docker/config.json"


def _here(run: Run) -> Image | None:
    name = f"the image {short(run.cluster.image)}"
    return known(item(known(run.seen().docker, "Docker").images, run.cluster.image, name), name)
