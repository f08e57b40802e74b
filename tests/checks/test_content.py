"""Where the weights are, where they must go, and what forbids it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from checks import content
from checks.sourcing import Way
from spec.lock import FileSet, Lock, LockedFile
from tests.plan.world import FILES, IDENTITY, World, converged, fresh
from tests.unit import pair

Change = Callable[[dict[str, Any]], None]


def plan(change: Change, state: Callable[[Any], World] = fresh) -> content.Plan:
    """The plan for the weights after a change of the worker's."""
    world = state(pair.cluster(pair.UPSTREAM))
    change(world.worker["content"]["weights"])
    (found,) = content.plans(world.cluster, world.facts())
    return found


def ways(found: content.Plan) -> dict[str, Way]:
    """What each node does."""
    return {name: share.way for name, share in found.shares.items()}


def listing(*without: str) -> list[list[object]]:
    """The files' names and sizes as they are seen before they have been hashed."""
    return [[path, size, None] for path, size, _ in FILES if path not in without]


def nothing(_: dict[str, Any]) -> None:
    """As it is."""


def test_what_is_here_is_copied_without_a_licence_and_never_downloaded() -> None:
    """Not in place of a slow peer either, nor of a file that proves to be damaged."""
    files = tuple(LockedFile(str(path), int(str(size)), str(digest)) for path, size, digest in FILES)
    held = FileSet("a/b", "main", "1" * 40, "cc-by-nc-nd-4.0", False, (), files)
    cluster = pair.cluster(pair.UPSTREAM)
    for licence, hub in (("mit", True), ("cc-by-nc-nd-4.0", False)):
        lock = Lock(None, replace(held, licence=licence), None)
        locked = replace(cluster, settings=cluster.settings.model_copy(update={"lock": lock}))
        (found,) = content.plans(locked, fresh(locked).facts(), {"spark-a": "", "spark-b": ""})
        assert found.refusals == ()
        assert ways(found) == {"spark-a": Way.HASH, "spark-b": Way.COPY}
        assert {share.hub for share in found.shares.values()} == {hub}


def test_a_node_that_lacks_them_gets_a_copy() -> None:
    found = plan(nothing)
    assert (found.source, found.identity) == ("spark-a", None)
    assert ways(found) == {"spark-a": Way.HASH, "spark-b": Way.COPY}
    assert found.shares["spark-b"].size == sum(int(str(size)) for _, size, _ in FILES)
    assert found.refusals == ()


def test_nothing_is_to_be_done_where_manifests_hold() -> None:
    found = plan(nothing, converged)
    assert ways(found) == {"spark-a": Way.NOTHING, "spark-b": Way.NOTHING}
    assert (found.identity, found.shares["spark-b"].size, found.is_done) == (IDENTITY, 0, True)


def test_the_same_files_on_both_are_hashed_on_both() -> None:
    found = plan(lambda here: here.update(present=True, files=listing()))
    assert ways(found) == {"spark-a": Way.HASH, "spark-b": Way.HASH}


def test_some_of_the_files_are_completed() -> None:
    found = plan(lambda here: here.update(present=True, files=listing("config.json"), missing=["config.json"]))
    assert found.way("spark-b") is Way.COPY
    assert found.shares["spark-b"].size == 700


def test_an_unfinished_copy_goes_on_whatever_it_holds() -> None:
    half = [["model-00001-of-00001.safetensors", 10, None]]
    found = plan(lambda here: here.update(present=True, files=half, copying="x"))
    assert found.way("spark-b") is Way.COPY
    assert found.refusals == ()


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ([*listing(), ["readme.md", 5, None]], "readme.md (only on spark-b)"),
        ([["config.json", 701, None], *listing("config.json")], "config.json (700 and 701 bytes)"),
    ],
)
def test_other_files_are_never_written_over(files: list[list[object]], told: str) -> None:
    found = plan(lambda here: here.update(present=True, files=files))
    assert [told in refusal.statement for refusal in found.refusals] == [True]


def test_equal_sizes_and_other_bytes_are_told_apart() -> None:
    def other(here: dict[str, Any]) -> None:
        here.update(files=[[path, size, "f" * 64] for path, size, _ in FILES], identity="f" * 64)

    found = plan(other, converged)
    assert "config.json (other bytes)" in found.refusals[0].statement


def test_the_worker_may_be_the_source() -> None:
    world = converged(pair.cluster(pair.UPSTREAM))
    world.head["content"]["weights"].update(present=False, files=[], identity=None)
    (found,) = content.plans(world.cluster, world.facts())
    assert found.source == "spark-b"
    assert ways(found) == {"spark-a": Way.COPY, "spark-b": Way.NOTHING}


def test_a_drafter_is_a_directory_of_its_own() -> None:
    world = fresh(pair.cluster({"weights_path": "~/models/w", "drafter_path": "~/models/d"}))
    plans = content.plans(world.cluster, world.facts())
    assert [found.name for found in plans] == ["weights", "drafter"]
    assert plans[1].paths == {"spark-a": "/home/alice/models/d", "spark-b": "/srv/bob/models/d"}


def test_three_nodes() -> None:
    world = fresh(pair.cluster({**pair.UPSTREAM, "tensor_parallel_size": 3}, more=1))
    (found,) = content.plans(world.cluster, world.facts())
    assert ways(found) == {"spark-a": Way.HASH, "spark-b": Way.COPY, "spark-c": Way.COPY}


def test_identities_are_known_once_all_are() -> None:
    world = converged(pair.cluster(pair.UPSTREAM))
    assert content.identities(world.cluster, world.facts()) == [[IDENTITY], [IDENTITY]]
    world.worker["content"]["weights"]["identity"] = None
    assert content.identities(world.cluster, world.facts()) is None
