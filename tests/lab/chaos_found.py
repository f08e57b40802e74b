"""Rows about rails that the inventory leaves out or states wrongly, on hosts with both QSFP ports."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from lab import network
from lab.settings import HEAD, HOSTS, Host
from spec import objects
from tests.lab import pair
from tests.lab.chaos import Row
from tests.lab.chaos_node import SET_UP, contract, converge, works


@contextmanager
def inventory(rails: str) -> Iterator[None]:
    """Runs with the lab's inventory otherwise: rails "found", or the head's "dark" port stated."""
    os.environ["LAB_RAILS"] = rails
    try:
        yield
    finally:
        del os.environ["LAB_RAILS"]


@contextmanager
def a_computer(host: Host) -> Iterator[None]:
    """Something that is none of the pair is cabled to the host's other port."""
    network.pc(host, True)
    try:
        yield
    finally:
        network.pc(host, False)


def without_ours() -> None:
    """Both hosts as before any deploy, as far as their rails go."""
    for host in HOSTS.values():
        pair.on(host, f"rm -f {objects.NETPLAN_FILE} && netplan generate && netplan apply")
        for end in host.rails:
            pair.on(host, f"ip address flush dev {end.netdev}; ip link set {end.netdev} mtu 1500 up")


def left_out() -> str:
    """NET-01: rails are left out and none is set up; a port of the head is cabled to a computer."""
    with inventory("found"), a_computer(HEAD):
        converge()
        without_ours()
        run = pair.deploy(*contract())
        assert run.code == 0, run.text[-1500:]
        said = " ".join(run.text.split())
        for end in HEAD.spare:
            words = f"{end.netdev} ({end.hca}) has a carrier, but no other node is heard there: it is left out"
            assert words in said, run.text[-2500:]
        for host in HOSTS.values():
            file = pair.on(host, f"cat {objects.NETPLAN_FILE}")
            assert re.findall(r'^    "(\S+)":$', file, re.M) == [end.netdev for end in host.rails], file
        seen = works()
    return f"the rails are found where the peer is heard, the computer's port is left out; {seen}"


def pulled() -> str:
    """Both rails go dark while another port has a carrier: nothing moves, and it is said."""
    with inventory("found"), a_computer(HEAD):
        converge()
        network.cut(0)
        network.cut(1)
        try:
            planned = pair.dry(*contract())
            assert SET_UP not in planned.plan, planned.text[-1500:]
        finally:
            network.join(0)
            network.join(1)
        pair.wait_running()
        assert pair.dry(*contract()).plan == {}
    return "no row for the rails while the cables are out, nothing to do afterwards"


def moved() -> str:
    """NET-03: the head's end of the cable is put into its other port while the pair serves."""
    with inventory("found"):
        converge()
        network.move(HEAD, True)
        try:
            run = pair.deploy(*contract())
            assert run.code == 0, run.text[-1500:]
            assert "the rails move to" in " ".join(run.text.split()), run.text[-2500:]
            held = pair.on(HEAD, "ip -4 -o address show")
            for old, new in zip(HEAD.rails, HEAD.spare, strict=True):
                assert f" {new.netdev} " in held and f" {old.netdev} " not in held, held
                pair.on(HOSTS["worker"], f"ping -c 6 -W 2 -M do -s 8972 10.200.{new.number}.{HEAD.number}")
            pair.wait_running()
            assert pair.dry(*contract()).plan == {}
        finally:
            network.move(HEAD, False)
        converge()
    return (
        "the rails follow with their addresses, the old port keeps none; nothing planned again, and so on the way back"
    )


def stated_dark() -> str:
    """NET-03: the inventory states the port that has no cable."""
    converge()
    with inventory("dark"):
        run = pair.dry(*contract())
    said = " ".join(run.text.split())
    stated, lit, far = HEAD.spare[0], HEAD.rails[0], HOSTS["worker"].rails[0]
    assert run.code == 1, run.text[-1500:]
    assert f"rail 0: {stated.netdev} is stated, and has no carrier" in said, run.text[-2500:]
    assert f"{lit.netdev} ({lit.hca}) has one and hears lab-worker ({far.netdev})" in said, run.text[-2500:]
    assert pair.dry(*contract()).plan == {}
    return "refused, with the port that is stated, the one that has a carrier, and who is heard there"


ROWS = [
    Row("rails that the inventory leaves out", "contract", left_out),
    Row("found rails whose cables are pulled", "contract", pulled),
    Row("found rails whose cable is moved", "contract", moved),
    Row("the inventory states the port without a cable", "contract", stated_dark),
]
