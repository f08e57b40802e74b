"""Each rule between knobs, with its whole message, and whether it forbids or only tells."""

# Messages stand here in one piece.
# ruff: noqa: E501

from __future__ import annotations

import ast
import re
from typing import cast

import pytest
from pyinfra.api.exceptions import DeployError

from spec import rules
from spec.cluster import Settings
from spec.knobs import KNOBS, Knobs
from spec.presets import PRESETS
from spec.rules import RULES, Severity
from tests.unit import pair

OTHER_IMAGE = {"image": "ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark@sha256:" + "1" * 64}

CASES: list[tuple[str, dict[str, object], str, list[str]]] = [
    (
        "ports-apart",
        {"api_port": 8730},
        "refused",
        ["api_port = 8730: is where weights are copied between the nodes; set another"],
    ),
    (
        "ports-apart",
        {"master_port": 8731},
        "refused",
        ["master_port = 8731: is where the image is passed between the nodes; set another"],
    ),
    (
        "api-bind-address",
        {"api_bind": "192.168.9.9"},
        "refused",
        [
            "api_bind = 192.168.9.9: spark-a has 192.168.1.10, 10.200.0.1, 10.200.1.1; state one of these, 0.0.0.0 for all of them, or 127.0.0.1"
        ],
    ),
    (
        "dev-mode-public",
        {"server_dev_mode": True},
        "refused",
        [
            'server_dev_mode = True: api_bind is 0.0.0.0, where others reach the administration endpoints; set api_bind = "127.0.0.1", or leave server_dev_mode out'
        ],
    ),
    (
        "hub-in-the-clear",
        {"hub_endpoint": "http://hub.example"},
        "told",
        [
            'hub_endpoint = "http://hub.example": a token for it travels readable; set hub_endpoint = "https://hub.example", if it speaks that'
        ],
    ),
    (
        "gpu-share",
        {"gpu_memory_utilization": 0.9, "kv_cache_memory_bytes": "auto"},
        "refused",
        [
            "gpu_memory_utilization = 0.9: must be below 0.88 where it sizes the pool (kv_cache_memory_bytes states no number): the node would swap; set gpu_memory_utilization = 0.85, as the reference kit does"
        ],
    ),
    (
        "gpu-share-start",
        {"gpu_memory_utilization": 0.87},
        "told",
        [
            "gpu_memory_utilization = 0.87: on some nodes so much is never free, and the engine then ends at start; set gpu_memory_utilization = 0.85, which is proven"
        ],
    ),
    (
        "gpu-share",
        {"gpu_memory_utilization": "", "kv_cache_memory_bytes": "auto"},
        "refused",
        [
            'gpu_memory_utilization = "": must be below 0.88 where it sizes the pool (kv_cache_memory_bytes states no number): the node would swap; set gpu_memory_utilization = 0.85, as the reference kit does'
        ],
    ),
    (
        "ENG-06",
        {"engine_ready_timeout_seconds": 86400},
        "told",
        [
            "ready_timeout_seconds = 3900: is not above engine_ready_timeout_seconds (86400), so that the keeper ends a start that the engine still waits for; set engine_ready_timeout_seconds = 86100 and ready_timeout_seconds = 86400"
        ],
    ),
    (
        "R2",
        {"preset": "unquantized-kv", "kv_cache_dtype": "fp8_ds_mla"},
        "refused",
        [
            'attention_backend = "" (preset unquantized-kv): kv_cache_dtype = "fp8_ds_mla" is read by B12X_MLA_SPARSE only; set attention_backend = "B12X_MLA_SPARSE"'
        ],
    ),
    (
        "R9",
        {"preset": "unquantized-kv", "max_model_len": 262144},
        "refused",
        [
            "skip_mm_profiling = False (preset unquantized-kv): needs a max_model_len of at most 131072 (it is 262144), or the trial runs out of memory; set skip_mm_profiling = True"
        ],
    ),
    (
        "R4",
        {"max_model_len": ""},
        "refused",
        [
            "max_num_batched_tokens = 8192 (the stack's default): 8192 wedged a head under concurrent traffic where max_model_len is above 524288 (1048576); set max_num_batched_tokens = 4096"
        ],
    ),
    (
        "R6",
        {"max_num_seqs": ""},
        "refused",
        [
            'max_num_seqs = "": with the drafter, 16 or more need kv_cache_memory_bytes of at least 16500000000 (it is 14400000000); set that if the nodes have it, or speculative_method = ""'
        ],
    ),
    (
        "method-known",
        {"speculative_method": "eagle3", "speculative_tokens": 3},
        "refused",
        [
            'speculative_method = "eagle3": stack vllm-exl3 has no drafter for it; set speculative_method = "dflash", or speculative_method = "mtp", or speculative_method = ""'
        ],
    ),
    (
        "ENG-06",
        {"ready_timeout_seconds": 1800},
        "told",
        [
            "ready_timeout_seconds = 1800: is not above engine_ready_timeout_seconds (3600), so that the keeper ends a start that the engine still waits for; set ready_timeout_seconds = 3900"
        ],
    ),
    (
        "restart-at-night",
        {"memory_restart_mib": 1024},
        "told",
        [
            'memory_restart_mib = 1024: never restarts without quiet_hours; set quiet_hours = "03:00-05:00"',
        ],
    ),
    (
        "restart-at-night",
        {"memory_restart_mib": 512, "quiet_hours": "22:00-01:00"},
        "told",
        [
            "memory_restart_mib = 512: is not above memory_emergency_mib (512), which ends the rank before; set memory_restart_mib = 1024",
        ],
    ),
    (
        "gid-index-stated",
        {"nccl_ib_gid_index": 3},
        "told",
        [
            "nccl_ib_gid_index = 3 (spark-a): the row moves when a link comes back; leave it out, and it is looked up at every start",
            "nccl_ib_gid_index = 3 (spark-b): the row moves when a link comes back; leave it out, and it is looked up at every start",
        ],
    ),
    (
        "R1",
        {"kv_cache_dtype": "nvfp4_ds_mla"},
        "refused",
        [
            'kv_cache_dtype = "nvfp4_ds_mla": needs nvfp4_mla_dynamic_scale = True, or the engine refuses to start; set that too'
        ],
    ),
    (
        "kv-dtype-known",
        {"kv_cache_dtype": "fp9"},
        "refused",
        [
            'kv_cache_dtype = "fp9": the engine of stack vllm-exl3 knows fp8_ds_mla, nvfp4_ds_mla, fp8_e4m3 and "" (bf16)'
        ],
    ),
    (
        "R2",
        {"kv_cache_dtype": "fp8_e4m3"},
        "refused",
        [
            'attention_backend = "B12X_MLA_SPARSE" (the stack\'s default): does not read kv_cache_dtype = "fp8_e4m3"; set attention_backend = "", so that the engine chooses'
        ],
    ),
    (
        "R2",
        {"attention_backend": ""},
        "refused",
        [
            'attention_backend = "": kv_cache_dtype = "fp8_ds_mla" (the stack\'s default) is read by B12X_MLA_SPARSE only; leave attention_backend out'
        ],
    ),
    (
        "R2-skip-layers",
        {"preset": "unquantized-kv"},
        "told",
        [
            'kv_cache_dtype_skip_layers = "sliding_window" (the stack\'s default): leaves nothing out, because the cache is not quantized by layer (kv_cache_dtype = "" (preset unquantized-kv)); set kv_cache_dtype_skip_layers = ""'
        ],
    ),
    (
        "R2-skip-layers",
        {"kv_cache_dtype_skip_layers": ""},
        "told",
        [
            'kv_cache_dtype_skip_layers = "": the drafter\'s layers are then quantized, which costs acceptance or the start; leave kv_cache_dtype_skip_layers out for sliding_window'
        ],
    ),
    (
        "R3",
        {
            "preset": "unquantized-kv",
            "max_model_len": 262144,
            "skip_mm_profiling": True,
            "kv_cache_dtype_skip_layers": "",
        },
        "told",
        [
            "max_model_len = 262144: with an unquantized cache (kv_cache_dtype is empty) 131072 is the published length; preset unquantized-kv states the whole set"
        ],
    ),
    (
        "R4",
        {"preset": "long-documents", "max_num_batched_tokens": 8192},
        "refused",
        [
            "max_num_batched_tokens = 8192: 8192 wedged a head under concurrent traffic where max_model_len is above 524288 (1048576); set max_num_batched_tokens = 4096"
        ],
    ),
    (
        "R4-dtype",
        {"max_model_len": 1048576, "max_num_batched_tokens": 4096},
        "told",
        [
            'max_model_len = 1048576: with kv_cache_dtype = "fp8_ds_mla" (the stack\'s default) hardly more than one such request fits; preset long-documents uses nvfp4_ds_mla'
        ],
    ),
    (
        "R6",
        {"max_num_seqs": 16},
        "refused",
        [
            'max_num_seqs = 16: with the drafter, 16 or more need kv_cache_memory_bytes of at least 16500000000 (it is 14400000000); set that if the nodes have it, or speculative_method = ""'
        ],
    ),
    (
        "R6-some",
        {"max_num_seqs": 10},
        "told",
        [
            'max_num_seqs = 10: the drafter\'s ring grows with it and takes its memory from the pool; from 8 streams on speculative_method = "" is advised'
        ],
    ),
    (
        "R7",
        {"preset": "responsive-chat", "mixed_prefill_token_cap": 64},
        "refused",
        [
            "mixed_prefill_token_cap = 64: must be above 64 where mixed_prefill_decode_weight is set (1.0); 512 is advised"
        ],
    ),
    (
        "R9",
        {"skip_mm_profiling": False},
        "refused",
        [
            "skip_mm_profiling = False: needs a max_model_len of at most 131072 (it is 524288), or the trial runs out of memory; leave skip_mm_profiling out"
        ],
    ),
    (
        "defer-without-effect",
        {"preset": "responsive-chat", "mixed_prefill_max_defer_steps": 4},
        "told",
        [
            "mixed_prefill_max_defer_steps = 4: has no effect while mixed_prefill_decode_weight is set (1.0); leave it out"
        ],
    ),
    (
        "block-size",
        {"block_size": 100},
        "refused",
        ["block_size = 100: must be a multiple of 64, or the engine ends at start; 2304 is proven"],
    ),
    (
        "prefix-match-unit",
        {"prefix_match_unit": 600},
        "told",
        ['prefix_match_unit = 600: 512 and 2304 are proven, and "" for whole blocks'],
    ),
    (
        "dflash-tokens",
        {"speculative_tokens": 8},
        "refused",
        ["speculative_tokens = 8: dflash was trained on 1 + 7; set speculative_tokens = 7"],
    ),
    (
        "mtp-tokens",
        {"preset": "mtp-fallback", "speculative_tokens": 5},
        "told",
        ["speculative_tokens = 5: more than 4 are slower with mtp; set speculative_tokens = 4"],
    ),
    (
        "drafter-floats",
        {"drafter_repository": "somebody/drafter"},
        "told",
        [
            'drafter_repository = "somebody/drafter": no commit is stated for it, so what a fetch brings may change; set drafter_revision'
        ],
    ),
    (
        "ENG-13",
        {"tool_call_parser": "glm45"},
        "told",
        ['tool_call_parser = "glm45": glm47 is what reads this model\'s text; leave tool_call_parser out'],
    ),
    (
        "image-release",
        {"image_release": "v2"},
        "refused",
        ['image_release = "v2": this image is v2.3; leave image_release out'],
    ),
    (
        "image-unknown",
        {**OTHER_IMAGE},
        "told",
        [
            'image = "ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark@sha256:11111111111111111111111111...: which release it is, is not known, so that knobs which older ones refuse are not judged; set image_release (v1, v2, v2.1, v2.2, v2.3)'
        ],
    ),
    (
        "ENG-15",
        {
            **OTHER_IMAGE,
            "image_release": "v1",
            "prefix_match_unit": "",
            "kv_cache_memory_bytes": 12400000000,
            "use_b12x_fp8_gemm": False,
            "speculative_method": "",
        },
        "refused",
        [
            "max_model_len = 524288 (the stack's default): image release v1 ends at start above 358000 without a drafter; take a newer image, or set max_model_len = 358000"
        ],
    ),
    (
        "ENG-15",
        {
            **OTHER_IMAGE,
            "image_release": "v1",
            "prefix_match_unit": "",
            "kv_cache_memory_bytes": 12400000000,
            "use_b12x_fp8_gemm": False,
            "preset": "long-documents",
        },
        "refused",
        [
            "max_model_len = 1048576 (preset long-documents): image release v1 ends at start above 524288; take a newer image, or set max_model_len = 524288"
        ],
    ),
    (
        "old-image-prefix",
        {**OTHER_IMAGE, "image_release": "v2", "kv_cache_memory_bytes": 12400000000, "use_b12x_fp8_gemm": False},
        "refused",
        [
            'prefix_match_unit = 512 (the stack\'s default): image release v2 ends at the first request with less than 4608; set prefix_match_unit = ""'
        ],
    ),
    (
        "old-image-memory",
        {**OTHER_IMAGE, "image_release": "v2", "prefix_match_unit": "", "use_b12x_fp8_gemm": False},
        "refused",
        [
            "kv_cache_memory_bytes = 14400000000 (the stack's default): image release v2 has room for 12400000000; set kv_cache_memory_bytes = 12400000000"
        ],
    ),
    (
        "old-image-floor",
        {**OTHER_IMAGE, "image_release": "v2.1", "use_b12x_fp8_gemm": False},
        "told",
        [
            "kv_cache_memory_bytes = 14400000000 (the stack's default): on image release v2.1, 13.4e9 left 2.26 GiB on the head and 12.4e9 left 5.25; set kv_cache_memory_bytes = 12400000000"
        ],
    ),
    (
        "old-image-fp8",
        {**OTHER_IMAGE, "image_release": "v2.2"},
        "told",
        [
            "use_b12x_fp8_gemm = True (the stack's default): costs acceptance on image release v2.2; set use_b12x_fp8_gemm = False"
        ],
    ),
]

