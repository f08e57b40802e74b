"""What each kind of value takes, and the exact words with which it refuses the rest."""

from __future__ import annotations

import math

import pytest

from spec.kinds import (
    ControlPath,
    Endpoint,
    Image,
    Kind,
    Licences,
    Name,
    NodePath,
    Number,
    OneOf,
    Pairs,
    Refused,
    Revision,
    Size,
    Switch,
    Whole,
    WholeOr,
    Words,
    shown,
)
from spec.knobs import KNOBS

D = "0123456789abcdef" * 4

TAKEN: list[tuple[Kind, object, object]] = [
    (Whole(1, 9), 4, 4),
    (Whole(1, 200_000), 1e5, 100_000),
    (Whole(1, 10**11), 14.4e9, 14_400_000_000),
    (Whole(-1, 9), -1, -1),
    (Number(low=0, high=1), 1, 1.0),
    (Number(above=0, high=0.95), 0.85, 0.85),
    (Switch(), True, True),
    (Name(), "fp8_ds_mla", "fp8_ds_mla"),
    (OneOf(("a", "b")), "b", "b"),
    (WholeOr(1, 9, "auto"), "auto", "auto"),
    (WholeOr(1, 9, "auto"), 3.0, 3),
    (Words(), "What is 17*23?", "What is 17*23?"),
    (Words(), 391, "391"),
    (Words(), "naïve 数 ✓", "naïve 数 ✓"),
    (NodePath(), "/srv/models/tiny", "/srv/models/tiny"),
    (NodePath(), "/srv/models/tiny/", "/srv/models/tiny"),
    (NodePath(), "~/models/glm53-exl3", "~/models/glm53-exl3"),
    (Image(), f"ghcr.io/entrpi/x-y_z.w@sha256:{D}", f"ghcr.io/entrpi/x-y_z.w@sha256:{D}"),
    (Image(), f"192.168.77.1:5000/vllm-cpu@sha256:{D}", f"192.168.77.1:5000/vllm-cpu@sha256:{D}"),
    (Image(), f"vllm@sha256:{D}", f"vllm@sha256:{D}"),
    (Pairs(), ["A=1", "B=x=y z"], ("A=1", "B=x=y z")),
    (Pairs(), [], ()),
    (Pairs(), ("A=",), ("A=",)),
    (Size(), "32g", "32g"),
    (Revision(), "main", "main"),
    (Revision(), "refs/pr/12", "refs/pr/12"),
    (Revision(), "v2.3-tier1", "v2.3-tier1"),
    (Endpoint(), "https://huggingface.co/", "https://huggingface.co"),
    (Endpoint(), "http://192.168.1.5:8080/hub/v1", "http://192.168.1.5:8080/hub/v1"),
    (ControlPath(), "sparkpair.lock", "sparkpair.lock"),
    (ControlPath(), "/srv/my pair/a.lock", "/srv/my pair/a.lock"),
    (Licences(), "cc-by-nc-nd-4.0", "cc-by-nc-nd-4.0"),
    (Licences(), " other, mit,other", "other,mit"),
]

_WORD = "must be one word of letters, digits and . _ -"
_PATH = "must be an absolute path on the node, or one that starts with ~/"
_IMAGE = "must be an image pinned by digest (repository@sha256:<64 hex digits>)"
_QUOTE = "; in --data quote it as JSON: 'name=\"...\"'"
_REVISION = "must be a branch, a tag or a commit of 40 hex digits"
_ENDPOINT = "must be an address such as https://huggingface.co, without user, password or query"
_LICENCES = "must be licences as the hub names them, with commas between them, such as cc-by-nc-nd-4.0"

