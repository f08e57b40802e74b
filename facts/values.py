"""A node as it was seen: frozen values, each part known or Unknown. Unknown is not no."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Interface
from typing import TypeVar

from pyinfra.api.exceptions import OperationError

from facts import gate, host_reading
from facts.host import HostFacts
from facts.unknown import Unknown
from node import gids
from node.content import PARTS

__all__ = ["Unknown"]

T = TypeVar("T")
NOT_PROBED = Unknown("not probed")
ACTIVE = ("active", "activating", "reloading")


@dataclass(frozen=True)
class File:
    """What is at a path. `mode` is octal in three digits or more."""

    kind: str
    sha256: str | None
    mode: str
    owner: str
    group: str


@dataclass(frozen=True)
class Link:
    """A network link with its IPv4 addresses."""

    name: str
    mtu: int
    addresses: tuple[IPv4Interface, ...]
    master: str | None = None
    """The bond or bridge that it is a member of."""


@dataclass(frozen=True)
class Netdev:
    """A rail's netdev. `carrier` is None while it is administratively down."""

    present: bool
    carrier: bool | None


@dataclass(frozen=True)
class Mention:
    """A line of somebody else's network settings about a netdev."""

    file: str
    line: int
    netdev: str


@dataclass(frozen=True)
class Hca:
    """An RDMA device: its netdevs, the state of its port, its GID rows (index, GID, type)."""

    netdevs: tuple[str, ...]
    state: str
    gids: tuple[tuple[int, str, str], ...]

    def roce_v2_index(self, address: str) -> int | None:
        """The row of the RoCE v2 GID that maps this IPv4 address, as the rank agent will look it up."""
        wanted = gids.mapped(address)
        return next((index for index, gid, kind in self.gids if gid == wanted and "v2" in kind), None)


@dataclass(frozen=True)
class Image:
    """An image that is here. `platform` is as "linux/arm64"."""

    id: str
    layers: tuple[str, ...]
    tags: tuple[str, ...] = ()
    platform: str = ""


@dataclass(frozen=True)
class Container:
    """A container, running or not; of its labels only ours."""

    id: str
    names: tuple[str, ...]
    state: str
    labels: Mapping[str, str]

    @property
    def is_ours(self) -> bool:
        return bool(self.labels)


@dataclass(frozen=True)
class Disk:
    """Free bytes of the file system where a path is or will be; equal devices are one file system."""

    at: str
    device: int
    free: int


@dataclass(frozen=True)
class Memory:
    """A node's memory in bytes, CPU's and GPU's alike, and its swap."""

    total: int
    available: int
    swap: int
    shmem: int = 0
    """Of tmpfs and shared memory, whoever made it."""
    kernel: int = 0
    """What the kernel holds for itself and cannot give back."""


@dataclass(frozen=True)
class Large:
    """A process that holds much memory, in bytes, and the container that it is in."""

    pid: int
    command: str
    container: str | None
    bytes: int


@dataclass(frozen=True)
class Holders:
    """Who holds memory, in bytes. `engine` and `engine_shmem` are of our rank's processes, `engine_gpu` what the driver
    says of them (None: it does not); `others` of all other processes, what they share left out."""

    processes: int
    """Of the rank."""
    engine: int
    engine_shmem: int
    engine_gpu: int | None
    others: int
    largest: tuple[Large, ...]
    """The largest of the others, the first first."""


@dataclass(frozen=True)
class Docker:
    """What is installed, whether the daemon answers, and what it holds."""

    client: str | None
    runtime: str | None
    toolkit: str | None
    registered: bool
    answers: bool
    trouble: str
    version: str
    runtimes: tuple[str, ...]
    disk: Disk | Unknown
    images: Mapping[str, Image | Unknown | None]
    containers: tuple[Container, ...] | Unknown
    proxied: bool = False
    """Whether the daemon pulls through a proxy of its own, so that what the node reaches says nothing."""

    @property
    def has_nvidia(self) -> bool:
        """Whether the running daemon can start a container with a GPU."""
        return "nvidia" in self.runtimes


