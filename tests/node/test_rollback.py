"""A launch that does not pass its gates, or cannot start: back to the last good one, and remembered."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from node import agent, health, keeper, wire
from tests.node.test_pair import docker_run_in_memory, play
from tests.node.world import World

__all__ = ["docker_run_in_memory"]


async def good_then(world: World, knob: int) -> tuple[str, str]:
    """One launch runs and is good; another is accepted."""
    good = world.want(4)
    await world.accept(good)
    await world.until("running")
    bad = world.want(knob)
    assert (await world.accept(bad))["ok"]
    return good, bad


def full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


async def back_to(world: World, good: str) -> dict[str, object]:
    while world.keeper.status()["accepted"] != good:
        await asyncio.sleep(0.01)
    return await world.until("running")


def test_a_launch_whose_gates_fail_is_rejected_and_the_last_good_one_serves(tmp_path: Path):
    async def story(world: World) -> None:
        good, bad = await good_then(world, 8)
        world.engine.answer = "no"
        while world.keeper.status()["rejected"] == {}:
            await asyncio.sleep(0.01)
        world.engine.answer = "391"
        status = await back_to(world, good)
        reason = status["rejected"][bad]["reason"]  # type: ignore[index]
        assert "wanted '391'" in reason
        assert status["last_good"] == good
        rollback = status["rollback"]
        assert (rollback["from"], rollback["to"]) == (bad, good)  # type: ignore[index]
        assert set(rollback["logs"]) == {"0", "1"}  # type: ignore[index]
        assert [entry["rejected"] is not None for entry in status["generations"]].count(True) == 1  # type: ignore[attr-defined]
        published = json.loads((tmp_path / "status.json").read_text())
        assert "logs" not in published["rollback"], "what users wrote is for root"
        answer = await world.accept(bad)
        assert not answer["ok"] and f"retry_rejected={bad}" in answer["error"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.store, "snapshot", full)
            again = await world.keeper.request({"op": "accept", "engine": bad, "again": True})
        assert "No space left" in again["error"] and bad in world.keeper.status()["rejected"]
        again = await world.keeper.request({"op": "accept", "engine": bad, "again": True})
        assert again == {"ok": True}
        status = await world.until("running")
        assert (status["accepted"], status["rejected"], status["last_good"]) == (bad, {}, bad)

    play(tmp_path, story)


def test_two_starts_of_a_new_launch_that_cannot_start_are_enough(tmp_path: Path):
    async def story(world: World) -> None:
        good = world.want(4)
        await world.accept(good)
        await world.until("running")
        world.dockers[1].refuses_knob = "8"
        bad = world.want(8)
        await world.accept(bad)
        status = await back_to(world, good)
        assert "docker run exited 125" in status["rejected"][bad]["reason"]  # type: ignore[index]
        assert world.keeper.status()["counters"]["failures"] == 2

    play(tmp_path, story)


def test_what_a_former_start_said_tells_nothing_of_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The head's rank is begun second: where rank 1 cannot start, the head's last lines are of an earlier launch."""
    words = "vllm: error: unrecognized arguments: --no-such-flag 1"

    async def story(world: World) -> None:
        good, bad = await good_then(world, 8)
        monkeypatch.setattr(agent, "_docker_logs", lambda container, lines, times=False: [words])
        world.engine.answer = "no"
        while bad not in world.keeper.status()["rejected"]:
            await asyncio.sleep(0.01)
        world.engine.answer = "391"
        await back_to(world, good)
        assert words in world.keeper.status()["rejected"][bad]["reason"]  # at the first failure: it is certain
        monkeypatch.setattr(agent, "_docker_logs", lambda container, lines, times=False: ["nothing of note"])
        world.dockers[1].refuses_run = "a moment's trouble"
        other = world.want(6)
        await world.accept(other)
        while world.keeper.status()["last_failure"]["engine"] != other:
            await asyncio.sleep(0.01)
        failure = world.keeper.status()["last_failure"]
        assert words not in json.dumps(failure)
        assert failure["logs"] == {
            "0": ["(no line of this start)"],
            "1": ["could not start: docker run exited 125: a moment's trouble"],
        }
        world.dockers[1].refuses_run = ""
        status = await world.until("running")
        assert (status["accepted"], other in status["rejected"]) == (other, False)

    play(tmp_path, story)


