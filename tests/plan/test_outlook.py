"""The outlook of a deploy: the old values are the accepted ones, and what is not known is said to be so."""

# Messages stand here in one piece.
# ruff: noqa: E501

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checks.outlook import CURRENT, Outlook, Wanted, outlook
from checks.pair import Todo, wanted_identities
from facts.values import KEEPER_STATE, STATUS
from operations.outlook import document, lines
from spec import objects
from spec.capacity import estimate
from spec.cluster import Cluster
from spec.knobs import Cost
from spec.render import engine_hash, netplan_text, rank_text, service_text
from spec.resolve import resolve
from tests import repository
from tests.plan import cases
from tests.plan.cases import Case
from tests.plan.conftest import Outcome, carried_out, lay_out
from tests.plan.world import World, converged, fresh, keep, unit
from tests.unit import pair

Change = Callable[[World], None]
MEASURED = "about 52 s (the last start on this pair, measured 2026-11-30)"
GRACE = ", and up to 20 s before that in which running requests may finish."


def of(
    old: dict[str, Any] | None = None,
    new: dict[str, Any] | None = None,
    change: Change = cases.nothing,
    state: Callable[[Cluster], World] = converged,
    warnings: tuple[str, ...] = (),
    rows: tuple[str, ...] = (),
    **nodes: Any,
) -> Outlook:
    """The outlook of a pair that has the old settings and is to get the new ones beside them."""
    world = state(pair.cluster(old))
    change(world)
    cluster = pair.cluster({**(old or {}), **(new or {})}, **nodes)
    facts = world.facts()
    texts = tuple(rank_text(cluster, node) for node in cluster.nodes)
    identities = wanted_identities(cluster, facts)
    wanted = Wanted(
        engine=None if identities is None else engine_hash(texts, identities),
        identities=identities,
        rank_texts=texts,
        service_text=service_text(cluster),
        rail_texts=tuple(netplan_text(cluster, node) for node in cluster.nodes),
    )
    return outlook(cluster, facts, wanted, warnings, rows)


def sentences(found: Outlook) -> list[str]:
    """What follows the table, unwrapped."""
    text = "\n".join(lines(found)[len(found.changes) + 1 :] if found.changes else lines(found))
    return text.replace("\n  ", " ").splitlines()


def text_of(path: str, text: object) -> Change:
    return lambda world: world.head["texts"].update({path: text})


# Settings


def test_a_setting_with_everything_that_it_means() -> None:
    found = of(new={"max_num_seqs": 8, "watch_interval_seconds": 2})
    before, after = (estimate(pair.cluster(stated).knobs) for stated in ({}, {"max_num_seqs": 8}))
    assert before is not None
    assert after is not None
    assert lines(found) == [
        "Settings that change      old  new  becomes         ranks  costs",
        "  max_num_seqs            4    8    --max-num-seqs  0, 1   one restart of the pair",
        "  watch_interval_seconds  1    2    the keeper      -      the keeper reloads",
        f"KV pool, computed: {before.pool_tokens:,} -> {after.pool_tokens:,} tokens ({before.full_requests:.2f} -> "
        f"{after.full_requests:.2f} requests of 524,288)",
        "Serving is interrupted once, for about 52 s (the last start on this pair, measured 2026-11-30), and",
        "  up to 20 s before that in which running requests may finish.",
    ]


def test_the_example_of_the_documents_is_true() -> None:
    text = "\n".join(lines(of(new={"max_num_seqs": 8, "watch_interval_seconds": 2})))
    assert f"```text\n{text}\n```" in (repository.text(Path("docs/operations.md")) or "")


def test_a_pair_that_is_as_wanted_is_quiet() -> None:
    found = of()
    assert found.is_quiet
    assert lines(found) == ["No setting changes.", "A pair that serves goes on serving."]


def test_warnings_are_told() -> None:
    found = of(warnings=("gpu_memory_utilization = 0.9: swaps",))
    assert not found.is_quiet
    assert lines(found)[-1] == "Warning: gpu_memory_utilization = 0.9: swaps"


def test_only_the_keeper_reloads() -> None:
    found = of(new={"restart_budget": 7})
    assert sentences(found) == ["A pair that serves goes on serving; its keeper reloads its settings."]


