"""A launch read back: the texts of a rank, the keeper and the rails as knobs, and what differs between two of them.

What is accepted and what is wanted go through the same reader, so that no default and no rounding can make a difference
or hide one. What no knob stands for keeps its own name and is compared all the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import PurePosixPath

from node import wire
from spec.kinds import Number, Switch, Whole, WholeOr
from spec.knobs import KNOBS, Cost, Knob, Knobs
from spec.stacks import STACKS, Stack
from spec.stacks.common import OWN_GID

Reading = Mapping[str, object]
"""Values by knob, or by the flag, variable, mount or option itself where no knob stands for it. What is not there is
left to the engine."""

ENGINE_ENV = "engine_env"
API_KEY = "the API key"
CONTENT = "content of"
GID_VARIABLE, HCA_VARIABLE, KEY_VARIABLE = "NCCL_IB_GID_INDEX", "NCCL_IB_HCA", "VLLM_API_KEY"
NET_VARIABLE = "NCCL_NET"
LOOKED_UP = "looked up"
NFS_SOURCE, NFS_OPTIONS = "the weights over NFS", "their mount options"
KEEPERS_NODES = "the keeper's nodes"


class Unreadable(ValueError):
    """A text is not what it must be; the message says why."""


@dataclass(frozen=True)
class Hidden:
    """A value that may be a secret: it is compared, and nothing prints it."""

    value: object = field(repr=False)


@dataclass(frozen=True)
class Change:
    """One value that moves. `old` or `new` is None where nothing is written, so that the engine's own default holds.
    `ranks` is empty for what concerns the keeper only."""

    knob: str
    old: object
    new: object
    becomes: str
    ranks: tuple[int, ...]
    cost: Cost


# Reading


def stack_of(rank_text: str) -> Stack:
    """The stack that a rank's text was rendered for. Raises Unreadable."""
    try:
        name = json.loads(rank_text)["stack"]
        return STACKS[name]
    except (ValueError, TypeError, KeyError) as error:
        raise Unreadable(f"a rank's launch names no stack that is known here ({error!r})") from None


def read_launch(stack: Stack, rank_texts: Sequence[str]) -> tuple[dict[str, object], ...]:
    """Each rank's text as knobs. Raises Unreadable for a text that an agent would refuse."""
    try:
        return tuple(_Launch(stack, wire.parse_rank(text)).read() for text in rank_texts)
    except wire.WireError as error:
        raise Unreadable(str(error)) from None


def holds(engine: str, rank_texts: Sequence[str], identities: Sequence[Sequence[str]]) -> bool:
    """Whether these texts, over content of these identities, are the generation of that engine hash."""
    return len(rank_texts) == len(identities) and engine == wire.engine_hash(
        list(zip(rank_texts, identities, strict=True))
    )


def read_identities(manifest_text: str) -> tuple[str, list[list[str]]]:
    """Engine hash and content identities, by rank, of a generation's manifest. Raises Unreadable."""
    try:
        data = json.loads(manifest_text)
        return str(data["engine"]), [[str(identity) for identity in row] for row in data["identities"]]
    except (ValueError, TypeError, KeyError) as error:
        raise Unreadable(f"its manifest: {error!r}") from None


_CANARY = {
    "prompt": "canary_prompt",
    "expect": "canary_expected",
    "max_tokens": "canary_max_tokens",
    "timeout_seconds": "canary_timeout_seconds",
}
# Follow from the launch, whose own rows say it.
_OF_THE_LAUNCH = ("generated", "ports", "api", "update")


def read_service(text: str) -> dict[str, object]:
    """The keeper's settings as knobs. Raises Unreadable."""
    try:
        data = json.loads(text)
        reading: dict[str, object] = {_CANARY.get(key, f"canary {key}"): item for key, item in data["canary"].items()}
        reading |= {f"the keeper's {key}": data["api"][key] for key in ("ready_path", "metrics_path")}
        for key, item in data.items():
            if key == "nodes":
                reading[KEEPERS_NODES] = json.dumps(item, separators=(",", ":"))
            elif key not in ("canary", *_OF_THE_LAUNCH):
                reading[key if key in KNOBS else f"the keeper's {key}"] = item
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Unreadable(f"the keeper's settings: {error!r}") from None
    return reading


_NETDEV = re.compile(r'^    "?([^\s":]+)"?:\s*$')
_ADDRESSES = re.compile(r'^      addresses: \["([^"]+)"\]$')
_MTU = re.compile(r"^      mtu: ([0-9]+)$")


