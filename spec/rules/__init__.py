"""The cross rules, by id, and what they say of settings."""

from __future__ import annotations

from collections.abc import Collection

from spec.cluster import Settings
from spec.rules import exl3, general, nodes, pool, staging
from spec.rules.frame import RULES, Rule, Severity, broken

__all__ = ["RULES", "Rule", "Severity", "exl3", "general", "nodes", "pool", "refusals", "staging", "warnings"]


def refusals(settings: Settings, refused: Collection[str] = ()) -> list[str]:
    """A line for each cross rule that forbids the settings. `refused` names knobs whose stated value is refused
    already; they stand unset in the settings."""
    return broken(settings, Severity.ERROR, refused)


def warnings(settings: Settings) -> list[str]:
    """A line for each cross rule that has something to say of settings that are not forbidden."""
    return broken(settings, Severity.WARNING)