def test_the_rails_pause() -> None:
    found = of(new={"rail_mtu": 4000})
    assert [(row.knob, row.old, row.new, row.cost) for row in found.changes] == [("rail_mtu", 9000, 4000, Cost.FABRIC)]
    assert sentences(found) == [
        "The rails of spark-a, spark-b are set up anew: traffic over them pauses, and answers with it.",
        "A pair that serves is not restarted.",
    ]


def test_rails_that_were_found_are_named() -> None:
    """Nobody stated them, so whoever agrees to the plan is told which they are."""
    stated = pair.cluster()
    unstated = pair.settings(head=pair.node(pair.HEAD, rails=None), worker=pair.node(pair.WORKER, rails=None))
    cluster = resolve(unstated, pair.FACTS, {node.name: node.rails for node in stated.nodes})
    world = fresh(cluster)
    wanted = Wanted(
        engine=None,
        identities=None,
        rank_texts=tuple(rank_text(cluster, node) for node in cluster.nodes),
        service_text=service_text(cluster),
        rail_texts=tuple(netplan_text(cluster, node) for node in cluster.nodes),
    )
    assert outlook(cluster, world.facts(), wanted, (), ()).notes == (
        "Rail 0, found and not stated: spark-a enp1s0f0np0 10.200.0.1/24, spark-b enp1s0f1np1 10.200.0.2/24.",
        "Rail 1, found and not stated: spark-a enP2p1s0f0np0 10.200.1.1/24, spark-b enP2p1s0f1np1 10.200.1.2/24.",
    )


def test_a_drift_is_no_setting() -> None:
    """A rail that lost its MTU is set up again, and no knob moved."""
    found = of(change=cases.lost_rail)
    assert found.changes == ()
    assert found.rails == ("spark-b",)


def test_the_length_of_a_request_moves_too() -> None:
    (pool, *_) = sentences(of(new={"max_model_len": 262144}))
    assert pool.startswith("KV pool, computed: ")
    assert "requests of 524,288 -> " in pool
    assert pool.endswith("requests of 262,144)")


def test_a_pool_that_stays_says_so() -> None:
    (pool, *_) = sentences(of(new={"nccl_debug": "INFO"}))
    assert pool.endswith("requests of 524,288), as before")


def test_a_pool_that_is_left_to_the_engine() -> None:
    (pool, *_) = sentences(of(new={"kv_cache_memory_bytes": "auto"}))
    assert " -> unknown tokens (" in pool


def test_the_pool_of_the_accepted_launch_is_that_of_its_settings() -> None:
    """Read back, they give what they gave."""
    for stated in ({}, {"preset": "long-documents"}, {"preset": "many-agents"}, {"speculative_method": ""}):
        found = of(old=stated)
        assert found.before is not None
        assert found.before.capacity is not None
        assert found.after.capacity is not None
        assert found.before.capacity.pool_tokens == found.after.capacity.pool_tokens
        assert found.before.capacity.full_requests == found.after.capacity.full_requests


def test_a_preset_is_its_settings() -> None:
    found = of(new={"preset": "long-documents"})
    assert {row.knob for row in found.changes} == {
        "max_model_len", "max_num_batched_tokens", "kv_cache_dtype", "nvfp4_mla_dynamic_scale",
    }  # fmt: skip


def test_values_that_may_be_secrets_are_not_shown() -> None:
    found = of(
        old={"engine_env": ["A=old_a", "B=old_b", "C=old_c"]}, new={"engine_env": ["A=new_a", "B=old_b", "D=new_d"]}
    )
    table = [line.split() for line in lines(found)[1:4]]
    assert [row[1] for row in table] == ["A", "C", "D"]
    assert [" ".join(row[2:5]) for row in table] == ["(set) (changed) a", "(set) (left out)", "(left out) (set)"]
    told = json.dumps(document(found))
    assert "new_" not in told
    assert "old_" not in told.replace("old_values_unknown", "")


def test_another_order_restarts_too() -> None:
    found = of(old={"engine_env": ["A=1", "B=2"]}, new={"engine_env": ["B=2", "A=1"]})
    assert [row.knob for row in found.changes] == ["order of the launch"]
    assert found.todo is Todo.RESTART


def test_a_path_is_shown_by_both_ends() -> None:
    found = of(new={"cache_path": "/srv/a-rather-long-directory/and-another-one-in-it/for-the-compiled-kernels"})
    row = next(line for line in lines(found) if "cache_path" in line)
    assert 'kernels"' in row
    assert "..." in row
    assert sentences(found)[-1] == "That start had another cache_path: kernels are compiled anew, which takes longer."


