"""Remove: what spec/objects.py lists goes from the nodes, in the order in which nothing that is gone is missed. Each
row looks at what is there, so that a removal that was killed is finished by the next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from pyinfra.api.command import FunctionCommand, StringCommand
from pyinfra.api.deploy import deploy

from checks import access, leftovers, pair
from checks import remove as checked
from checks.verdict import Verdict, failures
from facts.leftovers import HeldImage
from facts.values import NodeFacts, Unknown, UnknownFact, item
from node import fabric
from node.paths import PROGRAM
from operations import remains
from operations.core import Commands, node_operation, noop
from operations.leftovers import holdings
from operations.login import reach
from operations.preflight import refuse
from operations.run import Run
from operations.units import shell
from spec import objects
from spec.cluster import Node

STOP_MARGIN_SECONDS = 60
DOWN = ("stopped", "empty", "resting")
GUARD_SECONDS = 40
"""How long the rails are away before a node that was not reached since puts them back."""
FABRIC_TIMER, RAILS_TIMER = f"{fabric.TIMER}.timer", f"{objects.RAILS_TIMER}.timer"


def preflight_remove(run: Run) -> None:
    """Raise DeployError with all that forbids to take Sparkpair off the nodes."""

    def judge(facts: Mapping[str, NodeFacts]) -> list[Verdict]:
        there = {
            node.name: remains.look(run, node) if access.usable(facts[node.name]) else Unknown("it was not asked")
            for node in run.cluster.nodes
        }
        return failures(checked.refusals(run.cluster, facts, there))

    refuse(run, judge)


@deploy("Remove")
def remove(run: Run) -> None:
    """First what runs, then what it would need."""
    stop_pair(name="Stop the pair, which ends serving", run=run)
    end_units(name="Stop and disable the units", run=run)
    remove_containers(name="Remove the containers", run=run)
    remove_export(name="Remove the export of the weights", run=run)
    asked = checked.words(run.cluster)
    if "image" in asked:
        remove_images(name="Remove the images", run=run)
    if "weights" in asked:
        discard(name="Remove weights and drafter", run=run, what="weights")
    if "cache" in asked:
        discard(name="Remove the compiled kernels", run=run, what="cache")
    if "key" in asked:
        remove_key(name="Remove the API key", run=run)
    if "rails" in asked:
        remove_rails(name="Remove the rails' addresses and MTU", run=run)
    close_firewall(name="Close the firewall for the rails", run=run)
    remove_user(name=f"Remove the user {objects.USER}", run=run)
    remove_files(name="Remove programs, settings, keys and state", run=run)


@node_operation
def stop_pair(run: Run) -> Commands:
    """Gently, by the keeper. One that is dead or does not answer is done without: the next rows end the ranks."""
    if not run.node.is_head or objects.KEEPER_UNIT not in remains.here(run).units:
        noop("no keeper runs here")
        return
    try:
        status = pair.status_of(run.seen())
    except UnknownFact:
        status = None
    if status is not None and status.phase in DOWN and not checked.is_up(run.all_seen()):
        noop(f"the pair is {status.phase}")
        return
    seconds = run.cluster.knobs.stop_grace_seconds + STOP_MARGIN_SECONDS
    yield StringCommand(
        f"if {objects.CLI} stop; then {objects.CLI} follow --timeout {seconds}; fi;",
        "echo 'ranks that are left are ended with their units'",
    )


@node_operation
def end_units(run: Run) -> Commands:
    """All that systemd runs or would start of ours. Rails on trial are put back first: their timers would have nothing
    left to do it with."""
    found = {name: state for name, state in remains.here(run).units.items() if name not in checked.SLICES}
    if not found:
        noop("no unit of ours is there")
        return
    if FABRIC_TIMER in found:
        yield shell([*PROGRAM, "fabric", "restore"])
    if RAILS_TIMER in found:
        yield StringCommand("systemctl start", f"{objects.RAILS_TIMER}.service")
    enabled = [name for name, (_, state) in found.items() if state.startswith("enabled")]
    names = shlex.join(sorted(found))
    if enabled:
        yield shell(["systemctl", "disable", "--quiet", *sorted(enabled)])
    yield StringCommand(f"systemctl stop {names}; systemctl reset-failed {names} 2>/dev/null; true")


@node_operation
def remove_containers(run: Run) -> Commands:
    """Ranks and throwaway containers, running or not, and every process that is left in their cgroup."""
    found, slices = checked.containers(run.seen()), set(checked.SLICES) & set(remains.here(run).units)
    if not found and not slices:
        noop("no container of ours is there")
        return
    if found:
        yield shell(["docker", "rm", "--force", *(one.id for one in found)])
    if slices:
        yield shell(["systemctl", "stop", *sorted(slices)])


@node_operation
def remove_export(run: Run) -> Commands:
    """The server goes on: whose it is otherwise is not known here."""
    if item(run.seen().files, objects.EXPORTS_FILE, "what is installed") is None:
        noop("nothing of ours is exported")
        return
    yield StringCommand("rm -f", objects.EXPORTS_FILE, "&& { ! command -v exportfs >/dev/null || exportfs -ra; }")


@node_operation
def remove_images(run: Run) -> Commands:
    """By all their names and without force: one that somebody else's container needs stays."""
    found = _images(run, run.node)
    if not found:
        noop("no image of ours is there, or somebody else needs it")
        return
    for image in found:
        names = shlex.join(image.names)
        yield StringCommand(f"docker rmi {names} || echo {shlex.quote(f'{image.names[0]} stays: it is in use')}")


