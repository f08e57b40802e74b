"""Whether the bundle that a node names gives what the node is to take from it. Asked where it is to give something, and
not otherwise: a disk that was taken away after its files were staged is missed by nobody."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from checks.content import Plan
from checks.sourcing import Way
from checks.verdict import Verdict, broken, unknown
from facts.bundle import Bundle
from facts.values import Unknown
from spec.cluster import Node

COPY_AGAIN = "copy it there again, whole; to see what is wrong, in it: sha256sum --quiet -c SHA256SUMS"


def needed(node: Node, plans: Sequence[Plan]) -> list[Plan]:
    """The directories that a node is to fill from its bundle."""
    return [plan for plan in plans if not plan.refusals and plan.way(node.name) is Way.BUNDLE]


def usable(node: Node, plans: Sequence[Plan], found: Bundle | Unknown) -> Iterator[Verdict]:
    """What forbids to fill the directories of `plans` from the node's bundle."""
    place = f"bundle_path = {node.bundle_path}"
    if isinstance(found, Unknown):
        yield unknown(node.name, place, found)
    elif not found.present:
        yield broken(
            node.name,
            f"{place}: there is no such directory",
            "mount the disk with the bundle, name another place, or leave bundle_path out (make bundle makes one)",
        )
    elif found.trouble:
        yield broken(node.name, f"{place}: no bundle that can be used: {found.trouble}", COPY_AGAIN)
    elif not found.finished:
        yield broken(
            node.name,
            f"{place}: the bundle is not whole, it has no SHA256SUMS",
            "make bundle again where there is internet (it goes on), and copy it there whole",
        )
    else:
        yield from _holds(node, plans, found, place)


def _holds(node: Node, plans: Sequence[Plan], found: Bundle, place: str) -> Iterator[Verdict]:
    for plan in plans:
        locked = plan.file_set
        identity = found.identities.get(plan.name)
        lacks = [path for path in found.lacks if path.startswith(f"{plan.name}/")]
        if identity is None:
            yield broken(
                node.name,
                f"{place}: the bundle has no {plan.name}",
                f"make bundle again with its licence accepted, or put the files into {plan.paths[node.name]} yourself",
            )
        elif locked is not None and identity != locked.identity:
            yield broken(
                node.name,
                f"{place}: the bundle is of another lock ({plan.name}: {identity[:12]}, wanted {locked.identity[:12]})",
                "make bundle again from this lock file, or deploy with the sparkpair.lock that is in the bundle",
            )
        elif lacks:
            more = f" and {len(lacks) - 3} more" if len(lacks) > 3 else ""
            yield broken(
                node.name, f"{place}: not there whole: {', '.join(lacks[:3])}{more}", COPY_AGAIN,
            )  # fmt: skip
