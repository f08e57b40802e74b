"""pyinfra's data -> Settings, or one DeployError with every refusal in it. The only file in spec/ that knows pyinfra.

A value comes through one of three doors: `--data` on the command line, a file of group_data/, or a node's data in the
inventory. A refusal names the door, because that is where the operator must go.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Interface, NetmaskValueError
from pathlib import Path
from typing import Protocol, cast

from pyinfra.api.arguments import all_argument_meta
from pyinfra.api.connectors import get_all_connectors
from pyinfra.api.exceptions import DeployError
from pyinfra.api.host import Host
from pyinfra.api.inventory import Inventory
from pyinfra.connectors.base import BaseConnector

from spec.cluster import Position, Rail, Settings, StatedNode
from spec.kit_keys import ADDRESSES, ELSEWHERE, RETIRED
from spec.knobs import KNOBS, Knobs, Refused, Scope, shown
from spec.lock import Lock, LockError
from spec.lock import parse as parse_lock
from spec.rules import refusals as broken_rules

POSITIONS: tuple[Position, ...] = ("head", "worker")
NODE_DATA = ("rails", "management_address")
NODE_KNOBS = tuple(name for name, knob in KNOBS.items() if knob.scope is Scope.NODE)


@dataclass(frozen=True)
class Source:
    """What came through one door."""

    door: str
    data: Mapping[str, object]
    of_one_node: bool = False


@dataclass(frozen=True)
class StatedHost:
    """A host of the inventory as pyinfra knows it; `sources` stand in order of precedence, the strongest first."""

    name: str
    groups: tuple[str, ...]
    local: bool
    sources: tuple[Source, ...]

    def of_node(self, name: str) -> tuple[Source, object] | None:
        """The same for what only the node's own data may state."""
        return next(
            ((source, source.data[name]) for source in self.sources if source.of_one_node and name in source.data), None
        )

    def find(self, name: str) -> tuple[Source, object] | None:
        """The value that holds for this host, and its door."""
        return next(((source, source.data[name]) for source in self.sources if name in source.data), None)


class _Inventory(Protocol):
    """What is read of pyinfra's inventory, with the types that pyinfra does not state."""

    def __iter__(self) -> Iterator[Host]: ...
    def get_override_data(self) -> dict[str, object]: ...
    def get_host_data(self, hostname: str) -> dict[str, object]: ...
    def get_group_data(self, group: str) -> dict[str, object]: ...
    def get_data(self) -> dict[str, object]: ...


def settings_from_pyinfra(inventory: Inventory) -> Settings:
    """The settings of this run. Raises DeployError: "Settings refused; no node was changed." and a line per refusal."""
    return load(hosts_from_pyinfra(cast(_Inventory, inventory)), connection_keys(), read_file)


ReadFile = Callable[[str], str | None]
"""The text of the file of that path; None where there is none. Raises OSError, and UnicodeDecodeError."""


def read_file(path: str) -> str | None:
    """The lock file, from the directory in which pyinfra was started."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None


def hosts_from_pyinfra(inventory: _Inventory) -> list[StatedHost]:
    """The hosts with their data by door, the strongest first, as pyinfra itself looks them up."""
    return [
        StatedHost(
            name=host.name,
            groups=tuple(host.groups),
            local=host.name.startswith("@local"),
            sources=(
                Source("--data", inventory.get_override_data()),
                Source(f"inventory: {host.name}", inventory.get_host_data(host.name), of_one_node=True),
                *(
                    Source(f"group_data/{group}.py", inventory.get_group_data(group))
                    for group in reversed(host.groups)
                    if inventory.get_group_data(group)
                ),
                Source("group_data/all.py", inventory.get_data()),
            ),
        )
        for host in inventory
    ]


def connection_keys() -> frozenset[str]:
    """The data keys that are pyinfra's own: how to connect, and its global arguments."""
    connectors: dict[str, type[BaseConnector]] = get_all_connectors()  # type: ignore[no-untyped-call]
    of_connectors = {key for connector in connectors.values() for key in connector.data_meta}
    return frozenset(of_connectors | {key for key in all_argument_meta if key.startswith("_")})


