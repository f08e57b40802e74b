"""Can the nodes be worked on at all, and are they what they must be?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from checks.verdict import Verdict, broken, holds, unknown
from facts.values import NodeFacts, Unknown
from spec.cluster import Cluster, Node

OLDEST_PYTHON = (3, 10)
MACHINE = "aarch64"


def usable(facts: NodeFacts) -> bool:
    """Whether the probe ran as root and answered, so that more can be asked of its facts."""
    return facts.sudo and not facts.trouble and facts.python >= OLDEST_PYTHON


def access(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> Iterator[Verdict]:
    """Root without a password, Python, the right machine, and as many machines as nodes."""
    for node in cluster.nodes:
        yield from _node(node, facts[node.name])
    yield from _different_machines(cluster, facts)


def wants_a_password(name: str, user: str) -> Verdict:
    """Root is not to be had there. pyinfra would ask for the password by itself."""
    return broken(
        name,
        f"sudo wants a password from {user}. It is not asked for: it would show in the node's process list",
        f"sudo visudo -f /etc/sudoers.d/sparkpair, with this line:\n{user} ALL=(ALL) NOPASSWD:ALL",
    )


def _node(node: Node, seen: NodeFacts) -> Iterator[Verdict]:
    if not seen.sudo:
        yield wants_a_password(node.name, seen.user)
        return
    if seen.trouble:
        yield Verdict(node.name, f"could not be looked at: {seen.trouble}", None, "make it answer, then run again")
        return
    if seen.python < OLDEST_PYTHON:
        has = ".".join(str(part) for part in seen.python)
        wants = ".".join(str(part) for part in OLDEST_PYTHON)
        yield broken(node.name, f"/usr/bin/python3 is {has}, needs {wants} or newer", "use DGX OS 7, which brings 3.12")
        return
    if isinstance(seen.machine, Unknown):
        yield unknown(node.name, "the kind of machine", seen.machine)
    elif seen.machine != MACHINE:
        yield broken(
            node.name,
            f"is {seen.machine}; a DGX Spark is {MACHINE}, and so are the images",
            "name a Spark in inventory.py",
        )
    if isinstance(seen.gpus, Unknown):
        yield unknown(node.name, "the GPU", seen.gpus)
    elif not seen.gpus:
        yield broken(node.name, "nvidia-smi names no GPU", "look at it there: nvidia-smi; dmesg | grep -i nvrm")
    else:
        yield holds(node.name, f"{', '.join(' driver '.join(gpu) for gpu in seen.gpus)}")


def _different_machines(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> Iterator[Verdict]:
    named: dict[str, Node] = {}
    for node in cluster.nodes:
        seen = facts[node.name]
        if not usable(seen):
            continue
        if isinstance(seen.machine_id, Unknown):
            yield unknown(node.name, "/etc/machine-id", seen.machine_id)
        elif seen.machine_id in named:
            other = named[seen.machine_id]
            yield broken(
                "",
                f"{other.name} ({other.management_address}) and {node.name} ({node.management_address}) are the same "
                f"machine ({seen.hostname})",
                "name two machines in inventory.py. If one was cloned from the other, give it an identity of its own:\n"
                "sudo rm /etc/machine-id && sudo systemd-machine-id-setup && sudo reboot",
            )
        else:
            named[seen.machine_id] = node
