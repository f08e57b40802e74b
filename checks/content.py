"""Weights and drafter: where they are whole, where they must go, and whether all nodes have the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from checks import sourcing
from checks.sourcing import Row, Share, Way
from checks.verdict import Verdict, broken, unknown
from facts.values import Content, NodeFacts, Unknown
from node.content import SMALL_BYTES
from node.wire import manifest_identity
from spec.cluster import Cluster, Node
from spec.licences import licence_refusal
from spec.lock import FileSet

Reached = Mapping[str, str | Unknown]
"""By node: what keeps it from the hub, "" where nothing does; Unknown where it could not be asked."""


@dataclass(frozen=True)
class Plan:
    """One content directory over the nodes that hold it, or that lend their own copy of it to the one that others read
    over NFS. Where there are refusals, the shares mean nothing.

    `files` is what every node shall hold; empty as long as that is not known: without a lock, before the files were
    hashed where they are. `file_set` is the locked one, if there is one."""

    name: str
    paths: Mapping[str, str]
    shares: Mapping[str, Share] = field(default_factory=dict)
    files: tuple[Row, ...] = ()
    identity: str | None = None
    file_set: FileSet | None = None
    source: str | None = None
    """Without a lock: whose files those are."""
    refusals: tuple[Verdict, ...] = ()

    def way(self, node: str) -> Way:
        """What a node does; nothing where it reads another's files."""
        return self.shares[node].way if node in self.shares else Way.NOTHING

    def serves(self, node: str) -> bool:
        """Whether a peer takes files from this node."""
        others = [share for name, share in self.shares.items() if name != node]
        mine = self.shares.get(node)
        if mine is None or not any(share.wait for share in others):
            return False
        return mine.way is not Way.COPY or len(mine.lacks) < max(len(self.files), 1)

    @property
    def is_done(self) -> bool:
        """Whether every node holds it, proven."""
        return not self.refusals and all(share.way is Way.NOTHING for share in self.shares.values())


def plans(cluster: Cluster, facts: Mapping[str, NodeFacts], reached: Reached | None = None) -> list[Plan]:
    """A plan for each directory that the engine reads. `reached` is None while nobody was asked for the way to the hub:
    the shares then say what is lacking, not whence it comes."""
    by_node = {node.name: cluster.launch(node).content for node in cluster.nodes}
    count = len(by_node[cluster.head.name])
    return [
        _plan(cluster, facts, {name: paths[index] for name, paths in by_node.items()}, reached)
        for index in range(count)
    ]


def must_ask(all_plans: Sequence[Plan]) -> bool:
    """Whether it matters who reaches the hub: something locked is lacking, or may prove to be damaged."""
    return any(plan.file_set is not None and not plan.refusals and not plan.is_done for plan in all_plans)