@dataclass(frozen=True)
class Content:
    """A content directory. `files` are (path, size, sha256), the last known only where the bytes were proven and the
    file is still the one that was read. `parts` are bytes of files on their way that lie on its disk already."""

    path: str
    present: bool
    files: tuple[tuple[str, int, str | None], ...]
    outside: tuple[str, ...]
    missing: tuple[str, ...]
    identity: str | None
    copying: str | None
    damaged: tuple[str, ...] = ()
    """Files in which a deep check found other bytes."""
    parts: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether a node could serve from it, or others copy it."""
        return self.present and not (self.missing or self.outside or self.damaged) and self.copying is None

    @property
    def parts_directory(self) -> str:
        """Where files lie while they are brought here."""
        return f"{self.path}/{PARTS}"


@dataclass(frozen=True)
class Secret:
    """A secret's file: its identity, or `trouble`, what makes it unusable. What it holds is not known here."""

    present: bool
    identity: str | None
    trouble: str


@dataclass(frozen=True)
class Holder:
    """Who listens on a port."""

    pid: int | None
    command: str
    container: str | None


@dataclass(frozen=True)
class Unit:
    """A systemd unit."""

    load: str
    active: str
    sub: str
    file_state: str
    needs_reload: bool
    result: str

    @property
    def is_active(self) -> bool:
        return self.active in ACTIVE


@dataclass(frozen=True)
class Proven:
    """What a deploy found when it tried a mount of the weights: their identity, from where, with which options."""

    identity: str
    what: str
    options: str


@dataclass(frozen=True)
class Mounted:
    """A place for weights from another node: SERVER:DIRECTORY that is mounted there now (None: nothing), why that
    cannot be looked into (empty: it can), and what was proven last. While it is silent, nobody knows."""

    what: str | None
    trouble: str
    proven: Proven | None
    silent: bool = False


@dataclass(frozen=True)
class Account:
    """A user; `password` is "*", "!", "set" or what stands in its place."""

    home: str
    shell: str
    password: str


@dataclass(frozen=True)
class RankStatus:
    """What the keeper last heard of a rank's agent. `clocks` is the GPU's clock as the agent last saw it, in words
    (node.health.judge), empty where it is not told."""

    code: str | None
    state: str
    clocks: str = ""


@dataclass(frozen=True)
class Rejection:
    """A launch that the keeper has rejected: when, by the head's clock, and why."""

    time: str
    reason: str


@dataclass(frozen=True)
class Rollback:
    """The last return to an earlier generation; `left` is the launch that it came from, empty where there was none."""

    time: str
    left: str
    to: str
    reason: str


@dataclass(frozen=True)
class KeptGeneration:
    """A launch that the keeper can start again without a deploy."""

    engine: str
    accepted: str
    """When it was handed over last, by the head's clock."""
    is_good: bool
    """Whether it has passed its gates."""
    rejected: str
    """Why it was rejected; empty where it was not."""
    addresses: tuple[str, ...]
    """IP addresses in its ranks' launches."""
    identities: tuple[tuple[str, ...], ...]
    """Of its content and secrets, by rank."""


@dataclass(frozen=True)
class Status:
    """What the keeper published."""

    phase: str
    reason: str
    desired: str
    accepted: str | None
    last_good: str | None
    code: str
    service: str
    ranks: Mapping[int, RankStatus]
    last_failure: str
    since: str = ""
    """When the phase began, as the head's clock says it."""
    last_start_seconds: float | None = None
    """How long the last start took until the pair answered; None before there was one."""
    rejected: Mapping[str, Rejection] = field(default_factory=dict)
    """Launches that it does not take again by itself, by engine hash."""
    rollback: Rollback | None = None
    generations: tuple[KeptGeneration, ...] = ()
    """Newest first; none with a keeper of a release that did not tell them."""
    gates: tuple[tuple[str, str, str], ...] = ()
    """Of the last start, in order: name, outcome, and what was seen."""


