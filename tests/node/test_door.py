"""A request to the engine leaves nothing open, however its answer ends."""

from __future__ import annotations

import gc
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from node.door import Api, Request


@pytest.fixture
def half_an_answer() -> Iterator[int]:
    """The port of a server that sends half of its one answer, and then nothing."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 100\r\n\r\nhalf")
                over.wait(10)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        over.set()
        thread.join(10)


def test_an_answer_that_does_not_end_leaves_no_descriptor(half_an_answer: int) -> None:
    """A keeper asks for years, and what waits for the garbage collector adds up meanwhile."""
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(TimeoutError) as late:  # kept, as whoever tells of it keeps it
            Request("GET", "/health", 0.2).send(Api(port=half_an_answer, model=""))
        peers = []
        for name in os.listdir("/proc/self/fd"):
            try:
                with socket.socket(fileno=os.dup(int(name))) as held:
                    peers.append(held.getpeername())
            except OSError:
                continue  # no socket, or none that is connected
        assert ("127.0.0.1", half_an_answer) not in peers, late
    finally:
        gc.enable()
