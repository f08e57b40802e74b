"""Measure the rails: bandwidth and latency of each, and of all together. Exit 0 if they carry what they should, 1 with
what they do not. Changes nothing but /var/lib/sparkpair/fabric/gate.json on the head, which keeps the result.

pyinfra inventory.py fabric_test.py
python fabric_test.py [--while-serving] [--data knob=value] [inventory.py]

A pair that serves uses its rails, so it is refused unless --while-serving; its answers come late meanwhile, and the
figures are those of what it leaves. docs/operations.md says what the figures mean.
"""

import os
import sys

from pyinfra import host, inventory, logger
from pyinfra.api.exceptions import DeployError

from checks import access
from checks.verdict import failures
from operations import gate, lock
from operations.run import begin
from spec.load import settings_from_pyinfra
from spec.resolve import resolve

WHILE_SERVING = "SPARKPAIR_WHILE_SERVING"


def by_pyinfra(arguments):
    """Become pyinfra with this file: exit code and signals are its own."""
    from plan import command_line

    if set(arguments) & {"-h", "--help"}:
        print(__doc__)
        return 0
    argv = command_line([word for word in arguments if word != "--while-serving"], "fabric_test.py")
    environment = {**os.environ, **({WHILE_SERVING: "1"} if "--while-serving" in arguments else {})}
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        print(f"{argv[0]} cannot be run ({error.strerror}); in the checkout: make venv", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(by_pyinfra(sys.argv[1:]))

run = begin(settings_from_pyinfra(inventory), resolve)
if host.name == run.cluster.head.name:
    refused = [verdict.text() for verdict in failures(access.access(run.cluster, run.all_seen()))]
    if not refused:
        why = gate.refusal(run, bool(os.environ.get(WHILE_SERVING)))
        refused = [f"  {why}"] if why else []
    if refused:
        raise DeployError("Fabric test refused; nothing was measured.\n" + "\n".join(refused))
    if not lock.is_real_run():
        logger.info("    Not measured: --dry")
    else:
        verdicts = []
        for verdict in gate.verdicts(run):
            verdicts.append(verdict)
            mark = "TOLD   " if verdict.told else {True: "ok     ", False: "FAILED ", None: "UNKNOWN"}[verdict.holds]
            logger.info(f"    {mark} {verdict.where + ': ' if verdict.where else ''}{verdict.statement}")
        wrong = failures(verdicts)
        if wrong:
            lines = "\n".join(verdict.text() for verdict in wrong)
            raise DeployError(f"Fabric test failed: {len(wrong)} of {len(verdicts)} statements do not hold.\n{lines}")
        logger.info(f"    The rails have passed: {len(verdicts)} statements.")
