"""The image on its way: who reaches its registry, who has it in a bundle, and what follows for each node."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from gevent.lock import RLock
from pyinfra.api.inventory import Inventory
from pyinfra.context import ctx_inventory

from checks import access, image
from checks.image import Plan
from checks.verdict import Verdict
from facts.images import BundleImage
from facts.values import Unknown
from node import oci
from operations.reach import reach
from operations.run import Run

_plans: WeakKeyDictionary[Inventory, Plan] = WeakKeyDictionary()
_turn: Any = RLock()


def plan(run: Run) -> Plan:
    """How each node gets the image: found out once in a run, before anything is changed, so that a node that has it
    sooner than the other changes nothing for that one."""
    with _turn:
        inventory = ctx_inventory.get()
        if inventory not in _plans:
            _plans[inventory] = _plan(run)
        return _plans[inventory]


def refusals(run: Run) -> list[Verdict]:
    """What keeps the image from the nodes."""
    facts = run.all_seen()
    if not all(access.usable(seen) for seen in facts.values()):
        return []  # refused already
    found = plan(run)
    return list(found.refusals) or list(image.room(run.cluster, found, facts))


def _plan(run: Run) -> Plan:
    facts = run.all_seen()
    if not image.missing(run.cluster, facts):
        return image.plan(run.cluster, facts, {}, {})
    reference = oci.parse(run.cluster.image)
    layouts = {node.name: place for node in run.cluster.nodes if (place := run.cluster.bundle(node, "image"))}
    bundles = {name: _bundle(run, name, layout, reference.digest) for name, layout in layouts.items()}
    host = oci.HUB_HOST if reference.registry == oci.DOCKER_HUB else reference.registry
    reached = {name: reach(run, name, f"https://{host}") for name in run.hosts}
    return image.plan(run.cluster, facts, reached, bundles)


def _bundle(run: Run, name: str, layout: str, digest: str) -> str | Unknown:
    found: str | Unknown = run.hosts[name].get_fact(
        BundleImage, layout=layout, digest=digest, _sudo=True, _ignore_errors=True
    )
    return found
