"""What checks of a node's own side have in common: parts that were not asked for, or could not be read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from checks.check import Sight
from checks.verdict import Verdict, told
from facts.host import NOT_ASKED
from facts.values import NodeFacts, Unknown

T = TypeVar("T")
PACKAGES = {"fwupdmgr": "fwupd", "ibv_devinfo": "ibverbs-utils", "lspci": "pciutils"}
"""Of tools that have another name than their package."""


def look(
    sight: Sight, what: str, part: Callable[[NodeFacts], T | Unknown]
) -> tuple[dict[str, tuple[NodeFacts, T]], list[Verdict]]:
    """A part of each node by name, and a line for each that could not be read. What nobody asked for is neither."""
    found: dict[str, tuple[NodeFacts, T]] = {}
    unread = []
    for name, seen in sight.usable():
        value = part(seen)
        if not isinstance(value, Unknown):
            found[name] = (seen, value)
        elif value != NOT_ASKED:
            text = f"{what} could not be read: {value.reason}"
            unread.append(Verdict(name, text, None, _remedy(value.reason), True))
    return found, unread


def _remedy(reason: str) -> str:
    tool, _, rest = reason.partition(" ")
    return f"sudo apt-get install {PACKAGES.get(tool, tool)}" if rest == "is not installed" else "look at it there"


def at_start(judge: Callable[[Sight], Iterable[Verdict]]) -> Callable[[Sight], Iterable[Verdict]]:
    """A question that a deploy asks where it starts the pair, or starts it anew: one that serves has proven enough."""
    return lambda sight: judge(sight) if sight.starts else ()


def differ(values: Mapping[str, str]) -> bool:
    """Whether nodes have different ones."""
    return len(set(values.values())) > 1


def by_node(values: Mapping[str, str]) -> str:
    """Who has which: `spark-a 580.95.05, spark-b 610.43.02`."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def unlike(what: str, values: Mapping[str, str], fix: str) -> Verdict:
    """That nodes differ in something that should be the same."""
    return told("", f"{what} differs between the nodes: {by_node(values)}", fix)