def read_rails(text: str) -> dict[str, object]:
    """A node's netplan file of ours as the MTU and each rail's address; empty where it is not as we write it."""
    reading: dict[str, object] = {}
    sizes: dict[str, int] = {}
    netdev = ""
    for line in text.splitlines():
        if found := _NETDEV.match(line):
            netdev = found.group(1)
        elif found := _ADDRESSES.match(line):
            reading[f"address of {netdev}"] = found.group(1)
        elif found := _MTU.match(line):
            sizes[netdev] = int(found.group(1))
    if len(set(sizes.values())) == 1:
        reading["rail_mtu"] = next(iter(sizes.values()))
    else:
        reading |= {f"MTU of {name}": size for name, size in sizes.items()}
    return reading


def knobs_of(reading: Reading) -> Knobs | None:
    """A launch's reading as effective knobs, for whoever computes with them; None if they are not ones that can be
    stated today."""
    stack = reading.get("stack")
    values: dict[str, object] = {}
    for name, knob in KNOBS.items():
        found = reading.get(name)
        if found is not None and not (name == "nccl_ib_gid_index" and isinstance(found, str)):
            values[name] = found
        elif not knob.may_be_unset or (knob.only and knob.only.stack != stack):
            continue
        elif isinstance(knob.kind, WholeOr):
            values[name] = knob.kind.word
        elif knob.may_be_empty and (knob.flag or knob.env or name in ("speculative_method", "enable_thinking")):
            values[name] = ""
    try:
        return Knobs.model_validate(values)
    except ValueError:
        return None


class _Launch:
    """One rank's launch, taken apart until nothing is left."""

    def __init__(self, stack: Stack, spec: wire.RankSpec) -> None:
        self._stack = stack
        self._spec = spec
        self._flags = _knobs_by_flag(stack)
        self._found: dict[str, object] = {"stack": stack.name, "image": spec.image, "container_name": spec.name}
        self._model = ""
        self._drafter = ""

    def read(self) -> dict[str, object]:
        self._found |= {
            name: False
            for name, knob in KNOBS.items()
            if knob.flag and isinstance(knob.kind, Switch) and (not knob.only or knob.only.stack == self._stack.name)
        }
        self._command()
        self._container()
        self._mounts()
        self._env()
        return self._found

    def _raw(self, name: str, value: object) -> None:
        """Keep what no knob stands for; an option that is there twice has both values."""
        known = self._found.get(name)
        self._found[name] = value if known is None else f"{known} {value}"

    def _command(self) -> None:
        parser = False
        for group in self._spec.command:
            name, *rest = group
            value = " ".join(rest)
            knob = self._flags.get(name)
            if group[:2] == ("vllm", "serve") and len(group) == 3:
                self._model = group[2]
            elif name == "--speculative-config":
                self._speculation(value)
            elif name == "--default-chat-template-kwargs":
                self._template_arguments(value)
            elif name == "--enable-auto-tool-choice" and not rest:
                parser = True
            elif name == "--chat-template" and self._lies_in_the_weights(value):
                self._found["chat_template"] = PurePosixPath(value).name
            elif knob is not None and len(rest) == (0 if isinstance(knob.kind, Switch) else 1):
                self._found[knob.name] = _value(knob, value)
            else:
                self._raw(name, value or True)
        # The switch that comes with the parser is no news of its own; without its other half it is.
        if parser != ("tool_call_parser" in self._found):
            self._found["--enable-auto-tool-choice"] = parser

    def _lies_in_the_weights(self, value: str) -> bool:
        return str(PurePosixPath(value).parent) == self._model

    def _speculation(self, text: str) -> None:
        config = _table(text)
        if config is None:
            self._raw("--speculative-config", text)
            return
        for key, item in config.items():
            if key == "method":
                self._found["speculative_method"] = item
            elif key == "num_speculative_tokens":
                self._found["speculative_tokens"] = item
            elif key == "model":
                self._drafter = str(item)
            else:
                self._raw(f"--speculative-config {key}", item)

    def _template_arguments(self, text: str) -> None:
        config = _table(text)
        if config is None:
            self._raw("--default-chat-template-kwargs", text)
            return
        for key, item in config.items():
            if key == "enable_thinking":
                self._found["enable_thinking"] = item
            else:
                self._raw(f"--default-chat-template-kwargs {key}", item)

    def _container(self) -> None:
        for name, *rest in self._spec.container:
            if name == "--shm-size" and len(rest) == 1:
                self._found["shm_size"] = rest[0]
            else:
                self._raw(f"docker run {name}", " ".join(rest) or True)

    def _mounts(self) -> None:
        """Content first, then what lies under the one directory of caches, then the rest as it is."""
        cache = _common(self._spec.directories)
        if cache:
            self._found["cache_path"] = cache
        roles = {self._model: "weights_path", **({self._drafter: "drafter_path"} if self._drafter else {})}
        drafter_seen = False
        for source, target, mode in self._spec.mounts:
            role = roles.get(target)
            if role and mode == "ro":
                self._found[role] = source
                drafter_seen = drafter_seen or role == "drafter_path"
            else:
                place = "<cache_path>" + source.removeprefix(cache) if cache and _is_below(source, cache) else source
                self._raw(f"mount {target}", f"{place}:{mode}" if mode else place)
        if "weights_path" not in self._found:
            self._raw("vllm serve", self._model)
        # Where the mount is does not change; what is mounted there does.
        self._found["weights"] = "nfs" if self._spec.mount else "local"
        if self._spec.mount:
            self._found[NFS_SOURCE] = self._spec.mount.what
            self._found[NFS_OPTIONS] = self._spec.mount.options
        if self._drafter and not drafter_seen:
            self._raw("--speculative-config model", self._drafter)
        known = [self._found[role] for role in ("weights_path", "drafter_path") if role in self._found]
        if list(self._spec.content) != known:
            self._raw("content", " ".join(self._spec.content))

    def _env(self) -> None:
        values = dict(self._spec.env)
        for knob in KNOBS.values():
            names = knob.env.names if knob.env else ()
            texts = [values.get(name) for name in names]
            if texts and isinstance(texts[0], str) and all(text == texts[0] for text in texts):
                self._found[knob.name] = _value(knob, texts[0])
                for name in names:
                    del values[name]
        of_knobs = {name for knob in KNOBS.values() if knob.env for name in knob.env.names}
        fixed = self._stack.variables | of_knobs
        for name, value in values.items():
            if name == GID_VARIABLE:
                self._gid_index(value)
            elif name.startswith(OWN_GID) and isinstance(value, wire.GidIndex):
                self._found["nccl_ib_gid_index"] = LOOKED_UP
            elif name == HCA_VARIABLE and isinstance(value, str):
                self._found["nccl_rails"] = len(value.split(","))
                self._raw(name, value)
            elif name == KEY_VARIABLE and not isinstance(value, str):
                self._found["require_api_key"] = True
            elif name in fixed and isinstance(value, str):
                self._raw(name, value)
            else:
                self._found[f"{ENGINE_ENV} {name}"] = Hidden(value)
        self._found["allow_tcp"] = NET_VARIABLE not in values
        if self._spec.rank == 0:
            self._found.setdefault("require_api_key", False)

    def _gid_index(self, value: object) -> None:
        name = "nccl_ib_gid_index"
        if isinstance(value, wire.GidIndex):
            # Of the rail, as a rule: its own rows say what that is.
            env = dict(self._spec.env)
            usual = (value.hca, value.address) == (env.get(HCA_VARIABLE), env.get("VLLM_HOST_IP"))
            self._found[name] = LOOKED_UP if usual else f"{LOOKED_UP} ({value.hca}, {value.address})"
        else:
            text = str(value)
            self._found[name] = int(text) if re.fullmatch("[0-9]{1,3}", text) else text