def load(hosts: Sequence[StatedHost], connection: frozenset[str], read: ReadFile | None = None) -> Settings:
    """Settings from what the doors say, all refusals collected. `connection` are keys that are not ours to judge;
    `read` reads the lock file, and without it none is looked for."""
    refusals: dict[str, None] = {}  # a set that keeps its order: what holds for every host is said once

    def refuse(lines: Iterator[str]) -> None:
        refusals.update(dict.fromkeys(lines))

    for host in hosts:
        refuse(_unknown_names(host, connection))
    stated, refused = _knobs(hosts, refusals)
    refuse(_groups(hosts))
    nodes = []
    for rank, host in enumerate(_in_rank_order(hosts)):
        node = _node(host, rank, refusals, refused)
        if node is not None:
            nodes.append(node)
    lock = _lock(stated, read, refusals) if read is not None and "lock_file" not in refused else None
    settings = Settings(knobs=Knobs.model_validate(stated), nodes=tuple(nodes), lock=lock)
    refuse(iter(broken_rules(settings, refused)))
    if refusals:
        raise DeployError("\n".join(["Settings refused; no node was changed.", *(f"  {line}" for line in refusals)]))
    return settings


def _unknown_names(host: StatedHost, connection: frozenset[str]) -> Iterator[str]:
    for source in host.sources:
        for name in source.data:
            if name in connection:
                continue
            if name in NODE_DATA:
                if not source.of_one_node:
                    yield f"{source.door}: {name}: belongs to one node; state it in that node's data in the inventory"
            elif name not in KNOBS:
                yield f"{source.door}: {name}: {_nearest(str(name), connection)}"
            elif source.of_one_node and name not in NODE_KNOBS:
                yield f"{source.door}: {name}: has one value for the pair; state it in group_data/all.py"


def _nearest(name: str, connection: frozenset[str]) -> str:
    of_kit = {word.strip(): knob.name for knob in KNOBS.values() if knob.kit for word in knob.kit.name.split(",")}
    of_kit |= ELSEWHERE
    elsewhere = {**RETIRED, **ADDRESSES}.get(name.upper())
    meant = of_kit.get(name.upper())
    if elsewhere is not None and meant is None:
        return f"no such knob ({elsewhere.replace('`', '')}; docs/migration.md)"
    if meant is None:
        known = [*KNOBS, *NODE_DATA, *sorted(connection)]
        meant = next(iter(difflib.get_close_matches(name.lower(), known, n=1)), None)
    return f"no such knob (did you mean {meant}? docs/knobs.md)" if meant else "no such knob (docs/knobs.md lists them)"


def _knobs(hosts: Sequence[StatedHost], refusals: dict[str, None]) -> tuple[dict[str, object], set[str]]:
    """The knobs that hold for the pair, and the names of those refused."""
    stated: dict[str, object] = {}
    refused: set[str] = set()
    for name, knob in KNOBS.items():
        found = {}
        for host in hosts:
            sources = [source for source in host.sources if not source.of_one_node and name in source.data]
            if sources and (knob.scope is Scope.PAIR or sources[0].door in ("--data", "group_data/all.py")):
                found[host.name] = sources[0]
        if knob.scope is Scope.PAIR and found and (apart := _apart(name, hosts, found)):
            refusals[apart] = None
            refused.add(name)
            continue
        for source in found.values():
            try:
                stated[name] = knob.parse(source.data[name])
            except Refused as reason:
                refusals[_refusal(source, name, reason)] = None
                refused.add(name)
    return {name: value for name, value in stated.items() if name not in refused}, refused


