"""First contact with the simulated pair: users with a password, no key, and a sudo that asks."""

from __future__ import annotations

import json
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.settings import HEAD, WORKER, Host
from tests.lab.strangers import PASSWORD, SSHD, USER, arrive, clean, discover, met, root, state

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab"), pytest.mark.timeout(300)]

OTHER = "another-one.23"
REFUSED = "First contact refused; nothing was changed, here or on a node.\n"


@pytest.fixture(autouse=True)
def strangers() -> Iterator[None]:
    """New users for each test, gone after it."""
    clean()
    arrive()
    yield
    clean()


def test_from_a_password_to_an_inventory(tmp_path: Path):
    said = met(tmp_path)
    assert (tmp_path / ".ssh/id_ed25519").stat().st_mode & 0o777 == 0o600
    for host, user in USER.items():
        assert (f"{user}@{host.address}: /etc/sudoers.d/sparkpair written: {user} may use sudo without a "
                "password\n") in said.out  # fmt: skip
        assert root(host, f"stat -c '%a %U' /home/{user}/.ssh/authorized_keys").split() == ["600", user]
        assert root(host, "stat -c '%a %U' /etc/sudoers.d/sparkpair; visudo -c -q && echo fine").split() == [
            "440", "root", "fine"]  # fmt: skip
        assert root(host, f"journalctl -b --no-pager | grep -F {PASSWORD}") == ""
    inventory = runpy.run_path(str(tmp_path / "inventory.py"))
    [(name, head)], [(other, worker)] = inventory["head"], inventory["worker"]
    assert (name, other) == (HEAD.hostname, WORKER.hostname)
    assert (head["ssh_hostname"], head["ssh_user"]) == (HEAD.address, "alice")
    assert (worker["ssh_hostname"], worker["ssh_user"]) == (WORKER.address, "bob")
    for host, data in ((HEAD, head), (WORKER, worker)):
        assert [(rail["netdev"], rail["hca"]) for rail in data["rails"]] == [
            (end.netdev, end.hca) for end in host.rails
        ]

    before = state(tmp_path)
    again = discover(tmp_path)
    assert (again.code, again.err) == (0, "")
    assert f"{tmp_path / 'inventory.py'}: as it was\n" in again.out
    assert state(tmp_path) == before
    document = json.loads(discover(tmp_path, "--json").out)
    assert document["changed"] == []
    assert document["inventory"] == (tmp_path / "inventory.py").read_text()


def test_what_stands_in_authorized_keys_stays(tmp_path: Path):
    lines = 'from="10.0.0.1",no-pty ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ somebody'
    root(HEAD, f"install -d -m 700 -o alice -g alice /home/alice/.ssh; printf %s {shlex.quote(lines)} "
         ">/home/alice/.ssh/authorized_keys; chown alice /home/alice/.ssh/authorized_keys")  # fmt: skip
    met(tmp_path)
    first, second = root(HEAD, "cat /home/alice/.ssh/authorized_keys").splitlines()
    assert first == lines
    assert second.startswith("ssh-ed25519 ")


def test_another_password_on_the_worker(tmp_path: Path):
    root(WORKER, f"echo bob:{OTHER} | chpasswd")
    assert discover(tmp_path, "--yes", answers=f"{PASSWORD}\n{OTHER}\n").code == 0


def refused(tmp_path: Path, *lines: str, **more: object) -> None:
    """The run is refused with these lines, and nothing is other than before."""
    before = state(tmp_path)
    said = discover(tmp_path, *(() if more.pop("ask", False) else ("--yes",)), **{"answers": f"{PASSWORD}\n", **more})  # type: ignore[arg-type]
    assert said.code == 1, said
    assert said.err == REFUSED + "".join(f"  {line}\n" for line in lines), said.err
    assert state(tmp_path) == before


def test_a_wrong_password(tmp_path: Path):
    refused(
        tmp_path,
        *(
            line
            for host, user in USER.items()
            for line in (
                f"{user}@{host.address}: does not take this password for {user}",
                f"  Try it by hand: ssh {user}@{host.address}; another user is named as USER@{host.address}",
            )
        ),
        answers="wrong\n",
    )


def test_no_password(tmp_path: Path):
    where = [f"{user}@{host.address}" for host, user in USER.items()]
    refused(
        tmp_path,
        *(
            f"{one}: wants a password, and none was given; without a terminal it is read from the standard input, "
            "one line"
            for one in where
        ),
        answers="",
    )


