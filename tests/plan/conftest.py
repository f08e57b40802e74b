"""All plans of this directory, made by one program: a case is a directory with an inventory, and a command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spec.cluster import Cluster
from tests import repository
from tests.plan.cases import CASES, SMALL_VERBS, Case
from tests.plan.world import World
from tests.unit import pair

INVENTORY = '''"""Two pretended hosts; nodes.json holds what their probes answer."""

import json
import pathlib

_nodes = json.loads(pathlib.Path(__file__).with_name("nodes.json").read_text())
head = [(node["name"], node["data"]) for node in _nodes if node["group"] == "head"]
worker = [(node["name"], node["data"]) for node in _nodes if node["group"] == "worker"]
'''


@dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    code: int
    stdout: str
    stderr: str
    place: str
    """Where it was run."""

    @property
    def rows(self) -> dict[str, list[str]]:
        """The operations with something to do, in order, and where."""
        plan = json.loads(self.stdout)["plan"]
        assert all(not row["hosts_with_conditional_change"] for row in plan)
        return {row["name"]: row["hosts_with_change"] for row in plan if row["hosts_with_change"]}

    @property
    def order(self) -> list[str]:
        """Every operation's name, in the order in which it would run."""
        return [str(row["name"]) for row in json.loads(self.stdout)["plan"]]

    @property
    def error(self) -> str:
        """The one message with which pyinfra ended, without the place in the code that raised it."""
        _, _, text = self.stderr.rpartition("\n--> ")
        place, _, message = text.partition(": ")
        assert "Traceback" not in self.stderr, self.stderr
        assert "error" in place, self.stderr
        return message.strip().replace(self.place, "PLACE").replace(str(repository.ROOT), "PLACE")


def cluster_of(case: Case) -> Cluster:
    """The cluster for which the case's world is made: what the nodes are, not what is asked for."""
    nodes = {"spark-a": "@fake/spark-a", "spark-b": "@fake/spark-b"}
    hosts = [
        pair.host(nodes["spark-a"], "head", node_data(pair.HEAD), case.settled),
        pair.host(nodes["spark-b"], "worker", node_data(pair.WORKER), case.settled),
    ]
    facts = {nodes[name]: pair.FACTS[name] for name in nodes}
    return pair.resolve(pair.load(hosts, pair.CONNECTION), facts)


def node_data(base: dict[str, Any]) -> dict[str, Any]:
    """A node's data as for ssh, but for a connector that only pretends."""
    data = pair.node(base, ssh_hostname=None, ssh_user=None, management_address=base["ssh_hostname"])
    return {**data, "fake_delay": 0, "fake_delay_jitter": 0}


def lay_out(case: Case, place: Path) -> None:
    """Inventory, group data and answers of a case."""
    (place / "group_data").mkdir(parents=True)
    world: World = case.state(cluster_of(case))
    case.change(world)
    nodes = []
    for (name, document), base in zip(world.nodes.items(), (pair.HEAD, pair.WORKER), strict=True):
        answer = document if isinstance(document, str) else json.dumps(document)
        data = {**node_data(base), "fake_responses": {"sparkpair-probe": [*case.banner, answer]}}
        nodes.append({"name": name, "group": "head" if base is pair.HEAD else "worker", "data": case.data(name, data)})
    (place / "nodes.json").write_text(json.dumps(nodes))
    (place / "inventory.py").write_text(INVENTORY)
    settings = "".join(f"{name} = {value!r}\n" for name, value in case.stated.items())
    (place / "group_data" / "all.py").write_text(settings)
    for name, text in case.files.items():
        (place / name).write_text(text)


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """The outcome of every case, by name."""
    return carried_out((*CASES, *SMALL_VERBS), tmp_path_factory.mktemp("plans"))


def carried_out(cases: Sequence[Case], root: Path) -> dict[str, Outcome]:
    """What became of these cases, by name, each below the directory."""
    tasks = []
    for number, case in enumerate(cases):
        if case.place:  # as it is typed there
            place, above = repository.ROOT / case.place, ".."
        else:
            place, above = root / str(number), str(repository.ROOT)
            lay_out(case, place)
        argv = ["--config", f"{above}/config.py", *case.options, case.inventory, f"{above}/{case.deploy}"]
        tasks.append({"name": case.name, "cwd": str(place), "argv": argv})
    # The lab's inventory names a key that is there once a lab was built; no case gets as far as using it.
    key = root / "id_ed25519"
    key.touch()
    done = subprocess.run(
        [sys.executable, "-m", "tests.plan.driver"],
        env={**os.environ, "LAB_KEY": str(key)},
        input=json.dumps(tasks),
        capture_output=True,
        text=True,
        cwd=repository.ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    places = {str(task["name"]): str(task["cwd"]) for task in tasks}
    return {name: Outcome(**outcome, place=places[name]) for name, outcome in json.loads(done.stdout).items()}


@pytest.fixture
def outcome(outcomes: dict[str, Outcome]) -> Callable[[str], Outcome]:
    """The outcome of one case."""
    return outcomes.__getitem__
