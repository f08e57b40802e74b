"""Settings of the kit, taken over, launch what the kit would have launched: argument by argument, on both ranks."""

# Messages stand here in one piece.
# ruff: noqa: E501

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from node import wire
from spec import render
from spec.cluster import Cluster
from spec.import_kit import Machine, Request, Result, take_over
from spec.kit_keys import KNOBS_OF
from spec.load import Source, StatedHost, connection_keys, load
from spec.resolve import resolve
from tests.render import reference
from tests.unit import pair

KITS = Path(__file__).parent / "kits"
HASH = "f" * 64
GID_INDEX = 3
HEAD_HOME = "/home/alice"
ALICE = Machine(user=lambda: "alice", home=lambda: Path(HEAD_HOME), address_towards=lambda address: "192.168.1.10")

# All that is meant to be different from the kit's launch, in one place:
# - labels, and the slice that holds the engine: render.ADDED, render.ADDED_LABELS;
# - the image by its digest, where the kit states a tag (BY_DIGEST);
# - numbers as Python spells them: GMU=0.80 is 0.8, and a budget of 16.5g is 16500000000 (SPELLED);
# - what the kit's installer hands to neither launcher takes effect here (reference.NOT_FORWARDED, ENGINE_ONLY);
# - Windows line ends end lines; the shell would keep them as part of every value (WITHOUT_CR);
# - the order of the options before the image, of which Docker makes nothing.
BY_DIGEST = {
    reference.TAG: reference.IMAGE,
    "registry.example:5000/glm/exl3:mine@sha256:" + "1" * 64: "registry.example:5000/glm/exl3@sha256:" + "1" * 64,
    "ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark:v2-glmnext@sha256:" + "2" * 64: "ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark@sha256:" + "2" * 64,
}  # fmt: skip
SPELLED = {
    "--gpu-memory-utilization": float,
    "--mm-processor-cache-gb": float,
    "--mixed-prefill-decode-weight": float,
    "--kv-cache-memory": lambda text: int(float(text[:-1]) * 1e9) if text.endswith("g") else int(text),
}
ENGINE_ONLY = ("VLLM_DFLASH_KV_RING",)
WITHOUT_CR = ("windows.env",)


@dataclass(frozen=True)
class Case:
    """A kit's file, what it comes to, and how the worker's user is called."""

    name: str
    pair: dict[str, object]
    worker_file: str | None = None
    worker_home: str = HEAD_HOME
    head_data: dict[str, object] = field(default_factory=dict)
    worker_data: dict[str, object] = field(default_factory=dict)
    more_files: tuple[str, ...] = ()


[MEMORY] = KNOBS_OF["MEM_USED_MAX_GB"]
FAIR = {"mixed_prefill_token_cap": 512, "mixed_prefill_decode_weight": 1.0}
COMPACT = {"kv_cache_dtype": "nvfp4_ds_mla", "nvfp4_mla_dynamic_scale": True}

