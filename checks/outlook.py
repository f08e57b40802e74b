"""What a deploy will mean for the pair: which settings move, what that interrupts, for how long, and the pool after it.

Old values are those of the generation that the keeper has accepted, not what happens to be installed: a deploy that was
interrupted has installed files that nothing runs with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from checks import api_key, content, generations, pair, rails
from checks.generations import Stranded
from checks.pair import Accepted, Todo
from facts.values import Content, NodeFacts, Status, Unknown, UnknownFact
from node import wire
from spec.capacity import Capacity, estimate
from spec.changes import (
    API_KEY,
    ENGINE_ENV,
    KEY_VARIABLE,
    Change,
    Hidden,
    Reading,
    Unreadable,
    becomes,
    changes,
    content_changes,
    holds,
    knobs_of,
    rail_changes,
    read_identities,
    read_launch,
    read_rails,
    read_service,
    service_changes,
    stack_of,
)
from spec.cluster import Cluster, StatedNode
from spec.knobs import KNOBS, Cost, Knobs, Scope
from spec.objects import API_KEY_FILE, NETPLAN_FILE, SERVICE_FILE, VAR

CURRENT = f"{VAR}/current"
ORDER = "order of the launch"
ADDRESS = "address of "
HELD = (
    "Engine | ",
    "Fabric | Install 60-sparkpair.yaml",
    "Image | ",
    "Keeper | Install the keeper's",
    "Keeper | Install what lets the keeper in",
    "Keeper | Re",
    "Keeper | Start",
    "Keeper | Wait",
    "NFS | Prove",
    "Node OS | Install the directories",
    "Upkeep | ",
    "Weights | ",
)
"""Beginnings of rows whose work a generation brings back with it, or that mean nothing to one. All others stay done,
whichever generation runs; of files that are replaced where they are, the generations that need them tell."""
COMPILED_ANEW = frozenset({"stack", "image", "cache_path"})
"""Knobs whose change leaves the engine without its compiled kernels: such a start takes longer than the last one."""


def texts(ranks: int, is_head: bool) -> tuple[str, ...]:
    """The files whose text tells what is accepted."""
    if not is_head:
        return (NETPLAN_FILE,)
    kept = (f"{CURRENT}/manifest.json", f"{CURRENT}/service.json", *map(rank_text, range(ranks)))
    return (NETPLAN_FILE, SERVICE_FILE, *kept)


def rank_text(rank: int) -> str:
    """Where the head keeps a rank's accepted launch."""
    return f"{CURRENT}/rank{rank}.json"


@dataclass(frozen=True)
class Wanted:
    """What the settings say, rendered. `engine` and `identities` are None while files are not hashed yet."""

    engine: str | None
    identities: Sequence[Sequence[str]] | None
    rank_texts: tuple[str, ...]
    service_text: str
    rail_texts: tuple[str, ...]


@dataclass(frozen=True)
class Start:
    """How long a start takes: measured here, or published by the stack's project, or neither (`seconds` is None)."""

    seconds: float | None
    measured: bool
    source: str


@dataclass(frozen=True)
class Pool:
    """The KV pool of a launch, as computed; `capacity` is None where it cannot be."""

    capacity: Capacity | None
    max_model_len: object


@dataclass(frozen=True)
class WayBack:
    """What a return to an earlier generation will be like after the deploy; only where there is one to return to."""

    not_undone: tuple[str, ...]
    """Rows of the plan whose work stays, whichever generation runs."""
    stranded: tuple[Stranded, ...]
    """Good generations that cannot be returned to after it."""


