"""A launch read back: nothing that is rendered is lost, and one turned knob is one row."""

# A changed launch and its row stand on one line.
# ruff: noqa: E501

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from spec import render
from spec.changes import (
    API_KEY,
    Change,
    Hidden,
    Reading,
    Unreadable,
    changes,
    content_changes,
    holds,
    knobs_of,
    rail_changes,
    read_identities,
    read_launch,
    read_rails,
    read_service,
    service_changes,
    stack_of,
)
from spec.cluster import Cluster
from spec.kinds import Switch
from spec.knobs import KNOBS, Cost
from spec.objects import MOUNT_POINT
from spec.resolve import expand
from spec.stacks import STACKS
from tests.render.test_properties import loaded, stated, states
from tests.unit import pair

PATHS = ("weights_path", "drafter_path", "cache_path")
# Say which launch is made, and are not in it themselves.
BEHIND = ("preset", "weights", "nfs_server")
# What follows from a knob besides its own row.
FOLLOWS: dict[str, set[str]] = {
    "speculative_method": {"speculative_tokens", "drafter_path", "--speculative-config model"},
    "speculative_tokens": {"speculative_method"},
    "weights_path": {"served_model_name", "content", "the weights over NFS"},
    "drafter_path": {"content"},
    "chat_template": set(),
    "allow_tcp": {"NCCL_NET"},
    "nccl_rails": {"NCCL_IB_HCA", "NCCL_IB_MERGE_NICS", "NCCL_IB_ADDR_RANGE"},
}


def texts(cluster: Cluster) -> list[str]:
    return [render.rank_text(cluster, node) for node in cluster.nodes]


def readings(cluster: Cluster) -> tuple[dict[str, object], ...]:
    return read_launch(cluster.stack, texts(cluster))


def in_the_launch(cluster: Cluster) -> list[str]:
    """Knobs that a rank's text carries when they are stated."""
    without = {"drafter_path"} if "drafter_path" not in readings(cluster)[0] else set()
    return [
        name
        for name, knob in KNOBS.items()
        if knob.cost in (Cost.RESTART, Cost.STAGING) and name not in {*BEHIND, *without, "engine_env"}
    ]


def silent(name: str, value: object) -> bool:
    return KNOBS[name].leaves_it_to_the_engine(value)


@given(stated(), st.integers(0, 2))
def test_every_stated_knob_is_read_back(everywhere: dict[str, Any], more: int) -> None:
    """In its own type, on every rank, whatever the stack."""
    cluster = loaded(everywhere, more)
    for node, reading in zip(cluster.nodes, readings(cluster), strict=True):
        for name in in_the_launch(cluster):
            if name not in everywhere:
                continue
            value, knob = everywhere[name], KNOBS[name]
            found = reading.get(name)
            if name == "weights_path" and cluster.mounts_weights(node):
                assert found == MOUNT_POINT
            elif name in PATHS:
                assert found == expand(str(value), node.home), name
            elif name == "require_api_key":
                assert found == (value if node.is_head else None) or not value
            elif name == "speculative_tokens" and not cluster.knobs.speculative_method:
                assert found is None
            elif silent(name, value):
                assert found is (False if knob.flag and isinstance(knob.kind, Switch) else None), name
            else:
                assert found == value, name
                assert type(found) is type(getattr(cluster.knobs, name)), name
        for item in everywhere.get("engine_env", ()):
            key, _, rest = item.partition("=")
            assert reading[f"engine_env {key}"] == Hidden(rest)


@given(stated())
def test_nothing_of_a_launch_is_dropped(everywhere: dict[str, Any]) -> None:
    """Every word that is no knob's is in the reading under its own name."""
    cluster = loaded(everywhere)
    for text, reading in zip(texts(cluster), readings(cluster), strict=True):
        launch = json.loads(text)
        known = {"--enable-auto-tool-choice", "--speculative-config", "--default-chat-template-kwargs", "vllm"}
        spelled = {cluster.stack.spelling.get(knob.flag.name, knob.flag.name) for knob in KNOBS.values() if knob.flag}
        for group in launch["command"]:
            assert group[0] in {*known, *spelled, "--master-port"} or group[0] in reading
        variables = {name for knob in KNOBS.values() if knob.env for name in knob.env.names}
        for name, _ in launch["env"]:
            followed = {"NCCL_IB_GID_INDEX", "SPARKPAIR_GID_INDEX_0", "SPARKPAIR_GID_INDEX_1", "VLLM_API_KEY"}
            assert name in variables | followed or reading.keys() & {
                name,
                f"engine_env {name}",
            }


@given(stated())
def test_equal_launches_have_no_change(everywhere: dict[str, Any]) -> None:
    cluster = loaded(everywhere)
    assert changes(readings(cluster), readings(loaded(everywhere))) == ()


