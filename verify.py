"""Is the pair what group_data/all.py says, and does it answer? Exit 0 if it is, 1 with what is not. Changes nothing.

pyinfra inventory.py verify.py
"""

import hashlib

from pyinfra import host, inventory, logger
from pyinfra.api.exceptions import DeployError

from checks import access, api, converged, staging
from checks.verdict import failures
from facts.api import Chat
from facts.pings import RailPings
from operations import wanted
from operations.run import begin
from spec.load import settings_from_pyinfra
from spec.resolve import resolve

CANARY_SECONDS = 120.0


def statements(run):
    """Every statement about the nodes and the pair, each with its verdict."""
    cluster, facts = run.cluster, run.all_seen()
    yield from access.access(cluster, facts)
    if not all(access.usable(seen) for seen in facts.values()):
        return
    programs = {path: hashlib.sha256(data).hexdigest() for path, data in run.programs.items()}
    for node in cluster.nodes:
        yield from converged.node_is_as_wanted(cluster, node, facts[node.name], wanted.files(run, node), programs)
    for node in cluster.nodes:
        targets = list(converged.ping_targets(cluster, node))
        pings = run.hosts[node.name].get_fact(RailPings, targets=targets, _sudo=True, _ignore_errors=True)
        yield from converged.packets_pass(cluster, node, pings)
    engine = wanted.engine(run)
    yield from staging.image_layers(cluster, facts)
    yield from converged.weights_agree(cluster, facts)
    yield from converged.ranks_run(cluster, facts, engine)
    yield from converged.keeper_agrees(
        cluster.head, facts[cluster.head.name], run.programs_hash, wanted.service(run), engine
    )
    url = f"http://{cluster.head.management_address}:{cluster.api_port}/v1"
    yield from api.answers(cluster, url, Chat(url, cluster.served_model_name, CANARY_SECONDS))


run = begin(settings_from_pyinfra(inventory), resolve)
if host.name == run.cluster.head.name:
    verdicts = []
    for verdict in statements(run):
        verdicts.append(verdict)
        mark = {True: "ok     ", False: "FAILED ", None: "UNKNOWN"}[verdict.holds]
        logger.info(f"    {mark} {verdict.where + ': ' if verdict.where else ''}{verdict.statement}")
    wrong = failures(verdicts)
    if wrong:
        lines = "\n".join(verdict.text() for verdict in wrong)
        raise DeployError(f"Verify failed: {len(wrong)} of {len(verdicts)} statements do not hold.\n{lines}")
    logger.info(f"    Verified: all {len(verdicts)} statements hold.")
