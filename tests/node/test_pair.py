"""Keeper and agents together: starts, failures, deploys, restarts of the programs themselves."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from node import agent, keeper, link, paths
from node.rails import RailWatch
from tests.node import world as worlds
from tests.node.world import World


@pytest.fixture(autouse=True)
def docker_run_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """`docker run` and `docker logs` are the two programs that the agent starts."""

    async def run(argv: list[str], timeout: float, variables: dict[str, str]) -> tuple[int, str]:
        await asyncio.sleep(0.01)
        rank = int(argv[argv.index("--label") + 3].split("=")[1])
        if rank == 0:
            CURRENT[0].engine.key = variables.get("VLLM_API_KEY", "")
        return CURRENT[0].dockers[rank].run(argv, variables)

    monkeypatch.setattr(agent, "_run", run)
    monkeypatch.setattr(agent, "_docker_logs", lambda container, lines, times=False: [f"last words of {container}"])
    monkeypatch.setattr(agent, "LEASE_CHECK_SECONDS", 0.05)
    monkeypatch.setattr(keeper, "HASTE_SECONDS", 0.02)
    monkeypatch.setattr(link, "RETRY_SECONDS", 0.02)


CURRENT: list[World] = []


def play(tmp_path: Path, story: Callable[[World], Awaitable[None]], key: str = "", **rules: object) -> None:
    async def run() -> None:
        world = World(tmp_path, key, **rules)
        CURRENT[:] = [world]
        async with world:
            await story(world)

    asyncio.run(run())


def test_accept_starts_worker_and_head_and_promotes(tmp_path: Path):
    async def story(world: World) -> None:
        engine = world.want(4)
        assert await world.accept(engine) == {"ok": True}
        status = await world.until("running")
        assert (status["accepted"], status["last_good"]) == (engine, engine)
        assert [len(docker.running) for docker in world.dockers] == [1, 1]
        assert json.loads(world.place(1).rank.read_text())["engine"] == engine
        labels = world.dockers[1].running[0].labels
        assert labels == {"sparkpair.engine": engine, "sparkpair.rank": "1", "sparkpair.epoch": "1"}
        assert world.engine.completions == 1
        assert json.loads((tmp_path / "status.json").read_text())["phase"] == "running"
        again = await world.accept(engine)
        assert again == {"ok": True, "note": "already running"}
        assert [docker.started for docker in world.dockers] == [1, 1]

    play(tmp_path, story)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.report("HW-07")
def test_a_rank_that_dies_is_one_pair_restart(tmp_path: Path, rank: int):
    async def story(world: World) -> None:
        await world.accept(world.want(4))
        await world.until("running")
        world.dockers[rank].end(0)
        await world.until("stopping")
        status = await world.until("running")
        assert [docker.started for docker in world.dockers] == [2, 2]
        assert [len(docker.all) for docker in world.dockers] == [1, 1]
        assert status["last_failure"]["reason"] == f"rank {rank}: the container exited with code 0"
        assert status["last_failure"]["logs"][str(rank)] == ["last words of c1"]
        assert status["counters"] == {"starts": 2, "ready": 2, "failures": 1, "canaries": 0, "failures_in_window": 1}

    play(tmp_path, story)


def test_a_rail_is_asked_for_as_long_as_a_start_is_due(tmp_path: Path):
    """What was heard is old after a back-off; who does not ask again waits for ever."""

    async def answers(address: str, netdev: str) -> bool:
        return True

    async def story(world: World) -> None:
        await world.keeper_down()
        world.rails = RailWatch({1: "10.0.0.2"}, "", lambda: 60 * agent.boottime(), answers)
        await world.keeper_up()
        await world.accept(world.want(4))
        await world.until("running")
        assert world.rails.reach(1)
        for _ in range(2):  # the second one backs off, for longer than an answer counts
            world.dockers[1].end(0)
            await world.until("stopping")
            await world.until("running")

    play(tmp_path, story, backoff_seconds=0.3, backoff_max_seconds=0.3)


def test_a_new_generation_replaces_the_old_once(tmp_path: Path):
    async def story(world: World) -> None:
        first = world.want(4)
        await world.accept(first)
        await world.until("running")
        second = world.want(8)
        await world.accept(second)
        status = await world.until("running")
        assert (status["accepted"], status["last_good"]) == (second, second)
        assert [docker.started for docker in world.dockers] == [2, 2]
        assert world.store.generation(first).texts == tuple(worlds.rank_text(rank, 4) for rank in (0, 1))

    play(tmp_path, story)


def test_what_deploy_did_not_mean_is_refused_and_nothing_stops(tmp_path: Path):
    async def story(world: World) -> None:
        await world.accept(world.want(4))
        await world.until("running")
        meant = world.want(8)
        world.want(16)
        answer = await world.accept(meant)
        assert answer["ok"] is False and "was changed meanwhile; run deploy.py again" in answer["error"]
        manifest = paths.manifest_path("/srv/m").name
        (world.place(1).weights / manifest).unlink()
        world.dockers[0].images.clear()
        answer = await world.accept(meant)
        assert "image registry/engine@sha256:" in answer["error"], "every refusal at once"
        assert f"{manifest} is missing: /srv/m was never verified" in answer["error"]
        assert [docker.started for docker in world.dockers] == [1, 1]
        assert world.keeper.status()["phase"] == "running"

    play(tmp_path, story)


@pytest.mark.report("DKR-06")
def test_different_layers_are_refused(tmp_path: Path):
    async def story(world: World) -> None:
        world.dockers[1].images[worlds.IMAGE] = {"id": "sha256:i", "layers": ["l1", "other"]}
        answer = await world.accept(world.want(4))
        assert answer == {
            "ok": False,
            "error": "the nodes hold different layers for the wanted image; run deploy.py again",
        }

    play(tmp_path, story)


def test_a_restarted_keeper_takes_the_running_pair_over(tmp_path: Path):
    async def story(world: World) -> None:
        await world.accept(world.want(4))
        await world.until("running")
        await world.keeper_down()
        await world.keeper_up()
        await asyncio.sleep(0.5)
        status = world.keeper.status()
        assert (status["phase"], status["epoch"]) == ("running", 2)
        assert [docker.started for docker in world.dockers] == [1, 1]

    play(tmp_path, story)


def test_a_keeper_restarted_while_starting_goes_on_with_that_start(tmp_path: Path):
    async def story(world: World) -> None:
        world.engine.healthy = False
        await world.accept(world.want(4))
        await world.until("starting")
        await asyncio.sleep(0.5)
        await world.keeper_down()
        await world.keeper_up()
        world.engine.healthy = True
        await world.until("running")
        assert [docker.started for docker in world.dockers] == [1, 1]

    play(tmp_path, story)


@pytest.mark.report("SYS-02")
def test_the_head_boots(tmp_path: Path):
    async def story(world: World) -> None:
        engine = world.want(4)
        await world.accept(engine)
        await world.until("running")
        await world.keeper_down()
        for docker in world.dockers:
            docker.end(255)
        await world.keeper_up(boot_id="another")
        status = await world.until("running")
        assert status["accepted"] == engine
        assert [docker.started for docker in world.dockers] == [2, 2]
        assert status["counters"]["failures"] == 0

    play(tmp_path, story)


def test_without_a_keeper_the_lease_ends_both_ranks(tmp_path: Path):
    async def story(world: World) -> None:
        await world.accept(world.want(4))
        await world.until("running")
        await world.keeper_down()
        end = agent.boottime() + 8
        while any(docker.all for docker in world.dockers):
            assert agent.boottime() < end
            await asyncio.sleep(0.05)
        await world.keeper_up()
        await world.until("stopping")
        await world.until("running")

    play(tmp_path, story, lease_seconds=1)


def test_an_engine_that_never_comes_up_is_tried_as_often_as_the_budget_says(tmp_path: Path):
    async def story(world: World) -> None:
        for docker in world.dockers:
            docker.refuses_run = "no space left on device"
        await world.accept(world.want(4))
        status = await world.until("resting")
        assert status["counters"]["failures"] == 4
        assert "could not start: docker run exited 125: no space left on device" in status["reason"]
        assert not any(docker.all for docker in world.dockers)
        for docker in world.dockers:
            docker.refuses_run = ""
        assert await world.keeper.request({"op": "start"}) == {"ok": True}
        await world.until("running")

    play(tmp_path, story)


def test_a_wrong_answer_is_not_promoted(tmp_path: Path):
    async def story(world: World) -> None:
        world.engine.answer = "it is 42"
        await world.accept(world.want(4))
        status = await world.until("resting")
        assert status["last_good"] is None
        reason = status["last_failure"]["reason"]
        assert reason.startswith("gate canary: ") and "'it is 42'" in reason and "wanted '391'" in reason

    play(tmp_path, story)


@pytest.mark.parametrize(("expected", "good"), [("391", True), ("999", False)])
def test_gates_are_those_of_the_settings(tmp_path: Path, expected: str, good: bool):
    async def story(world: World) -> None:
        engine = world.want(4)
        await world.accept(engine)
        status = await world.until("running" if good else "resting")
        gates = {item["gate"]: (item["outcome"], item["detail"]) for item in status["gates"]}
        assert gates["canary"] == ("passed", "answered 'it is 391'")
        if good:
            assert (gates["smoke"], status["last_good"]) == (("passed", "answered 'it is 391'"), engine)
        else:
            reason = "'Well?': answered 'it is 391', wanted '999' in it"
            assert (gates["smoke"], status["last_good"]) == (("failed", reason), None)
            assert status["last_failure"]["reason"] == f"gate smoke: {reason}"

    asked = {"smoke_prompt": "Well?", "smoke_expected": expected, "smoke_max_tokens": 8, "gate_smoke_seconds": 5}
    play(tmp_path, story, restart_budget=0, **asked)


def test_stop_stays_and_start_takes_it_back(tmp_path: Path):
    async def story(world: World) -> None:
        await world.accept(world.want(4))
        await world.until("running")
        await world.keeper.request({"op": "stop"})
        await world.until("stopped")
        assert not any(docker.all for docker in world.dockers)
        await world.keeper_down()
        await world.keeper_up(boot_id="another")
        await world.until("stopped")
        second = world.want(8)
        assert await world.accept(second) == {"ok": True}
        await asyncio.sleep(0.3)
        assert world.keeper.status()["phase"] == "stopped"
        await world.keeper.request({"op": "start"})
        assert (await world.until("running"))["accepted"] == second

    play(tmp_path, story)


def test_docker_away_for_a_while_is_waited_for(tmp_path: Path):
    async def story(world: World) -> None:
        await world.accept(world.want(4))
        await world.until("running")
        world.dockers[1].answers = False
        await asyncio.sleep(0.5)
        assert world.keeper.status()["phase"] == "running"
        world.dockers[1].end(0)
        world.dockers[1].answers = True
        await world.until("stopping")
        await world.until("running")

    play(tmp_path, story)


def test_a_pair_whose_head_has_no_docker_is_asked_itself(tmp_path: Path):
    """A head whose Docker hangs may serve: its API is looked at, and what is known of the engine is kept."""

    async def story(world: World) -> None:
        await world.accept(world.want(4))
        await world.until("running")
        asked = world.keeper.status()["asked"]
        world.dockers[0].answers = False
        while world.keeper.status()["ranks"]["0"]["state"] != "unknown":
            await asyncio.sleep(0.01)
        before, end = world.keeper.memory.moved, agent.boottime() + 5
        world.engine.busy = 1
        while world.keeper.memory.moved <= before + 0.2:
            assert agent.boottime() < end, "its tokens move, and that is not seen"
            world.engine.tokens += 1
            await asyncio.sleep(0.02)
        assert asked["requests"] == 1
        assert world.keeper.status()["asked"] == asked

    play(tmp_path, story)


STATES = ['{"memory": {"pha', "", "[]", "{}", None, b"\xff\xfe", '{"epoch": null}']


@pytest.mark.parametrize("damage", STATES)
def test_a_lost_state_restarts_nothing_that_runs(tmp_path: Path, damage: str | bytes | None):
    async def story(world: World) -> None:
        engine = world.want(4)
        await world.accept(engine)
        await world.until("running")
        await world.keeper_down()
        spoil(tmp_path / "state/keeper/state.json", damage)
        await world.keeper_up()
        await asyncio.sleep(0.5)
        status = world.keeper.status()
        assert (status["phase"], status["accepted"]) == ("running", engine)
        assert [docker.started for docker in world.dockers] == [1, 1]
        world.dockers[0].end(0)
        await world.until("stopping")
        await world.until("running")

    play(tmp_path, story)


@pytest.mark.parametrize("damage", ["{", None])
def test_a_stop_outlives_the_state(tmp_path: Path, damage: str | None):
    async def story(world: World) -> None:
        await world.accept(world.want(4))
        await world.until("running")
        await world.keeper.request({"op": "stop"})
        await world.until("stopped")
        await world.keeper_down()
        spoil(tmp_path / "state/keeper/state.json", damage)
        await world.keeper_up()
        await world.until("stopped")
        await asyncio.sleep(0.3)
        assert [docker.started for docker in world.dockers] == [1, 1]
        await world.keeper.request({"op": "start"})
        await world.until("running")
        assert not world.store.stopped

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("epoch", None), ("counters", None), ("counters", {"starts": "x"}), ("last_failure", "x"),
        ("memory.accepted", 5), ("memory.accepted", "../../../x"), ("memory.asked", []), ("memory.since", "x"),
        ("memory.desired", "perhaps"), ("memory.phase", "dancing"),
    ],
)  # fmt: skip
def test_a_state_of_wrong_types_is_no_state(tmp_path: Path, part: str, value: object):
    async def story(world: World) -> None:
        engine = world.want(4)
        await world.accept(engine)
        await world.until("running")
        await world.keeper_down()
        path = tmp_path / "state/keeper/state.json"
        state = json.loads(path.read_text())
        *above, name = part.split(".")
        (state[above[0]] if above else state)[name] = value
        path.write_text(json.dumps(state))
        await world.keeper_up()
        await asyncio.sleep(0.2)
        assert (world.keeper.status()["phase"], world.keeper.status()["accepted"]) == ("running", engine)

    play(tmp_path, story)


def spoil(path: Path, damage: str | bytes | None) -> None:
    if damage is None:
        path.unlink()
    elif isinstance(damage, bytes):
        path.write_bytes(damage)
    else:
        path.write_text(damage)


def test_endless_streams_see_no_canary(tmp_path: Path):
    async def story(world: World) -> None:
        await world.accept(world.want(4))
        await world.until("running")
        world.engine.busy = 4
        for _ in range(40):
            world.engine.tokens += 7
            await asyncio.sleep(0.05)
        status = world.keeper.status()
        assert (status["phase"], status["counters"]["canaries"]) == ("running", 0)
        assert world.engine.completions == 1, "the gate after the start"

    play(tmp_path, story, canary_interval_seconds=0.5, stuck_seconds=0.5)


def test_an_older_epoch_is_refused_and_a_keeper_that_lost_its_state_goes_above_it(tmp_path: Path):
    async def story(world: World) -> None:
        await world.accept(world.want(4))
        await world.until("running")
        await world.keeper_down()
        (world.place(1).state).write_text('{"epoch": 41}')
        world.agents[1].cancel()
        await asyncio.gather(world.agents[1], return_exceptions=True)
        world.agents[1] = asyncio.create_task(world._agent(1))
        await world.keeper_up()
        end = agent.boottime() + 5
        while world.keeper.status()["epoch"] != 42:
            assert agent.boottime() < end
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
        assert world.keeper.status()["phase"] == "running"
        assert [docker.started for docker in world.dockers] == [1, 1]

    play(tmp_path, story)


@pytest.mark.report("SSH-01")
def test_logs_of_both_ranks(tmp_path: Path):
    async def story(world: World) -> None:
        await world.accept(world.want(4))
        await world.until("running")
        answer = await world.keeper.request({"op": "logs", "lines": 5})
        assert answer == {"ok": True, "logs": {"0": ["last words of c1"], "1": ["last words of c1"]}}

    play(tmp_path, story)


def test_what_is_left_in_the_cgroup_is_not_absent(tmp_path: Path):
    async def story(world: World) -> None:
        await world.accept(world.want(4))
        await world.until("running")
        left = world.place(1).cgroups[0] / "docker-x.scope"
        left.mkdir(parents=True)
        (left / "cgroup.procs").write_text("4242\n")
        kill = world.place(1).cgroups[0] / "cgroup.kill"
        world.dockers[1].all.clear()
        await world.until("stopping")
        end = agent.boottime() + 5
        while not kill.exists():
            assert agent.boottime() < end, "the whole cgroup is ended, not only what Docker knows of"
            await asyncio.sleep(0.02)
        (left / "cgroup.procs").write_text("")
        await world.until("running")

    play(tmp_path, story)


def test_an_agent_starts_only_what_was_wanted_on_its_node(tmp_path: Path):
    async def story(world: World) -> None:
        await world.accept(world.want(4))
        await world.until("running")
        await world.keeper.request({"op": "stop"})
        await world.until("stopped")
        await world.keeper_down()
        way = link.AgentLink(1, "worker", (), agent.boottime, socket=world.place(1).socket)
        own = worlds.rank_text(1).replace("registry/engine", "registry/evil")
        while not way.epoch:
            try:
                await way.call("start", epoch=9, engine="e" * 64, text=own, ports=[])
            except link.Away:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)
        rank = (await way.call("poll", epoch=9))["rank"]
        await way.close()
        await world.keeper_up()
        assert (rank["state"], rank["error"]) == (
            "failed",
            "could not start: this launch was never wanted here; run deploy.py, which installs what may be started",
        )
        assert world.dockers[1].started == 1

    play(tmp_path, story)


def test_newer_settings_do_not_judge_the_launch_that_runs(tmp_path: Path):
    """A deploy that was killed between the new keeper and the hand-over: other port, other canary, old engine."""

    async def story(world: World) -> None:
        first = world.want(4)
        await world.accept(first)
        await world.until("running")
        await world.keeper_down()
        world.want(8)
        world.settings = worlds.settings(1, canary_interval_seconds=0.2, canary=dict(worlds.CANARY, expect="42"))
        await world.keeper_up()
        await asyncio.sleep(1.0)
        assert world.keeper.status()["phase"] == "running"
        assert world.keeper.status()["counters"]["failures"] == 0
        world.want(4)
        await world.keeper_down()
        world.settings = worlds.settings(world.engine.port, canary=dict(worlds.CANARY, expect="391"))
        await world.keeper_up()
        assert world.store.service(first) == world.settings.text, "the wanted launch has the wanted settings"

    play(tmp_path, story)


def test_a_full_disk_keeps_no_rank_alive_and_no_keeper_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    async def story(world: World) -> None:
        await world.accept(world.want(4))
        await world.until("running")
        monkeypatch.setattr(world.store, "save", full)
        monkeypatch.setattr(world.store, "record", full)
        monkeypatch.setattr(world.store, "promote", full)
        monkeypatch.setattr(agent, "_docker_logs", full)
        world.dockers[1].end(0)
        await world.until("stopping")
        await world.until("running")
        monkeypatch.undo()
        end = agent.boottime() + 5
        while world.store.load()["counters"]["starts"] != 2:
            assert agent.boottime() < end, "written as soon as it can be"
            await asyncio.sleep(0.02)

    play(tmp_path, story)


def test_a_docker_that_is_slow_is_no_dead_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def story(world: World) -> None:
        await world.accept(world.want(4))
        await world.until("running")
        world.dockers[1].slow = 0.6
        await asyncio.sleep(2.5)
        status = world.keeper.status()
        assert (status["phase"], status["counters"]["failures"]) == ("running", 0)
        world.dockers[1].slow = 0.0
        assert [docker.started for docker in world.dockers] == [1, 1]

    monkeypatch.setattr(agent, "DOCKER_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(link, "POLL_SECONDS", 0.4)
    play(tmp_path, story, lease_seconds=1)


@pytest.mark.parametrize("wanted", [4, 8])
def test_a_generation_damaged_on_the_head_runs_on_and_is_mended_or_not_started(tmp_path: Path, wanted: int):
    """The nodes' wanted sets make it whole where they still are that launch."""

    async def story(world: World) -> None:
        engine = world.want(4)
        await world.accept(engine)
        await world.until("running")
        world.want(wanted)
        await world.keeper_down()
        (tmp_path / "state/generations" / engine / "rank1.json").unlink()
        (tmp_path / "state/generations" / engine / "manifest.json").unlink()
        await world.keeper_up()
        await asyncio.sleep(0.3)
        assert world.keeper.status()["phase"] == "running"
        world.dockers[0].end(0)
        await world.until("stopping")
        if wanted == 4:
            status = await world.until("running")
            assert world.store.generation(engine).texts == tuple(worlds.rank_text(rank, 4) for rank in (0, 1))
            return
        status = await world.until("resting")
        assert status["reason"] == f"generation {engine[:12]} is damaged on this head; run deploy.py again"
        assert await world.accept(world.want(4)) == {"ok": True}
        await world.until("running")

    play(tmp_path, story)


