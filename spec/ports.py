"""The nodes' ports as discovery sees them: what belongs together, and who hears whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import IPv4Address, IPv4Interface
from typing import Protocol

from spec.changes import read_rails
from spec.cluster import Rail

ADDRESS = "address of "


class Port(Protocol):
    """What is read of a port; facts.host.Port has it."""

    @property
    def hca(self) -> str: ...
    @property
    def netdev(self) -> str: ...
    @property
    def pci(self) -> str: ...
    @property
    def carrier(self) -> bool | None: ...
    @property
    def addresses(self) -> tuple[IPv4Interface, ...]: ...
    @property
    def domain(self) -> str: ...
    @property
    def function(self) -> str: ...


class Heard(Protocol):
    """A frame that arrived; facts.talk.Heard has it."""

    @property
    def at(self) -> str: ...
    @property
    def node(self) -> str: ...
    @property
    def netdev(self) -> str: ...


@dataclass(frozen=True)
class Remark:
    """A refusal or a note: where, what was seen and wanted, what to do."""

    where: str
    statement: str
    fix: str


@dataclass(frozen=True)
class Look:
    """What one node is, for this question."""

    name: str
    management: IPv4Address
    ports: tuple[Port, ...]
    stated: tuple[Rail, ...] = ()
    """As the inventory has them; () where it leaves them out."""
    file: tuple[tuple[str, IPv4Interface], ...] = ()
    """Netdev and address of each rail in the netplan file of ours (`written`); () where there is none."""
    links: Mapping[str, tuple[IPv4Interface, ...]] = field(default_factory=dict)
    """All its links with their addresses."""
    deaf: str = ""
    """Why it could not take part in the talk; "" where it did."""

    def port(self, netdev: str) -> Port | None:
        """The port with that netdev."""
        return next((port for port in self.ports if port.netdev == netdev), None)

    def is_lit(self, netdev: str) -> bool:
        """Whether that netdev is there and has a carrier."""
        return any(port.netdev == netdev for port in self.lit)

    @cached_property
    def lit(self) -> tuple[Port, ...]:
        """The ports with a carrier."""
        return tuple(port for port in self.ports if port.carrier)

    @cached_property
    def qsfp(self) -> dict[str, str]:
        """Which port each netdev belongs to: the PCI function, where its netdevs lie in different domains."""
        domains: dict[str, list[str]] = {}
        for port in self.ports:
            domains.setdefault(port.function, []).append(port.domain)
        keys = {}
        for port in self.ports:
            alone = len(set(domains[port.function])) < len(domains[port.function])
            keys[port.netdev] = (port.pci or port.netdev) if alone else port.function
        return keys

    @cached_property
    def twins(self) -> dict[str, list[Port]]:
        """The netdevs with a carrier of each port, domain 0000 first."""
        found: dict[str, list[Port]] = {}
        for port in sorted(self.lit, key=lambda port: (port.domain, port.netdev)):
            found.setdefault(self.qsfp[port.netdev], []).append(port)
        return dict(sorted(found.items()))


def written(text: str) -> tuple[tuple[str, IPv4Interface], ...]:
    """Netdev and address of each rail in the text of a netplan file of ours, in order; () where it is none."""
    found = []
    for name, value in read_rails(text).items():
        if name.startswith(ADDRESS):
            try:
                found.append((name.removeprefix(ADDRESS), IPv4Interface(str(value))))
            except ValueError:
                return ()
    return tuple(found)


def dark(port: Port) -> str:
    """How a port without a carrier is, in words."""
    return "is switched off (ip link)" if port.carrier is None else "has no carrier"


End = tuple[str, str]
"""A node and a netdev of it."""


class Hearing:
    """Who hears whom."""

    def __init__(self, heard: Mapping[str, Iterable[Heard]]) -> None:
        self._frames: set[tuple[End, End]] = {
            ((name, frame.at), (frame.node, frame.netdev))
            for name, frames in heard.items()
            for frame in frames
            if frame.node != name
        }

    def both(self, one: End, other: End) -> bool:
        """Whether frames went both ways."""
        return (one, other) in self._frames and (other, one) in self._frames

    def at(self, end: End) -> list[End]:
        """Whose frames arrived at a netdev."""
        return sorted(sender for receiver, sender in self._frames if receiver == end)

    def said(self, end: End) -> str:
        """The same in words."""
        return ", ".join(f"{node} ({netdev})" for node, netdev in self.at(end)) or "nobody"

    def joined(self, one: str, other: str) -> bool:
        """Whether two nodes hear each other anywhere."""
        return any(
            receiver[0] == one and sender[0] == other and (sender, receiver) in self._frames
            for receiver, sender in self._frames
        )
