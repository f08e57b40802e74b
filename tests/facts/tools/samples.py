"""The samples, and every parser with those that it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from facts.tools import (
    boots,
    docker_info,
    ethtool,
    firewalld,
    fwupdmgr,
    getconf,
    ibdev2netdev,
    ibstat,
    ibv_devinfo,
    ini,
    ip,
    iptables,
    kernel_log,
    keyfile,
    limits,
    lspci,
    meminfo,
    netplan,
    networkd,
    nft,
    nmcli,
    nvidia_smi,
    ps,
    rdma,
    release,
    ss,
    sysfs,
    systemctl,
    timedatectl,
    ufw,
)
from facts.tools.netdevs import Netdev

PLACE = Path(__file__).parent / "samples"
NETDEVS = (
    Netdev("enp1s0f0np0", "02:5a:00:00:01:00", "mlx5_core"),
    Netdev("enp1s0f1np1", "02:5a:00:00:01:01", "mlx5_core"),
    Netdev("enP2p1s0f1np1", "02:5a:00:00:01:03", "mlx5_core"),
)


def sample(name: str) -> str:
    """A sample as it is, to the last byte."""
    return (PLACE / name).read_bytes().decode()


@dataclass(frozen=True)
class Parser:
    """A parser with its samples. `any_order` where its lines may come in any; `takes_nothing` where an empty output is
    one that it can have; `never` where nothing is garbled for it."""

    read: Callable[[str], Any]
    samples: tuple[str, ...]
    any_order: bool = False
    takes_nothing: bool = False
    never: bool = False
    noise: tuple[str, ...] = field(default=("", "warning: this tool has seen better days", "# a remark"))
    """Lines that may stand before and after."""


def _netplan(text: str) -> Any:
    return netplan.definitions({"/etc/netplan/10-x.yaml": text}, NETDEVS)


PARSERS: dict[str, Parser] = {
    "ibdev2netdev": Parser(
        ibdev2netdev.parse, ("S01-ibdev2netdev.txt", "S02-ibdev2netdev.txt"), any_order=True, takes_nothing=True
    ),
    "ip -j address": Parser(ip.links, ("ip-address.json", "ip-link.json"), takes_nothing=True, noise=()),
    "ip -j route": Parser(ip.routes, ("ip-route.json",), takes_nothing=True, noise=()),
    "ip address": Parser(ip.parse, ("S03-ip-address.txt", "ip-address.txt"), takes_nothing=True),
    "rdma -j link": Parser(rdma.parse_json, ("rdma.json",), takes_nothing=True, noise=()),
    "rdma link": Parser(rdma.parse, ("rdma.txt",), any_order=True, takes_nothing=True),
    "ibv_devinfo": Parser(ibv_devinfo.parse, ("ibv_devinfo.txt",), takes_nothing=True),
    "ibstat": Parser(ibstat.parse, ("S06-ibstat.txt",), takes_nothing=True),
    "ethtool": Parser(ethtool.parse, ("ethtool-veth.txt", "ethtool-dark.txt"), noise=("",)),
    "ethtool -m": Parser(ethtool.module, ("ethtool-m.txt",), takes_nothing=True, never=True),
    "lspci": Parser(lspci.parse, ("S08-lspci.txt",), any_order=True, takes_nothing=True),
    "sysfs state": Parser(sysfs.state, (), takes_nothing=True, never=True),
    "netplan": Parser(_netplan, ("S23-netplan.yaml", "S24-netplan.yaml", "S25-netplan.yaml"), takes_nothing=True,
                      noise=("", "# a remark")),
    "networkd": Parser(lambda text: networkd.definitions("/etc/systemd/network/x.network", text, NETDEVS),
                       ("management.network",), takes_nothing=True, never=True, noise=("", "; a remark")),
    "keyfile": Parser(lambda text: keyfile.definitions("/etc/x.nmconnection", text, NETDEVS),
                      ("rail.nmconnection", "external.nmconnection"), takes_nothing=True, never=True,
                      noise=("", "# a remark")),
    "ini": Parser(ini.entries, ("rail.nmconnection", "management.network"), takes_nothing=True, never=True, noise=()),
    "nmcli device": Parser(nmcli.devices, ("nmcli-device.txt",), takes_nothing=True),
    "nmcli connection": Parser(nmcli.profiles, ("nmcli-connection.txt",), takes_nothing=True),
    "docker info": Parser(docker_info.parse, ("docker-info.json",), noise=()),
    "daemon.json": Parser(docker_info.settings_runtimes, ("S18-daemon.json", "S18-daemon-second.json"),
                          takes_nothing=True, noise=()),
    "nvidia-smi": Parser(nvidia_smi.gpus, ("nvidia-smi.txt",), takes_nothing=True),
    "nvidia-smi -q": Parser(nvidia_smi.details, ("S29-nvidia-smi-q.txt",), takes_nothing=True, noise=("",)),
    "nvidia-smi -q reasons": Parser(nvidia_smi.active_reasons, ("S29-nvidia-smi-q.txt",), takes_nothing=True),
    "nvidia-smi apps": Parser(nvidia_smi.apps, ("compute-apps.txt",), takes_nothing=True),
    "kernel log": Parser(kernel_log.parse, ("S17-kernel.txt",), takes_nothing=True, never=True),
    "meminfo": Parser(meminfo.parse, ("meminfo.txt",), any_order=True),
    "os-release": Parser(lambda text: release.parse(text, text), ("os-release.txt",), any_order=True),
    "dgx-release": Parser(release.dgx_version, ("dgx-release.txt",), takes_nothing=True, never=True),
    "fwupdmgr": Parser(fwupdmgr.parse, ("fwupdmgr-devices.json",), noise=("Something is old",)),
    "fwupdmgr upgrades": Parser(lambda text: fwupdmgr.parse(sample("fwupdmgr-devices.json"), text),
                                ("fwupdmgr-upgrades.json",), takes_nothing=True, noise=()),
    "ss": Parser(ss.parse, ("ss.txt",), any_order=True, takes_nothing=True),
    "timedatectl": Parser(timedatectl.parse, ("timedatectl.txt",), any_order=True),
    "ufw": Parser(ufw.parse, ("ufw-verbose.txt",), noise=("",)),
    "ufw rules": Parser(ufw.added, ("ufw-user.rules",), takes_nothing=True),
    "nft": Parser(nft.firewall, ("nft-docker.txt", "nft-ufw.txt", "nft-own.txt", "nft-iptables.txt"),
                  takes_nothing=True),
    "iptables": Parser(iptables.firewall, ("iptables-ufw.txt", "iptables-docker.txt", "iptables-own.txt"),
                       noise=("", "# Warning: iptables-legacy tables present, use iptables-legacy to see them")),
    "firewalld": Parser(firewalld.parse, ("firewalld.txt",), noise=("",)),
    "systemctl": Parser(systemctl.parse, ("systemctl-docker.txt",), any_order=True, takes_nothing=True),
    "limits": Parser(limits.parse, ("limits.txt",), any_order=True),
    "boots": Parser(boots.parse, ("boots.txt",), any_order=True, takes_nothing=True),
    "boot's end": Parser(boots.ended, ("boot-end-clean.txt", "boot-end-cut.txt"), takes_nothing=True, never=True,
                         noise=("", "-- No entries --")),
    "getconf": Parser(getconf.parse, (), noise=()),
    "ps": Parser(ps.parse, ("ps.txt",), any_order=True),
}  # fmt: skip

SEEDS = {"sysfs state": ("4: ACTIVE",), "getconf": ("4096\n", "65536\n")}
"""Texts of those that have no file, for the fuzz."""


def texts(name: str) -> tuple[str, ...]:
    """What a parser is tried with."""
    return (*map(sample, PARSERS[name].samples), *SEEDS.get(name, ()))