def other_files(world: World) -> None:
    for node in (world.head, world.worker):
        node["content"]["weights"]["identity"] = "f" * 64


def test_other_files_under_the_same_path() -> None:
    found = of(change=other_files)
    assert [(row.knob, row.new, row.cost) for row in found.changes] == [
        ("content of weights_path", "f" * 12, Cost.STAGING)
    ]
    assert found.todo is Todo.RESTART


def test_an_api_key_that_is_asked_for() -> None:
    """It is made by the deploy itself, so its identity is not known before."""
    found = of(new={"require_api_key": True})
    assert [(row.knob, row.old, row.new, row.ranks) for row in found.changes] == [
        ("require_api_key", False, True, (0,))
    ]
    assert sentences(found)[-1] == f"Serving is interrupted once, for {MEASURED}{GRACE}"


def test_another_api_key() -> None:
    def change(world: World) -> None:
        keep(world.head, objects.API_KEY_FILE, "f" * 64)

    found = of(old={"require_api_key": True}, change=change)
    assert [line.split()[:6] for line in lines(found)[1:2]] == [
        ["the", "API", "key", "(set)", "(changed)", "VLLM_API_KEY"]
    ]
    assert "ffff" not in json.dumps(document(found))
    assert of(old={"require_api_key": True}).is_quiet


def test_an_api_key_that_is_gone_is_another_one_for_certain() -> None:
    """A new one is made of chance, so that nothing about the restart is left open."""
    found = of(old={"require_api_key": True}, change=cases.no_key)
    assert [line.split()[:6] for line in lines(found)[1:2]] == [
        ["the", "API", "key", "(set)", "(changed)", "VLLM_API_KEY"]
    ]
    assert found.notes == ()
    assert sentences(found)[-1] == f"Serving is interrupted once, for {MEASURED}{GRACE}"
    assert not of(old={"require_api_key": True}, new={"require_api_key": False}, change=cases.no_key).changes[1:]


def test_files_that_are_not_hashed_yet() -> None:
    assert sentences(of(change=cases.touched_weights)) == [
        "No setting changes.",
        "Files or keys are hashed first: whether they are other ones is not known before that.",
        f"If they are, a pair that serves is interrupted once, for {MEASURED}{GRACE}",
    ]


# How long


def start_of(seconds: object) -> Change:
    def change(world: World) -> None:
        world.head["documents"][STATUS]["json"]["last_start_seconds"] = seconds
        world.head["documents"][KEEPER_STATE]["json"]["last_start_seconds"] = seconds

    return change


def test_before_a_start_was_measured_the_published_figure_is_told() -> None:
    """With the stack's project as its source, and that it was not measured here."""
    found = of(new={"max_num_seqs": 8}, change=start_of(None))
    assert (found.start.seconds, found.start.measured) == (225.0, False)
    assert sentences(found)[-1] == (
        "Serving is interrupted once, for about 225 s (published: reference kit v2.3-tier1, README, restart to API with "
        f"instanttensor; not measured on this pair yet){GRACE}"
    )


def test_a_first_start_over_nfs_is_as_long_as_those_that_were_published() -> None:
    """The last start here was one from local disks."""
    found = of(new={"weights": "nfs"})
    assert (found.start.seconds, found.start.measured) == (750.0, False)
    assert "reference kit v2.3-tier1, 12 to 13 minutes with its NFS mode" in found.start.source
    weights = [(row.knob, row.old, row.new, row.ranks) for row in found.changes]
    mounted = "/mnt/sparkpair/weights"
    assert weights[:2] == [
        ("weights_path", "/home/alice/models/glm53-exl3", mounted, (0,)),
        ("weights", "local", "nfs", (0,)),
    ]
    assert [row.knob for row in found.changes[2:]] == ["the weights over NFS", "their mount options"]
    assert {row.cost for row in found.changes} == {Cost.STAGING, Cost.RESTART}


def test_where_nothing_is_published_it_is_unknown() -> None:
    found = of(old=pair.UPSTREAM, new={"max_num_seqs": 8}, change=start_of(None))
    assert document(found)["start"]["source"] == "unknown"
    assert "for a time that is unknown (nothing is published for stack vllm" in sentences(found)[-1]


