"""Lines for the journal: systemd reads the level from the prefix."""

from __future__ import annotations

import os
import sys

LEVELS = {"error": 3, "warning": 4, "notice": 5, "info": 6}


def log(text: str, level: str = "info") -> None:
    """One line on stderr; without the prefix for a person at a terminal."""
    prefix = f"<{LEVELS[level]}>" if "JOURNAL_STREAM" in os.environ else ""
    sys.stderr.write(f"{prefix}{text}\n")
    sys.stderr.flush()
