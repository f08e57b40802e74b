"""Bundles on the nodes: looked at where files are to come from one."""

from __future__ import annotations

from checks import access, bundle
from checks.verdict import Verdict
from facts.bundle import Bundle, BundleFiles
from facts.values import Unknown
from operations import staging
from operations.run import Run


def refusals(run: Run) -> list[Verdict]:
    """What keeps a node from taking its files from the bundle that it names."""
    if not all(access.usable(seen) for seen in run.all_seen().values()):
        return []  # refused already
    if not any(node.bundle_path for node in run.cluster.nodes):
        return []
    plans, found = staging.plans(run), list[Verdict]()
    for node in run.cluster.nodes:
        wanted = bundle.needed(node, plans)
        if wanted:
            seen: Bundle | Unknown = run.hosts[node.name].get_fact(
                BundleFiles, place=str(node.bundle_path), _sudo=True, _ignore_errors=True
            )
            found += bundle.usable(node, wanted, seen)
    return found
