"""Lines for the journal: systemd reads the level from the prefix."""

from __future__ import annotations

import sys

LEVELS = {"error": 3, "warning": 4, "notice": 5, "info": 6}


def log(text: str, level: str = "info") -> None:
    """One line on stderr."""
    sys.stderr.write(f"<{LEVELS[level]}>{text}\n")
    sys.stderr.flush()
