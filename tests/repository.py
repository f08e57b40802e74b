"""What the checkout holds, for the tests that read it as text."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_NOT_OURS = {".git", ".venv", ".lab", "build", "dist", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}


@cache
def files() -> tuple[Path, ...]:
    """Every file of the checkout that is or may come under version control, relative to the root."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        found = [Path(name) for name in listed.stdout.split("\0") if name]
    else:  # an archive without its history
        found = [path.relative_to(ROOT) for path in ROOT.rglob("*")]
        found = [path for path in found if not _NOT_OURS.intersection(path.parts)]
    return tuple(sorted(path for path in set(found) if (ROOT / path).is_file()))


@cache
def text(path: Path) -> str | None:
    """The file's text, or nothing for a file that is not text."""
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def python_files() -> tuple[Path, ...]:
    """Every Python module of the checkout."""
    return tuple(path for path in files() if path.suffix == ".py")
