"""Weights and drafter: where they are whole, where they must go, and whether all nodes have the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from checks.verdict import Verdict, broken, unknown
from facts.values import Content, NodeFacts, Unknown
from spec.cluster import Cluster, Node


class Step(Enum):
    """What a node needs for one directory."""

    NOTHING = "nothing"
    HASH = "its manifest made"
    COPY = "a copy"


@dataclass(frozen=True)
class Plan:
    """One content directory over all nodes. Where there are refusals, the steps mean nothing."""

    name: str
    paths: Mapping[str, str]
    source: str | None
    steps: Mapping[str, Step]
    identity: str | None
    bytes_missing: Mapping[str, int]
    refusals: tuple[Verdict, ...]


def plans(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> list[Plan]:
    """A plan for each directory that the engine reads."""
    by_node = {node.name: cluster.launch(node).content for node in cluster.nodes}
    count = len(by_node[cluster.head.name])
    return [_plan(cluster, facts, {name: paths[index] for name, paths in by_node.items()}) for index in range(count)]


def identities(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> list[list[str]] | None:
    """The identity of each rank's directories, in rank order; None as long as one of them is not known."""
    found = []
    for node in cluster.nodes:
        row = []
        for path in cluster.launch(node).content:
            seen = find(facts[node.name], path)
            if isinstance(seen, Unknown) or seen.identity is None:
                return None
            row.append(seen.identity)
        found.append(row)
    return found


def needs_copy(all_plans: list[Plan]) -> bool:
    """Whether anything must travel."""
    return any(step is Step.COPY for plan in all_plans for step in plan.steps.values())


def find(facts: NodeFacts, path: str) -> Content | Unknown:
    """The facts of a directory, by where it is."""
    if isinstance(facts.content, Unknown):
        return facts.content
    for seen in facts.content.values():
        if isinstance(seen, Content) and seen.path == path:
            return seen
    # One that could not be read has lost its path, too: any such may be this one.
    unreadable = [seen for seen in facts.content.values() if isinstance(seen, Unknown)]
    return unreadable[0] if unreadable else Unknown(f"{path} was not looked at")


def _plan(cluster: Cluster, facts: Mapping[str, NodeFacts], paths: Mapping[str, str]) -> Plan:
    head = cluster.head
    name = "weights" if paths[head.name] == head.weights_path else "drafter"
    refusals: list[Verdict] = []
    seen: dict[str, Content] = {}
    for node in cluster.nodes:
        found = find(facts[node.name], paths[node.name])
        if isinstance(found, Unknown):
            refusals.append(unknown(node.name, f"{name} in {paths[node.name]}", found))
        else:
            seen[node.name] = found
    if refusals:
        return Plan(name, paths, None, {}, None, {}, tuple(refusals))
    whole = [node for node in cluster.nodes if seen[node.name].is_whole]
    if not whole:
        return Plan(name, paths, None, {}, None, {}, tuple(_nowhere(cluster, name, seen)))
    source = next((node for node in whole if seen[node.name].identity), whole[0])
    steps: dict[str, Step] = {}
    lacking: dict[str, int] = {}
    for node in cluster.nodes:
        if node is source:
            steps[node.name] = Step.NOTHING if seen[node.name].identity else Step.HASH
            continue
        refusals += _differences(name, source, seen[source.name], node, seen[node.name])
        steps[node.name], lacking[node.name] = _step(seen[source.name], seen[node.name])
    return Plan(name, paths, source.name, steps, seen[source.name].identity, lacking, tuple(refusals))


def _step(source: Content, here: Content) -> tuple[Step, int]:
    held = {path: size for path, size, _ in here.files}
    lacking = sum(max(size - held.get(path, 0), 0) for path, size, _ in source.files)
    if here.copying is not None or not here.present or {path for path, _, _ in source.files} - set(held):
        return Step.COPY, lacking
    return (Step.NOTHING if here.identity else Step.HASH), 0


