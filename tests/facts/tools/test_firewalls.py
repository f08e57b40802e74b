"""Firewalls as their tools and files tell them, and whether they let a peer in."""

from __future__ import annotations

import pytest

from facts.firewall import Packets, lets_in
from facts.host import Firewall
from facts.tools import firewalld, iptables, nft, ufw
from facts.tools.garbled import Garbled
from tests.facts.tools.samples import sample

# As `ufw allow in on enp1s0f0np0 from 10.200.0.1 to 10.200.0.2` has it in the samples.
PEER = Packets("enp1s0f0np0", "10.200.0.1", "10.200.0.2")
STRANGER = Packets("enp1s0f0np0", "10.200.0.3", "10.200.0.2")
OTHER_NETDEV = Packets("enp1s0f1np1", "10.200.0.1", "10.200.0.2")


def of_ufw(rules: str, policy: str = "DROP") -> Firewall:
    found = ufw.from_files("ENABLED=yes\n", f'DEFAULT_INPUT_POLICY="{policy}"\n', rules)
    assert found is not None
    return found


def lets(firewall: Firewall) -> list[bool]:
    return [lets_in(firewall, packets) for packets in (PEER, STRANGER, OTHER_NETDEV)]


@pytest.mark.report("NET-21")
def test_ufws_files_say_what_ufw_says() -> None:
    """Read instead of run: ufw takes as long as the whole probe."""
    found = ufw.from_files(sample("ufw.conf"), sample("ufw-default"), sample("ufw-user.rules"))
    added = sample("ufw-added.txt").splitlines()[1:]
    assert found == Firewall("ufw", True, tuple(line.removeprefix("ufw ") for line in added))
    assert lets(found) == [True, False, False]


def test_ufw_that_is_off() -> None:
    assert ufw.from_files("ENABLED=no\n", "", "") is None
    assert ufw.from_files("", "", "") is None
    assert ufw.parse("Status: inactive\n") == Firewall("", drops=False)
    with pytest.raises(Garbled):
        ufw.from_files("ENABLED=yes\n", "", "")


def test_ufws_own_word() -> None:
    found = ufw.parse(sample("ufw-verbose.txt"))
    assert (found.manager, found.drops) == ("ufw", True)
    assert found.rules[2] == "10.200.0.2 on enp1s0f0np0 ALLOW IN 10.200.0.1"


@pytest.mark.report("NET-21")
def test_a_fresh_ufw_keeps_the_peer_out() -> None:
    ssh = "### tuple ### allow tcp 22 0.0.0.0/0 any 0.0.0.0/0 in\n"
    assert lets(of_ufw(ssh)) == [False, False, False]
    assert lets(of_ufw(ssh, "ACCEPT")) == [True, True, True]


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("allow any any 0.0.0.0/0 any 10.200.0.0/24 in", [True, True, True]),
        ("allow any any 0.0.0.0/0 any 0.0.0.0/0 in_enp1s0f0np0", [True, True, False]),
        ("allow_log any any 10.200.0.2 any 10.200.0.1 in", [True, False, True]),
        ("allow tcp any 10.200.0.2 any 10.200.0.1 in", [False, False, False]),
        ("allow any any 10.200.0.2 any 10.200.0.1 out", [False, False, False]),
        ("route:allow any any 10.200.0.2 any 10.200.0.1 in", [False, False, False]),
        ("allow any any 10.200.0.2 any 10.200.0.1 in comment=737061726b70616972", [True, False, True]),
        ("limit any any 10.200.0.2 any 10.200.0.1 in", [False, False, False]),
    ],
)
def test_what_a_rule_of_ufw_lets_in(rule: str, wanted: list[bool]) -> None:
    assert lets(of_ufw(f"### tuple ### {rule}\n")) == wanted


def test_the_first_rule_of_ufw_that_is_about_all_of_it_counts() -> None:
    deny = "### tuple ### deny any any 0.0.0.0/0 any 10.200.0.1 in\n"
    allow = "### tuple ### allow any any 10.200.0.2 any 10.200.0.1 in_enp1s0f0np0\n"
    assert lets(of_ufw(deny + allow)) == [False, False, False]
    assert lets(of_ufw(allow + deny)) == [True, False, False]
    assert lets(of_ufw(deny, "ACCEPT")) == [False, True, False]


def test_a_rule_of_ufw_that_is_cut() -> None:
    with pytest.raises(Garbled, match=r"/etc/ufw/user.rules said"):
        ufw.added("### tuple ### allow any any 10.20")


def test_dockers_own_rules_filter_nothing_that_comes_in() -> None:
    assert nft.firewall(sample("nft-docker.txt")) == Firewall("", drops=False)
    assert iptables.firewall(sample("iptables-docker.txt")) == Firewall("", drops=False)
    assert nft.firewall("") == Firewall("", drops=False)


