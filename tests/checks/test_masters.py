"""Who else sets up a rail: what is refused, what is told, what is edited; and a firewall in front of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from ipaddress import IPv4Interface
from typing import Any

import pytest

from checks import firewall, masters, rails
from checks.verdict import Verdict
from facts.host import Definition, Firewall, HostFacts, NetworkManager, NmDevice
from facts.values import NodeFacts
from operations.run import digest
from spec.cluster import Cluster, Node
from spec.render import netplan_text
from tests.plan.world import converged
from tests.unit.pair import UPSTREAM
from tests.unit.pair import cluster as resolved

FILE = "/etc/netplan/40-cx7.yaml"
TEXT = """\
network:
  version: 2
  ethernets:
    enp1s0f1np1:
      addresses: [192.168.100.11/24]
    enP7s7:
      dhcp4: true
"""
RAIL = Definition(FILE, 4, "enp1s0f1np1", "enp1s0f1np1", "netplan", named=True)
KEYFILE = Definition(
    "/etc/NetworkManager/system-connections/cx7.nmconnection", 2, "cx7", "enp1s0f1np1", "NetworkManager", named=True
)
RAILS = ["enp1s0f1np1", "enP2p1s0f1np1"]


def pair(**knobs: Any) -> tuple[Cluster, Node]:
    cluster = resolved({**UPSTREAM, **knobs})
    return cluster, cluster.workers[0]


def sight(node: Node, cluster: Cluster, **host: Any) -> NodeFacts:
    """The worker, converged, with these of its own tools' words."""
    seen = converged(cluster).facts()[node.name]
    return dataclasses.replace(seen, host=HostFacts(**{"definitions": (), "network_texts": {}, **host}))


def texts(verdicts: Sequence[Verdict]) -> list[str]:
    return [f"{'told' if verdict.told else 'broken'}: {verdict.statement}" for verdict in verdicts]


@pytest.mark.report("NET-15")
def test_somebodys_file_is_refused_with_its_lines() -> None:
    cluster, node = pair()
    seen = sight(node, cluster, definitions=(RAIL,), network_texts={FILE: TEXT})
    [verdict] = masters.nobody_else(cluster, node, seen)
    assert verdict.text() == (
        f"  {node.name}: rail 0: enp1s0f1np1 is set up in {FILE} line 4, and would be again in "
        "/etc/netplan/60-sparkpair.yaml\n"
        "    Fix: adopt_rails = True in group_data/all.py takes it over: these lines become comments, and the file as "
        "it is is kept on the node. Or take them out by hand, or state other rails\n"
        "      enp1s0f1np1:\n"
        "        addresses: [192.168.100.11/24]"
    )
    assert list(masters.repairs(cluster, node, seen)) == []


@pytest.mark.report("NET-15")
def test_somebodys_file_is_taken_over() -> None:
    cluster, node = pair(adopt_rails=True)
    seen = sight(node, cluster, definitions=(RAIL,), network_texts={FILE: TEXT})
    assert list(masters.nobody_else(cluster, node, seen)) == []
    assert texts(list(masters.repairs(cluster, node, seen))) == [
        f"told: rail 0: enp1s0f1np1 is set up in {FILE} line 4; the deploy takes it over"
    ]
    assert "#     enp1s0f1np1:" in masters.adoption(node, seen).texts[FILE]
    assert not in_force(cluster, node, seen)


@pytest.mark.parametrize(
    ("change", "file", "why"),
    [
        ({"named": False}, TEXT, "what it says is about more than one netdev"),
        ({"kind": "networkd", "file": "/etc/systemd/network/1.network"}, TEXT, "it is networkd's own"),
        ({"file": "/run/netplan/x.yaml"}, TEXT, "it is not in /etc/netplan"),
        ({}, None, "it holds a password, is very long, or is no text"),
        ({}, "network: {ethernets: {enp1s0f1np1: {}, b: {}}}\n", "it is written in braces, on no lines of its own"),
    ],
)
def test_what_is_for_its_owner_to_edit(change: dict[str, Any], file: str | None, why: str) -> None:
    cluster, node = pair(adopt_rails=True)
    one = dataclasses.replace(RAIL, **change)
    seen = sight(node, cluster, definitions=(one,), network_texts={one.file: file} if file else {})
    [verdict] = masters.nobody_else(cluster, node, seen)
    way = f"take enp1s0f1np1 out of {one.file} (the deploy then sets it up)"
    assert verdict.fix == f"{way}, or state other rails; adopt_rails leaves that file alone: {why}"
    assert masters.adoption(node, seen).texts == {}