def _lock(stated: Mapping[str, object], read: ReadFile, refusals: dict[str, None]) -> Lock | None:
    """What is locked; None where there is no lock file, or among the refusals why it cannot be used."""
    name = str(stated.get("lock_file", KNOBS["lock_file"].default))
    try:
        text = read(name)
        if text is not None:
            return parse_lock(text, name)
        if "lock_file" in stated:
            refusals[
                f"lock_file = {shown(name)}: there is no {os.path.abspath(name)}; make lock writes it, or leave "
                f"lock_file out"
            ] = None
    except OSError as error:
        refusals[f"lock_file = {shown(name)}: cannot be read ({error.strerror}); it must be a file of yours"] = None
    except UnicodeDecodeError:
        refusals[f"{name}: is no text; run make lock, which writes it anew"] = None
    except LockError as error:
        refusals.update(dict.fromkeys(error.lines))
    return None


def _apart(name: str, hosts: Sequence[StatedHost], found: Mapping[str, Source]) -> str | None:
    """What to say when a knob of the pair has not the same value on every node."""

    def says(host: StatedHost) -> str:
        source = found.get(host.name)
        return f"{shown(source.data[name])} ({source.door})" if source else "nothing"

    first = hosts[0]
    for other in hosts[1:]:
        if says(first) != says(other):
            return (
                f"{name}: {first.name} gets {says(first)} and {other.name} gets {says(other)}; "
                f"it has one value for the pair: state it in group_data/all.py"
            )
    return None


def _refusal(source: Source, name: str, reason: Refused) -> str:
    return f"{source.door}: {name} = {shown(source.data[name])}: {reason}"


def _groups(hosts: Sequence[StatedHost]) -> Iterator[str]:
    heads = [host.name for host in hosts if "head" in host.groups]
    workers = [host.name for host in hosts if "worker" in host.groups]
    for host in hosts:
        if host.name in heads and host.name in workers:
            yield f"inventory: {host.name} is in both groups, head and worker; a node is one of them"
        elif host.name not in heads and host.name not in workers:
            yield f"inventory: {host.name} is in neither group; put it into head or worker"
    if len(heads) != 1:
        yield f"inventory: group head has {_names(heads)}; it must have exactly one node"
    if not workers:
        yield "inventory: group worker is empty; it must have at least one node"


def _names(names: Sequence[str]) -> str:
    return f"{len(names)} nodes ({', '.join(names)})" if names else "no node"


def _in_rank_order(hosts: Sequence[StatedHost]) -> list[StatedHost]:
    return [host for position in POSITIONS for host in hosts if _position(host) == position]


def _position(host: StatedHost) -> Position | None:
    return next((position for position in POSITIONS if position in host.groups), None)


def _node(host: StatedHost, rank: int, refusals: dict[str, None], refused: set[str]) -> StatedNode | None:
    """The node, or None and the reasons among the refusals."""
    problems: list[str] = []
    paths: dict[str, object] = {}
    for name in NODE_KNOBS:
        found = host.find(name)
        if found is None:
            continue
        source, value = found
        try:
            paths[name] = KNOBS[name].parse(value)
        except Refused as reason:
            # Not among the node's problems: what else it states is judged all the same.
            refusals[_refusal(source, name, reason)] = None
            refused.add(name)
    management = _management_address(host, problems)
    rails = _rails(host, problems)
    refusals.update(dict.fromkeys(f"inventory: {host.name}: {problem}" for problem in problems))
    if management is None or rails is None:
        return None
    return StatedNode.model_validate(
        {
            "name": host.name,
            "rank": rank,
            "position": _position(host),
            "local": host.local,
            "management_address": management,
            "rails": rails,
            **paths,
        }
    )


def _management_address(host: StatedHost, problems: list[str]) -> IPv4Address | None:
    """As stated, or the address by which pyinfra reaches the node."""
    wanted = "the node's IPv4 address on the management network, such as 192.168.1.10"
    found = host.of_node("management_address")
    if found is None:
        reached = host.find("ssh_hostname")
        text = reached[1] if reached else host.name
        try:
            return _host_address(text, wanted)
        except Refused:
            seen = "the node is this machine" if host.local else f"it is reached as {shown(text)}"
            problems.append(f"management_address: {seen}; state {wanted}")
            return None
    try:
        return _host_address(found[1], wanted)
    except Refused as reason:
        problems.append(f"management_address = {shown(found[1])}: {reason}")
        return None


