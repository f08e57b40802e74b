"""Fabric: the rails' addresses and MTU, put into force under a guard on the node itself."""

from __future__ import annotations

from pyinfra.api.command import FunctionCommand
from pyinfra.api.deploy import deploy

from checks import rails
from facts.values import known
from node.paths import PROGRAM
from operations.core import Commands, node_operation, noop
from operations.files import install_file
from operations.login import reach
from operations.run import Run, digest
from operations.units import shell
from spec import objects
from spec.cluster import Cluster, Node
from spec.render import netplan_text


@deploy("Fabric")
def fabric(run: Run) -> None:
    """The netplan file of the rails, and nothing else of the network."""
    text = netplan_text(run.cluster, run.node)
    install_file(
        name="Install 60-sparkpair.yaml", run=run, path=objects.NETPLAN_STAGED, text=text, mode="600",
    )  # fmt: skip
    apply_netplan(name="Set the rails up", run=run, text=text)


@node_operation
def apply_netplan(run: Run, text: str) -> Commands:
    """Put the staged file into force; the node takes it back by itself unless it is reached again afterwards."""
    seen = run.seen()
    known(seen.links, "its network links")
    if rails.in_force(run.cluster, run.node, seen, digest(text)):
        noop("the rails have their addresses and MTU")
        return
    yield shell(apply_argv(run.cluster, run.node))
    yield FunctionCommand(reach, (), {})
    yield shell([*PROGRAM, "fabric", "confirm"])


def apply_argv(cluster: Cluster, node: Node) -> list[str]:
    """The node's own program, told what must be true afterwards."""
    argv = [*PROGRAM, "fabric", "apply", "--management", str(node.management_address)]
    for rail in node.rails:
        argv += ["--rail", f"{rail.netdev}={rail.address}={cluster.knobs.rail_mtu}"]
    return argv
