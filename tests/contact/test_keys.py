"""Keys on the control machine: which one a node is given, and what known_hosts says of a node."""

from __future__ import annotations

from pathlib import Path

import paramiko
import pytest

from contact import host_keys, own_keys
from contact.place import Place
from contact.words import Refused


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The operator's, without an agent."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / ".ssh").mkdir()
    return tmp_path


def node(home: Path, host: str = "192.168.1.10", port: int = 22) -> Place:
    return Place(host, "alice", port, host, (home / ".ssh/known_hosts",))


def test_one_is_made_where_there_is_none(home: Path) -> None:
    assert own_keys.find(None).to_give() is None
    made = own_keys.make()
    assert (home / ".ssh/id_ed25519").stat().st_mode & 0o777 == 0o600
    assert (home / ".ssh/id_ed25519.pub").read_text().startswith(f"{made.line} ")
    assert own_keys.find(None).to_give() == own_keys.find(None).keys[0]
    with pytest.raises(Refused, match="cannot be written"):
        own_keys.make()  # never over another


def test_one_with_a_passphrase_is_of_no_use_alone(home: Path) -> None:
    paramiko.ECDSAKey.generate().write_private_key_file(str(home / ".ssh/id_ecdsa"), password="secret")
    with pytest.raises(Refused, match=r"id_ecdsa: has a passphrase, and no agent holds the key"):
        own_keys.find(None).to_give()
    own_keys.make()
    given = own_keys.find(None).to_give()
    assert given is not None and given.place.endswith("id_ed25519")


def test_the_key_that_is_stated(home: Path) -> None:
    paramiko.ECDSAKey.generate().write_private_key_file(str(home / "mine"))
    assert [key.place for key in own_keys.find(home / "mine").keys] == [str(home / "mine")]
    with pytest.raises(Refused, match="no such file"):
        own_keys.find(home / "absent")
    (home / "text").write_text("no key")
    with pytest.raises(Refused, match="is no private key"):
        own_keys.find(home / "text")


def test_what_is_pinned(home: Path) -> None:
    """By name, by port, hashed; damaged lines, patterns and certificates are about nobody."""
    key, other = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
    line = f"{key.get_name()} {key.get_base64()}"
    hashed = paramiko.HostKeys.hash_host("[192.168.1.11]:2222")
    (home / ".ssh/known_hosts").write_text(
        f"# a comment\n\n@revoked 192.168.1.10 {line}\n192.168.1.10 ssh-rsa AAAA\nspark-a,192.168.1.10 {line}\n"
        f"{hashed} {line}\nno line at all"
    )
    assert [(known.line, known.key) for known in host_keys.known(node(home))] == [(5, key)]
    assert [known.line for known in host_keys.known(node(home, "192.168.1.11", 2222))] == [6]
    assert host_keys.known(node(home, "192.168.1.11")) == ()
    assert host_keys.judge(node(home), key)
    assert not host_keys.judge(node(home, "192.168.1.12"), key)
    with pytest.raises(Refused, match="is not the one that is pinned"):
        host_keys.judge(node(home), other)


def test_a_line_is_added_after_one_without_an_end(home: Path) -> None:
    key = paramiko.ECDSAKey.generate()
    (home / ".ssh/known_hosts").write_text("spark-z ssh-ed25519 AAAA")
    host_keys.pin(node(home), key)
    assert (home / ".ssh/known_hosts").read_text() == (
        f"spark-z ssh-ed25519 AAAA\n192.168.1.10 {key.get_name()} {key.get_base64()}\n"
    )
    (home / ".ssh/known_hosts").unlink()
    host_keys.pin(node(home), key)
    assert (home / ".ssh/known_hosts").stat().st_mode & 0o777 == 0o600


def test_an_agent_with_many_keys(home: Path) -> None:
    """A deploy tries the agent's first, and would be turned away before it comes to the file."""
    held = tuple(own_keys.OwnKey(paramiko.ECDSAKey.generate(), own_keys.AGENT) for _ in range(5))
    assert own_keys.OwnKeys(held).is_crowded
    assert not own_keys.OwnKeys(held[1:]).is_crowded
