"""Weights and drafter on their way: who reaches the hub, and what each node's staging unit is told."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from weakref import WeakKeyDictionary

from pyinfra.api.inventory import Inventory
from pyinfra.context import ctx_inventory

from checks import content, pair
from checks.content import Plan
from checks.sourcing import Way
from facts.values import Unknown, UnknownFact
from node import errand
from node.errand import Errand
from operations.hub import CLIENT
from operations.reach import reach
from operations.run import Run
from spec.cluster import Node

SERVING = ("starting", "gating", "running")
"""Phases in which a rank may be using memory, disk and the first rail."""
_reached: WeakKeyDictionary[Inventory, Mapping[str, str | Unknown]] = WeakKeyDictionary()


def plans(run: Run) -> list[Plan]:
    """A plan for each content directory. The nodes are asked for their way to the hub only where it matters, and once
    in a run."""
    facts = run.all_seen()
    found = content.plans(run.cluster, facts)
    if not content.must_ask(found):
        return found
    return content.plans(run.cluster, facts, reached(run))


def reached(run: Run) -> Mapping[str, str | Unknown]:
    """What keeps each node from the hub, by node."""
    inventory = ctx_inventory.get()
    if inventory not in _reached:
        url = run.cluster.knobs.hub_endpoint
        _reached[inventory] = {name: reach(run, name, url) for name in run.hosts}
    return _reached[inventory]


def is_serving(run: Run) -> bool:
    """Whether the pair serves or is about to, as its keeper last said."""
    try:
        status = pair.status_of(run.seen(run.cluster.head))
    except UnknownFact:
        return True  # not known is not no: the pair is spared
    return status is not None and status.phase in SERVING


def errand_for(run: Run, node: Node, all_plans: list[Plan]) -> Errand:
    """What this node's staging unit is told: its directories, where it may take them from, and how fast."""
    knobs, serving = run.cluster.knobs, is_serving(run)
    mine = [plan for plan in all_plans if is_for_unit(plan, node)]
    online = any(plan.shares[node.name].hub for plan in mine)
    return Errand(
        owner=node.user,
        rate=knobs.serving_stage_rate_mib * 2**20 if serving else 0,
        stall_seconds=float(knobs.download_stall_seconds),
        hub=errand.Hub(knobs.hub_endpoint.rstrip("/"), CLIENT) if online else None,
        peers=tuple(_peer(node, peer, serving) for peer in run.cluster.peers(node)),
        sets=tuple(_set(plan, node) for plan in mine),
    )


def is_for_unit(plan: Plan, node: Node) -> bool:
    """Whether the staging unit has to do with this directory here; without a lock it has no files to hash by."""
    way = plan.way(node.name)
    return way is not Way.NOTHING and (way is not Way.HASH or plan.file_set is not None)


def work(wanted: Errand) -> str:
    """What tells one errand from another: 12 hex digits of all but the share that the node downloads, which shrinks as
    files arrive. A unit that is at this work is followed, and not begun again."""
    same = replace(wanted, sets=tuple(replace(one, fetch=(), wait=False) for one in wanted.sets))
    return hashlib.sha256(errand.text(same).encode()).hexdigest()[:12]


def _peer(node: Node, peer: Node, serving: bool) -> errand.Peer:
    """The rails to a peer. NCCL has the first one: while the pair serves, the copy leaves it alone if it can."""
    ways = [
        errand.Way(str(theirs.ip), ours.netdev, spare=not serving or number > 0)
        for number, (theirs, ours) in enumerate(zip(peer.rails, node.rails, strict=True))
    ]
    return errand.Peer(peer.name, tuple(ways))


def _set(plan: Plan, node: Node) -> errand.Set:
    share, locked = plan.shares[node.name], plan.file_set
    repositories = [(locked.repository, locked.revision), *locked.mirrors] if locked and share.hub else []
    return errand.Set(
        name=plan.name,
        directory=plan.paths[node.name],
        identity=plan.identity or "",
        files=plan.files,
        hub=tuple(repositories),
        fetch=share.fetch,
        wait=share.wait,
        bundle=share.bundle,
    )
