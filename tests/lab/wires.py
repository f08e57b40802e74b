"""Nodes that are a network namespace each, with the four netdevs of a Spark, and wires between them: no systemd, no
hosts of the lab. Real frames go over them, and the program that the nodes run is the real one."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv4Interface, IPv4Network

from facts.host import Port
from facts.talk import Said, Talk, command, from_output
from operations.talk import questions
from spec.cluster import Rail
from spec.discovery import Found, Look, Pool, find

PORTS = {
    "enp1s0f0np0": ("rocep1s0f0", "0000:01:00.0"),
    "enp1s0f1np1": ("rocep1s0f1", "0000:01:00.1"),
    "enP2p1s0f0np0": ("roceP2p1s0f0", "0002:01:00.0"),
    "enP2p1s0f1np1": ("roceP2p1s0f1", "0002:01:00.1"),
}
F0 = ("enp1s0f0np0", "enP2p1s0f0np0")
F1 = ("enp1s0f1np1", "enP2p1s0f1np1")
End = tuple[int, str]


def ip(*words: object) -> str:
    """Run ip(8)."""
    done = subprocess.run(["ip", *map(str, words)], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, f"ip {' '.join(map(str, words))}: {done.stderr}"
    return done.stdout


class Wires:
    """So many nodes; nothing is cabled at first."""

    def __init__(self, count: int) -> None:
        self.names = [f"spark-{letter}" for letter in "abcdefgh"[:count]]
        self._tag = f"spw{os.getpid()}"
        self._wires = 0
        self.hub = f"{self._tag}-hub"

    def space(self, number: int) -> str:
        """The namespace of a node."""
        return f"{self._tag}-{number}"

    def build(self) -> None:
        """All nodes with all their netdevs, dark."""
        for name in (self.hub, *(self.space(number) for number in range(len(self.names)))):
            ip("netns", "add", name)
        for number in range(len(self.names)):
            ip("-n", self.space(number), "link", "set", "lo", "up")
            for netdev in PORTS:
                far = self._far(number, netdev)
                ip(
                    "-n",
                    self.hub,
                    "link",
                    "add",
                    far,
                    "type",
                    "veth",
                    "peer",
                    "name",
                    netdev,
                    "netns",
                    self.space(number),
                )
                ip("-n", self.space(number), "link", "set", netdev, "up")

    def remove(self) -> None:
        """Everything."""
        for name in (self.hub, *(self.space(number) for number in range(len(self.names)))):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20, check=False)

    def wire(self, *ends: End) -> None:
        """Who is on it hears everybody else there: a cable between two, a switch between more, a computer for one."""
        bridge = f"wire{self._wires}"
        self._wires += 1
        ip("-n", self.hub, "link", "add", bridge, "type", "bridge", "mcast_snooping", 0)
        ip("-n", self.hub, "link", "set", bridge, "up")
        for number, netdev in ends:
            ip("-n", self.hub, "link", "set", self._far(number, netdev), "master", bridge)
            ip("-n", self.hub, "link", "set", self._far(number, netdev), "up")

    def cable(self, *ends: tuple[int, Sequence[str]]) -> None:
        """One QSFP cable, or a switch: both netdevs of each port are on one wire, as behind the port's own switch."""
        self.wire(*((number, netdev) for number, port in ends for netdev in port))

    def address(self, number: int, netdev: str, address: str) -> None:
        ip("-n", self.space(number), "address", "add", address, "dev", netdev)

    def ports(self, number: int) -> tuple[Port, ...]:
        """As the probe would tell them."""
        found = []
        for link in json.loads(ip("-n", self.space(number), "-j", "address")):
            name = link["ifname"]
            if name in PORTS:
                hca, pci = PORTS[name]
                lit, up = "LOWER_UP" in link["flags"], "UP" in link["flags"]
                held = [IPv4Interface(f"{one['local']}/{one['prefixlen']}") for one in link["addr_info"]
                        if one["family"] == "inet"]  # fmt: skip
                found.append(Port(hca=hca, netdev=name, mac=link["address"], pci=pci, state="ACTIVE" if lit else "DOWN",
                                  carrier=lit if up else None, mtu=link["mtu"], addresses=tuple(held)))  # fmt: skip
        return tuple(found)

    def looks(self, stated: Mapping[str, Sequence[Rail]] | None = None) -> list[Look]:
        return [
            Look(name, IPv4Address(f"192.168.1.{10 + number}"), self.ports(number), tuple((stated or {}).get(name, ())))
            for number, name in enumerate(self.names)
        ]

    def talk(self, looks: Sequence[Look], rails: Mapping[str, Sequence[Rail]] | None = None,
             delays: Mapping[str, float] | None = None) -> Talk:  # fmt: skip
        """All of them at once, each as late as is said."""
        asked = questions(looks, rails or {}, 1500)

        def ask(name: str) -> Said:
            time.sleep((delays or {}).get(name, 0))
            space = self.space(self.names.index(name))
            line = command(asked[name].text()).get_raw_value()
            done = subprocess.run(["ip", "netns", "exec", space, "sh", "-c", line], capture_output=True, text=True,
                                  timeout=30, check=False)  # fmt: skip
            return from_output(done.stdout.splitlines())

        with ThreadPoolExecutor(len(asked) or 1) as threads:
            return Talk(dict(zip(asked, threads.map(ask, asked), strict=True)))

    def found(self, stated: Mapping[str, Sequence[Rail]] | None = None, **more: Mapping[str, float]) -> Found:
        """What discovery makes of it."""
        looks = self.looks(stated)
        talk = self.talk(looks, **more)
        heard = {name: said.heard for name, said in talk.said.items()}
        return find(looks, heard, Pool(IPv4Network("10.200.0.0/16")))

    def _far(self, number: int, netdev: str) -> str:
        return f"n{number}p{list(PORTS).index(netdev)}"


@contextmanager
def wires(count: int) -> Iterator[Wires]:
    """Nodes for the time of a test."""
    here = Wires(count)
    here.remove()
    try:
        here.build()
        yield here
    finally:
        here.remove()
