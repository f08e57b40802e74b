"""Whether a node reaches a server."""

from __future__ import annotations

from facts.reach import Reach
from facts.values import Unknown
from operations.run import Run


def reach(run: Run, name: str, url: str) -> str | Unknown:
    """What keeps the node of that name from the host of the URL; "" when nothing does."""
    found = run.hosts[name].get_fact(Reach, urls=[url], _sudo=False, _ignore_errors=True)
    return found if isinstance(found, Unknown) else found.get(url, Unknown("it did not answer"))
