"""The way to the API from the control machine: to its address, or through the connection that pyinfra has already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import Any

import gevent
from gevent import socket
from gevent.pool import Pool
from gevent.server import StreamServer
from paramiko import SSHException
from pyinfra.api.command import StringCommand
from pyinfra.api.host import Host

from checks import api
from checks.verdict import Verdict
from facts.api import Chat
from facts.values import Unknown
from operations.run import Run
from spec.objects import API_KEY_FILE

CANARY_SECONDS = 120.0
CONNECT_SECONDS = 10.0
CHUNK = 65536


def api_statements(run: Run, *, with_key: bool = True) -> Iterator[Verdict]:
    """What the API answers, wherever it listens. Without the key, where it asks for one, only that it does."""
    cluster, head = run.cluster, run.hosts[run.cluster.head.name]
    at = api.place(cluster)
    url = f"http://{at.address}:{at.port}/v1"
    key = read_key(head) if cluster.knobs.require_api_key and with_key else ""
    if isinstance(key, Unknown):
        yield api.silent(url, key)
        return
    with through(head, str(at.address), at.port) if at.behind else nullcontext((str(at.address), at.port)) as way:
        if isinstance(way, Unknown):
            yield api.silent(url, way)
            return
        client = Chat(f"http://{way[0]}:{way[1]}/v1", cluster.served_model_name, CANARY_SECONDS, key)
        if cluster.knobs.require_api_key and not with_key:
            yield api.locked(url, client.without_key())
            return
        yield from api.answers(cluster, url, client)


def read_key(host: Host) -> str | Unknown:
    """The API's key, read on the head for this run alone: it is neither printed, at any verbosity, nor written."""
    ok, output = host.run_shell_command(
        StringCommand("cat", API_KEY_FILE), _sudo=True, print_output=False, print_input=False
    )
    lines = output.stdout_lines
    if not ok:
        return Unknown(" ".join(output.stderr_lines)[-160:] or f"{API_KEY_FILE} could not be read")
    return lines[-1] if lines and lines[-1].strip() else Unknown(f"{API_KEY_FILE} is empty")


@contextmanager
def through(host: Host, address: str, port: int) -> Iterator[tuple[str, int] | Unknown]:
    """Where to connect to for an address and port as the head itself sees them: a port on this machine's loopback
    device, behind which each connection goes through pyinfra's own to the head. Without one, as for a head that is this
    machine, it is the address itself."""
    client = getattr(host.connector, "client", None)
    if client is None:
        yield address, port
        return
    transport = client.get_transport()
    try:
        # One try first: that the head forbids it shall be said, and not look like an API that hangs up.
        transport.open_channel("direct-tcpip", (address, port), ("127.0.0.1", 0), timeout=CONNECT_SECONDS).close()
    except (SSHException, OSError, EOFError) as error:
        yield Unknown(f"no way to {address}:{port} through ssh ({error}); is it allowed? sshd -T | grep tcpforwarding")
        return

    def serve(near: Any, peer: tuple[str, int]) -> None:
        with closing(near):
            try:
                far = transport.open_channel("direct-tcpip", (address, port), peer, timeout=CONNECT_SECONDS)
            except (SSHException, OSError, EOFError):
                return  # the client is told by the end of its connection
            with closing(far):
                gevent.joinall([gevent.spawn(_pump, near, far), gevent.spawn(_pump, far, near)])

    server = StreamServer(("127.0.0.1", 0), serve, spawn=Pool())
    server.start()
    try:
        yield "127.0.0.1", int(server.server_port)
    finally:
        server.stop(timeout=1)


def _pump(source: Any, sink: Any) -> None:
    try:
        while data := source.recv(CHUNK):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except (OSError, EOFError):
        pass  # either side has gone
