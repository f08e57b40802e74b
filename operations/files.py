"""Whole files on a node: written only when they differ, at once or not at all."""

from __future__ import annotations

import shlex

from pyinfra import logger
from pyinfra.api.command import StringCommand
from pyinfra.api.output import format_text
from pyinfra.context import ctx_host, ctx_state
from pyinfra.facts.files import FileContents
from pyinfra.operations.util.files import generate_color_diff

from facts.values import File, item
from operations.core import Commands, node_operation, noop
from operations.run import Run, digest


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
        _show(path, text, now)
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


def _show(path: str, text: str, now: File | None) -> None:
    """What --diff shows, in pyinfra's own form."""
    if not ctx_state.get().config.DIFF:
        return
    host = ctx_host.get()
    lines: list[str] = []
    if now is not None and now.kind == "file":
        lines = [f"{line}\n" for line in host.get_fact(FileContents, path=path) or []]
    host.log(f"Will {'modify' if now else 'create'} {format_text(path, bold=True)}", logger.info)
    for line in generate_color_diff(lines, text.splitlines(keepends=True)):
        logger.info("  %s", line)
    logger.info("")