def test_the_last_start_of_another_stack_is_not_this_ones() -> None:
    cluster_of_exl3 = {"stack": "vllm-exl3", "image": None, "weights_path": None}
    found = of(old=pair.UPSTREAM, new=cluster_of_exl3)
    assert found.changes[0].knob == "stack"
    assert (found.start.seconds, found.start.measured) == (225.0, False)


def test_a_silent_keepers_figure_is_kept() -> None:
    found = of(new={"max_num_seqs": 8}, change=cases.keeper_died)
    assert (found.start.seconds, found.start.measured) == (51.7, True)
    assert sentences(found)[-1] == (
        "The keeper does not run. A pair that serves is interrupted once, for about 52 s (the last start on this pair, "
        f"measured){GRACE}"
    )


# States of the pair


def test_a_first_start_is_one_line_and_what_is_beside_the_defaults() -> None:
    found = of(state=fresh, new={"max_num_seqs": 2, "engine_env": ["HF_TOKEN=hf_secret"], "restart_budget": 9})
    assert found.is_first
    assert [row.knob for row in found.changes] == ["max_num_seqs", "engine_env HF_TOKEN", "restart_budget"]
    assert lines(found)[:2] == [
        "First start; beside the defaults  default     here   becomes                   ranks",
        "  max_num_seqs                    4           2      --max-num-seqs            0, 1",
    ]
    assert sentences(found)[-1].startswith("The pair is started and answers after about 225 s (published: ")
    assert "hf_secret" not in json.dumps(document(found))


def test_a_first_start_with_the_defaults() -> None:
    assert lines(of(state=fresh))[0] == "First start, with the defaults of the stack."


def test_a_path_of_one_node_is_beside_the_defaults() -> None:
    found = of(state=fresh, worker=pair.node(pair.WORKER, weights_path="/fast/glm"))
    assert [(row.knob, row.new, row.ranks) for row in found.changes] == [("weights_path", "/fast/glm", (1,))]


def test_a_pair_that_is_stopped_on_purpose() -> None:
    found = of(new={"max_num_seqs": 8}, change=cases.status(phase="stopped", desired="stop"))
    assert not document(found)["interrupts"]["serving"]
    assert lines(found)[1].endswith("nothing while stopped")
    assert sentences(found)[1:] == [
        "The pair is stopped on purpose and stays so; nothing is interrupted.",
        "It keeps the launch that was accepted before: sudo sparkpair start on the head starts that one. "
        "Deploy again after it for this one.",
    ]


@pytest.mark.parametrize("knob", [{"watch_interval_seconds": 2}, {"rail_mtu": 4200}], ids=lambda knob: next(iter(knob)))
def test_a_pair_that_is_stopped_on_purpose_and_keeps_its_launch(knob: dict[str, Any]) -> None:
    found = of(new=knob, change=cases.status(phase="stopped", desired="stop"))
    assert [row.knob for row in found.changes] == list(knob)
    assert sentences(found)[-1] == "The pair is stopped on purpose and stays so; nothing is interrupted."


def test_a_pair_that_rests() -> None:
    found = of(change=cases.status(phase="resting", reason="6 failures"))
    assert sentences(found)[-1] == (
        "The pair is resting (6 failures). It is started and answers after about 52 s "
        "(the last start on this pair, measured)."
    )


def test_a_pair_that_is_starting() -> None:
    found = of(new={"max_num_seqs": 8}, change=cases.status(phase="starting"))
    assert sentences(found)[-1].startswith("The pair does not serve now, it is starting. Its start begins anew")


def test_docker_restarts() -> None:
    found = of(change=cases.registered_only)
    assert document(found)["interrupts"] == {"serving": True, "docker": ["spark-b"], "rails": []}
    assert sentences(found)[1:] == [
        "Docker is restarted on spark-b: every container there ends, a rank of the pair too.",
        f"A pair that serves is interrupted once; the keeper starts it again, in {MEASURED}.",
    ]


def test_docker_restarts_and_so_does_the_pair() -> None:
    """Docker ends the ranks long before the new launch is handed over."""
    found = of(new={"max_num_seqs": 8}, change=cases.registered_only)
    assert sentences(found)[-1] == (
        "A pair that serves is interrupted by that, and again, by its own restart, if it is up by then; "
        f"each time for {MEASURED}."
    )
    unsure = of(change=cases.both(cases.touched_weights, cases.registered_only))
    assert sentences(unsure)[-1] == (
        f"A pair that serves is interrupted by that, and again, if they are, by its own restart; each time for {MEASURED}."
    )


