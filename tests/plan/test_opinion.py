"""The engine's opinion in a plan: asked when the launch changed and only then, told with the other refusals."""

# Messages stand here in one piece.
# ruff: noqa: E501

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from checks.opinion import EXIT, MARK
from tests.plan import cases
from tests.plan.cases import PLAN, Case
from tests.plan.conftest import Outcome, carried_out
from tests.plan.world import GIB, World, fresh, image
from tests.unit import pair

BOTH = ["@fake/spark-a", "@fake/spark-b"]
A_KNOB = {"Engine | Install the wanted launch": BOTH, "Keeper | Restart the pair": BOTH[:1]}
FP9 = "argument --kv-cache-dtype: invalid choice: 'fp9' (choose from 'auto', 'fp8')"
REFUSED = (
    f'  kv_cache_dtype = "fp9" (--kv-cache-dtype, both ranks): the engine refuses it: {FP9}\n'
    "    Fix: state what this image's engine takes, or the image that takes it; docs/knobs.md has every knob"
)
PREFLIGHT = "Preflight refused; no node was changed.\n"
NO = {"engine": "0.32.0", "ranks": [[[["--kv-cache-dtype"], FP9]]] * 2, "seconds": 7.9, "peak_mib": 532}
YES = {**NO, "ranks": [[], []]}
WARNING = "WARNING: Your kernel does not support memory limit capabilities or the cgroup is not mounted."


def says(*lines: str) -> Callable[[str, dict[str, Any]], dict[str, Any]]:
    """Each node answers so to whoever asks its engine."""

    def data(_: str, data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "fake_responses": {**data["fake_responses"], ": sparkpair-opinion;": [WARNING, *lines]}}

    return data


def answers(said: dict[str, Any]) -> Callable[[str, dict[str, Any]], dict[str, Any]]:
    return says("", MARK + json.dumps(said), "", f"{EXIT}0")


def memory(mib: int) -> Callable[[World], None]:
    def change(world: World) -> None:
        for node in (world.head, world.worker):
            node["memory"]["MemAvailable"] = mib * GIB // 1024

    return change


def image_is_here(world: World) -> None:
    for node in (world.head, world.worker):
        node["docker"]["images"][pair.CPU_IMAGE] = image(pair.CPU_IMAGE)


FP9_ASKED = (*PLAN, "--data", "kv_cache_dtype=fp9")
THROUGH = (
    Case("taken", options=(*PLAN, "--data", "max_num_seqs=8"), data=answers(YES)),
    Case("refused", options=FP9_ASKED, data=answers(NO)),
    Case("refused, and more", change=cases.no_docker_and_a_taken_port, options=FP9_ASKED, data=answers(NO)),
    Case("refused on a first deploy", fresh, image_is_here, options=FP9_ASKED, data=answers(NO)),
    Case("converged", data=answers(NO)),
    Case("supervision only", more={"watch_interval_seconds": 2}, data=answers(NO)),
    Case("the image is on no node", fresh, options=FP9_ASKED, data=answers(NO)),
    Case("below the floor", change=memory(2559), options=FP9_ASKED, data=answers(NO)),
    Case("a smaller limit", change=memory(2559), options=(*FP9_ASKED, "--data", "opinion_memory_mib=1024"), data=answers(NO)),
    Case("garbled", options=FP9_ASKED, data=says("", MARK + '{"ranks": [[')),
    Case("killed", options=FP9_ASKED, data=says("", f"{EXIT}137")),
    Case("unsure", options=FP9_ASKED, data=answers({**YES, "unsure": ["names of parsers: no"]})),
)  # fmt: skip


@pytest.fixture(scope="module")
def through(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    return carried_out(THROUGH, tmp_path_factory.mktemp("opinions"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("refused", REFUSED),
        ("refused on a first deploy", REFUSED),
        ("a smaller limit", REFUSED),
        (
            "refused, and more",
            f"  {BOTH[1]}: Docker is not installed\n"
            "    Fix: sudo apt-get install docker.io, or Docker's own packages; DGX OS brings them\n"
            f"  {BOTH[0]}: port 8000 (api_port) is taken by python3 (process 812)\n"
            "    Fix: end that, or state another api_port\n" + REFUSED,
        ),
    ],
)
def test_refused_with_everything_else_that_is(through: dict[str, Outcome], name: str, message: str) -> None:
    found = through[name]
    assert (found.code, found.stdout, found.error) == (1, "", PREFLIGHT + message)


@pytest.mark.parametrize("name", ["converged", "supervision only", "the image is on no node"])
def test_not_asked(through: dict[str, Outcome], name: str) -> None:
    """Whatever it would say."""
    found = through[name]
    assert found.code == 0, found.stderr
    assert "was asked" not in found.stderr
    assert "unknown: " not in found.stderr


def test_asked_once(through: dict[str, Outcome]) -> None:
    found = through["taken"]
    assert (found.code, found.rows) == (0, A_KNOB)
    assert found.stderr.count("vLLM 0.32.0 on @fake/spark-") == 1
    assert "was asked about the launch: 8 s, 532 MiB" in found.stderr


NOT_KNOWN = "the engine was asked about the changed launch, and its opinion is not wholly known: "


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "below the floor",
            "the engine was not asked about the changed launch: @fake/spark-a has 2559 MiB of memory available, and the "
            "question may take 1536 (opinion_memory_mib) of 2560 that must be there; whether it takes it is unknown",
        ),
        ("garbled", NOT_KNOWN + "its answer is damaged: "),
        ("killed", NOT_KNOWN + "the container was killed, as by its memory limit of 1536 MiB"),
        ("unsure", NOT_KNOWN + "names of parsers: no"),
    ],
)
def test_unknown_is_said_once_and_refuses_nothing(through: dict[str, Outcome], name: str, text: str) -> None:
    found = through[name]
    assert (found.code, found.rows) == (0, A_KNOB), found.stderr
    assert found.stderr.count(text) == 1
