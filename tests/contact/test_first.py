"""First contact over real ssh, with nodes in this process: what is asked, changed, refused, and never sent."""

from __future__ import annotations

import io
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from contact import first, host_keys, own_keys, place
from contact.words import Refused, Screen
from spec.objects import SUDOERS
from tests.contact.stranger import Stranger

PASSWORD = "open sesame"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The operator's, without keys or agent."""
    monkeypatch.setenv("HOME", str(tmp_path / "operator"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / "operator").mkdir()
    return tmp_path / "operator"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Stranger, Stranger]]:
    """Two that know nobody."""
    pair = Stranger(tmp_path / "a"), Stranger(tmp_path / "b", boot="two")
    yield pair
    for node in pair:
        node.close()


class Meeting:
    """One run: what was said, changed and refused."""

    def __init__(
        self, nodes: tuple[Stranger, ...], answers: str = "", *, yes: bool = True, terminal: bool = False
    ) -> None:
        self.out, self.answers = io.StringIO(), io.StringIO(answers)
        screen = Screen(self.out, self.answers, terminal)
        self.refused: tuple[str, ...] = ()
        places = [place.parse(f"alice@127.0.0.1:{node.port}", None) for node in nodes]
        try:
            with first.meet(places, None, screen, yes=yes) as met:
                self.met = met
        except Refused as error:
            self.refused = error.lines
        self.changed = screen.changed
        assert PASSWORD not in self.out.getvalue() + "".join(self.refused)


def where(node: Stranger) -> str:
    return f"alice@127.0.0.1:{node.port}"


@pytest.mark.slow
def test_a_password_is_enough(nodes: tuple[Stranger, Stranger], home: Path) -> None:
    """Asked once; the second time nobody is asked, and nothing is changed."""
    meeting = Meeting(nodes, f"{PASSWORD}\nnever read\n")
    assert meeting.refused == ()
    assert meeting.answers.read() == "never read\n"
    known_hosts = home / ".ssh/known_hosts"
    assert meeting.changed == [
        f"{home / '.ssh/id_ed25519'}: made, a key without a passphrase, so that deploys need nobody at the keyboard",
        *(f"{where(node)}: host key pinned in {known_hosts}" for node in nodes),
        *(
            line
            for node in nodes
            for line in (
                f"{where(node)}: key of {home / '.ssh/id_ed25519'} added to ~/.ssh/authorized_keys; it logs in",
                f"{where(node)}: {SUDOERS} written: alice may use sudo without a password",
            )
        ),
    ]
    for node in nodes:
        assert (node.home / "sudoers").read_text() == (
            "# By discover.py of Sparkpair: deploys run as root. Yours to remove.\nalice ALL=(ALL) NOPASSWD:ALL\n"
        )
        assert not any(PASSWORD in command for command in node.commands)
        assert node.tried == [PASSWORD]
    again = Meeting(nodes, yes=False)
    assert (again.refused, again.changed) == ((), [])


@pytest.mark.slow
def test_the_worker_may_have_another_password(nodes: tuple[Stranger, Stranger], home: Path) -> None:
    """It is asked for where the first one is not taken."""
    nodes[1].password = "another"
    assert Meeting(nodes, f"{PASSWORD}\nanother\n").refused == ()
    assert nodes[1].tried == [PASSWORD, "another"]


def unchanged(meeting: Meeting, home: Path, *nodes: Stranger) -> None:
    assert meeting.changed == []
    assert not (home / ".ssh").exists()
    for node in nodes:
        assert not (node.home / ".ssh").exists()
        assert not (node.home / "sudoers").exists()


def test_a_wrong_password_changes_nothing(nodes: tuple[Stranger, Stranger], home: Path) -> None:
    """Also where the other node took it."""
    nodes[1].password = "another"
    meeting = Meeting(nodes, f"{PASSWORD}\n")
    assert meeting.refused == (
        f"{where(nodes[1])}: does not take this password for alice",
        f"  Try it by hand: ssh {where(nodes[1])}; another user is named as USER@127.0.0.1",
    )
    unchanged(meeting, home, *nodes)


def test_no_password_is_sent_to_a_host_that_nobody_confirmed(nodes: tuple[Stranger, Stranger], home: Path) -> None:
    """Neither without a terminal nor after a no."""
    silent = Meeting(nodes, f"{PASSWORD}\n", yes=False)
    assert silent.refused[-1] == (
        "  These host keys are new here: nobody can confirm them here; --yes takes them as shown. Nothing was sent to "
        "the nodes"
    )
    declined = Meeting(nodes, "no\n", yes=False, terminal=True)
    assert declined.refused[-1].startswith("  These host keys are new here: not confirmed.")
    assert nodes[0].key.fingerprint in declined.out.getvalue()
    assert [node.tried for node in nodes] == [[], []]
    unchanged(silent, home, *nodes)