def test_docker_restarts_where_no_rank_is() -> None:
    def change(world: World) -> None:
        cases.registered_only(world)
        world.worker["docker"]["containers"] = []

    found = of(change=change)
    assert not document(found)["interrupts"]["serving"]
    assert sentences(found)[1:] == [
        "Docker is restarted on spark-b: every container there ends.",
        "A pair that serves goes on serving.",
    ]
    unknown = of(
        change=lambda world: world.worker["docker"].update(runtimes=["runc"], containers={"error": "it hangs"})
    )
    assert document(unknown)["interrupts"]["serving"], "a rank may be there"


@pytest.mark.parametrize("phase", ["resting", "starting", "waiting", "backoff"])
def test_a_pair_that_does_not_serve_is_not_interrupted(phase: str) -> None:
    for change in (cases.registered_only, cases.nothing):
        found = of(new={"max_num_seqs": 8}, change=cases.both(cases.status(phase=phase), change))
        assert not document(found)["interrupts"]["serving"]


def test_the_pool_of_three_ranks_is_not_that_of_two() -> None:
    """Which no pool is known of: left out, tensor_parallel_size is one rank per node."""
    three = converged(pair.cluster(more=1))
    cluster = three.cluster
    texts = tuple(rank_text(cluster, node) for node in cluster.nodes)
    identities = wanted_identities(cluster, three.facts())
    assert identities is not None
    rails = tuple(netplan_text(cluster, node) for node in cluster.nodes)
    wanted = Wanted(engine_hash(texts, identities), identities, texts, service_text(cluster), rails)
    found = outlook(cluster, three.facts(), wanted, [], [])
    assert found.is_quiet
    assert found.after.capacity is None
    assert found.before is not None
    assert found.before.capacity is None


# What cannot be known

RANK = f"{CURRENT}/rank1.json"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (text_of(f"{CURRENT}/manifest.json", None), f"{CURRENT}/manifest.json is not there"),
        (text_of(f"{CURRENT}/manifest.json", "{"), "its manifest: "),
        (text_of(RANK, None), f"{RANK} is not there"),
        (text_of(RANK, {"error": "OSError: it hurts"}), f"{RANK} could not be read: OSError: it hurts"),
        (text_of(RANK, "garbage"), " does not hold what its name says"),
        (text_of(f"{CURRENT}/rank0.json", "{}"), " does not hold what its name says"),
        (cases.status(accepted="0" * 64), "and the keeper holds the pair to 000000000000"),
        (lambda world: world.head.update(texts={"error": "no memory"}), "no memory"),
        (lambda world: world.head["documents"].update({STATUS: {"error": "damaged"}}), "the keeper's state could not be read: damaged"),
    ],
)  # fmt: skip
def test_old_values_that_are_not_known(change: Change, why: str) -> None:
    """Said with the reason; nothing is made up in their place, and the deploy goes on to its own judgement."""
    found = of(new={"max_num_seqs": 8}, change=change)
    assert why in found.unknown
    assert not [row for row in found.changes if row.ranks]
    assert lines(found)[0].startswith("Old values unknown: ")
    assert document(found)["old_values_unknown"] == found.unknown


def test_a_damaged_generation_that_is_what_its_name_says() -> None:
    """A launch whose stack is not known any more."""
    cluster = pair.cluster()
    texts = [rank_text(cluster, node).replace('"vllm-exl3"', '"tensorfold"') for node in cluster.nodes]
    identities = [["a", "b"], ["a", "b"]]
    engine = engine_hash(texts, identities)

    def change(world: World) -> None:
        world.head["texts"].update({f"{CURRENT}/rank{rank}.json": text for rank, text in enumerate(texts)})
        manifest = json.dumps({"engine": engine, "identities": identities})
        world.head["texts"][f"{CURRENT}/manifest.json"] = manifest
        cases.status(accepted=engine)(world)

    assert "no stack that is known here" in of(change=change).unknown


def test_settings_that_the_keeper_loaded_and_no_file_has() -> None:
    found = of(new={"restart_budget": 7}, change=cases.status(service="0" * 64))
    assert found.changes == ()
    assert found.notes == ("The keeper's old settings are unknown: those that it has loaded are in no file any more.",)


