"""Commands on transient units, run by a shell with a systemctl that only answers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from operations import units

WORK = ("sparkpair-stage", "Sparkpair: bring the weights here", ["/usr/bin/python3", "main.py", "stage", "errand"])
TOLD = "Sparkpair: bring the weights here [4c5842c6]"
SYSTEMCTL = """#!/bin/sh
echo "$@" >>{called}
case $1 in
    is-active) exit {code} ;;
    show) echo '{told}' ;;
    stop) [ {code} = 0 ] || exit 5 ;;
esac
"""
LOOK = ["is-active --quiet sparkpair-stage.service", "show --property=Description --value sparkpair-stage.service"]
STOP = "stop sparkpair-stage.service"


@pytest.mark.parametrize(
    ("code", "told", "called"),
    [
        (0, TOLD, LOOK),
        (0, "Sparkpair: bring the weights here [ffffffff]", [*LOOK, STOP]),
        (3, "", [LOOK[0], STOP]),
    ],
    ids=["at this work", "at other work", "at none"],
)
def test_a_unit_at_other_work_is_ended(tmp_path: Path, code: int, told: str, called: list[str]) -> None:
    """One at this work goes on; one that is not there is fine."""
    program, calls = tmp_path / "systemctl", tmp_path / "calls"
    program.write_text(SYSTEMCTL.format(called=calls, code=code, told=told))
    program.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["/bin/sh", "-ec", str(units.end_other(*WORK))], env=path, check=True)
    assert calls.read_text().splitlines() == called
