"""A bundle on a node: what the node says of it, by the program that is run there, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from checks import bundle
from checks.content import Plan
from checks.sourcing import Share, Way
from checks.verdict import Verdict
from facts.bundle import _BUNDLE, Bundle, BundleFiles
from facts.values import Unknown
from spec import bundle as texts
from spec.lock import FileSet, Lock, LockedFile, text
from tests.unit import pair

WEIGHTS = FileSet(
    "owner/model", "main", "a" * 40, "mit", False, (), (LockedFile("a", 3, "1" * 64), LockedFile("b/c", 5, "2" * 64))
)
DRAFTER = FileSet("owner/drafter", "main", "b" * 40, "mit", False, (), (LockedFile("d", 2, "3" * 64),))
OTHER = FileSet("owner/model", "main", "c" * 40, "mit", False, (), (LockedFile("a", 3, "9" * 64),))


def made(place: Path) -> None:
    """A whole bundle without a drafter, though the lock names one."""
    (place / "weights/b").mkdir(parents=True)
    (place / "weights/a").write_bytes(b"aaa")
    (place / "weights/b/c").write_bytes(b"ccccc")
    (place / texts.BLOBS).mkdir(parents=True)
    (place / texts.blob("sha256:" + "4" * 64)).write_bytes(b"layer")
    (place / texts.README).write_text("read")
    (place / texts.LOCK).write_text(text(Lock(None, WEIGHTS, DRAFTER)))
    rows = {"weights/a": "1" * 64, "weights/b/c": "2" * 64, texts.blob("sha256:" + "4" * 64): "4" * 64}
    (place / texts.SUMS).write_text(texts.sums({**rows, texts.README: "5" * 64, texts.LOCK: "6" * 64}))


def with_drafter(place: Path) -> None:
    (place / "drafter").mkdir()
    (place / "drafter/d").write_bytes(b"dd")
    listed = (place / texts.SUMS).read_text()
    (place / texts.SUMS).write_text(f"{listed}{'3' * 64}  drafter/d\n")


def seen(place: Path) -> Bundle | Unknown:
    """As a node says it."""
    done = subprocess.run(
        [sys.executable, "-ISB", "-c", _BUNDLE, str(place)], capture_output=True, text=True, check=True
    )
    return BundleFiles().process(["a banner", *done.stdout.splitlines()])


HELD = {"weights": WEIGHTS.identity}
CASES: dict[str, tuple[Callable[[Path], object], Bundle]] = {
    "whole": (lambda place: None, Bundle(True, True, HELD, (), "")),
    "with a drafter": (
        with_drafter,
        Bundle(True, True, {**HELD, "drafter": DRAFTER.identity}, (), ""),
    ),
    "files that are gone or short": (
        lambda place: [(place / "weights/a").unlink(), (place / "weights/b/c").write_bytes(b"cc")],
        Bundle(True, True, HELD, ("weights/a", "weights/b/c"), ""),
    ),
    "a layer that is gone": (
        lambda place: (place / texts.blob("sha256:" + "4" * 64)).unlink(),
        Bundle(True, True, HELD, (texts.blob("sha256:" + "4" * 64),), ""),
    ),
    "not finished": (lambda place: (place / texts.SUMS).unlink(), Bundle(True, False, {}, (), "")),
    "no lock": (
        lambda place: (place / texts.LOCK).unlink(),
        Bundle(True, False, {}, (), "there is no sparkpair.lock in it"),
    ),
    "a damaged lock": (
        lambda place: (place / texts.LOCK).write_text("{"),
        Bundle(True, False, {}, (), "its sparkpair.lock is damaged"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_node_says(name: str, tmp_path: Path) -> None:
    change, wanted = CASES[name]
    made(tmp_path)
    change(tmp_path)
    assert seen(tmp_path) == wanted


def test_a_place_where_nothing_is(tmp_path: Path) -> None:
    assert seen(tmp_path / "none") == Bundle(False, False, {}, (), "")


def test_an_answer_that_is_none() -> None:
    """Unknown is not no."""
    assert BundleFiles().process(["bash: warning"]) == Unknown("it answered 'bash: warning'")
    assert BundleFiles().process(['{"present": 1}']) == Unknown("it answered '{\"present\": 1}'")
    assert BundleFiles.default() == Unknown("it did not answer")


NODE = pair.cluster({**pair.UPSTREAM}, worker=pair.node(pair.WORKER, bundle_path="/media/stick/bundle")).nodes[1]


def plan(name: str, file_set: FileSet, way: Way = Way.BUNDLE) -> Plan:
    paths = {"spark-a": "/srv/a", "spark-b": "/srv/b"}
    return Plan(name, paths, {"spark-b": Share(way), "spark-a": Share(Way.COPY)}, file_set=file_set)


def told(found: Bundle | Unknown, *plans: Plan) -> list[str]:
    return [verdict.text() for verdict in bundle.usable(NODE, plans or [plan("weights", WEIGHTS)], found)]


COPY_AGAIN = "    Fix: copy it there again, whole; to see what is wrong, in it: sha256sum --quiet -c SHA256SUMS"
REFUSALS: dict[str, tuple[Bundle, str]] = {
    "missing": (
        Bundle(False, False, {}, (), ""),
        "  spark-b: bundle_path = /media/stick/bundle: there is no such directory\n"
        "    Fix: mount the disk with the bundle, name another place, or leave bundle_path out (make bundle makes one)",
    ),
    "trouble": (
        Bundle(True, False, {}, (), "there is no sparkpair.lock in it"),
        "  spark-b: bundle_path = /media/stick/bundle: no bundle that can be used: there is no sparkpair.lock in it\n"
        + COPY_AGAIN,
    ),
    "not finished": (
        Bundle(True, False, {}, (), ""),
        "  spark-b: bundle_path = /media/stick/bundle: the bundle is not whole, it has no SHA256SUMS\n"
        "    Fix: make bundle again where there is internet (it goes on), and copy it there whole",
    ),
    "another lock": (
        Bundle(True, True, {"weights": OTHER.identity}, (), ""),
        f"  spark-b: bundle_path = /media/stick/bundle: the bundle is of another lock (weights: "
        f"{OTHER.identity[:12]}, wanted {WEIGHTS.identity[:12]})\n"
        "    Fix: make bundle again from this lock file, or deploy with the sparkpair.lock that is in the bundle",
    ),
    "not whole": (
        Bundle(True, True, HELD, ("weights/a", "weights/b", "weights/c", "weights/d", "image/x"), ""),
        "  spark-b: bundle_path = /media/stick/bundle: not there whole: weights/a, weights/b, weights/c and 1 more\n"
        + COPY_AGAIN,
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_refused(name: str) -> None:
    found, wanted = REFUSALS[name]
    assert told(found) == [wanted]


def test_what_is_not_refused() -> None:
    """A whole one; of one that lacks a layer, the weights; what is not needed of it."""
    assert told(Bundle(True, True, HELD, ("image/blobs/sha256/44",), "")) == []
    plans = [plan("weights", WEIGHTS), plan("drafter", DRAFTER, Way.NOTHING)]
    assert [one.name for one in bundle.needed(NODE, plans)] == ["weights"]


def test_a_drafter_that_is_not_in_it() -> None:
    """The licence was not accepted where the bundle was made."""
    assert told(Bundle(True, True, HELD, (), ""), plan("weights", WEIGHTS), plan("drafter", DRAFTER)) == [
        "  spark-b: bundle_path = /media/stick/bundle: the bundle has no drafter\n"
        "    Fix: make bundle again with its licence accepted, or put the files into /srv/b yourself"
    ]


def test_a_node_that_does_not_say() -> None:
    """Nobody goes on as if the bundle were there, or were not."""
    assert list(bundle.usable(NODE, [plan("weights", WEIGHTS)], Unknown("no disk"))) == [
        Verdict(
            "spark-b",
            "bundle_path = /media/stick/bundle could not be read: no disk",
            None,
            "make that answer, then run again",
        )
    ]


def test_the_program_knows_the_names() -> None:
    """What is written by one and read by the other is spelt once each, in two languages that share no constants."""
    for word in (texts.LOCK, texts.SUMS):
        assert json.dumps(word) in _BUNDLE
