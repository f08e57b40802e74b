"""What the small verbs share: the sparkpair command on the head, asked and told, or one row that changes something.

They look at no node but the head, and at nothing of it but what the keeper says: where the pair is in trouble they
answer as fast as the command does there.
"""

from __future__ import annotations

import base64
import binascii
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from pyinfra import logger
from pyinfra.api.command import FunctionCommand, StringCommand
from pyinfra.api.exceptions import DeployError
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.context import ctx_host, ctx_inventory, ctx_state

from checks import access
from operations import lock
from operations.core import Commands, callback, fail, is_executing, node_operation, noop
from operations.units import shell
from spec.cluster import Settings
from spec.objects import CLI

ARGUMENTS = "SPARKPAIR_ARGS"
"""What follows the word, as one would type it on the head."""
EXIT = "sparkpair-exit "
NO_ROOT = "sparkpair-no-root "
FOLLOW_MARGIN_SECONDS = 120
ENDS = {"running": "0", "stopped": "3"}
"""Exit codes of `sparkpair follow`."""
CODES = {
    "3": "the pair is stopped on purpose",
    "4": "the keeper does not answer",
    "127": "Sparkpair is not installed there; run deploy.py",
}


def head_of(settings: Settings) -> Host:
    """The host that is the head. Raises DeployError where this run leaves it out."""
    name = next(node.name for node in settings.nodes if node.rank == 0)
    found: Host = next(host for host in ctx_inventory.get() if host.name == name)
    if not ctx_state.get().is_host_in_limit(found):
        raise DeployError(
            f"Refused; nothing was changed.\n  {name} is the head, which alone is asked, and this run leaves it out.\n"
            f"    Fix: --limit {name}, or no limit"
        )
    return found


def tell(settings: Settings, word: str) -> None:
    """Print what the command on the head says. Raises DeployError, which ends the run with 1, where it says no."""
    host = head_of(settings)
    if ctx_host.get() is not host:
        return
    _must_be_root(host)
    lines, code = _ask(host, [word, *arguments()])
    for line in lines:
        print(line)
    if code != "0":
        meaning = f": {CODES[code]}" if code in CODES else ""
        raise DeployError(f"{host.name}: sparkpair {word} ended with exit code {code}{meaning}")


def arguments() -> list[str]:
    """What the operator adds to the word."""
    try:
        return shlex.split(os.environ.get(ARGUMENTS, ""))
    except ValueError as error:
        raise DeployError(f"{ARGUMENTS}={os.environ[ARGUMENTS]}: {error}") from None


def fetch_bundle(settings: Settings) -> None:
    """Have the head make a support bundle, and keep it on this machine alone."""
    host = head_of(settings)
    if ctx_host.get() is not host:
        return
    _must_be_root(host)
    pipe = f"{shlex.join([CLI, 'support-bundle', '--output', '-', *arguments()])} | base64"
    ok, output = host.run_shell_command(
        StringCommand("bash -c", shlex.quote(f"set -o pipefail; {pipe}")), _sudo=True, print_output=False
    )
    try:
        data = base64.b64decode("".join(output.stdout_lines), validate=True)
    except binascii.Error:
        data = b""
    if not ok or not data:
        why = " ".join(output.stderr_lines)[-300:] or "it sent nothing"
        raise DeployError(f"{host.name}: no support bundle: {why}")
    place = Path(time.strftime("sparkpair-support-%Y%m%dT%H%M%SZ.tar.gz", time.gmtime()))
    try:
        with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(data)
    except OSError as error:
        raise DeployError(f"{place.absolute()} could not be written: {error.strerror}") from None
    print(place.absolute())


def claim(settings: Settings) -> None:
    """Before a row that changes something: no deploy may be at work meanwhile."""
    host = head_of(settings)
    if ctx_host.get() is host:
        _must_be_root(host)
    other = lock.claim(host) if lock.is_real_run() else ""
    if other:
        raise DeployError(f"Refused; nothing was changed.\n  {other}")


@node_operation
def order(settings: Settings, word: str, wanted: str) -> Commands:
    """Give an order to the keeper, and follow it until the pair is `wanted`: running or stopped."""
    host = head_of(settings)
    if ctx_host.get() is not host:
        noop("the keeper is on the head")
        return
    phase = _phase(host)
    if phase == wanted and word != "restart":
        noop(f"the pair is {phase}")
        return
    if phase == "empty":
        raise fail("nothing was deployed yet; run deploy.py")
    if not is_executing():
        host.log(f"the pair is {phase}", logger.info)
    yield shell([CLI, word])
    yield FunctionCommand(_follow, (settings, wanted), {})


@node_operation
def ask_gates(settings: Settings) -> Commands:
    """Ask the gates anew; the row fails where one does."""
    host = head_of(settings)
    if ctx_host.get() is not host:
        noop("the keeper is on the head")
        return
    yield FunctionCommand(_say, ([CLI, "warm-up"],), {})


@callback
def _follow(state: State, host: Host, settings: Settings, wanted: str) -> bool:
    del state
    timeout = settings.effective.ready_timeout_seconds + FOLLOW_MARGIN_SECONDS
    line = f"{shlex.join([CLI, 'follow', '--timeout', str(timeout)])}; test $? = {ENDS[wanted]}"
    ok, _ = host.run_shell_command(StringCommand(line), _sudo=True, print_output=True)
    if ok:
        return True
    text = f"the pair is not {wanted}. More: sudo sparkpair status; docs/troubleshooting.md"
    host.log_styled(text, fg="red", log_func=logger.error)
    return False


@callback
def _say(state: State, host: Host, argv: Sequence[str]) -> bool:
    del state
    ok, _ = host.run_shell_command(shell(argv), _sudo=True, print_output=True)
    return bool(ok)


def _phase(host: Host) -> str:
    """What the keeper does now. Where it does not answer the order itself will tell."""
    lines, _ = _ask(host, ["status"])
    return lines[0].partition(" ")[0] if lines else "unknown"


def _must_be_root(host: Host) -> None:
    """Raise DeployError where sudo wants a password, before pyinfra asks for it."""
    look = f'[ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null || echo "{NO_ROOT}$(id -un)"'
    _, output = host.run_shell_command(StringCommand(look), _sudo=False)
    for line in output.stdout_lines:
        if line.startswith(NO_ROOT):
            refusal = access.wants_a_password(host.name, line.removeprefix(NO_ROOT))
            raise DeployError(f"Refused; nothing was changed.\n{refusal.text()}")


def _ask(host: Host, words: Sequence[str]) -> tuple[list[str], str]:
    """What the command says, and its exit code."""
    line = f"{shlex.join([CLI, *words])} 2>&1; echo {shlex.quote(EXIT)}$?"
    ok, output = host.run_shell_command(StringCommand(line), _sudo=True)
    lines = output.stdout_lines
    if not ok or not lines or not lines[-1].startswith(EXIT):
        why = " ".join(output.stderr_lines)[-200:] or "no answer"
        raise DeployError(f"{host.name}: sparkpair {words[0]} could not be asked: {why}")
    return lines[:-1], lines[-1].removeprefix(EXIT)
