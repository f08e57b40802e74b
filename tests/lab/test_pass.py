"""One pass on the simulated pair with a real vLLM, in the order of an operator's first week."""

from __future__ import annotations

import json
import time

import pytest

from lab.settings import HEAD, HOSTS, WORKER
from tests.lab import pair

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab"), pytest.mark.timeout(900)]

RESTART = "Keeper | Restart the pair"
WANTED = "Engine | Install the wanted launch"
GATES = (
    "warm_up",
    "canary",
    "smoke",
    "tool_call",
    "tool_call_reasoning",
    "reasoning_on",
    "reasoning_off",
    "needle",
    "reuse",
)
"""Those of a model that reads text alone."""


def test_a_deploy_makes_the_pair_answer():
    run = pair.deploy()
    assert run.code == 0, run.text
    status = pair.status()
    assert status["phase"] == "running"
    asked = [(gate["gate"], gate["outcome"]) for gate in status["gates"]]
    # An engine on the CPU says nothing of NCCL.
    assert asked == [("transport", "skipped"), *((name, "passed") for name in GATES)]
    assert pair.ask() == pair.ANSWER


def test_a_second_deploy_plans_nothing_and_touches_nothing():
    before = pair.containers()
    assert all(len(found) == 1 for found in before.values())
    assert pair.dry().plan == {}
    run = pair.deploy()
    assert run.code == 0, run.text
    assert pair.containers() == before


def test_verify_says_so():
    run = pair.verify()
    assert run.code == 0, run.text


def test_the_floor_of_memory_is_kept_on_every_node():
    """Of the rank that runs, also by a recorder that was killed; and the login is protected."""
    accepted = pair.status()["accepted"]
    for host in HOSTS.values():
        before = recorded(host)
        assert (before["engine"], before["running"]) == (accepted, True)
        assert 0 < before["floor"] <= before["available"]
        pair.on(host, "systemctl kill --signal=KILL sparkpair-recorder")
        pair.wait_for(lambda at=host, seen=before: recorded(at)["samples"] > seen["samples"] + 1, 30, "the next word")
        after = recorded(host)
        assert (after["engine"], after["since"]) == (before["engine"], before["since"])
        assert after["floor"] <= before["floor"]
        least = pair.on(host, "systemctl show --value --property=MemoryMin ssh.service user.slice system.slice").split()
        assert [int(value) // 2**20 for value in least] == [32, 128, 256]


def recorded(host):
    return json.loads(pair.on(host, "cat /run/sparkpair/memory.json"))


def test_one_knob_is_one_line_per_node_and_one_restart():
    plan = pair.dry("--data", "max_num_seqs=8").plan
    names = [host.hostname for host in HOSTS.values()]
    assert plan == {WANTED: names, RESTART: [HEAD.hostname]}

    shown = pair.start_deploy("--dry", "--diff", "--data", "max_num_seqs=8").wait()
    changed = sorted(line.strip() for line in shown.text.splitlines() if line.strip().startswith(("+ ", "- ")))
    assert [" ".join(line.split()) for line in changed] == [
        *['+ ["--max-num-seqs", "8"],'] * 2,
        *['- ["--max-num-seqs", "4"],'] * 2,
    ], shown.text

    before = pair.status()
    run = pair.deploy("--data", "max_num_seqs=8")
    assert run.code == 0, run.text
    after = pair.status()
    assert after["counters"]["starts"] == before["counters"]["starts"] + 1
    for host in HOSTS.values():
        assert any("--max-num-seqs 8" in line for line in pair.engine_processes(host)), host.name
    assert pair.dry("--data", "max_num_seqs=8").plan == {}
    assert pair.dry().plan == {WANTED: names, RESTART: [HEAD.hostname]}, "a plain deploy says the way back"


def test_a_deploy_killed_after_the_hand_over_is_finished_by_the_keeper():
    before = pair.status()
    deploy = pair.start_deploy("-y")  # the way back to the stated settings
    pair.wait_for(lambda: pair.status().get("accepted") not in (None, before["accepted"]), 120, "the hand-over", 0.1)
    deploy.kill()
    deploy.wait()
    assert pair.dry().plan == {}, "the keeper is starting it: nothing to do but to follow"
    run = pair.deploy()
    assert run.code == 0, run.text
    after = pair.status()
    assert (after["phase"], after["counters"]["starts"]) == ("running", before["counters"]["starts"] + 1)
    assert pair.ask() == pair.ANSWER


def test_a_killed_engine_process_is_one_restart_without_orphans():
    before = pair.status()
    with pair.Streams(2):
        time.sleep(3)
        pair.kill_process(WORKER, "Worker_TP1")
        pair.wait_healed(before)
    after = pair.status()
    assert after["counters"]["ready"] == before["counters"]["ready"] + 1
    assert pair.ask() == pair.ANSWER
    now = {host.name: pair.on(host, "docker ps -aq | wc -l").strip() for host in HOSTS.values()}
    assert now == {"head": "1", "worker": "1"}
    for host in HOSTS.values():
        pair.assert_no_orphan(host)


def test_the_pair_comes_back_after_a_power_cut_of_both():
    before = pair.status()
    for host in HOSTS.values():
        pair.lab("off", host.name)
    for host in HOSTS.values():
        pair.lab("on", host.name)
    pair.wait_healed(before)
    assert pair.ask() == pair.ANSWER
    run = pair.verify()
    assert run.code == 0, run.text
    assert pair.dry().plan == {}
    assert json.dumps(pair.status()["last_good"]) == json.dumps(before["accepted"])
