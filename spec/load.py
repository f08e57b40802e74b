"""pyinfra's data -> Settings, or one DeployError with every refusal in it. The only file in spec/ that knows pyinfra."""

from __future__ import annotations

from pyinfra.api.exceptions import DeployError
from pyinfra.api.inventory import Inventory

from spec.cluster import Settings


def settings_from_pyinfra(inventory: Inventory) -> Settings:
    """The settings of this run. Raises DeployError: "Settings refused; no node was changed." and a line per refusal."""
    raise DeployError("Settings refused; no node was changed.\n  not yet")
