"""The reference kit's launch (v2.3-tier1), word by word and on purpose a second time: the stack file must come to the
same without having been read for it."""

from __future__ import annotations

IMAGE = (
    "ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark@sha256:44b2dbafe8d81d6c7019a346480b49b23c1a0bef99c9b1d0db6e7ccc926921ca"
)

CONTAINER = {
    ("--gpus", "all"),
    ("-d",),
    ("--name", "vllm_glm53"),
    ("--restart", "no"),
    ("--network", "host"),
    ("--ipc", "host"),
    ("--shm-size", "32g"),
    ("--ulimit", "memlock=-1:-1"),
    ("--cap-add", "IPC_LOCK"),
    ("--device", "/dev/infiniband:/dev/infiniband"),
}


def volumes(home: str) -> set[str]:
    """The volumes of a node whose user has that home."""
    weights, cache, drafter = (
        f"{home}/models/glm53-exl3",
        f"{home}/glm53-vllm-cache",
        f"{home}/models/glm53-dflash2-mxfp8",
    )
    return {
        f"{weights}:/models/glm53-exl3:ro",
        f"{cache}:/cache",
        f"{cache}/jit/triton:/root/.triton",
        f"{cache}/jit/flashinfer:/root/.cache/flashinfer",
        f"{cache}/jit/b12x:/root/.cache/b12x",
        f"{cache}/jit/vllm:/root/.cache/vllm",
        f"{drafter}:/models/glm53-dflash2:ro",
    }


def environment(address: str, hca: str, netdev: str, gid_index: int, subnet: str = "10.200.0.0/24") -> dict[str, str]:
    """The variables of a rank."""
    return {
        "VLLM_HOST_IP": address,
        "HF_HOME": "/cache/huggingface",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": "3600",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "TORCH_CUDA_ARCH_LIST": "12.1a",
        "FLASHINFER_CUDA_ARCH_LIST": "12.1a",
        "FLASHINFER_DISABLE_VERSION_CHECK": "1",
        "VLLM_USE_B12X_FP8_GEMM": "1",
        "VLLM_DFLASH_FP8_DRAFT_HEAD": "1",
        "NCCL_NET": "IB",
        "NCCL_IB_DISABLE": "0",
        "NCCL_IB_HCA": hca,
        "NCCL_IB_GID_INDEX": str(gid_index),
        "NCCL_IB_ROCE_VERSION_NUM": "2",
        "NCCL_IB_ADDR_FAMILY": "AF_INET",
        "NCCL_IB_ADDR_RANGE": subnet,
        "NCCL_SOCKET_IFNAME": netdev,
        "GLOO_SOCKET_IFNAME": netdev,
        "TP_SOCKET_IFNAME": netdev,
        "MN_IF_NAME": netdev,
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_CROSS_NIC": "0",
        "NCCL_IB_MERGE_NICS": "0",
        "NCCL_CUMEM_ENABLE": "0",
        "NCCL_IGNORE_CPU_AFFINITY": "1",
        "NCCL_DEBUG": "WARN",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "NCCL_MIN_NCHANNELS": "8",
        "NCCL_MAX_NCHANNELS": "8",
    }


def command(rank: int) -> list[str]:
    """The command of a rank, in its order."""
    return [
        "vllm", "serve", "/models/glm53-exl3",
        "--served-model-name", "glm-5.3-flash",
        "--host", "0.0.0.0",
        "--port", "8000",
        "--trust-remote-code",
        "--quantization", "exl3",
        "--tensor-parallel-size", "2",
        "--gpu-memory-utilization", "0.85",
        "--max-model-len", "524288",
        "--max-num-seqs", "4",
        "--block-size", "2304",
        "--mm-processor-cache-gb", "0.5",
        "--load-format", "instanttensor",
        "--max-num-batched-tokens", "8192",
        "--speculative-config", '{"method":"dflash","model":"/models/glm53-dflash2","num_speculative_tokens":7}',
        "--kv-cache-dtype", "fp8_ds_mla",
        "--attention-backend", "B12X_MLA_SPARSE",
        "--kv-cache-dtype-skip-layers", "sliding_window",
        "--kv-cache-memory", "14400000000",
        "--prefix-match-unit", "512",
        "--skip-mm-profiling",
        "--tool-call-parser", "glm47",
        "--enable-auto-tool-choice",
        "--reasoning-parser", "glm45",
        "--default-chat-template-kwargs", '{"enable_thinking": false}',
        "--distributed-executor-backend", "mp",
        "--nnodes", "2",
        "--node-rank", str(rank),
        "--master-addr", "10.200.0.1",
        "--master-port", "29521",
        *(["--headless"] if rank else []),
    ]  # fmt: skip


# Every knob of the kit that becomes an optional argument, turned; each stands where the launcher puts it.
TURNED = {
    "kda_prefill_backend": "triton",
    "mixed_prefill_token_cap": 512,
    "mixed_prefill_max_defer_steps": 8,
    "mixed_prefill_decode_weight": 1.0,
    "enforce_eager": True,
}


