"""A check: one question about the nodes, asked alike by preflight, verify and doctor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from checks import access
from checks.verdict import Verdict
from facts.talk import Talk
from facts.values import NodeFacts, Unknown
from spec.cluster import Cluster


class When(Enum):
    """Who asks."""

    PREFLIGHT = "before a deploy changes anything"
    VERIFY = "whether the pair is as it should be"
    DOCTOR = "everything that there is to ask"


ALWAYS = frozenset(When)
BEFORE_AND_DOCTOR = frozenset({When.PREFLIGHT, When.DOCTOR})
DOCTOR_ALONE = frozenset({When.DOCTOR})


@dataclass(frozen=True)
class Sight:
    """What was seen of the whole pair. `talk` is what the nodes heard of each other on the rails: None where it was not
    asked. `starts`: whether the pair may be started, or started anew, right after."""

    cluster: Cluster
    facts: Mapping[str, NodeFacts]
    talk: Talk | Unknown | None = None
    starts: bool = True

    def usable(self) -> list[tuple[str, NodeFacts]]:
        """The nodes that can be looked at, by name, in rank order."""
        seen = [(node.name, self.facts[node.name]) for node in self.cluster.nodes]
        return [(name, facts) for name, facts in seen if access.usable(facts)]


@dataclass(frozen=True)
class Check:
    """A question with a name such as "rails.mtu", and the field reports that it answers."""

    name: str
    asks: str
    judge: Callable[[Sight], Iterable[Verdict]]
    when: frozenset[When]
    reports: tuple[str, ...] = ()


def run(checks: Sequence[Check], when: When, sight: Sight) -> Iterator[tuple[Check, Verdict]]:
    """The verdicts of all checks of that occasion. One that fails by a fault of ours is unknown, and named."""
    for check in checks:
        if when not in check.when:
            continue
        try:
            for verdict in check.judge(sight):
                yield check, verdict
        except Exception as error:  # a doctor that dies of one question answers none
            if when is not When.DOCTOR:
                raise
            text = f"{check.name} could not be judged: {type(error).__name__}: {error}"
            yield check, Verdict("", text, None, "report this as a fault of Sparkpair")


def once(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Each verdict once, in order."""
    return list(dict.fromkeys(replace(verdict) for verdict in verdicts))
