"""Keeper: the units, the way from the head to the workers, and the hand-over of what is wanted."""

from __future__ import annotations

from pyinfra import logger
from pyinfra.api.command import FunctionCommand, StringCommand
from pyinfra.api.deploy import deploy

from checks import pair, rejected
from checks.pair import Todo
from checks.rejected import short
from facts.values import STATUS, item, known
from operations import wanted
from operations.core import Commands, fail, is_executing, node_operation, noop
from operations.files import put
from operations.follow import follow
from operations.run import Run
from operations.units import shell
from spec import objects
from spec.render import authorized_keys_text, known_hosts_text, service_text, unit_text

COMMAND = objects.CLI
ANSWER_SECONDS = 30


@deploy("Keeper")
def keeper(run: Run) -> None:
    """Everything is in place on every node before the pair is touched; then one row does that."""
    install_settings(name="Install the keeper's settings", run=run)
    install_key(name="Install the keeper's key", run=run)
    install_trust(name="Install what lets the keeper in", run=run)
    install_unit(name=f"Install {objects.AGENT_UNIT}", run=run, unit=objects.AGENT_UNIT)
    install_unit(name=f"Install {objects.KEEPER_UNIT}", run=run, unit=objects.KEEPER_UNIT)
    start_agent(name="Start the new agent", run=run)
    start_keeper(name="Start the new keeper", run=run)
    hand_over(name="Start the pair", run=run, when=Todo.START)
    hand_over(name="Restart the pair", run=run, when=Todo.RESTART)
    wait_for_pair(name="Wait for the pair", run=run)


@node_operation
def install_settings(run: Run) -> Commands:
    """How the keeper supervises; no running rank depends on it."""
    if not run.node.is_head:
        noop("the keeper is on the head")
        return
    yield from put(run, objects.SERVICE_FILE, service_text(run.cluster), "600")


@node_operation
def install_key(run: Run) -> Commands:
    """Made on the head, which its private half never leaves."""
    if not run.node.is_head:
        noop("the keeper is on the head")
        return
    files = run.seen().files
    halves = [item(files, path, "the keeper's key") for path in (objects.KEY_FILE, f"{objects.KEY_FILE}.pub")]
    if None not in halves:
        noop("the keeper has its key")
        return
    yield StringCommand(
        "rm -f", objects.KEY_FILE, f"{objects.KEY_FILE}.pub",
        "&& ssh-keygen -q -t ed25519 -N '' -C", f"'{objects.KEY_COMMENT}'", "-f", objects.KEY_FILE,
    )  # fmt: skip


@node_operation
def install_trust(run: Run) -> Commands:
    """The worker's line for the keeper's key, and the head's line for the worker's host key.

    The public half is read when it is needed: on a first deploy it is made by the row before.
    """
    if run.node.is_head:
        keys = {node.rank: known(run.seen(node).host_key, f"{node.name}'s host key") for node in run.cluster.workers}
        yield from put(run, objects.KNOWN_HOSTS, known_hosts_text(run.cluster, keys), "644")
        return
    what = "the keeper's public key"
    public = known(item(run.seen(run.cluster.head).texts, f"{objects.KEY_FILE}.pub", what), what)
    if public is None:
        if is_executing():
            raise fail(f"{objects.KEY_FILE}.pub is not on {run.cluster.head.name}, though it was made a moment ago")
        yield "true"  # in the plan only: what is to be written is not known before the key is made
        return
    yield from put(run, objects.AUTHORIZED_KEYS, authorized_keys_text(run.cluster, public), "644")


@node_operation
def install_unit(run: Run, unit: str) -> Commands:
    """The unit's file, systemd told of it, and started at boot from now on."""
    if unit == objects.KEEPER_UNIT and not run.node.is_head:
        noop("the keeper is on the head")
        return
    yield from put(run, f"{objects.UNIT_DIRECTORY}/{unit}", unit_text(unit), "644")
    # Looked at anew after the file was written; a reload that an earlier run did not get to is made up for.
    now = item(run.seen().units, unit, "its units")
    if now.needs_reload:
        yield StringCommand("systemctl daemon-reload")
    if now.file_state != "enabled":
        yield StringCommand("systemctl enable --quiet", unit)


