"""verify.py run by Python itself becomes pyinfra, with what was typed."""

from __future__ import annotations

import os
import runpy
import sys
from typing import NoReturn

import pytest

from tests import repository

ROOT = repository.ROOT


class Became(Exception):
    """The process is another one now."""


@pytest.mark.parametrize(
    ("words", "wanted", "deep"),
    [
        ([], ["inventory.py"], False),
        (["--deep"], ["inventory.py"], True),
        (
            ["--deep", "--data", "max_num_seqs=8", "mine.py"],
            ["--data", "max_num_seqs=8", "mine.py"],
            True,
        ),
        (["-v", "lab/inventory.py"], ["-v", "lab/inventory.py"], False),
    ],
)
def test_it_becomes_pyinfra(words: list[str], wanted: list[str], deep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options first, then the inventory and this verb; --deep is for the verb, and never an option of pyinfra's."""
    became: list[tuple[list[str], dict[str, str]]] = []

    def execvpe(file: str, argv: list[str], environment: dict[str, str]) -> NoReturn:
        assert file == argv[0]
        became.append((argv, environment))
        raise Became

    monkeypatch.setattr(os, "execvpe", execvpe)
    monkeypatch.setattr(sys, "argv", ["verify.py", *words])
    monkeypatch.syspath_prepend(str(ROOT))
    with pytest.raises(Became):
        runpy.run_path(str(ROOT / "verify.py"), run_name="__main__")
    [(argv, environment)] = became
    assert os.path.basename(argv[0]) == "pyinfra"
    assert argv[1:] == ["--config", str(ROOT / "config.py"), *wanted, str(ROOT / "verify.py")]
    assert environment.get("SPARKPAIR_DEEP") == ("1" if deep else None)


def test_help_is_the_docstring(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing is started."""
    monkeypatch.setattr(sys, "argv", ["verify.py", "--deep", "--help"])
    monkeypatch.syspath_prepend(str(ROOT))
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "verify.py"), run_name="__main__")
    assert end.value.code == 0
    assert "python verify.py [--deep] [--data knob=value] [inventory.py]" in capsys.readouterr().out