def identities(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> list[list[str]] | None:
    """The identity of each rank's directories, in rank order; None as long as one of them is not known."""
    found = []
    for node in cluster.nodes:
        row = []
        for path in cluster.launch(node).content:
            seen = find(facts[node.name], path)
            if isinstance(seen, Unknown) or seen.identity is None:
                return None
            row.append(seen.identity)
        found.append(row)
    return found


def find(facts: NodeFacts, path: str) -> Content | Unknown:
    """The facts of a directory, by where it is."""
    if isinstance(facts.content, Unknown):
        return facts.content
    for seen in facts.content.values():
        if isinstance(seen, Content) and seen.path == path:
            return seen
    # One that could not be read has lost its path, too: any such may be this one.
    unreadable = [seen for seen in facts.content.values() if isinstance(seen, Unknown)]
    return unreadable[0] if unreadable else Unknown(f"{path} was not looked at")


def _plan(cluster: Cluster, facts: Mapping[str, NodeFacts], paths: Mapping[str, str], reached: Reached | None) -> Plan:
    head = cluster.head
    name = "weights" if paths[head.name] == head.weights_path else "drafter"
    nodes = [node for node in cluster.nodes if not (name == "weights" and cluster.mounts_weights(node))]
    if len(nodes) < len(cluster.nodes):
        name = "weights"
    refusals: list[Verdict] = []
    seen: dict[str, Content] = {}
    for node in nodes:
        found = find(facts[node.name], paths[node.name])
        if isinstance(found, Unknown):
            refusals.append(unknown(node.name, f"{name} in {paths[node.name]}", found))
        else:
            seen[node.name] = found
    if refusals:
        return Plan(name, paths, refusals=tuple(refusals))
    lock = cluster.settings.lock
    file_set = None if lock is None else lock.weights if name == "weights" else lock.drafter
    if name == "weights" and not all(here.is_whole for here in seen.values()):
        own = _own_copies(cluster, facts, file_set)
        nodes += [node for node in cluster.nodes if node.name in own]
        seen |= own
        paths = {**paths, **{lender: here.path for lender, here in own.items()}}
    if file_set is not None:
        return _locked(cluster, name, paths, nodes, seen, file_set, reached)
    return _unlocked(cluster, name, paths, nodes, seen)


def _own_copies(cluster: Cluster, facts: Mapping[str, NodeFacts], file_set: FileSet | None) -> dict[str, Content]:
    """The copies that nodes have which read over NFS: where the server lacks files, these need not come from further
    away. They only lend, so one that is not whole is of no use."""
    locked = [(file.path, file.size, file.sha256) for file in file_set.files] if file_set else []
    found = {}
    for node in cluster.nodes:
        held = facts[node.name].content
        here = None if isinstance(held, Unknown) or not cluster.mounts_weights(node) else held.get("weights")
        if isinstance(here, Content) and here.is_whole and not sourcing.lacking(locked, here):
            found[node.name] = here
    return found


def _unlocked(
    cluster: Cluster, name: str, paths: Mapping[str, str], nodes: Sequence[Node], seen: Mapping[str, Content]
) -> Plan:
    """What some node has whole is what all shall have."""
    whole = [node for node in nodes if seen[node.name].is_whole]
    if not whole:
        return Plan(name, paths, refusals=tuple(_nowhere(cluster, name, nodes, seen)))
    source = next((node for node in whole if seen[node.name].identity), whole[0])
    files = tuple((path, size, digest or "") for path, size, digest in seen[source.name].files)
    refusals: list[Verdict] = []
    shares: dict[str, Share] = {}
    for node in nodes:
        here = seen[node.name]
        if node is not source:
            refusals += _differences(name, source, seen[source.name], node, here)
        shares[node.name] = Share(Way.NOTHING if here.identity else Way.HASH)
        if node is not source and _must_copy(files, here):
            shares[node.name] = Share(Way.COPY, _lacks(files, here), wait=True)
    identity = seen[source.name].identity
    return Plan(name, paths, shares, files if identity else (), identity, None, source.name, tuple(refusals))


def _must_copy(files: Sequence[Row], here: Content) -> bool:
    held = {path for path, _, _ in here.files}
    return here.copying is not None or bool(here.damaged) or any(path not in held for path, _, _ in files)


def _lacks(files: Sequence[Row], here: Content) -> tuple[Row, ...]:
    """Files that are not here in their size; of what an interrupted copy left nothing is known before it is hashed."""
    held = {path: size for path, size, _ in here.files if path not in here.damaged}
    return tuple(row for row in files if held.get(row[0]) != row[1])


def _locked(
    cluster: Cluster, name: str, paths: Mapping[str, str], nodes: Sequence[Node], seen: Mapping[str, Content],
    file_set: FileSet, reached: Reached | None,
) -> Plan:  # fmt: skip
    """What the lock names, and what the operator put beside it."""
    locked = tuple((file.path, file.size, file.sha256) for file in file_set.files)
    beside, refusals = _beside(name, {path for path, _, _ in locked}, nodes, seen)
    for node in nodes:
        refusals += [_outside(name, node, seen[node.name])] if seen[node.name].outside else []
        refusals += _another_model(name, locked, node, seen[node.name], file_set)
    wanted = tuple(sorted((*locked, *beside)))
    holders = [node for node in nodes if not (name == "weights" and cluster.mounts_weights(node))]
    online = {node.name: reached is None or reached.get(node.name) == "" for node in holders}
    bundles = {node.name: place for node in holders if (place := cluster.bundle(node, name))}
    shares, nowhere = sourcing.shares(wanted, seen, online, bundles, frozenset(path for path, _, _ in locked))
    if not refusals and nowhere:
        refusals += _out_of_reach(cluster, name, paths, nodes, nowhere, reached or {})
    unaccepted = licence_refusal(file_set, cluster.knobs.accepted_licences)
    if unaccepted is not None:
        if not refusals and any(share.fetch for share in shares.values()):
            statement, _, fix = unaccepted.partition("\n")
            refusals.append(broken("", f"{name}: its licence is not accepted: {statement}", fix))
        # What a node has may be used and copied; nothing is downloaded, not in place of a damaged file or a slow peer.
        shares = {node: replace(share, hub=False) for node, share in shares.items()}
    return Plan(name, paths, shares, wanted, manifest_identity(wanted), file_set, None, tuple(refusals))


def _beside(
    name: str, locked: set[str], nodes: Sequence[Node], seen: Mapping[str, Content]
) -> tuple[list[Row], list[Verdict]]:
    """Files that the lock does not name, such as a chat template of one's own: small ones belong to the model too."""
    found: dict[str, tuple[str, int, str]] = {}
    refusals = []
    for node in nodes:
        for path, size, digest in seen[node.name].files:
            if path in locked:
                continue
            first, its_size, its_digest = found.setdefault(path, (node.name, size, digest or ""))
            where = f"{seen[node.name].path}/{path}"
            if not digest or size > SMALL_BYTES:
                refusals.append(
                    broken(
                        node.name,
                        f"{name}: {where} ({amount(size)}) is not in the lock file",
                        "move it elsewhere; only small files, such as a chat template, may stand beside what is locked",
                    )
                )
            elif (its_size, its_digest) != (size, digest):
                refusals.append(
                    broken(
                        "",
                        f"{name}: {path} is not in the lock file, and {first} and {node.name} hold different ones",
                        f"remove on one of them what is not wanted; it is copied there from the other: "
                        f"rm {where} on {node.name}",
                    )
                )
    return [(path, size, digest) for path, (_, size, digest) in found.items()], refusals


def _another_model(name: str, locked: Sequence[Row], node: Node, here: Content, file_set: FileSet) -> Iterator[Verdict]:
    """One damaged file is brought again; a directory most of whose files are of other sizes holds something else."""
    held = {path: size for path, size, _ in here.files}
    same = sum(held[path] == size for path, size, _ in locked if path in held)
    other = [path for path, size, _ in locked if path in held and held[path] != size]
    if here.copying is None and len(other) > same:
        yield broken(
            node.name,
            f"{name}: {here.path} holds other files than {file_set.repository} at {file_set.revision[:12]}: "
            f"{', '.join(other[:3])}: {len(other)} of the {len(other) + same} locked names that are there have another "
            f"size",
            f"name another directory in {name}_path, or remove this one if nobody needs it: rm -r {here.path}",
        )


def _out_of_reach(
    cluster: Cluster, name: str, paths: Mapping[str, str], nodes: Sequence[Node], nowhere: Sequence[Row],
    reached: Reached,
) -> Iterator[Verdict]:  # fmt: skip
    if any(isinstance(why, Unknown) for why in reached.values()):
        for node in nodes:
            why = reached.get(node.name)
            if isinstance(why, Unknown):
                yield unknown(node.name, f"whether it reaches {cluster.knobs.hub_endpoint}", why)
        return
    told = [f"{node.name}: {reached.get(node.name) or 'no way'}" for node in nodes]
    rest = len(nowhere) - 2
    more = f" and {rest} more file{'s' if rest > 1 else ''}" if rest > 0 else ""
    first = ", ".join(path for path, _, _ in nowhere[:2])
    yield broken(
        "",
        f"{name}: no node holds {first}{more} ({amount(sum(size for _, size, _ in nowhere))}), and none reaches "
        f"{cluster.knobs.hub_endpoint} ({'; '.join(told)})",
        f"give one node a way to the internet, put the files into {paths[nodes[0].name]} on {nodes[0].name}, or make "
        f"a bundle where there is one (make bundle) and name it in bundle_path",
    )


def amount(count: int) -> str:
    """Bytes for a person."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def _differences(name: str, source: Node, whole: Content, node: Node, here: Content) -> Iterator[Verdict]:
    """What a node has that the source has not, or not so: copying over it would destroy it, so it is asked about."""
    if here.outside:
        yield _outside(name, node, here)
    if here.copying is not None:
        return
    wanted = {path: (size, digest) for path, size, digest in whole.files}
    others = []
    for path, size, digest in here.files:
        if path not in wanted:
            others.append(f"{path} (only on {node.name})")
            continue
        its_size, its_digest = wanted[path]
        if size != its_size:
            others.append(f"{path} ({its_size} and {size} bytes)")
        elif digest and its_digest and digest != its_digest:
            others.append(f"{path} (other bytes)")
    if others:
        more = f", and {len(others) - 5} more" if len(others) > 5 else ""
        yield broken(
            "",
            f"{name}: {source.name} ({whole.path}) and {node.name} ({here.path}) hold different files: "
            f"{', '.join(others[:5])}{more}",
            f"remove on one of them what is not wanted; it is copied there from the other over the rail.\n"
            f"To take those of {source.name}, on {node.name}: rm -r {here.path}",
        )


def _nowhere(cluster: Cluster, name: str, nodes: Sequence[Node], seen: Mapping[str, Content]) -> Iterator[Verdict]:
    told = []
    for node in nodes:
        here = seen[node.name]
        if here.outside:
            yield _outside(name, node, here)
            continue
        if here.copying is not None:
            told.append(f"{node.name} holds an unfinished copy in {here.path}")
        elif not here.present:
            told.append(f"{node.name} has nothing in {here.path}")
        else:
            told.append(f"{node.name} lacks {', '.join(here.missing[:3])} in {here.path}")
    if told and not any(here.outside for here in seen.values()):
        at = nodes[0].name
        yield broken(
            "", f"{name}: no node has them whole; {'; '.join(told)}", _remedy(cluster, name, at, seen[at].path)
        )


def _remedy(cluster: Cluster, name: str, node: str, path: str) -> str:
    """How files come to be where nobody has them, and no lock says what they are."""
    knobs = cluster.knobs
    repository = knobs.weights_repository if name == "weights" else knobs.drafter_repository
    own = f"put the files into {path} on {node}, or correct {name}_path; they are copied from there to the other node"
    if not repository:
        return f"{own}.\nTo have them downloaded, state {name}_repository and run: make lock"
    return f"make lock, which pins {repository}; a deploy then downloads them. Or {own}"


def template_is_there(cluster: Cluster, facts: Mapping[str, NodeFacts], plan: Plan) -> Iterator[Verdict]:
    """The chat template that is stated lies among the weights, from where every node has it or gets it (ENG-14 of the
    field reports: a template that only one rank had)."""
    template = cluster.knobs.chat_template
    if not template or plan.name != "weights" or plan.refusals:
        return
    files = {path for path, _, _ in plan.files}
    where = plan.source or next(iter(plan.shares))
    if not files:
        found = find(facts[where], plan.paths[where])
        if isinstance(found, Unknown):
            return
        files = {path for path, _, _ in found.files}
    if template not in files:
        yield broken(
            where,
            f"chat_template = {template}: no such file in {plan.paths[where]}, which is what the container sees",
            f"put it there on every node, name a file that is there, or leave chat_template out "
            f"(ls {plan.paths[where]})",
        )


def _outside(name: str, node: Node, here: Content) -> Verdict:
    return broken(
        node.name,
        f"{name}: {here.path}/{here.outside[0]} links out of the directory, which is all that the container sees",
        f"put the files themselves there: cp -RL {here.path} {here.path}-files, and name that directory",
    )