def command_turned(rank: int) -> list[str]:
    """The command with the optional arguments of TURNED."""
    words = command(rank)
    before = words.index("--prefix-match-unit")
    words[before:before] = ["--kda-prefill-backend", "triton"]
    before = words.index("--skip-mm-profiling")
    words[before:before] = [
        "--mixed-prefill-token-cap", "512",
        "--mixed-prefill-max-defer-steps", "8",
        "--mixed-prefill-decode-weight", "1.0",
        "--enforce-eager",
    ]  # fmt: skip
    return words


# The kit's two programs as facts: what its installer leaves on each node, and what its launcher starts from that.

TAG = "ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark:v2.3-tier1"

# Handed from `.env` to both nodes where they are set. MEM_USED_MAX_GB and GLM53_* start nothing.
FORWARDED = (
    "MPORT", "MAX_LEN", "SPEC", "MTP", "DFLASH_TOKENS", "EAGER", "SKIP_MM_PROFILING", "BLOCK_SIZE", "KV_DTYPE",
    "KV_CACHE_MEMORY", "KV_SKIP_LAYERS", "ATTN_BACKEND", "MNBT", "GMU", "MAX_SEQS", "MM_CACHE_GB", "LOAD_FORMAT",
    "CACHE_HOST_PATH", "VLLM_EXL3_STANDARD_FUSED", "VLLM_NVFP4_MLA_DYNAMIC_SCALE", "VLLM_DISABLED_KERNELS",
    "MIXED_PREFILL_DECODE_WEIGHT", "MIXED_PREFILL_CAP", "PREFIX_MATCH_UNIT", "VLLM_USE_B12X_FP8_GEMM",
    "VLLM_B12X_MXFP8_MAX_M", "VLLM_DFLASH_FP8_DRAFT_HEAD", "NCCL_NCHANNELS",
)  # fmt: skip

# Read by the launcher, and handed to it by nobody.
NOT_FORWARDED = ("KDA_PREFILL", "MIXED_PREFILL_MAX_DEFER", "NAME", "NCCL_GID_INDEX", "VLLM_SERVER_DEV_MODE")


def installed(stated: dict[str, str], home: str, more: tuple[str, ...] = ()) -> tuple[dict[str, str], dict[str, str]]:
    """The variables that the installer leaves on head and worker for an `.env` with those variables. `home` is the
    head's; `more` are variables to hand on as if the installer did."""

    def or_else(name: str, default: str) -> str:
        return stated.get(name) or default

    common = {
        "HEAD_RAIL_IP": or_else("HEAD_RAIL_IP", "10.200.0.1"),
        "WORKER_RAIL_IP": or_else("WORKER_RAIL_IP", "10.200.0.2"),
        "NCCL_SUBNET": or_else("NCCL_SUBNET", "10.200.0.0/24"),
        "MODEL_HOST_PATH": or_else("MODEL_HOST_PATH", f"{home}/models/glm53-exl3"),
        "DFLASH_DIR": or_else("DFLASH_DIR", f"{home}/models/glm53-dflash2-mxfp8"),
        "IMAGE": or_else("IMAGE", TAG),
        "PORT": or_else("PORT", "8000"),
        **{name: stated[name] for name in (*FORWARDED, *more) if name in stated},
    }
    nodes = [
        {
            **common,
            "NCCL_IF": or_else(f"{position}_NCCL_IF", "enp1s0f0np0"),
            "NCCL_HCA": or_else(f"{position}_NCCL_HCA", "rocep1s0f0"),
        }
        for position in ("HEAD", "WORKER")
    ]
    return nodes[0], nodes[1]


