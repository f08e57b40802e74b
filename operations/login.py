"""Whether the control machine still gets into a node after its network was changed."""

from __future__ import annotations

from contextlib import suppress

from pyinfra import logger
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host
from pyinfra.api.state import State

from operations.core import callback


@callback
def reach(state: State, host: Host) -> bool:
    """Prove from here that the node still lets people in: a new login made as pyinfra made the first, through the same
    jump hosts and with the same key, not the connection that is open."""
    if getattr(host.connector, "client", None) is None:
        return True  # pyinfra runs on this very node
    again = type(host.connector)(state, host)
    try:
        again.connect()
    except PyinfraError as error:
        text = f"no new login gets to this node any more ({error}); it takes the rails back by itself"
        host.log_styled(text, fg="red", log_func=logger.error)
        return False
    finally:
        client = getattr(again, "client", None)
        if client is not None:
            with suppress(OSError):  # the process of a ProxyCommand may have ended by itself
                client.close()
    return True
