"""doctor.py on pretended nodes: fresh, converged, broken, half reachable. Its own words, and its document."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import repository
from tests.plan import cases
from tests.plan.cases import Case
from tests.plan.conftest import Outcome, carried_out, lay_out
from tests.plan.world import World, fresh

pytestmark = pytest.mark.slow


def no_docker(world: World) -> None:
    world.worker["docker"].update(answers=False, trouble="connection refused")


def doctor(name: str, change: Callable[[World], None] = cases.nothing, **more: Any) -> Case:
    """A case in which no API runs, so that nobody is reached for."""
    still = cases.status(phase="starting", reason="the head was booted")
    return Case(name, change=cases.both(still, change), options=(), deploy="doctor.py", **more)


CASES = (
    Case("fresh", fresh, options=(), deploy="doctor.py"),
    doctor("converged"),
    doctor("no docker", no_docker),
    doctor("garbled", cases.garbled),
    doctor("no sudo", cases.without_sudo),
    doctor("a typo", more={"max_nun_seqs": 3}),
)


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcome]:
    """The outcome of one case."""
    return carried_out(CASES, tmp_path_factory.mktemp("doctor")).__getitem__


def test_before_the_first_deploy(looked: Callable[[str], Outcome]) -> None:
    """It tells whether two Sparks are ready, and does not call missing what a deploy brings."""
    found = looked("fresh")
    assert found.code == 0, found.stderr
    assert "ok      node.access: NVIDIA GB10 driver 580.95.05" in found.stderr
    assert "told    pair.deployed: nothing is deployed yet, so " in found.stderr
    assert "FAILED" not in found.stderr


def test_each_statement_with_its_mark_and_remedy(looked: Callable[[str], Outcome]) -> None:
    found = looked("no docker")
    assert found.code == 1
    _, _, worker = found.stderr.partition("    @fake/spark-b (")
    assert "FAILED  docker.answers: Docker does not answer: connection refused\n" in worker
    assert "          Fix: sudo systemctl enable --now docker; if that fails: journalctl -u docker\n" in worker
    assert "UNKNOWN pair.ranks: its containers could not be read" in worker
    assert found.error.startswith("Doctor found what is wrong: ")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("converged", "FAILED  pair.keeper: the pair is starting: the head was booted"),
        (
            "garbled",
            "UNKNOWN node.access: could not be looked at: the probe answered 'bash: warning: here is no probe'",
        ),
        ("no sudo", "FAILED  node.access: sudo wants a password from bob."),
    ],
)
def test_whatever_a_node_says(looked: Callable[[str], Outcome], name: str, line: str) -> None:
    """One line each, and of the other node everything that can be said."""
    found = looked(name)
    assert found.code == 1
    assert line in found.stderr
    assert "ok      node.files: 12 files and the programs are as wanted" in found.stderr
    assert "Traceback" not in found.stderr


def test_settings_are_refused_as_by_every_verb(looked: Callable[[str], Outcome]) -> None:
    assert looked("a typo").error.startswith("Settings refused; no node was changed.")


def _away(place: Path) -> None:
    """The worker is behind ssh, at a port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    nodes = json.loads((place / "nodes.json").read_text())
    nodes[1]["name"] = "spark-b"
    nodes[1]["data"] |= {"ssh_hostname": "127.0.0.1", "ssh_port": port, "ssh_user": "bob", "ssh_connect_retries": 0}
    (place / "nodes.json").write_text(json.dumps(nodes))


@pytest.mark.report("SSH-01")
def test_one_node_is_away(tmp_path: Path) -> None:
    """Which one, and why; the rest is judged. As a document, and nothing else on standard output."""
    lay_out(doctor("half"), tmp_path)
    _away(tmp_path)
    done = subprocess.run(
        [sys.executable, repository.ROOT / "doctor.py", "--json"],
        cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    found = json.loads(done.stdout)
    assert found["format"] == 1
    assert found["verdict"] == "broken"
    [access] = [check for check in found["checks"] if check["name"] == "node.access"]
    away = [one for one in access["verdicts"] if one["where"] == "spark-b"]
    assert [one["verdict"] for one in away] == ["unknown"]
    assert "could not be looked at: it cannot be reached: " in away[0]["statement"]
    assert found["nodes"]["spark-b"]["commands"] == 0
    assert 0 < found["nodes"]["@fake/spark-a"]["commands"] <= 2
    assert sum(found["counts"].values()) >= 10


def test_a_document_even_where_it_is_refused(tmp_path: Path) -> None:
    lay_out(doctor("refused", more={"max_nun_seqs": 3}), tmp_path)
    done = subprocess.run(
        [sys.executable, repository.ROOT / "doctor.py", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, json.loads(done.stdout)) == (1, {"format": 1, "verdict": "refused"})
    assert "Settings refused" in done.stderr
