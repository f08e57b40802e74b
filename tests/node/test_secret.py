"""A secret's file: what can be used, and that a message never holds it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node import secret, service
from tests.node.world import settings

KEY = "0123456789abcdef"


@pytest.fixture
def machine_id(tmp_path: Path) -> str:
    path = tmp_path / "machine-id"
    path.write_text("5d41402abc4b2a76b9719d911017c592\n")
    return str(path)


@pytest.mark.parametrize("text", [KEY, KEY + "\n", "a+/=~!" * 4, "x" * 4096])
def test_a_line_of_printable_characters_is_a_secret(tmp_path: Path, machine_id: str, text: str):
    path = tmp_path / "api-key"
    path.write_text(text)
    assert secret.read(str(path)) == text.strip()
    identity = secret.identity(text.strip(), machine_id)
    assert secret.describe(str(path), machine_id) == {"present": True, "identity": identity, "trouble": ""}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b" \n\n", "is empty"),
        (b"one-secret-16-chars\nother-secret-16\n", "has more than one line"),
        (b"one-secret-16-chars\n\n", "has more than one line"),
        (b"one-secret-16-chars\r\n", "has blanks, or characters that are not printable ASCII"),
        (b"one secret of words\n", "has blanks, or characters that are not printable ASCII"),
        (b"one-secret-16-chars\0", "has blanks, or characters that are not printable ASCII"),
        ("geheimes-schl\u00fcsselwort".encode(), "has blanks, or characters that are not printable ASCII"),
        (b"\xff\xfe" * 20, "has blanks, or characters that are not printable ASCII"),
        (b"one-secret-15ch", "has fewer than 16 characters"),
        (b"x" * 4097, "has more than 4096 characters"),
    ],
)
def test_anything_else_is_refused_without_being_shown(tmp_path: Path, machine_id: str, data: bytes, why: str):
    path = tmp_path / "api-key"
    path.write_bytes(data)
    with pytest.raises(secret.SecretError) as caught:
        secret.read(str(path))
    assert str(caught.value) == f"{path} {why}"
    assert secret.describe(str(path), machine_id) == {"present": True, "identity": None, "trouble": why}


def test_what_is_no_file_is_neither_followed_nor_waited_for(tmp_path: Path, machine_id: str):
    (tmp_path / "secret").write_text(KEY)
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    wrong = dict.fromkeys(("directory", "pipe"), "is not a file") | {"link": "is a link"}
    for name, why in wrong.items():
        assert secret.describe(str(tmp_path / name), machine_id)["trouble"] == why
    assert secret.describe(str(tmp_path / "none"), machine_id) == {"present": False, "identity": None, "trouble": ""}
    with pytest.raises(secret.Missing, match="is missing; deploy"):
        secret.read(str(tmp_path / "none"))


def test_an_identity_is_of_one_secret_on_one_machine(tmp_path: Path, machine_id: str):
    """Known answer: scrypt with n=4096, r=8, p=1 and the machine-id as salt."""
    identity = secret.identity(KEY, machine_id)
    assert identity == "4f07155fde1ac7ca3c0a741db116b2fc613abde24c730e5880f3313430b45f34"
    other = tmp_path / "other"
    other.write_text("6d41402abc4b2a76b9719d911017c592\n")
    assert len({identity, secret.identity(KEY, str(other)), secret.identity(KEY + "0", machine_id)}) == 3
    other.write_text("")
    with pytest.raises(secret.SecretError, match="is empty; sudo systemd-machine-id-setup fills it"):
        secret.identity(KEY, str(other))
    with pytest.raises(secret.SecretError, match="No such file or directory"):
        secret.identity(KEY, str(tmp_path / "none"))


def test_settings_of_an_earlier_release_name_neither_address_nor_key():
    old = settings(8000)
    assert "key_file" not in old.text
    assert 'address":' not in old.text
    assert (old.api.host, old.api.key_file) == ("127.0.0.1", "")
    new = service.parse(old.text.replace('"model": "m"', '"model": "m", "address": "10.0.0.1", "key_file": "/k"'))
    assert (new.api.host, new.api.key_file) == ("10.0.0.1", "/k")
