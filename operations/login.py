"""Whether the control machine still gets into a node after its network was changed."""

from __future__ import annotations

import time
from contextlib import suppress

from paramiko import SSHException
from pyinfra import logger
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host
from pyinfra.api.state import State

from operations.core import callback

TRY_SECONDS = 15
"""For how long a login is tried: a management address may be away for a moment (field reports: NET-07)."""
POLL_SECONDS = 0.5


@callback
def reach(state: State, host: Host) -> bool:
    """Prove from here that the node still lets people in: a new login made as pyinfra made the first, through the same
    jump hosts and with the same key, not the connection that is open."""
    if getattr(host.connector, "client", None) is None:
        return True  # pyinfra runs on this very node
    until = time.monotonic() + TRY_SECONDS
    while trouble := _trouble(state, host):
        if time.monotonic() > until:
            text = f"no new login gets to this node any more ({trouble}); it takes the rails back by itself"
            host.log_styled(text, fg="red", log_func=logger.error)
            return False
        time.sleep(POLL_SECONDS)
    return True


def _trouble(state: State, host: Host) -> str:
    """What kept a new login out; "" where it got in."""
    again = type(host.connector)(state, host)
    try:
        again.connect()
    except (PyinfraError, OSError, EOFError, SSHException) as error:
        return str(error) or type(error).__name__
    finally:
        client = getattr(again, "client", None)
        if client is not None:
            with suppress(OSError):  # the process of a ProxyCommand may have ended by itself
                client.close()
    return ""