@pytest.mark.report("NET-21")
@pytest.mark.parametrize(
    "firewall",
    [nft.firewall(sample("nft-ufw.txt")), iptables.firewall(sample("iptables-ufw.txt"))],
    ids=["nft", "iptables"],
)
def test_the_same_rules_in_the_kernels_tables(firewall: Firewall) -> None:
    assert (firewall.manager, firewall.drops) == ("nftables", True)
    assert lets(firewall) == [True, False, False]


@pytest.mark.report("NET-21")
def test_somebodys_own_rules() -> None:
    """Sets and counters between the chains, a brace within a comment, a drop at the end of another chain."""
    text = sample("nft-own.txt")
    found = nft.firewall(text)
    assert found.drops
    assert found.rules[0] == "inet filter input: policy drop"
    assert found.rules[-1] == 'inet filter extra: log prefix "dropped: " counter packets 0 bytes 0 drop'
    assert lets(found) == [False, False, False]
    rule = 'iifname "enp1s0f0np0" ip saddr 10.200.0.1 ip daddr 10.200.0.2 accept'
    assert lets(nft.firewall(text.replace("\t\tjump extra", f"\t\t{rule}\n\t\tjump extra"))) == [True, False, False]
    later = text.replace("\t\tjump extra", f"\t\tjump extra\n\t\t{rule}")
    assert lets(nft.firewall(later)) == [False, False, False], "what comes after a drop comes too late"


def chain(*rules: str, policy: str = "drop", extra: str = "") -> Firewall:
    body = "".join(f"\t\t{rule}\n" for rule in rules)
    base = f"\t\ttype filter hook input priority filter; policy {policy};\n"
    return nft.firewall(f"table inet mine {{\n\tchain in {{\n{base}{body}\t}}\n{extra}}}\n")


@pytest.mark.parametrize(
    ("rules", "wanted"),
    [
        (("ip saddr { 10.200.0.1, 10.200.1.1 } counter accept",), [True, False, True]),
        (('iifname "enp1s0*" ip saddr 10.200.0.0/24 accept',), [True, True, True]),
        (('iifname != "lo" accept',), [True, True, True]),
        (("ip saddr != 10.200.0.1 drop", "accept"), [True, False, True]),
        (("tcp dport 22 accept",), [False, False, False]),
        (("ip saddr 10.200.0.1 reject with icmp type port-unreachable", "accept"), [False, True, False]),
        (("ip saddr 10.200.0.1 return", "accept"), [False, True, False]),
    ],
)
def test_what_a_rule_of_nft_lets_in(rules: tuple[str, ...], wanted: list[bool]) -> None:
    assert lets(chain(*rules)) == wanted


def test_chains_that_are_jumped_to() -> None:
    extra = "\tchain peers {\n\t\tip saddr 10.200.0.1 accept\n\t}\n"
    assert lets(chain("jump peers", extra=extra)) == [True, False, True]
    loop = "\tchain a {\n\t\tjump b\n\t}\n\tchain b {\n\t\tjump a\n\t}\n"
    assert lets(chain("jump a", extra=loop)) == [False, False, False]
    assert lets(chain("drop", policy="accept")) == [False, False, False]
    assert not chain("tcp dport 9 drop", policy="accept").drops
    assert lets(chain("tcp dport 9 drop", policy="accept")) == [True, True, True]


def test_iptables_of_somebodys_own() -> None:
    found = iptables.firewall(sample("iptables-own.txt"))
    assert (found.manager, found.drops) == ("nftables", True)
    assert lets(found) == [False, False, False]
    opened = sample("iptables-own.txt") + "-A INPUT -s 10.200.0.1/32 -d 10.200.0.2/32 -i enp1s0f0np0 -j ACCEPT\n"
    assert lets(iptables.firewall(opened)) == [True, False, False]
    assert nft.firewall(sample("nft-iptables.txt")).rules == (
        "ip filter INPUT: policy drop",
        'ip filter INPUT: iifname "lo" counter packets 0 bytes 0 accept',
        "ip filter INPUT: tcp dport 22 counter packets 0 bytes 0 accept",
    )


def test_firewalld_by_zone_and_rich_rule() -> None:
    zones = firewalld.parse(sample("firewalld.txt"))
    found = firewalld.firewall(zones, "public")
    assert (found.manager, found.drops) == ("firewalld", True)
    assert "public: interfaces: enP7s7 enp1s0f0np0" in found.rules
    assert lets(found) == [True, False, False]
    assert lets_in(found, OTHER_NETDEV) is False
    trusted = {**zones, "trusted": {**zones["trusted"], "interfaces": "enp1s0f1np1"}}
    assert lets(firewalld.firewall(trusted, "public")) == [True, False, True]
    assert firewalld.firewall(zones, "trusted").drops is False
    with pytest.raises(Garbled, match="get-default-zone"):
        firewalld.firewall(zones, "")
