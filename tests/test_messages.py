"""Whatever the keeper, the agent and the command can say of a fault stands in docs/troubleshooting.md.

Mechanically: every text of three words or more in the programs of the list below is looked for on the page, by the
words between the parts that differ. Left out are docstrings, what is logged as information, the help of the command,
and the few texts named here with the reason why they need no row.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.signatures import SIGNATURES
from tests import repository
from tests.test_docs import _messages, _read

PROGRAMS = (
    "agent", "cli", "decide", "describe", "door", "gates", "handover", "health", "keeper", "link", "memory", "probe",
    "recorder", "store",
)  # fmt: skip

NO_FAULT = {
    # What was asked for, or is under way.
    "stopped on purpose",
    "the head was booted",
    "the configuration changed",
    "deployed again after resting",
    "the API is up; its gates are asked",
    "next start in … s",
    "… requests, no progress",  # why a canary is sent
    "warm-up requested",
    "taken back by the operator",
    "going back to launch …",
    "back to launch …",
    "dropped the page cache: … were cached, … are; … were free, … are",
    # Lines of `sparkpair status`, `history` and `version`.
    "starts …, of which answered …; failures …; canaries …",
    "gates, asked last: …",
    "rank …, last lines:",
    "passed its gates",
    "has not passed its gates",
    "the last that passed its gates",
    "none has passed its gates yet",
    ", rail without carrier",
    "exited with code …",
    "went back from … to … …: …",
    "rejected: … more, told by sparkpair status --json",
    "release … of its stack",
    "of no release that is known",
    "which image runs is not known: …",
    "which image runs is told to root: sudo sparkpair version",
    "…; none is told of",
    "(no line of this start)",
    "look it up in …",
    # Said with the sentence that is on the page, or inside of it.
    "Docker has not answered for … s",
    "could not start: …",
    "…: its GPU is …",
    "that begins with …",
    "to go back to",
    "no state was published",
    "it hung up",
    "it has no …",
    "not connected yet",
    "the connection ended",
    "the connection was refused",
    "nobody waits for the answer any more",
    "refused without a reason",  # a fault of ours
    # A word on a command line, refused with what it must be.
    "keeper takes no arguments",
    "agent takes no arguments",
    "… is not 64 hex digits",
    "… is not 4 to 64 hex digits",
    "… is not a number of lines from 1 to …",
    "… is not a positive number of seconds",
}


_NO_PROSE = ("exit codes:", "^", "NVRM", '"GET ')
"""What the help says, and patterns."""


def _text(node: ast.AST) -> str | None:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _silent(node: ast.AST) -> bool:
    """What no operator reads as a message: docstrings, the help, information for the journal."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.FunctionDef):
        return node.name == "_parser"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "log":
        level = node.args[1] if len(node.args) > 1 else None
        return level is None or (isinstance(level, ast.Constant) and level.value in ("info", "notice"))
    return False


def _prose(node: ast.AST) -> Iterator[tuple[int, str]]:
    if _silent(node):
        return
    text = _text(node)
    if text is not None:
        if " " in text and not text.startswith(_NO_PROSE) and len(re.findall(r"[A-Za-z]{2,}", text)) >= 3:
            yield getattr(node, "lineno", 0), text
        return
    for child in ast.iter_child_nodes(node):
        yield from _prose(child)


def _said_by(program: str) -> Iterator[tuple[int, str]]:
    tree = ast.parse(Path(repository.ROOT, "node", f"{program}.py").read_text())
    if program == "gates":  # the rest of it are the texts that the model is asked
        for found in ast.walk(tree):
            if isinstance(found, ast.Raise):
                yield from _prose(found)
    elif program == "health":  # its tables are on docs/signatures.md
        yield from ((line, text) for line, text in _prose(tree) if "…" in text)
    else:
        yield from _prose(tree)


def _shape(message: str) -> re.Pattern[str]:
    """What a text must hold to be explained by a message of the page: all its words in their order, or the longest."""
    message = re.sub(r"^(waiting|backoff|resting): ", "", message)  # the phase, which stands before a reason
    pieces = [re.escape(piece.strip(" ;:,().")) for piece in message.split("…")]
    long = [piece for piece in pieces if len(piece) >= 15]
    return re.compile("|".join([".*".join(pieces) if len("".join(pieces)) >= 8 else "(?!)", *long]), re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_message_is_explained(program: str) -> None:
    """As symptom, cause and fix."""
    explained = [_shape(message) for message in _messages()]
    missing = [
        f"node/{program}.py:{line}: {text}"
        for line, text in _said_by(program)
        if text not in NO_FAULT and not any(shape.search(text) for shape in explained)
    ]
    assert not missing, "not in docs/troubleshooting.md:\n" + "\n".join(missing)


def test_no_exception_is_out_of_date() -> None:
    """A text that nothing says any more needs no exception."""
    said = {text for program in PROGRAMS for _, text in _said_by(program)}
    assert said >= NO_FAULT, sorted(NO_FAULT - said)


def test_what_an_engine_says_has_its_page() -> None:
    """The table of signatures is the part of the page that is generated."""
    assert "(signatures.md)" in _read(Path("docs/troubleshooting.md"))
    page = _read(Path("docs/signatures.md"))
    assert [item.name for item in SIGNATURES if item.verdict not in page or item.fix not in page] == []