@given(stated(), st.data())
def test_one_knob_turned_is_its_row(everywhere: dict[str, Any], data: st.DataObject) -> None:
    """With old and new value, and no other row but what follows from it; none where the launch stays the same."""
    before = loaded(everywhere)
    fitting = [name for name in in_the_launch(before) if not KNOBS[name].only or everywhere["stack"] == "vllm-exl3"]
    name = data.draw(st.sampled_from([name for name in fitting if name not in ("stack", "tensor_parallel_size")]))
    turned = {**everywhere, name: data.draw(states(KNOBS[name]))}
    asked = dict(turned)
    after = loaded(turned)
    assume(turned == asked)  # else a rule between knobs took another one out
    rows = changes(readings(before), readings(after))
    moved = texts(before) != texts(after)
    assert bool(rows) == moved
    assume(moved)
    by_name = {row.knob: row for row in rows}
    assert by_name.keys() <= {name} | FOLLOWS.get(name, set()), by_name
    if name in by_name and name not in PATHS:
        row = by_name[name]
        assert row.new == readings(after)[0].get(name)
        assert row.old == readings(before)[0].get(name)
        assert row.cost is KNOBS[name].cost


def between(old: dict[str, Any], new: dict[str, Any]) -> tuple[Change, ...]:
    return changes(readings(pair.cluster(old)), readings(pair.cluster(new)))


def test_rows_say_what_a_value_becomes() -> None:
    rows = between({}, {"max_num_seqs": 8, "kv_cache_memory_bytes": 13_000_000_000, "nccl_channels": ""})
    assert [(row.knob, row.old, row.new, row.becomes, row.ranks) for row in rows] == [
        ("max_num_seqs", 4, 8, "--max-num-seqs", (0, 1)),
        ("kv_cache_memory_bytes", 14_400_000_000, 13_000_000_000, "--kv-cache-memory", (0, 1)),
        ("nccl_channels", 8, None, "NCCL_MIN_NCHANNELS, NCCL_MAX_NCHANNELS", (0, 1)),
    ]


def test_a_path_of_one_node_is_a_row_of_its_rank() -> None:
    old = readings(pair.cluster())
    new = readings(pair.cluster(worker=pair.node(pair.WORKER, weights_path="/fast/glm")))
    assert [(row.knob, row.new, row.ranks, row.cost) for row in changes(old, new)] == [
        ("weights_path", "/fast/glm", (1,), Cost.STAGING)
    ]


def test_a_rail_moves_what_nccl_is_told() -> None:
    """No knob stands for these: they keep the engine's own names."""
    rails = [{**rail, "hca": f"{rail['hca']}x"} for rail in pair.WORKER["rails"]]
    rows = changes(readings(pair.cluster()), readings(pair.cluster(worker=pair.node(pair.WORKER, rails=rails))))
    assert {row.knob: row.ranks for row in rows} == {"NCCL_IB_HCA": (1,)}


def test_another_stack_is_shown_whole() -> None:
    rows = {row.knob: row for row in between({}, pair.UPSTREAM)}
    assert (rows["stack"].old, rows["stack"].new) == ("vllm-exl3", "vllm")
    assert {"image", "weights_path", "max_model_len", "speculative_method", "HF_HOME"} <= rows.keys()


def test_more_nodes_are_one_row() -> None:
    rows = changes(readings(pair.cluster()), readings(pair.cluster(more=1)))
    assert {row.knob for row in rows} == {"tensor_parallel_size", "--nnodes"}


@pytest.mark.parametrize(
    ("change", "knob", "old", "new"),
    [
        (lambda launch: launch["command"].append(["--new-flag", "7"]), "--new-flag", None, "7"),
        (lambda launch: launch["command"].append(["--lone"]), "--lone", None, True),
        (lambda launch: launch["command"].remove(["--enable-auto-tool-choice"]), "--enable-auto-tool-choice", None, False),
        (lambda launch: launch["container"].append(["--cap-add", "SYS_PTRACE"]), "docker run --cap-add", "IPC_LOCK", "IPC_LOCK SYS_PTRACE"),
        (lambda launch: launch["mounts"].append(["/etc/x", "/x", "ro"]), "mount /x", None, "/etc/x:ro"),
        (lambda launch: launch["env"].append(["HF_TOKEN", "secret"]), "engine_env HF_TOKEN", None, Hidden("secret")),
        (lambda launch: launch["env"].remove(["HF_HUB_OFFLINE", "1"]), "HF_HUB_OFFLINE", "1", None),
        (lambda launch: launch.update(content=["/elsewhere"]), "content", None, "/elsewhere"),
    ],
)  # fmt: skip
def test_what_no_knob_stands_for_is_a_row(
    change: Callable[[dict[str, Any]], None], knob: str, old: object, new: object
) -> None:
    cluster = pair.cluster()
    launch = json.loads(texts(cluster)[0])
    change(launch)
    changed = read_launch(cluster.stack, [json.dumps(launch), texts(cluster)[1]])
    assert [(row.knob, row.old, row.new, row.ranks) for row in changes(readings(cluster), changed)] == [
        (knob, old, new, (0,))
    ]


def test_a_value_of_another_release_is_kept_as_text() -> None:
    cluster = pair.cluster()
    launch = texts(cluster)[0].replace('["--max-num-seqs", "4"]', '["--max-num-seqs", "four"]')
    assert read_launch(cluster.stack, [launch])[0]["max_num_seqs"] == "four"
    launch = texts(cluster)[0].replace('"{\\"enable_thinking\\": false}"', '"no table"')
    assert read_launch(cluster.stack, [launch])[0]["--default-chat-template-kwargs"] == "no table"


