"""Real frames over real wires: which rails are found between two, three and four nodes, however they are cabled."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from ipaddress import IPv4Interface

import pytest

from spec.cluster import Rail
from spec.discovery import Found
from tests.lab.wires import F0, F1, PORTS, Wires, wires

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it makes network namespaces"),
]


@pytest.fixture
def two() -> Iterator[Wires]:
    with wires(2) as here:
        yield here


def netdevs(found: Found) -> list[list[str]]:
    assert found.proven, found
    return [[rail.netdev for rail in ends] for ends in found.rails.values()]


@pytest.mark.report("NET-24")
def test_one_cable_carries_two_rails(two: Wires) -> None:
    two.cable((0, F0), (1, F0))
    before = time.monotonic()
    found = two.found()
    assert netdevs(found) == [list(F0), list(F0)]
    assert time.monotonic() - before < 3, "it ends when everybody has heard what there is"
    assert [str(ends[1].address) for ends in found.rails.values()] == ["10.200.1.1/24", "10.200.1.2/24"]


@pytest.mark.report("NET-19", "NET-03")
def test_ports_that_differ(two: Wires) -> None:
    """The head's lower port to the worker's upper one; each netdev hears one of the peer's only."""
    two.wire((0, F0[0]), (1, F1[0]))
    two.wire((0, F0[1]), (1, F1[1]))
    assert netdevs(two.found()) == [list(F0), list(F1)]


@pytest.mark.report("NET-19")
def test_netdevs_crosswise(two: Wires) -> None:
    two.wire((0, F0[0]), (1, F1[1]))
    two.wire((0, F0[1]), (1, F1[0]))
    assert netdevs(two.found()) == [list(F0), [F1[1], F1[0]]]


@pytest.mark.report("NET-01")
def test_a_cable_to_a_computer(two: Wires) -> None:
    """In the lower port; the pair's is in the upper one."""
    two.cable((0, F1), (1, F0))
    two.cable((0, F0))
    found = two.found()
    assert netdevs(found) == [list(F1), list(F0)]
    assert [note.statement for note in found.notes] == [
        f"{netdev} ({PORTS[netdev][0]}) has a carrier, but no other node is heard there: it is left out"
        for netdev in F0
    ]


def test_two_cables(two: Wires) -> None:
    two.cable((0, F0), (1, F0))
    two.cable((0, F1), (1, F1))
    found = two.found()
    assert netdevs(found) == [list(F0), list(F0)]
    assert len(found.notes) == 4 and "is left out: the rails are on one port" in found.notes[0].statement


@pytest.mark.report("NET-12")
def test_half_a_port(two: Wires) -> None:
    two.wire((0, F0[1]), (1, F0[1]))
    found = two.found()
    assert netdevs(found) == [[F0[1]], [F0[1]]]
    assert "half of the port is left out" in found.notes[0].statement


def test_no_cable_between_them(two: Wires) -> None:
    """Each is cabled to something; nobody is there. It takes the whole time, and no more."""
    two.cable((0, F0))
    two.cable((1, F0))
    before = time.monotonic()
    found = two.found()
    assert 3.5 < time.monotonic() - before < 8
    assert not found.known
    assert found.refusals[0].statement == (
        "no cable was found between spark-a and spark-b: spark-a enp1s0f0np0 hears nobody; spark-a enP2p1s0f0np0 hears "
        "nobody; spark-b enp1s0f0np0 hears nobody; spark-b enP2p1s0f0np0 hears nobody"
    )


def test_a_node_that_starts_late_is_heard(two: Wires) -> None:
    two.cable((0, F0), (1, F0))
    assert netdevs(two.found(delays={"spark-b": 2.5})) == [list(F0), list(F0)]


@pytest.mark.parametrize("count", [3, 4])
def test_a_switch_joins_more(count: int) -> None:
    with wires(count) as here:
        used = [F0, F1, F1, F0][:count]
        here.cable(*enumerate(used))
        found = here.found()
        assert netdevs(found) == [list(port) for port in used]
        assert [str(ends[0].address.ip) for ends in found.rails.values()] == [f"10.200.0.{n + 1}" for n in range(count)]


def test_a_ring_of_three_needs_a_switch() -> None:
    with wires(3) as here:
        for number in range(3):
            here.cable((number, F1), ((number + 1) % 3, F0))
        found = here.found()
        assert not found.known
        assert found.refusals[0].statement.startswith("no rail joins all 3 nodes, though each hears each other one")


@pytest.mark.report("NET-03")
def test_a_stated_port_that_is_dark(two: Wires) -> None:
    two.cable((0, F0), (1, F0))
    stated = {
        name: [Rail(netdev=netdev, hca=PORTS[netdev][0], address=IPv4Interface(f"10.200.{rail}.{number}/24"))
               for rail, netdev in enumerate(port)]
        for number, (name, port) in enumerate((("spark-a", F1), ("spark-b", F0)), 1)
    }  # fmt: skip
    found = two.found(stated)
    assert found.refusals[0].statement.startswith(
        "rail 0: enp1s0f1np1 is stated, and has no carrier; enp1s0f0np0 (rocep1s0f0) has one and hears spark-b ("
    )


RULES = """
table inet closed {
 chain input {
  type filter hook input priority 0; policy drop
  meta l4proto icmp accept
 }
}
"""


def test_packets_of_full_size_and_connections(two: Wires) -> None:
    """What passes, and what a firewall or a smaller MTU keeps out, each with its own words."""
    rails = {
        name: (Rail(netdev=F0[0], hca="rocep1s0f0", address=IPv4Interface(f"10.200.0.{number}/24")),)
        for number, name in enumerate(two.names, 1)
    }
    two.wire((0, F0[0]), (1, F0[0]))
    for number, ends in enumerate(rails.values()):
        two.address(number, F0[0], str(ends[0].address))

    def paths() -> list[tuple[str, str]]:
        said = two.talk(two.looks(), rails).said
        return [(path.ping, path.tcp) for name in two.names for path in said[name].paths]

    assert paths() == [("", ""), ("", "")]
    rule = ["ip", "netns", "exec", two.space(1), "nft", "-f", "-"]
    subprocess.run(rule, input=RULES, text=True, check=True, timeout=20)
    assert paths() == [("", "no answer within 2 s"), ("", "no answer within 2 s")], "its answers are kept out as well"
    subprocess.run([*rule[:-2], "flush", "ruleset"], check=True, timeout=20)
    subprocess.run(["ip", "-n", two.space(0), "link", "set", F0[0], "mtu", "1400"], check=True, timeout=20)
    assert paths() == [("Message too long", ""), ("no answer within 2 s", "")]


def test_a_node_without_the_right_to_listen_says_so(two: Wires) -> None:
    two.cable((0, F0), (1, F0))
    from facts.talk import command, from_output

    line = command('{"name":"a","nonce":"n","nodes":["a","b"],"netdevs":["enp1s0f0np0"],"paths":[],"seconds":0.2}')
    done = subprocess.run(
        ["ip", "netns", "exec", two.space(0), "setpriv", "--bounding-set", "-net_raw", "--inh-caps", "-net_raw", "sh",
         "-c", line.get_raw_value()],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert from_output(done.stdout.splitlines()).trouble == "enp1s0f0np0: Operation not permitted"