@dataclass(frozen=True)
class Outlook:
    """What is known before a deploy of what it will do."""

    state: Accepted
    reason: str
    """Why the keeper is in that phase, in its own words."""
    todo: Todo
    changes: tuple[Change, ...]
    """On a first start: what differs from the stack's defaults."""
    unknown: str
    """Why old values are not known; empty where they are."""
    notes: tuple[str, ...]
    before: Pool | None
    after: Pool
    start: Start
    grace_seconds: int
    docker: tuple[str, ...]
    """Nodes whose Docker is restarted."""
    ends_ranks: bool
    """Whether a rank of ours is, or may be, on one of those."""
    rails: tuple[str, ...]
    """Nodes whose rails are set up anew."""
    warnings: tuple[str, ...]
    is_hashed: bool
    """Whether the files and keys that the ranks depend on are known by their content."""
    way_back: WayBack

    @property
    def is_first(self) -> bool:
        return self.state.engine is None and not self.unknown

    @property
    def is_stopped(self) -> bool:
        return self.state.desired == "stop"

    @property
    def reloads_keeper(self) -> bool:
        return any(change.cost is Cost.SERVICE for change in self.changes)

    @property
    def restarts_for_sure(self) -> bool:
        """Whether the launch differs, whatever becomes of what is not hashed yet."""
        return self.todo is Todo.RESTART and (self.moves_the_launch or bool(self.unknown) or self.is_hashed)

    @property
    def moves_the_launch(self) -> bool:
        """Whether a change is one of what the ranks run with, rather than of the keeper or the rails alone."""
        return any(change.cost in (Cost.RESTART, Cost.STAGING) for change in self.changes)

    @property
    def interrupts(self) -> bool:
        """Whether a pair that serves, or may do so, will not for a while."""
        if self.is_first or self.is_stopped or self.state.phase not in ("running", "silent", "unknown"):
            return False
        return self.todo is Todo.RESTART or self.ends_ranks

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to tell."""
        told = (self.changes, self.unknown, self.notes, self.docker, self.rails, self.warnings)
        return self.todo is Todo.NOTHING and not any(told) and not self.is_stopped


def outlook(
    cluster: Cluster,
    facts: Mapping[str, NodeFacts],
    wanted: Wanted,
    warnings: Sequence[str],
    rows_due: Sequence[str],
) -> Outlook:
    """The outlook of a deploy that has passed preflight. `rows_due` are the names of the rows with something to do."""
    head = facts[cluster.head.name]
    new = read_launch(cluster.stack, wanted.rank_texts)
    rows: list[Change] = []
    notes: list[str] = []
    unknown, before, held = "", None, None
    try:
        state = pair.accepted(head)
        todo = pair.todo(state, wanted.engine)
        status = pair.status_of(head)
    except UnknownFact as error:
        state, todo, status = Accepted(None, "run", "unknown"), Todo.NOTHING, None
        unknown = str(error)
    if state.engine is None and not unknown:
        rows += _beside_the_defaults(cluster)
    elif state.engine is not None:
        try:
            held = _held(state.engine, head, len(wanted.rank_texts))
        except Unreadable as error:
            unknown = str(error)
        else:
            before = _pool(held.launch, cluster)
            rows += changes(held.launch, new)
            rows += content_changes(held.launch, held.identities, new, wanted.identities)
            rows += _key_made_anew(cluster, head, held.launch)
            if not rows:
                rows += _in_another_order(held.rank_texts, wanted.rank_texts)
            if not rows and wanted.identities is None:
                notes.append("Files or keys are hashed first: whether they are other ones is not known before that.")
        rows += _service(head, status.service if status else None, wanted, notes)
    if state.engine is not None or unknown:
        rows += _rails(cluster, facts, wanted)
    turned = {row.knob for row in rows}
    pauses = tuple(_rail_pauses(cluster, facts, wanted))
    if pauses:
        notes += _rails_that_were_found(cluster)
    return Outlook(
        state=state,
        reason=status.reason if status else "",
        todo=todo,
        changes=tuple(rows),
        unknown=unknown,
        notes=tuple(notes),
        before=before,
        after=_pool_after(cluster),
        start=_start(
            cluster,
            status,
            head.kept_start_seconds,
            is_another=bool({"stack", "weights"} & turned) and state.engine is not None,
        ),
        grace_seconds=cluster.knobs.stop_grace_seconds,
        docker=tuple(_docker_restarts(cluster, facts)),
        ends_ranks=any(_may_hold_a_rank(facts[name]) for name in _docker_restarts(cluster, facts)),
        rails=pauses,
        warnings=tuple(warnings),
        is_hashed=wanted.identities is not None,
        way_back=_way_back(cluster, facts, wanted, status, held, rows_due),
    )


def _rails_that_were_found(cluster: Cluster) -> Iterator[str]:
    """Rails that nobody stated, for whoever is to agree to them before they are set up."""
    if all(node.rails for node in cluster.settings.nodes):
        return
    for number in range(len(cluster.head.rails)):
        ends = ", ".join(
            f"{node.name} {node.rails[number].netdev} {node.rails[number].address}" for node in cluster.nodes
        )
        yield f"Rail {number}, found and not stated: {ends}."


# What a rollback finds


def _way_back(
    cluster: Cluster,
    facts: Mapping[str, NodeFacts],
    wanted: Wanted,
    status: Status | None,
    held: _Held | None,
    rows_due: Sequence[str],
) -> WayBack:
    if status is None or not _is_any_good(status, wanted.engine):
        return WayBack((), ())
    others = [one for one in status.generations if one.engine != wanted.engine]
    stranded = generations.stranded(
        others, _gone_addresses(cluster, facts, wanted), _replaced_files(cluster, facts, wanted, held)
    )
    return WayBack(tuple(row for row in rows_due if not row.startswith(HELD)), stranded)


def _is_any_good(status: Status, engine: str | None) -> bool:
    """Whether there is a generation to return to once this launch is in force. Earlier keepers tell the last one."""
    good = {one.engine for one in status.generations if one.is_good and not one.rejected} | {status.last_good}
    return bool(good - {engine, None})


def _gone_addresses(cluster: Cluster, facts: Mapping[str, NodeFacts], wanted: Wanted) -> frozenset[str]:
    """Addresses that rails of ours have, and none will have."""
    old = set()
    for node in cluster.nodes:
        try:
            old |= _addresses(_text(facts[node.name], NETPLAN_FILE))
        except Unreadable:
            continue
    return frozenset(old.difference(*map(_addresses, wanted.rail_texts)))


def _addresses(rail_text: str) -> set[str]:
    return {str(value).partition("/")[0] for name, value in read_rails(rail_text).items() if name.startswith(ADDRESS)}


def _replaced_files(
    cluster: Cluster, facts: Mapping[str, NodeFacts], wanted: Wanted, held: _Held | None
) -> dict[str, str]:
    """Identities of files that will be others where they are: {identity that was: directory}."""
    if wanted.identities is None:
        return {}
    found: dict[str, str] = {}
    for node, row in zip(cluster.nodes, wanted.identities, strict=True):
        was = held.content(node.rank) if held else {}
        for path, identity in zip(cluster.launch(node).content, row, strict=False):
            here = content.find(facts[node.name], path)
            on_disk = here.identity if isinstance(here, Content) else None
            found |= {old: path for old in (on_disk, was.get(path)) if old not in (None, identity)}
    return found


# What is accepted


@dataclass(frozen=True)
class _Held:
    """The accepted generation, read back."""

    rank_texts: tuple[str, ...]
    launch: tuple[Reading, ...]
    identities: list[list[str]]

    def content(self, rank: int) -> dict[str, str]:
        """Identities of a rank's directories, by path."""
        if rank >= len(self.rank_texts):
            return {}
        return dict(zip(wire.parse_rank(self.rank_texts[rank]).content, self.identities[rank], strict=False))


