"""What a deploy would do with a lock file: download, exchange, copy, mend, or refuse before anything is changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spec import lock
from tests.plan.cases import PLAN, Case
from tests.plan.conftest import Outcome, carried_out
from tests.plan.world import FILES, World, converged, fresh

A, B = "@fake/spark-a", "@fake/spark-b"
HUB = "https://huggingface.co"
REPOSITORY, COMMIT = "someone/tiny", "a" * 40
LOCKED = {"weights_repository": REPOSITORY}
SET = lock.FileSet(
    REPOSITORY, "main", COMMIT, "mit", False, (),
    tuple(lock.LockedFile(str(path), int(str(size)), str(sha)) for path, size, sha in FILES),
)  # fmt: skip
TEXT = lock.text(lock.Lock(None, SET, None))
UNFREE = lock.text(lock.Lock(None, replace(SET, licence="cc-by-nc-nd-4.0"), None))
REACHED, NO_ROUTE = "", "No route to host"
Data = Callable[[str, dict[str, Any]], dict[str, Any]]


def hub(head: str, worker: str) -> Data:
    """What each node says of its way to the hub."""

    def answer(name: str, data: dict[str, Any]) -> dict[str, Any]:
        said = json.dumps({HUB: head if name == A else worker})
        return {**data, "fake_responses": {**data["fake_responses"], "create_connection": [said]}}

    return answer


def nowhere(world: World) -> None:
    """Neither node has a file."""
    for node in (world.head, world.worker):
        node["content"]["weights"].update(present=False, files=[], identity=None)


def with_the_image(world: World) -> None:
    """Nothing else of ours is there."""
    for node in (world.head, world.worker):
        node["docker"]["images"] = converged(world.cluster).head["docker"]["images"]


def damaged(world: World) -> None:
    """A deep check found one file damaged on the worker."""
    files = [[path, size, None if path == FILES[1][0] else sha] for path, size, sha in FILES]
    world.worker["content"]["weights"].update(files=files, identity=None, damaged=[FILES[1][0]])


def another_model(world: World) -> None:
    files = [[path, size + 1, None] for path, size, _ in FILES]
    world.worker["content"]["weights"].update(files=files, identity=None)


def beside(*names: str) -> Callable[[World], None]:
    """The operator's own template lies beside the weights, on these nodes."""

    def change(world: World) -> None:
        for name in names:
            weights = world.nodes[name]["content"]["weights"]
            weights.update(files=[*weights["files"], ["own.jinja", 70, "9" * 64]], identity=None)

    return change


def case(name: str, state: Any, change: Callable[[World], None], head: str, worker: str, text: str = TEXT) -> Case:
    return Case(name, state, change, options=PLAN, more=LOCKED, data=hub(head, worker), files={"sparkpair.lock": text})


CASES = (
    case("both reach the hub", converged, nowhere, REACHED, REACHED),
    case("the worker alone reaches it", converged, nowhere, NO_ROUTE, REACHED),
    case("nobody reaches it", converged, nowhere, NO_ROUTE, "Connection refused"),
    case("the head has them", fresh, with_the_image, NO_ROUTE, NO_ROUTE),
    case("converged", converged, lambda world: None, NO_ROUTE, NO_ROUTE),
    case("a damaged file", converged, damaged, NO_ROUTE, NO_ROUTE),
    case("another model", converged, another_model, REACHED, REACHED),
    case("a template on both", converged, beside(A, B), NO_ROUTE, NO_ROUTE),
    case("a template on one", converged, beside(A), NO_ROUTE, NO_ROUTE),
    case("a licence", converged, nowhere, REACHED, REACHED, UNFREE),
    case("a licence of what is here", converged, lambda world: None, REACHED, REACHED, UNFREE),
    case("a damaged lock", converged, lambda world: None, REACHED, REACHED, "{"),
)
WEIGHTS = "Weights | "
CLIENT, SERVE = WEIGHTS + "Install the download client", WEIGHTS + "Start serving the weights on the rails"
PULL, STOP = WEIGHTS + "Pull the weights", WEIGHTS + "Stop serving the weights"
RESTART = "Keeper | Restart the pair"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    return carried_out(CASES, tmp_path_factory.mktemp("locked"))


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("both reach the hub", {CLIENT: [A, B], SERVE: [A, B], PULL: [A, B], STOP: [A, B]}),
        ("the worker alone reaches it", {CLIENT: [B], SERVE: [B], PULL: [A, B], STOP: [B]}),
        ("converged", {}),
        ("a damaged file", {SERVE: [A], PULL: [B], STOP: [A]}),
        ("a template on both", {PULL: [A, B], RESTART: [A]}),
        ("a template on one", {SERVE: [A], PULL: [A, B], STOP: [A], RESTART: [A]}),
        ("a licence of what is here", {}),
    ],
)
def test_plan(outcomes: dict[str, Outcome], name: str, rows: dict[str, list[str]]) -> None:
    assert outcomes[name].code == 0, outcomes[name].stderr
    assert outcomes[name].rows == rows


