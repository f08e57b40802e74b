"""The API's key: made on the head, read for a verification, and nowhere to be seen; and the way to the API."""

from __future__ import annotations

import base64
import logging
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gevent
import pytest
from gevent import socket
from gevent.server import StreamServer
from paramiko import ChannelException
from pyinfra.connectors.util import CommandOutput, OutputLine
from pyinfra.context import ctx_config, ctx_host, ctx_inventory, ctx_state

from facts.values import Unknown
from operations.api import read_key, through
from roles import engine
from roles.engine import make_api_key, make_key_command
from spec.objects import API_KEY_FILE
from tests.plan.cases import WITH_KEY, Case, no_key, readable_key
from tests.plan.conftest import cluster_of
from tests.plan.test_operations import A, B, Bench
from tests.plan.world import converged

KEY = "a-key-that-nobody-may-see"


@pytest.fixture(autouse=True)
def _contexts() -> Iterator[None]:
    yield
    for context in (ctx_config, ctx_state, ctx_inventory, ctx_host):
        context.reset()


def bench(*, key: bool = True) -> Bench:
    return Bench(converged(cluster_of(Case("x", always=WITH_KEY if key else {}))))


def run(command: str) -> int:
    return subprocess.run(["sh", "-c", command], capture_output=True, check=False).returncode


def test_a_missing_key_is_made_on_the_head_alone() -> None:
    here = bench()
    no_key(here.world)
    assert here.do(make_api_key) == {A: [make_key_command(API_KEY_FILE)], B: []}
    assert bench().do(make_api_key) == {A: [], B: []}


def test_a_key_that_others_may_read_is_shut_and_kept() -> None:
    here = bench()
    readable_key(here.world)
    assert here.do(make_api_key) == {A: [f"chown root:root {API_KEY_FILE} && chmod 600 {API_KEY_FILE}"], B: []}


def test_no_key_is_made_where_none_is_asked_for() -> None:
    assert bench(key=False).do(make_api_key) == {A: [], B: []}


def test_the_command_makes_a_key_of_32_random_bytes(tmp_path: Path) -> None:
    keys = []
    for name in ("one", "two"):
        path = tmp_path / name / "api-key"
        path.parent.mkdir()
        assert run(f"umask 022; {make_key_command(str(path))}") == 0
        assert [entry.name for entry in path.parent.iterdir()] == ["api-key"]
        assert path.stat().st_mode & 0o777 == 0o600
        text = path.read_text()
        assert re.fullmatch(r"[A-Za-z0-9+/=]{44}\n", text)
        assert len(base64.b64decode(text)) == 32
        keys.append(text)
    assert keys[0] != keys[1]


def test_a_key_that_came_meanwhile_stays(tmp_path: Path) -> None:
    (tmp_path / "api-key").write_text(f"{KEY}\n")
    (tmp_path / "api-key.sparkpair-new").write_text("cut short")
    assert run(make_key_command(str(tmp_path / "api-key"))) == 0
    assert (tmp_path / "api-key").read_text() == f"{KEY}\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["api-key"]


def test_without_its_directory_no_key_is_made(tmp_path: Path) -> None:
    assert run(make_key_command(str(tmp_path / "none" / "api-key"))) != 0


def test_the_key_is_read_for_a_verification_and_never_printed(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    here = bench()
    host = here.hosts[A]
    connector = cast(Any, host.connector)
    connector._lookup_response = lambda command: (True, CommandOutput([OutputLine("stdout", KEY)]))
    here.state.print_output = here.state.print_input = here.state.print_fact_output = True
    with caplog.at_level(logging.DEBUG):
        assert read_key(host) == KEY
    assert connector.executed_commands[-1] == f"cat {API_KEY_FILE}"
    assert KEY not in caplog.text
    assert KEY not in "".join(capfd.readouterr())


def test_a_whole_run_says_nothing_of_the_key(outcomes: dict[str, Any]) -> None:
    """The control machine is told the identity at most; the plan and its differences do not even show that."""
    for name in ("fresh, with a key", "a key is asked for", "another key"):
        text = outcomes[name].stdout + outcomes[name].stderr
        assert "5" * 64 not in text
        assert "6" * 64 not in text


class Transport:
    """What of paramiko's is used: a channel to an address as the other end sees it."""

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses
        self.asked: list[tuple[str, tuple[str, int]]] = []

    def open_channel(self, kind: str, to: tuple[str, int], peer: tuple[str, int], timeout: float) -> Any:
        self.asked.append((kind, to))
        if self.refuses:
            raise ChannelException(1, "Administratively prohibited")
        return socket.create_connection(("127.0.0.1", to[1]), timeout=timeout)


def host_with(transport: Transport | None) -> Any:
    client = SimpleNamespace(get_transport=lambda: transport) if transport else None
    return SimpleNamespace(connector=SimpleNamespace(client=client))


@pytest.fixture
def echo() -> Iterator[StreamServer]:
    """Answers a whole request in capitals when its sender has said all."""

    def serve(near: Any, _: object) -> None:
        data = b""
        while part := near.recv(65536):
            data += part
        near.sendall(data.upper())
        near.close()

    server = StreamServer(("127.0.0.1", 0), serve)
    server.start()
    yield server
    server.stop()


def ask(way: tuple[str, int], data: bytes) -> bytes:
    with socket.create_connection(way, timeout=5) as near:
        near.sendall(data)
        near.shutdown(socket.SHUT_WR)
        answer = b""
        while part := near.recv(65536):
            answer += part
        return answer


def test_a_loopback_api_is_reached_through_the_head(echo: StreamServer) -> None:
    transport = Transport()
    with through(host_with(transport), "127.0.0.1", echo.server_port) as way:
        assert not isinstance(way, Unknown)
        assert way[0] == "127.0.0.1"
        assert way[1] != echo.server_port
        both = [gevent.spawn(ask, way, text * 50000) for text in (b"one", b"other")]
        assert [one.get(timeout=10) for one in both] == [b"ONE" * 50000, b"OTHER" * 50000]
    assert set(transport.asked) == {("direct-tcpip", ("127.0.0.1", echo.server_port))}
    with pytest.raises(OSError, match="refused"):
        ask(way, b"after the end")


def test_a_head_that_is_this_machine_is_asked_directly() -> None:
    with through(host_with(None), "127.0.0.2", 8000) as way:
        assert way == ("127.0.0.2", 8000)


def test_a_head_that_forbids_it_is_named() -> None:
    with through(host_with(Transport(refuses=True)), "127.0.0.1", 8000) as way:
        assert isinstance(way, Unknown)
        assert way.reason.startswith("no way to 127.0.0.1:8000 through ssh (")
        assert "Administratively prohibited" in way.reason


def test_the_row_comes_before_the_launch(outcomes: dict[str, Any]) -> None:
    order = outcomes["fresh, with a key"].order
    assert order.index("Engine | Make the API key") + 1 == order.index("Engine | Install the wanted launch")
    assert engine.make_api_key is make_api_key
