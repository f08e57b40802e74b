"""Named bundles of settings for stack vllm-exl3, after the table "Choosing a configuration" of the reference kit
v2.3-tier1. Each is a start: what is stated beside it wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from spec.knobs import PRESETS as NAMES


@dataclass(frozen=True)
class Preset:
    """Settings under one name. `published_pool_tokens` is the KV pool that the reference kit's README states for it."""

    name: str
    title: str
    gives: str
    takes: str
    values: Mapping[str, object]
    published_pool_tokens: int | None = None


_FAIR = {"mixed_prefill_decode_weight": 1.0, "mixed_prefill_token_cap": 512}
_COMPACT = {"kv_cache_dtype": "nvfp4_ds_mla", "nvfp4_mla_dynamic_scale": True}

_ALL = (
    Preset(
        "default",
        "The validated configuration",
        "Four requests at once of up to 524,288 tokens each, full quality of the cache, the drafter on.",
        "Nothing; everything else is measured against it.",
        {},
        1_287_194,
    ),
    Preset(
        "responsive-chat",
        "Chats stay quick while documents load",
        "Running answers keep 85 to 91% of their speed while a document is read, with pauses of about 0.6 s in place "
        "of 3 s.",
        "Documents are read 20 to 35% slower while somebody chats.",
        _FAIR,
    ),
    Preset(
        "more-context",
        "More context in the same memory",
        "A quarter more tokens of context: three requests of full length at once in place of two and a half.",
        "A cache in 4 bit: math_500 at 88 in place of 91.",
        _COMPACT,
        1_702_584,
    ),
    Preset(
        "long-documents",
        "Requests of up to a million tokens",
        "One request may hold 1,048,576 tokens, and nearly two of them fit at once.",
        "A cold prompt of that length takes about 15 minutes to read. Documents are read in steps of 4096 tokens, "
        "because 8192 wedged a head under concurrent traffic; and the cache is in 4 bit, as in more-context.",
        {**_COMPACT, "max_model_len": 1_048_576, "max_num_batched_tokens": 4096},
        2_144_814,
    ),
    Preset(
        "many-agents",
        "Many short sessions at once",
        "12 requests at once, with room for 13 of 131,072 tokens where the default's memory holds 5 of that length; "
        "88 to 103 tokens per second in all at 12 to 16 streams.",
        "No drafter, so a single stream decodes slower; requests of up to 131,072 tokens.",
        {
            "max_model_len": 131_072,
            "max_num_seqs": 12,
            "max_num_batched_tokens": 4096,
            "speculative_method": "",
            **_FAIR,
        },
        1_858_451,
    ),
    Preset(
        "unquantized-kv",
        "The cache as the model computes it",
        "No quantization of the cache (bf16): the reference against which the others are judged.",
        "Requests of up to 131,072 tokens, and room for 3 of that length where the default's memory holds 5. Its "
        "kv_cache_dtype_skip_layers stays as published, and draws a warning.",
        {
            "max_model_len": 131_072,
            "max_num_seqs": 6,
            "kv_cache_dtype": "",
            "attention_backend": "",
            "skip_mm_profiling": False,
        },
        520_470,
    ),
    Preset(
        "mtp-fallback",
        "Without the drafter's files",
        "Speculation by the model's own layer, four tokens per step: the drafter, and its licence, are not needed.",
        "About 20% slower decoding.",
        {"speculative_method": "mtp", "speculative_tokens": 4},
    ),
)

PRESETS: dict[str, Preset] = {preset.name: preset for preset in _ALL}

if tuple(PRESETS) != NAMES:
    raise TypeError(f"spec/knobs.py names the presets {NAMES}, and here are {tuple(PRESETS)}")


def values_of(name: str | None) -> Mapping[str, object]:
    """The settings under a name; none for no name."""
    return PRESETS[name].values if name else MappingProxyType({})
