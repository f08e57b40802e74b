"""Every knob once: type, bounds, default, where it goes, whom it concerns, what a change costs, and why.

Validation, the engine's arguments and environment, `--data` and docs/knobs.md all derive from these declarations.
A knob that is a flag of the engine stands here in the order in which the flags are written.

Three states: unset (None: the stack's default applies), empty ("": the flag is left out and the engine's own default
applies; only where the type says `Empty`), or a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from spec.kinds import (
    EMPTY,
    Address,
    Commit,
    ControlPath,
    Empty,
    Endpoint,
    Hours,
    Image,
    Kind,
    Licences,
    Name,
    Network,
    NodePath,
    Number,
    OneOf,
    Pairs,
    Prefix,
    Refused,
    Repository,
    Revision,
    Several,
    Size,
    Switch,
    Whole,
    WholeOr,
    Words,
    shown,
)

__all__ = [
    "EMPTY",
    "KNOBS",
    "PRESETS",
    "RELEASES",
    "SECTIONS",
    "STACKS",
    "Becomes",
    "Cost",
    "Env",
    "Flag",
    "Kit",
    "Knob",
    "Knobs",
    "Only",
    "Refused",
    "Scope",
    "shown",
]


class Scope(Enum):
    """Whether a knob has one value for the pair, or may differ by node (then inventory.py may state it)."""

    PAIR = "pair"
    NODE = "node"


class Cost(Enum):
    """What it takes to turn a knob on a serving pair."""

    NOTHING = "nothing restarts or reloads"
    SERVICE = "the keeper reloads its settings, the engine runs on"
    RESTART = "one restart of the pair"
    STAGING = "files or images are staged first, then one restart of the pair"
    FABRIC = "the rails are configured anew, and the engine's traffic pauses"


@dataclass(frozen=True)
class Flag:
    """The knob is a flag of `vllm serve`; a switch is a flag without a value, written only when on."""

    name: str


@dataclass(frozen=True)
class Env:
    """The knob is a variable in the engine's environment; a switch is written as 1 or 0."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)


@dataclass(frozen=True)
class Becomes:
    """Where the knob goes when it is neither one flag nor a variable, in words; the stack or a role writes it."""

    text: str


@dataclass(frozen=True)
class Only:
    """The one stack whose engine knows this knob; it is refused with any other."""

    stack: str


@dataclass(frozen=True)
class Kit:
    """What the reference kit calls it."""

    name: str


STACKS = ("vllm-exl3", "vllm")

PRESETS = (
    "default",
    "responsive-chat",
    "more-context",
    "long-documents",
    "many-agents",
    "unquantized-kv",
    "mtp-fallback",
)
"""Names only; what each holds, gives and takes is said in spec/presets.py."""

RELEASES = ("v1", "v2", "v2.1", "v2.2", "v2.3")
"""Releases of the reference kit's image, oldest first."""


