"""What is worth telling about the nodes, and forbids nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from checks import content, memory, nfs
from checks.check import Sight, When, run
from checks.registry import CHECKS
from facts.talk import Talk
from facts.values import NodeFacts, Unknown
from spec.cluster import Cluster

QUANTIZED = "hf_quant_config.json"
"""Lies beside an 8-bit (MXFP8) drafter, and not beside the 16-bit one (reference kit v2.3-tier1)."""


def advice(
    cluster: Cluster, facts: Mapping[str, NodeFacts], *, starts: bool = True, talk: Talk | None = None
) -> list[str]:
    """A line for each thing. `starts`: whether the deploy may start or restart the pair. `talk`: what the nodes heard
    of each other, where they were asked."""
    return [
        *_drafter_format(cluster, facts),
        *_overlays(cluster, facts),
        *memory.other_guards(cluster, facts),
        *nfs.advice(cluster, facts),
        *_told(Sight(cluster, facts, talk, starts=starts)),
    ]


def _told(sight: Sight) -> Iterator[str]:
    """What preflight's questions found and refuse nothing for. What could not be read is for doctor to say."""
    for _, verdict in run(CHECKS, When.PREFLIGHT, sight):
        if verdict.told and verdict.holds is False:
            place = f"{verdict.where}: " if verdict.where else ""
            fix = f". Fix: {' '.join(verdict.fix.split())}" if verdict.fix else ""
            yield f"{place}{verdict.statement}{fix}"


def _drafter_format(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> Iterator[str]:
    """R10: the drafter's directory has the format of the repository that it is said to come from."""
    wanted = cluster.stack.quantized_drafters.get(str(cluster.knobs.drafter_repository))
    if wanted is None:
        return
    for node in cluster.nodes:
        for path in cluster.launch(node).content:
            seen = content.find(facts[node.name], path)
            if path != node.drafter_path or isinstance(seen, Unknown) or not seen.is_whole:
                continue
            is_quantized = any(name == QUANTIZED for name, _, _ in seen.files)
            if is_quantized is not wanted:
                bits, others = ("8-bit", "16-bit") if is_quantized else ("16-bit", "8-bit")
                yield (
                    f"{node.name}: {path} holds the {bits} drafter ({'with' if is_quantized else 'without'} "
                    f"{QUANTIZED}), and drafter_repository is {cluster.knobs.drafter_repository}, the {others} one; "
                    f"correct one of them"
                )


def _overlays(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> Iterator[str]:
    """CFG-05: what an earlier kit put over the image's files lies on a node still. No container of ours mounts it."""
    for node in cluster.nodes:
        found = facts[node.name].overlays
        if isinstance(found, Unknown) or not found:
            continue
        places = ", ".join(f"{path} ({count} {'file' if count == 1 else 'files'})" for path, count in found.items())
        aside = "; ".join(f"mv {path} {path}.retired" for path in found)
        yield (
            f"{node.name}: left over from the reference kit: {places}. The kit's launcher put these files over the "
            f"image's own; Sparkpair never does, so what they changed is not in effect. If nothing else needs them, on "
            f"{node.name}: {aside}"
        )
