"""What the KV budget of stack vllm-exl3 holds, and what it leaves the head: counted in the engine's own blocks.

The engine prints "GPU KV cache size: N tokens". N is not the tokens that fit: it is blocks / blocks per full request x
max_model_len (vLLM, kv_cache_utils.get_kv_cache_capacity; said so in vllm-project/vllm issue 54662). So both counts are
built here as the engine builds them, from the geometry of the checkpoint, and N follows. docs/capacity.md tells it in
full, with every published figure beside what this module says.

Two nodes, tensor parallel over both. Bytes are per rank; GB is 10^9, GiB is 2^30.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from types import MappingProxyType

from spec.cluster import Settings
from spec.knobs import Knobs

# Sections of "FINDINGS" are those of that file in the reference kit, Entrpi/glm-5.3-flash-exl3-2x-spark.

GB = 10**9
GIB = 2**30
STEP = 10**8
"""Budgets are proposed in steps of so many bytes."""


@dataclass(frozen=True)
class Geometry:
    """Shapes of the checkpoint and of its drafter. Each stands in a config.json or in the engine's source."""

    ranks: int = 2
    # zai-org/GLM-5.3-Flash config.json (as public engines quote it), text_config.layer_types: 45 layers.
    attention_layers: int = 11
    state_layers: int = 34
    # text_config: kv_lora_rank 512, qk_rope_head_dim 0 (no rotary part in the cache).
    latent: int = 512
    # text_config: index_head_dim 128, index_kpool 4: one pooled key for four tokens, in fp8 with an fp32 scale, so 33
    # bytes per token (sfxnz/GLM-5.3-Flash-NVFP4-vLLM-2x-DGX-Spark, pull 1: "the DSA indexer's 33 B/token page").
    index_key: int = 128
    index_scale_bytes: int = 4
    index_pool: int = 4
    # text_config.linear_attn_config: num_heads 64, head_dim 128, short_conv_kernel_size 4. The state is fp32 (reference
    # kit, FINDINGS section 10), the convolution's tail bf16.
    state_heads: int = 64
    state_head: int = 128
    convolution: int = 4
    # num_nextn_predict_layers 1: the layer that mtp drafts with is one more layer of sparse attention.
    mtp_layers: int = 1
    # incoai/GLM-5.3-Flash-DFlash2 config.json (the same): 5 layers of sliding attention, 8 KV heads of 128, window
    # 2048.
    draft_layers: int = 5
    draft_heads: int = 8
    draft_head: int = 128
    draft_window: int = 2048

    @property
    def index_bytes(self) -> int:
        """Bytes of the sparse indexer per token of one attention layer."""
        return (self.index_key + self.index_scale_bytes) // self.index_pool

    @property
    def state_bytes(self) -> int:
        """Bytes of one recurrent state of one layer: a matrix per head, and the convolution's last inputs."""
        heads = self.state_heads // self.ranks
        return heads * self.state_head**2 * 4 + (self.convolution - 1) * 3 * heads * self.state_head * 2

    def draft_bytes(self, item: int) -> int:
        """Bytes of keys and values per token of all draft layers, for values of `item` bytes."""
        return self.draft_layers * self.draft_heads // self.ranks * self.draft_head * 2 * item


GEOMETRY = Geometry()

LATENT_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "": 2 * GEOMETRY.latent,  # the model's own, bf16
        "fp8_e4m3": GEOMETRY.latent,
        # 512 fp8 values and 4 fp32 scales (reference kit, FINDINGS section 12).
        "fp8_ds_mla": GEOMETRY.latent + 16,
        # 256 bytes of packed fp4, 32 of fp8 scales, one fp32 scale per token, padded (section 13: 304 B/token).
        "nvfp4_ds_mla": 304,
    }
)
"""Bytes of the attention cache per token and layer, by kv_cache_dtype."""

DRAFT_TOKENS: Mapping[str, int] = MappingProxyType({"dflash": 7, "mtp": 4})
"""Tokens per step where speculative_tokens is unset; the stack's own figures."""

STATES_PER_GROUP = 2
"""Blocks of a group of state layers for one request, beside one per drafted token: MambaSpec.max_memory_usage_bytes in
mode align is page x (2 + num_speculative_blocks) (quoted in vllm-project/vllm pull 57261)."""