def test_new_host_keys_are_confirmed(tmp_path: Path):
    said = discover(tmp_path, answers=f"{PASSWORD}\n")
    assert said.code == 1
    assert "These host keys are new here: nobody can confirm them here; --yes takes them as shown." in said.err
    assert not (tmp_path / ".ssh").exists()


@pytest.mark.report("SSH-02")
def test_another_host_key_is_refused(tmp_path: Path):
    """With both fingerprints; nothing is sent to that machine."""
    (tmp_path / ".ssh").mkdir()
    file = tmp_path / ".ssh/known_hosts"
    key = Path(WORKER.root, "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[:2]
    file.write_text(f"{HEAD.address} {' '.join(key)}\n")

    def fingerprint(host: Host) -> str:
        return root(host, "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub").split()[1]

    refused(
        tmp_path,
        f"alice@{HEAD.address}: its host key is not the one that is pinned, so nothing was sent to it",
        f"  it shows {fingerprint(HEAD)} (ssh-ed25519)",
        f"  pinned is {fingerprint(WORKER)} ({file}, line 1)",
        "  Another machine may answer at this address, or somebody between. Compare at the node itself, on its own "
        "screen: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
        f"  If it was installed anew: ssh-keygen -R '{HEAD.address}', then run this again",
    )


def test_a_user_who_may_not_be_root(tmp_path: Path):
    root(WORKER, "gpasswd -d bob sudo")
    refused(
        tmp_path,
        f"bob@{WORKER.address}: bob may not use sudo there",
        "  As somebody who may: sudo usermod -aG sudo bob; or name a user who may: --user",
    )


def test_a_later_rule_of_sudo(tmp_path: Path):
    """It is the last one that counts; ours is taken away again."""
    root(HEAD, "echo 'alice ALL=(ALL) ALL' >/etc/sudoers.d/zz; chmod 440 /etc/sudoers.d/zz")
    said = discover(tmp_path, "--yes", answers=f"{PASSWORD}\n")
    assert said.code == 1
    assert "sudo still wants a password although /etc/sudoers.d/sparkpair says NOPASSWD" in said.err
    assert "First contact stopped; what is said above to be done stays.\n" in said.err
    assert root(HEAD, "ls -A /etc/sudoers.d").split() == ["README", "spark", "zz"]


def test_a_home_that_sshd_does_not_trust(tmp_path: Path):
    """The line of authorized_keys goes again."""
    root(HEAD, "chmod o+w /home/alice")
    said = discover(tmp_path, "--yes", answers=f"{PASSWORD}\n")
    assert said.code == 1
    assert "sshd does not take it; the line was taken away again" in said.err
    assert root(HEAD, "cat /home/alice/.ssh/authorized_keys") == ""


def test_no_logins_by_password(tmp_path: Path):
    root(HEAD, f"echo 'PasswordAuthentication no' >>{SSHD}; systemctl reload ssh")
    refused(
        tmp_path,
        f"alice@{HEAD.address}: lets nobody in by password (it takes publickey), and none of your keys",
        "  At the node itself, add your public key to ~/.ssh/authorized_keys; or name the key that it knows with --key",
    )


def test_one_machine_under_two_addresses(tmp_path: Path):
    root(HEAD, "ip address add 192.168.77.13/24 dev enP7s7")
    nodes = (f"alice@{HEAD.address}", "alice@192.168.77.13")
    refused(tmp_path, f"{nodes[0]} and {nodes[1]}: are the same machine ({HEAD.hostname}); name two", nodes=nodes)
    refused(tmp_path, f"{nodes[0]} and {nodes[0]}: are one address; name two machines", nodes=(nodes[0], nodes[0]))


def test_all_that_are_out_of_reach_are_named(tmp_path: Path):
    """A node without sshd, and a name that nobody knows, in one run."""
    root(HEAD, "systemctl stop ssh.socket ssh")
    refused(
        tmp_path,
        f"alice@{HEAD.address}: is there, and nothing listens on port 22",
        "  At the node itself: sudo systemctl enable --now ssh",
        "bob@spark-q.invalid: no address is known for this name; is it spelt so? Its address will do as well",
        nodes=(f"alice@{HEAD.address}", "bob@spark-q.invalid"),
    )