# Rules on nodes, rails and directories, whose messages tests/unit/test_load.py holds.
ELSEWHERE = {
    "rails-same-number", "R12-rail-network", "R12-rails-apart", "rails-not-management", "R12-addresses-once",
    "R12-devices-once", "lease-covers-looks", "backoff-order", "canary-within-start", "one-rank-per-node",
    "image-stated", "weights-stated", "drafter-stated", "speculation-tokens", "knob-of-stack", "directories-apart",
    "variable-once", "nccl-rails",
    # On the lock file, whose messages tests/unit/test_lock.py holds.
    "lock-of-settings",
    # And on the pool, whose messages tests/unit/test_capacity.py holds.
    "pool-holds-one", "memory-floor",
}  # fmt: skip


@pytest.mark.parametrize(
    ("id", "stated", "then", "lines"), CASES, ids=[f"{case[0]}-{i}" for i, case in enumerate(CASES)]
)
def test_a_rule_says_what_it_must(id: str, stated: dict[str, object], then: str, lines: list[str]) -> None:
    """Broken alone, a rule gives its own line and no other, as a refusal or as something told."""
    assert RULES[id].severity.value == then
    if then == Severity.WARNING.value:
        settings = pair.settings(stated)
        # What the memory comes to in the same case is the floor's to say: tests/unit/test_capacity.py.
        assert rules.warnings(settings) == [*lines, *RULES["memory-floor"].breaches(settings)]
        return
    with pytest.raises(DeployError) as refused:
        pair.settings(stated)
    first, *said = str(refused.value).splitlines()
    assert first == "Settings refused; no node was changed."
    assert [line for line in said if "blocks of the KV cache" not in line] == [f"  {line}" for line in lines]


