"""What the talk comes to: found rails, packets and connections, as verify and doctor say them."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface

import pytest

from checks import rails
from checks.check import Sight
from checks.discovery import CHECKS, looks, pool
from checks.verdict import Verdict
from facts.host import HostFacts, Port
from facts.talk import Heard, Path, Said, Talk
from facts.values import NodeFacts, Unknown
from spec.objects import NETPLAN_FILE
from tests.plan.world import World, converged
from tests.unit import pair

CHECK = {check.name: check for check in CHECKS}
NETDEVS = {"spark-a": ("enp1s0f0np0", "enP2p1s0f0np0"), "spark-b": ("enp1s0f1np1", "enP2p1s0f1np1")}


def port(netdev: str, lit: bool = True) -> Port:
    domain, function = ("0002" if "P2" in netdev else "0000"), netdev[-1]
    hca = f"roce{netdev[2:].rpartition('n')[0]}"
    return Port(hca=hca, netdev=netdev, mac="", pci=f"{domain}:01:00.{function}", state="ACTIVE", carrier=lit, mtu=9000)


def facts(here: World) -> dict[str, NodeFacts]:
    return {
        name: replace(seen, host=HostFacts(ports=tuple(map(port, NETDEVS[name]))))
        for name, seen in here.facts().items()
    }


def said(node: str, ping: str = "", tcp: str = "") -> Said:
    """As on one cable whose netdevs hear one of the peer's each."""
    peer, number = ("spark-b", 2) if node == "spark-a" else ("spark-a", 1)
    pairs = list(zip(NETDEVS[node], NETDEVS[peer], strict=True))
    return Said(
        heard=tuple(Heard(ours, peer, theirs) for ours, theirs in pairs),
        paths=tuple(Path(ours, f"10.200.{rail}.{number}", ping, tcp) for rail, (ours, _) in enumerate(pairs)),
    )


def asked(name: str, head: Said | None = None, worker: Said | None = None) -> list[Verdict]:
    here = converged(pair.cluster(pair.UPSTREAM))
    talk = Talk({"spark-a": head or said("spark-a"), "spark-b": worker or said("spark-b")})
    return list(CHECK[name].judge(Sight(here.cluster, facts(here), talk)))


def test_rails_that_are_heard_hold() -> None:
    assert [(verdict.statement, verdict.holds) for verdict in asked("rails.found")] == [
        ("rail 0: spark-a (enp1s0f0np0) and spark-b (enp1s0f1np1) are joined", True),
        ("rail 1: spark-a (enP2p1s0f0np0) and spark-b (enP2p1s0f1np1) are joined", True),
    ]


def test_stated_rails_that_are_not_heard_are_refused() -> None:
    found = asked("rails.found", Said(), Said())
    assert [verdict.holds for verdict in found] == [False] * 4
    assert found[0].statement == "rail 0: enp1s0f0np0 is stated to reach spark-b (enp1s0f1np1), and hears nobody"


def test_a_node_that_could_not_listen_is_told() -> None:
    found = asked("rails.found", Said(trouble="sudo wants a password"))
    assert [(verdict.where, verdict.told) for verdict in found] == [("spark-a", True)]


def test_without_a_talk_nothing_is_said() -> None:
    here = converged(pair.cluster(pair.UPSTREAM))
    for check in CHECKS:
        assert not list(check.judge(Sight(here.cluster, facts(here))))


@pytest.mark.report("NET-09")
def test_packets_pass_or_not() -> None:
    found = asked("rails.packets", said("spark-a", ping="Message too long"))
    assert [verdict.holds for verdict in found] == [False, False, True, True]
    assert found[0].statement == ("rail 0: spark-a to spark-b: 8972 bytes do not pass unfragmented: Message too long")
    assert found[2].statement == "rail 0: spark-b to spark-a: 8972 bytes pass unfragmented"


@pytest.mark.report("NET-21")
def test_a_firewall_shows_as_packets_without_connections() -> None:
    found = asked("rails.packets", said("spark-a", tcp="no answer within 2 s"))
    assert [verdict.holds for verdict in found] == [True, False, True, False, True, True]
    assert found[1].statement == (
        "rail 0: spark-a to spark-b: packets pass, and a TCP connection to a port at random does not: no answer within "
        "2 s"
    )
    assert "open_firewall" in found[1].fix


def test_no_answer_is_not_a_pass() -> None:
    found = asked("rails.packets", Said(heard=said("spark-a").heard), Said(trouble="it did not answer"))
    assert [(verdict.where, verdict.holds) for verdict in found] == [("", False), ("", False), ("spark-b", None)]
    assert found[0].statement == "rail 0: spark-a to spark-b: 8972 bytes do not pass unfragmented: no answer"


def test_what_discovery_is_told_of_a_node() -> None:
    here = converged(pair.cluster(pair.UPSTREAM))
    (head, _) = looks(here.cluster.settings.nodes, facts(here))
    assert head.file == tuple((rail.netdev, rail.address) for rail in here.cluster.head.rails)
    assert head.links["enP7s7"] == (IPv4Interface("192.168.1.10/24"),)
    assert [one.netdev for one in head.ports] == list(NETDEVS["spark-a"])
    seen = replace(facts(here)["spark-a"], host=HostFacts(ports=Unknown("not read")), texts={NETPLAN_FILE: None})
    (head, _) = looks(here.cluster.settings.nodes, {**facts(here), "spark-a": seen})
    assert (head.ports, head.file, head.deaf) == ((), (), "its ports are not known: not read")


def test_a_network_that_is_stated_is_insisted_on() -> None:
    assert not pool(pair.settings(pair.UPSTREAM)).insisted
    stated = pool(pair.settings({**pair.UPSTREAM, "rail_network": "10.99.0.0/16"}))
    assert (str(stated.network), stated.insisted) == ("10.99.0.0/16", True)


@pytest.mark.report("NET-03")
def test_an_address_that_our_own_file_gives_moves_with_the_rail() -> None:
    """The cable is in the other port now; on a netdev that our file does not name, the address is somebody else's."""
    here = converged(pair.cluster(pair.UPSTREAM))
    seen = facts(here)["spark-a"]
    head = here.cluster.head
    moved = head.model_copy(
        update={"rails": tuple(rail.model_copy(update={"netdev": f"{rail.netdev[:-3]}1np1"}) for rail in head.rails)}
    )
    said = [verdict.statement for verdict in rails.can_be_set_up(here.cluster, moved, seen)]
    assert not [line for line in said if "is on enp1s0f0np0 already" in line], said
    without = replace(seen, texts={NETPLAN_FILE: None})
    said = [verdict.statement for verdict in rails.can_be_set_up(here.cluster, moved, without)]
    assert "rail 0: its address 10.200.0.1 is on enp1s0f0np0 already" in said
