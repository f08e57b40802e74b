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
