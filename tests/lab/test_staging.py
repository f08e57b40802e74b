"""Staging on the simulated pair, in short: the way itself, a second run, a repair, and where the token is seen. What
faults do to it is a table of `make chaos`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.hub_service import Remote
from tests.lab import chaos_staging, staging

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("far_side"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def far_side(lab: None) -> Iterator[None]:
    """A hub without faults, and afterwards hosts without what was staged."""
    assert Remote().faults == [], "somebody left faults at the hub: python3 -m lab down, then up"
    yield
    for errand in (chaos_staging.MIDDLE, chaos_staging.GATED):
        staging.forget(errand)


def test_each_host_downloads_its_half_and_gets_the_rest_over_the_rails() -> None:
    assert chaos_staging.each_its_half().startswith("100.0 MiB sent for 100.0")


def test_a_second_run_plans_nothing_and_reads_only_metadata() -> None:
    assert chaos_staging.second_run().startswith("nothing planned")


def test_what_is_damaged_on_disk_is_brought_again_alone() -> None:
    assert "alone" in chaos_staging.damaged_on_disk()


def test_the_token_is_seen_by_the_hub_and_nowhere_else() -> None:
    assert "nowhere" in chaos_staging.token_nowhere()