def _knobs_by_flag(stack: Stack) -> dict[str, Knob]:
    """The knobs that one flag with one value, or a switch, stands for, by what this stack's engine calls it."""
    found = {}
    for knob in KNOBS.values():
        if knob.flag:
            found[stack.spelling.get(knob.flag.name, knob.flag.name)] = knob
        elif knob.name == "master_port":
            found["--master-port"] = knob
    return found


def _value(knob: Knob, text: str) -> object:
    """A value as the command line or the environment has it, in the knob's own type; the text itself where it is none
    of these, as a launch of another release may be."""
    try:
        match knob.kind:
            case Switch():
                return {"": True, "1": True, "0": False}.get(text, text)
            case Whole() | WholeOr():
                return int(text)
            case Number():
                return float(text)
    except ValueError:
        pass
    return text


def _table(text: str) -> dict[str, object] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _common(directories: Sequence[str]) -> str:
    """The deepest directory that all of these are, or lie in; "" where there is none but the root."""
    if not directories:
        return ""
    parts = []
    for column in zip_longest(*(PurePosixPath(path).parts for path in directories)):
        if len(set(column)) != 1:
            break
        parts.append(str(column[0]))
    return str(PurePosixPath(*parts)) if len(parts) > 1 else ""


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + "/")


# Comparing


