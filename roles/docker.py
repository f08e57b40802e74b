"""Docker: the NVIDIA runtime is registered with the daemon. Installing either is the operator's or DGX OS's work."""

from __future__ import annotations

import shlex

from pyinfra.api.command import StringCommand
from pyinfra.api.deploy import deploy

from facts.values import known
from operations.core import Commands, node_operation, noop
from operations.run import Run

STILL_UNKNOWN = (
    "Docker was restarted, and does not know the NVIDIA runtime still, though /etc/docker/daemon.json has it. Does "
    "another Docker answer here, or one that reads other settings? make doctor; systemctl cat docker; docker context ls"
)


@deploy("Docker")
def docker(run: Run) -> None:
    """Two rows: what is written, and the restart that ends every container on the node that must not outlive it."""
    register_runtime(name="Register the NVIDIA runtime", run=run)
    restart_docker(name="Restart Docker", run=run)


@node_operation
def register_runtime(run: Run) -> Commands:
    """Add the runtime to daemon.json with NVIDIA's own tool, which leaves everything else in it."""
    now = known(run.seen().docker, "Docker")
    if now.has_nvidia or now.registered:
        noop("the NVIDIA runtime is registered")
        return
    yield StringCommand("nvidia-ctk runtime configure --runtime=docker")


@node_operation
def restart_docker(run: Run) -> Commands:
    """Needed when daemon.json knows the runtime and the running daemon does not, whoever wrote it there."""
    now = known(run.seen().docker, "Docker")
    if now.has_nvidia:
        noop("Docker knows the NVIDIA runtime")
        return
    yield StringCommand("systemctl restart docker.service")
    # Another daemon may answer, or one with settings of its own: the rank's container would not be made.
    yield StringCommand(
        "docker info --format '{{json .Runtimes}}' | grep -qF '\"nvidia\"' ||",
        f"{{ echo {shlex.quote(STILL_UNKNOWN)} >&2; exit 1; }}",
    )