def test_a_pattern_has_no_netdev_that_could_be_taken_out() -> None:
    """As NetworkManager writes a profile of no netdev in particular into netplan's own directory."""
    cluster, node = pair(adopt_rails=True)
    text = "network:\n  ethernets:\n    NM-1:\n      renderer: NetworkManager\n      match: {}\n      dhcp4: true\n"
    one = dataclasses.replace(RAIL, file="/etc/netplan/90-NM-1.yaml", line=3, id="NM-1", named=False)
    [verdict] = masters.nobody_else(
        cluster, node, sight(node, cluster, definitions=(one,), network_texts={one.file: text})
    )
    assert verdict.fix == (
        "have NM-1 in /etc/netplan/90-NM-1.yaml name the netdevs that it is for, under match: name, or state other "
        "rails; adopt_rails leaves that file alone: what it says is about more than one netdev"
    )


def test_a_file_about_another_port_is_nobodys_business() -> None:
    cluster, node = pair()
    seen = sight(node, cluster, definitions=(dataclasses.replace(RAIL, netdev="enp1s0f0np0"),))
    assert list(masters.nobody_else(cluster, node, seen)) == []
    assert in_force(cluster, node, seen)


def managed(state: str = "connected", running: bool = True) -> NetworkManager:
    rail = NmDevice("enp1s0f1np1", "ethernet", state, "Wired connection 1")
    return NetworkManager(running, (rail, NmDevice("enP7s7", "ethernet", "connected", "lan")))


def in_force(cluster: Cluster, node: Node, seen: NodeFacts) -> bool:
    return rails.in_force(cluster, node, seen, digest(netplan_text(cluster, node)))


@pytest.mark.report("NET-06")
@pytest.mark.report("NET-25")
def test_rails_that_networkmanager_manages_are_told_and_repaired() -> None:
    cluster, node = pair()
    seen = sight(node, cluster, network_manager=managed())
    assert list(masters.nobody_else(cluster, node, seen)) == []
    assert texts(list(masters.repairs(cluster, node, seen))) == [
        "told: rail 0: NetworkManager manages enp1s0f1np1 by the profile 'Wired connection 1', connected: its "
        "addresses go when nobody answers its DHCP, or when the cable is out for a moment"
    ]
    assert not in_force(cluster, node, seen)
    [verdict] = [one for one in rails.are_set_up(cluster, node, seen) if not one.holds]
    assert verdict.statement == "rail 0 (enp1s0f1np1): NetworkManager manages it, too"


@pytest.mark.parametrize("manager", [managed("unmanaged"), managed(running=False)])
def test_networkmanager_that_keeps_its_hands_off(manager: NetworkManager) -> None:
    cluster, node = pair()
    seen = sight(node, cluster, network_manager=manager, definitions=(KEYFILE,))
    assert list(masters.nobody_else(cluster, node, seen)) == []
    assert list(masters.repairs(cluster, node, seen)) == []
    assert in_force(cluster, node, seen)


def test_a_profile_in_etc_is_left_alone_where_that_is_asked_for() -> None:
    cluster, node = pair()
    seen = sight(node, cluster, network_manager=managed(), definitions=(KEYFILE,))
    [verdict] = masters.nobody_else(cluster, node, seen)
    assert verdict.statement.startswith(f"rail 0: enp1s0f1np1 is set up in {KEYFILE.file} line 2, and would be again")
    assert "nmcli connection delete 'cx7'" in verdict.fix
    assert list(masters.nobody_else(pair(adopt_rails=True)[0], node, seen)) == []


@pytest.mark.report("NET-08")
def test_a_profile_that_a_reboot_forgets_is_told() -> None:
    cluster, node = pair()
    file = "/run/NetworkManager/system-connections/netplan-enp1s0f1np1.nmconnection"
    seen = sight(node, cluster, definitions=(dataclasses.replace(KEYFILE, file=file, volatile=True),))
    assert list(masters.nobody_else(cluster, node, seen)) == []
    assert list(masters.repairs(cluster, node, seen)) == []  # ours is in force
    seen = dataclasses.replace(seen, files={})
    assert texts(list(masters.repairs(cluster, node, seen))) == [
        f"told: rail 0: enp1s0f1np1 is set up in {file} line 2, which a reboot forgets"
    ]