def test_what_is_there_is_hashed_and_copied_on_a_first_deploy(outcomes: dict[str, Outcome]) -> None:
    rows = outcomes["the head has them"].rows
    assert {name: hosts for name, hosts in rows.items() if name.startswith(WEIGHTS)} == {
        SERVE: [A], PULL: [A, B], STOP: [A],
    }  # fmt: skip


def test_each_node_is_told_from_where(outcomes: dict[str, Outcome]) -> None:
    told = outcomes["both reach the hub"].stderr
    assert f"[{A}] weights in /srv/models/tiny: 4.0 KiB from the hub, 1000 B from {B} over the rails" in told
    assert f"[{B}] weights in /srv/models/tiny: 1000 B from the hub, 4.0 KiB from {A} over the rails" in told
    assert f"[{B}] weights in /srv/models/tiny: 4.0 KiB from {A} over the rails" in outcomes["a damaged file"].stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "nobody reaches it",
            "Preflight refused; no node was changed.\n"
            "  weights: no node holds config.json, model-00001-of-00001.safetensors and 1 more file (5.0 KiB), and "
            f"none reaches {HUB} ({A}: No route to host; {B}: Connection refused)\n"
            f"    Fix: give one node a way to the internet, put the files into /srv/models/tiny on {A}, or make a "
            "bundle where there is one (make bundle) and name it in bundle_path",
        ),
        (
            "another model",
            "Preflight refused; no node was changed.\n"
            f"  {B}: weights: /srv/models/tiny holds other files than someone/tiny at aaaaaaaaaaaa: config.json, "
            "model-00001-of-00001.safetensors, model.safetensors.index.json: 3 of the 3 locked names that are there "
            "have another size\n"
            "    Fix: name another directory in weights_path, or remove this one if nobody needs it: "
            "rm -r /srv/models/tiny",
        ),
        (
            "a licence",
            "Preflight refused; no node was changed.\n"
            "  weights: its licence is not accepted: someone/tiny is under cc-by-nc-nd-4.0 (CC BY-NC-ND 4.0: not for "
            "commercial purposes, and no changed copy may be passed on; it is downloaded from its source by each user, "
            "and never redistributed), and accepted_licences does not name it\n"
            "    Fix: read it at the repository; to accept it, state in group_data/all.py: "
            'accepted_licences = "cc-by-nc-nd-4.0"',
        ),
    ],
)
def test_refused(outcomes: dict[str, Outcome], name: str, message: str) -> None:
    found = outcomes[name]
    assert (found.code, found.stdout, found.error) == (1, "", message)


def test_a_damaged_lock_is_a_refusal_of_the_settings(outcomes: dict[str, Outcome]) -> None:
    found = outcomes["a damaged lock"]
    assert (found.code, found.stdout) == (1, "")
    assert found.error.startswith("Settings refused; no node was changed.\n  sparkpair.lock")
