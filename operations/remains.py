"""What each node still has of ours: looked at once while a removal is planned, and anew before each step of it."""

from __future__ import annotations

import json
from weakref import WeakKeyDictionary

from pyinfra import logger
from pyinfra.api.command import StringCommand
from pyinfra.api.host import Host

from checks import remove
from facts import remains
from facts.remains import Remaining, Remains
from facts.values import Unknown, known
from operations.core import is_executing
from operations.run import Run
from spec import objects
from spec.cluster import Cluster, Node

_planned: WeakKeyDictionary[Host, Remaining | Unknown] = WeakKeyDictionary()


def look(run: Run, node: Node) -> Remaining | Unknown:
    """What is there."""
    host = run.hosts[node.name]
    if is_executing() or host not in _planned:
        _planned[host] = host.get_fact(
            Remains, asked=json.dumps(_asked(run.cluster, node)), _sudo=True, _ignore_errors=True
        )
    return _planned[host]


def here(run: Run) -> Remaining:
    """What is there on the node that is being prepared or worked on. Raises UnknownFact."""
    return known(look(run, run.node), "what is there of Sparkpair")


def take(cluster: Cluster, node: Node) -> StringCommand:
    """The command that removes files and directories of ours."""
    return remains.run(json.dumps({**_asked(cluster, node), "do": "take"}))


def discard(cluster: Cluster, node: Node, path: str) -> StringCommand:
    """The command that removes a directory of the operator's, if that is what it is."""
    others = [other for other in remove.protected(node) if other != path]
    engines = remove.engines(cluster, node) if path == node.cache_path else None
    return remains.run(json.dumps({"do": "discard", "path": path, "protected": others, "engines": engines}))


def tell(run: Run) -> None:
    """A line for each thing that stays."""
    for node in run.cluster.nodes:
        for line in remove.kept(run.cluster, node, run.seen(node), known(look(run, node), "what is there")):
            logger.info(f"    {node.name} keeps {line}")


def _asked(cluster: Cluster, node: Node) -> dict[str, object]:
    return {
        "do": "find",
        "files": remove.files(),
        "trees": remove.trees(node),
        "empty": remove.empties(),
        "unfinished": remove.unfinished(),
        "units": remove.units(),
        "discards": {path: [o for o in remove.protected(node) if o != path] for path in remove.discards(node)},
        "engines": {node.cache_path: remove.engines(cluster, node)},
        "there": [
            objects.NETPLAN_FILE,
            objects.NETPLAN_REMOVED,
            objects.API_KEY_FILE,
            objects.FIREWALL_RULES,
            remove.DOCKER_SETTINGS,
        ],
    }