@dataclass(frozen=True)
class DeepResult:
    """The last deep check: when, by the node's clock, and for each directory how many files and bytes it read and how
    many files it found damaged. Which of them are so still stands with the content."""

    at: str
    directories: Mapping[str, tuple[int, int, int]]


@dataclass(frozen=True)
class Recorded:
    """The recorder's word: which programs it runs, what is available, and the least that was since the start of the
    rank that runs (None: none does). Bytes."""

    code: str
    available: int
    floor: int | None


@dataclass(frozen=True)
class NodeFacts:
    """Everything that one probe saw. A part that was not asked for is empty, one that failed is Unknown."""

    sudo: bool
    user: str
    home: str
    python: tuple[int, ...]
    trouble: str = ""
    hostname: str | Unknown = ""
    machine: str | Unknown = ""
    machine_id: str | Unknown = ""
    boot_id: str | Unknown = ""
    files: Mapping[str, File | None] | Unknown = NOT_PROBED
    texts: Mapping[str, str | Unknown | None] | Unknown = NOT_PROBED
    trees: Mapping[str, Mapping[str, str]] | Unknown = NOT_PROBED
    accounts: Mapping[str, Account | None] | Unknown = NOT_PROBED
    tools: Mapping[str, str | None] | Unknown = NOT_PROBED
    links: Mapping[str, Link] | Unknown = NOT_PROBED
    netdevs: Mapping[str, Netdev] | Unknown = NOT_PROBED
    mentions: tuple[Mention, ...] | Unknown = NOT_PROBED
    hcas: Mapping[str, Hca] | Unknown = NOT_PROBED
    docker: Docker | Unknown = NOT_PROBED
    content: Mapping[str, Content | Unknown] | Unknown = NOT_PROBED
    secrets: Mapping[str, Secret | Unknown] | Unknown = NOT_PROBED
    mounts: Mapping[str, Mounted] | Unknown = NOT_PROBED
    overlays: Mapping[str, int] | Unknown = NOT_PROBED
    """Directories of an earlier kit's whose files it put over the image's, with how many files are in each."""
    disks: Mapping[str, Disk] | Unknown = NOT_PROBED
    memory: Memory | Unknown = NOT_PROBED
    holders: Holders | Unknown | None = None
    """Who holds that memory; None where it was not asked."""
    ports: Mapping[int, Holder | None] | Unknown = NOT_PROBED
    host_key: str | Unknown = NOT_PROBED
    units: Mapping[str, Unit] | Unknown = NOT_PROBED
    gpus: tuple[tuple[str, ...], ...] | Unknown = NOT_PROBED
    agent_code: str | Unknown | None = NOT_PROBED
    """Which programs the rank agent runs, or ran last since boot."""
    status: Status | Unknown | None = NOT_PROBED
    """What the keeper published; None on a node where none has run since boot."""
    kept: tuple[str | None, str] | Unknown | None = NOT_PROBED
    """(accepted generation, desired) as the keeper keeps it over reboots; None where it never kept anything."""
    kept_start_seconds: float | None = None
    """How long the last start took, from the same file; None where it does not say."""
    deep: DeepResult | Unknown | None = None
    """The last deep check; None where there was none."""
    recorded: Recorded | Unknown | None = None
    """What the recorder wrote last; None where none has run since boot."""
    gate: gate.Gate | Unknown | None = None
    """The rails as they were measured last; None where they never were, and on all nodes but the head."""
    host: HostFacts = field(default_factory=HostFacts)
    """Hardware, system and network, as far as it was asked."""

    @property
    def memory_available(self) -> int | Unknown:
        """Bytes that a new program may take without anything being swapped."""
        return self.memory if isinstance(self.memory, Unknown) else self.memory.available


