"""What the engine of stack vllm-exl3, and the nodes under it, take together: R1 to R9 of the reference kit's knobs (R8
cannot be broken here, since the method of speculation is one knob), and what the field reports add."""

from __future__ import annotations

from collections.abc import Iterator

from spec.capacity import BYTES_FOR_MANY, MANY_SLOTS, VALIDATED_BYTES_BEFORE_V2_2
from spec.cluster import Settings
from spec.knobs import RELEASES, Knobs, shown
from spec.rules.frame import FIELD, KIT, error, left_out, said, warning

# Memory for context

CHECKPOINT_LENGTH = 1_048_576
"""What an empty max_model_len comes to: the longest that the reference kit's launcher takes for this checkpoint."""


def _length(knobs: Knobs) -> int:
    """Tokens of the longest request; 0 where nothing is known of it."""
    return CHECKPOINT_LENGTH if knobs.max_model_len == "" else knobs.max_model_len or 0


@error(
    "R1",
    "A 4-bit cache has dynamic scales",
    "The engine refuses to start: kv_cache_dtype nvfp4_ds_mla is computed with scales that this variable turns on.",
    f"{KIT}, knob KV_DTYPE",
    reads=("stack", "preset", "kv_cache_dtype", "nvfp4_mla_dynamic_scale"),
    only="vllm-exl3",
)
def _nvfp4_has_scales(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    if knobs.kv_cache_dtype == "nvfp4_ds_mla" and knobs.nvfp4_mla_dynamic_scale is not True:
        yield (
            f"{said(settings, 'kv_cache_dtype')}: needs nvfp4_mla_dynamic_scale = True, or the engine refuses to "
            f"start; set that too"
        )


EXL3_KV_DTYPES = ("fp8_ds_mla", "nvfp4_ds_mla", "fp8_e4m3", "")
LANES = ("fp8_ds_mla", "nvfp4_ds_mla")
"""Formats of the cache that one kernel family reads: B12X_MLA_SPARSE."""


@error(
    "kv-dtype-known",
    "The cache has a format that the engine knows",
    "The engine refuses to start with another.",
    f"{KIT}, knob KV_DTYPE",
    reads=("stack", "preset", "kv_cache_dtype"),
    only="vllm-exl3",
)
def _the_cache_format_is_known(settings: Settings) -> Iterator[str]:
    if settings.effective.kv_cache_dtype not in (None, *EXL3_KV_DTYPES):
        yield (
            f"{said(settings, 'kv_cache_dtype')}: the engine of stack vllm-exl3 knows "
            f'{", ".join(EXL3_KV_DTYPES[:-1])} and "" (bf16)'
        )


@error(
    "R2",
    "Cache format and attention kernels fit",
    "B12X_MLA_SPARSE reads the *_ds_mla formats and nothing else; any other pair ends in a boot error.",
    f"{KIT}, knobs KV_DTYPE and ATTN_BACKEND",
    reads=("stack", "preset", "kv_cache_dtype", "attention_backend"),
    only="vllm-exl3",
)
def _cache_and_kernels_fit(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    if knobs.kv_cache_dtype not in EXL3_KV_DTYPES:
        return
    if knobs.kv_cache_dtype not in LANES and knobs.attention_backend:
        yield (
            f"{said(settings, 'attention_backend')}: does not read {said(settings, 'kv_cache_dtype')}; "
            f'set attention_backend = "", so that the engine chooses'
        )
    elif knobs.kv_cache_dtype in LANES and knobs.attention_backend != "B12X_MLA_SPARSE":
        yield (
            f"{said(settings, 'attention_backend')}: {said(settings, 'kv_cache_dtype')} is read by B12X_MLA_SPARSE "
            f"only; {left_out(settings, 'attention_backend')}"
        )


@warning(
    "R2-skip-layers",
    "Layers that stay unquantized fit the cache format",
    "With a *_ds_mla cache the drafter's sliding-window layers must stay unquantized; without one there is nothing to "
    "leave out. The published unquantized preset leaves the default in place and serves, so this is told, not refused.",
    f"{KIT}, knob KV_SKIP_LAYERS and its table of configurations",
    reads=("stack", "preset", "kv_cache_dtype", "kv_cache_dtype_skip_layers", "speculative_method"),
    only="vllm-exl3",
)
def _skipped_layers_fit(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    if knobs.kv_cache_dtype not in LANES and knobs.kv_cache_dtype_skip_layers:
        yield (
            f"{said(settings, 'kv_cache_dtype_skip_layers')}: leaves nothing out, because the cache is not quantized "
            f'by layer ({said(settings, "kv_cache_dtype")}); set kv_cache_dtype_skip_layers = ""'
        )
    elif (
        knobs.kv_cache_dtype in LANES
        and knobs.speculative_method == "dflash"
        and knobs.kv_cache_dtype_skip_layers != "sliding_window"
    ):
        yield (
            f"{said(settings, 'kv_cache_dtype_skip_layers')}: the drafter's layers are then quantized, which costs "
            f"acceptance or the start; {left_out(settings, 'kv_cache_dtype_skip_layers')} for sliding_window"
        )


@warning(
    "R3",
    "An unquantized cache has a short context",
    "Its pool held 520,470 tokens in the published preset, and a long request leaves no room for another.",
    f"{KIT}: bf16 wants about 131072",
    reads=("stack", "preset", "kv_cache_dtype", "max_model_len"),
    only="vllm-exl3",
)
def _an_unquantized_cache_is_short(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    if knobs.kv_cache_dtype == "" and _length(knobs) > 131072:
        yield (
            f"{said(settings, 'max_model_len')}: with an unquantized cache (kv_cache_dtype is empty) 131072 is the "
            f"published length; preset unquantized-kv states the whole set"
        )


@error(
    "R4",
    "A context above 524288 is read in steps of at most 4096",
    "8192 wedged a head for good under concurrent traffic at 1M.",
    f"{KIT}, knob MNBT",
    reads=("stack", "preset", "max_model_len", "max_num_batched_tokens"),
    only="vllm-exl3",
)
def _a_long_context_is_read_in_small_steps(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    if _length(knobs) > 524288 and (knobs.max_num_batched_tokens or 0) > 4096:
        yield (
            f"{said(settings, 'max_num_batched_tokens')}: 8192 wedged a head under concurrent traffic where "
            f"max_model_len is above 524288 ({_length(knobs)}); set max_num_batched_tokens = 4096"
        )


@warning(
    "R4-dtype",
    "A context above 524288 has a 4-bit cache",
    "The pool of an 8-bit cache holds one request of 1M; the published preset for 1M uses nvfp4_ds_mla and holds two.",
    f"{KIT}, table of configurations",
    reads=("stack", "preset", "max_model_len", "kv_cache_dtype"),
    only="vllm-exl3",
)
def _a_long_context_has_a_compact_cache(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    if _length(knobs) > 524288 and knobs.kv_cache_dtype in ("fp8_ds_mla", "fp8_e4m3"):
        yield (
            f"{said(settings, 'max_model_len')}: with {said(settings, 'kv_cache_dtype')} hardly more than one such "
            f"request fits; preset long-documents uses nvfp4_ds_mla"
        )


def _slots(knobs: Knobs) -> int:
    """Requests at once; left to the engine they are more than the published many (vLLM's own default is 128 and more,
    by the size of the GPU's memory)."""
    return 128 if knobs.max_num_seqs == "" else knobs.max_num_seqs or 0


@error(
    "R6",
    "Many streams with the drafter have the memory for it",
    "The drafter's ring grows with max_num_seqs (about 2.5 GiB at 4, 9 GiB at 16) and takes it from the pool: 16 "
    "streams at 131k need 16.5e9 bytes, or no drafter.",
    f"{KIT}, knob MAX_SEQS",
    reads=("stack", "preset", "max_num_seqs", "speculative_method", "kv_cache_memory_bytes"),
    only="vllm-exl3",
)
def _many_streams_have_memory(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    budget = knobs.kv_cache_memory_bytes
    if (
        knobs.speculative_method == "dflash"
        and _slots(knobs) >= MANY_SLOTS
        and isinstance(budget, int)
        and budget < BYTES_FOR_MANY
    ):
        yield (
            f"{said(settings, 'max_num_seqs')}: with the drafter, {MANY_SLOTS} or more need "
            f"kv_cache_memory_bytes of at least {BYTES_FOR_MANY} (it is {budget}); set that if the nodes have it, "
            f'or speculative_method = ""'
        )


@warning(
    "R6-some",
    "Some more streams with the drafter cost pool",
    "Where between 4 and 16 the ring begins to bite is not published; docs/capacity.md computes it.",
    f"{KIT}, knob MAX_SEQS",
    reads=("stack", "preset", "max_num_seqs", "speculative_method", "kv_cache_memory_bytes"),
    only="vllm-exl3",
)
def _more_streams_cost_pool(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    budget = knobs.kv_cache_memory_bytes
    if (
        knobs.speculative_method == "dflash"
        and 8 <= _slots(knobs) < MANY_SLOTS
        and isinstance(budget, int)
        and budget < BYTES_FOR_MANY
    ):
        yield (
            f"{said(settings, 'max_num_seqs')}: the drafter's ring grows with it and takes its memory from the pool; "
            f'from 8 streams on speculative_method = "" is advised'
        )


@error(
    "R9",
    "The trial with the largest images has a short context",
    "At a long max_model_len the trial itself runs out of memory.",
    f"{KIT}, knob SKIP_MM_PROFILING",
    reads=("stack", "preset", "skip_mm_profiling", "max_model_len"),
    only="vllm-exl3",
)
def _the_image_trial_is_short(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    if knobs.skip_mm_profiling is False and _length(knobs) > 131072:
        yield (
            f"{said(settings, 'skip_mm_profiling')}: needs a max_model_len of at most 131072 "
            f"(it is {_length(knobs)}), or the trial runs out of memory; {left_out(settings, 'skip_mm_profiling')}"
        )


# Scheduling


@error(
    "R7",
    "A decode weight has a cap above 64",
    "With a weight, a cap of 64 tokens or less starves the documents.",
    f"{KIT}, knobs MIXED_PREFILL_*",
    reads=("stack", "preset", "mixed_prefill_decode_weight", "mixed_prefill_token_cap"),
    only="vllm-exl3",
)
def _a_weight_has_its_cap(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    weight, cap = knobs.mixed_prefill_decode_weight, knobs.mixed_prefill_token_cap
    if isinstance(weight, float) and weight > 0 and isinstance(cap, int) and 0 < cap <= 64:
        yield (
            f"{said(settings, 'mixed_prefill_token_cap')}: must be above 64 where mixed_prefill_decode_weight is set "
            f"({weight}); 512 is advised"
        )


@warning(
    "defer-without-effect",
    "A limit on putting off has an effect",
    "The engine ignores it where a decode weight is set.",
    f"{KIT}, knob MIXED_PREFILL_MAX_DEFER",
    reads=("stack", "preset", "mixed_prefill_decode_weight", "mixed_prefill_max_defer_steps"),
    only="vllm-exl3",
)
def _a_limit_has_an_effect(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    weight = knobs.mixed_prefill_decode_weight
    if isinstance(weight, float) and weight > 0 and isinstance(knobs.mixed_prefill_max_defer_steps, int):
        yield (
            f"{said(settings, 'mixed_prefill_max_defer_steps')}: has no effect while mixed_prefill_decode_weight is "
            f"set ({weight}); leave it out"
        )


@error(
    "block-size",
    "A block is a multiple of 64 tokens",
    "The sparse index works in groups of 64, and the engine asserts it at start.",
    f"{KIT}, knob BLOCK_SIZE",
    reads=("stack", "preset", "block_size"),
    only="vllm-exl3",
)
def _a_block_is_whole(settings: Settings) -> Iterator[str]:
    size = settings.effective.block_size
    if isinstance(size, int) and size % 64:
        yield f"{said(settings, 'block_size')}: must be a multiple of 64, or the engine ends at start; 2304 is proven"


@warning(
    "prefix-match-unit",
    "Prefixes are matched at a proven granularity",
    "512, 2304 and whole blocks are what the kit names; others were not tried.",
    f"{KIT}, knob PREFIX_MATCH_UNIT",
    reads=("stack", "preset", "prefix_match_unit"),
    only="vllm-exl3",
)
def _prefixes_are_matched_as_proven(settings: Settings) -> Iterator[str]:
    unit = settings.effective.prefix_match_unit
    if isinstance(unit, int) and unit not in (512, 2304, 4608):
        yield f'{said(settings, "prefix_match_unit")}: 512 and 2304 are proven, and "" for whole blocks'


# Speculation


@error(
    "method-known",
    "A method of speculation has what it drafts with",
    "The stack hands the engine one drafter, which is DFlash's; the engine refuses to start eagle3 and draft_model "
    "without one.",
    f"{KIT}, knobs SPEC and MTP",
    reads=("stack", "preset", "speculative_method"),
    only="vllm-exl3",
)
def _a_method_has_its_drafter(settings: Settings) -> Iterator[str]:
    if settings.effective.speculative_method in ("eagle3", "draft_model"):
        yield (
            f"{said(settings, 'speculative_method')}: stack vllm-exl3 has no drafter for it; set "
            f'speculative_method = "dflash", or speculative_method = "mtp", or speculative_method = ""'
        )


@error(
    "dflash-tokens",
    "The drafter proposes at most 7 tokens",
    "It was trained on blocks of 8, one given and 7 drafted.",
    f"{KIT}, knob DFLASH_TOKENS",
    reads=("stack", "preset", "speculative_method", "speculative_tokens"),
    only="vllm-exl3",
)
def _a_block_has_seven_drafts(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    if knobs.speculative_method == "dflash" and (knobs.speculative_tokens or 0) > 7:
        yield f"{said(settings, 'speculative_tokens')}: dflash was trained on 1 + 7; set speculative_tokens = 7"


@warning(
    "mtp-tokens",
    "MTP proposes 4 tokens",
    "5 are slower than 4.",
    f"{KIT}, knob MTP",
    reads=("stack", "preset", "speculative_method", "speculative_tokens"),
    only="vllm-exl3",
)
def _mtp_has_four_drafts(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    if knobs.speculative_method == "mtp" and (knobs.speculative_tokens or 0) > 4:
        yield f"{said(settings, 'speculative_tokens')}: more than 4 are slower with mtp; set speculative_tokens = 4"


@warning(
    "drafter-floats",
    "A drafter is pinned",
    "What another repository holds today is not what it holds tomorrow.",
    "reference kit, which pins its default repository only",
    reads=("stack", "drafter_repository", "drafter_revision"),
    only="vllm-exl3",
)
def _a_drafter_is_pinned(settings: Settings) -> Iterator[str]:
    repository = settings.effective.drafter_repository
    if repository and not settings.knobs.drafter_revision and repository not in settings.stack.revisions:
        yield (
            f"{said(settings, 'drafter_repository')}: no commit is stated for it, so what a fetch brings may change; "
            f"set drafter_revision"
        )


# What the model needs


@warning(
    "ENG-13",
    "Tool calls and reasoning are read by the proven pair",
    "glm45 as the tool parser extracts no call from this model's text; glm47 and glm45 (reasoning) do.",
    f"{FIELD}: ENG-13",
    reads=("stack", "preset", "tool_call_parser", "reasoning_parser"),
    only="vllm-exl3",
)
def _parsers_are_the_proven_pair(settings: Settings) -> Iterator[str]:
    for name, proven in (("tool_call_parser", "glm47"), ("reasoning_parser", "glm45")):
        value = getattr(settings.effective, name)
        if value and value != proven:
            yield f"{said(settings, name)}: {proven} is what reads this model's text; {left_out(settings, name)}"


# What an image knows


def _release(settings: Settings) -> str | None:
    return _known_release(settings) or settings.effective.image_release


def _known_release(settings: Settings) -> str | None:
    image = settings.effective.image
    return settings.stack.releases.get(image.partition("@")[2]) if image else None


def _older(settings: Settings, than: str) -> str | None:
    """The release, where it is known and older."""
    release = _release(settings)
    return release if release and RELEASES.index(release) < RELEASES.index(than) else None


@error(
    "image-release",
    "A known image is called what it is",
    "The rules on releases would judge another image than the one that runs.",
    reads=("stack", "image", "image_release"),
    only="vllm-exl3",
)
def _a_known_image_is_called_so(settings: Settings) -> Iterator[str]:
    stated = settings.knobs.image_release
    known = _known_release(settings)
    if stated and known and stated != known:
        yield f"image_release = {shown(stated)}: this image is {known}; leave image_release out"


@warning(
    "image-unknown",
    "An image's release is known",
    "Older releases end at start, or at the first request, with knobs that newer ones take.",
    f"{KIT}, its guard against old images",
    reads=("stack", "image", "image_release"),
    only="vllm-exl3",
)
def _the_release_is_known(settings: Settings) -> Iterator[str]:
    if settings.effective.image and _release(settings) is None:
        yield (
            f"{said(settings, 'image')}: which release it is, is not known, so that knobs which older ones refuse are "
            f"not judged; set image_release ({', '.join(RELEASES)})"
        )


@error(
    "ENG-15",
    "A context above 524288 has a newer image than v1",
    "The attention kernel of v1 asks for more shared memory than GB10 has, and ends at warm-up; without the drafter it "
    "does so from about 358000 on.",
    f"{FIELD}: ENG-15; {KIT}, knob MAX_LEN",
    reads=("stack", "preset", "image", "image_release", "max_model_len", "speculative_method"),
    only="vllm-exl3",
)
def _a_long_context_has_a_newer_image(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    release = _older(settings, "v2")
    most = 524288 if knobs.speculative_method else 358000
    if release and _length(knobs) > most:
        without = "" if knobs.speculative_method else " without a drafter"
        yield (
            f"{said(settings, 'max_model_len')}: image release {release} ends at start above {most}{without}; take a "
            f"newer image, or set max_model_len = {most}"
        )


@error(
    "old-image-prefix",
    "Fine prefix matching has an image from v2.1 on",
    "Older ones end at the first request.",
    f"{KIT}, its guard against old images",
    reads=("stack", "preset", "image", "image_release", "prefix_match_unit"),
    only="vllm-exl3",
)
def _fine_prefixes_have_a_newer_image(settings: Settings) -> Iterator[str]:
    release, unit = _older(settings, "v2.1"), settings.effective.prefix_match_unit
    if release and isinstance(unit, int) and unit < 4608:
        yield (
            f"{said(settings, 'prefix_match_unit')}: image release {release} ends at the first request with less than "
            f'4608; set prefix_match_unit = ""'
        )


@error(
    "old-image-memory",
    "An image before v2.1 has a budget of at most 12.4e9 bytes",
    "It needs more beside the pool; the kit lowers the budget by itself, and says nothing in a plan.",
    f"{KIT}, its guard against old images",
    reads=("stack", "preset", "image", "image_release", "kv_cache_memory_bytes"),
    only="vllm-exl3",
)
def _an_old_image_has_a_small_budget(settings: Settings) -> Iterator[str]:
    release, budget = _older(settings, "v2.1"), settings.effective.kv_cache_memory_bytes
    if release and isinstance(budget, int) and budget > VALIDATED_BYTES_BEFORE_V2_2:
        yield (
            f"{said(settings, 'kv_cache_memory_bytes')}: image release {release} has room for "
            f"{VALIDATED_BYTES_BEFORE_V2_2}; set kv_cache_memory_bytes = {VALIDATED_BYTES_BEFORE_V2_2}"
        )


@warning(
    "old-image-floor",
    "Image v2.1 has a budget of about 12.4e9 bytes",
    "13.4e9 cut the memory that is left on the head from 5.25 to 2.26 GiB.",
    f"{KIT}, knob KV_CACHE_MEMORY",
    reads=("stack", "preset", "image", "image_release", "kv_cache_memory_bytes"),
    only="vllm-exl3",
)
def _v21_leaves_room(settings: Settings) -> Iterator[str]:
    budget = settings.effective.kv_cache_memory_bytes
    if _release(settings) == "v2.1" and isinstance(budget, int) and budget > VALIDATED_BYTES_BEFORE_V2_2:
        yield (
            f"{said(settings, 'kv_cache_memory_bytes')}: on image release v2.1, 13.4e9 left 2.26 GiB on the head and "
            f"12.4e9 left 5.25; set kv_cache_memory_bytes = {VALIDATED_BYTES_BEFORE_V2_2}"
        )


@warning(
    "old-image-fp8",
    "An image before v2.3 computes without the fp8 kernels",
    "They cost acceptance there at 4 streams.",
    f"{KIT}, knob VLLM_USE_B12X_FP8_GEMM",
    reads=("stack", "preset", "image", "image_release", "use_b12x_fp8_gemm"),
    only="vllm-exl3",
)
def _old_images_have_no_fp8(settings: Settings) -> Iterator[str]:
    release = _older(settings, "v2.3")
    if release and settings.effective.use_b12x_fp8_gemm is True:
        yield (
            f"{said(settings, 'use_b12x_fp8_gemm')}: costs acceptance on image release {release}; "
            f"set use_b12x_fp8_gemm = False"
        )
