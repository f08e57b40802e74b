"""What the KV pool must hold, and what it must leave: computed (docs/capacity.md), before anything is started."""

from __future__ import annotations

from collections.abc import Iterator

from spec import capacity
from spec.cluster import Settings
from spec.rules.frame import error, warning

_READS = (
    "stack",
    "preset",
    "image",
    "image_release",
    "tensor_parallel_size",
    "max_model_len",
    "max_num_seqs",
    "block_size",
    "mm_processor_cache_gb",
    "load_format",
    "max_num_batched_tokens",
    "speculative_method",
    "speculative_tokens",
    "kv_cache_dtype",
    "attention_backend",
    "kv_cache_dtype_skip_layers",
    "kv_cache_memory_bytes",
    "enforce_eager",
    "dflash_fp8_draft_head",
    "dflash_kv_ring",
    "engine_env",
)


@error(
    "pool-holds-one",
    "The pool holds one request of full length",
    "The engine says the same minutes into a start, with the pair down.",
    "computed: docs/capacity.md",
    reads=_READS,
    only="vllm-exl3",
)
def _the_pool_holds_one(settings: Settings) -> Iterator[str]:
    yield from capacity.refusals(settings)


@warning(
    "memory-floor",
    "The head keeps the memory that the validated configuration leaves it",
    "GB10 does not fail gracefully when its memory runs out: it swaps until nobody can log in.",
    "computed: docs/capacity.md",
    reads=_READS,
    only="vllm-exl3",
)
def _the_head_keeps_its_floor(settings: Settings) -> Iterator[str]:
    yield from capacity.warnings(settings)
