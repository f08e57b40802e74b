"""What an image must hold by itself, as data: looked at inside a throwaway container, without a GPU.

The reference kit checks its image by the same facts (scripts/check_image.sh of v2.3-tier1, and its BUILD.md for the
commits): they tell an image that was built whole from one that only runs with files put over it. Two of its twenty are
not here: they compare FlashInfer's patches with files of the machine on which the image was built.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["exists", "contains", "variable", "version", "tree", "imports", "command"]


@dataclass(frozen=True)
class Look:
    """One look. `at` is a path (relative: below Python's package directories), a variable, a distribution, a module or
    a command; `wanted` the text or digest to be found there; `others` are paths where it may be instead."""

    kind: Kind
    at: str
    wanted: str = ""
    others: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageCheck:
    """A statement about an image, true when every look finds what it must. `releases` are those that it is about;
    none: any image of the stack."""

    statement: str
    looks: tuple[Look, ...]
    releases: tuple[str, ...] = ()

    def is_about(self, release: str | None) -> bool:
        """Whether it is to be asked of an image of that release; None: the release is not known."""
        return not self.releases or release in self.releases


def contains(path: str, text: str, *others: str) -> Look:
    """A file, or any file below a directory, holds this text."""
    return Look("contains", path, text, others)


UPSTREAM = (
    ImageCheck("the vllm command is in it", (Look("command", "vllm"),)),
    ImageCheck("its Python can import vllm", (Look("imports", "vllm"),)),
    ImageCheck("vllm's command line is in it", (Look("exists", "vllm/entrypoints/cli/main.py"),)),
)

_TEMPLATE = "vllm/transformers_utils/chat_templates/template_glm5next_mm.jinja"
_RING = ("v2.2", "v2.3")
_COMMITS = {"v1": "90104cfe4", "v2": "c83d60a5b", "v2.1": "1d220461f", "v2.2": "fdf56c9be", "v2.3": "f223ff9f2"}
# md5, as the reference kit computes it: of md5sum's own output over the *.py files in byte order.
_B12X = {
    "b338deafc04a92ac4099daab2c8da123": ("v2", "v2.1", "v2.2"),
    "f79e5cbe439bd19dbe0210457a7ae8f5": ("v2.3",),
}

EXL3 = (
    *(
        ImageCheck(f"vLLM is of commit {commit}", (Look("version", "vllm", f"g{commit}"),), (release,))
        for release, commit in _COMMITS.items()
    ),
    ImageCheck("the chat template for text and images is in it", (Look("exists", _TEMPLATE),)),
    ImageCheck("that template can turn thinking off", (contains(_TEMPLATE, "thinking_enabled"),)),
    ImageCheck(
        "a checkpoint's own template is mended",
        (
            contains(
                "vllm/entrypoints/renderers/hf.py",
                "glm5next_mm",
                "vllm/transformers_utils/chat_templates/registry.py",
            ),
        ),
    ),
    ImageCheck("the DFlash2 drafter is in it", (Look("exists", "vllm/model_executor/models/qwen3_dflash.py"),)),
    ImageCheck(
        "drafts are written into a ring",
        (contains("vllm/v1/worker/gpu/spec_decode/dflash/speculator.py", "ring_remap_draft_block_tables"),),
    ),
    ImageCheck("the ring has a place in the pool", (contains("vllm/v1/kv_cache_interface.py", "DFlashSWASpec"),)),
    ImageCheck("the pool counts the ring's pages", (contains("vllm/v1/core/kv_cache_utils.py", "_dflash_ring_pages"),)),
    ImageCheck("VLLM_DFLASH_KV_RING is known", (contains("vllm/envs.py", "VLLM_DFLASH_KV_RING"),)),
    ImageCheck(
        "the state of speculation is kept in a ring",
        (contains("vllm/v1/kv_cache_interface.py", "spec_state_carveout"),),
        _RING,
    ),
    ImageCheck("VLLM_MAMBA_SPEC_CARVEOUT is known", (contains("vllm/envs.py", "VLLM_MAMBA_SPEC_CARVEOUT"),), _RING),
    ImageCheck(
        "prefill shares its time with decode, in capped chunks",
        (
            contains("vllm/config/scheduler.py", "mixed_prefill_decode_weight"),
            contains("vllm/v1/core/sched/scheduler.py", "chunk_token_limit"),
        ),
        _RING,
    ),
    ImageCheck(
        "states at a boundary are kept longest",
        (
            contains("vllm/v1/core/block_pool.py", "refresh_cached_free_blocks"),
            contains("vllm/v1/core/single_type_kv_cache_manager.py", "_on_blocks_freed_early"),
        ),
        _RING,
    ),
    ImageCheck(
        "the indexer's workspace has the size that it needs",
        (contains("vllm/models/glm5next/nvidia/attention.py", "legal_max_entries"),),
        _RING,
    ),
    ImageCheck(
        "the EXL3 kernels are in it", (Look("exists", "/exl3ext/exllamav3_ext.cpython-312-aarch64-linux-gnu.so"),)
    ),
    ImageCheck("the engine is told where they are", (Look("variable", "VLLM_EXL3_EXT_PATH", "/exl3ext"),)),
    ImageCheck("b12x reads EXL3", (contains("b12x", "exl3_trellis_mcg"),)),
    *(
        ImageCheck("b12x is that of its release", (Look("tree", "b12x", md5),), releases)
        for md5, releases in _B12X.items()
    ),
)


@dataclass(frozen=True)
class ImageTests:
    """Unit tests of an engine's own, which run inside its image and need a free GPU. They lie in the engine's
    repository: `commits` says at which commit for which release; `selection` is what is run, below `directory`."""

    repository: str
    commits: Mapping[str, str]
    directory: str
    selection: tuple[str, ...]
    packages: tuple[str, ...]
    """What pip installs into the container for them."""


# As the reference kit runs them (scripts/run_tests.sh of v2.3-tier1: 87 tests).
EXL3_TESTS = ImageTests(
    repository="https://github.com/Entrpi/vllm-glm-5.3-flash-spark",
    commits={release: commit for release, commit in _COMMITS.items() if release in _RING},
    directory="tests",
    selection=(
        "v1/spec_decode/test_dflash2.py",
        "v1/spec_decode/test_dflash_causality.py",
        "models/test_glm5next_dflash_capture.py",
        "test_config.py::test_dflash2_draft_forces_v2_model_runner",
        "v1/core/test_kv_cache_utils.py::test_glm5_grouping_with_dflash_draft_layers",
        "v1/core/test_kv_cache_utils.py::test_glm5_dflash_ring_backed_draft_kv",
        "v1/core/test_mamba_align_chunk_split.py",
        "v1/core/test_scheduler_mixed_prefill.py",
        "v1/core/test_prefix_caching.py::test_refresh_cached_free_blocks",
        "transformers_utils/test_glm5next_chat_template.py",
        "model_executor/test_top_k_local_logits.py",
        "model_executor/test_b12x_mxfp8_dispatch.py",
    ),
    packages=("pytest", "tblib"),
)