WITHOUT_STATE_RING = frozenset({"v1", "v2", "v2.1"})
"""Releases of the reference kit's image that keep the states of drafted tokens in the pool and size the indexer's
workspace by the full length, and whose floors were measured with a page-cached load. v2.2 brought the ring and the
small workspace (FINDINGS section 17)."""


@dataclass(frozen=True)
class FreeParameters:
    """What no source states: chosen so that published figures come out. FREE_PARAMETERS counts them."""

    index_tail_blocks: int = 1
    """Blocks per request for the indexer's incomplete pool ("kpool tail": MiaAI-Lab, pull 94, names the group and not
    its size)."""
    steps_in_flight: int = 2
    """Steps of max_num_batched_tokens that the drafter's window is held open for, beside the window itself."""
    ring_spare_blocks: int = 2
    """Blocks of the draft ring per slot beyond those; admission counts one fewer."""
    floor_bytes: int = 2 * GB
    """What the default of v2.3 leaves the head: the middle of "the head then serves with about 1-3 GB to spare"
    (README of v2.3-tier1)."""
    floor_bytes_before_v2_2: int = int(3.2 * GIB)
    """What v2 at 12.4e9 bytes and 524,288 tokens left it during a prefill of 499k (FINDINGS section 12)."""
    floor_per_byte_before_v2_2: float = (5.25 - 2.26) * GIB / GB
    """What a byte above 12.4e9 cost the head there: 13.4e9 cut its floor from 5.25 to 2.26 GiB (section 5, which calls
    it non-linear and does not explain it). Up to 12.4e9, and from v2.2 on, a byte costs a byte."""
    floor_half_width_bytes: int = 1 * GB
    """How far a floor strays from its middle: that of the same sentence."""
    activation_bytes_per_token: int = int(3.6 * GIB) // 7168
    """Peak activations per batched token: 3.6 GiB at 7168 on another kit for the same checkpoint and nodes (MiaAI-Lab,
    issue 47)."""


FREE = FreeParameters()
FREE_PARAMETERS = len(fields(FreeParameters))

WEIGHTS_BYTES = 176 * GB // GEOMETRY.ranks
"""The checkpoint is 176 GB in 120 shards (164 GiB); its routed experts, nearly all of it, are split over the ranks."""
DRAFTER_BYTES = int(1.20 * GIB) // GEOMETRY.ranks
"""The MXFP8 copy of the drafter, split over the ranks."""
DRAFT_HEAD_BYTES = 317_000_000
"""The fp8 draft head of v2.3, per rank (its launcher and announcement)."""
GRAPH_BYTES = int(0.26 * GIB)
"""CUDA graphs, per rank (boot line in MiaAI-Lab, issue 47)."""
VALIDATED_BYTES_BEFORE_V2_2 = 12_400_000_000
"""kv_cache_memory_bytes of the default up to v2.1."""
AGGRESSIVE_BYTES = 14_900_000_000
"""What the reference kit calls the aggressive option for kv_cache_memory_bytes."""
MANY_SLOTS, BYTES_FOR_MANY = 16, 16_500_000_000
"""From so many slots on, the reference kit wants so many bytes where there is a drafter (v2.3-tier1, knob MAX_SEQS)."""


@dataclass(frozen=True)
class RankBytes:
    """Where the bytes of one rank go. The engine's other memory and the system's are not in it."""

    weights: int
    drafter: int
    kv_cache: int
    index_workspace: int
    activations: int
    graphs: int

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class Floor:
    """The least MemAvailable of the head under load, in bytes; below 0: it is expected to run out."""

    low: int
    expected: int


@dataclass(frozen=True)
class Capacity:
    """What one setting of the knobs gives."""

    pool_tokens: int
    """N of "GPU KV cache size: N tokens"."""
    full_requests: float
    """Requests of max_model_len that fit at once; the engine refuses to start below 1."""
    blocks: int
    block_tokens: int
    block_bytes: int
    blocks_per_request: int
    """Blocks that one request of max_model_len takes."""
    fixed_blocks_per_request: int
    """Those among them that a request of any length takes."""
    fixed_bytes: int
    """Taken from the budget before the first block, by slots: the draft ring and the drafted states."""
    draft_ring_bytes: int
    draft_state_bytes: int
    rank_bytes: RankBytes
    head_floor_bytes: Floor
    notes: tuple[str, ...]
    """What was assumed."""


