"""Whole files on a node: written only when they differ, at once or not at all."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence

from pyinfra import logger
from pyinfra.api.command import StringCommand
from pyinfra.api.output import format_text
from pyinfra.context import ctx_host, ctx_state
from pyinfra.facts.files import FileContents
from pyinfra.operations.util.files import generate_color_diff

from facts.node import keep_unprinted
from facts.values import File, item
from operations.core import Commands, node_operation, noop
from operations.run import Run, digest
from spec.knobs import KNOBS


@node_operation
def install_file(run: Run, path: str, text: str, mode: str, owner: str = "root", group: str = "root") -> Commands:
    """Make a file have this text, mode and owner."""
    yield from put(run, path, text, mode, owner, group)


@node_operation
def install_directories(run: Run, wanted: dict[str, tuple[str, str, str]]) -> Commands:
    """Make directories exist: {path: (mode, owner, group)}, parents before what is in them."""
    files = run.seen().files
    done = True
    for path, (mode, owner, group) in wanted.items():
        now = item(files, path, "what is installed")
        if now is None or (now.kind, now.mode, now.owner, now.group) != ("directory", mode, owner, group):
            done = False
            yield StringCommand("install", "-d", "-m", mode, "-o", owner, "-g", group, shlex.quote(path))
    if done:
        noop("the directories are there")


def put(run: Run, path: str, text: str, mode: str, owner: str = "root", group: str = "root") -> Commands:
    """The commands of install_file, for operations that install more than one thing."""
    now = item(run.seen().files, path, "what is installed")
    if now is None or now.sha256 != digest(text):
        _show(run, path, text, now)
        yield write(path, text, mode, owner, group)
    elif (now.mode, now.owner, now.group) != (mode, owner, group):
        place = shlex.quote(path)
        yield StringCommand("chown", f"{owner}:{group}", place, "&& chmod", mode, place)
    else:
        noop(f"{path} is as wanted")


def write(path: str, text: str, mode: str, owner: str = "root", group: str = "root") -> StringCommand:
    """The command that replaces a file, as a whole or not at all.

    Not pyinfra's files.put: that goes through a file in /tmp which others can read and whose name they can guess,
    writes into the file that is in force, and takes nine commands.
    """
    place, new = shlex.quote(path), shlex.quote(f"{path}.sparkpair-new")
    return StringCommand(
        "umask 077 && cat >", new, "&& chown", f"{owner}:{group}", new, "&& chmod", mode, new, "&& sync", new,
        "&& mv -fT", new, place,
        _stdin=text,
    )  # fmt: skip


def _show(run: Run, path: str, text: str, now: File | None) -> None:
    """What --diff shows, in pyinfra's own form, without the operator's secrets."""
    if not ctx_state.get().config.DIFF:
        return
    host = ctx_host.get()
    variables = run.cluster.stack.variables | {name for knob in KNOBS.values() if knob.env for name in knob.env.names}
    lines: list[str] = []
    if now is not None and now.kind == "file":
        keep_unprinted(host.state)
        lines = [f"{line}\n" for line in host.get_fact(FileContents, path=path) or []]
    host.log(f"Will {'modify' if now else 'create'} {format_text(path, bold=True)}", logger.info)
    before, after = masked(lines, text.splitlines(keepends=True), variables)
    for line in generate_color_diff(before, after):
        logger.info("  %s", line)
    logger.info("")


_VARIABLE = re.compile(r"""^(\s*\["([A-Za-z_][A-Za-z0-9_]*)", )("(?:[^"\\]|\\.)*")(\],?\s*)$""")
HIDDEN, CHANGED = '"<hidden>"', '"<hidden, changed>"'


def masked(before: Sequence[str], after: Sequence[str], plain: Collection[str]) -> tuple[list[str], list[str]]:
    """Lines of a rank file, old and new, with no value of a variable that is not in `plain`: what the operator states
    as engine_env may be a token. That a value changed can still be seen."""
    old = {found.group(2): found.group(3) for line in before if (found := _VARIABLE.match(line))}

    def mask(line: str, changed: bool) -> str:
        found = _VARIABLE.match(line)
        if not found or found.group(2) in plain:
            return line
        differs = changed and old.get(found.group(2), found.group(3)) != found.group(3)
        return found.group(1) + (CHANGED if differs else HIDDEN) + found.group(4)

    return [mask(line, False) for line in before], [mask(line, True) for line in after]
