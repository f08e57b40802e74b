"""Is the pair what group_data/all.py says, and does it answer? Exit 0 if it is, 1 with what is not. Changes nothing.

pyinfra inventory.py verify.py
python verify.py [--deep] [--data knob=value] [inventory.py]     the same; --deep reads every byte again first

The deep check takes as long as the disks do: minutes, more while the pair serves. Interrupt it at any time: the nodes
finish it by themselves, and the next run states what it found.
"""

import os
import sys

from pyinfra import host, inventory, logger
from pyinfra.api.exceptions import DeployError

from checks import access
from checks.check import When
from checks.check import run as ask
from checks.registry import CHECKS
from checks.verdict import failures
from operations import deep as deep_check
from operations.api import api_statements
from operations.run import examine
from operations.sight import sight
from spec.load import settings_from_pyinfra
from spec.resolve import resolve

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
    seen = sight(run)
    if not seen.whole:
        yield from access.access(seen.cluster, seen.facts)
        return
    for _, verdict in ask(CHECKS, When.VERIFY, seen):
        yield verdict
    yield from api_statements(run)


if __name__ == "__main__":
    sys.exit(by_pyinfra(sys.argv[1:]))

run = examine(settings_from_pyinfra(inventory), resolve)
if host.name == run.cluster.head.name:
    if os.environ.get(DEEP) and all(access.usable(seen) for seen in run.all_seen().values()):
        deep_check.check(run)
    verdicts = []
    for verdict in statements(run):
        verdicts.append(verdict)
        mark = {True: "ok     ", False: "told   " if verdict.told else "FAILED ", None: "UNKNOWN"}[verdict.holds]
        logger.info(f"    {mark} {verdict.where + ': ' if verdict.where else ''}{verdict.statement}")
    wrong = failures(verdicts)
    if wrong:
        lines = "\n".join(verdict.text() for verdict in wrong)
        raise DeployError(f"Verify failed: {len(wrong)} of {len(verdicts)} statements do not hold.\n{lines}")
    logger.info(f"    Verified: all {len(verdicts)} statements hold.")
