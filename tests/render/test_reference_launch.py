"""The launch of stack vllm-exl3 is the reference kit's, argument by argument, on both ranks."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from node import wire
from spec import render
from spec.cluster import Cluster
from tests.render import reference
from tests.unit import pair

HASH = "f" * 64
WITHOUT_VALUE = {"-d"}


@dataclass(frozen=True)
class Flat:
    """A `docker run` taken apart by a reader of its own."""

    container: set[tuple[str, ...]]
    volumes: set[str]
    environment: dict[str, str]
    image: str
    command: list[str]


def launch(cluster: Cluster, rank: int, gid_index: int) -> Flat:
    """What the rank agent runs for a rank whose wanted set is the rendered one."""
    spec = wire.parse_rank(render.rank_text(cluster, cluster.nodes[rank]))
    gids = [value for _, value in spec.env if isinstance(value, wire.GidIndex)]
    words = wire.docker_run(spec, HASH, epoch=7, gid_index=dict.fromkeys(gids, gid_index))
    assert words[:2] == ["docker", "run"]
    at = 2
    options: list[tuple[str, ...]] = []
    while words[at].startswith("-"):
        length = 1 if words[at] in WITHOUT_VALUE else 2
        options.append(tuple(words[at : at + length]))
        at += length
    assert len(options) == len(set(options)), "an option is there twice"
    pairs = [option[1].partition("=") for option in options if option[0] == "-e"]
    assert len({name for name, _, _ in pairs}) == len(pairs), "a variable is there twice"
    return Flat(
        container={option for option in options if option[0] not in ("-v", "-e")},
        volumes={option[1] for option in options if option[0] == "-v"},
        environment={name: value for name, _, value in pairs},
        image=words[at],
        command=words[at + 1 :],
    )


NODES = [
    pytest.param(0, "/home/alice", "10.200.0.1", "rocep1s0f0", "enp1s0f0np0", 3, id="head"),
    pytest.param(1, "/srv/bob", "10.200.0.2", "rocep1s0f1", "enp1s0f1np1", 4, id="worker"),
]


@pytest.mark.parametrize(("rank", "home", "address", "hca", "netdev", "gid_index"), NODES)
@pytest.mark.report("GID-03", "NET-20", "NET-11", "RDMA-02", "RDMA-05")
def test_launch_is_the_references(rank: int, home: str, address: str, hca: str, netdev: str, gid_index: int) -> None:
    """Nothing stated: image, container, volumes, environment and command are the kit's; ours is what ADDED names."""
    ours = launch(pair.cluster(), rank, gid_index)
    labels = dict(zip(render.ADDED_LABELS, (HASH, str(rank), "7", f"{hca}/{address}={gid_index}"), strict=True))
    added = {*render.ADDED, *(("--label", f"{name}={value}") for name, value in labels.items())}
    assert ours.container - added == reference.CONTAINER
    assert added <= ours.container
    assert ours.volumes == reference.volumes(home)
    assert ours.environment == reference.environment(address, hca, netdev, gid_index)
    assert ours.image == reference.IMAGE
    assert ours.command == reference.command(rank)


def test_added_is_two_things() -> None:
    """What we add is named, and is no more than this."""
    assert render.ADDED == (("--cgroup-parent", "sparkpair-engine.slice"),)
    assert render.ADDED_LABELS == ("sparkpair.engine", "sparkpair.rank", "sparkpair.epoch", "sparkpair.gids")


@pytest.mark.parametrize("rank", [0, 1])
def test_optional_arguments_stand_where_the_kit_puts_them(rank: int) -> None:
    """The knobs that the kit leaves out unless they are set."""
    assert launch(pair.cluster(reference.TURNED), rank, 3).command == reference.command_turned(rank)


