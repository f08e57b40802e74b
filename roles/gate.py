"""Gate of the rails: they carry what they should before the pair is started over them."""

from __future__ import annotations

from pyinfra.api.deploy import deploy

from operations.gate import measure_rails
from operations.run import Run


@deploy("Fabric")
def gate(run: Run) -> None:
    """With require_fabric_gate, and where no result holds for the rails as they are."""
    measure_rails(name="Measure the rails", run=run)