def test_every_rule_is_tried() -> None:
    """A new rule comes with its message."""
    assert {case[0] for case in CASES} | ELSEWHERE == set(RULES)
    assert not {case[0] for case in CASES} & ELSEWHERE


@pytest.mark.parametrize("name", PRESETS)
def test_a_published_preset_is_never_refused(name: str) -> None:
    """At most it draws a warning: the unquantized one, for the layers that it leaves out of nothing."""
    said = rules.warnings(pair.settings({"preset": name}))
    assert len(said) == (1 if name == "unquantized-kv" else 0)


def test_the_stack_as_it_comes_is_silent() -> None:
    """Whoever states nothing is told nothing."""
    assert rules.warnings(pair.settings()) == []
    assert rules.warnings(pair.settings(pair.UPSTREAM)) == []


@pytest.mark.parametrize("name", PRESETS)
def test_what_is_stated_beside_a_preset_wins(name: str) -> None:
    """Each knob of a preset can be overridden alone, by a value and by the stack's own default."""
    for knob, value in PRESETS[name].values.items():
        assert getattr(pair.settings({"preset": name}).effective, knob) == value
    kept = pair.settings({"preset": name, "max_num_seqs": 3}).effective
    assert kept.max_num_seqs == 3
    for knob, value in PRESETS[name].values.items():
        if knob != "max_num_seqs":
            assert getattr(kept, knob) == value


