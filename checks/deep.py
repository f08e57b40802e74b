"""When a node last read every byte of what its engine reads, and what it found. For verify."""

from __future__ import annotations

import os
from collections.abc import Iterator

from checks.content import amount
from checks.verdict import Verdict, broken, holds, unknown
from facts.values import Content, NodeFacts, Unknown
from spec import objects
from spec.cluster import Cluster, Node

ASK = "python verify.py --deep checks now"
DEPLOY = "run deploy.py: it brings these files again, from the other node or from where they are published, no other"


def checked(cluster: Cluster, node: Node, seen: NodeFacts) -> Iterator[Verdict]:
    """The timer is due, and no directory is known to be damaged. Never checked yet is told, and no failure."""
    yield from _timer(node, seen)
    if isinstance(seen.content, Unknown):
        yield unknown(node.name, "the result of its deep check", seen.content)
        return
    if isinstance(seen.deep, Unknown):
        yield unknown(node.name, "the result of its deep check", seen.deep)
        return
    paths = cluster.launch(node).content
    found = [content for content in seen.content.values() if isinstance(content, Content) and content.path in paths]
    damaged = [os.path.join(content.path, path) for content in found for path in content.damaged]
    if damaged:
        more = f" and {len(damaged) - 5} more" if len(damaged) > 5 else ""
        yield broken(node.name, f"the deep check found other bytes in {', '.join(damaged[:5])}{more}", DEPLOY)
        return
    if seen.deep is None:
        yield holds(node.name, f"no deep check yet: the timer starts one once a month, {ASK}")
        return
    counts = [seen.deep.directories[path] for path in paths if path in seen.deep.directories]
    if not counts:
        yield holds(node.name, f"the deep check of {_day(seen.deep.at)} read nothing here")
        return
    files, size, then = (sum(row[column] for row in counts) for column in range(3))
    all_well = "every byte as proven" if not then else f"damaged then, and brought again since: {then}"
    yield holds(node.name, f"deep check of {_day(seen.deep.at)}: {files} files, {amount(size)}, {all_well}")


def _timer(node: Node, seen: NodeFacts) -> Iterator[Verdict]:
    if isinstance(seen.units, Unknown):
        return  # said with the other units
    timer = seen.units.get(objects.DEEP_TIMER)
    if timer is None or not timer.is_active or timer.file_state != "enabled":
        state = f"{timer.active} and {timer.file_state or 'not installed'}" if timer else "not there"
        yield broken(
            node.name, f"{objects.DEEP_TIMER} is {state}, wanted active and enabled",
            f"run deploy.py; journalctl -u {objects.DEEP_TIMER}",
        )  # fmt: skip
    else:
        yield holds(node.name, f"{objects.DEEP_TIMER} is active and enabled")


def _day(at: str) -> str:
    """The node's own clock, to the minute."""
    return at[:16].replace("T", " ")
