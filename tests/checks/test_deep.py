"""What verify says of the deep check: never asked is told, damage is a failure with its remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from checks import deep
from checks.verdict import Verdict, broken, holds
from facts.values import DEEP_RESULT, Unknown
from spec import objects
from tests.plan.world import World, converged, unit
from tests.unit import pair

TIMER = holds("spark-b", "sparkpair-weights-deep.timer is active and enabled")
WEIGHTS = "/srv/models/tiny"


def result(here: World, damaged: list[str]) -> None:
    """A check was made on the worker, and a directory of an earlier launch is in it."""
    row = {"files": 3, "bytes": 6 * 2**30, "changed": [], "skipped": ""}
    document: dict[str, Any] = {
        "at": "2026-12-01T04:12:44+0100", "seconds": 12.5, "bytes": 12 * 2**30,
        "directories": [
            {**row, "directory": WEIGHTS, "damaged": damaged},
            {**row, "directory": "/srv/models/former", "damaged": ["a"]},
        ],
    }  # fmt: skip
    here.worker["documents"][DEEP_RESULT] = {"json": document}


def found_damage(here: World) -> None:
    result(here, ["model-00001-of-00001.safetensors"])
    here.worker["content"]["weights"].update(damaged=["model-00001-of-00001.safetensors"], identity=None)


def no_answer(here: World) -> None:
    here.worker["content"] = {"error": "no disk"}


def skipped(here: World) -> None:
    result(here, [])
    rows = here.worker["documents"][DEEP_RESULT]["json"]["directories"]
    rows[0].update(files=0, bytes=0, skipped="its files are on another node, which checks them")


CASES: dict[str, tuple[Callable[[World], None], list[Verdict]]] = {
    "never": (
        lambda here: None,
        [
            TIMER,
            holds(
                "spark-b", "no deep check yet: the timer starts one once a month, python verify.py --deep checks now"
            ),
        ],
    ),
    "all is well": (
        lambda here: result(here, []),
        [TIMER, holds("spark-b", "deep check of 2026-12-01 04:12: 3 files, 6.0 GiB, every byte as proven")],
    ),
    "damage": (
        found_damage,
        [
            TIMER,
            broken(
                "spark-b",
                "the deep check found other bytes in /srv/models/tiny/model-00001-of-00001.safetensors",
                "run deploy.py: it brings these files again, from the other node or from where they are published, "
                "no other",
            ),
        ],
    ),
    "damage that a deploy has mended": (
        lambda here: result(here, ["model-00001-of-00001.safetensors"]),
        [
            TIMER,
            holds(
                "spark-b",
                "deep check of 2026-12-01 04:12: 3 files, 6.0 GiB, damaged then, and brought again since: 1",
            ),
        ],
    ),
    "nothing of its own": (
        skipped,
        [TIMER, holds("spark-b", "the deep check of 2026-12-01 04:12 read nothing here")],
    ),
    "no content": (
        no_answer,
        [
            TIMER,
            Verdict(
                "spark-b",
                "the result of its deep check could not be read: no disk",
                None,
                "make that answer, then run again",
            ),
        ],
    ),
    "a result that is no result": (
        lambda here: here.worker["documents"].update({DEEP_RESULT: {"json": {"at": 5}}}),
        [
            TIMER,
            Verdict(
                "spark-b",
                "the result of its deep check could not be read: the probe's document cannot be read: 'directories'",
                None,
                "make that answer, then run again",
            ),
        ],
    ),
    "the timer is off": (
        lambda here: here.worker["units"].update({objects.DEEP_TIMER: unit("inactive", "disabled")}),
        [
            broken(
                "spark-b",
                "sparkpair-weights-deep.timer is inactive and disabled, wanted active and enabled",
                "run deploy.py; journalctl -u sparkpair-weights-deep.timer",
            ),
            holds(
                "spark-b", "no deep check yet: the timer starts one once a month, python verify.py --deep checks now"
            ),
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_said(name: str) -> None:
    change, wanted = CASES[name]
    here = converged(pair.cluster(pair.UPSTREAM))
    change(here)
    cluster = here.cluster
    assert list(deep.checked(cluster, cluster.workers[0], here.facts()["spark-b"])) == wanted


def test_units_that_are_not_known_are_said_elsewhere() -> None:
    """One statement for the units, not one for each of them."""
    here = converged(pair.cluster(pair.UPSTREAM))
    here.worker["units"] = {"error": "no bus"}
    facts = here.facts()["spark-b"]
    assert isinstance(facts.units, Unknown)
    assert [verdict.statement[:17] for verdict in deep.checked(here.cluster, here.cluster.workers[0], facts)] == [
        "no deep check yet"
    ]