def test_a_power_cut_between_rejection_and_return_ends_with_the_good_one(tmp_path: Path):
    async def story(world: World) -> None:
        good, bad = await good_then(world, 8)
        await world.until("running")
        await world.keeper_down()
        state = world.store.load()
        world.store._link("last-good", good)  # as before the promotion
        world.store.reject(bad, "test")
        world.store.save(state)
        for docker in world.dockers:
            docker.all.clear()
        await world.keeper_up(boot_id="another")
        status = await back_to(world, good)
        assert set(status["rejected"]) == {bad}  # type: ignore[call-overload]

    play(tmp_path, story)


@pytest.mark.parametrize("lost", ["image", "weights"])
def test_without_a_way_back_it_rests_and_says_why(tmp_path: Path, lost: str):
    async def story(world: World) -> None:
        good = world.want(4)
        await world.accept(good)
        await world.until("running")
        bad = world.want(8)
        await world.accept(bad)
        world.engine.answer = "no"
        if lost == "image":
            world.dockers[1].images.clear()
        else:
            manifest = next(world.place(1).weights.glob("*.json"))
            manifest.write_text(json.dumps({"identity": "x" * 64}))
        status = await world.until("resting")
        told = {"image": "is not here any more", "weights": "its weights or drafter are other ones by now"}[lost]
        assert f"launch {bad[:12]} failed: " in status["reason"] and told in status["reason"]
        assert status["rejected"] == {} and status["last_good"] == good

    play(tmp_path, story)


def test_at_a_persons_word_it_goes_back_and_the_former_is_remembered(tmp_path: Path):
    async def story(world: World) -> None:
        good, better = await good_then(world, 8)
        await world.until("running")
        refused = await world.keeper.request({"op": "rollback", "engine": "f" * 12})
        assert not refused["ok"] and good[:12] in refused["error"]
        answer = await world.keeper.request({"op": "rollback"})
        assert answer["engine"] == good
        status = await back_to(world, good)
        assert status["rejected"][better]["reason"] == "taken back by the operator"  # type: ignore[index]
        assert status["last_good"] == good

    play(tmp_path, story)


def test_nothing_goes_back_by_itself_to_what_a_person_took_back(tmp_path: Path):
    async def story(world: World) -> None:
        older, newer = await good_then(world, 8)
        await world.until("running")
        world.dockers[1].refuses_knob = "4"
        assert (await world.keeper.request({"op": "rollback"}))["engine"] == older
        status = await world.until("resting")
        assert (status["accepted"], status["last_good"]) == (older, newer)
        assert set(status["rejected"]) == {newer}

    play(tmp_path, story)


def test_a_first_launch_that_fails_is_not_rejected(tmp_path: Path):
    async def story(world: World) -> None:
        world.engine.answer = "no"
        await world.accept(world.want(4))
        status = await world.until("resting")
        assert status["rejected"] == {} and "4 failures" in status["reason"]

    play(tmp_path, story)


def test_memory_that_does_not_come_back_lets_it_rest_and_a_person_insists(tmp_path: Path):
    async def story(world: World) -> None:
        await world.accept(world.want(4))
        await world.until("running")
        world.write_memory(1, 80)
        world.dockers[0].end(137)
        status = await world.until("resting")
        assert "rank 1: 80.0 GiB of memory available after its end, 110.0 before" in status["reason"]
        await world.keeper.request({"op": "start"})
        await world.until("running")
        world.dockers[0].end(137)
        await world.until("stopping")
        await world.until("running")

    play(tmp_path, story, memory_wait_seconds=0.2)


def test_a_node_that_runs_out_of_memory_ends_its_rank_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def story(world: World) -> None:
        await world.accept(world.want(4))
        await world.until("running")
        (world.place(1).cgroups[0]).mkdir()
        (world.place(1).cgroups[0] / "cgroup.procs").write_text("999999999\n")
        world.write_memory(1, 0.1)
        status = await world.until("stopping", 8)
        assert "rank 1: 102 MiB of memory were left on the node" in status["last_failure"]["reason"]

    play(tmp_path, story, memory_emergency_mib=512)


