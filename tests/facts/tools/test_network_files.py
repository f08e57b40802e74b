"""Who defines a netdev: netplan's files, networkd's, NetworkManager's profiles and its own word."""

from __future__ import annotations

import pytest

from facts.host import Definition, NmDevice, NmProfile
from facts.tools import keyfile, netplan, networkd, nmcli
from facts.tools.garbled import Garbled
from facts.tools.netdevs import Netdev
from tests.facts.tools.samples import NETDEVS, sample

RAIL = Netdev("enp1s0f1np1", "02:5a:00:00:01:01", "mlx5_core")
PATH = "/etc/netplan/40-cx7.yaml"


def of(text: str, *netdevs: Netdev) -> list[tuple[str, int, str, bool]]:
    found = netplan.definitions({PATH: text}, netdevs or (RAIL,))
    return [(item.netdev, item.line, item.id, item.named) for item in found]


@pytest.mark.report("NET-06", "NET-15")
def test_the_playbooks_own_file() -> None:
    """S23: two subnets, and no MTU."""
    found = netplan.definitions({PATH: sample("S23-netplan.yaml")}, NETDEVS)
    assert found[0] == Definition(
        PATH, 4, "enp1s0f1np1", "enp1s0f1np1", "netplan", True, addresses=("192.168.100.10/24",)
    )
    assert [(item.netdev, item.addresses, item.mtu) for item in found] == [
        ("enp1s0f1np1", ("192.168.100.10/24",), None),
        ("enP2p1s0f1np1", ("192.168.101.10/24",), None),
    ]


@pytest.mark.report("NET-18")
def test_link_local_and_flow_style() -> None:
    """S24 ends without a line's end; S25 writes its list in brackets."""
    assert of(sample("S24-netplan.yaml")) == [("enp1s0f1np1", 6, "enp1s0f1np1", True)]
    (found,) = netplan.definitions({PATH: sample("S25-netplan.yaml")}, NETDEVS)
    assert (found.netdev, found.mtu, found.addresses) == ("enp1s0f0np0", 9000, ("10.20.0.11/24",))


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("    enp1s0f1np1: {}", True),
        ('    "enp1s0f1np1": {mtu: 9000}', True),
        ("    rail: {match: {macaddress: '02:5A:00:00:01:01'}}", False),
        ("    rail: {match: {macaddress: '02:5a:00:00:01:01'}, set-name: enp1s0f1np1}", True),
        ("    rail: {match: {name: enp1s0f1np1}}", True),
        ("    rail: {match: {name: 'enp1s0*'}}", False),
        ("    rail: {match: {name: ['eth*', 'enp1*']}}", False),
        ("    rail: {match: {driver: mlx5_core}}", False),
        ("    rail: {match: {driver: [mlx5_core, ixgbe], name: 'e*'}}", False),
        ("    all: {match: {}}", False),
    ],
)
def test_who_is_meant(body: str, named: bool) -> None:
    assert [row[3] for row in of(f"network:\n  ethernets:\n{body}\n")] == [named]


@pytest.mark.parametrize(
    "body",
    [
        "    enp1s0f0np0: {}",
        "    enp1s0f1np1: {match: {name: eth0}}",
        "    rail: {match: {driver: r8127}}",
        "    rail: {match: {name: 'enp1*', macaddress: '02:5a:00:00:01:02'}}",
        "    # enp1s0f1np1: {}",
        "    other: {addresses: [10.0.0.1/24]}  # enp1s0f1np1",
        "    other: {nameservers: {search: [enp1s0f1np1]}}",
    ],
)
def test_who_is_not_meant(body: str) -> None:
    assert of(f"network:\n  ethernets:\n{body}\n") == []


def test_members_of_bonds_bridges_and_vlans() -> None:
    """By the id of a definition in whatever file, whose netdev may have another name."""
    texts = {
        "/etc/netplan/10-a.yaml": "network:\n  ethernets:\n    port:\n      match: {name: enp1s0f1np1}\n",
        "/etc/netplan/20-b.yaml": "network:\n  bonds:\n    bond0:\n      interfaces: [port, eth1]\n      mtu: 9000\n"
        "  bridges:\n    br0: {interfaces: [enp1s0f1np1]}\n  vlans:\n    v7: {id: 7, link: port}\n"
        "  vrfs:\n    red: {interfaces: [v7], table: 3}\n",
    }
    found = netplan.definitions(texts, [RAIL])
    assert [(item.file[-6:], item.line, item.id, item.named) for item in found] == [
        ("a.yaml", 3, "port", True),
        ("b.yaml", 3, "bond0", False),
        ("b.yaml", 7, "br0", False),
        ("b.yaml", 9, "v7", False),
    ]


def test_the_renderer_that_is_in_force() -> None:
    """Of the definition, else of its kind, else of any file: the last by name, whatever its directory."""
    body = "network:\n  ethernets:\n    enp1s0f1np1: {}\n"
    texts = {
        "/run/netplan/01-first.yaml": "network: {renderer: networkd}\n",
        "/etc/netplan/02-manager.yaml": "network: {version: 2, renderer: NetworkManager}\n",
        "/etc/netplan/10-x.yaml": body,
    }
    (found,) = netplan.definitions(texts, [RAIL])
    assert (found.renderer, found.volatile) == ("NetworkManager", False)
    texts["/run/netplan/10-x.yaml"] = body.replace("{}", "{renderer: networkd}")
    assert [(item.renderer, item.volatile) for item in netplan.definitions(texts, [RAIL])] == [
        ("NetworkManager", False),
        ("networkd", True),
    ]


