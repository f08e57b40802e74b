"""Upstream vLLM with any model directory: only flags that upstream knows, and nothing assumed about the model."""

from __future__ import annotations

import re

from spec.knobs import Knobs
from spec.stacks import common, image_checks
from spec.stacks.launch import Groups, Launch, Seat, Stack, env_pairs, flag_groups

DEFAULTS: dict[str, object] = {
    "cache_path": "~/.cache/sparkpair",
    "container_name": "sparkpair-vllm",
    "shm_size": "32g",
    "nccl_channels": 8,
    "nccl_debug": "WARN",
    "memory_used_max_gib": 0,
    # Nothing is assumed of the model, so any text will do for an answer.
    "smoke_expected": "",
    "canary_expected": "",
    "gate_needle_expected": "",
    "gate_reasoning_off_seconds": 0,
    "gate_image_seconds": 0,
}

DRAFTER = "/drafter"
NEEDS_DRAFTER = frozenset({"dflash", "eagle3", "draft_model"})

COMPILED = {"triton": "/root/.triton", "flashinfer": "/root/.cache/flashinfer", "vllm": "/root/.cache/vllm"}


def served_name(knobs: Knobs, seat: Seat) -> str:
    """The model's name for clients: as stated, or that of its directory on the head."""
    return knobs.served_model_name or seat.model_directory


def launch(knobs: Knobs, seat: Seat) -> Launch:
    """One rank. `knobs` are effective: the stack's defaults stand where nothing was stated."""
    # The same on every rank, whatever the directory is called there. Docker would read a ':' of the name as its own.
    model = "/models/" + re.sub(r"[^A-Za-z0-9._-]", "-", served_name(knobs, seat))
    drafter = seat.drafter_path if knobs.speculative_method in NEEDS_DRAFTER else None
    compiled = {f"{seat.cache_path}/{name}": target for name, target in COMPILED.items()}
    return Launch(
        name=str(knobs.container_name),
        image=str(knobs.image),
        content=(seat.weights_path, *([drafter] if drafter else [])),
        container=common.container_groups(knobs),
        mounts=(
            (seat.weights_path, model, "ro"),
            *compiled.items(),
            *([(drafter, DRAFTER, "ro")] if drafter else []),
        ),
        directories=tuple(compiled),
        env=(
            ("VLLM_HOST_IP", str(seat.address)),
            ("HF_HUB_OFFLINE", "1"),
            ("TRANSFORMERS_OFFLINE", "1"),
            *common.nccl_env(knobs, seat),
            *env_pairs(knobs),
            *common.api_key_env(knobs, seat),
            *common.extra_env(knobs),
        ),
        command=_command(knobs, seat, model, drafter),
    )


def _command(knobs: Knobs, seat: Seat, model: str, drafter: str | None) -> Groups:
    flags = flag_groups(
        knobs,
        place={
            "served_model_name": lambda: (("--served-model-name", served_name(knobs, seat)),),
            "tensor_parallel_size": lambda: common.tensor_parallel(knobs, seat),
            "speculative_method": lambda: common.speculation(knobs, DRAFTER if drafter else None, {}),
            "tool_call_parser": lambda: common.tool_calls(knobs),
            "chat_template": lambda: common.chat_template(knobs, model),
            "enable_thinking": lambda: common.thinking(knobs),
        },
        spelling={},
    )
    return (("vllm", "serve", model), *flags, *common.rendezvous(knobs, seat))


STACK = Stack(
    name="vllm",
    title="upstream vLLM, any model directory",
    image=None,
    defaults=DEFAULTS,
    releases={},
    release_url="",
    revisions={},
    quantized_drafters={},
    overlays=(),
    image_checks=image_checks.UPSTREAM,
    image_tests=None,
    launch=launch,
    served_name=served_name,
    speculative_tokens={},
    needs_drafter=NEEDS_DRAFTER,
    spelling={},
    published_start_seconds=None,
    published_start_source="",
    published_nfs_start_seconds=None,
    start_order="workers-first",
    ready_path="/health",
    metrics_path="/metrics",
)
