"""Is every node what was asked for, and does the pair run what was asked for? Read-only, for verify."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from checks import content, pair
from checks.sourcing import Way
from checks.verdict import Verdict, broken, holds, unknown
from facts.values import NodeFacts, Unknown
from spec import objects
from spec.cluster import Cluster, Node

DEPLOY = "run deploy.py; its plan shows the difference: pyinfra --dry --diff inventory.py deploy.py"
RANK_LABEL, ENGINE_LABEL = "sparkpair.rank", "sparkpair.engine"


def installed(node: Node, seen: NodeFacts, files: Mapping[str, str], programs: Mapping[str, str]) -> Iterator[Verdict]:
    """Files, programs, units."""
    yield from _files(node, seen, files, programs)
    yield from _units(node, seen)


def weights_agree(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> Iterator[Verdict]:
    """Every node's directories are those of one manifest, as their sizes, times and inodes still say."""
    for plan in content.plans(cluster, facts):
        yield from plan.refusals
        if plan.refusals:
            continue
        lacking = [name for name, share in plan.shares.items() if share.way is not Way.NOTHING]
        for name in lacking:
            yield broken(name, f"{plan.name} in {plan.paths[name]}: needs {plan.way(name).value}", DEPLOY)
        if not lacking:
            yield holds("", f"{plan.name}: every node holds {str(plan.identity)[:12]}, unchanged since it was hashed")


def ranks_run(cluster: Cluster, facts: Mapping[str, NodeFacts], engine: str | None) -> Iterator[Verdict]:
    """What the containers that really run say of themselves."""
    for node in cluster.nodes:
        now = facts[node.name].docker
        containers = now if isinstance(now, Unknown) else now.containers
        if isinstance(containers, Unknown):
            yield unknown(node.name, "its containers", containers)
            continue
        ours = [container for container in containers if container.is_ours and container.state == "running"]
        if len(ours) != 1:
            count = "no rank runs" if not ours else f"{len(ours)} ranks run"
            yield broken(node.name, count, "sudo sparkpair status, on the head")
            continue
        labels = ours[0].labels
        rank, runs = labels.get(RANK_LABEL), labels.get(ENGINE_LABEL, "")
        if rank != str(node.rank):
            yield broken(node.name, f"rank {rank} runs, wanted rank {node.rank}", "sudo sparkpair restart, on the head")
        elif runs != engine:
            wanted = engine[:12] if engine else "not known (a manifest or the API key is missing)"
            yield broken(node.name, f"rank {rank} runs {runs[:12]}, wanted is {wanted}", DEPLOY)
        else:
            yield holds(node.name, f"rank {rank} runs {runs[:12]}, as wanted")


def keeper_agrees(head: Node, seen: NodeFacts, code: str, service: str, engine: str | None) -> Iterator[Verdict]:
    """The keeper is the installed one, has the wanted settings, and calls the pair running."""
    for what, part in (("its units", seen.units), ("the keeper's state", seen.status)):
        if isinstance(part, Unknown):
            yield unknown(head.name, what, part)
            return
    status = pair.status_of(seen)
    if status is None:
        yield broken(head.name, "the keeper does not run", "journalctl -u sparkpair-keeper; run deploy.py")
        return
    if status.code != code or any(rank.code not in (code, None) for rank in status.ranks.values()):
        yield broken(head.name, "keeper or agent run other programs than those installed", DEPLOY)
    if status.service != service:
        yield broken(head.name, "the keeper runs with other settings than those wanted", DEPLOY)
    if status.desired == "stop":
        yield broken(head.name, "the pair is stopped on purpose", "sudo sparkpair start")
    elif status.phase != "running":
        yield broken(
            head.name, f"the pair is {status.phase}: {status.reason or status.last_failure}", "sudo sparkpair follow"
        )
    elif status.accepted != engine:
        yield broken(
            head.name, f"the keeper holds the pair to {str(status.accepted)[:12]}, not to what is wanted", DEPLOY
        )
    else:
        yield holds(head.name, f"the keeper runs, and calls the pair {status.phase}")


def _files(node: Node, seen: NodeFacts, files: Mapping[str, str], programs: Mapping[str, str]) -> Iterator[Verdict]:
    if isinstance(seen.files, Unknown) or isinstance(seen.trees, Unknown):
        reason = seen.files if isinstance(seen.files, Unknown) else seen.trees
        yield unknown(node.name, "what is installed", reason if isinstance(reason, Unknown) else Unknown(""))
        return
    differing = [
        path for path, digest in files.items() if (now := seen.files.get(path)) is None or now.sha256 != digest
    ]
    if dict(seen.trees.get(objects.LIB, {})) != dict(programs):
        differing.append(objects.LIB)
    if differing:
        yield broken(node.name, f"not as wanted: {', '.join(differing)}", DEPLOY)
    else:
        yield holds(node.name, f"{len(files)} files and the programs are as wanted")


def _units(node: Node, seen: NodeFacts) -> Iterator[Verdict]:
    if isinstance(seen.units, Unknown):
        yield unknown(node.name, "its units", seen.units)
        return
    for name in (objects.RECORDER_UNIT, objects.AGENT_UNIT, *((objects.KEEPER_UNIT,) if node.is_head else ())):
        unit = seen.units.get(name)
        if unit is None or unit.active != "active" or unit.file_state != "enabled":
            state = f"{unit.active} and {unit.file_state or 'not installed'}" if unit else "not there"
            yield broken(
                node.name, f"{name} is {state}, wanted active and enabled", f"run deploy.py; journalctl -u {name}"
            )
        else:
            yield holds(node.name, f"{name} is active and enabled")
