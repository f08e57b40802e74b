"""Upstream vLLM with any model directory: only flags that upstream knows, and nothing assumed about the model."""

from __future__ import annotations

from pathlib import PurePosixPath

from spec.knobs import Knobs
from spec.stacks import common
from spec.stacks.launch import Groups, Launch, Seat, Stack, env_pairs, flag_groups

DEFAULTS: dict[str, object] = {
    "cache_path": "~/.cache/sparkpair",
    "container_name": "sparkpair-vllm",
    "shm_size": "32g",
    "nccl_channels": 8,
    "nccl_debug": "WARN",
}

DRAFTER = "/models/drafter"


def served_name(knobs: Knobs, seat: Seat) -> str:
    """The model's name for clients: as stated, or that of its directory on the head."""
    return knobs.served_model_name or PurePosixPath(seat.weights_path).name


def launch(knobs: Knobs, seat: Seat) -> Launch:
    """One rank. `knobs` are effective: the stack's defaults stand where nothing was stated."""
    model = f"/models/{served_name(knobs, seat)}"
    drafter = (seat.drafter_path or None) if knobs.speculative_method else None
    return Launch(
        name=str(knobs.container_name),
        image=str(knobs.image),
        content=(seat.weights_path, *([drafter] if drafter else [])),
        container=common.container_groups(knobs),
        mounts=(
            (seat.weights_path, model, "ro"),
            (seat.cache_path, "/root/.cache"),
            *([(drafter, DRAFTER, "ro")] if drafter else []),
        ),
        directories=(seat.cache_path,),
        env=(
            ("VLLM_HOST_IP", str(seat.address)),
            ("HF_HUB_OFFLINE", "1"),
            ("TRANSFORMERS_OFFLINE", "1"),
            *common.nccl_env(seat),
            *env_pairs(knobs),
            *common.extra_env(knobs),
        ),
        command=_command(knobs, seat, model, drafter),
    )


def _command(knobs: Knobs, seat: Seat, model: str, drafter: str | None) -> Groups:
    flags = flag_groups(
        knobs,
        place={
            "served_model_name": lambda: (("--served-model-name", served_name(knobs, seat)),),
            "api_port": lambda: common.endpoint(knobs),
            "tensor_parallel_size": lambda: common.tensor_parallel(knobs, seat),
            "speculative_method": lambda: common.speculation(knobs, DRAFTER if drafter else None),
            "tool_call_parser": lambda: common.tool_calls(knobs),
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
    launch=launch,
    served_name=served_name,
    start_order="workers-first",
    ready_path="/health",
    metrics_path="/metrics",
    metrics=common.METRICS,
)
