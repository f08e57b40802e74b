"""All checks there are. A module of checks has a tuple CHECKS; here they stand in the order in which doctor asks."""

from __future__ import annotations

from checks import after, before
from checks.check import Check

CHECKS: tuple[Check, ...] = (
    *before.CHECKS,
    *after.CHECKS,
)
