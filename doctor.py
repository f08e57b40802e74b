"""Everything that there is to ask of the two nodes, and what to do about what is wrong. Changes nothing, and needs no
deploy before it: it tells whether two Sparks are ready for one, and why a pair that was deployed does not serve.

pyinfra inventory.py doctor.py
python doctor.py [--json] [--data knob=value] [inventory.py]     the same; --json prints one document and nothing else

Exit 0: all holds (what is only told is no fault), 1: something does not hold, or is not known.
"""

import json
import os
import subprocess
import sys
import tempfile

from pyinfra import host, inventory, logger, state
from pyinfra.api.exceptions import DeployError

from checks import doctor
from operations import run as begun
from operations.doctor import DOCUMENT, Counted, examine, write
from spec.load import settings_from_pyinfra
from spec.resolve import resolve


def by_pyinfra(arguments):
    """Become pyinfra with this file: exit code and signals are its own. For a document it is waited for."""
    from plan import command_line

    if set(arguments) & {"-h", "--help"}:
        print(__doc__)
        return 0
    argv = command_line([word for word in arguments if word != "--json"], "doctor.py")
    try:
        if "--json" in arguments:
            return _document(argv)
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"{argv[0]} cannot be run ({error.strerror}); in the checkout: make venv", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _document(argv):
    """Print what it writes; where it was refused before it could look, a document that says so."""
    with tempfile.TemporaryFile() as place:
        environment = {**os.environ, DOCUMENT: f"/dev/fd/{place.fileno()}"}
        done = subprocess.run(argv, stdout=sys.stderr, check=False, env=environment, pass_fds=[place.fileno()])
        place.seek(0)
        found = place.read().decode()
    print(found or json.dumps({"format": 1, "verdict": "refused"}))
    return done.returncode if found else 1


if __name__ == "__main__":
    sys.exit(by_pyinfra(sys.argv[1:]))

os.environ["SPARKPAIR_DOCTOR"] = "1"  # the probe is asked for all that it knows
if host.name == min(one.name for one in state.active_hosts):
    counted = Counted()
    with counted.on({one.name: one for one in inventory}):
        report = examine(begun.examine(settings_from_pyinfra(inventory), resolve), counted)
    if os.environ.get(DOCUMENT):
        write(report)
    else:
        for line in doctor.lines(report):
            logger.info(f"    {line}")
    if report.verdict != "holds":
        raise DeployError(f"Doctor found what is wrong: {doctor.summary(report)}")