class UnknownFact(OperationError):
    """A value was needed that could not be read; ends the run with one line."""

    def __init__(self, what: str, unknown: Unknown) -> None:
        super().__init__(f"{what} could not be read: {unknown.reason}")


def item(values: Mapping[str, T] | Unknown, name: str, what: str) -> T:
    """One of several values, or UnknownFact where they were not read, or this one was not among them."""
    found = known(values, what)
    if name not in found:
        raise UnknownFact(what, Unknown(f"{name} is not in the probe's answer"))
    return found[name]


def known(value: T | Unknown, what: str) -> T:
    """The value, or UnknownFact: a step that needs it must not go on."""
    if isinstance(value, Unknown):
        raise UnknownFact(what, value)
    return value


# From the probe's JSON


def parse(document: object) -> NodeFacts:
    """The facts in one probe's answer. Never raises: what is not as it must be is Unknown."""
    if not isinstance(document, dict):
        return unreadable(f"the probe answered {str(document)[:80]!r}")
    if document.get("sudo") is False:
        return NodeFacts(sudo=False, user=_or(document, "user", ""), home="", python=())
    if isinstance(document.get("broken"), str):
        return unreadable(str(document["broken"]))
    try:
        user, home = _string(document["user"]), _string(document["home"])
        python = tuple(_whole(part) for part in _list(document["python"]))
    except (KeyError, Shape) as error:
        return unreadable(f"the probe's answer has no {error}")

    def part(name: str, read: Callable[[object], T]) -> T | Unknown:
        return _part(document, name, read)

    documents = part("documents", _mapping)
    return NodeFacts(
        sudo=True,
        user=user,
        home=home,
        python=python,
        hostname=part("hostname", _string),
        machine=part("machine", _string),
        machine_id=part("machine_id", _string),
        boot_id=part("boot_id", _string),
        files=part("files", lambda value: _each(value, lambda item: _maybe(item, _file))),
        texts=part(
            "texts",
            lambda value: {
                name: _part(_mapping(value), name, lambda item: _maybe(item, _string)) for name in _mapping(value)
            },
        ),
        trees=part("trees", lambda value: _each(value, lambda item: _each(item, _string))),
        accounts=part("accounts", lambda value: _each(value, lambda item: _maybe(item, _account))),
        tools=part("tools", lambda value: _each(value, lambda item: _maybe(item, _string))),
        links=part("links", lambda value: {name: _link(name, item) for name, item in _mapping(value).items()}),
        netdevs=part("rails", lambda value: _each(value, _netdev)),
        mentions=part("network_files", lambda value: tuple(_mention(item) for item in _list(value))),
        hcas=part("hcas", lambda value: _each(value, _hca)),
        docker=part("docker", _docker),
        content=part(
            "content",
            lambda value: {name: _part(_mapping(value), name, _content) for name in _mapping(value)},
        ),
        secrets=part(
            "secrets",
            lambda value: {name: _part(_mapping(value), name, _secret) for name in _mapping(value)},
        ),
        mounts=part("mounts", lambda value: _each(value, _mounted)),
        overlays=part("overlays", lambda value: _each(value, _whole)),
        disks=part("disks", lambda value: _each(value, _disk)),
        memory=part("memory", _memory),
        holders=_part(document, "holders", lambda value: _maybe(value, _holders)) if "holders" in document else None,
        ports=part("ports", lambda value: {int(port): _maybe(item, _holder) for port, item in _mapping(value).items()}),
        host_key=part("host_key", _host_key),
        units=part("units", lambda value: _each(value, _unit)),
        gpus=part("gpu", lambda value: tuple(tuple(_strings(row)) for row in _list(value or []))),
        agent_code=_kept(documents, LEASE, lambda value: _or(_mapping(value), "code", "")),
        status=_kept(documents, STATUS, _status),
        kept=_kept(documents, KEEPER_STATE, _keeper_state),
        kept_start_seconds=_seconds(_kept(documents, KEEPER_STATE, _mapping)),
        deep=_kept(documents, DEEP_RESULT, _deep),
        recorded=_kept(documents, MEMORY, _recorded),
        host=host_reading.read(document),
        gate=_kept(documents, gate.PATH, gate.read),
    )


