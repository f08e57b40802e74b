"""What may be removed from the nodes: images of ours that nothing needs, and what unfinished work left. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from checks import content
from checks.content import Plan
from checks.sourcing import Way
from facts.leftovers import HeldImage, Leftovers
from facts.values import NodeFacts, Unknown
from spec.cluster import Cluster, Node
from spec.objects import IMAGE_REPOSITORY, REGISTRY_PORT

LOCAL = f"127.0.0.1:{REGISTRY_PORT}"


def repository(name: str) -> str:
    """An image's name without tag and digest."""
    name = name.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}"


def ours(cluster: Cluster, seen: Mapping[str, Leftovers]) -> frozenset[str]:
    """The repositories whose images are ours: those that settings and launches name, also as a peer's registry called
    them, and our own name."""
    references = {cluster.image}.union(*(held.launched for held in seen.values()))
    named = {repository(reference) for reference in references}
    local = {f"{LOCAL}/{_below_registry(name)}" for name in named}
    return frozenset({*named, *local, IMAGE_REPOSITORY})


def _below_registry(name: str) -> str:
    """A repository as its own registry calls it. Docker Hub's is what Docker leaves out."""
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return rest
    return name if slash else f"library/{name}"


def images(cluster: Cluster, seen: Mapping[str, Leftovers], node: Node) -> tuple[HeldImage, ...]:
    """The images of a node that no settings, no kept generation on any node and no container need. One that has also a
    name of somebody else's stays."""
    return tuple(
        image
        for image in _of_our_repositories(cluster, seen, node)
        if image.id not in seen[node.name].used and not _is_launched(cluster, seen, image)
    )


def brought(cluster: Cluster, seen: Mapping[str, Leftovers], node: Node) -> tuple[HeldImage, ...]:
    """The images of a node that are there because of us: known by our own name, or named by settings or a launch. Of
    the same repository the operator may have others."""
    return tuple(
        image
        for image in _of_our_repositories(cluster, seen, node)
        if _is_launched(cluster, seen, image) or any(repository(name) == IMAGE_REPOSITORY for name in image.names)
    )


def _of_our_repositories(cluster: Cluster, seen: Mapping[str, Leftovers], node: Node) -> list[HeldImage]:
    repositories = ours(cluster, seen)
    return [
        image
        for image in seen[node.name].images
        if image.names and all(repository(name) in repositories for name in image.names)
    ]


def _is_launched(cluster: Cluster, seen: Mapping[str, Leftovers], image: HeldImage) -> bool:
    """Whether settings or a kept launch on any node name it."""
    wanted = {cluster.image}.union(*(held.launched for held in seen.values()))
    digests = {reference.partition("@")[2] for reference in wanted} - {""}
    # An image that came from a bundle may have no name but this one.
    wanted |= {f"{IMAGE_REPOSITORY}:{digest.partition(':')[2][:12]}" for digest in digests}
    return bool(wanted & set(image.names)) or any(
        name.partition("@")[2] in digests for name in image.names if "@" in name
    )


def parts(facts: NodeFacts, plans: list[Plan], node: Node) -> dict[str, int]:
    """Directories in which parts of files lie although everything is there, with the parts' bytes."""
    found = {}
    for plan in plans:
        if plan.refusals or node.name not in plan.shares or plan.way(node.name) is not Way.NOTHING:
            continue
        here = content.find(facts, plan.paths[node.name])
        if not isinstance(here, Unknown) and here.parts:
            found[here.parts_directory] = here.parts
    return found