def test_a_damaged_generation_that_cannot_be_written_lets_it_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    async def story(world: World) -> None:
        engine = world.want(4)
        await world.accept(engine)
        await world.until("running")
        await world.keeper_down()
        (tmp_path / "state/generations" / engine / "manifest.json").unlink()
        await world.keeper_up()
        with monkeypatch.context() as disk:
            disk.setattr(world.store, "snapshot", full)
            world.dockers[0].end(0)
            status = await world.until("resting")
        assert status["reason"] == (
            f"generation {engine[:12]} is damaged on this head and cannot be written: No space left on device; "
            "see to the disk (df -h), then sparkpair start"
        )
        assert (await world.keeper.request({"op": "start"}))["ok"]
        await world.until("running")

    play(tmp_path, story)


def test_last_lines_are_bounded_as_they_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / "docker"
    program.write_text(
        "#!/bin/sh\nhead -c 3000000 /dev/zero | tr '\\0' x; printf '\\nbefore\\n'\nprintf '\\033%.0s' 1 2\necho last\n"
    )
    program.chmod(0o755)
    monkeypatch.undo()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    lines = agent._docker_logs("c1", 400)
    assert lines[1:] == ["before", "\x1b\x1blast"]
    assert lines[0].endswith("bytes before this are left out)")
    monkeypatch.setattr(agent, "LOG_BYTES_ASKED", 20)
    assert agent._docker_logs("c1", 400) == ["\x1b\x1blast"]


