"""The download's client and the operator's token on their way to a node."""

from __future__ import annotations

import base64
import hashlib
import io
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import huggingface_hub
import pytest
from pyinfra.api.command import StringCommand
from pyinfra.api.exceptions import OperationError

from facts.reach import Interpreter
from operations import hub
from spec import objects


def wheel(place: Path, name: str, files: dict[str, str]) -> Path:
    """An archive as pip brings it."""
    path = place / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in files.items():
            archive.writestr(inside, text)
    return path


def unpack(data: bytes, place: Path, sha256: str) -> subprocess.CompletedProcess[str]:
    """What runs on the node."""
    argv = [sys.executable, "-ISB", "-c", hub.UNPACK, str(place), sha256, "lock python3.12 aarch64"]
    return subprocess.run(argv, input=base64.b64encode(data).decode(), capture_output=True, text=True, check=False)


def test_wheels_are_unpacked_as_one_and_in_place_of_what_was_there(tmp_path: Path) -> None:
    """`complete` is there only when all is; scripts for a command line are left out."""
    place = tmp_path / "client"
    (place / "old").mkdir(parents=True)
    wheels = [
        wheel(tmp_path, "one", {"one/__init__.py": "ONE = 1\n", "one-1.data/scripts/one": "#!/bin/sh\n"}),
        wheel(tmp_path, "two", {"two.py": "TWO = 2\n"}),
    ]
    data = hub._packed(wheels)
    done = unpack(data, place, hashlib.sha256(data).hexdigest())
    assert (done.returncode, done.stderr) == (0, "")
    found = {str(path.relative_to(place)): path.read_text() for path in place.rglob("*") if path.is_file()}
    assert found == {"one/__init__.py": "ONE = 1\n", "two.py": "TWO = 2\n", "complete": "lock python3.12 aarch64\n"}
    assert not (tmp_path / "client.sparkpair-new").exists()


def test_an_archive_that_is_another_one_is_not_unpacked(tmp_path: Path) -> None:
    """What is there stays."""
    (tmp_path / "client").mkdir()
    done = unpack(b"else", tmp_path / "client", "0" * 64)
    assert done.returncode == 1
    assert done.stderr == "the download client arrived with other bytes than were sent; run the deploy again\n"
    assert list((tmp_path / "client").iterdir()) == []


def test_pip_is_asked_for_the_nodes_wheels(tmp_path: Path) -> None:
    """By hash, for its Python, its machine and every glibc up to its own."""
    words = hub.pip_arguments(Interpreter("aarch64", "2.19", (3, 12)), tmp_path)
    assert words == [
        "download", "--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps", "--only-binary=:all:",
        "--dest", str(tmp_path), "--requirement", str(hub.LOCK), "--python-version", "3.12", "--implementation", "cp",
        "--platform", "manylinux2014_aarch64", "--platform", "manylinux_2_19_aarch64",
        "--platform", "manylinux_2_18_aarch64", "--platform", "manylinux_2_17_aarch64",
    ]  # fmt: skip


def test_the_lock_of_the_client_is_that_of_the_control_machine() -> None:
    """What resolves the lock file and what downloads speak to the hub in one version; no line has a condition, which
    pip would judge by its own Python."""
    ours = {line.split(" ")[0] for line in Path(hub.LOCK).read_text().splitlines() if "==" in line}
    theirs = {
        line.split(" ")[0] for line in Path(hub.LOCK).with_name("requirements.lock").read_text().splitlines()
    }  # fmt: skip
    shared = {line for line in ours if line.startswith(("huggingface-hub==", "hf-xet==", "httpx=="))}
    assert len(shared) == 3
    assert shared <= theirs
    assert ";" not in Path(hub.LOCK).read_text()


def token_command(monkeypatch: pytest.MonkeyPatch, token: str | None) -> StringCommand:
    """What lays it down."""
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: token)
    [command] = hub.put_token(cast(Any, SimpleNamespace()))
    assert isinstance(command, StringCommand)
    return command


def test_the_token_is_input_and_roots_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands in no command; without one, none of before stays."""
    place = tmp_path / "run" / "hub-token"
    monkeypatch.setattr(objects, "RUN", str(place.parent))
    monkeypatch.setattr(objects, "HUB_TOKEN", str(place))
    command = token_command(monkeypatch, "hf_secret")
    assert "hf_secret" not in f"{command} {command!r} {command.get_masked_value()}"
    assert command.connector_arguments == {"_stdin": "hf_secret"}
    subprocess.run(["/bin/sh", "-c", str(command)], input=b"hf_secret\n", check=True)
    assert (place.read_text(), stat.S_IMODE(place.stat().st_mode)) == ("hf_secret\n", 0o600)
    subprocess.run(["/bin/sh", "-c", str(token_command(monkeypatch, None))], check=True)
    assert not place.exists()


def test_a_token_that_cannot_be_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable() -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(huggingface_hub, "get_token", unreadable)
    with pytest.raises(OperationError, match="the hub's token on this machine cannot be read; log in on this machine"):
        list(hub.put_token(cast(Any, SimpleNamespace())))


def test_a_token_that_no_header_can_carry_is_refused_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a file of two lines was copied there."""
    with pytest.raises(OperationError) as refusal:
        token_command(monkeypatch, "hf_one\nhf_two")
    assert str(refusal.value) == (
        "what stands for the hub's token on this machine is none; log in on this machine: hf auth login"
    )


def test_the_archive_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each lock and interpreter; what pip says when it cannot is told with the command to repeat."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked: list[Interpreter] = []

    def download(interpreter: Interpreter, directory: Path) -> None:
        asked.append(interpreter)
        directory.mkdir()
        wheel(directory, "one", {"one.py": ""})

    monkeypatch.setattr(hub, "_download", download)
    spark = Interpreter("aarch64", "2.39", (3, 12))
    data = hub.archive(spark)
    assert hub.archive(spark) == data
    assert zipfile.ZipFile(io.BytesIO(data)).namelist() == ["one-1-py3-none-any.whl"]
    assert asked == [spark]
    [kept] = (tmp_path / "sparkpair").iterdir()
    assert kept.name.endswith("-aarch64-2.39-python3.12.zip")
