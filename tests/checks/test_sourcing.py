"""Where each node gets a locked directory from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.sourcing import Row, Share, Way, lacking, shares
from facts.values import Content

A, B = "spark-a", "spark-b"
BIG: Row = ("a.safetensors", 800, "a" * 64)
MIDDLE: Row = ("b.safetensors", 500, "b" * 64)
SMALL: Row = ("config.json", 300, "c" * 64)
WANTED = (BIG, MIDDLE, SMALL)
PATHS = frozenset(path for path, _, _ in WANTED)
BOTH, NONE = {A: True, B: True}, {A: False, B: False}


def here(*rows: tuple[str, int, str | None], identity: str | None = None, damaged: tuple[str, ...] = ()) -> Content:
    """A directory with these files."""
    return Content("/w", bool(rows), rows, (), (), identity, None, damaged)


WHOLE, EMPTY = here(*WANTED, identity="i"), here()
UNPROVEN = here(*((path, size, None) for path, size, _ in WANTED))


def plan(a: Content, b: Content, online: dict[str, bool], bundles: dict[str, str] | None = None) -> dict[str, Share]:
    found, nowhere = shares(WANTED, {A: a, B: b}, online, bundles or {}, PATHS)
    assert nowhere == ()
    return found


def test_nothing_where_both_hold_it() -> None:
    assert plan(WHOLE, WHOLE, NONE) == {A: Share(Way.NOTHING), B: Share(Way.NOTHING)}


def test_each_downloads_half_and_they_exchange() -> None:
    assert plan(EMPTY, EMPTY, BOTH) == {
        A: Share(Way.EXCHANGE, WANTED, ("a.safetensors",), hub=True, wait=True),
        B: Share(Way.EXCHANGE, WANTED, ("b.safetensors", "config.json"), hub=True, wait=True),
    }


def test_one_downloads_and_the_other_copies() -> None:
    found = plan(EMPTY, EMPTY, {A: False, B: True})
    assert found == {
        A: Share(Way.COPY, WANTED, (), hub=False, wait=True),
        B: Share(Way.FETCH, WANTED, tuple(sorted(PATHS)), hub=True, wait=False),
    }
    assert (found[B].size, found[B].fetch_size) == (1600, 1600)


def test_what_one_holds_is_copied_and_not_downloaded_again() -> None:
    assert plan(WHOLE, EMPTY, BOTH)[B] == Share(Way.COPY, WANTED, (), hub=True, wait=True)


def test_what_was_not_hashed_yet_is_hashed_before_it_is_copied() -> None:
    found = plan(UNPROVEN, EMPTY, NONE)
    assert found == {A: Share(Way.HASH), B: Share(Way.COPY, WANTED, (), wait=True)}


def test_what_proves_to_be_damaged_is_nearer_at_a_peer_that_holds_it_than_at_the_hub() -> None:
    assert plan(UNPROVEN, WHOLE, NONE) == {A: Share(Way.HASH, wait=True), B: Share(Way.NOTHING)}
    doubtful = here(("a.safetensors", 800, None), MIDDLE)
    assert plan(doubtful, here(BIG, MIDDLE), BOTH) == {
        A: Share(Way.COPY, (SMALL,), (), hub=True, wait=True),
        B: Share(Way.FETCH, (SMALL,), ("config.json",), hub=True, wait=False),
    }
    doubtful = here(BIG, ("b.safetensors", 500, None))
    assert plan(here(BIG, MIDDLE), doubtful, BOTH)[B] == Share(Way.FETCH, (SMALL,), ("config.json",), True, wait=True)


def test_who_downloads_what_stays_as_it_was_while_files_arrive() -> None:
    first = plan(EMPTY, EMPTY, BOTH)
    later = plan(EMPTY, here(MIDDLE), BOTH)
    assert (first[A].fetch, later[A].fetch) == (("a.safetensors",), ("a.safetensors",))
    assert (first[B].fetch, later[B].fetch) == (("b.safetensors", "config.json"), ("config.json",))
    assert plan(here(BIG), EMPTY, BOTH)[A].fetch == ()


def test_a_bundle_on_one_node_is_nearer_than_the_hub() -> None:
    found = plan(EMPTY, EMPTY, BOTH, {B: "/media/b/weights"})
    assert found == {
        A: Share(Way.COPY, WANTED, (), hub=True, wait=True),
        B: Share(Way.BUNDLE, WANTED, (), hub=True, wait=False, bundle="/media/b/weights"),
    }


def test_a_damaged_file_is_brought_alone() -> None:
    rows = tuple((path, size, None if path == "a.safetensors" else sha) for path, size, sha in WANTED)
    damaged = here(*rows, damaged=("a.safetensors",))
    assert plan(damaged, WHOLE, NONE)[A] == Share(Way.COPY, (BIG,), (), wait=True)
    assert plan(damaged, damaged, BOTH) == {
        A: Share(Way.FETCH, (BIG,), ("a.safetensors",), hub=True),
        B: Share(Way.COPY, (BIG,), (), hub=True, wait=True),
    }


@pytest.mark.parametrize(
    "row", [("a.safetensors", 799, None), ("a.safetensors", 799, "a" * 64), ("a.safetensors", 800, "f" * 64)]
)
def test_another_size_or_other_bytes_are_lacking(row: tuple[str, int, str | None]) -> None:
    assert lacking(WANTED, here(row, MIDDLE, SMALL)) == (BIG,)


def test_each_completes_the_other() -> None:
    found = plan(here(BIG), here(MIDDLE, SMALL), NONE)
    assert found == {
        A: Share(Way.COPY, (MIDDLE, SMALL), (), wait=True),
        B: Share(Way.COPY, (BIG,), (), wait=True),
    }


def test_what_nobody_can_bring_is_named() -> None:
    _, nowhere = shares(WANTED, {A: here(BIG), B: EMPTY}, NONE, {}, PATHS)
    assert nowhere == (MIDDLE, SMALL)
    beside: Row = ("own.jinja", 5, "e" * 64)
    _, nowhere = shares((*WANTED, beside), {A: EMPTY, B: EMPTY}, BOTH, {}, PATHS)
    assert nowhere == (beside,)


HELD = st.lists(st.sampled_from(WANTED), unique=True).map(lambda rows: here(*sorted(rows)))


@given(a=HELD, b=HELD, online=st.fixed_dictionaries({A: st.booleans(), B: st.booleans()}))
def test_every_lacking_file_comes_from_exactly_one_place(a: Content, b: Content, online: dict[str, bool]) -> None:
    found, nowhere = shares(WANTED, {A: a, B: b}, online, {}, PATHS)
    fetched = [path for share in found.values() for path in share.fetch]
    assert len(fetched) == len(set(fetched))
    nobody_has = {row[0] for row in WANTED} - {row[0] for row in (*a.files, *b.files)}
    assert set(fetched) | {row[0] for row in nowhere} == nobody_has
    for name, share in found.items():
        assert set(share.fetch) <= {row[0] for row in share.lacks}
        assert not share.fetch or online[name]
        assert share.wait == ({row[0] for row in share.lacks} > set(share.fetch)) or share.way is Way.COPY
