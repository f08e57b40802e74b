"""Runs pyinfra's own command for many cases, each in a process of its own, forked from one that has imported it all.

Starting pyinfra takes most of a second, a plan of two pretended hosts a fifth of that. Reads the cases from standard
input, [{"name", "cwd", "argv"}], and prints what became of each: {name: {"code", "stdout", "stderr"}}.
"""

from __future__ import annotations

# ruff: noqa: I001  (gevent must patch the standard library before anything uses it)
import pyinfra_cli

import atexit
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

import pyinfra_cli.main

import checks.preflight  # noqa: F401
import roles.fabric, roles.docker, roles.engine, roles.image, roles.keeper, roles.nfs, roles.node_os  # noqa: E401
import roles.memory, roles.preflight, roles.upkeep, roles.weights  # noqa: E401, F401
import operations.outlook  # noqa: F401
import spec.load  # noqa: F401

ROOT = Path(__file__).resolve().parent.parent.parent


def run(argv: list[str], cwd: str, output: Path) -> int:
    """One case; its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 70
    atexit._clear()  # what this process would do at its end
    try:
        os.chdir(cwd)
        for number, name in ((0, os.devnull), (1, str(output / "stdout")), (2, str(output / "stderr"))):
            os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        sys.argv = ["pyinfra", *argv]
        try:
            pyinfra_cli.main.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        atexit._run_exitfuncs()  # as at the end of any Python, which os._exit leaves out
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Every case, one after another."""
    sys.path.insert(0, str(ROOT))
    found = {}
    for case in json.load(sys.stdin):
        with tempfile.TemporaryDirectory() as place:
            code = run(case["argv"], case["cwd"], Path(place))
            texts = {name: (Path(place) / name).read_text() for name in ("stdout", "stderr")}
        found[case["name"]] = {"code": code, **texts}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
