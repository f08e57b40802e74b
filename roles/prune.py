"""Prune: what no settings, no kept generation and no container need goes. Nothing of anybody else's is touched."""

from __future__ import annotations

import shlex

from pyinfra.api.command import StringCommand
from pyinfra.api.deploy import deploy

from checks import leftovers
from operations.core import Commands, node_operation, noop
from operations.leftovers import holdings, parts, store
from operations.run import Run
from spec import objects


@deploy("Prune")
def prune(run: Run) -> None:
    """Three rows, none of which anything else waits for."""
    remove_images(name="Remove the images that nothing needs", run=run)
    remove_store(name="Remove the layers that a registry kept", run=run)
    remove_parts(name="Remove the parts of files that are there", run=run)


@node_operation
def remove_images(run: Run) -> Commands:
    """By all their names and without force: one that a container has begun to need meanwhile stays."""
    found = leftovers.images(run.cluster, holdings(run), run.node)
    if not found:
        noop("every image of ours is needed")
        return
    for image in found:
        yield StringCommand("docker rmi", *(shlex.quote(name) for name in image.names))


@node_operation
def remove_store(run: Run) -> Commands:
    """What is left of a registry that was killed."""
    if store(run, run.node) is None:
        noop("no registry left anything")
        return
    yield StringCommand("rm -rf", shlex.quote(objects.REGISTRY_STORE))


@node_operation
def remove_parts(run: Run) -> Commands:
    """Of directories that are whole: of others, the next staging goes on with them."""
    found = parts(run, run.node)
    if not found:
        noop("no part is left over")
        return
    yield StringCommand("rm -rf --", *(shlex.quote(path) for path in found))
