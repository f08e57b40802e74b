"""The declarations of the knobs hold together."""

# Messages stand here in one piece.
# ruff: noqa: E501

from __future__ import annotations

from typing import get_args

import pytest
from pydantic import ValidationError

from spec.kinds import (
    Address,
    Commit,
    ControlPath,
    Endpoint,
    Hours,
    Image,
    Licences,
    Name,
    Network,
    NodePath,
    Number,
    OneOf,
    Pairs,
    Prefix,
    Repository,
    Revision,
    Several,
    Size,
    Switch,
    Whole,
    WholeOr,
    Words,
)
from spec.knobs import KNOBS, SECTIONS, STACKS, Cost, Knob, Knobs
from spec.stacks import STACKS as BY_NAME

TYPES: dict[type, set[object]] = {
    Whole: {int},
    Number: {float},
    Switch: {bool},
    WholeOr: {int, str},
    Pairs: {tuple[str, ...]},
    **{kind: {str} for kind in (Name, OneOf, Words, NodePath, Image, Size, Address, Repository, Commit, Network)},
    **{kind: {str} for kind in (Revision, Endpoint, ControlPath, Licences, Hours, Prefix, Several)},
}
EVERY = pytest.mark.parametrize("knob", KNOBS.values(), ids=list(KNOBS))


@EVERY
def test_type_is_the_kinds(knob: Knob) -> None:
    """The Python type that code is checked against is what the kind gives."""
    annotation = Knobs.model_fields[knob.name].annotation
    union = {annotation} if annotation == tuple[str, ...] else set(get_args(annotation)) or {annotation}
    states = {type(None)} if knob.may_be_unset else set()
    empty = {member for member in union if get_args(member) == ("",)}
    assert union - states - empty == TYPES[type(knob.kind)]


@EVERY
def test_declaration_is_complete(knob: Knob) -> None:
    """One destination, a cost, a reason in whole sentences."""
    assert len([place for place in (knob.flag, knob.env, knob.becomes) if place]) == 1
    assert isinstance(knob.cost, Cost)
    assert knob.reason.endswith((".", "`."))
    assert len(knob.reason) > 20


@EVERY
def test_default_is_allowed(knob: Knob) -> None:
    """A default, ours or a stack's, is a value that the knob takes."""
    assert knob.parse(knob.default) == knob.default
    for stack in BY_NAME.values():
        if knob.name in stack.defaults:
            assert knob.may_be_unset, "a default that a stack gives can only fill what is unset"
            assert knob.parse(stack.defaults[knob.name]) == stack.defaults[knob.name]
            assert knob.only is None or knob.only.stack == stack.name


def test_each_flag_and_variable_has_one_knob() -> None:
    """No two knobs write the same thing."""
    flags = [knob.flag.name for knob in KNOBS.values() if knob.flag]
    variables = [name for knob in KNOBS.values() if knob.env for name in knob.env.names]
    assert len(set(flags)) == len(flags)
    assert len(set(variables)) == len(variables)
    assert all(flag.startswith("--") for flag in flags)


def test_names_agree() -> None:
    """Sections begin at knobs that exist, stacks that knobs name exist, and stacks give defaults for knobs only."""
    assert set(SECTIONS) <= set(KNOBS)
    assert next(iter(SECTIONS)) == next(iter(KNOBS))
    assert set(STACKS) == set(BY_NAME)
    assert all(knob.only is None or knob.only.stack in BY_NAME for knob in KNOBS.values())
    for stack in BY_NAME.values():
        assert set(stack.defaults) <= set(KNOBS)


def test_three_states() -> None:
    """Unset, empty and a value are three things, and the stack's default fills only the first."""
    stack = BY_NAME["vllm-exl3"]
    assert stack.effective(Knobs()).block_size == 2304
    assert stack.effective(Knobs(block_size="")).block_size == ""
    assert stack.effective(Knobs(block_size=64)).block_size == 64


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_num_batched_tokens", "", "cannot be empty, must be whole number, 1 to 131072; leave it out for the default"),
        ("kv_cache_memory_bytes", "", 'cannot be empty, must be whole number, 1000000 to 100000000000, or "auto"; leave it out for the default'),
        ("api_port", None, "must have a value; leave it out for the default (8000)"),
        ("max_num_seqs", "4", "must be a whole number, 1 to 256, not text"),
    ],
)  # fmt: skip
def test_the_model_speaks_our_words(name: str, value: object, message: str) -> None:
    """The pydantic model refuses with the same text as the kind."""
    with pytest.raises(ValidationError) as refused:
        Knobs.model_validate({name: value})
    assert [error["msg"] for error in refused.value.errors()] == [message]


def test_knobs_are_frozen_and_closed() -> None:
    """Nobody changes a setting after it was loaded, and nobody adds one."""
    with pytest.raises(ValidationError, match="frozen"):
        Knobs().api_port = 1  # type: ignore[misc]
    with pytest.raises(ValidationError, match="Extra inputs"):
        Knobs.model_validate({"max_len": 1})


@pytest.mark.parametrize(("stack", "expected"), [("vllm", ""), ("vllm-exl3", "391")])
def test_only_a_stack_that_knows_its_model_knows_the_answer(stack: str, expected: str) -> None:
    knobs = BY_NAME[stack].effective(Knobs())
    assert (knobs.smoke_expected, knobs.canary_expected) == (expected, expected)