LEASE = "/run/sparkpair/lease.json"
STATUS = "/run/sparkpair/status.json"
KEEPER_STATE = "/var/lib/sparkpair/keeper/state.json"
DEEP_RESULT = "/var/lib/sparkpair/weights/deep.json"
MEMORY = "/run/sparkpair/memory.json"


def unreadable(reason: str) -> NodeFacts:
    """Facts of a node whose probe gave nothing that can be used."""
    return NodeFacts(sudo=True, user="", home="", python=(), trouble=reason)


class Shape(ValueError):
    """A value is not of the form that it must have."""


def _part(document: Mapping[str, object], name: str, read: Callable[[object], T]) -> T | Unknown:
    if name not in document:
        return Unknown(f"the probe's answer has no {name}")
    value = document[name]
    if isinstance(value, dict) and isinstance(value.get("error"), str) and len(value) == 1:
        return Unknown(value["error"])
    try:
        return read(value)
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        return Unknown(f"the probe's {name} cannot be read: {error}")


def _kept(documents: Mapping[str, object] | Unknown, path: str, read: Callable[[object], T]) -> T | Unknown | None:
    """A JSON file that the keeper writes; None where there is none, or it was not asked for."""
    if isinstance(documents, Unknown):
        return documents
    value = documents.get(path)
    if value is None:
        return None
    return _part({"document": value}, "document", lambda item: read(_mapping(item)["json"]))


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise Shape(f"{str(value)[:60]!r} is no object")
    return value


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise Shape(f"{str(value)[:60]!r} is no list")
    return value


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise Shape(f"{str(value)[:60]!r} is no text")
    return value


def _strings(value: object) -> list[str]:
    return [_string(item) for item in _list(value)]


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise Shape(f"{str(value)[:60]!r} is no whole number")
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise Shape(f"{str(value)[:60]!r} is neither true nor false")
    return value


def _maybe(value: object, read: Callable[[object], T]) -> T | None:
    return None if value is None else read(value)


def _each(value: object, read: Callable[[object], T]) -> dict[str, T]:
    return {name: read(item) for name, item in _mapping(value).items()}


def _or(document: Mapping[str, object], name: str, default: str) -> str:
    value = document.get(name)
    return value if isinstance(value, str) else default


def _file(value: object) -> File:
    data = _mapping(value)
    return File(
        kind=_string(data["kind"]),
        sha256=_maybe(data["sha256"], _string),
        mode=_string(data["mode"]),
        owner=_string(data["owner"]),
        group=_string(data["group"]),
    )


def _secret(value: object) -> Secret:
    data = _mapping(value)
    return Secret(_truth(data["present"]), _maybe(data["identity"], _string), _string(data["trouble"]))


def _mounted(value: object) -> Mounted:
    data = _mapping(value)
    return Mounted(
        _maybe(data["what"], _string), _string(data["trouble"]), _maybe(data["proven"], _proven), _truth(data["silent"])
    )


def _proven(value: object) -> Proven:
    data = _mapping(value)
    return Proven(_string(data["identity"]), _string(data["what"]), _string(data["options"]))


def _account(value: object) -> Account:
    data = _mapping(value)
    return Account(_string(data["home"]), _string(data["shell"]), _string(data["password"]))


def _link(name: str, value: object) -> Link:
    data = _mapping(value)
    addresses = tuple(IPv4Interface(text) for text in _strings(data["addresses"]))
    return Link(name, _whole(data["mtu"]), addresses, _maybe(data.get("master"), _string))


def _netdev(value: object) -> Netdev:
    data = _mapping(value)
    return Netdev(_truth(data["present"]), _maybe(data["carrier"], _truth))


