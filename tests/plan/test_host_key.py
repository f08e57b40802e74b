"""A node that shows another host key than this machine has pinned: one message with both, and nothing is accepted."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from spec.transport import changed_host_key, fingerprint
from tests.plan.test_unreachable import dry

SHOWN, PINNED = paramiko.RSAKey.generate(1024), paramiko.RSAKey.generate(1024)


class Nobody(paramiko.ServerInterface):
    """A server that lets nobody in."""


@pytest.fixture
def port() -> Iterator[int]:
    """Where a server shows its key to whoever asks."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_serve, args=(listening,), daemon=True).start()
        yield listening.getsockname()[1]


def _serve(listening: socket.socket) -> None:
    while True:
        try:
            transport = paramiko.Transport(listening.accept()[0])
        except OSError:
            return
        transport.add_server_key(SHOWN)
        try:
            transport.start_server(event=threading.Event(), server=Nobody())
        except (EOFError, paramiko.SSHException):
            pass


@pytest.mark.slow
@pytest.mark.report("SSH-02")
@pytest.mark.parametrize("hashed", [False, True])
def test_a_changed_host_key_is_one_message_with_both(
    tmp_path: Path, port: int, hashed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is pinned, both fingerprints, and the command that forgets the old one; the file is as it was."""
    name = f"[127.0.0.1]:{port}"
    monkeypatch.setenv("HOME", str(tmp_path))
    pins = tmp_path / ".ssh" / "known_hosts"
    pins.parent.mkdir()
    entry = paramiko.HostKeys.hash_host(name) if hashed else name
    pins.write_text(f"# comment\n{entry} {PINNED.get_name()} {PINNED.get_base64()}\n")
    before = pins.read_bytes()
    code, said = dry(tmp_path, port)
    assert code == 1, said
    assert "Traceback" not in said
    assert (
        f"[spark-a] its ssh host key has changed: {name} shows {fingerprint(SHOWN)}, and {pins} line 2 has "
        f"{fingerprint(PINNED)}. It was not accepted: somebody else may answer there"
    ) in said, said
    assert f"      ssh-keygen -R '{name}' -f {pins}" in said, said
    assert said.count("its ssh host key has changed") == 2, "once for each node, not once for each attempt"
    assert "spark-a, spark-b cannot be reached (said above, with the reason); no node was changed" in said, said
    assert pins.read_bytes() == before


def test_a_pin_that_cannot_be_found_has_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a file that is gone, or damaged; without one it is the usual file."""
    monkeypatch.setenv("HOME", str(tmp_path))
    pins = tmp_path / "pins"
    pins.write_text("spark-a ssh-rsa !!!\n\nspark-a\n")
    for file in (str(pins), str(tmp_path / "none"), None):
        place = file or f"{tmp_path}/.ssh/known_hosts"
        said = changed_host_key("192.168.1.11", SHOWN, PINNED, file)
        assert f"and {place} has {fingerprint(PINNED)}. It was not accepted" in said
        assert said.endswith(f"ssh-keygen -R 192.168.1.11 -f {place}")
