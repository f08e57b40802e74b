"""What a deploy would change. Exit 0: nothing, 2: something, 1: refused or not to be found out. Changes nothing.

python plan.py [--json] [--data knob=value] [inventory.py]

Rows first: what would be done on which nodes. Then the settings that change with their old values, what that
interrupts and for how long, and the KV pool. --json prints all of it as one document.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
NOTHING, REFUSED, CHANGES, INTERRUPTED = 0, 1, 2, 130
OUTLOOK = "SPARKPAIR_PLAN"

Row = tuple[str, list[str]]


class Garbled(Exception):
    """pyinfra did not run, or ended well, and what it said cannot be read."""


def main(arguments: Sequence[str]) -> int:
    """Run the deploy's own dry run, and say what it found."""
    if set(arguments) & {"-h", "--help"}:
        print(__doc__)
        return NOTHING
    as_json = "--json" in arguments
    words = [word for word in arguments if word != "--json"]
    try:
        found = ask(words)
    except Garbled as error:
        print(error, file=sys.stderr)
        found = None
    except KeyboardInterrupt:
        return INTERRUPTED
    if found is None:
        if as_json:
            print(json.dumps({"format": 1, "verdict": "refused"}))
        return REFUSED
    rows, outlook = found
    print(document(rows, outlook) if as_json else summary(rows, outlook))
    return CHANGES if rows else NOTHING


def ask(words: Sequence[str]) -> tuple[list[Row], dict[str, Any]] | None:
    """The rows with something to do, and the outlook; None where pyinfra refused and said why. Raises Garbled."""
    # A file without a name: nothing is left of it, however this ends.
    with tempfile.TemporaryFile() as outlook:
        argv = command_line(["--dry", "--json", *words], "deploy.py")
        environment = {**os.environ, OUTLOOK: f"/dev/fd/{outlook.fileno()}"}
        try:
            done = subprocess.run(
                argv, stdout=subprocess.PIPE, text=True, check=False, env=environment, pass_fds=[outlook.fileno()]
            )
        except OSError as error:
            raise Garbled(
                f"{argv[0]} cannot be run ({error.strerror}); in the checkout: make venv, then .venv/bin/python plan.py"
            ) from None
        if done.returncode != 0:
            return None
        outlook.seek(0)
        told = outlook.read()
    try:
        rows = changes(json.loads(done.stdout))
    except (ValueError, KeyError, TypeError) as error:
        raise Garbled(f"pyinfra's plan cannot be read: {error!r}") from None
    return rows, read(told)


def command_line(words: Sequence[str], verb: str) -> list[str]:
    """pyinfra on a verb of this checkout, with what was typed: options of pyinfra's own, and the inventory."""
    inventories = [word for word in words if word.endswith(".py") and "=" not in word]
    options = [word for word in words if word not in inventories]
    inventory = inventories[0] if inventories else "inventory.py"
    return [pyinfra(), "--config", str(ROOT / "config.py"), *options, inventory, str(ROOT / verb)]


def pyinfra() -> str:
    """The command of the environment that runs this."""
    beside = Path(sys.executable).with_name("pyinfra")
    return str(beside) if beside.exists() else "pyinfra"


def changes(plan: Mapping[str, list[dict[str, list[str]]]]) -> list[Row]:
    """The operations with something to do, in order, and on which nodes."""
    found = []
    for row in plan["plan"]:
        hosts = [*row["hosts_with_change"], *row["hosts_with_conditional_change"]]
        if hosts:
            found.append((str(row["name"]), hosts))
    return found


def read(told: bytes) -> dict[str, Any]:
    """The outlook as deploy.py wrote it (operations/outlook.py). Raises Garbled."""
    try:
        outlook = dict(json.loads(told))
        outlook["text"] = [str(line) for line in outlook["text"]]
        outlook["quiet"] = bool(outlook["quiet"])
    except (ValueError, KeyError, TypeError) as error:
        raise Garbled(f"the deploy's outlook cannot be read: {error!r}") from None
    return outlook


def summary(rows: Sequence[Row], outlook: Mapping[str, Any]) -> str:
    """The plan for a person."""
    if rows:
        width = max(len(name) for name, _ in rows)
        number = "1 change" if len(rows) == 1 else f"{len(rows)} changes"
        lines = [f"{number} pending:", *(f"  {name:<{width}}  {', '.join(hosts)}" for name, hosts in rows)]
    elif outlook["quiet"]:
        lines = ["No changes. The nodes are as group_data says."]
    else:
        lines = ["Nothing to do for a deploy."]
    if rows or not outlook["quiet"]:
        lines += ["", *outlook["text"]]
    return "\n".join(lines)


def document(rows: Sequence[Row], outlook: Mapping[str, Any]) -> str:
    """The plan for a program."""
    told = {key: value for key, value in outlook.items() if key not in ("text", "quiet")}
    operations = [{"name": name, "nodes": hosts} for name, hosts in rows]
    return json.dumps({**told, "verdict": "changes" if rows else "nothing", "operations": operations}, indent=1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
