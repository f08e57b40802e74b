"""pyinfra's connection data, and what is wrong with an inventory before anything connects."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from pyinfra.api.exceptions import InventoryError
from pyinfra.connectors.ssh import connector_data_meta

from spec import transport


def test_data_is_what_pyinfra_knows(tmp_path: Path) -> None:
    """Every key is one of pyinfra's; the key's file is checked and ~ expanded."""
    key = tmp_path / "id_ed25519"
    key.touch()
    data = transport.ssh("192.168.1.10", "alice", key=str(key), port=2222, known_hosts="~/hosts")
    assert set(data) <= set(connector_data_meta)
    assert (data["ssh_hostname"], data["ssh_user"], data["ssh_port"]) == ("192.168.1.10", "alice", 2222)
    assert data["ssh_key"] == str(key)
    assert data["ssh_known_hosts_file"] == str(Path.home() / "hosts")
    assert set(transport.ssh("h", "u")) & {"ssh_key", "ssh_known_hosts_file"} == set()


def test_nagle_is_off() -> None:
    """The socket that the transport gets has TCP_NODELAY."""
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as sock:
        factory = transport.ssh("h", "u")["ssh_paramiko_connect_kwargs"]["transport_factory"]
        made = factory(sock, disabled_algorithms=None)
        try:
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        finally:
            made.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"key": "/nowhere/id"},
            "inventory: h: key = '/nowhere/id': no such file on this machine; name one of ~/.ssh, make one with "
            "ssh-keygen -t ed25519, or leave key out to use your SSH agent",
        ),
        ({"port": 0}, "inventory: h: port = 0: must be 1 to 65535"),
        ({"port": True}, "inventory: h: port = True: must be 1 to 65535"),
        ({"user": "al ice"}, "inventory: h: user = 'al ice': must be the name of a user on the node"),
        (
            {"host": "alice@h"},
            "inventory: host = 'alice@h': must be an address or a host name, without user and port",
        ),
    ],
)
def test_refused(arguments: dict[str, object], message: str) -> None:
    """pyinfra prints an InventoryError as one line."""
    with pytest.raises(InventoryError) as refused:
        transport.ssh(**{"host": "h", "user": "u", **arguments})  # type: ignore[arg-type]
    assert str(refused.value) == message


def test_public_half_is_refused(tmp_path: Path) -> None:
    """The likeliest slip with a key."""
    key = tmp_path / "id_ed25519.pub"
    key.touch()
    with pytest.raises(InventoryError) as refused:
        transport.ssh("h", "u", key=str(key))
    assert (
        str(refused.value) == f"inventory: h: key = {str(key)!r}: is the public half; name the private one, id_ed25519"
    )