REFUSED: list[tuple[Kind, object, str]] = [
    (Whole(1, 9), True, "must be a whole number, 1 to 9, not true/false"),
    (Whole(1, 9), "4", "must be a whole number, 1 to 9, not text"),
    (Whole(1, 9), 1.5, "must be a whole number, 1 to 9"),
    (Whole(1, 9), math.nan, "must be a whole number, 1 to 9"),
    (Whole(1, 9), math.inf, "must be a whole number, 1 to 9"),
    (Whole(1, 9), [4], "must be a whole number, 1 to 9, not a list"),
    (Whole(1, 9), {}, "must be a whole number, 1 to 9, not a table"),
    (Whole(1, 9), 0, "must be at least 1"),
    (Whole(1, 9), 10**30, "must be at most 9"),
    (Number(above=0, high=0.95), 1.4, "must be at most 0.95"),
    (Number(above=0, high=0.95), 0, "must be above 0"),
    (Number(low=0, high=64), -0.5, "must be at least 0"),
    (Number(low=0, high=64), False, "must be a number, 0 to 64, not true/false"),
    (Number(low=0, high=64), "0.5", "must be a number, 0 to 64, not text"),
    (Number(low=0, high=64), math.nan, "must be a finite number, 0 to 64"),
    (Number(above=0, high=0.95), -math.inf, "must be a finite number, above 0, at most 0.95"),
    (Number(low=0, high=64), 10**400, "must be a finite number, 0 to 64"),
    (Switch(), 1, "must be True or False (true or false in --data)"),
    (Switch(), "yes", "must be True or False (true or false in --data)"),
    (Name(), "two words", _WORD),
    (Name(), "sliding_window,full", _WORD),
    (Name(), "-x", _WORD),
    (Name(), "x" * 129, _WORD),
    (Name(), "line\nbreak", "must not contain line breaks or control characters"),
    (Name(), 4, f"{_WORD}, not a whole number{_QUOTE}"),
    (OneOf(("vllm-exl3", "vllm")), "vllm_exl3", "must be one of vllm-exl3, vllm"),
    (WholeOr(1, 9, "auto"), "Auto", 'must be a whole number, 1 to 9, not text, or "auto"'),
    (WholeOr(1, 9, "auto"), 10, 'must be at most 9, or "auto"'),
    (Words(), "   ", "must be 1 to 4000 characters, not blank"),
    (Words(), "x" * 4001, "must be 1 to 4000 characters, not blank"),
    (Words(), "a\tb", "must not contain line breaks or control characters"),
    (Words(), "a\u2028b", "must not contain line breaks or control characters"),
    (Words(), "a\x00b", "must not contain line breaks or control characters"),
    (Words(), 1.50, f"must be text, not a number{_QUOTE}"),
    (Words(), True, f"must be text, not true/false{_QUOTE}"),
    (NodePath(), "models/tiny", _PATH),
    (NodePath(), "~alice/models", _PATH),
    (NodePath(), "~", _PATH),
    (NodePath(), "/", f"{_PATH}, below / and without empty, . or .. parts"),
    (NodePath(), "~/", f"{_PATH}, below / and without empty, . or .. parts"),
    (NodePath(), "/srv/../etc", f"{_PATH}, below / and without empty, . or .. parts"),
    (NodePath(), "/srv//models", f"{_PATH}, below / and without empty, . or .. parts"),
    (NodePath(), "/srv/my models", f"{_PATH}, of letters, digits and . _ - + @ = / only"),
    (NodePath(), "/srv/a:b", f"{_PATH}, of letters, digits and . _ - + @ = / only"),
    (NodePath(), "/srv/$HOME", f"{_PATH}, of letters, digits and . _ - + @ = / only"),
    (NodePath(), 7, f"{_PATH}, not a whole number{_QUOTE}"),
    (Image(), "ghcr.io/entrpi/x:v2.3", f"{_IMAGE}; a tag can move"),
    (Image(), f"ghcr.io/entrpi/x@sha256:{D[:-1]}", f"{_IMAGE}; a tag can move"),
    (Image(), f"ghcr.io/Entrpi/x@sha256:{D}", f"{_IMAGE}; a tag can move"),
    (Image(), f"ghcr.io/x:v1@sha256:{D}", f"{_IMAGE}; a tag can move"),
    (Image(), "", f"{_IMAGE}; a tag can move"),
    (Pairs(), "A=1", 'must be a list of "KEY=VALUE", not text'),
    (Pairs(), ["A"], 'must be a list of "KEY=VALUE"; "A" is not'),
    (Pairs(), ["A B=1"], 'must be a list of "KEY=VALUE"; "A B=1" is not'),
    (Pairs(), ["A=1", "A=2"], "must name each key once; A is there twice"),
    (Pairs(), ["A=1\nB=2"], "must not contain line breaks or control characters"),
    (Pairs(), [1], f'must be a list of "KEY=VALUE", not a whole number{_QUOTE}'),
    (Size(), "32", "must be a size such as 32g or 512m"),
    (Size(), "0g", "must be a size such as 32g or 512m"),
    *((Revision(), text, _REVISION) for text in ("a..b", "/main", "main/", "a//b", "x.lock", "-x", "a b", "x" * 129)),
    (Revision(), 7, f"{_REVISION}, not a whole number{_QUOTE}"),
    *(
        (Endpoint(), text, _ENDPOINT)
        for text in (
            "huggingface.co",
            "ftp://huggingface.co",
            "https://",
            "https://me:secret@hub.example",
            "https://hub?x=1",
            "https://hub:0",
            "https://hub:65536",
            "https://hub//x",
            "https://hüb.example",
        )
    ),
    *((ControlPath(), text, "must be a file's path, such as sparkpair.lock") for text in (" ", "locks/", ".", "a/..")),
    *((Licences(), text, _LICENCES) for text in ("MIT", "cc by", "mit,,other", ",")),
]


@pytest.mark.parametrize(("kind", "value", "kept"), TAKEN, ids=lambda value: repr(value)[:50])
def test_taken(kind: Kind, value: object, kept: object) -> None:
    """What loses nothing is taken, and comes out with its own type."""
    parsed = kind.parse(value)
    assert parsed == kept
    assert type(parsed) is type(kept)


@pytest.mark.parametrize(("kind", "value", "message"), REFUSED, ids=lambda value: repr(value)[:50])
def test_refused(kind: Kind, value: object, message: str) -> None:
    """Everything else is refused with what it must be."""
    with pytest.raises(Refused) as refused:
        kind.parse(value)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    "kind", {type(kind): kind for kind, _, _ in TAKEN}.values(), ids=lambda kind: type(kind).__name__
)
def test_a_kind_says_what_it_allows(kind: Kind) -> None:
    """docs/knobs.md prints it."""
    assert kind.allowed.strip()


def test_a_password_in_an_address_is_not_shown() -> None:
    """A refusal quotes what was stated, and the report of a run is shown around."""
    assert shown("https://me:hf_secret@hub.example/x") == '"https://...@hub.example/x"'


class Mute:
    """An object that cannot say what it is, nor whether it is like another."""

    def __repr__(self) -> str:
        raise ValueError

    def __eq__(self, other: object) -> bool:
        raise ValueError

    def __hash__(self) -> int:
        raise ValueError


@pytest.mark.parametrize("knob", KNOBS)
@pytest.mark.parametrize(
    "value",
    [Mute(), 10**5000, -(10**5000), [10**5000], {"a": Mute()}, b"x", object],
    ids=lambda value: str(type(value)),
)
def test_whatever_is_stated_is_refused_in_words(knob: str, value: object) -> None:
    """By each knob and on one short line: group_data/ is Python, and may hold anything."""
    with pytest.raises(Refused):
        KNOBS[knob].parse(value)
    assert len(shown(value)) <= 80 and "\n" not in shown(value)
