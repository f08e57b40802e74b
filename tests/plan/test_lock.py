"""The deploy lock's holder, as the real program that runs on the head."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from operations import lock

WHO = '{"who": "alice@laptop", "pid": 7, "since": "2026-11-30 12:00:00 UTC"}'


class Holder:
    """One holder; it hears what the test writes."""

    def __init__(self, path: Path, who: str = WHO, silence: float = 60.0) -> None:
        argv = [sys.executable, "-ISB", "-c", lock.HOLDER, str(path), who, str(silence)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline().strip()

    def hang_up(self) -> int:
        assert self.process.stdin is not None
        if not self.process.stdin.closed:
            self.process.stdin.close()
        return self.process.wait(10)

    def end(self) -> None:
        self.hang_up()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def holders() -> Iterator[list[Holder]]:
    made: list[Holder] = []
    yield made
    for holder in made:
        holder.end()


def test_the_second_is_refused_and_told_who(tmp_path: Path, holders: list[Holder]) -> None:
    holders += [Holder(tmp_path / "lock"), Holder(tmp_path / "lock", "{}")]
    assert holders[0].said == "ours"
    assert holders[1].said == f"held {WHO}"
    assert holders[1].process.wait(10) == 1


def test_it_is_free_when_the_deploy_is_gone(tmp_path: Path, holders: list[Holder]) -> None:
    """A killed deploy closes its channel; nothing is left that would keep the next one out."""
    holders.append(Holder(tmp_path / "lock"))
    assert holders[0].hang_up() == 0
    holders.append(Holder(tmp_path / "lock", json.dumps({"who": "bob"})))
    assert holders[1].said == "ours"
    assert (tmp_path / "lock").read_text() == '{"who": "bob"}'


def test_it_is_free_when_nothing_is_heard(tmp_path: Path, holders: list[Holder]) -> None:
    """The network may go without a word; so does the lock, after a while."""
    holders.append(Holder(tmp_path / "lock", silence=0.2))
    assert holders[0].said == "ours"
    assert holders[0].process.wait(10) == 0


def test_it_is_kept_while_something_is_heard(tmp_path: Path, holders: list[Holder]) -> None:
    holders.append(Holder(tmp_path / "lock", silence=0.6))
    stdin = holders[0].process.stdin
    assert stdin is not None
    for _ in range(6):
        stdin.write(".")
        stdin.flush()
        time.sleep(0.2)
    assert holders[0].process.poll() is None


def test_it_is_free_when_its_holder_is_killed(tmp_path: Path, holders: list[Holder]) -> None:
    holders.append(Holder(tmp_path / "lock"))
    os.kill(holders[0].process.pid, signal.SIGKILL)
    holders[0].process.wait(10)
    holders.append(Holder(tmp_path / "lock"))
    assert holders[1].said == "ours"


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    """Anybody may write into /run/lock."""
    (tmp_path / "target").write_text("theirs")
    (tmp_path / "lock").symlink_to(tmp_path / "target")
    argv = [sys.executable, "-ISB", "-c", lock.HOLDER, str(tmp_path / "lock"), WHO, "1"]
    done = subprocess.run(argv, input="", capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (tmp_path / "target").read_text() == "theirs"


class ClosedChannel:
    """paramiko's channel once its sending side has been closed: it takes nothing, and sendall would try for ever."""

    def open_session(self, timeout: float) -> ClosedChannel:
        return self

    get_transport = exec_command = settimeout = lambda self, *_: self

    def send(self, data: bytes) -> int:
        return 0


def test_a_channel_that_takes_nothing_is_lost() -> None:
    with pytest.raises(OSError, match="the channel is closed"):
        lock._Ssh(ClosedChannel(), "holder").write(b".")


@pytest.mark.parametrize(
    ("words", "is_real"),
    [
        (["-y"], True),
        ([], True),
        (["--dry"], False),
        (["--dry", "--json"], False),
        (["--debug-operations"], False),
    ],
)
def test_what_is_a_real_run(words: list[str], is_real: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pyinfra", *words, "inventory.py", "deploy.py"])
    assert lock.is_real_run() is is_real
