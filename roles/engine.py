"""Engine: what the ranks are to run, in stable places. The keeper takes it from there."""

from __future__ import annotations

import shlex

from pyinfra.api.command import StringCommand
from pyinfra.api.deploy import deploy

from checks import api_key
from facts.values import item, known
from operations.core import Commands, node_operation, noop
from operations.files import install_file
from operations.opinion import ask_the_engine
from operations.run import Run
from spec import objects
from spec.render import rank_text


@deploy("Engine")
def engine(run: Run) -> None:
    """The wanted launch of this node's rank; its difference is what --diff shows."""
    ask_the_engine(name="Ask the engine about its arguments", run=run)
    make_api_key(name="Make the API key", run=run)
    install_file(
        name="Install the wanted launch",
        run=run,
        path=objects.RANK_FILE,
        text=rank_text(run.cluster, run.node),
        mode="600",
    )


@node_operation
def make_api_key(run: Run) -> Commands:
    """Made on the head, which it never leaves; one that is there already, made here or written by the operator, stays,
    and is root's alone."""
    if not (run.node.is_head and run.cluster.knobs.require_api_key):
        noop("no key is asked for here")
        return
    path = objects.API_KEY_FILE
    if not known(api_key.of(run.seen(), path), "the API key").present:
        yield StringCommand(make_key_command(path))
        return
    now = item(run.seen().files, path, "what is installed")
    if now is not None and (now.mode, now.owner, now.group) != ("600", "root", "root"):
        yield StringCommand("chown root:root", path, "&& chmod 600", path)
        return
    noop(f"{path} is there")


def make_key_command(path: str) -> str:
    """The shell line that writes 32 random bytes as one line of base64, as a whole or not at all. It goes through pipes
    only, so that no process list shows it; an operator's own that came meanwhile stays."""
    place, new = shlex.quote(path), shlex.quote(f"{path}.sparkpair-new")
    return (
        f"umask 077 && rm -f {new} && head -c 32 /dev/urandom | base64 > {new} && "
        f'[ "$(wc -c < {new})" -eq 45 ] && sync {new} && {{ ln -T {new} {place} || [ -e {place} ]; }} && rm -f {new}'
    )