def _held(engine: str, head: NodeFacts, ranks: int) -> _Held:
    """Raises Unreadable, with what a person can do with it."""
    named, identities = read_identities(_text(head, f"{CURRENT}/manifest.json"))
    if named != engine:
        raise Unreadable(f"{CURRENT} is generation {named[:12]}, and the keeper holds the pair to {engine[:12]}")
    count = min(ranks, len(identities))
    found = tuple(_text(head, f"{CURRENT}/rank{rank}.json") for rank in range(count))
    if not found:
        raise Unreadable(f"generation {engine[:12]} has no rank")
    # Of a pair that had more nodes than are asked, the whole is not read, and cannot be proven.
    if count == len(identities) and not holds(engine, found, identities):
        raise Unreadable(f"generation {engine[:12]} does not hold what its name says")
    return _Held(found, read_launch(stack_of(found[0]), found), identities)


def _text(seen: NodeFacts, path: str) -> str:
    found = seen.texts if isinstance(seen.texts, Unknown) else seen.texts.get(path)
    if isinstance(found, Unknown):
        raise Unreadable(f"{path} could not be read: {found.reason}")
    if found is None:
        raise Unreadable(f"{path} is not there")
    return found


def _service(head: NodeFacts, loaded: str | None, wanted: Wanted, notes: list[str]) -> tuple[Change, ...]:
    """Against the settings that the keeper has loaded; against the installed ones while it is silent."""
    found = []
    for path in (SERVICE_FILE, f"{CURRENT}/service.json"):
        try:
            text = _text(head, path)
        except Unreadable:
            continue
        if loaded in (None, hashlib.sha256(text.encode()).hexdigest()):
            found.append(text)
    if not found:
        notes.append("The keeper's old settings are unknown: those that it has loaded are in no file any more.")
        return ()
    try:
        return service_changes(read_service(found[0]), read_service(wanted.service_text))
    except Unreadable as error:
        notes.append(f"The keeper's old settings are unknown: {error}.")
        return ()


def _rails(cluster: Cluster, facts: Mapping[str, NodeFacts], wanted: Wanted) -> tuple[Change, ...]:
    old = {}
    for node in cluster.nodes:
        try:
            old[node.rank] = read_rails(_text(facts[node.name], NETPLAN_FILE))
        except Unreadable:
            continue
    new = {node.rank: read_rails(text) for node, text in zip(cluster.nodes, wanted.rail_texts, strict=True)}
    return rail_changes({rank: reading for rank, reading in old.items() if reading}, new)


def _key_made_anew(cluster: Cluster, head: NodeFacts, old: Sequence[Reading]) -> Iterator[Change]:
    """A key that is gone is made anew, so that it is another one for certain, though its identity is not known yet."""
    now = api_key.of(head, API_KEY_FILE)
    is_gone = not isinstance(now, Unknown) and not now.present
    if is_gone and cluster.knobs.require_api_key and old[0].get("require_api_key"):
        yield Change(API_KEY, Hidden("accepted"), Hidden("made anew"), KEY_VARIABLE, (0,), Cost.RESTART)


