"""doctor.py on the simulated pair: how many commands, that nothing changes, and what it says of faults that are there.

Works on the pair that runs; on one that does not serve it deploys first.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from lab import hosts, settings
from lab.settings import HEAD, WORKER
from node.wire import LABEL_GIDS
from tests.lab import pair
from tests.lab.chaos_rows import use

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab"), pytest.mark.timeout(900)]

SOCKET = "spark-b:77:91 [0] NCCL INFO Using network Socket"


@pytest.fixture(scope="module", autouse=True)
def serving() -> Iterator[None]:
    """The pair with the contract's engine."""
    run = pair.deploy(*use("contract"))
    assert run.code == 0, run.text
    yield
    run = pair.deploy(*use("contract"))
    assert run.code == 0, run.text


def doctor(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, document, and what else was said."""
    argv = [sys.executable, "../doctor.py", "--json", *arguments, *use("contract")]
    done = subprocess.run(argv, cwd=settings.SOURCE, capture_output=True, text=True, timeout=300, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


def said(document: dict[str, Any], check: str, verdict: str) -> list[str]:
    """Statements of one check that have that verdict."""
    rows = [row for found in document["checks"] if found["name"] == check for row in found["verdicts"]]
    return [row["statement"] for row in rows if row["verdict"] == verdict]


def wrong(document: dict[str, Any]) -> list[str]:
    """All that does not hold."""
    return [
        f"{found['name']}: {row['where']}: {row['statement']}"
        for found in document["checks"]
        for row in found["verdicts"]
        if row["verdict"] in ("broken", "unknown")
    ]


def test_a_pair_that_serves_is_well_and_nothing_changes() -> None:
    before = pair.containers(), pair.status()["counters"], pair.status()["since"]
    code, found, _ = doctor()
    assert (code, found["verdict"]) == (0, "holds"), wrong(found)
    assert found["counts"]["holds"] > 60
    assert said(found, "api.answers", "holds")
    counters = pair.status()["counters"]
    assert (pair.containers(), counters, pair.status()["since"]) == before
    assert pair.dry(*use("contract")).plan == {}


def test_two_commands_on_each_node() -> None:
    """As it counts them, and as pyinfra itself prints each command that it hands to ssh."""
    _, found, said_beside = doctor("-vv")
    assert {name: node["commands"] for name, node in found["nodes"].items()} == {"lab-head": 2, "lab-worker": 2}
    for name in found["nodes"]:
        assert len(re.findall(rf"^\s*\[{name}\]\s*>>> ", said_beside, re.MULTILINE)) == 2, said_beside


@pytest.mark.report("SSH-01")
def test_half_of_it_is_out_of_reach() -> None:
    """The other half is looked at all the same, and the keeper's word counts."""
    pair.lab("unplug", "worker")
    try:
        code, found, _ = doctor()
    finally:
        pair.lab("plug", "worker")
    assert (code, found["nodes"]["lab-worker"]["commands"]) == (1, 0)
    [line] = said(found, "node.access", "unknown")
    assert line.startswith("could not be looked at: it cannot be reached: ")
    assert said(found, "pair.keeper", "holds")
    assert said(found, "node.files", "broken") == []


def test_a_pair_that_is_down() -> None:
    pair.on(HEAD, "sparkpair stop")
    try:
        pair.wait_for(lambda: pair.status()["phase"] == "stopped", 60, "stopped")
        code, found, _ = doctor()
    finally:
        pair.on(HEAD, "sparkpair start")
        pair.wait_running()
    assert code == 1
    assert said(found, "pair.keeper", "broken") == ["the pair is stopped on purpose"]
    assert said(found, "pair.ranks", "broken") == ["no rank runs", "no rank runs"]
    assert said(found, "api.answers", "holds") == []


@pytest.mark.report("GID-06", "GID-07")
def test_a_row_that_moves_after_the_start() -> None:
    """As after a flap: the address comes back in another row. A restart looks it up anew."""
    container = pair.containers()["worker"][0].split()[0]
    label = pair.on(WORKER, f"docker inspect -f '{{{{index .Config.Labels \"{LABEL_GIDS}\"}}}}' {container}").strip()
    place, _, before = label.partition("=")
    netdev = WORKER.rails[0].netdev
    address = pair.on(WORKER, f"ip -4 -o addr show dev {netdev} | awk '{{print $4}}'").strip()
    # Another one takes the free row meanwhile.
    steps = (f"del {address}", "add 192.0.2.9/32", f"add {address}", "del 192.0.2.9/32")
    pair.on(WORKER, "; sleep 3; ".join(f"ip addr {step} dev {netdev}" for step in steps))
    try:
        code, found, _ = doctor()
        assert code == 1
        [line] = said(found, "rdma.rows", "broken")
        assert line.startswith(f"rank 1 was started with row {before} of {place.partition('/')[0]} for ")
        assert re.search(r", which is in row \d+ now$", line)
    finally:
        pair.on(HEAD, "sparkpair restart")
        pair.wait_running()
    _, found, _ = doctor()
    assert len(said(found, "rdma.rows", "holds")) == 2


@contextlib.contextmanager
def saying(line: str, variable: str) -> Iterator[None]:
    """That line in the log of each rank with that variable that the worker starts meanwhile, from inside of it."""
    program = (
        "former=; while sleep 0.2; do now=$(docker ps -q --filter label=sparkpair.rank); "
        f'if [ -n "$now" ] && [ "$now" != "$former" ] && docker inspect $now | grep -q {variable}; then '
        f"docker exec $now sh -c \"echo '{line}' >/proc/1/fd/1\" && former=$now; fi; done"
    )
    talker = subprocess.Popen(hosts.exec_command(WORKER, program), stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        talker.kill()
        talker.wait()


@pytest.mark.report("RDMA-01", "NET-11")
def test_ranks_that_talk_over_tcp_do_not_pass() -> None:
    """Such a launch goes back to the one that was good; with allow_tcp it serves, and doctor tells."""
    slow = ("--data", 'engine_env=["CONTRACT_START_SECONDS=6"]')
    allowed = ("--data", "allow_tcp=True", *slow)
    good = pair.status()["accepted"]
    with saying(SOCKET, "CONTRACT_START_SECONDS"):
        run = pair.deploy(*use("contract", *slow))
        assert run.code == 1
        assert "rank 1: NCCL sends over TCP, not by RDMA" in run.text
        pair.wait_running()
        assert pair.status()["accepted"] == good
        run = pair.deploy(*use("contract", *allowed))
        assert run.code == 0, run.text
        _, found, _ = doctor(*allowed)
    [line] = said(found, "rdma.transport", "told")
    assert line.startswith("the ranks talk over TCP, at a fraction of RDMA's speed (rank 1: over TCP")