@pytest.mark.report("SSH-02")
def test_a_changed_host_key_is_refused_with_both(nodes: tuple[Stranger, Stranger], home: Path) -> None:
    """It is never taken in the place of the one that is pinned, with --yes neither."""
    other = paramiko.ECDSAKey.generate()
    spot = place.parse(where(nodes[0]), None)
    host_keys.pin(spot, other)
    before = (home / ".ssh/known_hosts").read_text()
    meeting = Meeting(nodes, f"{PASSWORD}\n")
    assert meeting.refused[:3] == (
        f"{where(nodes[0])}: its host key is not the one that is pinned, so nothing was sent to it",
        f"  it shows {nodes[0].key.fingerprint} (ecdsa-sha2-nistp256)",
        f"  pinned is {other.fingerprint} ({home / '.ssh/known_hosts'}, line 1)",
    )
    assert meeting.refused[-1].startswith(f"  If it was installed anew: ssh-keygen -R '[127.0.0.1]:{nodes[0].port}'")
    assert [node.tried for node in nodes] == [[], []]
    assert (home / ".ssh/known_hosts").read_text() == before


@pytest.mark.parametrize(
    ("says", "wanted"),
    [
        ("alice is not in the sudoers file.", "alice may not use sudo there"),
        ("sudo: a terminal is required", "sudo does not work for alice there; it says: sudo: a terminal is required"),
    ],
)
def test_no_right_to_be_root(nodes: tuple[Stranger, Stranger], home: Path, says: str, wanted: str) -> None:
    """Said in one line, with nothing changed on the other node either."""
    nodes[1].sudo_says = says
    meeting = Meeting(nodes, f"{PASSWORD}\n")
    assert meeting.refused[0] == f"{where(nodes[1])}: {wanted}"
    unchanged(meeting, home, *nodes)


def test_logins_by_key_alone(nodes: tuple[Stranger, Stranger], home: Path) -> None:
    """A node that takes no password is told what to do by hand."""
    nodes[0].takes = "publickey"
    meeting = Meeting(nodes, f"{PASSWORD}\n")
    assert meeting.refused[0] == (
        f"{where(nodes[0])}: lets nobody in by password (it takes publickey), and none of your keys"
    )
    unchanged(meeting, home, *nodes)


def test_the_same_machine_twice(nodes: tuple[Stranger, Stranger], home: Path) -> None:
    """One address twice is refused at once; two addresses of one machine by the kernel's id of its boot."""
    assert Meeting((nodes[0], nodes[0])).refused == (
        f"{where(nodes[0])} and {where(nodes[0])}: are one address; name two machines",
    )
    nodes[1].boot = "one"
    meeting = Meeting(nodes, f"{PASSWORD}\n")
    assert len(meeting.refused) == 1 and "are the same machine" in meeting.refused[0]
    unchanged(meeting, home, *nodes)


@pytest.mark.slow
def test_an_existing_key_is_used(nodes: tuple[Stranger, Stranger], home: Path) -> None:
    """None is made beside it; a line that has the key already is not written again."""
    key = own_keys.make()
    (nodes[0].home / ".ssh").mkdir()
    (nodes[0].home / ".ssh/authorized_keys").write_text(f"no-pty {key.line} old\n# the last line, without an end")
    assert Meeting(nodes, f"{PASSWORD}\n").refused == ()
    assert (nodes[0].home / ".ssh/authorized_keys").read_text().count(key.line) == 1
    assert (nodes[1].home / ".ssh/authorized_keys").read_text().startswith(f"{key.line} ")


@pytest.mark.slow
def test_the_agents_key_is_given(
    nodes: tuple[Stranger, Stranger], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the file has a passphrase, and the agent holds the key."""
    if not all(map(shutil.which, ("ssh-agent", "ssh-add", "ssh-keygen"))):
        pytest.skip("no ssh-agent here")
    (home / ".ssh").mkdir()
    made = own_keys.make()
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(tmp_path / "agent")], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        for _ in range(200):
            if (tmp_path / "agent").exists():
                break
            time.sleep(0.01)
        subprocess.run(["ssh-add", "-q", made.place], check=True)
        subprocess.run(["ssh-keygen", "-q", "-p", "-N", "a passphrase", "-f", made.place], check=True)
        meeting = Meeting(nodes, f"{PASSWORD}\n")
        assert meeting.refused == ()
        assert any("key of the ssh agent added" in line for line in meeting.changed)
        again = Meeting(nodes)
        assert (again.refused, again.changed) == ((), [])
    finally:
        agent.terminate()
        agent.wait(10)
    monkeypatch.delenv("SSH_AUTH_SOCK")
    assert "has a passphrase, and no agent holds the key" in Meeting(nodes, f"{PASSWORD}\n").refused[0]


def test_nobody_listens(home: Path) -> None:
    """A port without sshd, and a name that cannot be one."""
    with pytest.raises(Refused, match="nothing listens on port 1"):
        first.at_once(lambda spot: first.Session(spot), [place.parse("alice@127.0.0.1:1", None)])
    with pytest.raises(Refused, match="must be an address or a host name"):
        place.parse("alice at home", None)
