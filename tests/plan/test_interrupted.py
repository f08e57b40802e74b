"""Signals: pyinfra of itself ends with 0 when it is interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import repository
from tests.plan.cases import Case
from tests.plan.conftest import lay_out

SLOW = Case("slow", data=lambda _, data: {**data, "fake_delay": 60})
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}


@pytest.mark.parametrize("number", CODES, ids=str)
def test_a_signal_ends_the_run_at_once_with_one_line(tmp_path: Path, number: signal.Signals) -> None:
    """While the nodes are looked at, which never ends here."""
    lay_out(SLOW, tmp_path / "run")
    command = Path(sys.executable).with_name("pyinfra")
    argv = [command, "--config", repository.ROOT / "config.py", "-y", "inventory.py", repository.ROOT / "deploy.py"]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(argv, cwd=tmp_path / "run", stdout=said, stderr=said)
        until = time.monotonic() + 60
        while "Loading: " not in (tmp_path / "said").read_text() and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(20) == CODES[number]
    text = (tmp_path / "said").read_text()
    assert text.endswith(f"\n--> {WORDS[number]}. No node was changed.\n")
    assert "Traceback" not in text
