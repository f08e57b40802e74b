"""GLM 5.3 Flash at 4 bit (EXL3) with a DFlash drafter, launched exactly as the reference kit v2.3-tier1 launches it."""

from __future__ import annotations

from spec.knobs import Knobs
from spec.stacks import common, image_checks
from spec.stacks.launch import Groups, Launch, Seat, Stack, env_pairs, flag_groups

MODEL = "/models/glm53-exl3"
DRAFTER = "/models/glm53-dflash2"

DEFAULTS: dict[str, object] = {
    "image": "ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark"
    "@sha256:44b2dbafe8d81d6c7019a346480b49b23c1a0bef99c9b1d0db6e7ccc926921ca",
    "weights_path": "~/models/glm53-exl3",
    "weights_repository": "brandonmusic/GLM-5.3-Flash-tr3-4bpw",
    "weights_repository_fallback": "Mia-AiLab/GLM-5.3-Flash-EXL3-TR3-4bpw",
    "drafter_repository": "local-inference-lab/GLM-5.3-Flash-DFlash2-MXFP8",
    "drafter_path": "~/models/glm53-dflash2-mxfp8",
    "cache_path": "~/glm53-vllm-cache",
    "container_name": "vllm_glm53",
    "shm_size": "32g",
    "served_model_name": "glm-5.3-flash",
    "trust_remote_code": True,
    "quantization": "exl3",
    "gpu_memory_utilization": 0.85,
    "max_model_len": 524288,
    "max_num_seqs": 4,
    "block_size": 2304,
    "mm_processor_cache_gb": 0.5,
    "load_format": "instanttensor",
    "max_num_batched_tokens": 8192,
    "speculative_method": "dflash",
    "kv_cache_dtype": "fp8_ds_mla",
    "attention_backend": "B12X_MLA_SPARSE",
    "kv_cache_dtype_skip_layers": "sliding_window",
    "kv_cache_memory_bytes": 14_400_000_000,
    "prefix_match_unit": 512,
    "skip_mm_profiling": True,
    "tool_call_parser": "glm47",
    "reasoning_parser": "glm45",
    "enable_thinking": False,
    "use_b12x_fp8_gemm": True,
    "dflash_fp8_draft_head": True,
    "nccl_channels": 8,
    "nccl_debug": "WARN",
    "engine_ready_timeout_seconds": 3600,
    "memory_used_max_gib": 6,
    "smoke_expected": "391",
    "canary_expected": "391",
    "gate_reasoning_off_seconds": 180,
    "gate_image_seconds": 180,
}

# dflash: trained on blocks of 8, one token given. mtp: 5 regresses. Both from the reference kit v2.3-tier1.
SPECULATIVE_TOKENS = {"dflash": 7, "mtp": 4}
NEEDS_DRAFTER = frozenset({"dflash"})

# The reference kit v2.3-tier1 writes upstream's abbreviation; so do we, to launch what was proven.
SPELLING = {"--kv-cache-memory-bytes": "--kv-cache-memory"}

# Its variable stands where it stood before it was a knob: another order is another text, and would restart every pair.
STANDS_EARLIER = frozenset({"engine_ready_timeout_seconds"})

JIT_CACHES = {
    "triton": "/root/.triton",
    "flashinfer": "/root/.cache/flashinfer",
    "b12x": "/root/.cache/b12x",
    "vllm": "/root/.cache/vllm",
}


def launch(knobs: Knobs, seat: Seat) -> Launch:
    """One rank. `knobs` are effective: the stack's defaults stand where nothing was stated."""
    drafter = seat.drafter_path if knobs.speculative_method in NEEDS_DRAFTER else None
    jit = {f"{seat.cache_path}/jit/{name}": target for name, target in JIT_CACHES.items()}
    return Launch(
        name=str(knobs.container_name),
        image=str(knobs.image),
        content=(seat.weights_path, *([drafter] if drafter else [])),
        container=common.container_groups(knobs),
        mounts=(
            (seat.weights_path, MODEL, "ro"),
            (seat.cache_path, "/cache"),
            *jit.items(),
            *([(drafter, DRAFTER, "ro")] if drafter else []),
        ),
        directories=(seat.cache_path, *jit),
        env=(
            ("VLLM_HOST_IP", str(seat.address)),
            ("HF_HOME", "/cache/huggingface"),
            ("HF_HUB_OFFLINE", "1"),
            ("TRANSFORMERS_OFFLINE", "1"),
            *env_pairs(knobs, of=STANDS_EARLIER),
            ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
            ("TORCH_CUDA_ARCH_LIST", "12.1a"),
            ("FLASHINFER_CUDA_ARCH_LIST", "12.1a"),
            ("FLASHINFER_DISABLE_VERSION_CHECK", "1"),
            *common.nccl_env(knobs, seat),
            *env_pairs(knobs, but=STANDS_EARLIER),
            *common.api_key_env(knobs, seat),
            *common.extra_env(knobs),
        ),
        command=_command(knobs, seat, drafter),
    )


def _command(knobs: Knobs, seat: Seat, drafter: str | None) -> Groups:
    flags = flag_groups(
        knobs,
        place={
            "tensor_parallel_size": lambda: common.tensor_parallel(knobs, seat),
            "speculative_method": lambda: common.speculation(knobs, DRAFTER if drafter else None, SPECULATIVE_TOKENS),
            "tool_call_parser": lambda: common.tool_calls(knobs),
            "chat_template": lambda: common.chat_template(knobs, MODEL),
            "enable_thinking": lambda: common.thinking(knobs),
        },
        spelling=SPELLING,
    )
    return (("vllm", "serve", MODEL), *flags, *common.rendezvous(knobs, seat))


STACK = Stack(
    name="vllm-exl3",
    title="GLM 5.3 Flash EXL3 with DFlash, the reference kit's launch",
    image=str(DEFAULTS["image"]),
    defaults=DEFAULTS,
    revisions={str(DEFAULTS["drafter_repository"]): "62f758c0a0e19b9cb76fc098c911b8ed76daff5b"},
    quantized_drafters={str(DEFAULTS["drafter_repository"]): True, "incoai/GLM-5.3-Flash-DFlash2": False},
    overlays=("~/glm53-hotfix", "~/glm53-hotfix-fi", "~/glm53-hotfix-b12x"),
    image_checks=image_checks.EXL3,
    image_tests=image_checks.EXL3_TESTS,
    releases={str(DEFAULTS["image"]).partition("@")[2]: "v2.3"},
    release_url="https://raw.githubusercontent.com/Entrpi/glm-5.3-flash-exl3-2x-spark/main/LATEST",
    launch=launch,
    served_name=lambda knobs, seat: str(knobs.served_model_name),
    speculative_tokens=SPECULATIVE_TOKENS,
    needs_drafter=NEEDS_DRAFTER,
    spelling=SPELLING,
    published_start_seconds=225.0,
    published_start_source="reference kit v2.3-tier1, README, restart to API with instanttensor",
    published_nfs_start_seconds=750.0,
    start_order="workers-first",
    ready_path="/health",
    metrics_path="/metrics",
)