@pytest.mark.report("NET-17")
def test_an_address_that_nobodys_file_gives() -> None:
    cluster, node = pair()
    seen = sight(node, cluster)
    assert isinstance(seen.links, dict)
    link = seen.links["enp1s0f1np1"]
    more = dataclasses.replace(link, addresses=(*link.addresses, IPv4Interface("10.9.9.9/24")))
    seen = dataclasses.replace(seen, links={**seen.links, "enp1s0f1np1": more})
    assert texts(list(masters.repairs(cluster, node, seen))) == [
        "told: rail 0: enp1s0f1np1 has 10.9.9.9/24, which /etc/netplan/60-sparkpair.yaml does not give it"
    ]
    assert not in_force(cluster, node, seen)
    [verdict] = [one for one in rails.are_set_up(cluster, node, seen) if not one.holds]
    assert verdict.statement == "rail 0 (enp1s0f1np1): has 10.9.9.9/24 as well, which a reboot forgets"


OPEN_0 = "allow in on enp1s0f1np1 from 10.200.0.1 to 10.200.0.2"
RICH = 'rule family="ipv4" source address="10.200.0.1" destination address="10.200.0.2" accept'
OPEN_1 = "allow in on enP2p1s0f1np1 from 10.200.1.1 to 10.200.1.2"


@pytest.mark.report("NET-21")
@pytest.mark.parametrize(
    ("manager", "rules", "shut"),
    [
        ("ufw", ("allow 22/tcp",), [0, 1]),
        ("ufw", ("allow 22/tcp", OPEN_0), [1]),
        ("ufw", (f"{OPEN_1} comment 'Sparkpair: a rail'", OPEN_0), []),
        ("ufw", ("allow from 10.200.0.0/16",), []),
        ("ufw", ("allow in on enp1s0f1np1",), [1]),
        ("ufw", ("deny from 10.200.0.1", OPEN_0, OPEN_1), [0]),
        ("ufw", ("allow out on enp1s0f1np1",), [0, 1]),
        ("ufw", ("allow from 10.200.0.0/16 proto tcp",), [0, 1]),
        ("ufw", ("allow to any",), []),
        ("firewalld", ("public: services: ssh",), [0, 1]),
        ("firewalld", ("trusted: interfaces: enp1s0f1np1",), [1]),
        ("firewalld", ("trusted: sources: 10.200.0.0/16",), []),
        ("firewalld", (f"public: rich rules: {RICH}",), [1]),
        ("nftables", ("inet filter input: policy drop", "inet filter input: tcp dport 22 accept"), [0, 1]),
        ("nftables", ("inet filter input: policy drop", 'inet filter input: iifname "enp1s0f1*" accept'), [1]),
        ("nftables", ("inet filter input: ip saddr 10.200.0.0/16 accept",), []),
        ("nftables", ("inet filter input: ip saddr @peers accept",), []),
        ("nftables", (f'inet filter input: iifname {{ "{RAILS[0]}", "{RAILS[1]}" }} accept',), []),
        ("nftables", (f'inet filter input: iifname {{ "lo", "{RAILS[1]}" }} accept',), [0]),
        ("nftables", ('inet filter input: iifname != "enP7s7" accept',), []),
        ("nftables", (f'inet filter input: iifname != "{RAILS[0]}" accept',), [0]),
        ("nftables", ("inet filter input: iifname @rails accept",), []),
        ("nftables", (f'inet filter input: iifname vmap {{ "lo" : accept, "{RAILS[0]}" : accept }}',), [1]),
        ("nftables", ("inet filter input: ip saddr { 10.200.0.0/16, 192.168.0.0/24 } accept",), []),
        ("nftables", ("inet filter input: ip saddr 10.200.0.1-10.200.255.9 accept",), []),
        ("nftables", ('inet filter input: iifname "enp1*" ip saddr 192.168.0.0/24 accept',), [0, 1]),
        ("nftables", ("iptables -P INPUT DROP", "iptables -A INPUT ! -i enP7s7 -j ACCEPT"), []),
        ("nftables", ("iptables -P INPUT DROP", "iptables -A INPUT -m set --match-set x src -j ACCEPT"), []),
        ("nftables", ("inet filter input: ct state established,related accept",), [0, 1]),
        ("nftables", ("inet filter input: iifname lo accept",), [0, 1]),
        ("nftables", ("iptables -P INPUT DROP", "iptables -A INPUT -i enp+ -j ACCEPT"), [1]),
        ("nftables", ("iptables -P INPUT DROP", "iptables -A INPUT -s 10.200.0.0/15 -j ACCEPT"), []),
    ],
)  # fmt: skip
def test_whom_a_firewall_keeps_out(manager: str, rules: tuple[str, ...], shut: list[int]) -> None:
    cluster, node = pair()
    seen = sight(node, cluster, firewall=Firewall(manager, True, rules))
    assert [RAILS.index(one.rail.netdev) for one in firewall.closed(cluster, node, seen)] == shut
    seen = sight(node, cluster, firewall=Firewall(manager, False, rules))
    assert firewall.closed(cluster, node, seen) == []