CASES = [
    Case("example.env", {}),
    Case("minimal.env", {}),
    Case("defaults.env", {}),
    Case("empty-is-default.env", {}),
    Case("preset-responsive-chat.env", FAIR),
    Case("preset-more-context.env", COMPACT),
    Case("preset-long-documents.env", {**COMPACT, "max_model_len": 1048576, "max_num_batched_tokens": 4096}),
    Case(
        "preset-many-agents.env",
        {
            **FAIR,
            "max_model_len": 131072,
            "max_num_seqs": 12,
            "max_num_batched_tokens": 4096,
            "speculative_method": "",
        },
    ),
    Case(
        "preset-unquantized-kv.env",
        {
            "max_model_len": 131072,
            "max_num_seqs": 6,
            "kv_cache_dtype": "",
            "attention_backend": "",
            "skip_mm_profiling": False,
        },
    ),
    Case("preset-mtp-fallback.env", {"speculative_method": "mtp", "speculative_tokens": 4}),
    Case(
        "serving.env",
        {
            "api_port": 8100,
            "master_port": 29600,
            "max_model_len": 262144,
            "max_num_seqs": 5,
            "max_num_batched_tokens": 6144,
            "gpu_memory_utilization": 0.8,
            "kv_cache_memory_bytes": 13_400_000_000,
            **COMPACT,
            "block_size": 4608,
            "prefix_match_unit": 2304,
            "speculative_tokens": 5,
            "enforce_eager": True,
            "mm_processor_cache_gb": 1.0,
            "load_format": "auto",
            "mixed_prefill_token_cap": 1024,
            "mixed_prefill_decode_weight": 1.0,
            "use_b12x_fp8_gemm": False,
            "b12x_mxfp8_max_m": 32,
            "dflash_fp8_draft_head": False,
            "nccl_channels": 4,
            "exl3_standard_fused": False,
            "disabled_kernels": "FlashInferCutlassMxfp8LinearKernel",
            "update_check": False,
            MEMORY: 0,
        },
    ),
    Case(
        "empty.env",
        {
            "max_model_len": 131072,
            "kv_cache_dtype": "",
            "attention_backend": "",
            "kv_cache_dtype_skip_layers": "",
            "load_format": "",
            "prefix_match_unit": "",
            "kv_cache_memory_bytes": "auto",
            "nccl_channels": "",
        },
    ),
    Case(
        "fp8-e4m3.env",
        {
            "kv_cache_dtype": "fp8_e4m3",
            "attention_backend": "",
            "kv_cache_dtype_skip_layers": "",
            "kv_cache_memory_bytes": 12_400_000_000,
        },
    ),
    Case(
        "sixteen-streams.env",
        {
            "max_model_len": 131072,
            "max_num_seqs": 16,
            "max_num_batched_tokens": 4096,
            "kv_cache_memory_bytes": 16_500_000_000,
        },
    ),
    Case(
        "paths.env",
        {
            "weights_path": "~/models/glm",
            "weights_repository": "somebody/a-copy",
            "drafter_path": "~/models/glm53-dflash2",
            "drafter_repository": "incoai/GLM-5.3-Flash-DFlash2",
            "drafter_revision": "",
            "cache_path": "/srv/cache/glm",
        },
    ),
    Case(
        "other-user.env",
        {"drafter_path": "~/drafters/mxfp8", "cache_path": "~/cache"},
        worker_home="/srv/bob",
        worker_data={
            "weights_path": "/home/alice/models/glm53-exl3",
            "drafter_path": "/home/alice/drafters/mxfp8",
            "cache_path": "/home/alice/cache",
        },
    ),
    Case("topology.env", {}),
    Case(
        "not-forwarded.env",
        {
            "kda_prefill_backend": "triton",
            "mixed_prefill_token_cap": 512,
            "mixed_prefill_max_defer_steps": 4,
            "container_name": "glm",
            "nccl_ib_gid_index": 5,
            "dflash_kv_ring": False,
        },
    ),
    Case("words.env", {"speculative_method": "", "enforce_eager": True, "mixed_prefill_token_cap": -1}),
    Case(
        "quotes.env",
        {
            "max_model_len": 131072,
            "max_num_seqs": 8,
            "gpu_memory_utilization": 0.82,
            "kv_cache_memory_bytes": 13_400_000_000,
            "max_num_batched_tokens": 4096,
            "speculative_method": "",
            "drafter_path": "/srv/drafters/a+b",
        },
    ),
    Case(
        "windows.env",
        {"max_model_len": 131072, "kv_cache_dtype": "", "attention_backend": "", "skip_mm_profiling": False},
    ),
    Case(
        "node-head.env",
        {
            "drafter_path": "/home/alice/models/glm53-dflash2-mxfp8",
            "max_model_len": 131072,
            "kv_cache_dtype": "",
            "attention_backend": "",
            "kda_prefill_backend": "flashkda",
            MEMORY: 8,
        },
        worker_file="node-worker.env",
        more_files=("minimal.env",),
        head_data={"weights_path": "/home/alice/models/glm53-exl3", "nccl_ib_gid_index": 3},
        worker_data={"weights_path": "/data/models/glm53-exl3", "cache_path": "/data/cache", "nccl_ib_gid_index": 4},
    ),
    Case("image-digest.env", {"image": "registry.example:5000/glm/exl3@sha256:" + "1" * 64}),
    Case(
        "image-v2.env",
        {
            "image": "ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark@sha256:" + "2" * 64,
            "image_release": "v2",
            "kv_cache_memory_bytes": 12_400_000_000,
            "prefix_match_unit": "",
            "use_b12x_fp8_gemm": False,
        },
    ),
]