def test_a_preset_of_another_stack_is_refused() -> None:
    """Presets are the reference stack's; the message says so, and which stack it is."""
    with pytest.raises(DeployError) as refused:
        pair.settings({**pair.UPSTREAM, "preset": "many-agents"})
    assert str(refused.value).splitlines()[1:] == [
        '  preset = "many-agents": only the engine of stack vllm-exl3 knows it, and the stack is vllm; leave it out'
    ]


def test_a_refused_knob_is_told_once() -> None:
    """What one knob is refused for is not told again by the rules that read it."""
    with pytest.raises(DeployError) as refused:
        pair.settings({"preset": "long-document", "max_num_batched_tokens": 0})
    assert str(refused.value).splitlines()[1:] == [
        '  group_data/all.py: preset = "long-document": must be one of ' + ", ".join(PRESETS),
        "  group_data/all.py: max_num_batched_tokens = 0: must be at least 1",
    ]


FIX = re.compile(r'(\w+) = ("[^"]*"|-?[0-9][0-9.]*|True|False)')
WITHOUT_A_VALUE = {
    # The operator chooses: an address, a port, a commit, a release, a format of the cache.
    "ports-apart", "api-bind-address", "kv-dtype-known", "drafter-floats", "image-unknown", "prefix-match-unit",
    # Told of a published set of values; the preset is named.
    "R3", "R4-dtype",
}  # fmt: skip
"""Rules whose fix is no single value."""


