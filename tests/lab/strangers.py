"""Strangers on the simulated pair: users with a password and no key, and runs of discover.py as an operator's."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lab.settings import CHECKOUT, HEAD, WORKER, Host
from tests.lab import pair

USER = {HEAD: "alice", WORKER: "bob"}
PASSWORD = "first-Contact.17"
SSHD = "/etc/ssh/sshd_config.d/00-first-contact.conf"


@dataclass(frozen=True)
class Said:
    """One run of discover.py."""

    code: int
    out: str
    err: str


def arrive() -> None:
    """A user on each host who may use sudo with a password, and an sshd that forgives failed logins."""
    for host, user in USER.items():
        root(
            host,
            f"useradd -m -s /bin/bash -G sudo {user}; echo {user}:{PASSWORD} | chpasswd; "
            f"echo 'PerSourcePenalties no' >{SSHD}; systemctl reload ssh",
        )


def clean() -> None:
    """The hosts as they were."""
    for host, user in USER.items():
        root(
            host,
            f"pkill -9 -u {user}; userdel -rf {user} 2>/dev/null; "
            f"rm -f /etc/sudoers.d/sparkpair /etc/sudoers.d/zz {SSHD}; "
            "ip address delete 192.168.77.13/24 dev enP7s7 2>/dev/null; systemctl start ssh; systemctl reload ssh",
        )


def root(host: Host, command: str) -> str:
    """As root on a host, without ssh; how it ends does not matter."""
    return pair.on(host, command, check=False)


def discover(home: Path, *words: str, answers: str = "", nodes: tuple[str, ...] = ()) -> Said:
    """Run it as an operator whose home this is."""
    named = nodes or tuple(f"{user}@{host.address}" for host, user in USER.items())
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "USER": "operator"}
    done = subprocess.run(
        [sys.executable, str(CHECKOUT / "discover.py"), *named, "--write", str(home / "inventory.py"), *words],
        input=answers, capture_output=True, text=True, env=environment, cwd=CHECKOUT, timeout=120, check=False,
    )  # fmt: skip
    assert PASSWORD not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return Said(done.returncode, done.stdout, done.stderr)


def met(home: Path) -> Said:
    """A run that is to end well."""
    said = discover(home, "--yes", answers=f"{PASSWORD}\n")
    assert said.code == 0, said
    return said


def state(home: Path) -> str:
    """All that first contact may touch, here and there."""
    there = [
        root(
            host,
            f"find /home/{user} /etc/sudoers.d -printf '%p %m %u %T@\\n' | grep -v '/home/{user} ' "
            "| grep -v sudo_as_admin | sort; "  # sudo's own mark
            f"cat /home/{user}/.ssh/authorized_keys /etc/sudoers.d/* 2>/dev/null",
        )
        for host, user in USER.items()
    ]
    here = [f"{path} {path.stat().st_mtime_ns}" for path in sorted(home.rglob("*"))]
    return "\n".join([*there, *here])