def imported(case: Case) -> Result:
    """The case's files, taken over on the head."""
    worker = KITS / case.worker_file if case.worker_file else None
    paths = tuple(KITS / name for name in (*case.more_files, case.name))
    result = take_over(Request(paths, worker_file=worker, here=True), ALICE)
    assert result.refusals == []
    return result


def cluster(case: Case, result: Result) -> Cluster:
    """The pair that the written files state."""
    [(head, head_data), (worker, worker_data)] = result.hosts.items()
    everywhere = {"stack": "vllm-exl3", **{name: value for name, (value, _) in result.pair.items()}}
    hosts = [
        StatedHost(name, (group,), name == "@local", (Source(f"inventory: {name}", data, of_one_node=True), Source("group_data/all.py", everywhere)))
        for name, group, data in ((head, "head", head_data), (worker, "worker", worker_data))
    ]  # fmt: skip
    facts = {head: pair.Facts("alice", HEAD_HOME), worker: pair.Facts("bob", case.worker_home)}
    return resolve(load(hosts, connection_keys()), facts)


BASH = shutil.which("bash")


def sourced(name: str, home: str) -> dict[str, str]:
    """The variables of a file as the kit itself reads it: by the shell."""
    data = (KITS / name).read_bytes()
    if name in WITHOUT_CR:
        data = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
    done = subprocess.run(
        [str(BASH), "--noprofile", "--norc", "-c", "set -a; . /dev/stdin; exec /usr/bin/env -0"],
        input=data,
        env={"HOME": home},
        capture_output=True,
        timeout=20,
        check=True,
    )
    pairs = (item.partition("=") for item in done.stdout.decode().split("\0") if item)
    return {key: value for key, _, value in pairs if key not in ("HOME", "PWD", "SHLVL", "_", "OLDPWD")}


@dataclass(frozen=True)
class Flat:
    """A `docker run` taken apart."""

    container: frozenset[tuple[str, ...]]
    volumes: frozenset[str]
    environment: dict[str, str]
    image: str
    command: list[object]


def taken_apart(words: list[str]) -> Flat:
    """By a reader of this test's own."""
    assert words[:2] == ["docker", "run"]
    at = 2
    options: list[tuple[str, ...]] = []
    while words[at].startswith("-"):
        length = 1 if words[at] == "-d" else 2
        options.append(tuple(words[at : at + length]))
        at += length
    assert len(options) == len(set(options)), "an option is there twice"
    pairs = [option[1].partition("=") for option in options if option[0] == "-e"]
    assert len({name for name, _, _ in pairs}) == len(pairs), "a variable is there twice"
    command: list[object] = list(words[at + 1 :])
    for flag, spelled in SPELLED.items():
        if flag in command:
            value = command.index(flag) + 1
            command[value] = spelled(str(command[value]))
    return Flat(
        container=frozenset(option for option in options if option[0] not in ("-v", "-e")),
        volumes=frozenset(option[1] for option in options if option[0] == "-v"),
        environment={name: value for name, _, value in pairs},
        image=words[at],
        command=command,
    )


def ours(cluster: Cluster, rank: int) -> Flat:
    """What the rank agent runs, without what we add."""
    spec = wire.parse_rank(render.rank_text(cluster, cluster.nodes[rank]))
    gids = [value for _, value in spec.env if isinstance(value, wire.GidIndex)]
    flat = taken_apart(wire.docker_run(spec, HASH, epoch=7, gid_index=dict.fromkeys(gids, GID_INDEX)))
    rows = ",".join(sorted(f"{wanted.hca}/{wanted.address}={GID_INDEX}" for wanted in gids))
    labels = dict(zip(render.ADDED_LABELS, (HASH, str(rank), "7", rows), strict=True))
    if not gids:  # a row that is stated
        del labels[wire.LABEL_GIDS]
    added = {*render.ADDED, *(("--label", f"{name}={value}") for name, value in labels.items())}
    assert added <= flat.container
    return replace(flat, container=flat.container - added)


