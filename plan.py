"""What a deploy would change. Exit 0: nothing, 2: something, 1: refused or not to be found out. Changes nothing.

python plan.py [--data knob=value] [inventory.py]
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent
NOTHING, REFUSED, CHANGES = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    """Run the deploy's own dry run, and say in short what it found."""
    words = list(arguments)
    inventories = [word for word in words if word.endswith(".py")]
    options = [word for word in words if word not in inventories]
    inventory = inventories[0] if inventories else "inventory.py"
    argv = [
        pyinfra(),
        "--dry",
        "--json",
        "--config",
        str(ROOT / "config.py"),
        *options,
        inventory,
        str(ROOT / "deploy.py"),
    ]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        return REFUSED
    try:
        rows = changes(json.loads(done.stdout))
    except (ValueError, KeyError, TypeError) as error:
        print(f"pyinfra's plan cannot be read: {error!r}", file=sys.stderr)
        return REFUSED
    print(summary(rows))
    return CHANGES if rows else NOTHING


def pyinfra() -> str:
    """The command of the environment that runs this."""
    beside = Path(sys.executable).with_name("pyinfra")
    return str(beside) if beside.exists() else "pyinfra"


def changes(document: Mapping[str, list[dict[str, list[str]]]]) -> list[tuple[str, list[str]]]:
    """The operations with something to do, in order, and on which nodes."""
    found = []
    for row in document["plan"]:
        hosts = [*row["hosts_with_change"], *row["hosts_with_conditional_change"]]
        if hosts:
            found.append((str(row["name"]), hosts))
    return found


def summary(rows: Sequence[tuple[str, list[str]]]) -> str:
    """The plan for a person."""
    if not rows:
        return "No changes. The nodes are as group_data says."
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {', '.join(hosts)}" for name, hosts in rows]
    names = {name for name, _ in rows}
    interrupts = names & {"Keeper | Restart the pair", "Docker | Restart Docker"}
    if interrupts:
        end = "Serving is interrupted once."
    elif "Fabric | Set the rails up" in names:
        end = "A pair that serves is not restarted; traffic over the rails pauses, and its answers with it."
    else:
        end = "A pair that serves goes on serving."
    return "\n".join([f"{len(rows)} changes pending:", *lines, end])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