@dataclass(frozen=True)
class _Terms:
    """The knobs that count, known to be whole."""

    latent: int
    draft_item: int
    budget: int
    length: int
    slots: int
    batch: int
    block_size: int
    method: str
    drafted: int
    early: bool
    state_ring: bool
    draft_head: bool
    eager: bool
    image_cache_bytes: int


def _terms(knobs: Knobs) -> _Terms | None:
    dtype, method = knobs.kv_cache_dtype, knobs.speculative_method
    budget, length, slots = knobs.kv_cache_memory_bytes, knobs.max_model_len, knobs.max_num_seqs
    batch, block_size = knobs.max_num_batched_tokens, knobs.block_size
    if knobs.stack != "vllm-exl3" or knobs.tensor_parallel_size not in (None, GEOMETRY.ranks):
        return None
    if dtype not in LATENT_BYTES or method not in ("", None, *DRAFT_TOKENS):
        return None
    if not (isinstance(budget, int) and isinstance(length, int) and isinstance(slots, int)):
        return None
    if not (isinstance(batch, int) and isinstance(block_size, int)):
        return None
    if block_size % (GEOMETRY.index_pool * 64):
        return None  # the engine refuses it
    if knobs.dflash_kv_ring is False or "VLLM_DFLASH_KV_RING=0" in knobs.engine_env:
        return None
    early = knobs.image_release in WITHOUT_STATE_RING
    drafted = (knobs.speculative_tokens or DRAFT_TOKENS[method]) if method else 0
    return _Terms(
        latent=LATENT_BYTES[str(dtype)],
        # The records of *_ds_mla are the model's alone; with fp8_e4m3 the skipped layers stay as the drafter has them.
        draft_item=1 if dtype == "fp8_e4m3" and knobs.kv_cache_dtype_skip_layers != "sliding_window" else 2,
        budget=budget,
        length=length,
        slots=slots,
        batch=batch,
        block_size=block_size,
        method=method or "",
        drafted=drafted,
        early=early,
        state_ring=not early and "VLLM_MAMBA_SPEC_CARVEOUT=0" not in knobs.engine_env,
        draft_head=method == "dflash" and knobs.dflash_fp8_draft_head is True and knobs.image_release != "v2.2",
        eager=knobs.enforce_eager is True,
        # 4 GiB is the engine's own default.
        image_cache_bytes=int(GIB * (knobs.mm_processor_cache_gb if knobs.mm_processor_cache_gb != "" else 4))
        if knobs.mm_processor_cache_gb is not None
        else 4 * GIB,
    )


@dataclass(frozen=True)
class _Layout:
    """How the engine cuts its budget into blocks."""

    block_tokens: int
    block_bytes: int
    fixed_blocks: int
    draft_ring: int
    draft_states: int

    def blocks_per_request(self, length: int) -> int:
        return _ceil(length, self.block_tokens) + self.fixed_blocks

    @property
    def carved(self) -> int:
        return self.draft_ring + self.draft_states


def _layout(terms: _Terms) -> _Layout:
    # One page of attention holds one state: the block grows in steps of block_size until it does.
    tokens = terms.block_size * _ceil(GEOMETRY.state_bytes, terms.block_size * terms.latent)
    attention = GEOMETRY.attention_layers + (GEOMETRY.mtp_layers if terms.method == "mtp" else 0)
    # A group of state layers is as large as that of the attention layers: 34 make 4 groups of 11, or 3 of 12.
    groups = _ceil(GEOMETRY.state_layers, attention)
    fixed = FREE.index_tail_blocks + groups * (STATES_PER_GROUP + terms.drafted)
    ring = states = 0
    if terms.method == "dflash":
        window = _ceil(GEOMETRY.draft_window - 1 + FREE.steps_in_flight * terms.batch, tokens)
        per_slot = window + FREE.ring_spare_blocks
        fixed += per_slot - 1
        # One page beside those of the slots: phys = 1 + slot x R + position mod R (FINDINGS section 3).
        ring = (1 + terms.slots * per_slot) * tokens * GEOMETRY.draft_bytes(terms.draft_item)
    if terms.state_ring:
        # One page of an attention layer per slot, drafted token and state layer (section 17).
        states = terms.slots * terms.drafted * GEOMETRY.state_layers * tokens * terms.latent
    return _Layout(
        block_tokens=tokens,
        block_bytes=attention * tokens * (terms.latent + GEOMETRY.index_bytes),
        fixed_blocks=fixed,
        draft_ring=ring,
        draft_states=states,
    )