@pytest.mark.parametrize(
    ("stated", "gone", "come"),
    [
        pytest.param(
            {"kv_cache_dtype": "", "attention_backend": "", "max_model_len": 131072},
            [
                ("--max-model-len", "524288"),
                ("--kv-cache-dtype", "fp8_ds_mla"),
                ("--attention-backend", "B12X_MLA_SPARSE"),
            ],
            [("--max-model-len", "131072")],
            id="KV_DTYPE= ATTN_BACKEND= MAX_LEN=131072",
        ),
        pytest.param(
            {"kv_cache_dtype_skip_layers": ""},
            [("--kv-cache-dtype-skip-layers", "sliding_window")],
            [],
            id="KV_SKIP_LAYERS=",
        ),
        pytest.param({"load_format": ""}, [("--load-format", "instanttensor")], [], id="LOAD_FORMAT="),
        pytest.param({"prefix_match_unit": ""}, [("--prefix-match-unit", "512")], [], id="PREFIX_MATCH_UNIT="),
        pytest.param(
            {"kv_cache_memory_bytes": "auto"}, [("--kv-cache-memory", "14400000000")], [], id="KV_CACHE_MEMORY=auto"
        ),
        pytest.param({"kv_cache_memory_bytes": None}, [], [], id="KV_CACHE_MEMORY unset"),
        pytest.param({"max_num_batched_tokens": None}, [], [], id="MNBT unset"),
        pytest.param(
            {"skip_mm_profiling": False, "max_model_len": 131072},
            [("--max-model-len", "524288"), ("--skip-mm-profiling",)],
            [("--max-model-len", "131072")],
            id="SKIP_MM_PROFILING=0 MAX_LEN=131072",
        ),
        pytest.param({"enforce_eager": True}, [], [("--enforce-eager",)], id="EAGER=1"),
        pytest.param(
            {"max_num_seqs": 16, "kv_cache_memory_bytes": 16.5e9, "max_model_len": 131072},
            [("--max-model-len", "524288"), ("--max-num-seqs", "4"), ("--kv-cache-memory", "14400000000")],
            [("--max-model-len", "131072"), ("--max-num-seqs", "16"), ("--kv-cache-memory", "16500000000")],
            id="MAX_SEQS=16 KV_CACHE_MEMORY=16.5e9 MAX_LEN=131072",
        ),
        pytest.param(
            {"enable_thinking": True},
            [("--default-chat-template-kwargs", '{"enable_thinking": false}')],
            [("--default-chat-template-kwargs", '{"enable_thinking": true}')],
            id="thinking",
        ),
        pytest.param(
            {"tool_call_parser": ""},
            [("--tool-call-parser", "glm47"), ("--enable-auto-tool-choice",)],
            [],
            id="no tool calls",
        ),
    ],
)
def test_three_states(stated: dict[str, object], gone: list[tuple[str, ...]], come: list[tuple[str, ...]]) -> None:
    """Unset is the kit's default, empty drops the flag, a value replaces it; every other group stays as it was."""
    before = [tuple(group) for group in pair.cluster().launch(pair.cluster().head).command]
    turned = pair.cluster(stated)
    after = [tuple(group) for group in turned.launch(turned.head).command]
    assert [group for group in before if group not in after] == gone
    assert [group for group in after if group not in before] == come


@pytest.mark.parametrize(
    ("stated", "config", "drafter"),
    [
        pytest.param(
            {"speculative_tokens": 5},
            '{"method":"dflash","model":"/models/glm53-dflash2","num_speculative_tokens":5}',
            True,
            id="DFLASH_TOKENS=5",
        ),
        pytest.param({"speculative_method": "mtp"}, '{"method":"mtp","num_speculative_tokens":4}', False, id="MTP=4"),
        pytest.param({"speculative_method": ""}, None, False, id="SPEC=none"),
    ],
)
def test_speculation(stated: dict[str, object], config: str | None, drafter: bool) -> None:
    """The drafter is mounted, and counted as content, only while it is used."""
    cluster = pair.cluster(stated)
    launch = cluster.launch(cluster.head)
    flags = dict(group for group in launch.command if len(group) == 2)
    assert flags.get("--speculative-config") == config
    assert any(mount[1] == "/models/glm53-dflash2" for mount in launch.mounts) is drafter
    assert ("/home/alice/models/glm53-dflash2-mxfp8" in launch.content) is drafter


@pytest.mark.parametrize(
    ("stated", "variables"),
    [
        pytest.param({"nccl_channels": ""}, {"NCCL_MIN_NCHANNELS": None, "NCCL_MAX_NCHANNELS": None}, id="empty"),
        pytest.param({"nccl_channels": 4}, {"NCCL_MIN_NCHANNELS": "4", "NCCL_MAX_NCHANNELS": "4"}, id="4"),
        pytest.param({"use_b12x_fp8_gemm": False}, {"VLLM_USE_B12X_FP8_GEMM": "0"}, id="off"),
        pytest.param({"nvfp4_mla_dynamic_scale": True}, {"VLLM_NVFP4_MLA_DYNAMIC_SCALE": "1"}, id="on"),
        pytest.param({"b12x_mxfp8_max_m": 0}, {"VLLM_B12X_MXFP8_MAX_M": "0"}, id="zero"),
        pytest.param({"disabled_kernels": "A,B"}, {"VLLM_DISABLED_KERNELS": "A,B"}, id="kernels"),
        pytest.param({"exl3_standard_fused": False}, {"VLLM_EXL3_STANDARD_FUSED": "0"}, id="not fused"),
        pytest.param({"dflash_kv_ring": False}, {"VLLM_DFLASH_KV_RING": "0"}, id="no ring"),
        pytest.param(
            {"server_dev_mode": True, "api_bind": "127.0.0.1"}, {"VLLM_SERVER_DEV_MODE": "1"}, id="development"
        ),
        pytest.param({"nccl_ib_gid_index": 5}, {"NCCL_IB_GID_INDEX": "5"}, id="gid"),
        pytest.param({"engine_env": ["VLLM_SOMETHING=a=b c"]}, {"VLLM_SOMETHING": "a=b c"}, id="extra"),
    ],
)
def test_variables(stated: dict[str, object], variables: dict[str, str | None]) -> None:
    """Knobs that are variables, and the operator's own, on every rank."""
    cluster = pair.cluster(stated)
    for node in cluster.nodes:
        environment = dict(cluster.launch(node).env)
        assert {name: environment.get(name) for name in variables} == variables
