"""Firewalls as their tools and files tell them."""

from __future__ import annotations

import pytest

from facts.host import Firewall
from facts.tools import firewalld, iptables, nft, ufw
from facts.tools.garbled import Garbled
from tests.facts.tools.samples import sample


@pytest.mark.report("NET-21")
def test_ufws_files_say_what_ufw_says() -> None:
    """Read instead of run: ufw takes as long as the whole probe."""
    found = ufw.from_files(sample("ufw.conf"), sample("ufw-default"), sample("ufw-user.rules"))
    added = sample("ufw-added.txt").splitlines()[1:]
    assert found == Firewall("ufw", True, tuple(line.removeprefix("ufw ") for line in added))


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


@pytest.mark.report("NET-21")
def test_somebodys_own_rules() -> None:
    """Sets and counters between the chains, a brace within a comment, a drop at the end of another chain."""
    text = sample("nft-own.txt")
    found = nft.firewall(text)
    assert found.drops
    assert found.rules[0] == "inet filter input: policy drop"
    assert found.rules[-1] == 'inet filter extra: log prefix "dropped: " counter packets 0 bytes 0 drop'


def chain(*rules: str, policy: str = "drop", extra: str = "") -> Firewall:
    body = "".join(f"\t\t{rule}\n" for rule in rules)
    base = f"\t\ttype filter hook input priority filter; policy {policy};\n"
    return nft.firewall(f"table inet mine {{\n\tchain in {{\n{base}{body}\t}}\n{extra}}}\n")


def test_chains_that_drop() -> None:
    """By policy, by a last rule of their own or of a chain that they jump to; a rule about one port drops not all."""
    assert chain("tcp dport 22 accept").drops
    assert chain("tcp dport 22 accept", "drop", policy="accept").drops
    assert chain("jump last", policy="accept", extra="\tchain last {\n\t\tcounter reject\n\t}\n").drops
    loop = "\tchain a {\n\t\tjump b\n\t}\n\tchain b {\n\t\tjump a\n\t}\n"
    assert chain("jump a", policy="accept", extra=loop) == Firewall("", drops=False)
    one_port = chain("tcp dport 9 drop", policy="accept")
    assert (one_port.manager, one_port.drops) == ("nftables", False)


def test_iptables_of_somebodys_own() -> None:
    found = iptables.firewall(sample("iptables-own.txt"))
    assert (found.manager, found.drops) == ("nftables", True)
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
    assert firewalld.firewall(zones, "trusted").drops is False
    with pytest.raises(Garbled, match="get-default-zone"):
        firewalld.firewall(zones, "")
