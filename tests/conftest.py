"""What holds for every test: nothing reaches the network, and hypothesis repeats itself."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

# Nothing may be fetched behind a test's back, neither here nor in the programs that a test starts.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A failure that cannot be had again helps nobody; deadlines only measure how busy the computer is.
# `make test` asks for more examples of what most properties are about.
EXAMPLES = int(os.environ.get("EXAMPLES", "40"))
settings.register_profile("sparkpair", deadline=None, derandomize=True, database=None, max_examples=EXAMPLES)
settings.load_profile("sparkpair")


def _is_local(address: object) -> bool:
    """Whether a socket address stays on this computer."""
    if not isinstance(address, tuple):
        return True  # a Unix socket's path
    return str(address[0]).startswith("127.") or address[0] in ("localhost", "::1")


@pytest.fixture(autouse=True)
def _no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Refuse connections that leave this computer, except in the tests of the simulated pair."""
    if request.node.get_closest_marker("lab") or request.node.get_closest_marker("chaos"):
        yield
        return
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if not _is_local(address):
            raise AssertionError(f"test reached for the network: {address}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
    yield


@pytest.fixture(autouse=True)
def _own_hub_client() -> Iterator[None]:
    """The download sets up huggingface_hub's one client for its own process; here it shares one with other tests."""
    constants = sys.modules.get("huggingface_hub.constants")
    chunk = constants.DOWNLOAD_CHUNK_SIZE if constants else None
    yield
    constants, http = (sys.modules.get(f"huggingface_hub.{name}") for name in ("constants", "utils._http"))
    if constants is not None and chunk is not None:
        constants.DOWNLOAD_CHUNK_SIZE = chunk
    if http is not None and http._GLOBAL_CLIENT_FACTORY is not http.default_client_factory:
        http.set_client_factory(http.default_client_factory)
