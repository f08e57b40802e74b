"""Entry of every program on a node: main.py agent, keeper, bridge and so on, or a word of the sparkpair command."""

from __future__ import annotations

import importlib
import sys

SERVICES = {
    "agent": "node.agent",
    "keeper": "node.keeper",
    "recorder": "node.recorder",
    "bridge": "node.bridge",
    "weights": "node.weights",
    "stage": "node.stage",
    "fetch": "node.fetch",
    "serve": "node.peer",
    "deep": "node.deep",
    "fabric": "node.fabric",
    "nfs": "node.nfs",
    "registry": "node.registry",
    "pull": "node.pull",
    "report": "node.report",
    "updates": "node.updates",
}


def main(argv: list[str]) -> int:
    """Run one program; only its own modules are imported, since a node has little memory to spare."""
    if argv and argv[0] in SERVICES:
        module = importlib.import_module(SERVICES[argv[0]])
        return int(module.main(argv[1:]))
    cli = importlib.import_module("node.cli")
    return int(cli.main(argv))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
