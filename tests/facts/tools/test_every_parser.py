"""What holds of every parser: order, extra lines, output that was cut, garbage, nothing, and 10,000 odd texts."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from facts.tools.garbled import Garbled
from tests.facts.tools.samples import PARSERS, sample, texts

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "10000"))
CASES = [(name, one) for name, parser in PARSERS.items() for one in parser.samples]
GARBAGE = (
    "bash: tool: command not found",
    "\x00\x01\x02",
    "\ufffd\ufffd\ufffd",
    "{",
    "[",
    "[1]",
    '["a"]',
    "null",
    '{"Devices": 3}',
    "<html><body>502</body></html>",
    "a" * 10_000,
    "[" * 10_000,
    "{" * 2_000,
    '{"a":' * 5_000,
    "- " * 3_000,
    "&a [*a]",
    "network: &a {ethernets: *a}",
    "network:\n  ethernets: !!python/object:os.system {x: y}",
    "network:\n\tethernets:",
    "٣٣٣٣",
    "1e999",
    "=",
    ":::::",
    "[Match\nName=",
    "table inet filter {",
    "}",
    "Status: active",
    "hca_id:\thca",
    "CA 'x'\n\tPort 1:\n",
    "LISTEN",
    "-P INPUT",
    "### tuple ###",
)


def taken(name: str, text: str) -> object:
    """What a parser makes of it, or why it does not; any other exception is a fault."""
    try:
        return PARSERS[name].read(text)
    except Garbled as error:
        assert error.tool
        assert len(str(error)) < 400
        assert "\n" not in str(error)
        return error


@pytest.mark.parametrize(("name", "file"), CASES)
def test_a_sample_is_read(name: str, file: str) -> None:
    assert not isinstance(taken(name, sample(file)), Garbled)


@pytest.mark.parametrize("name", PARSERS)
def test_nothing_at_all(name: str) -> None:
    """Where a tool always says something, nothing is not "there is none"."""
    parser = PARSERS[name]
    for nothing in ("", "\n", "  \n\n"):
        assert isinstance(taken(name, nothing), Garbled) is not (parser.takes_nothing or parser.never)


@pytest.mark.parametrize("name", PARSERS)
def test_garbage(name: str) -> None:
    for text in GARBAGE:
        found = taken(name, text)
        assert not (PARSERS[name].never and isinstance(found, Garbled)), text


@pytest.mark.parametrize(("name", "file"), [case for case in CASES if PARSERS[case[0]].any_order])
def test_order_of_lines(name: str, file: str) -> None:
    """S01 and S02: the same state, in another order."""
    lines = sample(file).splitlines(keepends=True)
    wanted = taken(name, sample(file))
    for seed in range(5):
        mixed = list(lines)
        random.Random(seed).shuffle(mixed)
        assert taken(name, "".join(mixed)) == wanted


@pytest.mark.parametrize(("name", "file"), CASES)
def test_more_lines_than_wanted(name: str, file: str) -> None:
    text, wanted = sample(file), taken(name, sample(file))
    end = "" if text.endswith("\n") else "\n"
    for line in PARSERS[name].noise:
        before, after = taken(name, f"{line}\n{text}"), taken(name, f"{text}{end}{line}\n")
        if not PARSERS[name].never and name not in ("netplan", "ini"):
            assert before == wanted, line
        if name != "fwupdmgr":  # it warns before its document
            assert len(str(after)) >= len(str(wanted)) - 10, line


@pytest.mark.parametrize(("name", "file"), CASES)
def test_output_that_was_cut(name: str, file: str) -> None:
    """At every line, and within the last lines at every letter."""
    text = sample(file)
    ends = {place for place in range(len(text)) if text[place] == "\n"}
    ends |= set(range(max(0, len(text) - 60), len(text)))
    for end in sorted(ends)[-80:]:
        taken(name, text[:end])


@pytest.mark.parametrize("name", ["ip -j address", "rdma -j link", "docker info", "daemon.json", "fwupdmgr", "nft"])
def test_half_a_document_is_garbled(name: str) -> None:
    """Half of a table is not a smaller table."""
    text = sample(PARSERS[name].samples[0]).strip()
    for part in (0.2, 0.5, 0.9):
        assert isinstance(taken(name, text[: int(len(text) * part)]), Garbled)


def windows_line_ends() -> list[str]:
    return [name for name, parser in PARSERS.items() if parser.any_order and parser.samples]


@pytest.mark.parametrize("name", windows_line_ends())
def test_line_ends_of_a_terminal(name: str) -> None:
    text = sample(PARSERS[name].samples[0])
    assert taken(name, text.replace("\n", "\r\n")) == taken(name, text)


# Fuzz

ODD = (
    "", "0", "-1", "99999999999999999999999", "N/A", "[N/A]", "{", "}", "[", "]", ":", "=", ",", '"', "'", "\\", "\t",
    "\n", "\x00", "\u0663", "/", "..", "null", "true", "1e400", "\ufffd", "::", "=/", "0x", "&a", "*a",
)  # fmt: skip
WORDS = st.text(st.characters(codec="utf-8"), max_size=12)
EDITS = st.lists(
    st.tuples(st.integers(0, 10_000), st.integers(0, 40), st.one_of(st.sampled_from(ODD), WORDS)),
    min_size=1,
    max_size=6,
)


def changed(text: str, edits: list[tuple[int, int, str]]) -> str:
    """A sample with pieces cut out and others put in."""
    for place, length, piece in edits:
        place %= len(text) + 1
        text = text[:place] + piece + text[place + length :]
    return text


def odd(chance: random.Random, known: tuple[str, ...]) -> str:
    """A text of either kind that `any_text` has, for a hundredth of what hypothesis takes to find one."""
    text = chance.choice(known)[:4000]
    kind = chance.random()
    if kind < 0.1:
        return "".join(chr(chance.choice((chance.randrange(128), chance.randrange(0xD800)))) for _ in range(60))
    if kind < 0.3:
        lines = [*text.split("\n"), *chance.choices(ODD, k=3)]
        return "\n".join(chance.choices(lines, k=chance.randrange(1, 30)))
    edits = [
        (chance.randrange(10_000), int(40 * chance.random() ** 3), chance.choice(ODD))
        for _ in range(chance.randrange(1, 7))
    ]
    return changed(text, edits)


@pytest.mark.parametrize("name", PARSERS)
def test_a_hundred_odd_texts(name: str) -> None:
    """A quick look; the long one is marked slow."""
    chance, known = random.Random(name), texts(name)
    for _ in range(100):
        taken(name, odd(chance, known))


def any_text(name: str) -> st.SearchStrategy[str]:
    """Arbitrary texts, and samples that were damaged, shuffled or put together."""
    known = texts(name)
    lines = sorted({line for text in known for line in text.split("\n")})
    return st.one_of(
        st.text(max_size=200),
        st.builds(changed, st.sampled_from(known), EDITS),
        st.lists(st.one_of(st.sampled_from(lines), WORDS), max_size=12).map("\n".join),
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PARSERS)
def test_ten_thousand_odd_texts(name: str) -> None:
    """A tenth of them are hypothesis's, which shrinks what it finds."""

    @settings(max_examples=EXAMPLES // 10, suppress_health_check=list(HealthCheck))
    @given(any_text(name))
    def nothing_but_garbled(text: str) -> None:
        taken(name, text)

    chance, known = random.Random(f"{name}, long"), texts(name)
    for _ in range(EXAMPLES - EXAMPLES // 10):
        taken(name, odd(chance, known))
    nothing_but_garbled()
