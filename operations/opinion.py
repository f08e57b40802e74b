"""Ask the engine about a changed launch before the keeper is handed it: in a throwaway container of its image, without
GPU and network, under a memory limit that a serving node can spare."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gevent.lock import RLock
from paramiko import SSHException
from pyinfra import logger
from pyinfra.api.command import StringCommand

from checks import access, image, opinion
from checks.opinion import Opinion, Place
from checks.verdict import Verdict
from facts.values import Image, UnknownFact
from operations import engine_side, throwaway, wanted
from operations.core import Commands, fail, is_executing, node_operation, noop
from operations.run import Run
from spec.render import rank_text

NAME = "sparkpair-opinion"
END_SECONDS = opinion.PATIENCE_SECONDS + 30
"""When the container is ended from outside, should its own limit have failed."""
NOT_ASKED = "the engine was not asked about the changed launch: {}; whether it takes it is unknown"
NOT_KNOWN = "the engine was asked about the changed launch, and its opinion is not wholly known: {}"


@dataclass
class _Asked:
    """What this run has found out; it asks once, whichever host comes first."""

    turn: Any = field(default_factory=RLock)
    done: bool = False
    refusals: tuple[Verdict, ...] = ()


_asked = _Asked()


def refusals(run: Run) -> tuple[Verdict, ...]:
    """What the engine refuses of the wanted launch, where that is another than the keeper has accepted and the image is
    on a node. What is not known is told as a warning, and refuses nothing."""
    with _asked.turn:
        if not _asked.done:
            _ask_if_due(run)
        return _asked.refusals


def _ask_if_due(run: Run) -> None:
    facts = run.all_seen()
    if not all(access.usable(seen) for seen in facts.values()):
        return  # refused already
    try:
        texts = [rank_text(run.cluster, node) for node in run.cluster.nodes]
        due = opinion.is_due(run.cluster, facts, wanted.engine(run), texts)
    except UnknownFact as error:
        _asked.done = True
        _say(run, NOT_ASKED, str(error))
        return
    if not due:
        _asked.done = True
        return
    if not opinion.holders(run.cluster, facts):
        return  # asked when the image has been pulled
    _asked.done = True
    where = opinion.place(run.cluster, facts)
    if isinstance(where, str):
        _say(run, NOT_ASKED, where)
        return
    found = _ask(run, where)
    for doubt in found.doubts:
        _say(run, NOT_KNOWN, doubt)
    if found.engine:
        logger.info(
            f"    vLLM {found.engine} on {where.node.name} was asked about the launch: {found.seconds:.0f} s, "
            f"{found.peak_mib} MiB"
        )
    _asked.refusals = found.refusals


def _say(run: Run, form: str, reason: str) -> None:
    host = run.hosts[run.cluster.head.name]
    host.log_styled(form.format(reason), fg="yellow", log_func=logger.warning)


def _ask(run: Run, where: Place) -> Opinion:
    program = Path(engine_side.__file__).read_text(encoding="utf-8")
    asked = {**opinion.question(run.cluster, where), "program": program, "bootstrap": engine_side.BOOTSTRAP}
    host = run.hosts[where.node.name]
    floor = opinion.floor(run.cluster)
    held = image.find(run.cluster, run.seen(where.node))
    if not isinstance(held, Image):
        return Opinion(doubts=(f"the image is not on {where.node.name} any more",))
    command = StringCommand(command_line(held.id, run.cluster.knobs.opinion_memory_mib, floor, where))
    try:
        _, output = host.run_shell_command(command, _sudo=True, _stdin=json.dumps(asked), _timeout=2 * END_SECONDS + 30)
    except (OSError, EOFError, SSHException) as error:
        return Opinion(doubts=(f"{where.node.name} gave no answer: {str(error) or type(error).__name__}",))
    return opinion.read(run.cluster, output.output_lines)


def command_line(image: str, memory_mib: int, floor: int, where: Place) -> str:
    """The shell line that runs the container."""
    words = ["-c", engine_side.BOOTSTRAP, "watch"]
    return throwaway.command_line(
        NAME, image, words, memory_mib, floor, END_SECONDS, scratch=where.scratch, mounts=where.mounts
    )


@node_operation
def ask_the_engine(run: Run) -> Commands:
    """Ask where preflight could not, since the image was on no node: after the pull, before anything else is handed
    over. Planned never, since asking changes nothing."""
    if run.node.is_head and is_executing():
        refused = refusals(run)
        if refused:
            raise fail("\n".join(verdict.text().strip() for verdict in refused))
    noop("asked when the launch is another than the one accepted")
    yield from ()
