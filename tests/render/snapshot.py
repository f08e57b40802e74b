"""Whole files compared with stored ones; UPDATE_SNAPSHOTS=1 in the environment writes them (then read the diff)."""

from __future__ import annotations

import os
from pathlib import Path

DIRECTORY = Path(__file__).parent / "snapshots"


def check(name: str, text: str) -> None:
    """The text is the stored one, to the last byte."""
    path = DIRECTORY / name
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"{path} is not there; UPDATE_SNAPSHOTS=1 writes it"
    assert text == path.read_text(encoding="utf-8")