def test_a_gpu_that_fell_off_the_bus_lets_it_rest(tmp_path: Path):
    async def story(world: World) -> None:
        await world.accept(world.want(4))
        await world.until("running")
        now = int(agent.boottime() * 1e6)
        world.place(1).kmsg.write_text(f"3,1,{now},-;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n")
        world.dockers[1].end(1)
        status = await world.until("resting")
        assert "rank 1: the GPU has fallen off the bus (Xid 79 at " in status["reason"]
        assert "pull its plug" in status["reason"]

    play(tmp_path, story)


def test_a_pair_that_has_served_since_an_xid_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def story(world: World) -> None:
        await world.accept(world.want(4))
        await world.until("running")
        now = int(agent.boottime() * 1e6)
        world.place(1).kmsg.write_text(f"3,1,{now},-;NVRM: Xid (PCI:0000:01:00): 119, Timeout after 6s of waiting.\n")
        while not world.keeper.status()["ranks"]["1"].get("xids"):
            await asyncio.sleep(0.01)
        before, world.engine.busy = world.keeper.memory.moved, 1
        while world.keeper.memory.moved <= before + 0.1:
            world.engine.tokens += 1
            await asyncio.sleep(0.02)
        world.dockers[1].end(1)
        await world.until("stopping")
        await world.until("running")
        assert world.keeper.status()["counters"]["failures"] == 1

    monkeypatch.setattr(keeper, "XID_SECONDS", 0.0)
    play(tmp_path, story)


def test_a_rejection_that_could_not_be_written_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def story(world: World) -> None:
        good, bad = await good_then(world, 8)
        with monkeypatch.context() as disk:
            disk.setattr(world.store, "reject", full)
            world.engine.answer = "no"
            while world.keeper.status()["accepted"] != good:
                await asyncio.sleep(0.01)
            world.engine.answer = "391"
            await world.until("running")
            assert world.store.rejected() == {}
        while bad not in world.store.rejected():
            await asyncio.sleep(0.01)
        assert world.store.load()["memory"]["accepted"] == good

    play(tmp_path, story)


def test_floors_and_slow_clocks_are_kept_and_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def clamped() -> str:
        return "slow: 702 MHz at 96 %"

    async def story(world: World) -> None:
        engine = world.want(4)
        await world.accept(engine)
        await world.until("running")
        cgroup = world.place(1).cgroups[0]
        cgroup.mkdir()
        (cgroup / "cgroup.procs").write_text("999999999\n")
        world.place(1).recorded.write_text(json.dumps({"engine": engine, "floor": 7}))
        world.write_memory(1, 0.9)
        history = tmp_path / "state/history.jsonl"
        while '"clocks"' not in history.read_text() or '"memory"' not in history.read_text():
            await asyncio.sleep(0.02)
        world.dockers[0].end(1)
        await world.until("stopping")
        assert world.store.noted(engine, "memory") == {"floor": {"1": 7}}
        events = [json.loads(line)["event"] for line in history.read_text().splitlines()]
        assert (events.count("clocks"), events.count("memory")) == (1, 1)

    monkeypatch.setattr(health, "clocks", clamped)
    play(tmp_path, story, memory_warning_mib=1024)


def test_a_rank_of_an_earlier_release_is_told_to_the_recorder(tmp_path: Path):
    async def story(world: World) -> None:
        engine = world.want(4)
        await world.accept(engine)
        await world.until("running")
        told = world.place(1).rank
        told.unlink()
        world.agents[1].cancel()
        await asyncio.gather(world.agents[1], return_exceptions=True)
        world.agents[1] = asyncio.create_task(world._agent(1))
        async with asyncio.timeout(5):
            while not told.exists():
                await asyncio.sleep(0.02)
        assert json.loads(told.read_text())["engine"] == engine

    play(tmp_path, story)


def test_rejections_survive_and_a_damaged_list_is_none(tmp_path: Path):
    from node.store import REJECTED_KEPT, Store

    store = Store(tmp_path)
    for number in range(REJECTED_KEPT + 3):
        store.reject(f"{number:064x}", "why")
    assert len(Store(tmp_path).rejected()) == REJECTED_KEPT
    assert f"{0:064x}" not in store.rejected()
    wire.write_atomic(tmp_path / "keeper/rejected.json", "{")
    assert Store(tmp_path).rejected() == {}