def test_a_lease_renewed_while_docker_was_slow_ends_nothing(tmp_path: Path):
    async def story(world: World) -> None:
        await world.accept(world.want(4))
        await world.until("running")
        await world.keeper_down()
        world.dockers[1].slow = 0.5
        await asyncio.sleep(1.1)  # the lease is over, and the watcher asks a slow Docker
        own = link.AgentLink(1, "worker", (), agent.boottime, socket=world.place(1).socket)
        end = agent.boottime() + 3
        while True:
            try:
                await own.call("poll", epoch=1, lease_seconds=30)
                break
            except link.Away:
                assert agent.boottime() < end
                await asyncio.sleep(0.02)
        world.dockers[1].slow = 0.0
        await asyncio.sleep(0.8)
        running = len(world.dockers[1].running)
        await own.close()
        await world.keeper_up()
        assert running == 1

    play(tmp_path, story, lease_seconds=1)


KEY, OTHER_KEY = "key-of-the-engine-1", "key-of-the-engine-2"


def kept_texts(root: Path) -> str:
    """All that keeper and agents have written, but for the key's own file."""
    files = [path for path in root.rglob("*") if path.is_file() and path.parent.name != "secrets"]
    return "\n".join(path.read_text() for path in files)


def test_a_key_reaches_the_engine_and_nothing_else(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    async def story(world: World) -> None:
        engine = world.want(4)
        assert await world.accept(engine) == {"ok": True}
        await world.until("running")
        assert world.engine.completions == 1
        head, worker = world.dockers
        assert head.argv[head.argv.index("VLLM_API_KEY") - 1] == "-e"
        assert (head.variables, worker.variables) == ({"VLLM_API_KEY": KEY}, {})
        assert not any("VLLM_API_KEY" in word for word in worker.argv)
        assert KEY not in " ".join(head.argv)
        assert KEY not in kept_texts(tmp_path)
        await world.keeper_down()
        await world.keeper_up()
        await asyncio.sleep(0.3)
        assert world.keeper.status()["accepted"] == engine, "the generation is whole, its key's identity included"
        assert [docker.started for docker in world.dockers] == [1, 1]

    play(tmp_path, story, KEY)
    assert KEY not in "".join(capfd.readouterr())


def test_a_new_key_is_another_generation_and_no_fault_until_it_is_deployed(tmp_path: Path):
    async def story(world: World) -> None:
        first = world.want(4)
        await world.accept(first)
        await world.until("running")
        world.write_key(OTHER_KEY)
        answer = await world.accept("e" * 64)
        second = world.want(4)
        assert first != second
        assert f"the nodes' wanted set is {second[:12]}" in answer["error"]
        end = agent.boottime() + 5
        while world.keeper.status()["counters"]["canaries"] < 4:
            assert agent.boottime() < end
            await asyncio.sleep(0.02)
        assert [docker.started for docker in world.dockers] == [1, 1]
        assert await world.accept(second) == {"ok": True}
        await world.until("running")
        assert world.dockers[0].variables == {"VLLM_API_KEY": OTHER_KEY}
        assert [docker.started for docker in world.dockers] == [2, 2]

    play(tmp_path, story, KEY, canary_interval_seconds=0.1)


@pytest.mark.parametrize("text", [None, "short\n", OTHER_KEY + "\n"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_pair_serves_on_whatever_becomes_of_the_keys_file(tmp_path: Path, text: str | None, restarted: bool):
    """Removing it is how an operator asks for a new one, and a deploy restarts the keeper before it hands over."""

    async def story(world: World) -> None:
        await world.accept(world.want(4))
        await world.until("running")
        place = world.place(0).secrets / "api-key"
        if text is None:
            place.unlink()
        else:
            place.write_text(text)
        if restarted:
            await world.keeper_down()
            await world.keeper_up()
        end = agent.boottime() + 5
        before = world.keeper.status()["counters"]["canaries"]
        while world.keeper.status()["counters"]["canaries"] < before + 4:
            assert agent.boottime() < end
            await asyncio.sleep(0.02)
        status = world.keeper.status()
        assert (status["phase"], status["counters"]["failures"]) == ("running", 0)
        assert [docker.started for docker in world.dockers] == [1, 1]
        assert (world.engine.completions > 3) is not restarted, "asked with the key of its start while that is known"

    play(tmp_path, story, KEY, canary_interval_seconds=0.1)


def test_an_engine_with_another_key_is_not_promoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = agent._run

    async def with_another(argv: list[str], timeout: float, variables: dict[str, str]) -> tuple[int, str]:
        done = await run(argv, timeout, variables)
        CURRENT[0].engine.key = OTHER_KEY
        return done

    async def story(world: World) -> None:
        await world.accept(world.want(4))
        status = await world.until("resting")
        assert status["last_failure"]["reason"] == (
            f"gate canary: the engine asks for another key than {world.place(0).secrets}/api-key holds (HTTP 401)"
        )
        assert KEY not in json.dumps(status)

    monkeypatch.setattr(agent, "_run", with_another)
    play(tmp_path, story, KEY)


@pytest.mark.parametrize(
    ("text", "why"),
    [(None, "is missing; deploy.py makes one"), ("short\n", "has fewer than 16 characters")],
)
def test_a_rank_without_a_usable_key_is_not_started(tmp_path: Path, text: str | None, why: str):
    async def story(world: World) -> None:
        engine = world.want(4)
        await world.accept(engine)
        await world.until("running")
        place = world.place(0).secrets / "api-key"
        if text is None:
            place.unlink()
        else:
            place.write_text(text)
        refused = await world.accept(world.want(8))
        assert f"{place} {why}" in refused["error"]
        assert world.keeper.status()["phase"] == "running", "refused before anything is stopped"
        world.dockers[1].end(1)
        status = await world.until("resting")
        assert f"rank 0: could not start: {place} {why}" in status["reason"]
        assert world.dockers[0].started == 1

    play(tmp_path, story, KEY)
