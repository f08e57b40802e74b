"""The engine's own tests inside its image, on the head, while the pair is away."""

from __future__ import annotations

import base64
import os
import shlex
import subprocess

from pyinfra.api.command import StringCommand
from pyinfra.api.exceptions import DeployError

from checks import access, image, image_tests
from checks.self_contained import release
from checks.verdict import failures
from facts.values import Image, Unknown
from operations import lock
from operations.core import Commands, node_operation, noop
from operations.run import Run
from operations.units import carry_out
from spec import objects
from spec.stacks.image_checks import ImageTests

VARIABLE = "SPARKPAIR_IMAGE_TESTS"
"""Names the checkout of the engine on the control machine."""
UNIT = "sparkpair-image-tests"
PLACE = f"{objects.VAR}/image-tests"
STOP_SECONDS = 300
LONGEST = "RuntimeMaxSec=2h"
"""87 tests; how long they take is not published."""
TESTED = "/tests"


def checkout() -> str:
    """The directory that was named; "" for none."""
    return os.environ.get(VARIABLE, "")


def preflight(run: Run) -> None:
    """Raise DeployError with all that forbids the tests."""
    facts = run.all_seen()
    wrong = failures(access.access(run.cluster, facts))
    if not wrong:
        head = facts[run.cluster.head.name]
        wrong = failures(image_tests.refusals(run.cluster, head, checkout(), commit(checkout())))
    lines = [verdict.text() for verdict in wrong]
    if not lines and lock.is_real_run():
        other = lock.claim(run.hosts[run.cluster.head.name])
        lines = [f"  {other}"] if other else []
    if lines:
        raise DeployError("Tests of the image refused; nothing was stopped.\n" + "\n".join(lines))


def commit(directory: str) -> str | Unknown:
    """The commit of a checkout on this machine."""
    try:
        done = subprocess.run(
            ["git", "-C", directory or ".", "rev-parse", "HEAD"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError as error:
        return Unknown(f"git: {error.strerror}")
    said = (done.stderr or done.stdout).strip().splitlines()
    return done.stdout.strip() if done.returncode == 0 else Unknown(said[-1] if said else "git said nothing")


@node_operation
def copy_tests(run: Run) -> Commands:
    """Put the tests of the commit on the head, as git has them and not as the directory may have become."""
    tests = run.cluster.stack.image_tests
    if not run.node.is_head or tests is None:
        noop("the tests run on the head")
        return
    wanted = tests.commits[str(release(run.cluster))]
    packed = subprocess.run(
        ["git", "-C", checkout(), "archive", "--format=tar.gz", wanted, tests.directory],
        stdin=subprocess.DEVNULL, capture_output=True, check=True,
    ).stdout  # fmt: skip
    place = shlex.quote(PLACE)
    yield StringCommand(
        f"rm -rf {place} && mkdir -p {place} && base64 -d | tar -xzf - -C {place}",
        _stdin=base64.b64encode(packed).decode(),
    )


@node_operation
def run_tests(run: Run) -> Commands:
    """One unit on the head stops the pair, runs the tests, and starts the pair however they end: also when this run
    dies, or the tests do."""
    tests = run.cluster.stack.image_tests
    if not run.node.is_head or tests is None:
        noop("the tests run on the head")
        return
    held = image.find(run.cluster, run.seen())
    name = held.id if isinstance(held, Image) else run.cluster.image
    properties = [LONGEST, f"ExecStopPost=/bin/rm -rf {PLACE}"]
    properties += outage() if image_tests.must_stop(run.seen()) else ()
    yield from carry_out(UNIT, "Sparkpair: the image's own tests", container_argv(name, tests), properties)


def outage() -> tuple[str, ...]:
    """What stands around the tests: the keeper stops the pair, and the GPU is waited for; the keeper starts it again.
    systemd reads `$` itself."""
    rank = "docker ps -q --filter label=sparkpair.rank"
    free = f'i=0; while [ -n "$$({rank})" ]; do i=$$((i+1)); [ $$i -lt {STOP_SECONDS} ] || exit 1; sleep 1; done'
    return (
        f"TimeoutStartSec={STOP_SECONDS + 30}",
        f"ExecStartPre=/bin/sh -c {shlex.quote(f'{objects.CLI} stop && {free}')}",
        f"ExecStopPost={objects.CLI} start",
    )


def container_argv(name: str, tests: ImageTests) -> list[str]:
    """The container of the tests: the image with the GPU, and the internet for the packages that they need."""
    selection = [f"{tests.directory}/{one}" for one in tests.selection]
    program = (
        f"python3 -m pip install -q {shlex.join(tests.packages)} && "
        f"exec python3 -m pytest -q --no-header -p no:cacheprovider {shlex.join(selection)}"
    )
    argv = ["/usr/bin/docker", "run", "--rm", "--name", UNIT, "--pull", "never", "--gpus", "all", "--network", "host"]
    argv += ["--mount", f"type=bind,source={PLACE},target={TESTED},readonly", "--workdir", TESTED]
    return [*argv, "--entrypoint", "sh", name, "-c", program]