def _differences(name: str, source: Node, whole: Content, node: Node, here: Content) -> Iterator[Verdict]:
    """What a node has that the source has not, or not so: copying over it would destroy it, so it is asked about."""
    if here.outside:
        yield _outside(name, node, here)
    if here.copying is not None:
        return
    wanted = {path: (size, digest) for path, size, digest in whole.files}
    others = []
    for path, size, digest in here.files:
        if path not in wanted:
            others.append(f"{path} (only on {node.name})")
            continue
        its_size, its_digest = wanted[path]
        if size != its_size:
            others.append(f"{path} ({its_size} and {size} bytes)")
        elif digest and its_digest and digest != its_digest:
            others.append(f"{path} (other bytes)")
    if others:
        more = f", and {len(others) - 5} more" if len(others) > 5 else ""
        yield broken(
            "",
            f"{name}: {source.name} ({whole.path}) and {node.name} ({here.path}) hold different files: "
            f"{', '.join(others[:5])}{more}",
            f"remove on one of them what is not wanted; it is copied there from the other over the rail.\n"
            f"To take those of {source.name}, on {node.name}: rm -r {here.path}",
        )


def _nowhere(cluster: Cluster, name: str, seen: Mapping[str, Content]) -> Iterator[Verdict]:
    told = []
    for node in cluster.nodes:
        here = seen[node.name]
        if here.outside:
            yield _outside(name, node, here)
            continue
        if here.copying is not None:
            told.append(f"{node.name} holds an unfinished copy in {here.path}")
        elif not here.present:
            told.append(f"{node.name} has nothing in {here.path}")
        else:
            told.append(f"{node.name} lacks {', '.join(here.missing[:3])} in {here.path}")
    if told and not any(here.outside for here in seen.values()):
        yield broken(
            "",
            f"{name}: no node has them whole; {'; '.join(told)}",
            f"download them to one node, or correct {name}_path; the deploy copies them over the rail to the other.\n"
            f"For example, on {cluster.head.name}: {fetch(cluster, name, seen[cluster.head.name].path)}",
        )


def fetch(cluster: Cluster, name: str, path: str) -> str:
    """The command that fetches weights or drafter from where they are published."""
    knobs = cluster.knobs
    repository = knobs.weights_repository if name == "weights" else knobs.drafter_repository
    revision = "" if name == "weights" else knobs.drafter_revision
    if name == "drafter" and revision is None:
        revision = cluster.stack.revisions.get(str(repository))
    words = ["hf download", str(repository or "<repository>"), *(["--revision", revision] if revision else [])]
    command = " ".join([*words, "--local-dir", path])
    other = knobs.weights_repository_fallback if name == "weights" and repository else ""
    return f"{command}\n(the same files: {other})" if other else command


def template_is_there(cluster: Cluster, facts: Mapping[str, NodeFacts], plan: Plan) -> Iterator[Verdict]:
    """The chat template that is stated lies among the weights, from where every node has it or gets it (ENG-14 of the
    field reports: a template that only one rank had)."""
    template = cluster.knobs.chat_template
    if not template or plan.name != "weights" or plan.source is None:
        return
    found = find(facts[plan.source], plan.paths[plan.source])
    if not isinstance(found, Unknown) and template not in {path for path, _, _ in found.files}:
        yield broken(
            plan.source,
            f"chat_template = {template}: no such file in {plan.paths[plan.source]}, which is what the container sees",
            f"put it there on every node, name a file that is there, or leave chat_template out "
            f"(ls {plan.paths[plan.source]})",
        )


def _outside(name: str, node: Node, here: Content) -> Verdict:
    return broken(
        node.name,
        f"{name}: {here.path}/{here.outside[0]} links out of the directory, which is all that the container sees",
        f"put the files themselves there: cp -RL {here.path} {here.path}-files, and name that directory",
    )
