"""A check: one question about the nodes, asked alike by preflight, verify and doctor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from checks import access
from checks.content import Reached
from checks.verdict import Verdict
from facts.talk import Talk
from facts.values import NodeFacts
from spec.cluster import Cluster, Node


class When(Enum):
    """Who asks."""

    STAGING = "before files and image are brought to the nodes"
    PREFLIGHT = "before a deploy changes anything"
    VERIFY = "whether the pair is as it should be"
    DOCTOR = "everything that there is to ask"


ALWAYS = frozenset(When)
BEFORE_AND_DOCTOR = frozenset({When.PREFLIGHT, When.DOCTOR})
DOCTOR_ALONE = frozenset({When.DOCTOR})


@dataclass(frozen=True)
class Wanted:
    """What must be installed and must run, as digests: by node the files, the programs by path, all programs together,
    the keeper's settings, and the launch (None while the weights have no identity)."""

    files: Mapping[str, Mapping[str, str]]
    programs: Mapping[str, str]
    code: str
    service: str
    engine: str | None


@dataclass(frozen=True)
class Sight:
    """What was seen of the whole pair. `talk` is what the nodes heard of each other on the rails: None where it was not
    asked. `starts`: whether the pair may be started, or started anew, right after."""

    cluster: Cluster
    facts: Mapping[str, NodeFacts]
    talk: Talk | None = None
    starts: bool = True
    reached: Reached | None = None
    """What keeps each node from the hub; None where it was not asked."""
    wanted: Wanted | None = None
    """None before a deploy: what is missing then, it brings."""

    def usable(self) -> list[tuple[str, NodeFacts]]:
        """The nodes that can be looked at, by name, in rank order."""
        seen = [(node.name, self.facts[node.name]) for node in self.cluster.nodes]
        return [(name, facts) for name, facts in seen if access.usable(facts)]

    @property
    def whole(self) -> bool:
        """Whether every node can be looked at, so that what spans them can be judged."""
        return all(access.usable(facts) for facts in self.facts.values())


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


def each(judge: Callable[[Sight, Node, NodeFacts], Iterable[Verdict]]) -> Callable[[Sight], Iterator[Verdict]]:
    """A question about each node that can be looked at."""

    def judged(sight: Sight) -> Iterator[Verdict]:
        for name, facts in sight.usable():
            yield from judge(sight, sight.cluster.node(name), facts)

    return judged


def together(judge: Callable[[Sight], Iterable[Verdict]]) -> Callable[[Sight], Iterable[Verdict]]:
    """A question that spans the nodes: not judged without one of them, which is said by itself."""
    return lambda sight: judge(sight) if sight.whole else ()


def once(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Each verdict once, in order."""
    return list(dict.fromkeys(replace(verdict) for verdict in verdicts))
