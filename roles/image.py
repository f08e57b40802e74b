"""Image: the engine's image on every node, pulled by digest, with the same layers."""

from __future__ import annotations

from pyinfra.api.deploy import deploy

from checks import staging
from checks.verdict import failures
from facts.values import item, known
from operations.core import Commands, fail, is_executing, node_operation, noop
from operations.run import Run
from operations.units import carry_out, let_finish

PULL_UNIT = "sparkpair-image-pull"
DESCRIPTION = "Sparkpair: pull the engine image"


@deploy("Image")
def image(run: Run) -> None:
    """Pull where it is missing, then compare."""
    pull_image(name="Pull the engine image", run=run)
    compare_layers(name="Compare the layers", run=run)


@node_operation
def pull_image(run: Run) -> Commands:
    """Pull by digest in a unit of its own; a pull that is at work already is followed."""
    reference = run.cluster.image
    name = f"the image {staging.short(reference)}"
    if known(item(known(run.seen().docker, "Docker").images, reference, name), name) is not None:
        noop(f"{staging.short(reference)} is here")
        return
    # The login that the operator made for a private registry is in their own home.
    environment = f"DOCKER_CONFIG={run.node.home}/.docker"
    argv = ["/usr/bin/docker", "pull", reference]
    # Layers that are half here are lost when a pull is ended, and the next image often shares them.
    yield let_finish(PULL_UNIT, DESCRIPTION, argv)
    yield from carry_out(PULL_UNIT, DESCRIPTION, argv, [f"Environment={environment}", "MemoryMax=512M"])


@node_operation
def compare_layers(run: Run) -> Commands:
    """Stop when the nodes hold different layers under one digest: their ranks would not be of one engine."""
    if is_executing():
        wrong = failures(staging.image_layers(run.cluster, run.all_seen()))
        if wrong:
            raise fail("\n".join(verdict.text().strip() for verdict in wrong))
    noop("every node holds the same layers")
    yield from ()
