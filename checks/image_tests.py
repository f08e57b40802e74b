"""Whether the engine's own tests can be run in its image now. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from checks import image, pair
from checks.self_contained import release
from checks.verdict import Verdict, broken, unknown
from facts.values import NodeFacts, Unknown, UnknownFact
from spec.cluster import Cluster

SETTLED = ("running", "resting", "stopped", "empty")
"""Phases in which the keeper has nothing under way that stopping would cut short."""


def refusals(cluster: Cluster, head: NodeFacts, checkout: str, at: str | Unknown) -> Iterator[Verdict]:
    """What forbids it. `checkout` is the directory that was named on the control machine, `at` its commit."""
    tests, found = cluster.stack.image_tests, release(cluster)
    if tests is None:
        yield broken("", f"the stack {cluster.stack.name} has no tests for its image", "verify_image.py looks at it")
        return
    commit = tests.commits.get(found or "")
    if commit is None:
        yield broken(
            "",
            f"the tests of {image.short(cluster.image)} are not known: its release is {found or 'not stated'}, known "
            f"are {', '.join(tests.commits)}",
            "state image_release, if it is one of these",
        )
        return
    fetch = f"git clone --filter=blob:none {tests.repository} DIRECTORY && git -C DIRECTORY checkout {commit}"
    if not checkout:
        yield broken("", "no checkout of the engine's tests was named", f"{fetch}; make image-tests TESTS=DIRECTORY")
    elif isinstance(at, Unknown):
        yield broken("", f"{checkout} is no checkout of the engine: {at.reason}", fetch)
    elif not at.startswith(commit):
        yield broken(
            "", f"{checkout} is at commit {at[:9]}, and the image is built from {commit}",
            f"git -C {checkout} checkout {commit}",
        )  # fmt: skip
    yield from _pair(cluster, head)


def _pair(cluster: Cluster, head: NodeFacts) -> Iterator[Verdict]:
    name = cluster.head.name
    held = image.find(cluster, head)
    if isinstance(held, Unknown):
        yield unknown(name, f"the image {image.short(cluster.image)}", held)
    elif held is None:
        yield broken(name, f"the image {image.short(cluster.image)} is not there", "run stage.py")
    try:
        status = pair.status_of(head)
    except UnknownFact as error:
        yield unknown(name, "what the pair does", Unknown(str(error)))
        return
    if status is None:
        yield broken(
            name,
            "no keeper runs, so nobody can say that the GPUs are free, nor start the pair again",
            "run deploy.py",
        )
    elif status.phase not in SETTLED:
        yield broken(
            name,
            f"the pair is {status.phase}: the tests need the GPUs, and stopping it now would cut that short",
            "wait until it runs: sudo sparkpair follow",
        )


def must_stop(head: NodeFacts) -> bool:
    """Whether the pair is to be stopped for the tests, and started after them. Raises UnknownFact."""
    status = pair.status_of(head)
    return status is not None and status.phase == "running"