def _rank_bytes(terms: _Terms) -> RankBytes:
    if terms.early:
        # max_model_len x 40 entries of a pooled key (FINDINGS section 17: 2.58 GiB at 524,288).
        entries = terms.length * 40
    else:
        entries = min(terms.slots, terms.batch) * _ceil(terms.length + terms.drafted, GEOMETRY.index_pool)
    drafter = DRAFTER_BYTES if terms.method == "dflash" else 0
    return RankBytes(
        weights=WEIGHTS_BYTES,
        drafter=drafter + (DRAFT_HEAD_BYTES if terms.draft_head and not terms.early else 0),
        kv_cache=terms.budget,
        index_workspace=entries * (GEOMETRY.index_key + GEOMETRY.index_scale_bytes),
        activations=terms.batch * FREE.activation_bytes_per_token,
        graphs=0 if terms.eager else GRAPH_BYTES,
    )


@cache
def _anchor(early: bool) -> tuple[int, int]:
    """The floor that was measured, and the head's bytes in the configuration that it was measured in."""
    validated = {"image_release": "v2", "kv_cache_memory_bytes": VALIDATED_BYTES_BEFORE_V2_2} if early else {}
    terms = _terms(effective(validated))
    if terms is None:
        raise TypeError("the stack's defaults are not known here")
    return FREE.floor_bytes_before_v2_2 if early else FREE.floor_bytes, _head_bytes(terms)


def _head_bytes(terms: _Terms) -> int:
    over = max(0, terms.budget - VALIDATED_BYTES_BEFORE_V2_2) if terms.early else 0
    return _rank_bytes(terms).total + terms.image_cache_bytes + int(over * (FREE.floor_per_byte_before_v2_2 - 1))


def effective(changes: Mapping[str, object]) -> Knobs:
    """The stack's defaults with changes, as a run without nodes would have them."""
    return Settings(knobs=Knobs.model_validate(dict(changes)), nodes=()).effective


