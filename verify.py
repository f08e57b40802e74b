"""Is the pair what group_data/all.py says, and does it answer? Exit 0 if it is, 1 with what is not. Changes nothing.

pyinfra inventory.py verify.py
python verify.py [--deep] [--data knob=value] [inventory.py]     the same; --deep reads every byte again first

The deep check takes as long as the disks do: minutes, more while the pair serves. Interrupt it at any time: the nodes
finish it by themselves, and the next run states what it found.
"""

import hashlib
import os
import sys
from contextlib import nullcontext

from pyinfra import host, inventory, logger
from pyinfra.api.exceptions import DeployError

from checks import access, api, api_key, converged, deep, image, memory, nfs
from checks.verdict import failures
from facts.api import Chat
from facts.pings import RailPings
from facts.values import Unknown
from operations import deep as deep_check
from operations import wanted
from operations.api import read_key, through
from operations.run import begin
from spec.load import settings_from_pyinfra
from spec.resolve import resolve

CANARY_SECONDS = 120.0
DEEP = "SPARKPAIR_DEEP"


def by_pyinfra(arguments):
    """Become pyinfra with this file: exit code and signals are its own."""
    from plan import command_line

    if set(arguments) & {"-h", "--help"}:
        print(__doc__)
        return 0
    argv = command_line([word for word in arguments if word != "--deep"], "verify.py")
    environment = {**os.environ, **({DEEP: "1"} if "--deep" in arguments else {})}
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        print(f"{argv[0]} cannot be run ({error.strerror}); in the checkout: make venv", file=sys.stderr)
        return 1


def statements(run):
    """Every statement about the nodes and the pair, each with its verdict."""
    cluster, facts = run.cluster, run.all_seen()
    yield from access.access(cluster, facts)
    if not all(access.usable(seen) for seen in facts.values()):
        return
    programs = {path: hashlib.sha256(data).hexdigest() for path, data in run.programs.items()}
    for node in cluster.nodes:
        yield from converged.node_is_as_wanted(cluster, node, facts[node.name], wanted.files(run, node), programs)
        yield from memory.watched(cluster, node, facts[node.name], run.programs_hash)
    for node in cluster.nodes:
        targets = list(converged.ping_targets(cluster, node))
        pings = run.hosts[node.name].get_fact(RailPings, targets=targets, _sudo=True, _ignore_errors=True)
        yield from converged.packets_pass(cluster, node, pings)
    engine = wanted.engine(run)
    yield from image.image_layers(cluster, facts)
    yield from converged.weights_agree(cluster, facts)
    yield from nfs.statements(cluster, facts)
    for node in cluster.nodes:
        yield from deep.checked(cluster, node, facts[node.name])
    yield from converged.ranks_run(cluster, facts, engine)
    yield from converged.keeper_agrees(
        cluster.head, facts[cluster.head.name], run.programs_hash, wanted.service(run), engine
    )
    yield from api_key.kept(cluster, facts[cluster.head.name])
    yield from api_statements(run)


def api_statements(run):
    """What the API answers, wherever it listens."""
    cluster, head = run.cluster, run.hosts[run.cluster.head.name]
    at = api.place(cluster)
    url = f"http://{at.address}:{at.port}/v1"
    key = read_key(head) if cluster.knobs.require_api_key else ""
    if isinstance(key, Unknown):
        yield api.silent(url, key)
        return
    with through(head, at.address, at.port) if at.behind else nullcontext((at.address, at.port)) as way:
        if isinstance(way, Unknown):
            yield api.silent(url, way)
            return
        client = Chat(f"http://{way[0]}:{way[1]}/v1", cluster.served_model_name, CANARY_SECONDS, key)
        yield from api.answers(cluster, url, client)


if __name__ == "__main__":
    sys.exit(by_pyinfra(sys.argv[1:]))

run = begin(settings_from_pyinfra(inventory), resolve)
if host.name == run.cluster.head.name:
    if os.environ.get(DEEP) and all(access.usable(seen) for seen in run.all_seen().values()):
        deep_check.check(run)
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
