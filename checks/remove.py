"""What removal takes from a node, what stays there, and what forbids it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from checks import access, content
from checks.verdict import Verdict, broken, unknown
from facts.remains import Remaining
from facts.remains_side import ASIDE
from facts.values import Container, Content, NodeFacts, Unknown
from spec.cluster import Cluster, Node
from spec.objects import API_KEY_FILE, CGROUP_PARENT, MOUNT_POINT, NETPLAN_FILE, OBJECTS, VAR, Taking

SLICES = (CGROUP_PARENT, f"{CGROUP_PARENT.partition('-')[0]}.slice")
"""The engine's cgroup, and the one that systemd nests it in by its name."""
THROWAWAY = ("sparkpair-opinion-", "sparkpair-image-check-", "sparkpair-image-tests", "sparkpair-gate-collective")
DOCKER_SETTINGS = "/etc/docker/daemon.json"


def words(cluster: Cluster) -> frozenset[str]:
    """What the operator wants taken besides our own."""
    return frozenset(filter(None, (cluster.knobs.remove_also or "").split(",")))


def files() -> list[str]:
    """Patterns of single files, sockets and links that go without being asked for."""
    return [item.path for item in OBJECTS if item.taking in (Taking.FILE, Taking.UNIT) and item.path.startswith("/")]


def trees(node: Node) -> list[str]:
    """Directories that go with all that is in them."""
    whole = [item.path for item in OBJECTS if item.taking is Taking.TREE and item.path.startswith("/")]
    parts = [f"{path}/.sparkpair" for path in models(node)]
    return [*(path for path in whole if "<" not in path), *parts, *(path + ASIDE for path in discards(node))]


def empties() -> list[str]:
    """Directories that go where nothing else is in them."""
    return [item.path for item in OBJECTS if item.taking is Taking.EMPTY]


def unfinished() -> list[str]:
    """Files that stay, of which an interrupted write may have left a part."""
    staying = (Taking.ASKED, Taking.NEVER)
    return [item.path for item in OBJECTS if item.taking in staying and item.path.startswith("/etc/")]


def units() -> list[str]:
    """Names of everything of ours that systemd may know."""
    return [*(item.path.rpartition("/")[2] for item in OBJECTS if item.taking is Taking.UNIT), *SLICES]


def models(node: Node) -> list[str]:
    """The node's own directories of weights and drafter."""
    places = (node.weights_path, node.drafter_path)
    return [path for path in places if path and path != MOUNT_POINT]


def discards(node: Node) -> list[str]:
    """The operator's directories that removal may be told to take."""
    return [*models(node), node.cache_path]


def engines(cluster: Cluster, node: Node) -> list[str]:
    """What the rank agent makes in the directory of compiled kernels; the engine itself writes there as root."""
    below = [path.removeprefix(f"{node.cache_path}/") for path in cluster.launch(node).directories]
    return sorted({path.partition("/")[0] for path in below if not path.startswith("/")})


def protected(node: Node) -> list[str]:
    """What must not lie in a directory that is taken as a whole."""
    return [node.home, VAR, *discards(node), *filter(None, [node.bundle_path])]


def containers(seen: NodeFacts) -> list[Container]:
    """Ranks of ours, running or not, and throwaway containers that outlived their run."""
    docker = seen.docker
    if isinstance(docker, Unknown) or isinstance(docker.containers, Unknown):
        return []
    return [one for one in docker.containers if one.is_ours or any(name.startswith(THROWAWAY) for name in one.names)]


def is_up(facts: Mapping[str, NodeFacts]) -> bool:
    """Whether any rank runs."""
    return any(one.state != "exited" for seen in facts.values() for one in containers(seen))


def refusals(
    cluster: Cluster, facts: Mapping[str, NodeFacts], remaining: Mapping[str, Remaining | Unknown]
) -> Iterator[Verdict]:
    """What forbids a removal; nothing has been changed then."""
    yield from access.access(cluster, facts)
    for node in cluster.nodes:
        seen, found = facts[node.name], remaining[node.name]
        if not access.usable(seen):
            continue
        docker = seen.docker
        if isinstance(docker, Unknown):
            yield unknown(node.name, "Docker", docker)
        elif docker.client and isinstance(docker.containers, Unknown):
            yield unknown(node.name, "whether a rank of the pair is there", docker.containers)
        if isinstance(found, Unknown):
            yield unknown(node.name, "what is there of Sparkpair", found)
            continue
        for path, mount in found.mounted:
            yield broken(
                node.name, f"{path} cannot be removed: something is mounted at {mount}", f"sudo umount {mount}"
            )
        if "weights" in words(cluster):
            for path in models(node):
                yield from _may_go(node, seen, found, path)
        if "cache" in words(cluster):
            yield from _is_safe(node, found, node.cache_path, "cache")


def _may_go(node: Node, seen: NodeFacts, found: Remaining, path: str) -> Iterator[Verdict]:
    """Weights go where their bytes were proven to be those of a checkpoint, and nothing else can be meant."""
    if not found.discards[path].is_there:
        return
    yield from _is_safe(node, found, path, "weights")
    here = content.find(seen, path)
    if isinstance(here, Unknown):
        yield unknown(node.name, path, here)
    elif not _is_proven(here):
        yield broken(
            node.name,
            f"{path} is not removed: what is in it was never proven here, or was changed since",
            f"look at it, then: sudo rm -r {path}; and take weights out of remove_also",
        )


def _is_proven(here: Content) -> bool:
    return here.is_whole and here.identity is not None


def _is_safe(node: Node, found: Remaining, path: str, word: str) -> Iterator[Verdict]:
    reason = found.discards[path].unsafe
    if reason:
        yield broken(node.name, f"{path} is not removed: {reason}", f"take {word} out of remove_also, or mend that")


def kept(cluster: Cluster, node: Node, seen: NodeFacts, found: Remaining) -> Iterator[str]:
    """What stays on a node, each with what would take it."""
    asked = words(cluster)
    if "weights" not in asked:
        for path in models(node):
            if found.discards[path].is_there:
                yield f"{path} (remove_also=weights)"
    if "cache" not in asked and found.discards[node.cache_path].is_there:
        yield f"{node.cache_path} (remove_also=cache)"
    docker = seen.docker
    if "image" not in asked and not isinstance(docker, Unknown) and docker.images.get(cluster.image):
        yield f"the image {cluster.image} (remove_also=image)"
    if "rails" not in asked and NETPLAN_FILE in found.there:
        yield f"the rails' addresses and MTU, {NETPLAN_FILE} (remove_also=rails)"
    if "key" not in asked and API_KEY_FILE in found.there:
        yield f"{API_KEY_FILE} (remove_also=key)"
    if DOCKER_SETTINGS in found.there:
        yield f"{DOCKER_SETTINGS}, with the NVIDIA runtime in it"
    for path, names in found.left.items():
        others = [name for name in names if f"{path}/{name}" not in {API_KEY_FILE, *found.left}]
        if others:
            yield f"{path}: in it is what is not ours: {', '.join(others)}"
