"""What each node holds that may go, found out once in each phase of a run."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from pyinfra import logger
from pyinfra.api.inventory import Inventory
from pyinfra.context import ctx_inventory

from checks import leftovers
from checks.content import amount
from facts.leftovers import Holdings, Leftovers
from facts.values import item, known
from operations import staging
from operations.core import is_executing
from operations.run import Run
from spec import objects
from spec.cluster import Node

LAUNCHES = (objects.RANK_FILE, f"{objects.VAR}/generations/*/rank*.json")
_seen: WeakKeyDictionary[Inventory, tuple[bool, Mapping[str, Leftovers]]] = WeakKeyDictionary()


def holdings(run: Run) -> Mapping[str, Leftovers]:
    """What every node holds, looked at anew once the plan is carried out: what it waited for may be gone by then, or
    needed. Raises UnknownFact: what one node's launches need keeps images on all."""
    inventory = ctx_inventory.get()
    seen = _seen.get(inventory)
    if seen is None or seen[0] != is_executing():
        found = {
            node.name: known(
                run.hosts[node.name].get_fact(
                    Holdings, launches=LAUNCHES, store=objects.REGISTRY_STORE, _sudo=True, _ignore_errors=True
                ),
                f"what Docker holds on {node.name}",
            )
            for node in run.cluster.nodes
        }
        seen = _seen[inventory] = (is_executing(), found)
    return seen[1]


def parts(run: Run, node: Node) -> dict[str, int]:
    """Directories of parts that nothing will go on with, with their bytes."""
    return leftovers.parts(run.seen(node), staging.plans(run), node)


def store(run: Run, node: Node) -> int | None:
    """Bytes of a registry's store that no registry uses; None if there is none."""
    in_use = item(run.seen(node).units, objects.REGISTRY_UNIT, "its units").is_active
    return None if in_use else holdings(run)[node.name].store


def tell(run: Run) -> None:
    """A line for each thing that would go."""
    total = 0
    for node in run.cluster.nodes:
        for image in leftovers.images(run.cluster, holdings(run), node):
            logger.info(f"    {node.name}: image {', '.join(image.names)}: up to {amount(image.size)}")
            total += image.size
        kept = store(run, node)
        if kept is not None:
            logger.info(f"    {node.name}: {objects.REGISTRY_STORE}: {amount(kept)}")
        for path, size in parts(run, node).items():
            logger.info(f"    {node.name}: {path}: {amount(size)}")
            total += size
        total += kept or 0
    logger.info(f"    In all up to {amount(total)}; layers that other images share stay." if total else "    Nothing.")