def _in_another_order(old: Sequence[str], new: Sequence[str]) -> Iterator[Change]:
    """Every value is as it was, and yet the text is another: what stands in another order restarts all the same."""
    ranks = tuple(rank for rank, (one, other) in enumerate(zip(old, new, strict=False)) if one != other)
    if ranks:
        yield Change(ORDER, "as accepted", "as rendered", "the launch's text", ranks, Cost.RESTART)


# A first start


def _beside_the_defaults(cluster: Cluster) -> Iterator[Change]:
    default = cluster.stack.effective(Knobs(stack=cluster.stack.name))
    everybody = tuple(node.rank for node in cluster.nodes)
    for name, knob in KNOBS.items():
        if name == ENGINE_ENV:
            for item in cluster.knobs.engine_env:
                variable, _, value = item.partition("=")
                yield Change(
                    f"{ENGINE_ENV} {variable}", None, Hidden(value), "a variable of the engine", everybody, knob.cost
                )
            continue
        usual = getattr(default, name)
        by_value: dict[object, list[int]] = {}
        for node in cluster.settings.nodes:
            by_value.setdefault(_stated(cluster, node, name, knob.scope), []).append(node.rank)
        for here, ranks in by_value.items():
            if here != usual and not (knob.leaves_it_to_the_engine(here) and knob.leaves_it_to_the_engine(usual)):
                of_ranks = knob.cost in (Cost.RESTART, Cost.STAGING, Cost.FABRIC)
                into = becomes(name, cluster.stack.name)
                yield Change(name, usual, here, into, tuple(ranks) if of_ranks else (), knob.cost)


def _stated(cluster: Cluster, node: StatedNode, name: str, scope: Scope) -> object:
    own = getattr(node, name) if scope is Scope.NODE else None
    return getattr(cluster.knobs, name) if own is None else own


# What it means


def _pool(launch: Sequence[Reading], cluster: Cluster) -> Pool:
    """Of a launch as it was read. Which release its image is does not stand in it."""
    knobs = knobs_of(launch[0])
    if knobs is None:
        return Pool(None, launch[0].get("max_model_len"))
    same = knobs.image == cluster.knobs.image
    known = cluster.stack.releases.get(str(knobs.image).partition("@")[2])
    release = cluster.knobs.image_release if same else known
    return Pool(estimate(knobs.model_copy(update={"image_release": release})), knobs.max_model_len)


def _pool_after(cluster: Cluster) -> Pool:
    """As launched: what is left out is one rank per node (spec/stacks/common.py)."""
    ranks = cluster.knobs.tensor_parallel_size or len(cluster.nodes)
    return Pool(estimate(cluster.knobs.model_copy(update={"tensor_parallel_size": ranks})), cluster.knobs.max_model_len)


def _start(cluster: Cluster, status: Status | None, kept: float | None, *, is_another: bool) -> Start:
    """The last start, unless it was another stack's or from weights in another place; as kept while the keeper is
    silent."""
    seconds = status.last_start_seconds if status else kept
    if seconds is not None and not is_another:
        day = status.since[:10] if status and status.phase == "running" else ""
        return Start(seconds, True, f"the last start on this pair, measured{' ' + day if day else ''}")
    if cluster.nfs_server is not None and cluster.stack.published_nfs_start_seconds is not None:
        source = (
            "published: reference kit v2.3-tier1, 12 to 13 minutes with its NFS mode; not measured on this pair yet"
        )
        return Start(cluster.stack.published_nfs_start_seconds, False, source)
    if cluster.stack.published_start_seconds is not None:
        source = f"published: {cluster.stack.published_start_source}; not measured on this pair yet"
        return Start(cluster.stack.published_start_seconds, False, source)
    return Start(
        None, False, f"nothing is published for stack {cluster.stack.name}, and no start was measured here yet"
    )


def _docker_restarts(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> Iterator[str]:
    for node in cluster.nodes:
        docker = facts[node.name].docker
        if not isinstance(docker, Unknown) and not docker.has_nvidia:
            yield node.name


def _may_hold_a_rank(seen: NodeFacts) -> bool:
    if isinstance(seen.docker, Unknown) or isinstance(seen.docker.containers, Unknown):
        return True
    return any(container.is_ours and container.state != "exited" for container in seen.docker.containers)


def _rail_pauses(cluster: Cluster, facts: Mapping[str, NodeFacts], wanted: Wanted) -> Iterator[str]:
    for node, text in zip(cluster.nodes, wanted.rail_texts, strict=True):
        if not rails.in_force(cluster, node, facts[node.name], hashlib.sha256(text.encode()).hexdigest()):
            yield node.name