def _mention(value: object) -> Mention:
    file, line, netdev = _list(value)
    return Mention(_string(file), _whole(line), _string(netdev))


def _hca(value: object) -> Hca:
    data = _mapping(value)
    rows = [_list(row) for row in _list(data["gids"])]
    return Hca(
        netdevs=tuple(_strings(data["netdevs"])),
        state=_maybe(data["state"], _string) or "",
        gids=tuple((_whole(index), _string(gid), _string(kind)) for index, gid, kind in rows),
    )


def _docker(value: object) -> Docker:
    data = _mapping(value)
    answers = _truth(data["answers"])
    nothing = Unknown(f"Docker does not answer: {_string(data['trouble'])}")
    return Docker(
        client=_maybe(data["client"], _string),
        runtime=_maybe(data["runtime"], _string),
        toolkit=_maybe(data["toolkit"], _string),
        registered=_truth(data["registered"]),
        answers=answers,
        trouble=_string(data["trouble"]),
        version=_string(data["version"]) if answers else "",
        runtimes=tuple(_strings(data["runtimes"])) if answers else (),
        disk=_part(data, "disk", _disk) if answers else nothing,
        images={
            reference: _part(_mapping(data["images"]), reference, lambda item: _maybe(item, _image))
            for reference in _mapping(data["images"])
        }
        if answers
        else {},
        containers=_part(data, "containers", lambda item: tuple(_container(one) for one in _list(item)))
        if answers
        else nothing,
        proxied=answers and _truth(data["proxied"]),
    )


def _image(value: object) -> Image:
    data = _mapping(value)
    layers, tags = tuple(_strings(data["layers"])), tuple(_strings(data["tags"]))
    return Image(_string(data["id"]), layers, tags, _string(data["platform"]))


def _container(value: object) -> Container:
    data = _mapping(value)
    return Container(
        id=_string(data["id"]),
        names=tuple(_strings(data["names"])),
        state=_string(data["state"]),
        labels=_each(data["labels"], _string),
    )


def _content(value: object) -> Content:
    data = _mapping(value)
    rows = [_list(row) for row in _list(data["files"])]
    return Content(
        path=_string(data["path"]),
        present=_truth(data["present"]),
        files=tuple((_string(path), _whole(size), _maybe(digest, _string)) for path, size, digest in rows),
        outside=tuple(_strings(data["outside"])),
        missing=tuple(_strings(data["missing"])),
        identity=_maybe(data["identity"], _string),
        copying=_maybe(data["copying"], _string),
        damaged=tuple(_strings(data.get("damaged", []))),
        parts=_whole(data.get("parts", 0)),
    )


def _memory(value: object) -> Memory:
    given = _mapping(value)
    kernel = sum(_whole(given.get(name, 0)) for name in ("SUnreclaim", "KernelStack", "Percpu"))
    return Memory(
        total=_whole(given["MemTotal"]),
        available=_whole(given["MemAvailable"]),
        swap=_whole(given["SwapTotal"]),
        shmem=_whole(given.get("Shmem", 0)),
        kernel=kernel,
    )


def _holders(value: object) -> Holders:
    data = _mapping(value)
    engine = _mapping(data["engine"])
    return Holders(
        processes=_whole(engine["processes"]),
        engine=_whole(engine["anon"]),
        engine_shmem=_whole(engine["shmem"]),
        engine_gpu=_maybe(engine["gpu"], _whole),
        others=_whole(data["others"]),
        largest=tuple(_large(item) for item in _list(data["largest"])),
    )


def _large(value: object) -> Large:
    data = _mapping(value)
    return Large(
        pid=_whole(data["pid"]),
        command=_string(data["command"]),
        container=_maybe(data["container"], _string),
        bytes=_whole(data["bytes"]),
    )


def _disk(value: object) -> Disk:
    data = _mapping(value)
    return Disk(_string(data["at"]), _whole(data["device"]), _whole(data["free"]))