def _host_address(value: object, wanted: str) -> IPv4Address:
    try:
        address = IPv4Address(value) if isinstance(value, str) else None
    except AddressValueError:
        address = None
    if address is None or address.is_loopback or address.is_unspecified or address.is_multicast or address.is_reserved:
        raise Refused(f"must be {wanted}")
    return address


RAIL_KEYS = ("netdev", "hca", "address")
_RAIL_EXAMPLE = '{"netdev": "enp1s0f0np0", "hca": "rocep1s0f0", "address": "10.200.0.1/24"}'


def _rails(host: StatedHost, problems: list[str]) -> tuple[Rail, ...] | None:
    """As stated; () where they are left out, to be found."""
    found = host.of_node("rails")
    if found is None:
        return ()
    value = found[1]
    if not isinstance(value, list | tuple) or not value:
        problems.append(
            f"rails = {shown(value)}: must be a list with one entry per rail, such as [{_RAIL_EXAMPLE}]; leave rails "
            f"out on every node, and they are found"
        )
        return None
    rails = [_rail(index, item, problems) for index, item in enumerate(value)]
    whole = tuple(rail for rail in rails if rail is not None)
    return whole if len(whole) == len(rails) else None


def _rail(index: int, value: object, problems: list[str]) -> Rail | None:
    if not isinstance(value, dict):
        problems.append(f"rail {index} = {shown(value)}: must be {_RAIL_EXAMPLE}")
        return None
    before = len(problems)
    for key in value:
        if key not in RAIL_KEYS:
            near = next(iter(difflib.get_close_matches(str(key), RAIL_KEYS, n=1)), None)
            hint = f"did you mean {near}? " if near else ""
            problems.append(f"rail {index}: {key}: no such key ({hint}a rail has {', '.join(RAIL_KEYS)})")
    for key in RAIL_KEYS:
        if key not in value:
            problems.append(f"rail {index}: {key} not stated: a rail is {_RAIL_EXAMPLE}")
    parsed: dict[str, object] = {}
    for key, parse in (("netdev", _netdev), ("hca", _hca), ("address", _rail_address)):
        if key in value:
            try:
                parsed[key] = parse(value[key])
            except Refused as reason:
                problems.append(f"rail {index}: {key} = {shown(value[key])}: {reason}")
    return Rail.model_validate(parsed) if len(problems) == before else None


def _netdev(value: object) -> str:
    # The kernel takes at most 15 characters, and more kinds of them than any udev rule gives.
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]{0,14}", value) or value == "lo":
        raise Refused("must be a network device such as enp1s0f0np0 (ip link lists them)")
    return value


def _hca(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]{0,62}", value):
        raise Refused("must be one RDMA device such as rocep1s0f0 (rdma link lists them)")
    return value


def _rail_address(value: object) -> IPv4Interface:
    wanted = "the node's IPv4 address on the rail with its prefix, such as 10.200.0.1/24"
    try:
        # A bare address would get /32, and a mask such as /255.255.255.0 is not how the refusals print it.
        if not isinstance(value, str) or not re.fullmatch(r"[0-9.]+/[0-9]{1,2}", value):
            raise ValueError
        interface = IPv4Interface(value)
    except (AddressValueError, NetmaskValueError, ValueError):
        raise Refused(f"must be {wanted}") from None
    if not 16 <= interface.network.prefixlen <= 30:
        raise Refused(f"must be {wanted}; a prefix of /16 to /30")
    if interface.ip in (interface.network.network_address, interface.network.broadcast_address):
        raise Refused(f"must be {wanted}; {interface.ip} is no host's address in {interface.network}")
    _host_address(str(interface.ip), wanted)
    return interface