def test_the_keepers_old_settings_are_those_that_it_has_loaded() -> None:
    """A deploy that died has installed other ones, which are in force nowhere."""
    installed = service_text(pair.cluster({"restart_budget": 9}))
    found = of(new={"restart_budget": 7}, change=text_of(objects.SERVICE_FILE, installed))
    assert [(row.old, row.new) for row in found.changes] == [(5, 7)]


def test_a_pair_that_had_more_nodes() -> None:
    """Its third rank's launch is not read, so the generation is not proven, and is compared all the same."""

    def change(world: World) -> None:
        manifest = json.loads(world.head["texts"][f"{CURRENT}/manifest.json"])
        manifest["identities"].append(manifest["identities"][0])
        world.head["texts"][f"{CURRENT}/manifest.json"] = json.dumps(manifest)

    assert [row.knob for row in of(new={"max_num_seqs": 8}, change=change).changes] == ["max_num_seqs"]


# Through pyinfra


DRY = ("--dry",)
THROUGH = (
    Case("a knob", options=(*DRY, "--data", "max_num_seqs=8")),
    Case("a knob, as JSON", options=("--dry", "--json", "--data", "max_num_seqs=8")),
    Case("first", fresh, options=DRY),
    Case("stopped", options=DRY, change=cases.status(phase="stopped", desired="stop"), more={"max_num_seqs": 8}),
    Case("a damaged generation", options=DRY, change=text_of(RANK, "garbage"), more={"max_num_seqs": 8}),
    Case("a silent keeper", options=DRY, change=lambda world: world.head["units"].update({objects.KEEPER_UNIT: unit("failed")}), more={"max_num_seqs": 8}),
    Case("refused", fresh, cases.no_docker_and_a_taken_port, options=DRY),
)  # fmt: skip


@pytest.fixture(scope="module")
def through(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    return carried_out(THROUGH, tmp_path_factory.mktemp("outlooks"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a knob", "      max_num_seqs        (left out)  8    --max-num-seqs  0, 1   one restart of the pair\n"),
        ("a knob, as JSON", "      max_num_seqs        (left out)  8    --max-num-seqs  0, 1   one restart of the pair\n"),
        ("first", "    First start; beside the defaults  default "),
        ("stopped", "    The pair is stopped on purpose and stays so; nothing is interrupted.\n"),
        ("a damaged generation", "    Old values unknown: generation "),
        ("a silent keeper", "    The keeper does not run. A pair that serves is interrupted once, for about 52 s"),
    ],
)  # fmt: skip
def test_it_is_told_once_after_the_table(through: dict[str, Outcome], name: str, text: str) -> None:
    found = through[name]
    assert found.code == 0, found.stderr
    assert found.stderr.count(text) == 1, found.stderr
    assert "Traceback" not in found.stderr
    if name != "a knob, as JSON":
        assert found.stdout == ""
        assert found.stderr.index(text) > found.stderr.index("Keeper | Wait for the pair")


def test_json_stays_json(through: dict[str, Outcome]) -> None:
    assert "Keeper | Restart the pair" in through["a knob, as JSON"].rows


def test_a_deploy_that_is_refused_has_no_outlook(through: dict[str, Outcome]) -> None:
    found = through["refused"]
    assert found.code == 1
    assert "First start" not in found.stderr


def test_it_is_told_before_pyinfra_asks(tmp_path: Path) -> None:
    """In a real run, whose operator decides with it."""
    place = tmp_path / "run"
    lay_out(Case("a knob", more={"max_num_seqs": 8}), place)
    beside = Path(sys.executable).with_name("pyinfra")
    root = repository.ROOT
    done = subprocess.run(
        [str(beside), "--config", str(root / "config.py"), "inventory.py", str(root / "deploy.py")],
        cwd=place, input="no\n", capture_output=True, text=True, check=False, timeout=60,
        env={name: value for name, value in os.environ.items() if name != "SPARKPAIR_PLAN"},
    )  # fmt: skip
    text = "max_num_seqs        (left out)  8    --max-num-seqs  0, 1   one restart of the pair"
    assert done.stderr.count(text) == 1, done.stderr
    assert done.stderr.index(text) < done.stderr.index("Press enter to execute")
