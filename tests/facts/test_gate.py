"""The file of the rails' last measurement: read as it was written, and never believed when it is of another form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facts import gate
from facts.gate import BANDWIDTH, LATENCY, Collective, Gate, Measured
from facts.values import parse
from tests.plan.world import Document
from tests.plan.world import converged as world
from tests.unit import pair

RESULT = Gate(
    at="2026-12-01T10:00:00+0000",
    of={"kernel of spark-a": "6.17.0-1031-nvidia"},
    measured=(
        Measured(BANDWIDTH, (0, 1), "spark-a", "spark-b", "ib_write_bw", 161.2, None, (80.5, 80.7), 4096),
        Measured(LATENCY, (0,), "spark-a", "spark-b", "ping", usec=80.0, instead_of="perftest is not installed"),
    ),
    collective=Collective("nccl", "IB", 11.2, "", {"NCCL_IB_USE_INLINE": "1"}, "image@sha256:1"),
)


def head(document: object) -> Document:
    found = world(pair.cluster(dict(pair.UPSTREAM))).head
    found["documents"][gate.PATH] = document
    return found


def test_what_was_written_is_read() -> None:
    """Through the probe's answer; without a file there is nothing."""
    assert parse(head({"json": json.loads(gate.text(RESULT))})).gate == RESULT
    assert parse(head(None)).gate is None


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"at": 5},
        {"of": []},
        {"measured": {}},
        {"measured": [5]},
        {"measured": [{"kind": "bandwidth"}]},
        {"collective": {"backend": "nccl"}},
    ],
    ids=str,
)
def test_another_form_is_unknown(change: dict[str, Any]) -> None:
    """A part of a node that cannot be read leaves the others standing."""
    seen = parse(head({"json": {**json.loads(gate.text(RESULT)), **change}}))
    assert "cannot be read" in str(seen.gate)
    assert seen.sudo and seen.hostname == parse(head(None)).hostname


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60)
@given(st.sampled_from(["at", "of", "measured", "collective"]), JSON, st.integers(0, 1), st.data())
def test_any_json_is_a_gate_or_refused(part: str, value: Any, row: int, data: st.DataObject) -> None:
    """By one of the three errors that make it Unknown."""
    document = json.loads(gate.text(RESULT))
    if part == "measured" and data.draw(st.booleans()):
        document["measured"][row][data.draw(st.sampled_from(sorted(document["measured"][row])))] = value
    else:
        document[part] = value
    try:
        gate.read(document)
    except (ValueError, KeyError, TypeError):
        pass
