"""The pair as a whole: what its engine hash must be, what the keeper has accepted, what therefore is to be done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from checks import api_key, content
from facts.values import NodeFacts, Status, known
from spec.cluster import Cluster
from spec.objects import KEEPER_UNIT, secret_file
from spec.stacks import Secret


class Todo(Enum):
    """What the keeper is to be asked."""

    NOTHING = "nothing"
    START = "start"
    RESTART = "restart"


@dataclass(frozen=True)
class Accepted:
    """What the keeper holds the pair to, from its own word or, when it is silent, from what it keeps."""

    engine: str | None
    desired: str
    phase: str


def accepted(head: NodeFacts) -> Accepted:
    """The keeper's view. Raises UnknownFact."""
    status = status_of(head)
    if status is not None:
        return Accepted(status.accepted, status.desired, status.phase)
    kept = known(head.kept, "what the keeper keeps")
    return Accepted(kept[0], kept[1], "silent") if kept else Accepted(None, "run", "empty")


def status_of(head: NodeFacts) -> Status | None:
    """What the keeper published, if it is there to stand by it. Raises UnknownFact."""
    unit = known(head.units, "its units").get(KEEPER_UNIT)
    return known(head.status, "the keeper's state") if unit is not None and unit.is_active else None


def todo(now: Accepted, wanted: str | None) -> Todo:
    """What to ask, given the engine hash that is wanted (None: not known before the weights have been hashed and
    the API key was made)."""
    if now.desired == "stop":
        return Todo.NOTHING
    if now.engine is None:
        return Todo.START
    if wanted == now.engine:
        return Todo.START if now.phase in ("resting", "empty") else Todo.NOTHING
    return Todo.START if now.phase in ("resting", "empty") else Todo.RESTART


def wanted_identities(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> list[list[str]] | None:
    """Identities of what the ranks will depend on besides their texts: of the content as it will be (a node that is to
    get a copy will hold what its source holds), then of the secrets. None while one of them is not known yet."""
    plans = content.plans(cluster, facts)
    rows = []
    for node in cluster.nodes:
        row = []
        for plan, _ in zip(plans, cluster.launch(node).content, strict=True):
            if plan.identity is None:
                return None
            row.append(plan.identity)
        for _, value in cluster.launch(node).env:
            if isinstance(value, Secret):
                identity = api_key.identity(facts[node.name], secret_file(value.name))
                if identity is None:
                    return None
                row.append(identity)
        rows.append(row)
    return rows
