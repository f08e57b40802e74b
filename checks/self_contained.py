"""Whether the image holds by itself what its stack needs of it: what is asked, and what the answer says. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from checks.image import short
from checks.opinion import BUSY, LOW
from checks.verdict import Verdict, broken, holds, unknown
from facts.values import Unknown
from spec.cluster import Cluster
from spec.stacks.image_checks import ImageCheck

MARK = "sparkpair-image-check "
"""Begins the line that holds the answer."""
EXIT = "sparkpair-image-check-exit "
"""Begins the line with the exit code of docker."""
KILLED = ("124", "137")


def release(cluster: Cluster) -> str | None:
    """Which release of its stack the image is; None where neither its digest nor the settings say it."""
    known = cluster.stack.releases.get(cluster.image.partition("@")[2])
    return known or cluster.knobs.image_release or None


def asked(cluster: Cluster) -> list[ImageCheck]:
    """The checks that are about this image."""
    return [check for check in cluster.stack.image_checks if check.is_about(release(cluster))]


def question(cluster: Cluster) -> dict[str, object]:
    """What is sent into the container, beside the program."""
    looks = [[[look.kind, look.at, look.wanted, list(look.others)] for look in check.looks] for check in asked(cluster)]
    return {"mark": MARK, "checks": looks}


def read(cluster: Cluster, where: str, output: Sequence[str]) -> Iterator[Verdict]:
    """A verdict for each check, or why there is none."""
    name = short(cluster.image)
    answers = [line.removeprefix(MARK) for line in output if line.startswith(MARK)]
    codes = [line.removeprefix(EXIT) for line in output if line.startswith(EXIT)]
    checks = asked(cluster)
    try:
        seen = json.loads(answers[-1]) if answers else None
    except ValueError:
        seen = None
    if not isinstance(seen, list) or len(seen) != len(checks):
        said = [line for line in output if line.strip() and not line.startswith((MARK, EXIT))]
        yield unknown(where, f"what the image {name} holds", Unknown(_why(codes[-1] if codes else "", said)))
        return
    for check, instead in zip(checks, seen, strict=True):
        if not instead:
            yield holds(where, check.statement)
        else:
            yield broken(
                where,
                f"{check.statement}: no, {instead}",
                f"{name} is not whole: state an image that is, or the release that it is (image_release)",
            )


def _why(code: str, said: Sequence[str]) -> str:
    last = f": {said[-1][:200]}" if said else ""
    if code == BUSY:
        return "another throwaway container ran all the time"
    if code == LOW:
        return "the node has too little memory to spare for a container"
    if code in KILLED:
        return "the container was ended: it took too long, or more memory than it may"
    return f"the container ended with code {code or 'unknown'}{last}"
