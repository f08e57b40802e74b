"""netplan's files: which of them define a netdev of ours, by id, set-name, a pattern, or as a member of something."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import yaml

from facts.host import Definition
from facts.tools.garbled import Garbled
from facts.tools.netdevs import Netdev

DEEPEST = 64
# Where a definition of one of these kinds says of which others it is made.
MEMBERS = ("interfaces", "link", "ports")


@dataclass(frozen=True)
class Stanza:
    """One definition in one file."""

    file: str
    line: int
    kind: str
    id: str
    matches: Mapping[str, tuple[str, ...]] | None
    """None where there is no match: its id is the netdev's name then."""
    set_name: str
    members: tuple[str, ...]
    renderer: str
    addresses: tuple[str, ...]
    mtu: int | None


def definitions(texts: Mapping[str, str], netdevs: Iterable[Netdev]) -> list[Definition]:
    """What the files say of each netdev. The files are netplan's own, by path."""
    known = list(netdevs)
    parsed = {path: parse(text, path) for path, text in texts.items()}
    # netplan reads by name, whatever the directory, and the last one wins.
    everywhere = ""
    for path in sorted(parsed, key=_name):
        everywhere = parsed[path][1] or everywhere
    stanzas = [stanza for found, _ in parsed.values() for stanza in found]
    named = {stanza.id: [] for stanza in stanzas if stanza.kind == "ethernets"}  # type: dict[str, list[str]]
    found = []
    for stanza in stanzas:
        if stanza.kind != "ethernets":
            continue
        for netdev in known:
            if _is_about(stanza, netdev):
                named[stanza.id].append(netdev.name)
                found.append(_definition(stanza, netdev, everywhere))
    for stanza in stanzas:
        members = {name for member in stanza.members for name in named.get(member, [member])}
        for netdev in known:
            if netdev.name in members:
                found.append(replace(_definition(stanza, netdev, everywhere), named=False))
    return sorted(found, key=lambda item: (item.file, item.line, item.netdev))


def parse(text: str, path: str = "a netplan file") -> tuple[list[Stanza], str]:
    """The definitions in one file, and the renderer that it sets for all."""
    root = _compose(text, path)
    network = _child(root, "network")
    everywhere = _scalar(_child(network, "renderer"))
    found = []
    for kind, _, kinds in _items(network):
        renderer = _scalar(_child(kinds, "renderer"))
        for name, line, body in _items(kinds):
            if name != "renderer" and isinstance(body, yaml.MappingNode | yaml.ScalarNode):
                found.append(_stanza(path, line, kind, name, body, renderer))
    return found, everywhere


def _compose(text: str, path: str) -> yaml.Node | None:
    if _depth(text) > DEEPEST:
        raise Garbled(path, f"more than {DEEPEST} levels within each other")
    try:
        # Not the loader in C: it has no bound for how deep a document is nested.
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark is not None else path
        raise Garbled(where, str(getattr(error, "problem", None) or error)) from None


def _depth(text: str) -> int:
    """How deep it may be nested at most. A settings file is some six levels deep; the time that the reader takes grows
    by the square of them."""
    depth = deepest = 0
    for line in text.splitlines():
        flow = re.findall(r"[\[{\]}]", line)
        for letter in flow:
            depth = max(0, depth + (1 if letter in "[{" else -1))
            deepest = max(deepest, depth)
        deepest = max(deepest, depth + len(re.findall(r"[-?:](?=\s)", line)))
    return deepest


def _stanza(path: str, line: int, kind: str, name: str, body: yaml.Node, renderer: str) -> Stanza:
    match = _child(body, "match")
    mtu = _scalar(_child(body, "mtu"))
    return Stanza(
        file=path,
        line=line,
        kind=kind,
        id=name,
        matches=None if match is None else {key: tuple(_scalars(value)) for key, _, value in _items(match)},
        set_name=_scalar(_child(body, "set-name")),
        members=tuple(member for key in MEMBERS for member in _scalars(_child(body, key))),
        renderer=_scalar(_child(body, "renderer")) or renderer,
        addresses=tuple(_scalars(_child(body, "addresses"))),
        mtu=int(mtu) if mtu.isascii() and mtu.isdigit() and len(mtu) <= 6 else None,
    )


def _is_about(stanza: Stanza, netdev: Netdev) -> bool:
    if stanza.matches is None:
        return stanza.id == netdev.name
    if stanza.set_name == netdev.name:
        return True
    seen = {"name": netdev.name, "macaddress": netdev.mac, "driver": netdev.driver}
    for key, patterns in stanza.matches.items():
        if key in seen and not any(_fits(key, seen[key], pattern) for pattern in patterns):
            return False
    return True


def _fits(key: str, value: str, pattern: str) -> bool:
    if key == "macaddress":
        return value.lower() == pattern.lower()
    return fnmatch.fnmatchcase(value, pattern)


def _definition(stanza: Stanza, netdev: Netdev, everywhere: str) -> Definition:
    names = (stanza.matches or {}).get("name", ())
    alone = stanza.matches is None or stanza.set_name == netdev.name or names == (netdev.name,)
    return Definition(
        file=stanza.file,
        line=stanza.line,
        id=stanza.id,
        netdev=netdev.name,
        kind="netplan",
        named=alone and stanza.kind == "ethernets",
        renderer=stanza.renderer or everywhere,
        addresses=stanza.addresses,
        mtu=stanza.mtu,
        volatile=stanza.file.startswith("/run/"),
    )


def _name(path: str) -> tuple[str, str]:
    return path.rpartition("/")[2], path


# Nodes of YAML, which know their lines


def _items(node: yaml.Node | None) -> Iterator[tuple[str, int, yaml.Node]]:
    """Keys with their lines and values; nothing where it is no mapping."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield key.value, key.start_mark.line + 1, value


def _child(node: yaml.Node | None, name: str) -> yaml.Node | None:
    return next((value for key, _, value in _items(node) if key == name), None)


def _scalar(node: yaml.Node | None) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def _scalars(node: yaml.Node | None) -> list[str]:
    """One or several; of a mapping in a list, as an address with a label is, its key."""
    if isinstance(node, yaml.ScalarNode):
        return [str(node.value)] if node.value else []
    if not isinstance(node, yaml.SequenceNode):
        return []
    found = []
    for item in node.value:
        if isinstance(item, yaml.ScalarNode):
            found.append(str(item.value))
        found += [key for key, _, _ in _items(item)]
    return found