def test_a_hidden_value_does_not_show() -> None:
    assert "hf_secret" not in repr(Hidden("hf_secret"))
    (row,) = between({"engine_env": ["HF_TOKEN=hf_1"]}, {"engine_env": ["HF_TOKEN=hf_2"]})
    assert row.knob == "engine_env HF_TOKEN"
    assert "hf_" not in repr(row)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"stack": "tensorfold"}', '{"stack": []}', '{"stack": "vllm"}'])
def test_a_damaged_launch_is_not_read(text: str) -> None:
    with pytest.raises(Unreadable):
        read_launch(stack_of(text), [text])


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"canary": []}', '{"canary": {}, "api": 1}'])
def test_damaged_settings_of_the_keeper_are_not_read(text: str) -> None:
    with pytest.raises(Unreadable):
        read_service(text)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"engine": "x"}', '{"engine": "x", "identities": 3}'])
def test_a_damaged_manifest_is_not_read(text: str) -> None:
    with pytest.raises(Unreadable):
        read_identities(text)


@given(stated(), st.data())
def test_the_keepers_knobs_are_read_back(everywhere: dict[str, Any], data: st.DataObject) -> None:
    """And one turned is its row, with no other."""
    before = loaded(everywhere)
    old = read_service(render.service_text(before))
    names = [name for name, knob in KNOBS.items() if knob.cost is Cost.SERVICE]
    assert {name: old[name] for name in names} == {name: getattr(before.knobs, name) for name in names}
    name = data.draw(st.sampled_from(names))
    turned = {**everywhere, name: data.draw(states(KNOBS[name]))}
    asked = dict(turned)
    after = loaded(turned)
    assume(turned == asked)
    rows = service_changes(old, read_service(render.service_text(after)))
    differs = getattr(before.knobs, name) != getattr(after.knobs, name)
    assert [row.knob for row in rows] == ([name] if differs else [])


def test_the_rails_are_read_back() -> None:
    def of(**stated: Any) -> dict[int, Reading]:
        cluster = pair.cluster(stated)
        return {node.rank: read_rails(render.netplan_text(cluster, node)) for node in cluster.nodes}

    assert of()[0] == {
        "rail_mtu": 9000, "address of enp1s0f0np0": "10.200.0.1/24", "address of enP2p1s0f0np0": "10.200.1.1/24",
    }  # fmt: skip
    assert rail_changes(of(), of(rail_mtu=4000)) == (
        Change("rail_mtu", 9000, 4000, "mtu of each rail", (0, 1), Cost.FABRIC),
    )
    moved = {**of()[0], "address of enp1s0f0np0": "10.201.0.1/24"}
    assert [row.knob for row in rail_changes(of(), {0: moved})] == ["address of enp1s0f0np0"]
    assert read_rails("# before\n") == {}


def test_content_that_moved_under_the_same_path() -> None:
    launch = readings(pair.cluster())
    old, new = [["a" * 64, "d" * 64]] * 2, [["b" * 64, "d" * 64]] * 2
    assert [(row.knob, row.old, row.new, row.ranks) for row in content_changes(launch, old, launch, new)] == [
        ("content of weights_path", "a" * 12, "b" * 12, (0, 1))
    ]
    assert content_changes(launch, old, launch, None) == ()
    without = [{key: value for key, value in reading.items() if key != "drafter_path"} for reading in launch]
    assert content_changes(launch, old, without, [["a" * 64]] * 2) == ()


def test_another_api_key_is_told_without_it() -> None:
    launch = [{"weights_path": "/w", "require_api_key": True}, {"weights_path": "/w"}]
    (row,) = content_changes(launch, [["a", "k1"], ["a"]], launch, [["a", "k2"], ["a"]])
    assert (row.knob, row.ranks) == (API_KEY, (0,))
    assert "k1" not in repr(row)


def test_a_generation_is_what_its_name_says() -> None:
    cluster = pair.cluster()
    identities = [["a", "b"], ["a", "b"]]
    engine = render.engine_hash(texts(cluster), identities)
    assert holds(engine, texts(cluster), identities)
    assert not holds(engine, [*texts(cluster)[:1], texts(cluster)[1] + " "], identities)
    assert not holds(engine, texts(cluster)[:1], identities)


@given(stated())
def test_a_reading_is_knobs_again(everywhere: dict[str, Any]) -> None:
    """Rendered anew, they make the launch that was read: the head's, whose paths they have."""
    cluster = loaded(everywhere)
    knobs = knobs_of(readings(cluster)[0])
    assert knobs is not None
    assume(not everywhere.get("engine_env"))
    again = STACKS[cluster.stack.name].launch(knobs, cluster.seat(cluster.head))
    assert again.command == cluster.launch(cluster.head).command


def test_a_reading_of_another_release_is_no_knobs() -> None:
    assert knobs_of({"stack": "vllm", "max_num_seqs": "four"}) is None