def _images(run: Run, node: Node) -> list[HeldImage]:
    held = holdings(run)
    # While containers of ours are there, which images they need is not told apart from what others need.
    is_freed = bool(checked.containers(run.seen(node)))
    return [
        image
        for image in leftovers.brought(run.cluster, held, node)
        if is_freed or image.id not in held[node.name].used
    ]


@node_operation
def discard(run: Run, what: str) -> Commands:
    """Directories of the operator's, each as a whole, where preflight found that it is what it is taken for."""
    found = remains.here(run).discards
    places = checked.models(run.node) if what == "weights" else [run.node.cache_path]
    there = [path for path in places if found[path].is_there or found[path].is_aside]
    if not there:
        noop("nothing of it is there")
    for path in there:
        yield remains.discard(run.cluster, run.node, path)


@node_operation
def remove_key(run: Run) -> Commands:
    """The engine that asked for it is gone."""
    if objects.API_KEY_FILE not in remains.here(run).there:
        noop("no key is there")
        return
    yield shell(["rm", "-f", objects.API_KEY_FILE])


@node_operation
def remove_rails(run: Run) -> Commands:
    """netplan's file of the rails, and with it what is in force. The node puts it back by itself unless it is reached
    again afterwards."""
    there, place, aside = remains.here(run).there, objects.NETPLAN_FILE, objects.NETPLAN_REMOVED
    if not {place, aside} & there:
        noop("the rails are not ours any more")
        return
    if place in there:
        back = f"if [ -e {aside} ]; then {_exchange('', '.ours')} mv -f {aside} {place}; netplan apply; fi"
        yield shell([
            "systemd-run", "--quiet", "--collect", f"--unit={objects.RAILS_TIMER}", f"--on-active={GUARD_SECONDS}",
            "--timer-property=AccuracySec=100ms", "--description=Sparkpair: put the rails back", "/bin/sh", "-c", back,
        ])  # fmt: skip
        gone = "".join(
            f"ip address del {rail.address} dev {rail.netdev} 2>/dev/null; " for rail in run.node.rails
        )  # what netplan leaves on a netdev that it does not know any more
        yield StringCommand(f"mv -f {place} {aside} && {{ {_exchange('.ours', '')} {gone}netplan apply; }}")
        yield FunctionCommand(reach, (), {})
    # Whoever was let in again only when the guard had put them back comes over the rails, and cannot do without.
    yield StringCommand(
        f"systemctl stop {RAILS_TIMER} 2>/dev/null; if [ -e {place} ]; then",
        "echo 'the rails were put back: this node was not reached without them' >&2; exit 1; fi;",
        f"rm -rf {aside} {objects.ADOPTED}",
    )


def _exchange(now: str, then: str) -> str:
    """In the shell: files of others whose rails were taken over become the kept ones, where they are still ours."""
    return (
        f'for f in {objects.ADOPTED}/*.yaml; do t=/etc/netplan/${{f##*/}}; if cmp -s "$f{now}" "$t";'
        f' then cp -p "$f{then}" "$t"; fi; done;'
    )


@node_operation
def close_firewall(run: Run) -> Commands:
    """The rules that a deploy made, by the commands that it wrote down for this."""
    if objects.FIREWALL_RULES not in remains.here(run).there:
        noop("no rule of ours is there")
        return
    yield StringCommand("sh", objects.FIREWALL_RULES, "; rm -f", objects.FIREWALL_RULES)


@node_operation
def remove_user(run: Run) -> Commands:
    """After the keeper, whose connection is its only process. Somebody else's of that name lives elsewhere, and
    stays."""
    account = item(run.seen().accounts, objects.USER, "its users")
    if account is None or account.home != objects.PEER_HOME:
        noop(f"there is no user {objects.USER} of ours")
        return
    yield StringCommand(
        f"pkill -KILL -u {objects.USER}; for i in $(seq 40); do userdel {objects.USER} 2>/dev/null && exit 0;",
        f"sleep 0.25; done; userdel {objects.USER}",
    )


@node_operation
def remove_files(run: Run) -> Commands:
    """The last row, and all of what is ours at once: the command, the programs, and what would start them."""
    found = remains.here(run).paths
    if not found:
        noop("no file of ours is there")
        return
    yield remains.take(run.cluster, run.node)
    if any(path.startswith(f"{objects.UNIT_DIRECTORY}/") for path in found):
        yield StringCommand("systemctl daemon-reload")
