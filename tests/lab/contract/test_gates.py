"""The gates of a start against the contract engine: all are passed, and each variable that is to fail one does so."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from node import gates
from node.decide import Gating
from node.door import Api
from node.probe import CanarySettings, EngineProbe
from tests.lab.contract import client
from tests.lab.contract.cases import ANSWER, HEAD, WORKER, wait
from tests.lab.contract.pairs import Processes

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

WHO = "Who are you?"
SETTINGS: Mapping[str, Any] = {
    "api": {"max_model_len": 131072, "tools": True, "reasoning": True},
    "canary": {"prompt": WHO, "expect": "", "max_tokens": 64, "timeout_seconds": 10},
    "smoke_prompt": WHO,
    "smoke_expected": ANSWER,
    "smoke_max_tokens": 200,
    **{f"gate_{name}_seconds": 20 for name in ("smoke", "tool_call", "image", "needle", "reuse")},
    **{f"gate_reasoning{off}_seconds": 20 for off in ("", "_off")},
    "gate_warm_up_seconds": 30,
    "gate_needle_tokens": 4000,
    "gate_needle_expected": None,
}
WELL = {"CONTRACT_TOKENS_PER_SECOND": "500", "CONTRACT_ANSWERS": "7391=7391", "CONTRACT_IMAGES": "take"}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Processes]:
    own = Processes(tmp_path)
    yield own
    own.remove()


def gated(pair: Processes, settings: Mapping[str, Any], env: Mapping[str, str], flags: Mapping[str, str | None]) -> Any:
    """How the gates ended, and what each said."""
    for rank in (WORKER, HEAD):
        pair.start(rank, flags, {**WELL, **env})
    assert wait(lambda: client.request(pair.api, "/health").status == 200, 60, 0.05), pair.logs(HEAD)

    async def go() -> tuple[Gating | None, dict[str, tuple[str, str]]]:
        probe = EngineProbe(Api(pair.api[1], client.MODEL), CanarySettings(WHO, "", 64, 10.0), time.monotonic)
        probe.run_gates(gates.parse({**SETTINGS, **settings}))
        while probe.gates is None or probe.gates.state == "pending":
            await asyncio.sleep(0.02)
        return probe.gates, {item["gate"]: (item["outcome"], item["detail"]) for item in probe.gate_results}

    return asyncio.run(go())


def test_every_gate_is_passed(pair: Processes) -> None:
    gating, results = gated(pair, {}, {}, {})
    assert gating == Gating("passed")
    assert {outcome for outcome, _ in results.values()} == {"passed"}
    assert results["needle"][1] == "answered '7391'"
    assert next(iter(results)) == "warm_up"
    assert len(results) == 10


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        (
            {"CONTRACT_ANSWERS": f"{WHO}=I forgot."},
            f"gate smoke: '{WHO}': answered 'I forgot.', wanted '{ANSWER}' in it",
        ),
        (
            {"CONTRACT_TOOL_CALLS": "never"},
            f"gate tool_call: a tool call: none came, but the text '{ANSWER}'; wanted get_weather with a city",
        ),
        (
            {"CONTRACT_REASONING": "leaks"},
            f"gate reasoning_on: '{WHO}', reasoning on: there is reasoning in the answer "
            f"'<think>The user asks; answer briefly.</think>{ANSWER}'; wanted none there",
        ),
        (
            {"CONTRACT_REASONING": "always"},
            f"gate reasoning_off: '{WHO}', reasoning off: the model reasoned, 'The user asks; answer briefly.'; "
            "wanted an answer without",
        ),
        (
            {"CONTRACT_IMAGES": "fail"},
            'gate image: an image: HTTP 500: {"error":{"message":"contract engine: CONTRACT_IMAGES",'
            '"type":"InternalServerError","param":null,"code":500}}',
        ),
        (
            {"CONTRACT_IMAGES": ""},
            'gate image: an image: HTTP 400: {"error":{"message":"tiny is not a multimodal model",'
            '"type":"BadRequestError","param":null,"code":400}}',
        ),
        (
            {"CONTRACT_ANSWERS": ""},
            f"gate needle: one fact in a text of 4366 characters: answered '{ANSWER}', wanted '7391' in it",
        ),
        (
            {"CONTRACT_REUSE": "never"},
            "gate reuse: the second turn of a conversation: it was read anew (vllm:prefix_cache_hits_total stays at 0)"
            "; wanted the first turn to be kept",
        ),
    ],
    ids=lambda value: "=".join(next(iter(value.items()))) if isinstance(value, dict) else "failed",
)
def test_a_gate_fails(pair: Processes, env: dict[str, str], reason: str) -> None:
    gating, _ = gated(pair, {}, env, {})
    assert gating == Gating("failed", reason)


def test_the_first_answer_is_slow(pair: Processes) -> None:
    gating, results = gated(pair, {"gate_warm_up_seconds": 1}, {"CONTRACT_FIRST_SECONDS": "3"}, {})
    reason = "gate warm_up: one greedy answer of 64 tokens: no answer within 1 s"
    assert gating == Gating("failed", reason, answered=False)
    assert len(results) == 1


def test_a_prefix_cache_that_is_off_is_no_fault(pair: Processes) -> None:
    gating, results = gated(pair, {}, {}, {"--no-enable-prefix-caching": ""})
    assert gating == Gating("passed")
    assert results["reuse"] == (
        "skipped",
        "the engine keeps no prefixes (vllm:prefix_cache_queries_total stands still)",
    )
