"""What a preset says of itself in words holds for what it sets."""

from __future__ import annotations

from spec.capacity import effective, estimate
from spec.presets import values_of


def _requests(**values: object) -> float:
    capacity = estimate(effective(values))
    assert capacity is not None
    return capacity.full_requests


def test_rooms_are_compared_at_one_length() -> None:
    """A pool's tokens grow with max_model_len while its memory stays the same."""
    assert int(_requests(max_model_len=131_072)) == 5
    assert int(_requests(**values_of("many-agents"))) == 13
    assert int(_requests(**values_of("unquantized-kv"))) == 3
    assert round(_requests(**values_of("more-context")) / _requests(), 2) == 1.24
    assert round(_requests(**values_of("long-documents")), 1) == 1.9