def the_kits(case: Case, rank: int) -> Flat:
    """What the kit would have run, with the deviations that are meant."""
    home = HEAD_HOME if rank == 0 else case.worker_home
    if case.worker_file:
        variables = sourced(case.name if rank == 0 else case.worker_file, home)
    else:
        variables = reference.installed(sourced(case.name, HEAD_HOME), HEAD_HOME, reference.NOT_FORWARDED)[rank]
    flat = taken_apart(reference.launched(variables, rank, home, GID_INDEX))
    environment = dict(flat.environment)
    for name in ENGINE_ONLY:
        stated = sourced(case.name, HEAD_HOME)
        if name in stated:
            environment[name] = stated[name]
    return replace(flat, image=BY_DIGEST[flat.image], environment=environment)


@pytest.mark.skipif(BASH is None, reason="no bash to read the files as the kit does")
@pytest.mark.parametrize("rank", [0, 1], ids=["head", "worker"])
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_launch_is_the_kits(case: Case, rank: int) -> None:
    """Image, container, volumes, variables and command, in its order."""
    flat, expected = ours(cluster(case, imported(case)), rank), the_kits(case, rank)
    assert flat.command == expected.command
    assert flat.environment == expected.environment
    assert flat.volumes == expected.volumes
    assert flat.container == expected.container
    assert flat.image == expected.image


VALUES = {
    "PORT": ["", "8000", "8100"],
    "MPORT": ["", "29521", "29600"],
    "MAX_LEN": ["", "65536", "131072", "524288", "1048576"],
    "MAX_SEQS": ["", "1", "4", "12", "16"],
    "MNBT": ["", "4096", "8192"],
    "GMU": ["", "0.8", "0.85", "0.90"],
    "KV_CACHE_MEMORY": ["", "auto", "14400000000", "12400000000", "16.5g"],
    "KV_DTYPE": ["", "fp8_ds_mla", "nvfp4_ds_mla", "fp8_e4m3"],
    "ATTN_BACKEND": ["", "B12X_MLA_SPARSE"],
    "KV_SKIP_LAYERS": ["", "sliding_window"],
    "LOAD_FORMAT": ["", "instanttensor", "auto"],
    "PREFIX_MATCH_UNIT": ["", "512", "2304"],
    "BLOCK_SIZE": ["", "2304", "4608"],
    "SPEC": ["", "dflash", "none", "ngram"],
    "MTP": ["", "0", "4"],
    "DFLASH_TOKENS": ["", "7", "3"],
    "EAGER": ["", "0", "1", "yes"],
    "SKIP_MM_PROFILING": ["", "0", "1", "no"],
    "MM_CACHE_GB": ["", "0.5", "2"],
    "KDA_PREFILL": ["", "triton", "auto"],
    "MIXED_PREFILL_CAP": ["", "-1", "0", "512"],
    "MIXED_PREFILL_DECODE_WEIGHT": ["", "0", "1.0", "1"],
    "MIXED_PREFILL_MAX_DEFER": ["", "0", "8"],
    "VLLM_USE_B12X_FP8_GEMM": ["", "0", "1"],
    "VLLM_B12X_MXFP8_MAX_M": ["", "0", "16"],
    "VLLM_DFLASH_FP8_DRAFT_HEAD": ["", "0", "1"],
    "VLLM_NVFP4_MLA_DYNAMIC_SCALE": ["", "0", "1"],
    "VLLM_EXL3_STANDARD_FUSED": ["", "0", "1"],
    "VLLM_DISABLED_KERNELS": ["", "Marlin"],
    "NCCL_NCHANNELS": ["", "0", "8", "4"],
    "NCCL_GID_INDEX": ["", "3", "5"],
    "NAME": ["", "glm"],
    "IMAGE": ["", reference.TAG],
    "MODEL_HOST_PATH": ["", "/srv/weights", f"{HEAD_HOME}/models/glm53-exl3"],
    "DFLASH_DIR": ["", "/srv/drafter"],
    "CACHE_HOST_PATH": ["", "/srv/cache"],
    "HEAD_NCCL_IF": ["", "enp1s0f1np1"],
    "WORKER_NCCL_HCA": ["", "rocep1s0f1"],
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stated=st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in VALUES.items()}))
def test_whatever_is_taken_launches_alike(tmp_path: Path, stated: dict[str, str]) -> None:
    """Any set of variables that a deploy would take, on both ranks."""
    path = tmp_path / ".env"
    path.write_text("WORKER_LAN_IP=192.168.1.2\n" + "".join(f"{name}='{value}'\n" for name, value in stated.items()))
    result = take_over(Request((path,), here=True), ALICE)
    assert result.refusals == []
    if result.refused_by_deploy:
        return
    case = Case(".env", {})
    pair_of_nodes = cluster(case, result)
    for rank, variables in enumerate(reference.installed(stated, HEAD_HOME, reference.NOT_FORWARDED)):
        expected = taken_apart(reference.launched(variables, rank, HEAD_HOME, GID_INDEX))
        assert ours(pair_of_nodes, rank) == replace(expected, image=BY_DIGEST[expected.image])


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_settings_are_these(case: Case) -> None:
    """What is written: only what differs from the defaults, and for one node only what is that node's."""
    result = imported(case)
    assert {name: value for name, (value, _) in result.pair.items()} == case.pair
    assert result.nodes == {"head": case.head_data, "worker": case.worker_data}