def test_values_that_are_none() -> None:
    body = "network:\n  ethernets:\n    enp1s0f1np1: {mtu: many, addresses: [10.0.0.1/24: {label: a}, '10.0.0.2/24']}\n"
    (found,) = netplan.definitions({PATH: body}, [RAIL])
    assert (found.mtu, found.addresses) == (None, ("10.0.0.1/24", "10.0.0.2/24"))
    assert of("network:\n  ethernets:\n    enp1s0f1np1:\n") == [("enp1s0f1np1", 3, "enp1s0f1np1", True)]
    assert of("network:\n  ethernets: [enp1s0f1np1]\n") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("network:\n\tethernets:\n", "40-cx7.yaml, line 2 said"),
        ("network: [\n", "40-cx7.yaml, line 2 said"),
        ("a: b\n---\nc: d\n", "40-cx7.yaml, line 2 said"),
        ("network: *nobody\n", "40-cx7.yaml, line 1 said"),
        ("[" * 100, "more than 64 levels within each other"),
    ],
)
def test_a_file_that_is_no_yaml_says_where(text: str, message: str) -> None:
    with pytest.raises(Garbled, match=message):
        of(text)


def networkd_of(text: str, path: str = "/etc/systemd/network/10-rail.network") -> list[tuple[str, int, bool]]:
    return [(item.netdev, item.line, item.named) for item in networkd.definitions(path, text, [RAIL])]


@pytest.mark.parametrize(
    ("match", "wanted"),
    [
        ("Name=enp1s0f1np1", [("enp1s0f1np1", 2, True)]),
        ("Name=eth0 enp1s0f1np1", [("enp1s0f1np1", 2, False)]),
        ("Name=enp1*", [("enp1s0f1np1", 2, False)]),
        ("Name=!eth0", [("enp1s0f1np1", 2, False)]),
        ("Name=!enp1*", []),
        ("Name=eth0", []),
        ("MACAddress=02-5A-00-00-01-01", [("enp1s0f1np1", 2, False)]),
        ("PermanentMACAddress=02:5a:00:00:01:09", []),
        ("Driver=mlx5_core", [("enp1s0f1np1", 2, False)]),
        ("Name=e*\nDriver=ixgbe", []),
        ("Type=ether", []),
        ("# Name=enp1s0f1np1", []),
    ],
)
def test_whom_networkd_matches(match: str, wanted: list[tuple[str, int, bool]]) -> None:
    assert networkd_of(f"[Match]\n{match}\n") == wanted


def test_what_networkd_sets() -> None:
    text = (
        "[Match]\nName=enp1s0f1np1\n[Link]\nMTUBytes=9000\n"
        "[Network]\nAddress=10.0.0.1/24\n[Address]\nAddress=10.0.0.2/24\n"
    )
    (found,) = networkd.definitions("/run/systemd/network/x.network", text, [RAIL])
    assert (found.kind, found.id, found.mtu, found.volatile) == ("networkd", "x.network", 9000, True)
    assert found.addresses == ("10.0.0.1/24", "10.0.0.2/24")


@pytest.mark.report("NET-08")
def test_a_profile_in_run_is_forgotten_by_a_reboot() -> None:
    path = "/run/NetworkManager/system-connections/netplan-enp1s0f1np1.nmconnection"
    text = (
        "[connection]\nid=netplan-enp1s0f1np1\ntype=ethernet\ninterface-name=enp1s0f1np1\n"
        "[ethernet]\nmtu=9000\n[ipv4]\naddress1=10.0.0.1/24,10.0.0.9\n"
    )
    (found,) = keyfile.definitions(path, text, [RAIL])
    assert (found.volatile, found.line, found.named, found.mtu) == (True, 4, True, 9000)
    assert (found.id, found.addresses) == ("netplan-enp1s0f1np1", ("10.0.0.1/24",))


def test_profiles_of_nmcli() -> None:
    (found,) = keyfile.definitions("/etc/x.nmconnection", sample("rail.nmconnection"), NETDEVS)
    assert (found.id, found.netdev, found.mtu, found.addresses, found.volatile) == (
        "my: rail", "enp1s0f0np0", 9000, ("10.9.0.2/24",), False,
    )  # fmt: skip
    docker = Netdev("docker0")
    assert keyfile.definitions("/run/x", sample("external.nmconnection"), [docker]) == [], "it mirrors somebody else's"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[match]\ninterface-name=eth0;enp1*;\n", [False]),
        ("[ethernet]\nmac-address=02:5A:00:00:01:01\n", [False]),
        ("[802-3-ethernet]\nmac-address=02:5a:00:00:01:01\n", [False]),
        ("[connection]\ninterface-name=eth0\n[ethernet]\nmac-address=02:5a:00:00:01:01\n", []),
        ("[connection]\nid=Wired\ntype=ethernet\n", []),
    ],
)
def test_whom_a_profile_means(text: str, named: list[bool]) -> None:
    assert [item.named for item in keyfile.definitions("/etc/x", text, [RAIL])] == named


@pytest.mark.report("NET-06", "NET-08")
def test_what_network_manager_says() -> None:
    assert nmcli.devices(sample("nmcli-device.txt"))[-1] == NmDevice("enp1s0f1np1", "ethernet", "unmanaged", "")
    lo, _, rail, volatile = nmcli.profiles(sample("nmcli-connection.txt"))
    assert rail == NmProfile(
        "my: rail", "600553bb-17d1-4f97-afb6-32a42dee318c",
        "/etc/NetworkManager/system-connections/my: rail.nmconnection", "",
    )  # fmt: skip
    assert [profile.volatile for profile in (lo, rail, volatile)] == [True, False, True]
    assert NmProfile("Wired", "u", "", "eth0").volatile
    assert nmcli.devices(
        "Warning: nmcli (1.52.1) and NetworkManager (1.50.0) versions don't match\nlo:loopback:x:lo\n"
    ) == [NmDevice("lo", "loopback", "x", "lo")]
