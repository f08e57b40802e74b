"""A launch that was rejected is refused, a return to another generation is one row, and what it cannot undo is said."""

# Messages stand here in one piece.
# ruff: noqa: E501

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from typing import Any, cast

import pytest
from pyinfra.api.exceptions import PyinfraError
from pyinfra.connectors.util import CommandOutput
from pyinfra.context import ctx_config, ctx_host, ctx_inventory, ctx_state

from checks import generations, rejected
from checks.outlook import HELD, rank_text
from checks.pair import Todo
from checks.verdict import Verdict
from facts.values import STATUS, KeptGeneration, NodeFacts, Status
from operations import follow
from operations.follow import MARGIN_SECONDS
from operations.outlook import document
from roles import keeper, rollback
from spec import objects
from spec.cluster import Cluster
from spec.kinds import Prefix
from tests.plan import cases
from tests.plan.cases import Case
from tests.plan.conftest import Outcome, carried_out, cluster_of
from tests.plan.test_operations import A, B, Bench, bench
from tests.plan.test_outlook import Change, of, sentences
from tests.plan.world import IDENTITY, World, converged
from tests.unit import pair

WANTED = str(converged(cluster_of(Case("x"))).head["documents"][STATUS]["json"]["accepted"])
"""The launch of the settings that the cases below have."""
GOOD, OLDER, NEVER = "a" * 64, "b" * 64, "c" * 64
WHY = {"time": "2026-12-01T09:15:02+0000", "reason": "gate needle failed: 7 of 8 facts"}
TIMEOUT = pair.cluster().knobs.ready_timeout_seconds + MARGIN_SECONDS
REJECTED = f"launch {WANTED[:12]} was rejected on 2026-12-01 09:15: gate needle failed: 7 of 8 facts"
FIX = (
    "    Fix: change a setting. Its last lines: sudo sparkpair status --json on the head.\n"
    f"      To have it tried once more as it is: --data retry_rejected={WANTED[:12]}"
)


DAYS = {letter: f"2026-11-{20 - number:02}" for number, letter in enumerate("0123456789abcdef")}


def kept(engine: str, **changes: object) -> dict[str, object]:
    """A generation as the keeper tells it."""
    row = {"engine": engine, "accepted": f"{DAYS[engine[0]]}T10:00:00+0000", "good": True}
    return {**row, "rejected": None, "addresses": [], "identities": [[IDENTITY], [IDENTITY]], **changes}


def rolled_back(**changes: object) -> Callable[[World], None]:
    """The keeper has gone back from the wanted launch to a good one."""
    rows = [kept(WANTED, good=False, rejected=WHY["reason"]), kept(GOOD), kept(OLDER), kept(NEVER, good=False)]
    said = {"accepted": GOOD, "last_good": GOOD, "rejected": {WANTED: WHY}, "generations": rows}
    back = {"time": WHY["time"], "from": WANTED, "to": GOOD, "reason": WHY["reason"]}
    return cases.status(**{**said, "rollback": back, **changes})


def facts(change: Callable[[World], None]) -> tuple[Cluster, NodeFacts]:
    world = converged(cluster_of(Case("x")))
    change(world)
    return world.cluster, world.facts()[world.cluster.head.name]


def status(change: Callable[[World], None]) -> Status:
    found = facts(change)[1].status
    assert isinstance(found, Status)
    return found


def asking(**knobs: object) -> Cluster:
    """The same pair with settings of which no launch depends."""
    return cluster_of(Case("x", always=knobs))


# Refused until something changes