@node_operation
def start_agent(run: Run) -> Commands:
    """The agent runs, and runs the installed programs. Its rank goes on while it is replaced."""
    seen = run.seen()
    now = item(seen.units, objects.AGENT_UNIT, "its units")
    # A word that cannot be read is replaced by the restart, which harms nothing.
    if now.is_active and seen.agent_code == run.programs_hash:
        noop(f"the agent runs {run.programs_hash[:12]}")
        return
    yield from _restart(objects.AGENT_UNIT)


@node_operation
def start_keeper(run: Run) -> Commands:
    """The keeper runs, with the installed programs and settings. The pair goes on while it is replaced."""
    if not run.node.is_head:
        noop("the keeper is on the head")
        return
    status = pair.status_of(run.seen())
    code, service = run.programs_hash, wanted.service(run)
    if status is not None and (status.code, status.service) == (code, service):
        noop(f"the keeper runs {run.programs_hash[:12]}")
        return
    yield from _restart(objects.KEEPER_UNIT)
    yield StringCommand(
        f"for i in $(seq {4 * ANSWER_SECONDS}); do",
        f'grep -qF \'"code": "{code}", "service": "{service}"\' {STATUS} 2>/dev/null && exit 0;',
        "sleep 0.25; done;",
        f"journalctl --quiet --unit={objects.KEEPER_UNIT} --output=cat --lines=10 --no-pager >&2; exit 1",
    )


@node_operation
def hand_over(run: Run, when: Todo) -> Commands:
    """Ask the keeper to take over the wanted set, if that is what is to be done; it finishes even if this run dies."""
    if not run.node.is_head:
        noop("the keeper is on the head")
        return
    now = pair.accepted(run.seen())
    engine = wanted.engine(run)
    if now.desired == "stop":
        text = f"the pair is stopped on purpose, and stays so: sudo sparkpair start on {run.node.name}"
        if now.engine != engine:
            text += " starts the launch accepted before; deploy again after that for this one"
        noop(text)
        if when is Todo.START:
            run.host.log_styled(text, fg="yellow", log_func=logger.warning)
        return
    if pair.todo(now, engine) is not when:
        noop(f"the keeper has accepted {short(now.engine)}, and is {now.phase}")
        return
    if engine is None and is_executing():
        raise fail(
            "what the engine depends on is not known, though it was made: a manifest on some node, or the API key"
        )
    found = rejected.rejection(run.seen(), engine)
    if found is not None and not rejected.is_retried(run.cluster, engine):
        # Preflight says so where it can; here the files have been hashed, and the keeper is there to be asked.
        raise fail(f"{rejected.statement(engine, found)}\n    Fix: {rejected.remedy(engine)}")
    if when is Todo.RESTART and not is_executing():
        text = f"the pair serves {short(now.engine)}; wanted is {short(engine)}: one restart"
        run.host.log_styled(text, fg="yellow", log_func=logger.info)
    yield shell([COMMAND, "accept", *(["--again"] if found is not None else []), engine or "unknown"])


@node_operation
def wait_for_pair(run: Run) -> Commands:
    """Follow the keeper until the pair answers. Planned never: that somebody waits changes nothing."""
    if not run.node.is_head or not is_executing():
        noop("followed when the pair is being started")
        return
    status, engine = pair.status_of(run.seen()), wanted.engine(run)
    # It may have been rejected, and the last good one be up again, before anybody looked.
    is_rejected = status is not None and engine != status.accepted and engine in status.rejected
    if status is None or status.desired == "stop" or (status.phase == "running" and not is_rejected):
        noop(f"the pair is {status.phase if status else 'not the keeper’s yet'}")
        return
    yield FunctionCommand(follow, (run, engine), {})


def _restart(unit: str) -> Commands:
    # A unit that failed too often would refuse to start.
    yield StringCommand(f"systemctl reset-failed {unit} 2>/dev/null; systemctl restart {unit}")
