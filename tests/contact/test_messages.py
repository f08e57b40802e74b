"""Whatever first contact refuses stands in docs/troubleshooting.md, by its first line."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import repository
from tests.test_docs import _messages
from tests.test_messages import _shape, _text

FILES = [
    Path("discover.py"),
    *sorted(path.relative_to(repository.ROOT) for path in (repository.ROOT / "contact").glob("*.py")),
]


def _refusals(path: Path) -> Iterator[tuple[int, str]]:
    """The first line of each refusal, as far as it is written there."""
    for found in ast.walk(ast.parse((repository.ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(found, ast.Call) and isinstance(found.func, ast.Name) and found.func.id == "Refused":
            [lines] = found.args
            first = lines.elts[0] if isinstance(lines, ast.List) and lines.elts else None
            text = _text(first.left if isinstance(first, ast.BinOp) else first) if first is not None else None
            if text is not None:
                yield found.lineno, text


@pytest.mark.parametrize("path", FILES, ids=str)
def test_each_refusal_is_explained(path: Path) -> None:
    """As symptom, cause and fix."""
    explained = [_shape(message) for message in _messages()]
    missing = [
        f"{path}:{line}: {text}" for line, text in _refusals(path) if not any(shape.search(text) for shape in explained)
    ]
    assert not missing, "not in docs/troubleshooting.md:\n" + "\n".join(missing)


def test_refusals_are_seen() -> None:
    """The test above looks at something."""
    assert sum(len([*_refusals(path)]) for path in FILES) > 25
