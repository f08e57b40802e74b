"""Fabric: the rails' addresses and MTU, put into force under a guard on the node itself, and the firewall that must let
them be used."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from pyinfra.api.command import FunctionCommand, StringCommand
from pyinfra.api.deploy import deploy

from checks import firewall, masters, rails
from facts.host import Firewall
from facts.values import item, known
from node.paths import PROGRAM
from operations.core import Commands, node_operation, noop
from operations.files import install_file, write
from operations.login import reach
from operations.run import Run, digest
from operations.units import shell
from spec import objects
from spec.cluster import Cluster, Node
from spec.render import netplan_text


@deploy("Fabric")
def fabric(run: Run) -> None:
    """The netplan file of the rails, what others say of them, and nothing else of the network."""
    text = netplan_text(run.cluster, run.node)
    install_file(
        name="Install 60-sparkpair.yaml", run=run, path=objects.NETPLAN_STAGED, text=text, mode="600",
    )  # fmt: skip
    apply_netplan(name="Set the rails up", run=run, text=text)
    open_firewall(name="Open the firewall for the rails", run=run)


@node_operation
def apply_netplan(run: Run, text: str) -> Commands:
    """Put the staged file into force; the node takes it back by itself unless it is reached again afterwards."""
    seen = run.seen()
    known(seen.links, "its network links")
    if rails.in_force(run.cluster, run.node, seen, digest(text)):
        noop("the rails have their addresses and MTU")
        return
    argv, texts = apply_argv(run.cluster, run.node), seen.host.network_texts
    adopted = masters.adoption(run.node, seen).texts if run.cluster.knobs.adopt_rails else {}
    if adopted and isinstance(texts, dict):
        edits = {
            path.rpartition("/")[2]: {"sha256": digest(texts[path]), "text": edited} for path, edited in adopted.items()
        }
        yield StringCommand(shlex.join([*argv, "--adopted"]), _stdin=json.dumps(edits))
    else:
        yield shell(argv)
    yield FunctionCommand(reach, (), {})
    yield shell([*PROGRAM, "fabric", "confirm"])


def apply_argv(cluster: Cluster, node: Node) -> list[str]:
    """The node's own program, told what must be true afterwards."""
    argv = [*PROGRAM, "fabric", "apply", "--management", str(node.management_address)]
    for rail in node.rails:
        argv += ["--rail", f"{rail.netdev}={rail.address}={cluster.knobs.rail_mtu}"]
    return argv


@node_operation
def open_firewall(run: Run) -> Commands:
    """Let the peers in on the rails, and nobody else. Every rule is written down first, so that what was killed in
    between is found by whoever removes it."""
    seen = run.seen()
    now = seen.host.firewall
    if not run.cluster.knobs.open_firewall or not isinstance(now, Firewall) or now.manager not in firewall.OPENED:
        noop("no firewall is to be opened")
        return
    shut = firewall.closed(run.cluster, run.node, seen)
    text = item(seen.texts, objects.FIREWALL_RULES, "what is installed")
    kept = (known(text, objects.FIREWALL_RULES) or "").splitlines()
    wanted = [one.undo(now) for one in firewall.openings(run.cluster, run.node)]
    stale = [line for line in kept if line not in wanted]
    if not shut and not stale:
        noop("the firewall lets the rails' peers in")
        return
    new = [one.undo(now) for one in shut if one.undo(now) not in kept]
    if new:
        yield write(objects.FIREWALL_RULES, _lines([*kept, *new]), "644")
    for one in shut:
        yield StringCommand(one.command(now))
    if stale:
        yield StringCommand("; ".join(stale), "|| true")
        yield write(objects.FIREWALL_RULES, _lines([line for line in [*kept, *new] if line in wanted]), "644")


def _lines(texts: Sequence[str]) -> str:
    return "".join(f"{text}\n" for text in texts)