def fixes(line: str) -> list[dict[str, object]]:
    """What a line says to state, or to leave out (None): one for each way that it names."""
    knob, ways = line.split(" = ", 1)[0], line.rsplit("; ", 1)[1]
    found: list[dict[str, object]] = []
    for way in ways.split(", or "):
        stated: dict[str, object] = {name: ast.literal_eval(value) for name, value in FIX.findall(way) if name in KNOBS}
        for name in re.findall(r"leave (\w+) out", way):
            stated[knob if name == "it" else name] = None
        if re.search(r"at least [0-9]+", line) and not stated:
            stated["kv_cache_memory_bytes"] = int(re.findall(r"at least ([0-9]+)", line)[0])
        if way == "set that too":
            stated["nvfp4_mla_dynamic_scale"] = True
        if way == "512 is advised" or way == "2304 is proven":
            stated[knob] = int(way.split()[0])
        if stated:
            found.append(stated)
    return found


@pytest.mark.parametrize(
    ("id", "stated", "then", "lines"),
    [case for case in CASES if case[0] not in WITHOUT_A_VALUE],
    ids=[f"{case[0]}-{i}" for i, case in enumerate(CASES) if case[0] not in WITHOUT_A_VALUE],
)
def test_the_fix_that_a_rule_names_is_one(id: str, stated: dict[str, object], then: str, lines: list[str]) -> None:
    """What the line says to state is stated: the settings load, and the rule is silent."""
    for line in lines:
        assert fixes(line), line
        for fix in fixes(line):
            fixed = {name: value for name, value in {**stated, **fix}.items() if value is not None}
            if id == "R6" and "kv_cache_memory_bytes" in fix:
                fixed["max_num_seqs"] = 16  # the least that the rule speaks of
                fixed["max_model_len"] = 131072
            assert not list(RULES[id].breaches(pair.settings(fixed))), fix


class _Spied:
    """Settings, or knobs, that keep which knobs were read."""

    def __init__(self, real: object, seen: set[str]) -> None:
        self._real, self._seen = real, seen

    def __getattr__(self, name: str) -> object:
        value = getattr(self._real, name)
        if isinstance(value, Knobs):
            return _Spied(value, self._seen)
        if name in KNOBS:
            self._seen.add(name)
        return value


# That one looks at every knob that only another stack's engine knows; one that was refused stands unset, and is passed.
@pytest.mark.parametrize("id", [id for id in RULES if id != "knob-of-stack"])
def test_a_rule_declares_what_it_reads(id: str) -> None:
    """Or one mistake would be told twice: a knob that was refused stands unset for the rules that read it."""
    rule, seen = RULES[id], set[str]()
    for _, stated, then, _ in CASES:
        if then == Severity.WARNING.value:
            list(rule.breaches(cast(Settings, _Spied(pair.settings(stated), seen))))
    for knobs in ({}, *({"preset": name} for name in PRESETS)):
        list(rule.breaches(cast(Settings, _Spied(pair.settings(knobs), seen))))
    assert seen <= rule.reads