def test_a_firewall_beside_rails_that_one_node_alone_has() -> None:
    """As doctor finds them after a first deploy that was cut off."""
    cluster, node = pair()
    seen = sight(node, cluster, firewall=Firewall("ufw", True, ()))
    bare = dataclasses.replace(cluster, nodes=(cluster.head.model_copy(update={"rails": ()}), *cluster.workers))
    assert list(firewall.lets_in(bare, node, seen)) == []


@pytest.mark.report("NET-21")
def test_what_is_said_of_a_firewall() -> None:
    cluster, node = pair()
    closed = sight(node, cluster, firewall=Firewall("ufw", True, (OPEN_1,)))
    [verdict] = firewall.lets_in(cluster, node, closed)
    assert verdict.told
    [verdict] = firewall.lets_in(cluster, node, closed, before=False)
    assert not verdict.told
    assert verdict.statement == "its firewall (ufw) keeps the rails' peers out: 10.200.0.1 on enp1s0f1np1"
    [verdict] = firewall.lets_in(pair(open_firewall=False)[0], node, closed)
    assert verdict.fix == (
        f"open_firewall = True in group_data/all.py, or by hand:\nsudo ufw prepend {OPEN_0} comment 'Sparkpair: a rail'"
    )
    [verdict] = firewall.lets_in(cluster, node, sight(node, cluster, firewall=Firewall("ufw", True, (OPEN_0, OPEN_1))))
    assert verdict.holds
    assert list(firewall.lets_in(cluster, node, sight(node, cluster))) == []
    own = Firewall("nftables", True, ("inet filter input: policy drop",))
    [verdict] = firewall.lets_in(cluster, node, sight(node, cluster, firewall=own))
    assert verdict.fix.splitlines() == [
        "rules that somebody wrote are not changed here. Add these, there and in their file:",
        'sudo nft insert rule inet filter input iifname "enp1s0f1np1" ip saddr 10.200.0.1 ip daddr 10.200.0.2 accept',
        'sudo nft insert rule inet filter input iifname "enP2p1s0f1np1" ip saddr 10.200.1.1 ip daddr 10.200.1.2 accept',
    ]
    old = Firewall("nftables", True, ("iptables -P INPUT DROP",))
    first = firewall.closed(cluster, node, sight(node, cluster, firewall=old))[0]
    assert first.command(old) == "iptables -I INPUT -i enp1s0f1np1 -s 10.200.0.1 -d 10.200.0.2 -j ACCEPT"


def test_how_firewalld_is_opened_and_closed() -> None:
    cluster, node = pair()
    own = Firewall("firewalld", True, ("public: services: ssh", "lab: interfaces: enP2p1s0f1np1 enp9"))
    first, second = firewall.closed(cluster, node, sight(node, cluster, firewall=own))
    rule = 'rule family="ipv4" source address="10.200.0.1" destination address="10.200.0.2" accept'
    add = f"firewall-cmd --quiet --add-rich-rule='{rule}'"
    assert first.command(own) == f"{add} --permanent && {add}"
    gone = f"firewall-cmd --quiet --remove-rich-rule='{rule}'"
    assert first.undo(own) == f"{gone} --permanent; {gone}"
    assert second.command(own).startswith("firewall-cmd --quiet --zone=lab --add-rich-rule=")
