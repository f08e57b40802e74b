"""The host key that the keeper pinned."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from checks import ssh
from checks.advice import advice
from checks.preflight import refusals
from spec.objects import KNOWN_HOSTS
from tests.checks.sights import WORKER, sight, statements
from tests.checks.sights import said as told_of
from tests.plan.world import World

OLD, NEW = (f"ssh-ed25519 {base64.b64encode(bytes([0, 0, 0, 11]) + letter * 47).decode()}" for letter in (b"a", b"b"))


def keys(pinned: str | None, has: str) -> object:
    def change(world: World) -> None:
        world.head["texts"][KNOWN_HOSTS] = pinned
        world.worker["host_key"] = has

    return change


@pytest.mark.report("SSH-02")
def test_a_worker_with_another_key_than_the_pinned_is_said_with_both() -> None:
    """As after it was installed anew: the keeper's ssh refuses it, and says so only in its journal."""
    seen = sight(change=keys(f"# Generated\nsparkpair-rank1 {OLD}\n", NEW))  # type: ignore[arg-type]
    [found] = told_of(ssh.pinned(seen))
    assert found == (
        f"refused  {WORKER}: its ssh host key is {ssh.fingerprint(NEW)}, and the keeper pinned {ssh.fingerprint(OLD)}: "
        "the keeper does not talk to it\n"
        "    Fix: if it was installed anew, or got new keys: run deploy.py, which pins the new one over your own "
        "connection. Else find out who answers there"
    )
    assert refusals(seen.cluster, seen.facts) == []
    assert [line for line in advice(seen.cluster, seen.facts) if "this deploy pins the new one" in line]


def test_a_key_that_is_the_pinned_one_holds_and_none_says_nothing() -> None:
    """Before the first deploy there is no pin."""
    same = sight(change=keys(f"sparkpair-rank1 {OLD}\n", OLD))  # type: ignore[arg-type]
    assert statements(ssh.pinned(same)) == [f"{WORKER}: its ssh host key is the one that the keeper pinned"]
    assert list(ssh.pinned_anew(same)) == []
    for text in (None, "", f"other {OLD}\n", "sparkpair-rank1"):
        assert list(ssh.pinned(sight(change=keys(text, NEW)))) == []  # type: ignore[arg-type]


def test_fingerprints_are_those_of_ssh_keygen(tmp_path: Path) -> None:
    """To be compared with a node's own console."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "k"], check=True)
    said = subprocess.run(["ssh-keygen", "-lf", tmp_path / "k.pub"], check=True, capture_output=True, text=True).stdout
    assert ssh.fingerprint((tmp_path / "k.pub").read_text()).partition(" ")[2] == said.split()[1]
    assert ssh.fingerprint("ssh-ed25519 !") == "ssh-ed25519 that cannot be read"
    assert ssh.fingerprint("ssh-ed25519") == "ssh-ed25519 that cannot be read"