CASES = (
    Case("rejected", change=rolled_back()),
    Case("rejected, tried again", change=rolled_back(), more={"retry_rejected": WANTED[:9]}),
    Case("another setting", change=rolled_back(), more={"max_num_seqs": 8}),
    Case("back to what is accepted", change=rolled_back(accepted=WANTED, rejected={GOOD: WHY})),
    Case("nothing to return to", change=cases.status(generations=[kept(WANTED)]), deploy="rollback.py"),
    Case(
        "rows that stay",
        change=cases.both(cases.registered_only, cases.status(generations=[kept(WANTED), kept(GOOD)])),
        options=("--dry",),
    ),
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    return carried_out(CASES, tmp_path_factory.mktemp("rollbacks"))


def test_a_rejected_launch_is_refused_with_its_reason(outcomes: dict[str, Outcome]) -> None:
    found = outcomes["rejected"]
    assert (found.code, found.stdout) == (1, "")
    assert found.error == f"Preflight refused; no node was changed.\n  {REJECTED}\n{FIX}"


def test_a_rejected_launch_that_is_named_is_tried_again(outcomes: dict[str, Outcome]) -> None:
    found = outcomes["rejected, tried again"]
    assert found.code == 0, found.stderr
    assert found.rows == {"Keeper | Restart the pair": [A]}


def test_another_setting_is_another_launch(outcomes: dict[str, Outcome]) -> None:
    found = outcomes["another setting"]
    assert found.code == 0, found.stderr
    assert "Keeper | Restart the pair" in found.rows


def test_settings_that_are_accepted_again_plan_nothing(outcomes: dict[str, Outcome]) -> None:
    found = outcomes["back to what is accepted"]
    assert found.code == 0, found.stderr
    assert found.rows == {}


NOTHING = f"no other generation has passed its gates. Kept are: {WANTED[:12]} (accepted {DAYS[WANTED[0]]} 10:00, good, the one in force)"


def test_a_rollback_that_cannot_be_is_refused(outcomes: dict[str, Outcome]) -> None:
    found = outcomes["nothing to return to"]
    assert (found.code, found.stdout) == (1, "")
    assert found.error == f"Preflight refused; no node was changed.\n  {NOTHING}\n    Fix: deploy the settings you want"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (rolled_back(desired="stop", phase="stopped"), "the pair is stopped on purpose"),
        (cases.status(generations=[kept(WANTED)]), NOTHING),
        (cases.nothing, "no other generation has passed its gates. Kept are: none that the keeper tells of"),
        (cases.keeper_died, "the keeper does not run, and it is what returns to a generation"),
        (lambda world: world.head["documents"].update({STATUS: {"error": "damaged"}}), "the keeper's state could not be read: damaged"),
    ],
    ids=["stopped", "one only", "an earlier keeper", "a dead keeper", "damaged"],
)  # fmt: skip
def test_why_there_is_nothing_to_return_to(change: Callable[[World], None], said: str) -> None:
    assert chosen(change) == said


def test_only_what_the_pair_is_not_up_with_is_refused() -> None:
    up = facts(rolled_back(accepted=WANTED))
    assert list(rejected.refusals(*up, WANTED)) == []
    at_rest = facts(rolled_back(accepted=WANTED, phase="resting"))
    assert [verdict.statement for verdict in rejected.refusals(*at_rest, WANTED)] == [REJECTED]
    assert list(rejected.refusals(*facts(rolled_back()), GOOD)) == []
    assert list(rejected.refusals(*facts(cases.nothing), WANTED)) == [], "a keeper that tells of none"
    assert list(rejected.refusals(*facts(cases.both(rolled_back(), cases.keeper_died)), WANTED)) == []


def test_a_retry_of_no_effect_is_told() -> None:
    _, head = facts(rolled_back())

    def remarks(engine: str | None, named: str) -> list[str]:
        return list(rejected.remarks(asking(retry_rejected=named), head, engine))

    assert remarks(WANTED, WANTED[:12]) == remarks(None, WANTED[:12]) == []
    assert remarks(WANTED, GOOD[:12]) == [
        "retry_rejected = aaaaaaaaaaaa names no launch that was rejected, and is of no effect"
    ]
    assert remarks(GOOD, WANTED[:12]) == [
        f"retry_rejected = {WANTED[:12]} is not the launch of these settings, aaaaaaaaaaaa, and is of no effect"
    ]
    assert list(rejected.remarks(asking(), head, WANTED)) == []


# What became of it


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, f"launch {WANTED[:12]} was rejected: {WHY['reason']}. Generation aaaaaaaaaaaa, the last that passed its gates, serves again"),
        ({"phase": "starting"}, f"launch {WANTED[:12]} was rejected: {WHY['reason']}. The pair returns to generation aaaaaaaaaaaa and is starting"),
        ({"phase": "resting", "reason": "no memory"}, f"launch {WANTED[:12]} was rejected: {WHY['reason']}. The pair returns to generation aaaaaaaaaaaa and is resting: no memory"),
        ({"accepted": WANTED, "phase": "resting", "reason": "rejected"}, f"launch {WANTED[:12]} was rejected: {WHY['reason']}. No generation is there to return to; the pair is resting: rejected"),
        ({"rejected": {}, "accepted": WANTED, "phase": "resting", "reason": "rank 1 exited"}, "the pair does not serve; it is resting: rank 1 exited"),
        ({"rejected": {}, "accepted": WANTED, "phase": "empty", "last_failure": {"reason": "gone"}}, "the pair does not serve; it is empty: gone"),
    ],
)  # fmt: skip
def test_both_outcomes_are_told(changes: dict[str, object], said: str) -> None:
    after = ". The same settings are refused from now on: change one before you deploy again"
    found = rejected.outcome(status(cases.both(rolled_back(), cases.status(**changes))), WANTED)
    assert found == said + (after if "rejected:" in said else "")