def changes(old: Sequence[Reading], new: Sequence[Reading]) -> tuple[Change, ...]:
    """What moves between two launches, in the order of the knobs; the ranks that both have are compared, and one more
    or less of them is the engine's own flag for their number. Nodes may differ in a knob: each pair of values is a row
    of its own."""
    rows: dict[tuple[str, str, str], tuple[object, object, list[int]]] = {}
    stacks = [str(reading[0].get("stack")) if reading else "" for reading in (old, new)]
    for rank, (before, after) in enumerate(zip(old, new, strict=False)):
        for name in {**before, **after}:
            one, other = before.get(name), after.get(name)
            if one != other or type(one) is not type(other):
                _, _, ranks = rows.setdefault((name, _key(one), _key(other)), (one, other, []))
                ranks.append(rank)
    found = [
        Change(name, one, other, becomes(name, stacks[1]), tuple(ranks), _cost(name))
        for (name, _, _), (one, other, ranks) in rows.items()
    ]
    return tuple(sorted(found, key=lambda change: _place(change.knob)))


def service_changes(old: Reading, new: Reading) -> tuple[Change, ...]:
    """What the keeper will do otherwise."""
    found = [
        Change(name, old.get(name), new.get(name), "the keeper", (), Cost.SERVICE)
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]
    return tuple(sorted(found, key=lambda change: _place(change.knob)))


def rail_changes(old: Mapping[int, Reading], new: Mapping[int, Reading]) -> tuple[Change, ...]:
    """What moves in the rails of the nodes, by rank. A node whose file is not there or not ours is left out."""
    rows: dict[tuple[str, str, str], tuple[object, object, list[int]]] = {}
    for rank in sorted(set(old) & set(new)):
        for name in {**old[rank], **new[rank]}:
            one, other = old[rank].get(name), new[rank].get(name)
            if one != other:
                rows.setdefault((name, _key(one), _key(other)), (one, other, []))[2].append(rank)
    return tuple(
        Change(name, one, other, KNOBS["rail_mtu"].destination, tuple(ranks), Cost.FABRIC)
        if name == "rail_mtu"
        else Change(name, one, other, "the rails", tuple(ranks), Cost.FABRIC)
        for (name, _, _), (one, other, ranks) in rows.items()
    )


def content_changes(
    old: Sequence[Reading],
    old_identities: Sequence[Sequence[str]],
    new: Sequence[Reading],
    new_identities: Sequence[Sequence[str]] | None,
) -> tuple[Change, ...]:
    """What moves behind the launch: files under the same path, and a secret in the same place. `new_identities` is None
    while the files are not hashed yet: then nothing is said of them here."""
    rows: dict[tuple[str, object, object], list[int]] = {}
    if new_identities is not None:
        before, after = _identities(old, old_identities), _identities(new, new_identities)
        for rank, (one, other) in enumerate(zip(before, after, strict=False)):
            for name in one.keys() & other.keys():
                if one[name] != other[name]:
                    rows.setdefault((name, one[name], other[name]), []).append(rank)
    found = []
    for (name, was, will), ranks in rows.items():
        if name == API_KEY:
            found.append(Change(name, Hidden(was), Hidden(will), KEY_VARIABLE, tuple(ranks), Cost.RESTART))
        else:
            text = f"{CONTENT} {name}"
            found.append(
                Change(text, str(was)[:12], str(will)[:12], "files that are served", tuple(ranks), Cost.STAGING)
            )
    return tuple(sorted(found, key=lambda change: change.knob))


def _identities(readings: Sequence[Reading], identities: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """By rank: the identity of each directory, in the launch's order, and of the key, which comes after them."""
    rows = []
    for reading, row in zip(readings, identities, strict=False):
        names = [name for name in ("weights_path", "drafter_path") if name in reading]
        names += [API_KEY] * bool(reading.get("require_api_key"))
        rows.append(dict(zip(names, row, strict=False)))
    return rows


def becomes(name: str, stack: str) -> str:
    """What a value turns into, in words or as the flag or variable itself."""
    knob = KNOBS.get(name)
    if knob is not None and knob.flag:
        known = STACKS.get(stack)
        return known.spelling.get(knob.flag.name, knob.flag.name) if known else knob.flag.name
    if knob is not None and knob.env:
        return ", ".join(knob.env.names)
    if knob is not None:
        return knob.destination
    if name.startswith("--") or name == "vllm serve":
        return "an argument of the engine"
    if name.startswith("docker run "):
        return "an option of the container"
    if name.startswith("mount "):
        return "a mount"
    return "a variable of the engine"


def _cost(name: str) -> Cost:
    knob = KNOBS.get(name)
    return knob.cost if knob else Cost.RESTART


def _key(value: object) -> str:
    """Tells values apart, 1 from True as well."""
    return f"{type(value).__name__} {value.value if isinstance(value, Hidden) else value!r}"


_ORDER = {name: number for number, name in enumerate(KNOBS)}


def _place(name: str) -> tuple[int, str]:
    return (_ORDER.get(name.partition(" ")[0], len(_ORDER)), name)
