"""Memory: what watches over a node's memory beside the pair, and what keeps the way in open when there is none left."""

from __future__ import annotations

import shlex

from pyinfra.api.command import StringCommand
from pyinfra.api.deploy import deploy

from facts.values import Recorded, item
from operations.core import Commands, node_operation, noop
from operations.files import put
from operations.run import Run
from spec import objects
from spec.render import protection_texts, recorder_text

ANSWER_SECONDS = 30


@deploy("Memory")
def memory(run: Run) -> None:
    """The recorder, and the protection of the login."""
    install_recorder(name=f"Install {objects.RECORDER_UNIT}", run=run)
    start_recorder(name="Start the new recorder", run=run)
    if run.cluster.knobs.protect_login:
        install_protection(name="Install what protects the login", run=run)
    else:
        remove_protection(name="Remove what protects the login", run=run)


@node_operation
def install_recorder(run: Run) -> Commands:
    """The unit's file, systemd told of it, and started at boot from now on."""
    yield from put(run, f"{objects.UNIT_DIRECTORY}/{objects.RECORDER_UNIT}", recorder_text(), "644")
    now = item(run.seen().units, objects.RECORDER_UNIT, "its units")
    if now.needs_reload:
        yield StringCommand("systemctl daemon-reload")
    if now.file_state != "enabled":
        yield StringCommand("systemctl enable --quiet", objects.RECORDER_UNIT)


@node_operation
def start_recorder(run: Run) -> Commands:
    """The recorder runs, and runs the installed programs. The floor of the running rank is handed on."""
    seen = run.seen()
    code = run.programs_hash
    is_wanted = isinstance(seen.recorded, Recorded) and seen.recorded.code == code
    # A word that cannot be read is replaced by the restart, which harms nothing.
    if item(seen.units, objects.RECORDER_UNIT, "its units").is_active and is_wanted:
        noop(f"the recorder runs {code[:12]}")
        return
    unit = objects.RECORDER_UNIT
    yield StringCommand(
        f"systemctl reset-failed {unit} 2>/dev/null; systemctl restart {unit} && for i in $(seq {4 * ANSWER_SECONDS});",
        f'do grep -qF \'"code": "{code}"\' {objects.MEMORY} 2>/dev/null && exit 0; sleep 0.25; done;',
        f"journalctl --quiet --unit={unit} --output=cat --lines=10 --no-pager >&2; exit 1",
    )


@node_operation
def install_protection(run: Run) -> Commands:
    """Memory that is not taken from those who come in, and from what lets them in. systemd puts it in force when it
    reads its files anew; sshd is not started anew, so OOMScoreAdjust= holds from its next start on."""
    files = run.seen().files
    for path, text in protection_texts(run.cluster).items():
        directory = path.rpartition("/")[0]
        if item(files, directory, "what is installed") is None:
            yield StringCommand("install -d -m 755", directory)
        yield from put(run, path, text, "644")
    if any(item(run.seen().units, unit, "its units").needs_reload for unit in objects.PROTECTED_UNITS):
        yield StringCommand("systemctl daemon-reload")


@node_operation
def remove_protection(run: Run) -> Commands:
    """What is ours of it; systemd takes it out of force when it reads its files anew."""
    files = run.seen().files
    paths = [objects.protection(unit) for unit in objects.PROTECTED_UNITS]
    left = [path for path in paths if item(files, path, "what is installed") is not None]
    units = run.seen().units
    if not left and not any(item(units, unit, "its units").needs_reload for unit in objects.PROTECTED_UNITS):
        noop("nothing of ours protects the login")
        return
    directories = shlex.join(path.rpartition("/")[0] for path in paths)
    yield StringCommand(
        f"rm -f {shlex.join(paths)} && {{ rmdir --ignore-fail-on-non-empty {directories} 2>/dev/null;",
        "systemctl daemon-reload; }",
    )