class Knobs(BaseModel):
    """The operator's settings as stated: flat, plain values."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)

    # What is served, and from where

    stack: Annotated[str, OneOf(STACKS), Cost.STAGING, Becomes("the launch as a whole")] = "vllm-exl3"
    """Engine, checkpoint and drafter as one proven whole. `vllm-exl3` is GLM 5.3 Flash at 4 bit as the reference kit
    v2.3-tier1 serves it; `vllm` is upstream vLLM with any model directory."""

    preset: Annotated[str | None, OneOf(PRESETS), Only("vllm-exl3"), Cost.RESTART, Becomes("other knobs")] = None
    """A named bundle of settings (docs/presets.md). What is stated beside it wins over what is in it, and what is in it
    over the stack's defaults."""

    image: Annotated[str | None, Image(), Cost.STAGING, Kit("IMAGE"), Becomes("the image of both ranks")] = None
    """By digest, because a tag can be pushed again: the reference kit v2.3-tier1 pins a tag, and its rollback then
    returns to a name and not to the bits that worked."""

    image_release: Annotated[
        str | None, OneOf(RELEASES), Only("vllm-exl3"), Cost.NOTHING, Kit("KIT_VERSION"), Becomes("cross rules")
    ] = None
    """Which release of the reference kit a stated image is, since a digest does not say: older ones refuse knobs that
    newer ones know. Unset: what the digest is known as."""

    weights_path: Annotated[
        str | None, NodePath(), Scope.NODE, Cost.STAGING, Kit("MODEL_HOST_PATH"), Becomes("a mount, read-only")
    ] = None
    """Directory of the checkpoint, flat: the loader of the reference stack does not follow the link tree of a
    Hugging Face cache. `~/` is the home on each node, which may differ between the nodes."""

    weights: Annotated[
        str, OneOf(("local", "nfs")), Cost.STAGING, Kit("WEIGHTS_MODE"), Becomes("where the weights' mount comes from")
    ] = "local"
    """Where a node reads the weights: `local` is its own disk, and each node holds a copy (about 176 GB). With `nfs`
    one node holds them and the other mounts them read-only over a rail, which saves that disk and makes its loads as
    fast as the rail; local is the default because nfs as a default was taken back within a day by another pair's
    project (field reports: NFS-06)."""

    nfs_server: Annotated[
        str, OneOf(("worker", "head")), Cost.STAGING, Becomes("which node holds the weights with weights = nfs")
    ] = "worker"
    """Which node holds and exports the weights with `weights = "nfs"`; of no effect with `local`. The worker, as in the
    reference kit v2.3-tier1, because the head has less memory to spare."""

    weights_repository: Annotated[
        str | None, Repository(), Cost.NOTHING, Kit("EXL3_REPO"), Becomes("the lock file, and from there the download")
    ] = None
    """Where weights_path comes from. `make lock` writes down which files of it, and only those are ever downloaded:
    the reference kit v2.3-tier1 takes whatever the repository holds that day."""

    weights_repository_fallback: Annotated[
        str | Empty | None,
        Repository(),
        Cost.NOTHING,
        Kit("EXL3_REPO_FALLBACK"),
        Becomes("the lock file, as a mirror"),
    ] = None
    """A second source of the same checkpoint, taken when the first brings nothing. `make lock` proves that its files
    are the same, or leaves it out and says what differs. Empty: none. The reference kit v2.3-tier1 reads it, yet
    reports it as unknown in its own `.env`."""

    weights_revision: Annotated[
        str | None, Revision(), Cost.NOTHING, Becomes("the lock file, as the commit that it was when it was resolved")
    ] = None
    """Branch, tag or commit of weights_repository that `make lock` resolves. Unset: `main`. A deploy never looks at
    it, so a branch that moved changes nothing until the lock is made again."""

    drafter_path: Annotated[
        str | Empty | None, NodePath(), Scope.NODE, Cost.STAGING, Kit("DFLASH_DIR"), Becomes("a mount, read-only")
    ] = None
    """Directory of the draft model; mounted only while speculation needs it."""

    drafter_repository: Annotated[
        str | None,
        Repository(),
        Cost.NOTHING,
        Kit("DFLASH_REPO"),
        Becomes("the lock file, and a check of drafter_path"),
    ] = None
    """Where drafter_path comes from. The 8-bit copy holds an `hf_quant_config.json` and the 16-bit original does not,
    so a directory of the other format is told. CC BY-NC-ND 4.0: downloaded from its source, never passed on, and only
    once accepted_licences says so."""

    drafter_revision: Annotated[
        str | Empty | None,
        Commit(),
        Cost.NOTHING,
        Kit("DFLASH_REVISION"),
        Becomes("the lock file"),
    ] = None
    """Commit of drafter_repository that `make lock` resolves. Empty: its newest. Unset: the commit that the reference
    kit v2.3-tier1 pins for its default repository, and the newest of any other."""

    cache_path: Annotated[
        str | None, NodePath(), Scope.NODE, Cost.RESTART, Kit("CACHE_HOST_PATH"), Becomes("mounts for compiled kernels")
    ] = None
    """Compiled kernels live here between starts; a new place means compiling everything again at the next start
    (reference kit v2.3-tier1)."""

    container_name: Annotated[
        str | None, Name(longest=63), Cost.RESTART, Kit("NAME"), Becomes("--name of the container")
    ] = None
    """Name of the container on each node."""

    shm_size: Annotated[str | None, Size(), Cost.RESTART, Becomes("--shm-size of the container")] = None
    """Shared memory of the container. The reference kit v2.3-tier1 gives 32g; with the host's IPC namespace the value
    hardly matters, and it is kept for likeness."""

    # Flags of the engine, in the order in which they are written

    served_model_name: Annotated[
        str | None,
        Name(r"[A-Za-z0-9][A-Za-z0-9._/:-]*", "one word of letters, digits and . _ - / :"),
        Flag("--served-model-name"),
        Cost.RESTART,
    ] = None
    """The model name that clients ask for; a request for another one is answered 404. Unset with stack `vllm`: the name
    of the weights' directory on the head."""

    api_bind: Annotated[str, Address(), Flag("--host"), Cost.RESTART] = "0.0.0.0"
    """Address on which the head serves the API: every one of its own (0.0.0.0, as the reference kit v2.3-tier1 does,
    which asks nobody who they are), 127.0.0.1, or one of the head's own. See require_api_key."""

    api_port: Annotated[int, Whole(1, 65535), Flag("--port"), Cost.RESTART, Kit("PORT")] = 8000
    """TCP port of the API on the head."""

    require_api_key: Annotated[bool, Switch(), Becomes("VLLM_API_KEY of rank 0"), Cost.RESTART] = False
    """Requests to /v1 need `Authorization: Bearer <key>`. The key is in a file of root's alone on the head, made there
    by the deploy if it is missing, and reaches the engine through its environment: `sudo cat
    /etc/sparkpair/secrets/api-key` shows it. The reference kit v2.3-tier1 has no such thing."""

    trust_remote_code: Annotated[bool | None, Switch(), Flag("--trust-remote-code"), Cost.RESTART] = None
    """Lets Python code in the checkpoint directory run inside the engine."""

    quantization: Annotated[str | Empty | None, Name(), Flag("--quantization"), Cost.RESTART] = None
    """Format of the weights. Empty: the engine reads it from the checkpoint."""

    tensor_parallel_size: Annotated[int | None, Whole(1, 64), Flag("--tensor-parallel-size"), Cost.RESTART] = None
    """Ranks that share each layer. Unset: the number of nodes, the only value that one GPU per node allows."""

    gpu_memory_utilization: Annotated[
        float | Empty | None, Number(above=0, high=1), Flag("--gpu-memory-utilization"), Cost.RESTART, Kit("GMU")
    ] = None
    """Share of memory for weights and KV cache. CPU and GPU share one pool on GB10: from 0.88 on the reference kit
    v2.3-tier1 warns of swapping. Where kv_cache_memory_bytes is set, it no longer sizes the pool."""

    max_model_len: Annotated[
        int | Empty | None, Whole(1, 1048576), Flag("--max-model-len"), Cost.RESTART, Kit("MAX_LEN")
    ] = None
    """Longest request in tokens, prompt and answer together. Empty: what the checkpoint says."""

    max_num_seqs: Annotated[
        int | Empty | None, Whole(1, 256), Flag("--max-num-seqs"), Cost.RESTART, Kit("MAX_SEQS")
    ] = None
    """Requests that are worked on at once. With a drafter each takes memory from kv_cache_memory_bytes: about 2.5 GiB
    at 4 and 9 GiB at 16 says the reference kit v2.3-tier1, 3.3 and 12.9 GiB say its pools (docs/capacity.md)."""

    block_size: Annotated[
        int | Empty | None, Whole(1, 65536), Flag("--block-size"), Cost.RESTART, Kit("BLOCK_SIZE")
    ] = None
    """Tokens per KV block. The sparse attention of the reference stack wants a multiple of its index pool times 64, and
    raises 2304 to 4608 by itself with an fp8 cache (reference kit v2.3-tier1)."""

    mm_processor_cache_gb: Annotated[
        float | Empty | None, Number(low=0, high=64), Flag("--mm-processor-cache-gb"), Cost.RESTART, Kit("MM_CACHE_GB")
    ] = None
    """Cache of processed images in GiB, in the head's memory only; the reference kit v2.3-tier1 keeps it at 0.5,
    because the head has less to spare than the worker."""

    load_format: Annotated[str | Empty | None, Name(), Flag("--load-format"), Cost.RESTART, Kit("LOAD_FORMAT")] = None
    """How the weights are read. Empty means through the page cache, which the reference kit v2.3-tier1 says needs 30
    GiB of swap on both nodes, or the head dies near 90% of the load."""

    max_num_batched_tokens: Annotated[
        int | None, Whole(1, 131072), Flag("--max-num-batched-tokens"), Cost.RESTART, Kit("MNBT")
    ] = None
    """Tokens per forward step. The reference kit v2.3-tier1 asks for 4096 at a context of 1M: 8192 wedged a head under
    concurrent traffic. Cannot be emptied there, nor here."""

    speculative_method: Annotated[
        str | Empty | None,
        OneOf(("dflash", "mtp", "ngram", "eagle3", "draft_model")),
        Becomes("--speculative-config"),
        Cost.RESTART,
        Kit("SPEC, MTP"),
    ] = None
    """Which drafter proposes tokens. Empty: none, which the reference kit v2.3-tier1 advises from 8 streams on (its
    pool grows by a third and more); mtp is about 20% slower than dflash there."""

    speculative_tokens: Annotated[
        int | None, Whole(1, 16), Becomes("--speculative-config"), Cost.RESTART, Kit("DFLASH_TOKENS, MTP")
    ] = None
    """Tokens proposed per step. The drafter of the reference stack was trained on blocks of 8, one given and 7 drafted,
    so 7 is its most and its default; mtp is used with 4 there, and 5 is slower (reference kit v2.3-tier1)."""

    kv_cache_dtype: Annotated[str | Empty | None, Name(), Flag("--kv-cache-dtype"), Cost.RESTART, Kit("KV_DTYPE")] = (
        None
    )
    """Format of the KV cache. Empty: that of the model (bf16), which needs attention_backend empty too
    (reference kit v2.3-tier1)."""

    attention_backend: Annotated[
        str | Empty | None, Name(), Flag("--attention-backend"), Cost.RESTART, Kit("ATTN_BACKEND")
    ] = None
    """Attention kernels. Empty: the engine chooses."""

    kv_cache_dtype_skip_layers: Annotated[
        str | Empty | None, Name(), Flag("--kv-cache-dtype-skip-layers"), Cost.RESTART, Kit("KV_SKIP_LAYERS")
    ] = None
    """Layers whose cache stays unquantized, one word: a list with commas arrives in the engine as one name that matches
    nothing (reference kit v2.3-tier1)."""

    kv_cache_memory_bytes: Annotated[
        int | str | None,
        WholeOr(1_000_000, 100_000_000_000, "auto"),
        Flag("--kv-cache-memory-bytes"),
        Cost.RESTART,
        Kit("KV_CACHE_MEMORY"),
    ] = None
    """Bytes of KV cache per rank. The reference kit v2.3-tier1 counts about 90,000 tokens per GB over the whole budget
    (the next GB adds more: docs/capacity.md); 14.9e9 is aggressive there, and less is needed when other services live
    on the node. `auto`: the engine's own budgeting."""

    kda_prefill_backend: Annotated[
        str | Empty | None,
        OneOf(("triton", "flashkda", "auto")),
        Flag("--kda-prefill-backend"),
        Only("vllm-exl3"),
        Cost.RESTART,
        Kit("KDA_PREFILL"),
    ] = None
    """Prefill kernels of the linear attention layers. Both ranks get the same value: the reference kit v2.3-tier1 does
    not carry it to the worker, and the ranks then disagree."""

    prefix_match_unit: Annotated[
        int | Empty | None,
        Whole(1, 65536),
        Flag("--prefix-match-unit"),
        Only("vllm-exl3"),
        Cost.RESTART,
        Kit("PREFIX_MATCH_UNIT"),
    ] = None
    """Granularity in tokens at which prompts share cached prefixes. Empty: one block, 4608 (reference kit
    v2.3-tier1)."""

    mixed_prefill_token_cap: Annotated[
        int | Empty | None,
        Whole(-1, 131072),
        Flag("--mixed-prefill-token-cap"),
        Only("vllm-exl3"),
        Cost.RESTART,
        Kit("MIXED_PREFILL_CAP"),
    ] = None
    """Prefill tokens that a step may mix with running answers: -1 skips, 0 is off; with a decode weight it must exceed
    64, and 512 is advised (reference kit v2.3-tier1)."""

    mixed_prefill_max_defer_steps: Annotated[
        int | Empty | None,
        Whole(0, 100000),
        Flag("--mixed-prefill-max-defer-steps"),
        Only("vllm-exl3"),
        Cost.RESTART,
        Kit("MIXED_PREFILL_MAX_DEFER"),
    ] = None
    """Steps for which a prefill may be put off; without effect where a decode weight is set (reference kit
    v2.3-tier1)."""

    mixed_prefill_decode_weight: Annotated[
        float | Empty | None,
        Number(low=0, high=1000),
        Flag("--mixed-prefill-decode-weight"),
        Only("vllm-exl3"),
        Cost.RESTART,
        Kit("MIXED_PREFILL_DECODE_WEIGHT"),
    ] = None
    """Share of running answers against arriving documents; 1.0 is fair. With a cap of 512, chats keep 85 to 91% of
    their speed while documents load 20 to 35% slower (reference kit v2.3-tier1)."""

    enforce_eager: Annotated[bool | None, Switch(), Flag("--enforce-eager"), Cost.RESTART, Kit("EAGER")] = None
    """No compiled graphs: a quicker start and slower answers, for debugging."""

    skip_mm_profiling: Annotated[
        bool | None, Switch(), Flag("--skip-mm-profiling"), Cost.RESTART, Kit("SKIP_MM_PROFILING")
    ] = None
    """Skips the memory trial with the largest images. Turned off at a long max_model_len, the trial itself runs out of
    memory (reference kit v2.3-tier1)."""

    tool_call_parser: Annotated[str | Empty | None, Name(), Flag("--tool-call-parser"), Cost.RESTART] = None
    """How tool calls are read from the model's text; brings `--enable-auto-tool-choice` with it."""

    reasoning_parser: Annotated[str | Empty | None, Name(), Flag("--reasoning-parser"), Cost.RESTART] = None
    """How reasoning is told from the answer; without it both arrive in `content`."""

    chat_template: Annotated[str | Empty | None, Name(), Flag("--chat-template"), Cost.RESTART] = None
    """A chat template that lies in the weights' directory, by its file name; it must be there on every node. Empty or
    unset: the checkpoint's own."""

    enable_thinking: Annotated[
        bool | Empty | None, Switch(), Becomes("--default-chat-template-kwargs"), Cost.RESTART
    ] = None
    """Whether the model reasons when the request does not say; a request may override it."""

    master_port: Annotated[int, Whole(1024, 65535), Becomes("--master-port"), Cost.RESTART, Kit("MPORT")] = 29521
    """TCP port on which the ranks meet at start; the engine listens on every address of the head."""

    # Variables of the engine

    use_b12x_fp8_gemm: Annotated[
        bool | Empty | None,
        Switch(),
        Env("VLLM_USE_B12X_FP8_GEMM"),
        Only("vllm-exl3"),
        Cost.RESTART,
        Kit("VLLM_USE_B12X_FP8_GEMM"),
    ] = None
    """fp8 matrix kernels made for GB10. On images before v2.3 they cost acceptance of drafts at 4 streams, so they are
    off there (reference kit v2.3-tier1)."""

    b12x_mxfp8_max_m: Annotated[
        int | Empty | None,
        Whole(0, 1048576),
        Env("VLLM_B12X_MXFP8_MAX_M"),
        Only("vllm-exl3"),
        Cost.RESTART,
        Kit("VLLM_B12X_MXFP8_MAX_M"),
    ] = None
    """Rows above which FlashInfer takes over, 0 for never; the engine's own value is 16 (reference kit v2.3-tier1)."""

    dflash_fp8_draft_head: Annotated[
        bool | Empty | None,
        Switch(),
        Env("VLLM_DFLASH_FP8_DRAFT_HEAD"),
        Only("vllm-exl3"),
        Cost.RESTART,
        Kit("VLLM_DFLASH_FP8_DRAFT_HEAD"),
    ] = None
    """Draft head in fp8: one millisecond less per step for 317 MB per rank (reference kit v2.3-tier1)."""

    nvfp4_mla_dynamic_scale: Annotated[
        bool | Empty | None,
        Switch(),
        Env("VLLM_NVFP4_MLA_DYNAMIC_SCALE"),
        Only("vllm-exl3"),
        Cost.RESTART,
        Kit("VLLM_NVFP4_MLA_DYNAMIC_SCALE"),
    ] = None
    """Needed by kv_cache_dtype nvfp4_ds_mla: the engine refuses to start without it (reference kit v2.3-tier1)."""

    exl3_standard_fused: Annotated[
        bool | Empty | None,
        Switch(),
        Env("VLLM_EXL3_STANDARD_FUSED"),
        Only("vllm-exl3"),
        Cost.RESTART,
        Kit("VLLM_EXL3_STANDARD_FUSED"),
    ] = None
    """Fused kernels for the 4-bit weights; off is for debugging, at about 6 tokens per second (reference kit
    v2.3-tier1)."""

    disabled_kernels: Annotated[
        str | Empty | None,
        Name(r"[A-Za-z0-9][A-Za-z0-9._,-]*", "names of kernels, with commas between them"),
        Env("VLLM_DISABLED_KERNELS"),
        Cost.RESTART,
        Kit("VLLM_DISABLED_KERNELS"),
    ] = None
    """Kernels that the engine must not choose, for comparing (reference kit v2.3-tier1)."""

    dflash_kv_ring: Annotated[
        bool | Empty | None,
        Switch(),
        Env("VLLM_DFLASH_KV_RING"),
        Only("vllm-exl3"),
        Cost.RESTART,
        Kit("VLLM_DFLASH_KV_RING"),
    ] = None
    """The drafter's own small ring of KV memory; off, it pages like the model's. The engine has it on; the reference
    kit v2.3-tier1 cannot carry the variable to a node."""

    server_dev_mode: Annotated[
        bool | Empty | None, Switch(), Env("VLLM_SERVER_DEV_MODE"), Cost.RESTART, Kit("VLLM_SERVER_DEV_MODE")
    ] = None
    """Opens the engine's administration endpoints to whoever reaches the API, so it is refused on a bind that others
    reach (reference kit v2.3-tier1 opens them on 0.0.0.0)."""

    engine_ready_timeout_seconds: Annotated[
        int | Empty | None, Whole(60, 86400), Env("VLLM_ENGINE_READY_TIMEOUT_S"), Cost.RESTART
    ] = None
    """How long the engine's front waits for its ranks at a start. The keeper's ready_timeout_seconds is longer, so that
    the engine itself says what it waited for. Upstream's 600 was too short for a second start
    (field reports on GB10: 3600 helped)."""

    nccl_ib_gid_index: Annotated[
        int | None, Whole(0, 255), Scope.NODE, Becomes("NCCL_IB_GID_INDEX"), Cost.RESTART, Kit("NCCL_GID_INDEX")
    ] = None
    """Row of the HCA's GID table. Leave it out: the row that holds the rail's address as RoCE v2 is looked up at every
    start, because it moves when a link comes back (3 to 4 was seen). State it only where the table is wrong."""

    nccl_rails: Annotated[
        int, Whole(1, 2), Becomes("NCCL_IB_HCA, NCCL_IB_MERGE_NICS, NCCL_IB_ADDR_RANGE"), Cost.RESTART
    ] = 1
    """Over how many rails NCCL sends. One QSFP port is two rails that share its 200 Gb/s but not their PCIe links.
    Published for both beside one: +5% in reading a cold prompt and nothing in answering it (MiaAI's kit), +64% in a
    collective by itself (tonyd2wild's kit, PR 35). The reference kit uses one. With 2, NCCL finds each HCA's GID by
    itself in the networks of the rails, since it takes one index for all of them."""

    nccl_channels: Annotated[
        int | Empty | None,
        Whole(1, 32),
        Env("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
        Cost.RESTART,
        Kit("NCCL_NCHANNELS"),
    ] = None
    """Parallel NCCL channels, least and most alike. Empty: NCCL decides (0 in the reference kit v2.3-tier1)."""

    nccl_debug: Annotated[
        str | Empty | None, OneOf(("WARN", "INFO", "TRACE", "VERSION")), Env("NCCL_DEBUG"), Cost.RESTART
    ] = None
    """How much NCCL says in the engine's log; INFO names the transport of each channel."""

    engine_env: Annotated[tuple[str, ...], Pairs(), Becomes("variables of the engine"), Cost.RESTART] = ()
    """More variables for the engine, for what has no knob yet; a variable that a knob or the stack sets is refused.
    Not for secrets: `docker inspect` shows them, and so does the process list while the container is started."""

    # The rails

    rail_mtu: Annotated[int, Whole(1280, 9000), Becomes("mtu of each rail"), Cost.FABRIC] = 9000
    """MTU of the rails. RoCE's own MTU is the largest of 1024, 2048 and 4096 that fits below it: 1500 leaves 1024."""

    rail_network: Annotated[
        str, Network(8, 22), Becomes("addresses of rails that the inventory leaves out"), Cost.FABRIC
    ] = "10.200.0.0/16"
    """Where the rails get addresses whose netdevs were found and not stated: rail 0 the first /24 of it, rail 1 the
    second, the head .1 and the workers from .2 on. Addresses that such netdevs have already stay, unless a network is
    stated here. Rails that the inventory states have the addresses stated there."""

    adopt_rails: Annotated[bool, Switch(), Becomes("the fabric role"), Cost.NOTHING] = False
    """Whether a rail that somebody else's file sets up (netplan's, by hand or by a playbook) is taken over: its lines
    there become comments, and the file as it was is kept on the node. Otherwise such a rail is refused, with the lines:
    one netdev that two files set up has two masters."""

    open_firewall: Annotated[bool, Switch(), Becomes("the fabric role"), Cost.NOTHING] = True
    """Whether a firewall on a node that blocks the rails is opened there for the rails' own peers, and for nobody else.
    NCCL, gloo and the copies use ports that nobody knows before (field reports: NET-21)."""

    allow_tcp: Annotated[
        bool, Switch(), Becomes("the keeper, the checks of RDMA, and no NCCL_NET=IB"), Cost.RESTART
    ] = False
    """Whether the ranks may talk over TCP where RDMA does not work. Without it that is an error: such a pair answers,
    at a fraction of its speed, and nothing says so (field reports: RDMA-01, NET-11). NCCL is told to use RDMA or fail,
    and a launch whose log says that it uses sockets all the same does not pass its gates."""

    require_fabric_gate: Annotated[bool, Switch(), Becomes("preflight"), Cost.NOTHING] = False
    """Whether the pair is started only over rails that have passed the gate of bandwidth and latency, as they are now.
    fabric_test.py measures them, and a deploy does so by itself where nothing serves yet."""

    fabric_gate_gbps: Annotated[float, Number(low=0.1, high=400), Becomes("the gate of the rails"), Cost.NOTHING] = 90.0
    """Gb/s that one rail must carry by RDMA. Published: 111.7 on a healthy rail, 92.6 and 97.3 in NVIDIA's guide, 98 on
    one rail of a port, 13 on a degraded one (field reports: NET-12, NET-22)."""

    fabric_gate_both_gbps: Annotated[
        float, Number(low=0.1, high=800), Becomes("the gate of the rails"), Cost.NOTHING
    ] = 150.0
    """Gb/s that both rails of a port must carry together by RDMA. Published: 161 (field reports: NET-12)."""

    fabric_gate_tcp_gbps: Annotated[
        float, Number(low=0.1, high=400), Becomes("the gate of the rails"), Cost.NOTHING
    ] = 25.0
    """Gb/s that a rail must carry by TCP, measured where RDMA cannot be. A degraded port stays between 8 and 25,
    whatever it is asked with (field reports: NET-22); 96 by 16 streams at MTU 1500 are published (catharsis.net.au)."""

    fabric_gate_seconds: Annotated[int, Whole(1, 60), Becomes("the gate of the rails"), Cost.NOTHING] = 5
    """How long each measurement of the gate takes."""

    # Staging: how files and image come to the nodes. None of these is part of a launch.

    lock_file: Annotated[str, ControlPath(), Becomes("staging"), Cost.NOTHING] = "sparkpair.lock"
    """What is staged, to the byte: image digest, revisions, each file's size and sha256, licences. `make lock` writes
    it beside inventory.py, and it belongs into version control. A path is relative to the directory from which the
    deploy is run. Without the file nothing is downloaded; one that is stated here must be there."""

    hub_endpoint: Annotated[str, Endpoint(), Becomes("make lock, and the download"), Cost.NOTHING] = (
        "https://huggingface.co"
    )
    """The hub, or a mirror that speaks its language (`HF_ENDPOINT` of the hub's own clients, which is not read here).
    What a mirror sends is checked against the lock like everything else."""

    accepted_licences: Annotated[str | Empty, Licences(), Becomes("staging"), Cost.NOTHING] = ""
    """Licences that you have read and accept, such as `cc-by-nc-nd-4.0` of the default drafter; the line in
    `group_data/all.py` is the record of it. What is under a licence that needs acceptance is neither downloaded nor
    bundled without. Permissive ones need none."""

    bundle_path: Annotated[
        str | Empty | None, NodePath(), Scope.NODE, Becomes("a source of files beside hub and peer"), Cost.NOTHING
    ] = None
    """Directory on a node that holds what `make bundle` wrote: a disk or a stick that is mounted there. One node
    having it is enough, the other one gets the files over the rails; without internet it is the only source."""

    download_stall_seconds: Annotated[int, Whole(10, 3600), Becomes("staging"), Cost.NOTHING] = 120
    """A download that brings not one byte for this long is started anew where it stopped: then without xet, then from
    the mirror. A large download that hangs for good and says nothing is common (field reports: WGT-03)."""

    stage_memory_mib: Annotated[int, Whole(256, 65536), Becomes("MemoryMax of the staging unit"), Cost.NOTHING] = 1024
    """Most memory that staging may take on a node, its page cache included: beside an engine that has nearly all of it,
    whoever takes more is killed rather than the engine."""

    serving_stage_rate_mib: Annotated[int, Whole(0, 100000), Becomes("staging"), Cost.NOTHING] = 500
    """Most MiB per second that a node downloads and copies while the pair serves; 0 is no cap, and so is a pair that
    does not serve. The engine's own traffic shares the rails and the memory's bandwidth."""

    # Operations

    update_check: Annotated[bool, Switch(), Becomes("the keeper"), Cost.SERVICE, Kit("GLM53_NO_UPDATE_CHECK")] = True
    """Whether the keeper looks once a day, at a start, whether there is a newer release of the stack's image or of
    Sparkpair. It reads one line each, sends nothing, waits 3 seconds at most and is never in the way."""

    update_url: Annotated[str | Empty, Endpoint(), Becomes("the keeper"), Cost.SERVICE] = ""
    """Where the newest release of Sparkpair stands as one line. Empty: it is not asked for."""

    retry_rejected: Annotated[str | Empty, Prefix(), Becomes("a deploy"), Cost.NOTHING] = ""
    """The first digits, 8 or more, of a launch that the keeper has rejected and shall try once more:
    `--data retry_rejected=...`, as the refusal says."""

    rollback_to: Annotated[str | Empty, Prefix(), Becomes("rollback.py"), Cost.NOTHING] = ""
    """The first digits, 8 or more, of the generation that rollback.py shall return to. Empty: the newest other one that
    passed its gates."""

    remove_also: Annotated[
        str | Empty, Several(("weights", "image", "cache", "rails", "key")), Becomes("remove.py"), Cost.NOTHING
    ] = ""
    """What remove.py takes besides our own, with commas between: weights (and drafter), image, cache (compiled
    kernels), rails (their addresses and MTU), key (the API's)."""

    # Memory

    memory_warning_mib: Annotated[int, Whole(0, 131072), Becomes("the keeper"), Cost.SERVICE] = 1024
    """Available MiB on a node below which the keeper warns; 0 never does. The reference kit's head serves with about 1
    to 3 GB to spare."""

    memory_emergency_mib: Annotated[int, Whole(0, 131072), Becomes("the rank agent"), Cost.SERVICE] = 512
    """Available MiB on a node below which, for three seconds on end, the agent ends its rank rather than let the node
    wedge; 0 never does. Unified memory does not fail, it takes ssh and the console with it (field reports: MEM-07)."""

    memory_restart_mib: Annotated[int, Whole(0, 131072), Becomes("the keeper"), Cost.SERVICE] = 0
    """Available MiB on a node below which an idle pair is restarted within quiet_hours; 0 never does. Floors were seen
    to sink by 1.5 to 2 GiB a day (field reports: BEN-01)."""

    quiet_hours: Annotated[str | Empty, Hours(), Becomes("the keeper"), Cost.SERVICE] = ""
    """When a restart that memory_restart_mib asks for may happen, by the head's clock, such as 03:00-05:00. Empty:
    never."""

    drop_page_cache: Annotated[bool, Switch(), Becomes("the rank agent"), Cost.SERVICE] = True
    """Whether the page cache is dropped on a node before its rank starts. The engine takes what is cached for used
    (field reports: MEM-01, MEM-02)."""

    protect_login: Annotated[bool, Switch(), Becomes("units of systemd"), Cost.NOTHING] = True
    """Whether the way in (sshd, login sessions, our own programs) keeps memory of its own when the node runs short of
    it (field reports: MEM-10). That the kernel ends the engine before anything else is so in any case."""

    memory_used_max_gib: Annotated[
        int | None, Whole(0, 128), Becomes("preflight"), Cost.NOTHING, Kit("MEM_USED_MAX_GB")
    ] = None
    """GiB in use on a node (as `free` counts it: total less available) above which a deploy refuses to start an engine
    there; 0 turns it off. While a rank of ours runs there, a deploy that would start the pair anew judges what will be
    in use after the rank's end. The budgets of the reference kit v2.3-tier1 were proven on nodes with less than 6."""

    ask_the_engine: Annotated[bool, Switch(), Becomes("preflight"), Cost.NOTHING] = True
    """Whether the staged engine reads a changed launch before the pair is restarted with it (docs/engine-opinion.md).
    Off is for an image that refuses wrongly what it serves; every plan then says that it was not asked."""

    opinion_memory_mib: Annotated[int, Whole(256, 8192), Becomes("the memory limit of a container"), Cost.NOTHING] = (
        1536
    )
    """Most that the throwaway container may take in which the staged engine reads changed arguments before the pair is
    restarted with them. A node that has not that much to spare is not asked, and the plan says so."""

    # Proof that it answers

    smoke_prompt: Annotated[str, Words(), Becomes("verify.py, and a gate"), Cost.SERVICE] = (
        "What is 17*23? Answer with the number only."
    )
    """What verify.py and the gate after each start ask the model; the reference kit v2.3-tier1 asks the same sum."""

    smoke_expected: Annotated[str | Empty | None, Words(), Becomes("verify.py, and a gate"), Cost.SERVICE] = None
    """What the answer to smoke_prompt must contain. Empty: any text that is not blank."""

    smoke_max_tokens: Annotated[int, Whole(1, 32768), Becomes("verify.py, and a gate"), Cost.SERVICE] = 200
    """Longest answer to smoke_prompt (reference kit v2.3-tier1: 200 tokens)."""

    canary_prompt: Annotated[str, Words(), Becomes("the keeper"), Cost.SERVICE] = (
        "What is 17*23? Answer with the number only."
    )
    """What the keeper asks an idle pair: every other endpoint of a pair whose worker died still says it is well."""

    canary_expected: Annotated[str | Empty | None, Words(), Becomes("the keeper"), Cost.SERVICE] = None
    """What the answer to canary_prompt must contain. Empty: any text that is not blank."""

    canary_max_tokens: Annotated[int, Whole(1, 32768), Becomes("the keeper"), Cost.SERVICE] = 64
    """Longest answer to canary_prompt; short, because the canary takes a slot that a client may want."""

    canary_timeout_seconds: Annotated[int, Whole(1, 3600), Becomes("the keeper"), Cost.SERVICE] = 60
    """A canary that has not answered by then failed. The first request after a start compiles: 4 to 18 seconds were
    seen with upstream vLLM 0.32 on a CPU."""

    canary_interval_seconds: Annotated[int, Whole(1, 86400), Becomes("the keeper"), Cost.SERVICE] = 60
    """How long an idle pair is left alone between two canaries."""

    # Gates: what a launch must do after its start, before it counts as good. 0 leaves a gate out.

    gate_warm_up_seconds: Annotated[int, Whole(0, 7200), Becomes("a gate"), Cost.SERVICE] = 1800
    """Deadline of the whole warm-up: the shapes that the reference kit v2.3-tier1 sends after a start, so that no user
    pays for compiling them (one greedy answer, one that reasons, four at once, a prompt of about 8k tokens). The kit
    waits as long; about 20 seconds are usual."""

    gate_smoke_seconds: Annotated[int, Whole(0, 3600), Becomes("a gate"), Cost.SERVICE] = 90
    """Deadline of smoke_prompt, whose answer must hold smoke_expected (reference kit v2.3-tier1: 90 seconds)."""

    gate_tool_call_seconds: Annotated[int, Whole(0, 3600), Becomes("a gate"), Cost.SERVICE] = 180
    """Deadline of tool calls where there is a tool_call_parser, and again of one with reasoning where there is a
    reasoning_parser: a wrong parser extracts no call and says nothing (field reports: ENG-11, ENG-13)."""

    gate_reasoning_seconds: Annotated[int, Whole(0, 3600), Becomes("a gate"), Cost.SERVICE] = 180
    """Deadline of an answer with reasoning switched on, where there is a reasoning_parser: it must arrive in its own
    field."""

    gate_reasoning_off_seconds: Annotated[int | None, Whole(0, 3600), Becomes("a gate"), Cost.SERVICE] = None
    """Deadline of an answer with reasoning switched off, where there is a reasoning_parser: there must be none (field
    reports: ENG-12). On where the stack's model has such a switch."""

    gate_image_seconds: Annotated[int | None, Whole(0, 3600), Becomes("a gate"), Cost.SERVICE] = None
    """Deadline of a request with a small image; on where the stack's model sees."""

    gate_needle_seconds: Annotated[int, Whole(0, 7200), Becomes("a gate"), Cost.SERVICE] = 600
    """Deadline of a long prompt with one planted fact that is asked for; the answer has at most smoke_max_tokens."""

    gate_needle_tokens: Annotated[int, Whole(256, 1000000), Becomes("a gate"), Cost.SERVICE] = 16000
    """About how long that prompt is, in tokens; never more than half of max_model_len. 133,000 tokens take about 90
    seconds to read (reference kit v2.3-tier1)."""

    gate_needle_expected: Annotated[str | Empty | None, Words(), Becomes("a gate"), Cost.SERVICE] = None
    """What its answer must contain instead of the planted fact. Empty: any text that is not blank."""

    gate_reuse_seconds: Annotated[int, Whole(0, 3600), Becomes("a gate"), Cost.SERVICE] = 300
    """Deadline of a conversation's second turn, of which the engine must have kept the first (its prefix cache hits
    move); passed over where its metrics have none."""

    # The keeper

    watch_interval_seconds: Annotated[int, Whole(1, 10), Becomes("the keeper"), Cost.SERVICE] = 1
    """How often the keeper looks at both ranks. An answer of the API counts for 15 seconds, so no more than 10."""

    lease_seconds: Annotated[int, Whole(30, 3600), Becomes("the keeper"), Cost.SERVICE] = 60
    """A rank whose keeper is silent for this long stops, so that no rank outlives its pair; long enough for a cable
    that is pulled and put back, which the engine survives, and for the keeper to try every way to the node, at up to
    7 seconds each."""

    ready_timeout_seconds: Annotated[int, Whole(10, 86400), Becomes("the keeper"), Cost.SERVICE] = 3900
    """How long a start may take until the API answers; about 4 minutes is usual on the reference stack. Longer than the
    engine's own 3600, so that the engine says what it waited for; the reference kit v2.3-tier1 gives up at 1800, before
    its engine does. A rank that dies ends the wait at once."""

    stop_grace_seconds: Annotated[int, Whole(0, 600), Becomes("the keeper"), Cost.SERVICE] = 20
    """From the polite signal to the end of the whole cgroup. A worker of upstream vLLM 0.32 needed 13 seconds."""

    stuck_seconds: Annotated[int, Whole(10, 86400), Becomes("the keeper"), Cost.SERVICE] = 120
    """A pair with running requests and no progress for this long is asked a canary."""

    backoff_seconds: Annotated[int, Whole(0, 3600), Becomes("the keeper"), Cost.SERVICE] = 10
    """Pause before the second restart in a row (the first is made at once); it doubles with each further failure."""

    backoff_max_seconds: Annotated[int, Whole(1, 86400), Becomes("the keeper"), Cost.SERVICE] = 300
    """Longest pause between two restarts."""

    restart_budget: Annotated[int, Whole(0, 1000), Becomes("the keeper"), Cost.SERVICE] = 5
    """Restarts within restart_window_seconds; when they are spent the pair rests and says why."""

    restart_window_seconds: Annotated[int, Whole(60, 604800), Becomes("the keeper"), Cost.SERVICE] = 3600
    """The time over which restart_budget is counted."""

    load_stall_seconds: Annotated[int, Whole(0, 86400), Becomes("the keeper"), Cost.SERVICE] = 1800
    """A start in which for this long no rank wrote a log line, read or wrote a file or computed on more than one
    core and a half has hung; 0 waits for ready_timeout_seconds alone. Compiling took 36 minutes for some, with all of
    these signs of life; a start that hangs spins on one core (field reports: ENG-01, ENG-02)."""

    start_attempts: Annotated[int, Whole(1, 100), Becomes("the keeper"), Cost.SERVICE] = 2
    """Failed starts of a new launch after which the keeper goes back to the last good one. A start that fails for what
    is certain to fail again, or that hung, is not tried twice; a node or a rail that was lost does not count."""

    memory_wait_seconds: Annotated[int, Whole(0, 3600), Becomes("the keeper"), Cost.SERVICE] = 120
    """How long a restart waits for a node's memory to come back after its rank has ended, before the pair rests (the
    reference kit v2.3-tier1 waits as long)."""

    memory_tolerance_gib: Annotated[int, Whole(1, 128), Becomes("the keeper"), Cost.SERVICE] = 6
    """GiB by which a node's available memory may be below what it was before the last good start. A driver that kept
    33 GB after a crash was seen, which only a reboot gave back (field reports: MEM-09)."""

    generations_kept: Annotated[int, Whole(2, 100), Becomes("the keeper"), Cost.SERVICE] = 5
    """Launches remembered on the head, the running one and the last good one included."""

    @field_validator("*", mode="plain")
    @classmethod
    def _of_its_kind(cls, value: object, info: ValidationInfo) -> object:
        knob = KNOBS[info.field_name or ""]
        try:
            return knob.parse(value)
        except Refused as refused:
            raise PydanticCustomError("knob", "{text}", {"text": str(refused)}) from None


@dataclass(frozen=True)
class Knob:
    """One declaration, read."""

    name: str
    kind: Kind
    default: object
    may_be_unset: bool
    may_be_empty: bool
    scope: Scope
    cost: Cost
    flag: Flag | None
    env: Env | None
    becomes: Becomes | None
    only: Only | None
    kit: Kit | None
    reason: str

    def parse(self, value: object) -> object:
        """The value to keep, or Refused with what it must be."""
        if value is None:
            if self.may_be_unset:
                return None
            raise Refused(f"must have a value; leave it out for the default ({self.default})")
        if isinstance(value, str) and not value:
            if self.may_be_empty:
                return ""
            raise Refused(f"cannot be empty, must be {self.kind.allowed}; leave it out for the default")
        try:
            return self.kind.parse(value)
        except Refused as refused:
            # Who types "none" or "default" looks for the empty text.
            if self.may_be_empty and isinstance(self.kind, OneOf):
                raise Refused(f'{refused}; or "", which leaves it out') from None
            raise

    def leaves_it_to_the_engine(self, value: object) -> bool:
        """Whether this state of the knob writes nothing: nothing stated and no default, empty, or the word for it."""
        return value is None or value == EMPTY or (isinstance(self.kind, WholeOr) and value == self.kind.word)

    @property
    def destination(self) -> str:
        if self.flag:
            return f"`{self.flag.name}`"
        if self.env:
            return ", ".join(f"`{name}`" for name in self.env.names)
        return self.becomes.text if self.becomes else ""


def _read(name: str, field: FieldInfo) -> Knob:
    def one(kind: type) -> object:
        return next((item for item in field.metadata if isinstance(item, kind)), None)

    union = get_args(field.annotation) or (field.annotation,)
    kind = one(Kind)
    if not isinstance(kind, Kind):
        raise TypeError(f"knob {name} has no kind")
    return Knob(
        name=name,
        kind=kind,
        default=field.default,
        may_be_unset=type(None) in union,
        may_be_empty=Empty in union,
        scope=one(Scope) or Scope.PAIR,  # type: ignore[arg-type]
        cost=one(Cost),  # type: ignore[arg-type]
        flag=one(Flag),  # type: ignore[arg-type]
        env=one(Env),  # type: ignore[arg-type]
        becomes=one(Becomes),  # type: ignore[arg-type]
        only=one(Only),  # type: ignore[arg-type]
        kit=one(Kit),  # type: ignore[arg-type]
        reason=" ".join((field.description or "").split()),
    )


KNOBS: dict[str, Knob] = {}
KNOBS.update({name: _read(name, field) for name, field in Knobs.model_fields.items()})

# Headings of docs/knobs.md, each with the knob that it stands before.
SECTIONS: dict[str, str] = {
    "stack": "What is served",
    "served_model_name": "Flags of the engine",
    "use_b12x_fp8_gemm": "Variables of the engine",
    "rail_mtu": "The rails",
    "lock_file": "Staging",
    "update_check": "Operations",
    "memory_warning_mib": "Memory",
    "smoke_prompt": "Proof that it answers",
    "gate_warm_up_seconds": "Gates",
    "watch_interval_seconds": "The keeper",
}
