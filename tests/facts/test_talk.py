"""What a node answers of a talk: whole, damaged, with noise before it, or not at all."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facts.talk import Heard, Path, Question, Said, Way, command, from_output

ANSWER = {"heard": [["a0", "spark-b", "b0"]], "paths": [["a0", "10.200.0.2", "", "refused"]], "trouble": ""}
LINE = json.dumps(ANSWER)


def test_an_answer_is_read() -> None:
    wanted = Said((Heard("a0", "spark-b", "b0"),), (Path("a0", "10.200.0.2", "", "refused"),))
    assert from_output([LINE]) == wanted
    assert from_output(["Welcome to DGX OS", LINE, "logout"]) == wanted


@pytest.mark.parametrize(
    ("output", "trouble"),
    [
        ([], "it did not answer"),
        (["sudo: a password is required"], "it answered 'sudo: a password is required'"),
        ([LINE[:-5]], f"its answer is damaged: {LINE[:80]!r}"),
        (['{"heard": 3, "paths": [], "trouble": ""}'], 'its answer is damaged: \'{"heard": 3, "paths": [], '),
        (['{"heard": [["a"]], "paths": [], "trouble": ""}'], "its answer is damaged: "),
        (["{}"], "its answer is damaged: '{}'"),
    ],
)
def test_what_is_no_answer_is_the_trouble(output: list[str], trouble: str) -> None:
    found = from_output(output)
    assert (found.heard, found.paths) == ((), ())
    assert found.trouble.startswith(trouble)


@settings(max_examples=100)
@given(st.text(), st.integers(0, len(LINE)), st.text(max_size=5))
def test_no_output_is_a_fault_of_ours(text: str, at: int, put: str) -> None:
    """Arbitrary text, and a real answer with something of it replaced."""
    from_output(text.splitlines())
    from_output((LINE[:at] + put + LINE[at + len(put) :]).splitlines())


def test_the_question_is_one_argument() -> None:
    question = Question(
        "spark-a", "n", ("spark-a", "spark-b"), ("a'0",), (Way("a'0", "10.0.0.1", "spark-b", "b", 9000),)
    )
    line = command(question.text()).get_raw_value()
    assert line.startswith(": sparkpair-talk; run() { $1 /usr/bin/python3 -ISB -c ")
    assert line.endswith('; }; if [ "$(id -u)" = 0 ]; then run ""; else run "sudo -n"; fi 2>&1; true')
    assert json.loads(question.text())["paths"][0]["mtu"] == 9000
