"""The keeper's judgement, one look at a time."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node import decide
from node.decide import (
    Canary,
    Failed,
    Gating,
    Memory,
    Node,
    Phase,
    Promote,
    Rank,
    Ready,
    Reject,
    Rules,
    RunGates,
    SendCanary,
    StartRank,
    StopRank,
    Verdict,
    View,
    Work,
)

RULES = Rules(
    start_order=(1, 0),
    lease_seconds=60,
    ready_timeout_seconds=1800,
    canary_interval_seconds=60,
    stuck_seconds=120,
    backoff_seconds=10,
    backoff_max_seconds=300,
    restart_budget=5,
    restart_window_seconds=3600,
)
ENGINE = "a" * 64
ABSENT = Node(Rank("absent", incarnation="i"))
UP = Node(Rank("running", engine=ENGINE, incarnation="i"), rail_up=True)
EXITED = Node(Rank("exited", engine=ENGINE, exit_code=0, incarnation="i"))
AWAY = Node(None, silent_seconds=5)


def view(now: float, head: Node, worker: Node, **more: object) -> View:
    return View(now=now, nodes=(head, worker), **more)  # type: ignore[arg-type]


def running(now: float = 1000.0, **more: object) -> Memory:
    values: dict[str, object] = {
        "accepted": ENGINE,
        "phase": Phase.RUNNING,
        "since": 0.0,
        "moved": now,
        "answered": now,
        "mark": (1.0,),
        **more,
    }
    return Memory(**values)  # type: ignore[arg-type]


def starting(since: float = 0.0, **more: object) -> Memory:
    return Memory(accepted=ENGINE, phase=Phase.STARTING, since=since, due="test", **more)  # type: ignore[arg-type]


def test_nothing_accepted_means_no_start():
    memory, actions = decide.decide(RULES, Memory(), view(1, ABSENT, ABSENT))
    assert (memory.phase, actions) == (Phase.EMPTY, [])


def test_a_start_goes_worker_head_canary_promotion():
    memory = decide.request_start(Memory(), 10, "first start", accepted=ENGINE)
    assert memory.phase is Phase.STOPPING
    memory, actions = decide.decide(RULES, memory, view(10, ABSENT, ABSENT))
    assert (memory.phase, actions) == (Phase.STARTING, [])
    memory, actions = decide.decide(RULES, memory, view(11, ABSENT, ABSENT))
    assert actions == [StartRank(1)]
    begun = Node(Rank("starting", incarnation="i"))
    memory, actions = decide.decide(RULES, memory, view(12, ABSENT, begun))
    assert actions == []
    memory, actions = decide.decide(RULES, memory, view(13, ABSENT, UP))
    assert actions == [StartRank(0)]
    memory, actions = decide.decide(RULES, memory, view(14, UP, UP, healthy=None))
    assert (memory.phase, actions) == (Phase.STARTING, [])
    memory, actions = decide.decide(RULES, memory, view(50, UP, UP, healthy=True))
    assert (memory.phase, [type(action) for action in actions]) == (Phase.GATING, [RunGates])
    memory, actions = decide.decide(RULES, memory, view(51, UP, UP, healthy=True, gates=Gating("pending")))
    assert (memory.phase, actions) == (Phase.GATING, [])
    memory, actions = decide.decide(RULES, memory, view(72, UP, UP, healthy=True, gates=Gating("passed")))
    assert (memory.phase, actions) == (Phase.RUNNING, [Promote(), Ready(40)])


def test_no_promotion_without_the_gates():
    memory = dataclasses.replace(starting(), phase=Phase.GATING, canary_sent=5.0)
    memory, actions = decide.decide(RULES, memory, view(9, UP, UP, healthy=True, gates=Gating("failed", "HTTP 500")))
    assert actions == [Failed("HTTP 500")]
    assert memory.phase is Phase.STOPPING


def test_a_message_lost_on_the_way_is_sent_again():
    memory, first = decide.decide(RULES, starting(), view(1, ABSENT, ABSENT))
    _, second = decide.decide(RULES, memory, view(2, ABSENT, ABSENT))
    assert first == second == [StartRank(1)]


def test_a_container_that_vanishes_while_starting_is_a_failure():
    memory, _ = decide.decide(RULES, starting(), view(1, ABSENT, UP))
    memory, actions = decide.decide(RULES, memory, view(2, ABSENT, ABSENT))
    assert actions == [Failed("rank 1: the container is gone")]


def test_an_agent_restarted_while_starting_is_asked_again():
    memory, _ = decide.decide(RULES, starting(), view(1, ABSENT, Node(Rank("starting", incarnation="old"))))
    memory, actions = decide.decide(RULES, memory, view(2, ABSENT, Node(Rank("absent", incarnation="new"))))
    assert actions == [StartRank(1)]


def test_a_start_waits_for_every_node_and_keeps_no_deadline_meanwhile():
    memory = decide.request_start(Memory(), 0, "test", accepted=ENGINE)
    memory, actions = decide.decide(RULES, memory, view(5, ABSENT, AWAY))
    assert (memory.phase, actions) == (Phase.WAITING, [])
    assert memory.reason == "rank 1 out of reach; test"
    memory, _ = decide.decide(RULES, memory, view(90000, ABSENT, Node(None, 90000)))
    assert memory.phase is Phase.WAITING
    memory, _ = decide.decide(RULES, memory, view(90001, ABSENT, ABSENT))
    assert memory.phase is Phase.STARTING


def test_a_start_waits_for_the_cable():
    memory = decide.request_start(Memory(), 0, "test", accepted=ENGINE)
    memory, actions = decide.decide(RULES, memory, view(1, Node(ABSENT.rank, rail_up=False), ABSENT))
    assert (memory.phase, actions) == (Phase.WAITING, [])
    assert memory.reason == "the rail of rank 0 has no carrier; test"


@pytest.mark.parametrize("code", [0, 137, 1])
@pytest.mark.report("HW-07")
def test_any_exit_code_of_any_rank_restarts_the_pair(code: int):
    gone = Node(Rank("exited", engine=ENGINE, exit_code=code))
    for nodes in ((UP, gone), (gone, UP)):
        memory, actions = decide.decide(RULES, running(), view(1000, *nodes))
        assert (memory.phase, memory.not_before) == (Phase.STOPPING, 1000)
        assert actions == [Failed(f"rank {nodes.index(gone)}: the container exited with code {code}")]
        memory, actions = decide.decide(RULES, memory, view(1000.2, *nodes))
        assert actions == [StopRank(0, gentle=False), StopRank(1, gentle=False)]


def test_a_rank_that_exits_while_starting_fails_the_attempt():
    _, actions = decide.decide(RULES, starting(), view(30, EXITED, UP))
    assert actions == [Failed("rank 0: the container exited with code 0")]


def test_not_ready_in_time():
    _, actions = decide.decide(RULES, starting(since=0), view(1801, UP, UP))
    assert actions == [Failed("not ready within 1800 s")]


def test_a_silent_node_is_waited_for_until_its_lease_has_run_out():
    memory, actions = decide.decide(RULES, running(), view(1000, UP, Node(None, 59)))
    assert (memory.phase, actions) == (Phase.RUNNING, [])
    memory, actions = decide.decide(RULES, memory, view(1002, UP, Node(None, 61)))
    assert actions == [Failed("rank 1: no word for 61 s, so its lease has run out")]


def test_docker_that_does_not_answer_is_unknown_and_unknown_is_not_dead():
    memory, actions = decide.decide(RULES, running(), view(1000, UP, Node(Rank("unknown"))))
    assert (memory.phase, actions) == (Phase.RUNNING, [])


def test_progress_means_no_canary_however_long():
    memory = running(now=0)
    for second in range(0, 1200, 2):
        memory, actions = decide.decide(
            RULES, memory, view(second, UP, UP, healthy=True, progress=(float(second),), busy=4)
        )
        assert actions == []
    assert memory.phase is Phase.RUNNING


def test_kv_use_that_grows_is_progress_too():
    memory = running(now=0, mark=(5.0, 7.0, 0.1))
    for step in range(100):  # a prefill that lasts longer than every probe deadline: only KV use moves
        look = view(step * 10.0, UP, UP, healthy=True, progress=(5.0, 7.0, 0.1 + step / 200), busy=1)
        memory, actions = decide.decide(RULES, memory, look)
        assert actions == []


@pytest.mark.report("HW-07")
def test_an_idle_pair_gets_a_canary_each_interval():
    memory = running(now=0)
    memory, actions = decide.decide(RULES, memory, view(59, UP, UP, healthy=True, progress=(1.0,), busy=0))
    assert actions == []
    memory, actions = decide.decide(RULES, memory, view(60, UP, UP, healthy=True, progress=(1.0,), busy=0))
    assert actions == [SendCanary("idle")]
    memory, actions = decide.decide(
        RULES, memory, view(61, UP, UP, healthy=True, progress=(2.0,), busy=0, canary=Canary("ok"))
    )
    assert (actions, memory.moved, memory.canary_sent) == ([], 61, None)


def test_requests_without_progress_get_a_canary_and_two_failed_ones_restart():
    memory = running(now=0)
    look = {"healthy": True, "progress": (1.0,), "busy": 3}
    memory, actions = decide.decide(RULES, memory, view(119, UP, UP, **look))
    assert actions == []
    memory, actions = decide.decide(RULES, memory, view(120, UP, UP, **look))
    assert actions == [SendCanary("3 requests, no progress")]
    lost = Canary("failed", "no answer within 60 s", answered=False)
    memory, actions = decide.decide(RULES, memory, view(180, UP, UP, **look, canary=lost))
    assert actions == [SendCanary("again, after: no answer within 60 s")]
    memory, actions = decide.decide(RULES, memory, view(240, UP, UP, **look, canary=lost))
    assert actions == [Failed("2 canaries failed, the last: no answer within 60 s")]


def test_a_canary_that_has_no_key_is_no_fault_of_an_idle_pair():
    """That somebody removed a file ends nothing; where requests stand still as well, no sign of life is left."""
    locked = Canary("locked", "api-key is missing")
    memory, actions = running(1000), []
    for second in range(1000, 1300):
        seen = view(second, UP, UP, healthy=True, progress=(1.0,), busy=0, canary=locked)
        memory, actions = decide.decide(RULES, memory, seen)
        assert (memory.phase, memory.strikes) == (Phase.RUNNING, 0)
        assert actions in ([], [SendCanary("idle")])
    sent = running(1000, canary_sent=1200.0)
    stuck = view(1201, UP, UP, healthy=True, progress=(1.0,), busy=2, canary=locked)
    memory, actions = decide.decide(RULES, sent, stuck)
    assert actions == [SendCanary("again, after: api-key is missing")]
    memory, actions = decide.decide(RULES, memory, stuck)
    assert actions == [Failed("2 canaries failed, the last: api-key is missing")]


def test_a_failed_canary_means_nothing_when_others_tokens_moved_meanwhile():
    memory = running(now=0)
    memory, _ = decide.decide(RULES, memory, view(60, UP, UP, healthy=True, progress=(1.0,), busy=0))
    memory, _ = decide.decide(
        RULES, memory, view(90, UP, UP, healthy=True, progress=(9.0,), busy=4, canary=Canary("pending"))
    )
    memory, actions = decide.decide(
        RULES, memory, view(120, UP, UP, healthy=True, progress=(9.0,), busy=4, canary=Canary("failed", "slow", False))
    )
    assert (memory.phase, actions, memory.strikes) == (Phase.RUNNING, [], 0)


def test_a_cut_rail_is_waited_for():
    cut = Node(UP.rank, rail_up=False)
    memory = running(now=0)
    for second in range(0, 900, 5):
        memory, actions = decide.decide(
            RULES, memory, view(second, UP, cut, healthy=True, progress=(1.0,), busy=2, canary=Canary("failed", "x"))
        )
        assert (memory.phase, actions) == (Phase.RUNNING, [])
    assert memory.reason == "the rail of rank 1 has no carrier; waiting for the cable"


def test_an_api_that_answers_nothing_and_moves_nothing():
    memory = running(now=0)
    memory, actions = decide.decide(RULES, memory, view(60, UP, UP))
    assert actions == []
    memory, actions = decide.decide(RULES, memory, view(61, UP, UP))
    assert actions == [Failed("the API has not answered for 61 s")]


def test_another_generation_running_is_not_the_pair():
    other = Node(Rank("running", engine="b" * 64))
    _, actions = decide.decide(RULES, running(), view(1000, UP, other))
    assert actions == [Failed("rank 1: runs another generation (bbbbbbbbbbbb)")]


def test_back_off_grows_and_the_budget_ends_in_rest():
    memory, delays = running(now=0), []
    for step in range(6):
        now = step * 100.0
        memory = dataclasses.replace(memory, phase=Phase.RUNNING, since=now)
        memory, _ = decide.decide(RULES, memory, view(now, EXITED, UP))
        delays.append(memory.not_before - now if memory.phase is Phase.STOPPING else None)
    assert delays == [0, 10, 20, 40, 80, None]
    assert memory.phase is Phase.RESTING
    assert memory.reason == "6 failures in 500 s, the last: rank 0: the container exited with code 0"
    memory, actions = decide.decide(RULES, memory, view(9e9, EXITED, UP))
    assert (memory.phase, actions) == (Phase.RESTING, [StopRank(0, False), StopRank(1, False)])


def test_a_stable_run_clears_the_failures():
    memory = running(now=0, failures=(1.0, 2.0))
    memory, _ = decide.decide(RULES, memory, view(599, UP, UP, healthy=True))
    assert memory.failures == (1.0, 2.0)
    memory, _ = decide.decide(RULES, memory, view(601, UP, UP, healthy=True))
    assert memory.failures == ()


def test_back_off_is_waited_out():
    memory = Memory(accepted=ENGINE, phase=Phase.STOPPING, not_before=50, due="it died")
    memory, actions = decide.decide(RULES, memory, view(49, ABSENT, ABSENT))
    assert (memory.phase, actions) == (Phase.BACKOFF, [])
    memory, actions = decide.decide(RULES, memory, view(50, ABSENT, ABSENT))
    assert memory.phase is Phase.STARTING


def test_a_stop_is_kept_over_boots_and_deploys():
    memory = decide.request_stop(running(), 1000)
    memory, actions = decide.decide(RULES, memory, view(1001, UP, UP))
    assert (memory.phase, actions) == (Phase.STOPPING, [StopRank(0, True)])
    ending = Node(Rank("stopping", engine=ENGINE))
    memory, actions = decide.decide(RULES, memory, view(1001.5, ending, UP))
    assert (memory.phase, actions) == (Phase.STOPPING, []), "requests end first"
    memory, actions = decide.decide(RULES, memory, view(1001.7, ABSENT, UP))
    assert (memory.phase, actions) == (Phase.STOPPING, [StopRank(1, False)])
    memory, _ = decide.decide(RULES, memory, view(1002, ABSENT, ABSENT))
    assert memory.phase is Phase.STOPPED
    memory = decide.after_boot(memory, 3)
    memory = decide.request_start(memory, 4, "the configuration changed", accepted="b" * 64)
    memory, actions = decide.decide(RULES, memory, view(5, ABSENT, ABSENT))
    assert (memory.phase, memory.accepted, actions) == (Phase.STOPPED, "b" * 64, [])
    memory = decide.request_run(memory, 6, "start requested")
    memory, _ = decide.decide(RULES, memory, view(7, ABSENT, ABSENT))
    assert memory.phase is Phase.STARTING


@pytest.mark.report("SYS-02", "HW-05")
def test_a_boot_starts_the_pair_again_and_a_rest_stays():
    memory = decide.after_boot(running(now=5e5, failures=(4e5,)), 12)
    assert (memory.phase, memory.reason, memory.failures) == (Phase.STOPPING, "the head was booted", ())
    resting = Memory(accepted=ENGINE, phase=Phase.RESTING, reason="spent")
    assert decide.after_boot(resting, 12).phase is Phase.RESTING


ranks = st.builds(
    Rank,
    state=st.sampled_from(["absent", "starting", "running", "stopping", "exited", "failed", "unknown"]),
    engine=st.sampled_from([None, ENGINE, "b" * 64]),
    exit_code=st.sampled_from([None, 0, 137]),
    error=st.sampled_from(["", "no GID"]),
    incarnation=st.sampled_from(["i", "j"]),
)
nodes = st.builds(
    Node, rank=st.none() | ranks, silent_seconds=st.floats(0, 200), rail_up=st.sampled_from([None, True, False])
)
looks = st.tuples(
    st.floats(0, 40),
    nodes,
    nodes,
    st.sampled_from([None, True, False]),
    st.none() | st.tuples(st.integers(0, 3)),
    st.sampled_from([None, 0, 1, 4]),
    st.sampled_from([None, Canary("pending"), Canary("ok"), Canary("failed", "x"), Canary("locked", "x")]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(looks, max_size=40), st.integers(0, 39))
def test_invariants_hold_whatever_is_seen(steps: list[tuple], stop_at: int):
    now = 100.0
    memory = decide.request_start(Memory(), now, "test", accepted=ENGINE)
    for index, (passed, head, worker, healthy, progress, busy, canary) in enumerate(steps):
        now += passed
        if index == stop_at:
            memory = decide.request_stop(memory, now)
        before = memory
        look = View(now, (head, worker), healthy, progress, busy, canary)
        memory, actions = decide.decide(RULES, memory, look)
        kinds = [type(action) for action in actions]
        if StartRank in kinds:
            assert before.desired == "run" and now >= before.not_before, "never start within back-off or while stopped"
            assert all(node.rank is not None for node in look.nodes[1:]), "a start begins with every worker in reach"
            assert StopRank not in kinds
        if Promote in kinds:
            assert before.phase is Phase.GATING and canary == Canary("ok"), "never promote without the gate"
        if SendCanary in kinds and before.phase is Phase.RUNNING and before.strikes == 0:
            assert now - memory.moved >= RULES.canary_interval_seconds or busy, "no canary while tokens move"
        if memory.phase is Phase.RESTING and before.phase is not Phase.RESTING:
            assert len(memory.failures) > RULES.restart_budget
        assert len(memory.failures) <= RULES.restart_budget + 1
        if memory.desired == "stop":
            assert memory.phase in (Phase.STOPPING, Phase.STOPPED)
        assert decide.restore(json.loads(json.dumps(decide.dump(memory)))) == memory


def test_wrong_answers_fail_a_running_pair_though_their_own_tokens_moved():
    memory = running(now=0)
    memory, _ = decide.decide(RULES, memory, view(60, UP, UP, healthy=True, progress=(1.0,), busy=0))
    wrong = Canary("failed", "answered '!!!!', wanted '391' in it")
    memory, actions = decide.decide(
        RULES, memory, view(61, UP, UP, healthy=True, progress=(9.0,), busy=0, canary=wrong)
    )
    assert [type(action) for action in actions] == [SendCanary]
    memory, actions = decide.decide(
        RULES, memory, view(62, UP, UP, healthy=True, progress=(17.0,), busy=0, canary=wrong)
    )
    assert actions == [Failed("2 canaries failed, the last: answered '!!!!', wanted '391' in it")]


def test_starts_that_hang_spend_the_budget_however_long_each_takes():
    memory, now = starting(), 0.0
    for _ in range(6):
        now += 1801 + 400
        memory = dataclasses.replace(memory, phase=Phase.STARTING, since=now - 1801)
        memory, _ = decide.decide(RULES, memory, view(now, UP, UP))
    assert memory.phase is Phase.RESTING
    assert memory.reason == "6 failures in 11005 s, the last: not ready within 1800 s"


def test_a_stop_ends_though_a_node_is_away_for_good():
    memory = decide.request_stop(running(), 1000)
    memory, _ = decide.decide(RULES, memory, view(1010, ABSENT, Node(None, 10)))
    assert memory.phase is Phase.STOPPING
    memory, _ = decide.decide(RULES, memory, view(1061, ABSENT, Node(None, 61)))
    assert memory.phase is Phase.STOPPED, "its rank has ended by itself: the lease is over"


def test_processes_that_do_not_end_are_named():
    stuck = Node(Rank("exited", engine=ENGINE, processes=3))
    memory = Memory(accepted=ENGINE, phase=Phase.STOPPING, since=0, due="it died")
    memory, _ = decide.decide(RULES, memory, view(59, ABSENT, stuck))
    assert memory.reason == "it died"
    memory, _ = decide.decide(RULES, memory, view(61, ABSENT, stuck))
    assert memory.reason == "processes that do not end (rank 1: 3); if that stays so, reboot the node"


GOOD = "9" * 64


def gating(**more: object) -> Memory:
    values = {"accepted": ENGINE, "phase": Phase.GATING, "due": "test", "up": 5.0, "canary_sent": 5.0, **more}
    return Memory(**values)  # type: ignore[arg-type]


def test_a_new_launch_that_fails_twice_is_rejected_for_the_last_good_one():
    memory, actions = decide.decide(RULES, starting(), view(30, EXITED, UP, good=GOOD))
    assert (memory.accepted, memory.attempts) == (ENGINE, 1)
    memory, _ = decide.decide(RULES, memory, view(31, ABSENT, ABSENT, good=GOOD))
    assert memory.phase is Phase.STARTING
    memory, actions = decide.decide(RULES, memory, view(60, UP, EXITED, good=GOOD))
    reason = "rank 1: the container exited with code 0"
    assert actions == [Failed(reason), Reject(ENGINE, reason)]
    assert (memory.accepted, memory.failures, memory.not_before) == (GOOD, (), 60)
    assert memory.due == f"launch {ENGINE[:12]} was rejected: {reason}; going back to {GOOD[:12]}"


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        (Node(None, silent_seconds=3), "a node that is away"),
        (Node(Rank("unknown", incarnation="i")), "Docker that is silent"),
        (dataclasses.replace(UP, rail_up=False), "a rail without carrier"),
        (dataclasses.replace(UP, rail_reach=False), "a rail that carries nothing"),
        (Node(Rank("running", engine=ENGINE, incarnation="later"), rail_up=True), "an agent that was restarted"),
    ],
)
def test_what_the_launch_cannot_help_does_not_count_against_it(lost: Node, why: str):
    memory = starting(asked={0: "i", 1: "i"}, attempts=1)
    memory, actions = decide.decide(RULES, memory, view(30, EXITED, lost, good=GOOD))
    assert [type(action) for action in actions] == [Failed], why
    assert (memory.accepted, memory.attempts) == (ENGINE, 1)


def test_a_verdict_that_is_certain_needs_one_try_and_one_for_a_person_rests():
    sure = Verdict("unknown-argument", "reject", "rank 0: it does not know an argument")
    memory, actions = decide.decide(RULES, starting(), view(30, EXITED, UP, good=GOOD, verdict=sure))
    assert memory.accepted == GOOD and isinstance(actions[1], Reject)
    memory, actions = decide.decide(RULES, starting(), view(30, EXITED, UP, verdict=sure))
    assert memory.phase is Phase.RESTING
    assert memory.reason == f"this launch cannot start: rank 0: the container exited with code 0; {sure.text}"
    lost = Verdict("gpu-lost", "rest", "rank 0: power cycle the node")
    memory, actions = decide.decide(RULES, running(), view(1000, EXITED, UP, good=ENGINE, verdict=lost))
    assert (memory.phase, memory.needs_boot) == (Phase.RESTING, True)
    assert decide.after_boot(memory, 5).phase is Phase.STOPPING, "the boot may have mended it"


def test_what_living_ranks_waited_for_explains_no_wrong_answer():
    waited = Verdict("waiting-for-head", "retry", "rank 1: it waited for rank 0")
    wrong = Gating("failed", "gate canary: answered no")
    _, actions = decide.decide(RULES, gating(), view(20, UP, UP, gates=wrong, verdict=waited))
    assert actions == [Failed("gate canary: answered no")]
    _, actions = decide.decide(RULES, starting(), view(20, EXITED, UP, verdict=waited))
    assert actions == [Failed(f"rank 0: the container exited with code 0; {waited.text}")]


def test_a_launch_that_was_good_is_never_rejected():
    memory = starting(attempts=7)
    memory, actions = decide.decide(RULES, memory, view(30, EXITED, UP, good=ENGINE))
    assert [type(action) for action in actions] == [Failed] and memory.accepted == ENGINE


def busy_rank(at: float, cores: float, log: int = 0) -> Node:
    return Node(Rank("running", engine=ENGINE, incarnation="i", work=Work(log, 0, at * cores)), rail_up=True)


@pytest.mark.parametrize(("cores", "log", "hangs"), [(1.0, 0, True), (3.0, 0, False), (0.1, 1, False)])
def test_a_start_that_only_spins_has_hung_and_one_that_works_has_not(cores: float, log: int, hangs: bool):
    rules = dataclasses.replace(RULES, load_stall_seconds=300)
    memory = starting(asked={0: "i", 1: "i"}, worked=0.0)
    failed: list[object] = []
    for at in range(0, 1200, 5):
        looks = [busy_rank(at, cores, log * at), busy_rank(at, 0.0)]
        memory, actions = decide.decide(rules, memory, view(at, *looks, good=GOOD))
        failed += actions
        if actions:
            break
    assert bool(failed) is hangs
    if hangs:
        assert isinstance(failed[1], Reject), "one hang is enough"
        assert "no sign of work from any rank for 305 s" in failed[0].reason  # type: ignore[attr-defined]


def test_gates_that_found_no_free_slot_are_asked_again_and_hold_only_a_new_launch():
    busy = Gating("busy", "gate smoke: no answer, while other requests went on")
    memory, actions = decide.decide(RULES, gating(), view(20, UP, UP, healthy=True, gates=busy, good=GOOD))
    assert (memory.phase, actions) == (Phase.GATING, [])
    memory, actions = decide.decide(RULES, memory, view(70, UP, UP, healthy=True, gates=busy, good=GOOD))
    assert actions == [RunGates()]
    memory, actions = decide.decide(RULES, gating(), view(20, UP, UP, healthy=True, gates=busy, good=ENGINE))
    assert (memory.phase, actions) == (Phase.RUNNING, [Ready(5.0)]), "serving, and not promoted anew"


def test_a_launch_that_was_good_serves_although_a_gate_is_answered_wrongly_again():
    wrong = Gating("failed", "gate smoke: answered no")
    first, actions = decide.decide(RULES, gating(), view(20, UP, UP, gates=wrong, good=ENGINE))
    assert (first.phase, first.attempts) == (Phase.STOPPING, 1), "once it is started anew"
    again = gating(attempts=1)
    memory, actions = decide.decide(RULES, again, view(20, UP, UP, gates=wrong, good=ENGINE))
    assert (memory.phase, actions) == (Phase.RUNNING, [Ready(5.0)]), "what is wanted may be what is wrong"
    memory, actions = decide.decide(RULES, again, view(20, UP, UP, gates=wrong, good=GOOD))
    assert memory.accepted == GOOD, "a new launch has no such credit"
    silent = Gating("failed", "gate smoke: no answer", answered=False)
    memory, actions = decide.decide(RULES, again, view(20, UP, UP, gates=silent, good=ENGINE))
    assert memory.phase is Phase.STOPPING


def test_gates_wait_for_the_cable_and_are_asked_anew():
    dark = dataclasses.replace(UP, rail_up=False)
    wrong = Gating("failed", "gate canary: no answer within 60 s", answered=False)
    memory, actions = decide.decide(RULES, gating(), view(70, UP, dark, gates=wrong, good=GOOD))
    assert (memory.phase, actions) == (Phase.GATING, [])
    memory, actions = decide.decide(RULES, memory, view(80, UP, UP, gates=wrong, good=GOOD))
    assert actions == [RunGates()]


def test_a_rail_that_carries_nothing_is_waited_for():
    mute = dataclasses.replace(UP, rail_reach=False)
    memory = running(now=0)
    for at in range(0, 900, 3):
        memory, actions = decide.decide(RULES, memory, view(at, UP, mute, healthy=True, progress=(1.0,), busy=2))
        assert actions == []
    assert memory.reason == "rank 1 does not answer over the rail; waiting for the cable"


def test_a_stopped_process_is_no_progress_and_a_moving_pair_is_left_alone():
    frozen = Node(Rank("running", engine=ENGINE, incarnation="i", frozen_seconds=20), rail_up=True)
    _, actions = decide.decide(RULES, running(now=0), view(30, UP, frozen, healthy=True, progress=(1.0,), busy=1))
    assert actions == [Failed("rank 1: its processes have been stopped for 20 s")]
    _, actions = decide.decide(RULES, running(now=20), view(30, UP, frozen, healthy=True, progress=(2.0,), busy=1))
    assert actions == []


@pytest.mark.parametrize(("minute", "busy", "left", "restarts"), [
    (181, 0, 0.5, True), (181, 1, 0.5, False), (179, 0, 0.5, False), (300, 0, 0.5, False), (181, 0, 2.0, False),
])  # fmt: skip
def test_a_node_short_of_memory_is_restarted_at_night_when_idle(minute: int, busy: int, left: float, restarts: bool):
    rules = dataclasses.replace(
        RULES, memory_restart_bytes=2**30, quiet_minutes=(180, 300), canary_interval_seconds=900
    )
    low = Node(Rank("running", engine=ENGINE, incarnation="i", available=int(left * 2**30)), rail_up=True)
    look = view(100, UP, low, healthy=True, progress=(1.0,), busy=busy, minute=minute)
    memory, actions = decide.decide(rules, running(now=0), look)
    assert (memory.phase is Phase.STOPPING) is restarts
    assert actions == [] and memory.failures == (), "no failure"
    if restarts:
        assert memory.gentle and memory.refreshed == 100
        again = dataclasses.replace(running(now=0), refreshed=100.0)
        assert decide.decide(rules, again, look)[0].phase is Phase.RUNNING, "once in a night"


def test_quiet_minutes_may_go_over_midnight():
    rules = dataclasses.replace(RULES, memory_restart_bytes=2**30, quiet_minutes=(1380, 60))
    low = Node(Rank("running", engine=ENGINE, incarnation="i", available=0), rail_up=True)
    for minute, restarts in ((1400, True), (30, True), (60, False), (700, False)):
        look = view(1000, low, UP, progress=(1.0,), busy=0, minute=minute)
        memory, _ = decide.decide(rules, running(now=900), look)
        assert (memory.phase is Phase.STOPPING) is restarts


@pytest.mark.report("MEM-09", "MEM-05")
def test_a_start_waits_for_memory_then_rests_and_a_boot_tries_again():
    gone = Node(Rank("absent", incarnation="i", available=80 * 2**30))
    memory = decide.request_start(Memory(idle=(110 * 2**30, 110 * 2**30)), 0, "test", accepted=ENGINE)
    memory, actions = decide.decide(RULES, memory, view(1, gone, ABSENT))
    assert (memory.phase, actions) == (Phase.WAITING, []) and "80.0 GiB" in memory.reason
    memory, actions = decide.decide(RULES, memory, view(130, gone, ABSENT))
    assert memory.phase is Phase.RESTING and "a driver may keep memory after a crash" in memory.reason
    assert decide.decide(RULES, decide.after_boot(memory, 3), view(4, ABSENT, ABSENT))[0].phase is Phase.STARTING
    insists = decide.request_run(memory, 200, "start requested")
    assert decide.decide(RULES, insists, view(201, gone, ABSENT))[0].phase is Phase.STARTING


def test_the_memory_before_a_start_counts_when_it_was_good():
    idle = Node(Rank("absent", incarnation="i", available=110))
    memory = decide.request_start(Memory(), 0, "test", accepted=ENGINE)
    memory, _ = decide.decide(RULES, memory, view(1, idle, idle))
    memory = dataclasses.replace(memory, phase=Phase.GATING, up=3.0, canary_sent=3.0)
    memory, _ = decide.decide(RULES, memory, view(4, UP, UP, gates=Gating("passed")))
    assert memory.idle == (110, 110)
    assert decide.restore(json.loads(json.dumps(decide.dump(memory)))) == memory


def test_a_boot_of_a_worker_ends_a_rest_that_a_boot_may_end():
    lost = Verdict("gpu-lost", "rest", "rank 1: power cycle the node")
    was = Node(Rank("running", engine=ENGINE, incarnation="i", boot="one"), rail_up=True)
    gone = Node(Rank("exited", engine=ENGINE, exit_code=1, incarnation="i", boot="one"))
    memory, _ = decide.decide(RULES, running(), view(1000, was, gone, good=ENGINE, verdict=lost))
    assert memory.boots == ("one", "one")
    for node in (Node(None, 5), gone, Node(Rank("absent", boot="one"))):
        assert decide.decide(RULES, memory, view(1001, was, node))[0].phase is Phase.RESTING
    after = Node(Rank("absent", incarnation="j", boot="two"))
    memory, _ = decide.decide(RULES, memory, view(1100, was, after))
    assert (memory.phase, memory.needs_boot) == (Phase.STOPPING, False)
    assert memory.reason == "booted: the node of rank 1; it rested for what a boot may mend"


def test_a_new_launch_that_takes_the_head_down_again_and_again_is_rejected():
    memory = starting()
    for boots in (1, 2):
        memory = decide.after_boot(memory, 1.0)
        assert memory.attempts == boots
        memory, actions = decide.decide(RULES, memory, view(2, ABSENT, ABSENT, good=GOOD))
        if boots == 1:
            assert (memory.phase, actions) == (Phase.STARTING, [])
    assert [type(action) for action in actions] == [Reject] and memory.accepted == GOOD
    proven = dataclasses.replace(starting(), attempts=9)
    assert decide.decide(RULES, decide.after_boot(proven, 1.0), view(2, ABSENT, ABSENT, good=ENGINE))[0].phase is (
        Phase.STARTING
    )


def test_a_moving_pair_is_not_cut_off_by_a_firewall_that_drops_echoes():
    mute = dataclasses.replace(UP, rail_reach=False)
    memory = running(now=0)
    for at in range(0, 300, 5):
        look = view(at, UP, mute, healthy=True, progress=(float(at),), busy=1)
        memory, actions = decide.decide(RULES, memory, look)
        assert (memory.reason, actions) == ("", [])