def _holder(value: object) -> Holder:
    data = _mapping(value)
    return Holder(_maybe(data["pid"], _whole), _string(data["command"]), _maybe(data["container"], _string))


def _host_key(value: object) -> str:
    kind, key = _string(value).split()
    if kind != "ssh-ed25519":
        raise Shape(f"{kind} is not ssh-ed25519")
    return f"{kind} {key}"


def _unit(value: object) -> Unit:
    data = _each(value, _string)
    return Unit(
        load=data["LoadState"],
        active=data["ActiveState"],
        sub=data["SubState"],
        file_state=data["UnitFileState"],
        needs_reload=data["NeedDaemonReload"] == "yes",
        result=data.get("Result", ""),
    )


def _status(value: object) -> Status:
    data = _mapping(value)
    failure = data.get("last_failure")
    return Status(
        phase=_string(data["phase"]),
        reason=_string(data["reason"]),
        desired=_string(data["desired"]),
        accepted=_maybe(data["accepted"], _string),
        last_good=_maybe(data["last_good"], _string),
        code=_string(data["code"]),
        service=_string(data["service"]),
        ranks={int(rank): _rank_status(item) for rank, item in _mapping(data["ranks"]).items()},
        last_failure=_or(_mapping(failure), "reason", "") if failure else "",
        since=_or(data, "since", ""),
        last_start_seconds=_seconds(data),
        rejected=_each(data.get("rejected") or {}, _rejection),
        rollback=_maybe(data.get("rollback"), _rollback),
        generations=tuple(_kept_generation(one) for one in _list(data.get("generations") or [])),
        gates=tuple(_gate(one) for one in _list(data.get("gates") or [])),
    )


def _rejection(value: object) -> Rejection:
    data = _mapping(value)
    return Rejection(_or(data, "time", ""), _string(data["reason"]))


def _rollback(value: object) -> Rollback:
    data = _mapping(value)
    return Rollback(_or(data, "time", ""), _or(data, "from", ""), _or(data, "to", ""), _or(data, "reason", ""))


def _kept_generation(value: object) -> KeptGeneration:
    data = _mapping(value)
    return KeptGeneration(
        engine=_string(data["engine"]),
        accepted=_or(data, "accepted", ""),
        is_good=_truth(data["good"]),
        rejected=_or(data, "rejected", ""),
        addresses=tuple(_strings(data.get("addresses") or [])),
        identities=tuple(tuple(_strings(row)) for row in _list(data.get("identities") or [])),
    )


def _gate(value: object) -> tuple[str, str, str]:
    data = _mapping(value)
    return _string(data["gate"]), _string(data["outcome"]), _or(data, "detail", "")


def _seconds(document: Mapping[str, object] | Unknown | None) -> float | None:
    """A figure that is only told: one that cannot be read stops nobody."""
    value = None if document is None or isinstance(document, Unknown) else document.get("last_start_seconds")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
        return None
    return float(value)


def _rank_status(value: object) -> RankStatus:
    data = _mapping(value)
    return RankStatus(_maybe(data.get("code"), _string), _or(data, "state", "unknown"), _or(data, "clocks", ""))


def _deep(value: object) -> DeepResult:
    data = _mapping(value)
    rows = [_mapping(row) for row in _list(data["directories"])]
    found = {
        _string(row["directory"]): (_whole(row["files"]), _whole(row["bytes"]), len(_list(row["damaged"])))
        for row in rows
    }
    return DeepResult(_string(data["at"]), {path: counts for path, counts in found.items() if counts[0]})


def _recorded(value: object) -> Recorded:
    data = _mapping(value)
    runs = _truth(data["running"])
    return Recorded(_string(data["code"]), _whole(data["available"]), _maybe(data["floor"], _whole) if runs else None)


def _keeper_state(value: object) -> tuple[str | None, str]:
    memory = _mapping(_mapping(value)["memory"])
    return (_maybe(memory["accepted"], _string), _string(memory["desired"]))