@pytest.fixture
def contexts() -> Any:
    yield
    for context in (ctx_config, ctx_state, ctx_inventory, ctx_host):
        context.reset()


def answers(here: Bench, **codes: bool) -> None:
    """Words of the sparkpair command that fail on the head."""
    connector = cast(Any, here.hosts[A].connector)
    lookup = connector._lookup_response

    def answer(command: str) -> Any:
        for word, ok in codes.items():
            if f"sparkpair {word}" in command:
                return ok, CommandOutput([])
        return lookup(command)

    connector._lookup_response = answer


def test_a_launch_that_is_tried_again_is_handed_over_so(contexts: Any) -> None:
    del contexts
    here = Bench(converged(cluster_of(Case("x", always={"retry_rejected": WANTED[:8]}))))
    rolled_back()(here.world)
    done = here.do(keeper.hand_over, when=Todo.RESTART)
    assert done == {A: [f"/usr/local/bin/sparkpair accept --again {WANTED}"], B: []}


def test_a_rejection_that_is_known_late_ends_the_deploy(contexts: Any) -> None:
    """As when the files had to be hashed first: preflight did not know the launch."""
    del contexts
    here = bench()
    rolled_back()(here.world)
    with pytest.raises(PyinfraError, match=f"launch {WANTED[:12]} was rejected"):
        here.do(keeper.hand_over, when=Todo.RESTART)


