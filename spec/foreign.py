"""Somebody else's netplan file without what it says of a rail: an edit of its text, proven by reading both.

The lines become comments, so that whoever wrote the file finds them where they were. A form that cannot be edited line
by line is refused: the file is not ours to write anew.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from typing import Any

import yaml

SECTION = "ethernets"
NOTE = "# Taken over by Sparkpair, which sets this up in 60-sparkpair.yaml; as it was:"


class Odd(ValueError):
    """A file that is to be edited by hand; the message says why."""


def without(text: str, ids: Collection[str]) -> str:
    """The text with the definitions of these keys under `ethernets` as comments."""
    before = _read(text)
    lines = text.splitlines(keepends=True)
    for first, last in sorted((_span(*place) for place in _places(text, set(ids))), reverse=True):
        indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
        ending = "\r\n" if lines[first].endswith("\r\n") else "\n"
        lines[first : last + 1] = [
            f"{indent}{NOTE}{ending}", *(f"#{' ' if line.strip() else ''}{line}" for line in lines[first : last + 1])
        ]  # fmt: skip
    after = "".join(lines)
    try:
        left = _read(after)
    except Odd:
        raise Odd("other lines of it refer to these") from None
    if left != _reduced(before, ids):
        raise Odd("its lines cannot be told apart")
    return after


def excerpt(text: str, id: str) -> tuple[int, tuple[str, ...]]:
    """The line where a definition begins, from 1, and its lines; Odd where it cannot be found."""
    document = _compose(text)
    for key, value in _entries(_value(_value(document, "network"), SECTION)):
        if key.value == id:
            first, last = _span(key, value)
            return first + 1, tuple(text.splitlines()[first : last + 1])
    raise Odd(f"it has no {id} under {SECTION}")


def _read(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that is none
        raise Odd(f"it is no YAML: {' '.join(str(error).split())[:160]}") from None


def _compose(text: str) -> yaml.Node | None:
    _read(text)
    return yaml.compose(text, Loader=yaml.SafeLoader)


def _reduced(document: Any, ids: Collection[str]) -> Any:
    """What is to be left: without the keys, and without what held nothing else."""
    left = copy.deepcopy(document)
    section = left["network"][SECTION]
    for id in ids:
        del section[id]
    if not section:
        del left["network"][SECTION]
        if not left["network"]:
            del left["network"]
    return left or None


def _places(text: str, ids: set[str]) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    """The keys that become comments, each with its value: those asked for, or the one that holds nothing else."""
    document = _compose(text)
    network = _value(document, "network")
    section = _value(network, SECTION)
    entries = _entries(section)
    missing = ids - {key.value for key, _ in entries}
    if missing:
        raise Odd(f"it has no {', '.join(sorted(missing))} under {SECTION}")
    holders = [(document, "network"), (network, SECTION)]
    if ids < {key.value for key, _ in entries}:
        _is_block(section)
        yield from (entry for entry in entries if entry[0].value in ids)
        return
    # netplan refuses a key without a value, so what would hold nothing goes as well.
    holder, name = holders[1] if len(_entries(network)) > 1 else holders[0]
    _is_block(holder)
    yield next(entry for entry in _entries(holder) if entry[0].value == name)


def _is_block(node: yaml.Node | None) -> None:
    if not isinstance(node, yaml.MappingNode) or node.flow_style:
        raise Odd("it is written in braces, on no lines of its own")


def _value(node: yaml.Node | None, name: str) -> yaml.Node | None:
    return next((value for key, value in _entries(node) if key.value == name), None)


def _entries(node: yaml.Node | None) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
    if not isinstance(node, yaml.MappingNode):
        return []
    return [(key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]


def _span(key: yaml.ScalarNode, value: yaml.Node) -> tuple[int, int]:
    """First and last line of a key and its value, from 0; comments that follow are left out."""
    return key.start_mark.line, max(key.end_mark.line, _last(value))


def _last(node: Any) -> int:
    if isinstance(node, yaml.ScalarNode) or node.flow_style:
        # A block scalar ends where the next line begins.
        return int(node.end_mark.line - (node.end_mark.column == 0 and node.end_mark.line > node.start_mark.line))
    children = [part for entry in node.value for part in (entry if isinstance(entry, tuple) else (entry,))]
    return max((_last(child) for child in children), default=int(node.start_mark.line))