def launched(stated: dict[str, str], rank: int, home: str, gid_index: int) -> list[str]:
    """What the launcher runs on a node with those variables, word by word. `gid_index` is what it finds in the table of
    the HCA."""

    def or_else(name: str, default: str) -> str:  # empty is unset
        return stated.get(name) or default

    def unless_set(name: str, default: str) -> str:  # empty is a value
        return stated.get(name, default)

    image, cache = or_else("IMAGE", TAG), or_else("CACHE_HOST_PATH", f"{home}/glm53-vllm-cache")
    weights = or_else("MODEL_HOST_PATH", f"{home}/models/glm53-exl3")
    drafter = or_else("DFLASH_DIR", f"{home}/models/glm53-dflash2-mxfp8")
    addresses = or_else("HEAD_RAIL_IP", "10.200.0.15"), or_else("WORKER_RAIL_IP", "10.200.0.33")
    mtp = or_else("MTP", "0")
    drafts = mtp == "0" and or_else("SPEC", "dflash") == "dflash"
    budget = {"auto": "", "": "14400000000"}.get(stated.get("KV_CACHE_MEMORY", ""), stated.get("KV_CACHE_MEMORY", ""))
    if (":v1-dflash2" in image or ":v2-glmnext" in image) and (not budget or int(budget) > 12_400_000_000):
        budget = "12400000000"

    volumes = [
        f"{weights}:/models/glm53-exl3:ro",
        f"{cache}:/cache",
        f"{cache}/jit/triton:/root/.triton",
        f"{cache}/jit/flashinfer:/root/.cache/flashinfer",
        f"{cache}/jit/b12x:/root/.cache/b12x",
        f"{cache}/jit/vllm:/root/.cache/vllm",
        *([f"{drafter}:/models/glm53-dflash2:ro"] if drafts else []),
    ]
    variables = environment(
        addresses[rank],
        or_else("NCCL_HCA", "rocep1s0f0"),
        or_else("NCCL_IF", "enp1s0f0np0"),
        int(or_else("NCCL_GID_INDEX", str(gid_index))),
        or_else("NCCL_SUBNET", "10.200.0.0/24"),
    )
    variables["VLLM_USE_B12X_FP8_GEMM"] = or_else("VLLM_USE_B12X_FP8_GEMM", "1")
    variables["VLLM_DFLASH_FP8_DRAFT_HEAD"] = or_else("VLLM_DFLASH_FP8_DRAFT_HEAD", "1")
    for name in ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"):
        variables[name] = or_else("NCCL_NCHANNELS", "8")
        if variables[name] == "0":
            del variables[name]
    for name in (
        "VLLM_DISABLED_KERNELS", "VLLM_SERVER_DEV_MODE", "VLLM_NVFP4_MLA_DYNAMIC_SCALE", "VLLM_EXL3_STANDARD_FUSED",
        "VLLM_B12X_MXFP8_MAX_M",
    ):  # fmt: skip
        if stated.get(name):
            variables[name] = stated[name]

    def flag(name: str, value: str) -> list[str]:  # left out where there is no value
        return [name, value] if value else []

    speculation = ""
    if mtp != "0":
        speculation = f'{{"method":"mtp","num_speculative_tokens":{mtp}}}'
    elif drafts:
        tokens = or_else("DFLASH_TOKENS", "7")
        speculation = f'{{"method":"dflash","model":"/models/glm53-dflash2","num_speculative_tokens":{tokens}}}'
    return [
        "docker", "run", "--gpus", "all", "-d",
        "--name", or_else("NAME", "vllm_glm53"), "--restart", "no",
        "--network", "host", "--ipc", "host", "--shm-size", "32g",
        "--ulimit", "memlock=-1:-1", "--cap-add", "IPC_LOCK", "--device", "/dev/infiniband:/dev/infiniband",
        *(word for volume in volumes for word in ("-v", volume)),
        *(word for name, value in variables.items() for word in ("-e", f"{name}={value}")),
        image,
        "vllm", "serve", "/models/glm53-exl3",
        "--served-model-name", "glm-5.3-flash",
        "--host", "0.0.0.0", "--port", or_else("PORT", "8000"),
        "--trust-remote-code", "--quantization", "exl3", "--tensor-parallel-size", "2",
        "--gpu-memory-utilization", or_else("GMU", "0.85"),
        "--max-model-len", or_else("MAX_LEN", "524288"),
        "--max-num-seqs", or_else("MAX_SEQS", "4"),
        "--block-size", or_else("BLOCK_SIZE", "2304"),
        "--mm-processor-cache-gb", or_else("MM_CACHE_GB", "0.5"),
        *flag("--load-format", unless_set("LOAD_FORMAT", "instanttensor")),
        *flag("--max-num-batched-tokens", or_else("MNBT", "8192")),
        *flag("--speculative-config", speculation),
        *flag("--kv-cache-dtype", unless_set("KV_DTYPE", "fp8_ds_mla")),
        *flag("--attention-backend", unless_set("ATTN_BACKEND", "B12X_MLA_SPARSE")),
        *flag("--kv-cache-dtype-skip-layers", unless_set("KV_SKIP_LAYERS", "sliding_window")),
        *flag("--kv-cache-memory", budget),
        *flag("--kda-prefill-backend", stated.get("KDA_PREFILL", "")),
        *flag("--prefix-match-unit", unless_set("PREFIX_MATCH_UNIT", "512")),
        *flag("--mixed-prefill-token-cap", stated.get("MIXED_PREFILL_CAP", "")),
        *flag("--mixed-prefill-max-defer-steps", stated.get("MIXED_PREFILL_MAX_DEFER", "")),
        *flag("--mixed-prefill-decode-weight", stated.get("MIXED_PREFILL_DECODE_WEIGHT", "")),
        *(["--enforce-eager"] if or_else("EAGER", "0") != "0" else []),
        *(["--skip-mm-profiling"] if or_else("SKIP_MM_PROFILING", "1") != "0" else []),
        "--tool-call-parser", "glm47", "--enable-auto-tool-choice", "--reasoning-parser", "glm45",
        "--default-chat-template-kwargs", '{"enable_thinking": false}',
        "--distributed-executor-backend", "mp", "--nnodes", "2", "--node-rank", str(rank),
        "--master-addr", addresses[0], "--master-port", or_else("MPORT", "29521"),
        *(["--headless"] if rank else []),
    ]  # fmt: skip