def test_a_deploy_whose_launch_was_rejected_fails(contexts: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Also where the last good one is up again before anybody looked."""
    del contexts
    here = bench()
    rolled_back()(here.world)
    answers(here, follow=False)
    with caplog.at_level(logging.ERROR):
        here.do(keeper.wait_for_pair)
    assert here.hosts[A] in here.state.failed_hosts
    assert f"{REJECTED.replace(' on 2026-12-01 09:15', '')}. Generation aaaaaaaaaaaa, the last" in caplog.text
    assert here.commands(A) == [f"/usr/local/bin/sparkpair follow --timeout {TIMEOUT} --engine {WANTED}"]


def test_a_start_that_takes_longer_is_followed_by_the_same_command(
    contexts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """config.py names it, unless what was handed over was rejected."""
    del contexts
    said: list[str] = []
    monkeypatch.setattr(follow, "told", said)
    for change, many in ((cases.status(phase="starting"), 0), (rolled_back(), 1)):
        here = bench()
        change(here.world)
        answers(here, follow=False)
        here.do(keeper.wait_for_pair)
        assert here.hosts[A] in here.state.failed_hosts
        assert len(said) == many


def test_a_pair_that_is_up_is_not_waited_for(contexts: Any) -> None:
    del contexts
    assert bench().do(keeper.wait_for_pair) == {A: [], B: []}


# On request


def chosen(change: Callable[[World], None], **knobs: object) -> str:
    """Which generation, or the refusal."""
    found = generations.choose(asking(**knobs), facts(change)[1])
    return found.statement if isinstance(found, Verdict) else found.engine


def test_the_newest_other_good_one_is_returned_to() -> None:
    assert chosen(rolled_back()) == OLDER
    assert chosen(rolled_back(accepted=OLDER)) == GOOD
    assert chosen(rolled_back(accepted=OLDER, rejected={GOOD: WHY})).startswith("no other generation has passed")


def test_one_may_be_named() -> None:
    assert chosen(rolled_back(), rollback_to=OLDER[:8]) == OLDER
    assert chosen(rolled_back(), rollback_to=GOOD[:12]) == GOOD, "what is in force: nothing to do"
    assert chosen(rolled_back(accepted=OLDER, rejected={GOOD: WHY}), rollback_to=GOOD[:8]) == GOOD, (
        "the operator's word"
    )
    assert chosen(rolled_back(), rollback_to="d" * 8) == (
        "rollback_to = dddddddd names no generation that is kept. Kept are: "
        f"{WANTED[:12]} (accepted {DAYS[WANTED[0]]} 10:00, never good, rejected), "
        "aaaaaaaaaaaa (accepted 2026-11-10 10:00, good, the one in force), "
        "bbbbbbbbbbbb (accepted 2026-11-09 10:00, good), cccccccccccc (accepted 2026-11-08 10:00, never good)"
    )
    assert chosen(rolled_back(), rollback_to=NEVER[:8]).startswith(
        "generation cccccccccccc has never passed its gates."
    )
    twice = cases.status(generations=[kept("ab" * 32), kept("ab" * 31 + "cc")])
    assert chosen(twice, rollback_to="abababab").startswith("rollback_to = abababab names more than one generation.")


def generation(engine: str) -> KeptGeneration:
    return KeptGeneration(engine, "", True, "", (), ((IDENTITY,), (IDENTITY,)))


def test_the_pair_is_returned_and_followed(contexts: Any) -> None:
    del contexts
    here = bench()
    rolled_back()(here.world)
    done = here.do(rollback.take_back, to=generation(OLDER))
    sparkpair = "/usr/local/bin/sparkpair"
    assert done == {
        A: [f"{sparkpair} rollback {OLDER}", f"{sparkpair} follow --timeout {TIMEOUT} --engine {OLDER}"],
        B: [],
    }
    again = bench()
    rolled_back()(again.world)
    assert again.do(rollback.take_back, to=generation(GOOD)) == {A: [], B: []}, "held to already"


def test_what_a_generation_needs_is_looked_for() -> None:
    world = converged(cluster_of(Case("x")))
    node = world.cluster.head
    need = generations.need(world.head["texts"][rank_text(0)])
    assert need == generations.Need(pair.CPU_IMAGE, ("/srv/models/tiny",), ("10.200.0.1",))

    def lost(change: Callable[[World], None]) -> list[str]:
        there = converged(cluster_of(Case("x")))
        change(there)
        verdicts = generations.lost(node, need, [IDENTITY], there.facts()[node.name])
        return [verdict.statement for verdict in verdicts]

    def other_files(there: World) -> None:
        there.head["content"]["weights"].update(identity="0" * 64)

    assert lost(cases.nothing) == []
    assert lost(lambda there: there.head["docker"]["images"].update({pair.CPU_IMAGE: None})) == [
        f"the image {pair.CPU_IMAGE} is gone"
    ]
    assert lost(lambda there: there.head["links"]["enp1s0f0np0"].update(addresses=[])) == [
        "the address 10.200.0.1 is gone"
    ]
    assert lost(other_files) == ["/srv/models/tiny holds other files than it was accepted with"]
    assert lost(lambda there: there.head["content"]["weights"].update(present=False)) == [
        "/srv/models/tiny is gone or not whole"
    ]
    assert lost(lambda there: there.head.update(docker={"error": "silent"})) == ["Docker could not be read: silent"]


def test_files_that_are_mounted_are_asked_for_where_they_are() -> None:
    """The drafter's identity is compared with the drafter's, not with that of the weights before it."""
    world = converged(cluster_of(Case("x")))
    node = world.cluster.workers[0]
    need = generations.Need(pair.CPU_IMAGE, (objects.MOUNT_POINT, "/srv/models/tiny"), ())
    assert not list(generations.lost(node, need, ["f" * 64, IDENTITY], world.facts()[node.name]))
    statements = [one.statement for one in generations.lost(node, need, [IDENTITY, "f" * 64], world.facts()[node.name])]
    assert statements == ["/srv/models/tiny holds other files than it was accepted with"]


def typed(text: str) -> object:
    """What pyinfra makes of --data name=text: 0123 and 12e34 are numbers to it."""
    for read in (int, json.loads):
        with contextlib.suppress(ValueError):
            return cast(object, read(text))
    return text


@pytest.mark.parametrize(
    ("engine", "shown"),
    [
        ("ab" * 32, "abababababab"),
        ("123456789012" + "c" * 52, "123456789012"),
        ("000123456789" + "1d" * 26, "0001234567891d"),
        ("1234567e8901" + "2f" * 26, "1234567e89012f"),
        (None, "one that is not known yet"),
    ],
)
def test_what_is_shown_of_a_launch_can_be_typed(engine: str | None, shown: str) -> None:
    assert rejected.short(engine) == shown
    if engine:
        assert engine.startswith(Prefix().parse(typed(shown)))


# What it does not undo


def with_generations(*rows: dict[str, object]) -> Change:
    return cases.status(generations=list(rows))


def test_rows_that_stay_done_are_said_where_there_is_a_way_back() -> None:
    rows = (
        "Fabric | Set the rails up",
        "Weights | Pull the weights",
        "Docker | Restart Docker",
        "Keeper | Restart the pair",
    )
    found = of(new={"max_num_seqs": 8}, change=with_generations(kept(GOOD)), rows=rows)
    assert sentences(found)[-1] == "A rollback would not undo: Fabric | Set the rails up; Docker | Restart Docker."
    assert document(found)["rollback"] == {
        "not_undone": ["Fabric | Set the rails up", "Docker | Restart Docker"],
        "stranded": [],
    }
    first = of(new={"max_num_seqs": 8}, change=cases.status(last_good=None), rows=rows)
    assert document(first)["rollback"] == {"not_undone": [], "stranded": []}, "nothing has passed its gates yet"
    earlier = of(new={"max_num_seqs": 8}, rows=rows)
    assert document(earlier)["rollback"]["not_undone"], "an earlier keeper tells the last good one"


def test_the_rows_are_those_of_the_plan(outcomes: dict[str, Outcome]) -> None:
    found = outcomes["rows that stay"]
    assert found.code == 0, found.stderr
    assert found.stderr.count("    A rollback would not undo: Docker | Restart Docker.\n") == 1


def test_every_row_of_a_plan_is_told_to_be_undone_or_not(outcomes: dict[str, Outcome]) -> None:
    """A new row is said to stay until somebody has thought about it."""
    order = outcomes["another setting"].order
    assert {name for name in order if not name.startswith(HELD)} >= {
        "Node OS | Install the programs",
        "Fabric | Set the rails up",
        "Docker | Register the NVIDIA runtime",
        "Docker | Restart Docker",
        "NFS | Export the weights",
        "NFS | Install mnt-sparkpair-weights.mount",
        "NFS | Remove the export of the weights",
        "Keeper | Install sparkpair-agent.service",
        "Keeper | Install sparkpair-keeper.service",
    }
    assert not [word for word in HELD if not any(name.startswith(word) for name in order)]


def test_generations_whose_addresses_go_are_named() -> None:
    rails = [{**rail, "address": rail["address"].replace("10.200.0", "10.210.0")} for rail in pair.HEAD["rails"]]
    others = [{**rail, "address": rail["address"].replace("10.200.0", "10.210.0")} for rail in pair.WORKER["rails"]]
    rows = (kept(GOOD, addresses=["10.200.0.1", "10.200.1.1", "192.168.77.1"]), kept(OLDER, addresses=["10.200.1.1"]))
    found = of(
        change=with_generations(*rows, kept(NEVER, good=False, addresses=["10.200.0.1"])),
        head=pair.node(pair.HEAD, rails=rails), worker=pair.node(pair.WORKER, rails=others),
    )  # fmt: skip
    why = "its ranks use 10.200.0.1, which no node will have"
    assert sentences(found)[-1] == f"After this there is no way back to generation aaaaaaaaaaaa: {why}."
    assert document(found)["rollback"]["stranded"] == [{"generation": GOOD, "reason": why}]


def test_generations_whose_files_are_replaced_are_named() -> None:
    """Where they were replaced already, the accepted launch tells what they were."""

    def replaced(world: World) -> None:
        for node in (world.head, world.worker):
            for seen in node["content"].values():
                seen.update(identity="e" * 64)

    mine = kept(GOOD, identities=[[IDENTITY, IDENTITY]] * 2)
    found = of(change=cases.both(with_generations(mine, kept(OLDER, identities=[["f" * 64]])), replaced))
    assert [row["generation"] for row in document(found)["rollback"]["stranded"]] == [GOOD]
    assert "the files in " in sentences(found)[-1]
    moved = of(new={"weights_path": "/srv/other"}, change=with_generations(mine))
    assert document(moved)["rollback"]["stranded"] == [], "another directory leaves the old one alone"


def test_what_an_earlier_keeper_published_is_read() -> None:
    found = status(cases.nothing)
    assert (found.rejected, found.rollback, found.generations) == ({}, None, ())
    full = status(rolled_back())
    assert full.rejected[WANTED].reason == WHY["reason"]
    assert full.rollback is not None
    assert (full.rollback.left, full.rollback.to) == (WANTED, GOOD)
    first = status(cases.status(rollback={"time": "", "from": None, "to": GOOD, "reason": ""}))
    assert first.rollback is not None
    assert first.rollback.left == "", "nothing was in force before"
    assert [one.is_good for one in full.generations] == [False, True, True, False]
    assert full.generations[1].identities == ((IDENTITY,), (IDENTITY,))