@pytest.mark.parametrize("rank", [0, 1])
def test_the_model_of_the_kit_is_its_published_launch(rank: int) -> None:
    """Two descriptions of the kit, made apart, agree where nothing is stated."""
    variables = reference.installed({}, "/home/alice")[rank]
    flat = taken_apart(reference.launched(variables, rank, "/home/alice", 3))
    assert flat.container == reference.CONTAINER
    assert flat.volumes == reference.volumes("/home/alice")
    assert flat.environment == reference.environment(f"10.200.0.{rank + 1}", "rocep1s0f0", "enp1s0f0np0", 3)
    spelled: list[object] = list(reference.command(rank))
    for flag, value in SPELLED.items():
        if flag in spelled:
            spelled[spelled.index(flag) + 1] = value(str(spelled[spelled.index(flag) + 1]))
    assert flat.command == spelled


# Files that are not taken, and files that are taken and that a deploy refuses.

QUOTE = "has a meaning in the shell; put the value in single quotes"
REFUSED: list[tuple[tuple[str, ...], list[str]]] = [
    (
        ("broken-shell.env",),
        [
            "broken-shell.env:1: $(...) would run a command; write what it gives",
            "broken-shell.env:2: ${MAX_LEN:-131072} is an expression; write its value",
            "broken-shell.env:3: ; starts another command; write one setting per line",
            "broken-shell.env:4: $MODELS is another variable; write its value, or put it in single quotes",
            "broken-shell.env:5: KV_DTYPE and = stand apart, which the shell takes for a command; write KV_DTYPE=value without blanks",
            "broken-shell.env:6: if would be run as a command; write KEY=value, or # before a remark",
        ],
    ),
    (
        ("broken-values.env",),
        [
            "broken-values.env:2: MAX_LEN=128k: must be a whole number, 1 to 1048576",
            "broken-values.env:3: MAX_SEQS=0: must be at least 1",
            "broken-values.env:4: GMU=1.2: must be at most 1",
            "broken-values.env:5: MTP=four: must be a whole number, 0 to 16",
            'broken-values.env:6: KV_CACHE_MEMORY=14.4e9: must be a whole number, 1000000 to 100000000000, or "auto"',
            'broken-values.env:7: KDA_PREFILL=fast: must be one of triton, flashkda, auto; or "", which leaves it out',
            "broken-values.env:8: VLLM_USE_B12X_FP8_GEMM=yes: must be 0 or 1",
            "broken-values.env:9: MODEL_HOST_PATH=models/glm: must be an absolute path on the node, or one that starts with ~/",
            "broken-values.env:10: EXL3_REPO=glm: must be a repository such as owner/name",
            "broken-values.env:11: PORT=0: must be at least 1",
            "broken-values.env:12: NCCL_NCHANNELS=64: must be at most 32",
            "broken-values.env:13: DFLASH_REVISION=main: must be a commit of 40 hex digits; a branch or a tag can move",
        ],
    ),
    (
        ("broken-topology.env",),
        [
            "broken-topology.env:3: WORKER_RAIL_IP=10.201.0.2 is not in NCCL_SUBNET=10.200.0.0/24; NCCL finds no device then; state the network of both rails",
            "broken-topology.env:1: WORKER_LAN_IP=spark-b.example: must be the worker's IPv4 address",
        ],
    ),
    (
        ("broken-image.env",),
        [
            "broken-image.env:2: IMAGE=ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark:v1-dflash2: a tag can be pushed again, so an image is stated by digest; on the head, docker image inspect --format '{{index .RepoDigests 0}}' ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark:v1-dflash2 names it: write IMAGE=ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark:v1-dflash2@sha256:..., or leave IMAGE out for v2.3-tier1",
        ],
    ),
    (
        ("minimal.env", "node-head.env", "broken-node-worker.env"),
        [
            "max_model_len: node-head.env:13 has MAX_LEN=131072 and broken-node-worker.env:6 has MAX_LEN=262144; both ranks have one value: make the files agree",
            "kda_prefill_backend: node-head.env:17 has KDA_PREFILL=flashkda and broken-node-worker.env:10 has KDA_PREFILL=triton; both ranks have one value: make the files agree",
            "broken-node-worker.env:2: WORKER_RAIL_IP=10.200.0.34, and for the head it is 10.200.0.33; both files must agree",
        ],
    ),
    (
        ("broken-edited.env", "node-head.env", ""),
        ["node-head.env:13: MAX_LEN=131072, and broken-edited.env:3 has 262144; name the one file that holds"],
    ),
    (
        ("node-head.env",),
        [
            "inventory.py needs WORKER_LAN_IP, the worker's address on the management network: name the kit's .env",
            "inventory.py needs the worker's netdev and HCA: name its ~/.glm53-serve.env with --worker-file, or the kit's .env",
        ],
    ),
    (
        ("minimal.env", "node-head.env", "minimal.env"),
        ["minimal.env: is the kit's .env, not a node's own file; --worker-file takes the worker's ~/.glm53-serve.env"],
    ),
]
REFUSED_BY_DEPLOY = {
    "unservable-scale.env": ['kv_cache_dtype = "nvfp4_ds_mla": needs nvfp4_mla_dynamic_scale = True, or the engine refuses to start; set that too'],
    "unservable-million.env": ["max_num_batched_tokens = 8192 (the stack's default): 8192 wedged a head under concurrent traffic where max_model_len is above 524288 (1048576); set max_num_batched_tokens = 4096"],
    "unservable-dev-mode.env": ['server_dev_mode = True: api_bind is 0.0.0.0, where others reach the administration endpoints; set api_bind = "127.0.0.1", or leave server_dev_mode out'],
}  # fmt: skip


@pytest.mark.parametrize(("names", "refusals"), REFUSED, ids=["+".join(names) for names, _ in REFUSED])
def test_refused(names: tuple[str, ...], refusals: list[str]) -> None:
    """All at once, each with file and line. The third of three files is the worker's own."""
    paths = tuple(KITS / name for name in names[:2])
    worker = KITS / names[2] if names[2:] and names[2] else None
    result = take_over(Request(paths, worker_file=worker, here=True), ALICE)
    assert [line.replace(f"{KITS}/", "") for line in result.refusals] == refusals


@pytest.mark.parametrize("name", REFUSED_BY_DEPLOY)
def test_refused_by_a_deploy(name: str) -> None:
    """What the kit would have tried and the engine refused is taken over, and said before a deploy says it."""
    result = take_over(Request((KITS / name,), here=True), ALICE)
    assert result.refusals == []
    assert result.refused_by_deploy == REFUSED_BY_DEPLOY[name]


def test_every_file_has_its_case() -> None:
    """No kit lies here untested."""
    cases = {name for case in CASES for name in (case.name, case.worker_file) if name}
    cases |= {name for names, _ in REFUSED for name in names if name} | set(REFUSED_BY_DEPLOY)
    assert {path.name for path in KITS.iterdir()} == cases
