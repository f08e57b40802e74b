"""What every operation of ours has in common: it is derived from facts, and what it changes is looked at anew."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import wraps
from typing import Any, ParamSpec

from paramiko import SSHException
from pyinfra import logger
from pyinfra.api.command import FunctionCommand, PyinfraCommand
from pyinfra.api.exceptions import OperationError
from pyinfra.api.host import Host
from pyinfra.api.operation import operation
from pyinfra.api.state import State
from pyinfra.context import ctx_host, ctx_state

from facts.node import forget
from facts.values import UnknownFact
from operations import lock

P = ParamSpec("P")
Commands = Generator[str | PyinfraCommand, None, None]


def node_operation(function: Callable[P, Commands]) -> Any:
    """A pyinfra operation whose commands make the facts of the node out of date."""

    @operation()
    @wraps(function)
    def generator(*args: P.args, **kwargs: P.kwargs) -> Commands:
        host = ctx_host.get()
        try:
            if ctx_state.get().is_executing:
                lock.must_hold()
            for command in function(*args, **kwargs):
                yield command
                # Only an executed command gets here: while preparing, pyinfra stops at the first one.
                forget(host)
        except OperationError as error:
            if not ctx_state.get().is_executing:
                raise  # pyinfra ends the run with the message
            # Raised now, it would end in a traceback per node: as a step that fails it is one message.
            yield FunctionCommand(_tell, (str(error),), {})

    return generator


def _tell(state: State, host: Host, text: str) -> bool:
    del state
    host.log_styled(text, fg="red", log_func=logger.error)
    return False


def callback(function: Callable[..., bool]) -> Callable[..., bool]:
    """A step in Python, `function(state, host, ...)`; what goes wrong on the way is one line, not a traceback."""

    def guarded(state: State, host: Host, *args: Any, **kwargs: Any) -> bool:
        try:
            return function(state, host, *args, **kwargs)
        except (OSError, EOFError, SSHException, UnknownFact) as error:
            what = "the connection was lost" if not isinstance(error, UnknownFact) else ""
            text = ": ".join(part for part in (what, str(error)) if part)
            text = f"{text}. Run the same command again: it goes on from here"
            host.log_styled(text, fg="red", log_func=logger.error)
            return False

    return guarded


def is_executing() -> bool:
    """Whether commands are being carried out, rather than planned."""
    return bool(ctx_state.get().is_executing)


def noop(reason: str) -> None:
    """Say why there is nothing to do; shown with -v."""
    ctx_host.get().noop(reason)


def fail(message: str) -> OperationError:
    """An error that ends the run with this message."""
    return OperationError(message)
