"""Docker, image, ports and space: what a node must have before anything is brought to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from checks import content, image
from checks.content import amount
from checks.verdict import Verdict, broken, holds, unknown
from facts.values import Disk, Docker, Holder, NodeFacts, Unknown
from spec.cluster import Cluster, Node
from spec.objects import KEEPER_UNIT, PEER_HOME, USER

INSTALL_DOCKER = "sudo apt-get install docker.io, or Docker's own packages; DGX OS brings them"
INSTALL_TOOLKIT = "sudo apt-get install nvidia-container-toolkit; DGX OS brings it"
STATE_BYTES = 64 * 2**20


def user(node: Node, seen: NodeFacts) -> Iterator[Verdict]:
    """An account of somebody else's with our user's name would be locked, and its home moved."""
    if node.is_head:
        return
    if isinstance(seen.accounts, Unknown):
        yield unknown(node.name, "its users", seen.accounts)
        return
    account = seen.accounts.get(USER)
    if account is not None and account.home != PEER_HOME:
        yield broken(
            node.name,
            f"there is a user {USER} that Sparkpair did not make (home {account.home}), and a worker needs that name "
            "for the keeper",
            "give that user another name",
        )


def docker(node: Node, seen: NodeFacts) -> Iterator[Verdict]:
    """The daemon answers, and the NVIDIA runtime is there to be registered."""
    if isinstance(seen.docker, Unknown):
        yield unknown(node.name, "Docker", seen.docker)
        return
    now = seen.docker
    if now.client is None:
        yield broken(node.name, "Docker is not installed", INSTALL_DOCKER)
    elif not now.answers:
        yield broken(
            node.name,
            f"Docker does not answer: {now.trouble}",
            "sudo systemctl enable --now docker; if that fails: journalctl -u docker",
        )
    if now.runtime is None or (now.toolkit is None and not now.has_nvidia):
        lacks = "nvidia-container-runtime" if now.runtime is None else "nvidia-ctk"
        yield broken(node.name, f"the NVIDIA container toolkit is not installed ({lacks} is missing)", INSTALL_TOOLKIT)
    if now.answers and now.client and now.runtime:
        yield holds(node.name, f"Docker {now.version} answers, the NVIDIA runtime is installed")


def names_and_ports(cluster: Cluster, node: Node, seen: NodeFacts) -> Iterator[Verdict]:
    """Nobody else has our container's name, or a port that the engine needs."""
    if isinstance(seen.docker, Unknown):
        return  # said by docker() above
    containers = seen.docker.containers
    if isinstance(containers, Unknown):
        if seen.docker.answers:
            yield unknown(node.name, "its containers", containers)
        return
    for container in containers:
        if cluster.container_name in container.names and not container.is_ours:
            yield broken(
                node.name,
                f"a container named {cluster.container_name} is there ({container.state}) that Sparkpair did not make",
                f"if an earlier kit made it and it may end: docker rm -f {cluster.container_name}",
            )
    if not node.is_head:
        return
    if isinstance(seen.ports, Unknown):
        yield unknown(node.name, "who listens on its ports", seen.ports)
        return
    ours = {container.id for container in containers if container.is_ours}
    for port in cluster.ports:
        holder = seen.ports.get(port)
        if holder is not None and holder.container not in ours:
            knob = "api_port" if port == cluster.api_port else "master_port"
            yield broken(
                node.name,
                f"port {port} ({knob}) is taken by {_holder(holder, seen.docker)}",
                f"end that, or state another {knob}",
            )


def _holder(holder: Holder, now: Docker) -> str:
    if holder.container and not isinstance(now.containers, Unknown):
        for container in now.containers:
            if container.id == holder.container:
                return f"the container {', '.join(container.names)}"
    if holder.pid is None:
        return "somebody who could not be found"
    return f"{holder.command} (process {holder.pid})"


def space(cluster: Cluster, node: Node, seen: NodeFacts, plans: list[content.Plan]) -> Iterator[Verdict]:
    """Room for what is not there yet, counted per file system."""
    if isinstance(seen.disks, Unknown):
        yield unknown(node.name, "its free disk space", seen.disks)
        return
    wants: dict[int, list[tuple[str, int, Disk]]] = {}

    def want(what: str, count: int, disk: Disk) -> None:
        wants.setdefault(disk.device, []).append((what, count, disk))

    for name, disk in seen.disks.items():
        if name.startswith("/var/lib/sparkpair"):
            want("Sparkpair's state", STATE_BYTES, disk)
    for plan in plans:
        share, here = plan.shares.get(node.name), content.find(seen, plan.paths[node.name])
        arrived = 0 if isinstance(here, Unknown) else here.parts
        lacking = max(share.size - arrived, 0) if share else 0
        place = seen.disks.get(plan.paths[node.name])
        if lacking and place is not None:
            want(plan.name, lacking, place)
    now = seen.docker
    if not isinstance(now, Unknown) and now.answers and now.images.get(cluster.image) is None:
        if isinstance(now.disk, Unknown):
            yield unknown(node.name, "the space of Docker's images", now.disk)
        else:
            want("the image", image.pull_bytes(cluster), now.disk)
    for rows in wants.values():
        free = rows[0][2].free
        needed = sum(count for _, count, _ in rows)
        if needed > free:
            parts = ", ".join(f"{amount(count)} for {what}" for what, count, _ in rows)
            yield broken(
                node.name,
                f"{amount(free)} free on the disk of {rows[-1][2].at}; needed: {parts}",
                f"make room for {amount(needed - free)}: sudo du -xh --max-depth=2 {rows[-1][2].at} | sort -h | tail",
            )


def no_other_keeper(node: Node, seen: NodeFacts) -> Iterator[Verdict]:
    """A worker that was the head has its keeper still: two keepers would take the ranks from each other."""
    if node.is_head:
        return
    if isinstance(seen.units, Unknown):
        yield unknown(node.name, "its units", seen.units)
        return
    unit = seen.units.get(KEEPER_UNIT)
    if unit is None:
        return
    states = [unit.active] if unit.active not in ("inactive", "failed") else []
    states += [unit.file_state] if unit.file_state.startswith("enabled") else []
    if states:
        yield broken(
            node.name,
            f"{KEEPER_UNIT} is {' and '.join(states)} here, as on a head, and this is a worker: two keepers would "
            f"take the ranks from each other",
            f"if it was the head and shall be a worker, on {node.name}: "
            f"sudo systemctl disable --now {KEEPER_UNIT.removesuffix('.service')}; then run again",
        )


def tools(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> Iterator[Verdict]:
    """ssh on the head, for the keeper's way to the workers."""
    seen = facts[cluster.head.name].tools
    if isinstance(seen, Unknown):
        return  # said with the rails
    for tool in ("ssh", "ssh-keygen"):
        if not seen.get(tool):
            yield broken(cluster.head.name, f"{tool} is not installed", "sudo apt-get install openssh-client")


def host_keys(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> Iterator[Verdict]:
    """The keeper pins each worker's host key, so it must be known."""
    for node in cluster.workers:
        key = facts[node.name].host_key
        if isinstance(key, Unknown):
            yield broken(
                node.name,
                f"its ssh host key could not be read: {key.reason}",
                "the keeper reaches it by ssh with a pinned ed25519 key: sudo ssh-keygen -A, and restart ssh",
            )
