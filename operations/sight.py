"""What verify and doctor judge: the facts of all nodes, and the digests of what is wanted there."""

from __future__ import annotations

import hashlib

from checks import access, pair
from checks.check import Sight, Wanted
from facts.values import UnknownFact
from operations import wanted
from operations.run import Run


def sight(run: Run) -> Sight:
    """The whole pair. Unusable nodes are in it, and none is asked there."""
    facts = run.all_seen()
    return Sight(
        cluster=run.cluster,
        facts=facts,
        starts=starts(run),
        # Without rails there is no launch that could be wanted; that there are none is said by itself.
        wanted=_wanted(run) if _has_rails(run) else None,
        talk=run.talk,
    )


def starts(run: Run) -> bool:
    """Whether a deploy would start the pair, or start it anew. What is not known may well do that."""
    facts = run.all_seen()
    try:
        now = pair.accepted(facts[run.cluster.head.name])
        # Without one of the nodes the wanted hash is not known, and it is refused in any case.
        is_known = _has_rails(run) and all(access.usable(seen) for seen in facts.values())
        engine = wanted.engine(run) if is_known else now.engine
        return pair.todo(now, engine) is not pair.Todo.NOTHING
    except UnknownFact:
        return True


def _has_rails(run: Run) -> bool:
    return all(node.rails for node in run.cluster.nodes)


def _wanted(run: Run) -> Wanted:
    return Wanted(
        files={node.name: wanted.files(run, node) for node in run.cluster.nodes},
        programs={path: hashlib.sha256(data).hexdigest() for path, data in run.programs.items()},
        code=run.programs_hash,
        service=wanted.service(run),
        engine=_engine(run),
    )


def _engine(run: Run) -> str | None:
    """None where a fact that it needs is unknown as well: whoever needs that fact says so. Without one of the nodes the
    wanted launch is not known: the one that the keeper holds the pair to stands for it."""
    facts = run.all_seen()
    try:
        if all(access.usable(seen) for seen in facts.values()):
            return wanted.engine(run)
        return pair.accepted(facts[run.cluster.head.name]).engine
    except UnknownFact:
        return None