def estimate(knobs: Knobs) -> Capacity | None:
    """What effective knobs give, in tokens and bytes per rank. None where it is not known: another stack, another
    number of ranks, a budget left to the engine, a cache format, a method of speculation or a block size that the model
    does not cover, or a draft ring that is switched off."""
    terms = _terms(knobs)
    if terms is None:
        return None
    layout = _layout(terms)
    blocks = max(0, (terms.budget - layout.carved) // layout.block_bytes)
    per_request = layout.blocks_per_request(terms.length)
    floor, validated = _anchor(terms.early)
    expected = floor + validated - _head_bytes(terms)
    return Capacity(
        pool_tokens=blocks * terms.length // per_request,
        full_requests=blocks / per_request,
        blocks=blocks,
        block_tokens=layout.block_tokens,
        block_bytes=layout.block_bytes,
        blocks_per_request=per_request,
        fixed_blocks_per_request=layout.fixed_blocks,
        fixed_bytes=layout.carved,
        draft_ring_bytes=layout.draft_ring,
        draft_state_bytes=layout.draft_states,
        rank_bytes=_rank_bytes(terms),
        head_floor_bytes=Floor(low=expected - FREE.floor_half_width_bytes, expected=expected),
        notes=_notes(knobs, terms),
    )


def _notes(knobs: Knobs, terms: _Terms) -> tuple[str, ...]:
    notes = ["a head with under 6 GB of its memory in use before the start, freshly booted (1.5 to 2 GiB a day go)"]
    if knobs.image_release is None:
        notes.append("an image of release v2.2 or later")
    if terms.method == "mtp":
        notes.append("mtp: its pool is published only as a round figure (710k), which is met to 3%")
        if terms.state_ring:
            notes.append("mtp: its drafted states are kept in a ring, as dflash's are")
    if knobs.block_size != 2304:
        notes.append("a block_size for which no pool is published")
    if knobs.load_format != "instanttensor" and not terms.early:
        notes.append("the head's floor with the loader instanttensor")
    return tuple(notes)


def longest_request(knobs: Knobs) -> int | None:
    """The largest max_model_len of which the pool still holds one request, with the other knobs as they are; 0 where no
    length fits, None where it is not known."""
    capacity = estimate(knobs)
    if capacity is None:
        return None
    return max(0, capacity.blocks - capacity.fixed_blocks_per_request) * capacity.block_tokens


def least_budget(knobs: Knobs) -> int | None:
    """The least kv_cache_memory_bytes that holds one request of max_model_len; None where it is not known."""
    capacity = estimate(knobs)
    return None if capacity is None else capacity.fixed_bytes + capacity.blocks_per_request * capacity.block_bytes


def most_slots(knobs: Knobs) -> int | None:
    """The largest max_num_seqs, up to the stated one, with which the pool holds one request of max_model_len; 0 where
    none does, None where it is not known."""
    if estimate(knobs) is None or knobs.max_num_seqs is None:
        return None
    low, high = 0, int(knobs.max_num_seqs)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _holds_one(_with(knobs, max_num_seqs=middle)) else (low, middle - 1)
    return low


def _holds_one(knobs: Knobs) -> bool:
    capacity = estimate(knobs)
    return capacity is not None and capacity.full_requests >= 1


def _with(knobs: Knobs, **changes: object) -> Knobs:
    return knobs.model_copy(update=changes)


def refusals(settings: Settings) -> Iterator[str]:
    """A line where the pool cannot hold one request of max_model_len: the engine would say so minutes into the start,
    with the pair down."""
    knobs = settings.effective
    capacity = estimate(knobs)
    if capacity is None or capacity.full_requests >= 1 or len(settings.nodes) not in (0, GEOMETRY.ranks):
        return
    longest, slots = longest_request(knobs), most_slots(knobs) or 0
    if slots >= MANY_SLOTS and not _many_have_memory(knobs):
        slots = MANY_SLOTS - 1
    fixes = []
    if slots and slots != knobs.max_num_seqs:
        fixes.append(f"max_num_seqs = {slots} or less")
    if longest:
        fixes.append(f"max_model_len = {longest} or less")
    more = _with(knobs, kv_cache_memory_bytes=_round_up(least_budget(knobs) or 0))
    if not _many_have_memory(more):
        more = _with(knobs, kv_cache_memory_bytes=BYTES_FOR_MANY)
    budget = int(more.kv_cache_memory_bytes or 0)
    if _floor(more) + FREE.floor_half_width_bytes > 0:  # else no head has it
        wary = f" (the reference kit calls {AGGRESSIVE_BYTES} aggressive)" if budget > AGGRESSIVE_BYTES else ""
        fixes.append(f"kv_cache_memory_bytes = {budget} or more{wary}")
    fixes += [] if fixes else [_together(_room(knobs, 0))]
    slots_stated = knobs.max_num_seqs
    beside = f", beside {capacity.fixed_bytes / GB:.1f} GB of drafts for max_num_seqs = {slots_stated}"
    yield (
        f"max_model_len = {knobs.max_model_len}: one request of that length needs {capacity.blocks_per_request} blocks "
        f"of the KV cache, and kv_cache_memory_bytes = {knobs.kv_cache_memory_bytes} holds {capacity.blocks}"
        f"{beside if capacity.fixed_bytes else ''}; "
        f"set {', or '.join(fixes)}"
    )


def warnings(settings: Settings) -> Iterator[str]:
    """A line where the head is left clearly less, by a quarter of a GB, than in the configuration that the reference
    kit validated: unified memory that runs out does not fail, it wedges the node until its power is cut (the kit's
    FINDINGS section 13)."""
    knobs = settings.effective
    capacity, terms = estimate(knobs), _terms(knobs)
    if capacity is None or terms is None or len(settings.nodes) not in (0, GEOMETRY.ranks):
        return
    if capacity.full_requests < 1:
        return  # said as a refusal
    wanted, _ = _anchor(terms.early)
    floor = capacity.head_floor_bytes
    if floor.expected >= wanted - FREE.floor_half_width_bytes // 4:
        return  # floors stray by more than that from boot to boot
    leaves = (
        f"leaves the head about {floor.expected / GB:.1f} GB under load"
        if floor.expected > 0
        else f"takes about {-floor.expected / GB:.1f} GB more than the head has under load"
    )
    yield (
        f"kv_cache_memory_bytes = {knobs.kv_cache_memory_bytes}: {leaves}, give or take "
        f"{FREE.floor_half_width_bytes / GB:.0f} GB; the reference kit was validated with {wanted / GB:.1f} GB, and a "
        f"head that runs out hangs until its power is cut; set {_cheaper(knobs, wanted)}"
    )


def _cheaper(knobs: Knobs, wanted: int) -> str:
    """A setting that leaves the head so many bytes: a smaller budget where one request still fits, else smaller
    batches, else several knobs at once."""
    less = _smaller_budget(knobs, wanted)
    if less is not None and _serves(less):
        after = estimate(less)
        pool = f" (a pool of {after.pool_tokens:,} tokens)" if after else ""
        return f"kv_cache_memory_bytes = {less.kv_cache_memory_bytes} or less{pool}"
    for batch in range(int(knobs.max_num_batched_tokens or 0) // 1024 * 1024, 2047, -1024):
        if _floor(_with(knobs, max_num_batched_tokens=batch)) >= wanted:
            return f"max_num_batched_tokens = {batch} or less"
    return _together(_room(knobs, wanted))


def _room(knobs: Knobs, wanted: int) -> dict[str, int]:
    """Values of several knobs, none above what is stated, with which one request fits and the head keeps so many bytes:
    with as few knobs as that takes, and the largest values of them. Empty where nothing is found."""
    stated = {name: int(getattr(knobs, name) or 0) for name in ("max_num_batched_tokens", "max_num_seqs")}
    batches = [
        stated["max_num_batched_tokens"],
        *(n for n in (8192, 4096, 2048) if n < stated["max_num_batched_tokens"]),
    ]
    for short in (False, True):
        for batch in batches:
            slots = stated["max_num_seqs"]
            while slots:
                change = {"max_num_batched_tokens": batch, "max_num_seqs": slots}
                less = _smaller_budget(_with(knobs, **change), wanted)
                longest = longest_request(less) if less and short else None
                if less is not None and longest and longest < int(knobs.max_model_len or 0):
                    less = _with(less, max_model_len=longest)
                if less is not None and _serves(less):
                    names = ("kv_cache_memory_bytes", *stated, "max_model_len")
                    return {name: getattr(less, name) for name in names if getattr(less, name) != getattr(knobs, name)}
                slots -= 1 if slots <= MANY_SLOTS else slots - max(MANY_SLOTS, slots // 2)
    return {}


def _together(values: Mapping[str, int]) -> str:
    if not values:
        return "less of max_num_batched_tokens, max_num_seqs and max_model_len"
    return " and ".join(f"{name} = {value} or less" for name, value in values.items())


def _smaller_budget(knobs: Knobs, wanted: int) -> Knobs | None:
    """The same with the largest budget, up to the stated one, that leaves the head so many bytes."""
    if _floor(knobs) >= wanted:
        return knobs
    low, high = 0, int(knobs.kv_cache_memory_bytes or 0) // STEP
    while low < high:
        middle = (low + high + 1) // 2
        less = _with(knobs, kv_cache_memory_bytes=middle * STEP)
        low, high = (middle, high) if _floor(less) >= wanted else (low, middle - 1)
    return _with(knobs, kv_cache_memory_bytes=low * STEP) if low else None


def _serves(knobs: Knobs) -> bool:
    return _holds_one(knobs) and _many_have_memory(knobs)


def _many_have_memory(knobs: Knobs) -> bool:
    slots, budget = int(knobs.max_num_seqs or 0), int(knobs.kv_cache_memory_bytes or 0)
    return knobs.speculative_method != "dflash" or slots < MANY_SLOTS or budget >= BYTES_FOR_MANY


def _floor(knobs: Knobs) -> int:
    capacity = estimate(knobs)
    return 0 if capacity is None else capacity.head_floor_bytes.expected


def _ceil(amount: int, unit: int) -> int:
    return -(-amount // unit)


def _round_up(budget: int) -> int:
    return _ceil(budget, STEP) * STEP


# What was published


@dataclass(frozen=True)
class Point:
    """A pool that somebody published, and the knobs under which it was printed."""

    name: str
    published: int
    changes: Mapping[str, object]
    source: str
    fitted: bool
    """Whether it was looked at to find the free parameters; the others were compared afterwards."""
    reason: str = ""
    """Why it may stand more than 2% off."""


@dataclass(frozen=True)
class Row:
    """A point and what the model says of it."""

    point: Point
    predicted: int
    error_percent: float


_V1 = {"image_release": "v1", "kv_cache_memory_bytes": 12_400_000_000}
_V2 = {"image_release": "v2", "kv_cache_memory_bytes": 12_400_000_000}
_E4M3 = {"kv_cache_dtype": "fp8_e4m3", "attention_backend": "", "kv_cache_dtype_skip_layers": ""}
_BF16 = {
    "kv_cache_dtype": "",
    "attention_backend": "",
    "skip_mm_profiling": False,
    "max_model_len": 131_072,
    "max_num_seqs": 6,
}
_NVFP4 = {"kv_cache_dtype": "nvfp4_ds_mla", "nvfp4_mla_dynamic_scale": True}
_NO_RING = "VLLM_MAMBA_SPEC_CARVEOUT=0"
_REPEATED = (
    "the README of v2.3-tier1 repeats what v1 or v2 printed at 12.4e9 bytes (the row of the same figure above); its "
    "default budget is 14.4e9 and the drafts of its slots are taken from it, as the default's own figure shows"
)

POINTS: tuple[Point, ...] = (
    Point("v2, no drafter", 1_858_451, {**_V2, "speculative_method": ""}, "FINDINGS section 12", True),
    Point("v2", 1_324_163, _V2, "FINDINGS section 12", True),
    Point("v1, fp8_e4m3", 1_435_070, {**_V1, **_E4M3}, "FINDINGS section 10", True),
    Point("v2, nvfp4", 1_702_584, {**_V2, **_NVFP4}, "FINDINGS section 13", True),
    Point("v2, nvfp4, 1M", 2_144_814, {**_V2, **_NVFP4, "max_model_len": 1_048_576}, "FINDINGS section 13", True),
    Point(
        "v2.2 before its ring, 14.4e9",
        1_559_420,
        {"image_release": "v2.2", "engine_env": (_NO_RING,)},
        "FINDINGS section 17",
        True,
    ),
    Point(
        "v2.2 before its ring, 14.9e9",
        1_619_915,
        {"image_release": "v2.2", "engine_env": (_NO_RING,), "kv_cache_memory_bytes": 14_900_000_000},
        "FINDINGS section 17",
        True,
    ),
    Point(
        "v2.2, 12.4e9",
        1_051_936,
        {"image_release": "v2.2", "kv_cache_memory_bytes": 12_400_000_000},
        "FINDINGS section 17",
        True,
    ),
    Point("v2.3, the default", 1_287_194, {}, "README of v2.3-tier1; FINDINGS section 17", True),
    Point(
        "v2.2, 16 slots, 18e9 (published as 322k)",
        322_000,
        {
            "image_release": "v2.2",
            "kv_cache_memory_bytes": 18_000_000_000,
            "max_model_len": 131_072,
            "max_num_seqs": 16,
            "max_num_batched_tokens": 4096,
        },
        "FINDINGS section 17",
        True,
    ),
    Point("v1, bf16, 131k, 6 slots", 520_470, {**_V1, **_BF16}, "FINDINGS section 3; README", False),
    Point(
        "v1, bf16, 131k, 6 slots, 13.4e9 (published as 567k)",
        567_000,
        {**_V1, **_BF16, "kv_cache_memory_bytes": 13_400_000_000},
        "launcher of v1 to v2.1",
        False,
    ),
    Point("v1, bf16, 131k, no drafter", 917_504, {**_V1, **_BF16, "speculative_method": ""}, "README of v2.1", False),
    Point(
        "v1, fp8_e4m3, 131k, 6 slots",
        769_817,
        {**_V1, **_E4M3, "max_model_len": 131_072, "max_num_seqs": 6},
        "FINDINGS section 6",
        False,
    ),
    Point("v1, fp8_e4m3, 358k", 1_275_306, {**_V1, **_E4M3, "max_model_len": 358_400}, "README of v2.1", False),
    Point("v1, fp8_e4m3, 1M", 1_658_303, {**_V1, **_E4M3, "max_model_len": 1_048_576}, "FINDINGS section 11", False),
    Point("v2, 1M", 1_530_144, {**_V2, "max_model_len": 1_048_576}, "FINDINGS section 13", False),
    Point(
        "before v1, bf16, 131k, mtp (published as 710k)",
        710_000,
        {**_V1, **_BF16, "speculative_method": "mtp", "speculative_tokens": 4},
        "FINDINGS section 3",
        False,
        "a round figure of a build before v1, whose slots and batch are not stated",
    ),
    Point("v2.3, nvfp4, as the README has it", 1_702_584, _NVFP4, "README of v2.3-tier1", False, _REPEATED),
    Point(
        "v2.3, nvfp4, 1M, as the README has it",
        2_144_814,
        {**_NVFP4, "max_model_len": 1_048_576, "max_num_batched_tokens": 4096},
        "README of v2.3-tier1",
        False,
        _REPEATED,
    ),
    Point(
        "v2.3, many agents, as the README has it",
        1_858_451,
        {"max_model_len": 131_072, "max_num_seqs": 12, "max_num_batched_tokens": 4096, "speculative_method": ""},
        "README of v2.3-tier1",
        False,
        f"{_REPEATED}; and that row was printed at 524,288 tokens",
    ),
    Point("v2.3, bf16, as the README has it", 520_470, _BF16, "README of v2.3-tier1", False, _REPEATED),
)
"""Every pool that the reference kit published with the knobs it was printed under, in README.md, FINDINGS and
the launcher of its releases v1 to v2.3-tier1. Not here: 329k without the draft ring, which is not modelled."""


@dataclass(frozen=True)
class FloorPoint:
    """A floor of the head that somebody published, in bytes; two ends where a range was said."""

    name: str
    published: tuple[int, int]
    changes: Mapping[str, object]
    source: str
    fitted: bool
    reason: str = ""


_LONG_V2 = {**_V2, "max_model_len": 1_048_576}

FLOORS: tuple[FloorPoint, ...] = (
    FloorPoint("v2.3, the default", (1 * GB, 3 * GB), {}, "README of v2.3-tier1", True),
    FloorPoint(
        "v2.2, the default",
        (GB // 2, GB * 3 // 2),
        {"image_release": "v2.2"},
        "FINDINGS section 18",
        False,
        "the same kit as the row above, on a day on which it was short of memory",
    ),
    FloorPoint("v2, prefill of 499k", (int(3.2 * GIB),) * 2, _V2, "FINDINGS section 12", True),
    FloorPoint(
        "v1, bf16, 131k, prefill of 112k", (int(5.25 * GIB),) * 2, {**_V1, **_BF16}, "FINDINGS section 5", False
    ),
    FloorPoint(
        "the same at 13.4e9",
        (int(2.26 * GIB),) * 2,
        {**_V1, **_BF16, "kv_cache_memory_bytes": 13_400_000_000},
        "FINDINGS section 5",
        True,
    ),
    FloorPoint(
        "v2, nvfp4, 1M, prefill of 1.03M", (int(0.8 * GIB),) * 2, {**_LONG_V2, **_NVFP4}, "FINDINGS section 13", False
    ),
    FloorPoint("v2, 1M, prefill of 1.03M", (int(0.85 * GIB),) * 2, _LONG_V2, "FINDINGS section 13", False),
    FloorPoint(
        "v2, nvfp4, 1M, batches of 4096, 5 slots",
        (int(5.37 * GIB),) * 2,
        {**_LONG_V2, **_NVFP4, "max_num_batched_tokens": 4096, "max_num_seqs": 5},
        "FINDINGS section 14",
        False,
        "prompts of up to 524k, not 1M; half the batch gives back more than activations do",
    ),
)
"""Floors that the reference kit published. They stray by 1 GB and more from boot to boot; hence a band."""


def table() -> list[Row]:
    """Every published pool beside what the model says."""
    rows = []
    for point in POINTS:
        capacity = estimate(effective(point.changes))
        if capacity is None:
            raise TypeError(f"{point.name}: not known to the model")
        error = 100 * (capacity.pool_tokens - point.published) / point.published
        rows.append(Row(point, capacity.pool_tokens, error))
    return rows
