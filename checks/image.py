"""The engine's image: how it gets to each node, the room that it takes, and whether every node holds the same. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from checks.content import amount
from checks.verdict import Verdict, broken, holds, unknown
from facts.values import Docker, Image, NodeFacts, Unknown
from spec.cluster import Cluster, Node
from spec.lock import LockedPlatform
from spec.objects import IMAGE_REPOSITORY, REGISTRY_STORE, VAR

Reached = Mapping[str, str | Unknown]
"""By node: what keeps it from something, "" where nothing does; Unknown where it could not be asked."""

PULL_BYTES = {"vllm-exl3": 30 * 2**30}
"""Room that a pull needs where no lock says what the layers have. The reference kit v2.3-tier1 says 25 GiB; the layers
on their way come on top."""
OTHER_PULL_BYTES = 1 * 2**30
STORE_BYTES = {"vllm-exl3": 18 * 2**30}
"""What the layers have as the registry sends them, where no lock says it. Not published; this is the smaller of the two
figures that the reference kit v2.3-tier1 gives for the image (18 GiB in its README's upgrade row, 25 GiB to pull)."""
UNPACKED = 2
"""Bytes on disk for one of a compressed layer. No registry says it; assumed."""


class Step(Enum):
    """How a node gets the image."""

    HERE = "it is here"
    PULL = "from its registry"
    SERVE = "it is here, and the peers get it through this node"
    THROUGH = "through this node's own registry, which the peers use too"
    RELAY = "from the peer's registry"


@dataclass(frozen=True)
class Plan:
    """How each node gets the image. `server` is the node whose registry the others use, `layout` the bundle's image
    that it serves, "" where it fetches from the image's own registry. With refusals, the steps mean nothing."""

    steps: Mapping[str, Step]
    server: str | None = None
    layout: str = ""
    refusals: tuple[Verdict, ...] = ()

    def runs_registry(self, node: str) -> bool:
        """Whether a node runs one while the image is pulled."""
        return self.steps[node] in (Step.SERVE, Step.THROUGH, Step.RELAY)

    def keeps(self, node: str) -> bool:
        """Whether that one keeps what it fetches."""
        return node == self.server and not self.layout


def find(cluster: Cluster, seen: NodeFacts) -> Image | Unknown | None:
    """The wanted image on a node; None if it is not there."""
    if isinstance(seen.docker, Unknown):
        return seen.docker
    return seen.docker.images.get(cluster.image, Unknown("not looked at"))


def missing(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> list[Node]:
    """The nodes that are known to lack the image."""
    return [node for node in cluster.nodes if find(cluster, facts[node.name]) is None]


def plan(cluster: Cluster, facts: Mapping[str, NodeFacts], reached: Reached, bundles: Reached) -> Plan:
    """The plan. `reached` says what keeps each node from the image's registry, `bundles` why a node's bundle does not
    hold the image; a node without a bundle is not in it."""
    lacking = {node.name for node in missing(cluster, facts)}
    steps = {node.name: Step.HERE for node in cluster.nodes}
    if not lacking:
        return Plan(steps)
    names = [node.name for node in cluster.nodes]
    holders = [name for name in names if bundles.get(name) == ""]
    direct = [name for name in names if reached.get(name) == ""]
    # A node that could not be asked may well reach it: Docker finds out, and says what it finds.
    online = [
        name
        for name in names
        if name in direct or isinstance(reached.get(name), Unknown) or _is_proxied(facts[name].docker)
    ]
    if not holders and lacking <= set(online):
        return Plan({name: Step.PULL if name in lacking else Step.HERE for name in names})
    if not holders and not direct:
        return Plan(steps, refusals=(_nowhere(cluster, sorted(lacking), reached, bundles),))
    server = (holders or direct)[0]
    for name in names:
        if name == server:
            steps[name] = Step.THROUGH if name in lacking else Step.SERVE
        elif name in lacking:
            steps[name] = Step.RELAY
    layout = cluster.bundle(cluster.node(server), "image") if holders else ""
    return Plan(steps, server, layout)


def _is_proxied(now: Docker | Unknown) -> bool:
    return not isinstance(now, Unknown) and now.proxied


def _nowhere(cluster: Cluster, lacking: list[str], reached: Reached, bundles: Reached) -> Verdict:
    def why(found: str | Unknown | None) -> str:
        return found.reason if isinstance(found, Unknown) else str(found)

    reasons = [f"{name}: {why(found)}" for name, found in reached.items()]
    reasons += [f"the bundle of {name}: {why(found)}" for name, found in bundles.items()]
    return broken(
        "",
        f"the image {short(cluster.image)} is not on {' and '.join(lacking)}, and no node gets it from "
        f"{registry(cluster)} ({'; '.join(reasons)})",
        "let one node reach that registry, or carry a bundle there: make bundle where there is internet, and state "
        "bundle_path (docs/operations.md#image)",
    )


def room(cluster: Cluster, plan: Plan, facts: Mapping[str, NodeFacts]) -> Iterator[Verdict]:
    """Disk for what the serving node keeps while the image is pulled, beside its own pull."""
    for node in cluster.nodes:
        seen = facts[node.name]
        if not plan.keeps(node.name) or isinstance(seen.disks, Unknown) or isinstance(seen.docker, Unknown):
            continue
        disk, docker = seen.disks.get(VAR), seen.docker.disk
        if disk is None or isinstance(docker, Unknown):
            continue
        store = store_bytes(cluster)
        pull = pull_bytes(cluster) if plan.steps[node.name] is Step.THROUGH and docker.device == disk.device else 0
        if store + pull > disk.free:
            beside = f" beside {amount(pull)} for the image" if pull else ""
            yield broken(
                node.name,
                f"{amount(disk.free)} free on the disk of {disk.at}; {REGISTRY_STORE} needs {amount(store)}{beside} "
                f"while the peer gets the image through this node",
                f"make room for {amount(store + pull - disk.free)}: sudo du -xh --max-depth=2 {disk.at} | sort -h | "
                "tail",
            )


def pull_bytes(cluster: Cluster) -> int:
    """Room that Docker needs for a pull: what it unpacks, and its layers on their way."""
    layers = _locked_bytes(cluster)
    if layers is None:
        return PULL_BYTES.get(cluster.stack.name, OTHER_PULL_BYTES)
    return layers * (1 + UNPACKED)


def store_bytes(cluster: Cluster) -> int:
    """Room for the layers as the registry sends them."""
    layers = _locked_bytes(cluster)
    return STORE_BYTES.get(cluster.stack.name, OTHER_PULL_BYTES) if layers is None else layers


def _locked_bytes(cluster: Cluster) -> int | None:
    """Bytes of all layers, of the largest platform that is locked; None without a lock."""
    lock = cluster.settings.lock
    if lock is None or lock.image is None:
        return None
    return max(sum(layer.size for layer in platform.layers) for platform in lock.image.platforms.values())


def image_layers(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> Iterator[Verdict]:
    """The image is on every node, it is the same, and the one that is locked."""
    name = short(cluster.image)
    layers: dict[tuple[str, ...], list[Node]] = {}
    images: dict[str, Image] = {}
    for node in cluster.nodes:
        found = find(cluster, facts[node.name])
        if isinstance(found, Unknown):
            yield unknown(node.name, f"the image {name}", found)
            return
        if found is None:
            yield broken(node.name, f"the image {name} is not there", "run deploy.py")
            return
        images[node.name] = found
        layers.setdefault(found.layers, []).append(node)
        yield from _as_locked(cluster, node, found)
    if len(layers) > 1:
        yield broken(
            "",
            f"{' and '.join(nodes[0].name for nodes in layers.values())} hold different layers under {name}",
            "remove it on both, then run deploy.py:\n"
            + "\n".join(f"{node}: docker rmi -f {_short_id(image)}" for node, image in images.items()),
        )
    else:
        yield holds("", f"every node holds {name}, {len(next(iter(layers)))} layers, all the same")


def _as_locked(cluster: Cluster, node: Node, found: Image) -> Iterator[Verdict]:
    lock = cluster.settings.lock
    if lock is None or lock.image is None:
        return
    wanted = lock.image.platforms.get(found.platform)
    if wanted is None:
        yield broken(
            node.name,
            f"the image {short(cluster.image)} is here for {found.platform}, and the lock has it for "
            f"{', '.join(sorted(lock.image.platforms))}",
            "run make lock, and look at what it changes",
        )
    elif not _is_locked(found, wanted, lock.image.digest):
        yield broken(
            node.name,
            f"the image {short(cluster.image)} is here with id {_short_id(found)} and {len(found.layers)} layers; the "
            f"lock has {wanted.config.partition(':')[2][:12]} with {len(wanted.layers)}",
            f"remove it, then run deploy.py: docker rmi -f {_short_id(found)}",
        )


def _is_locked(found: Image, wanted: LockedPlatform, digest: str) -> bool:
    """By the id: Docker's classic store takes the configuration's digest, which names every layer's content;
    containerd's the digest of manifest or index."""
    return found.id in (wanted.config, wanted.digest, digest) and len(found.layers) == len(wanted.layers)


def _short_id(image: Image) -> str:
    return image.id.partition(":")[2][:12]


def tag(cluster: Cluster) -> str:
    """The second name of the wanted image."""
    return f"{IMAGE_REPOSITORY}:{cluster.image.partition('@sha256:')[2][:12]}"


def registry(cluster: Cluster) -> str:
    """Where the image's registry answers; what Docker leaves out is Docker Hub."""
    first, slash, _ = cluster.image.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else "docker.io"


def short(reference: str) -> str:
    """An image reference without most of its digest."""
    name, _, digest = reference.partition("@sha256:")
    return f"{name}@{digest[:12]}" if digest else name
