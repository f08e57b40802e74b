"""Every field report has an answer here, and a test that holds it; its page is current."""

from __future__ import annotations

import pytest

from tests import repository
from tests.reports import FAMILIES, PAGE, Report, asked, marked, page, reports


def test_the_page_is_current() -> None:
    assert (repository.text(PAGE) or "") == page(), "run: python -m tests.reports"


@pytest.mark.parametrize("report", reports(), ids=lambda report: report.id)
def test_each_has_an_answer_and_a_test(report: Report) -> None:
    """Or a reason why none can show it."""
    assert report.symptom and report.handled
    assert marked().get(report.id) or report.unseen, f"no test is marked with {report.id}"


def test_nobody_answers_what_nobody_reported() -> None:
    known = {report.id for report in reports()}
    assert sorted({*marked(), *asked()} - known) == []
    assert {report.id.partition("-")[0] for report in reports()} == set(FAMILIES)
