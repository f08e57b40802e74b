"""What the tools of the fabric say: pairs of HCA and netdev, states, MTUs, speeds, addresses."""

from __future__ import annotations

from ipaddress import IPv4Interface

import pytest

from facts.tools import ethtool, ibdev2netdev, ibstat, ibv_devinfo, ip, lspci, rdma, sysfs
from facts.tools.garbled import Garbled
from tests.facts.tools.samples import sample


@pytest.mark.report("NET-03", "NET-24")
def test_ports_in_any_order() -> None:
    """S01 and S02 are one state: the cable is in port f1, and each port is two netdevs."""
    found = ibdev2netdev.parse(sample("S01-ibdev2netdev.txt"))
    assert found == ibdev2netdev.parse(sample("S02-ibdev2netdev.txt"))
    assert [(pair.netdev, pair.up) for pair in found] == [
        ("enP2p1s0f0np0", False),
        ("enP2p1s0f1np1", True),
        ("enp1s0f0np0", False),
        ("enp1s0f1np1", True),
    ]


def test_a_pair_that_is_cut_is_no_pair_less() -> None:
    with pytest.raises(Garbled, match=r"ibdev2netdev said 'rocep1s0f0 port 1 ==> enp1s', which cannot be read"):
        ibdev2netdev.parse("rocep1s0f1 port 1 ==> enp1s0f1np1 (Up)\nrocep1s0f0 port 1 ==> enp1s")


@pytest.mark.report("NET-10")
def test_the_mtu_that_rdma_uses() -> None:
    second, first = ibv_devinfo.parse(sample("ibv_devinfo.txt"))
    assert (first.hca, first.state, first.active_mtu, first.firmware) == ("rocep1s0f0", "ACTIVE", 4096, "28.45.4028")
    assert (second.hca, second.state, second.active_mtu) == ("roceP2p1s0f0", "DOWN", 1024)
    assert ibv_devinfo.parse("No IB devices found\n") == []
    with pytest.raises(Garbled):
        ibv_devinfo.parse(sample("ibv_devinfo.txt").replace("4096 (5)\n\t\t\tsm", "invalid MTU (7)\n\t\t\tsm"))


def test_the_rate_of_a_dark_port_means_nothing() -> None:
    """S06: it says 40."""
    lit, dark = ibstat.parse(sample("S06-ibstat.txt"))
    assert (lit.state, lit.physical, lit.rate_gbps, lit.firmware) == ("ACTIVE", "LinkUp", 200, "28.45.4028")
    assert (dark.hca, dark.state, dark.physical, dark.rate_gbps) == ("roceP2p1s0f1", "DOWN", "Disabled", None)


def test_rdma_link_in_both_forms() -> None:
    assert rdma.parse_json(sample("rdma.json")) == rdma.parse(sample("rdma.txt"))
    assert rdma.parse(sample("rdma.txt"))[0] == rdma.RdmaLink("rocep1s0f0", 1, "ACTIVE", "LINK_UP", "enp1s0f0np0")


def test_four_functions_of_a_connectx() -> None:
    assert [function.slot for function in lspci.connectx(lspci.parse(sample("S08-lspci.txt")))] == [
        "0000:01:00.0",
        "0000:01:00.1",
        "0002:01:00.0",
        "0002:01:00.1",
    ]
    assert lspci.parse("01:00.0 VGA compatible controller: NVIDIA Corporation Device (rev a1)\n") == [
        lspci.Function("0000:01:00.0", "VGA compatible controller", "NVIDIA Corporation Device")
    ]


@pytest.mark.report("NET-26")
def test_speed_and_what_is_plugged_in() -> None:
    assert ethtool.parse(sample("ethtool-veth.txt")) == ethtool.Link(10_000, True, "Twisted Pair")
    assert ethtool.parse(sample("ethtool-dark.txt")) == ethtool.Link(None, False, "Direct Attach Copper")
    assert ethtool.module(sample("ethtool-m.txt")) == "Amphenol NJAAKK-N911"
    assert ethtool.module("netlink error: Operation not supported\n") == ""
    with pytest.raises(Garbled):
        ethtool.parse("netlink error: No such device\nNo data available\n")


def test_addresses_as_json_and_as_text() -> None:
    found = ip.links(sample("ip-address.json"))
    assert found["enP7s7"].addresses == (IPv4Interface("192.168.77.12/24"),)
    assert found["enp1s0f1np1"].mac == "02:5a:00:00:02:00"
    text = ip.parse(sample("ip-address.txt"))
    assert {name: (link.mtu, link.flags, link.addresses) for name, link in text.items()} == {
        name: (link.mtu, link.flags, link.addresses) for name, link in found.items()
    }
    rail = ip.parse(sample("S03-ip-address.txt"))["enp1s0f1np1"]
    assert (rail.mtu, rail.addresses) == (1500, (IPv4Interface("192.168.100.10/24"),))
    assert ip.links(sample("ip-link.json"))["docker0"].flags == ("NO-CARRIER", "BROADCAST", "MULTICAST", "UP")
    assert ip.routes(sample("ip-route.json"))[0] == ip.Route("default", "enP7s7", "192.168.77.1", "")


NETDEV = {"mac": "02:5a:00:00:01:00", "mtu": "9000", "flags": "0x1003", "carrier": "1", "speed": "200000", "pci": ""}
HCA = {"netdevs": ["enp1s0f0np0"], "pci": "0000:01:00.0", "state": "4: ACTIVE", "firmware": "28.45.4028", "width": "4",
       "speed": "32.0 GT/s PCIe"}  # fmt: skip


def test_a_port_of_sysfs() -> None:
    addresses = {"enp1s0f0np0": (IPv4Interface("10.200.0.1/24"),)}
    (port,) = sysfs.ports({"rocep1s0f0": HCA}, {"enp1s0f0np0": NETDEV}, addresses)
    assert (port.hca, port.netdev, port.state, port.carrier, port.mtu) == (
        "rocep1s0f0", "enp1s0f0np0", "ACTIVE", True, 9000,
    )  # fmt: skip
    assert (port.domain, port.function, port.speed_mbps, port.link_width) == ("0000", "0", 200_000, 4)
    assert (port.link_speed, port.addresses) == ("32.0 GT/s PCIe", addresses["enp1s0f0np0"])


@pytest.mark.parametrize(
    ("flags", "text", "wanted"),
    [("0x1002", "", None), ("0x1003", "0", False), ("0x1003", "1", True), ("", "1", True), ("", "", None)],
)
def test_a_netdev_that_is_down_has_no_carrier_to_tell(flags: str, text: str, wanted: bool | None) -> None:
    assert sysfs.carrier(flags, text) is wanted


def test_what_sysfs_does_not_say() -> None:
    """A speed of -1, an HCA without a netdev, one whose netdev lives in another namespace."""
    quiet = {**NETDEV, "speed": "-1", "carrier": None, "flags": "0x1002"}
    hcas = {"a": {**HCA, "width": None, "speed": None}, "b": {**HCA, "netdevs": []}, "c": {**HCA, "netdevs": ["gone"]}}
    (port,) = sysfs.ports(hcas, {"enp1s0f0np0": quiet, "gone": {"mac": None}}, {})
    assert (port.speed_mbps, port.carrier, port.link_width, port.link_speed) == (None, None, None, "")
