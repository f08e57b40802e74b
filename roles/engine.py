"""Engine: what the ranks are to run, in stable places. The keeper takes it from there."""

from __future__ import annotations

from pyinfra.api.deploy import deploy

from operations.files import install_file
from operations.run import Run
from spec import objects
from spec.render import rank_text


@deploy("Engine")
def engine(run: Run) -> None:
    """The wanted launch of this node's rank; its difference is what --diff shows."""
    install_file(
        name="Install the wanted launch",
        run=run,
        path=objects.RANK_FILE,
        text=rank_text(run.cluster, run.node),
        mode="600",
    )
