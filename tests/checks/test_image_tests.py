"""The engine's own tests in its image: when they are refused, and what stands around them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checks import image_tests
from facts.values import STATUS, Unknown
from operations.image_tests import PLACE, commit, container_argv, outage
from spec import objects
from spec.stacks.image_checks import EXL3_TESTS
from tests.plan.world import World, converged, unit
from tests.unit import pair

COMMIT = "f223ff9f2" + "0" * 31
REFERENCE = {"weights_path": "~/models/w", "drafter_path": "~/models/d"}
FETCH = (
    "git clone --filter=blob:none https://github.com/Entrpi/vllm-glm-5.3-flash-spark DIRECTORY && "
    "git -C DIRECTORY checkout f223ff9f2"
)


def told(world: World, checkout: str = "/src/engine", at: str | Unknown = COMMIT) -> list[str]:
    head = world.facts()[world.cluster.head.name]
    return [verdict.text() for verdict in image_tests.refusals(world.cluster, head, checkout, at)]


def phase(name: str) -> Callable[[World], None]:
    return lambda world: world.head["documents"][STATUS]["json"].update(phase=name)


def no_keeper(world: World) -> None:
    world.head["units"][objects.KEEPER_UNIT] = unit("inactive")


def no_image(world: World) -> None:
    world.head["docker"]["images"][world.cluster.image] = None


def unread_image(world: World) -> None:
    world.head["docker"]["images"][world.cluster.image] = {"error": "Docker answered 500"}


@pytest.mark.parametrize(("name", "stops"), [("running", True), ("resting", False), ("stopped", False)])
def test_a_settled_pair_may_be_tested_and_only_a_running_one_is_stopped(name: str, stops: bool) -> None:
    world = converged(pair.cluster(REFERENCE))
    phase(name)(world)
    assert told(world) == []
    assert image_tests.must_stop(world.facts()["spark-a"]) is stops


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            phase("gating"),
            "  spark-a: the pair is gating: the tests need the GPUs, and stopping it now would cut that short\n"
            "    Fix: wait until it runs: sudo sparkpair follow",
        ),
        (
            no_keeper,
            "  spark-a: no keeper runs, so nobody can say that the GPUs are free, nor start the pair again\n"
            "    Fix: run deploy.py",
        ),
        (
            no_image,
            "  spark-a: the image ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark@44b2dbafe8d8 is not there\n"
            "    Fix: run stage.py",
        ),
        (
            unread_image,
            "  spark-a: the image ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark@44b2dbafe8d8 could not be read: Docker "
            "answered 500\n    Fix: make that answer, then run again",
        ),
    ],
)
def test_what_is_under_way_is_not_cut_short(change: Callable[[World], None], line: str) -> None:
    world = converged(pair.cluster(REFERENCE))
    change(world)
    assert told(world) == [line]


@pytest.mark.parametrize(
    ("checkout", "at", "line"),
    [
        (
            "",
            COMMIT,
            f"  no checkout of the engine's tests was named\n    Fix: {FETCH}; make image-tests TESTS=DIRECTORY",
        ),
        (
            "/src",
            Unknown("fatal: not a git repository"),
            f"  /src is no checkout of the engine: fatal: not a git repository\n    Fix: {FETCH}",
        ),
        (
            "/src",
            "1d220461f" + "0" * 31,
            "  /src is at commit 1d220461f, and the image is built from f223ff9f2\n"
            "    Fix: git -C /src checkout f223ff9f2",
        ),
    ],
)
def test_the_tests_are_those_of_the_image(checkout: str, at: Any, line: str) -> None:
    assert told(converged(pair.cluster(REFERENCE)), checkout, at) == [line]


def test_an_image_whose_tests_nobody_knows() -> None:
    assert told(converged(pair.cluster(pair.UPSTREAM))) == [
        "  the stack vllm has no tests for its image\n    Fix: verify_image.py looks at it"
    ]
    other = "ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark@sha256:" + "1" * 64
    assert told(converged(pair.cluster({**REFERENCE, "image": other}))) == [
        "  the tests of ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark@111111111111 are not known: its release is not "
        "stated, known are v2.2, v2.3\n"
        "    Fix: state image_release, if it is one of these"
    ]


def test_the_commit_of_a_checkout(tmp_path: Path) -> None:
    for words in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    found = commit(str(tmp_path))
    assert isinstance(found, str) and len(found) == 40
    assert isinstance(commit(str(tmp_path / "none")), Unknown)


def test_the_pair_is_away_for_as_long_as_the_tests_take() -> None:
    """The keeper stops it, and it starts it again however the tests end."""
    assert outage() == (
        "TimeoutStartSec=330",
        "ExecStartPre=/bin/sh -c '/usr/local/bin/sparkpair stop && i=0; while [ -n \"$$(docker ps -q --filter "
        "label=sparkpair.rank)\" ]; do i=$$((i+1)); [ $$i -lt 300 ] || exit 1; sleep 1; done'",
        "ExecStopPost=/usr/local/bin/sparkpair start",
    )


def test_the_tests_have_the_gpu_and_only_read_what_they_test() -> None:
    argv = container_argv("sha256:9", EXL3_TESTS)
    assert argv[:3] == ["/usr/bin/docker", "run", "--rm"]
    assert argv[argv.index("--gpus") : argv.index("--gpus") + 2] == ["--gpus", "all"]
    assert f"type=bind,source={PLACE},target=/tests,readonly" in argv
    assert argv[-4:-1] == ["sh", "sha256:9", "-c"]
    assert argv[-1].startswith(
        "python3 -m pip install -q pytest tblib && exec python3 -m pytest -q --no-header -p no:cacheprovider "
        "tests/v1/spec_decode/test_dflash2.py tests/v1/spec_decode/test_dflash_causality.py "
    )
