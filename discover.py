"""First contact: from the addresses of your Sparks to nodes that let deploys in, and to an inventory.py.

python discover.py [user@]HEAD [user@]WORKER ... [--user USER] [--key FILE] [--write FILE] [--yes] [--json]

Asks for a password once, and only where one is needed. Exit 0: all nodes are ready, and the inventory is written, as it
was, or printed where you have one of your own; 1: refused, with all reasons; 2: not called as above; 130: interrupted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import runpy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from checks.discovery import looks as looks_of
from contact import first, look, place, proposal
from contact.first import Node
from contact.own_keys import AGENT
from contact.proposal import FoundNode, FoundRail
from contact.words import Refused, Screen, screen
from facts.node import Query
from facts.talk import Talk
from facts.values import NodeFacts, Unknown
from spec.cluster import Position, StatedNode
from spec.discovery import Found, Pool, Remark, find
from spec.kept_files import NotWritten, write
from spec.knobs import KNOBS
from spec.objects import NETPLAN_FILE

ROOT = Path(__file__).resolve().parent
DONE, REFUSED, INTERRUPTED = 0, 1, 130
EXAMPLES = (
    "938d7c4f16817cf587aed91616aff066927c40f5a53eb135bbc82b35d3e4d3d3",
    "21cbc24406b03d857c269a510b049311340f995f801ea1e703996580c4f73719",
)
"""sha256 of inventory.py as this repository brings it, or brought it: an example that nobody made theirs."""
MOST = 4


@dataclass
class Outcome:
    """What came of it."""

    nodes: list[FoundNode] = field(default_factory=list)
    text: str = ""
    path: Path | None = None
    """Where the inventory is; None where it was printed only."""
    written: bool = False
    kept: Path | None = None
    told: list[str] = field(default_factory=list)


def main(argv: Sequence[str]) -> int:
    """Meet the nodes, look at them, propose."""
    options = _parser().parse_args(argv)
    logging.getLogger("paramiko").addHandler(logging.NullHandler())  # what it logs is said below, in our words
    shown = screen(sys.stderr if options.json else sys.stdout)
    try:
        outcome = run(options, shown)
    except Refused as error:
        return _refuse(error, shown.changed, as_json=options.json)
    except KeyboardInterrupt:
        print("\nInterrupted; what was said above is done, and nothing else.", file=sys.stderr)
        return INTERRUPTED
    if options.json:
        print(json.dumps(_document(outcome, shown.changed), indent=1))
    else:
        _report(outcome, shown)
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python discover.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("nodes", nargs="+", metavar="[USER@]ADDRESS", help="the head first; or a host name")
    parser.add_argument("--user", help="who logs in, where the address does not say; default: you")
    parser.add_argument("--key", type=Path, metavar="FILE", help="the private key that deploys use; default: yours")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the inventory there; a former one is kept")
    parser.add_argument("--yes", action="store_true", help="take host keys that are new here without asking")
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    return parser


def run(options: argparse.Namespace, shown: Screen) -> Outcome:
    """Everything, in order. Raises Refused."""
    if not 2 <= len(options.nodes) <= MOST:
        raise Refused([f"{len(options.nodes)} nodes named; the pair has two, the head first (up to {MOST} nodes)"])
    key = options.key.expanduser() if options.key else None
    places = [place.parse(word, options.user) for word in options.nodes]
    target = options.write or ROOT / "inventory.py"
    if not target.absolute().parent.is_dir():
        raise Refused([f"--write {target}: there is no directory {target.absolute().parent}"])
    pool = _pool()
    outcome = Outcome()
    with first.meet(places, key, shown, yes=options.yes) as met:
        nodes = dict(zip(_names(met), met, strict=True))
        facts = look.probe(nodes, Query(host="brief", texts=(NETPLAN_FILE,)))
        found = _find_rails(nodes, facts, pool, shown)
        _describe(outcome, nodes, found, options.key)
    outcome.text = proposal.text(outcome.nodes)
    _write(outcome, target, asked=options.write is not None)
    return outcome


def _names(nodes: Sequence[Node]) -> list[str]:
    return proposal.names([node.survey.name if node.survey else "" for node in nodes])


def _find_rails(nodes: Mapping[str, Node], facts: Mapping[str, NodeFacts], pool: Pool, shown: Screen) -> Found:
    """The rails, as a deploy finds them. Raises Refused where there are none, with what was seen."""
    stated = [_stated(rank, name, node, facts[name]) for rank, (name, node) in enumerate(nodes.items())]
    # Asked in any case: what is said of the other ports is then the same, whether or not the rails are set up already.
    shown.say("Looking for the rails: the nodes send each other frames on every port")
    lit = {each.name: [port.netdev for port in each.lit] for each in looks_of(stated, facts)}
    said = look.hear(nodes, lit)
    heard = {name: part.heard for name, part in said.items()}
    found = find(looks_of(stated, facts, Talk(said)), heard, pool)
    if not found.known or found.refusals:
        raise Refused(
            [
                "no rails can be stated, so no inventory is written",
                *(line for remark in (*found.refusals, *found.notes) for line in _lines(remark)),
            ]
        )
    over = [
        line
        for name, node in nodes.items()
        for rail in found.rails[name]
        if (line := _over_a_rail(node, rail.netdev, facts[name]))
    ]
    if over:
        raise Refused(over)
    return found


def _over_a_rail(node: Node, netdev: str, seen: NodeFacts) -> str:
    """What to say where a node was reached by its rail's own address."""
    link = None if isinstance(seen.links, Unknown) else seen.links.get(netdev)
    if link is None or all(address.ip != node.address for address in link.addresses):
        return ""
    return (
        f"{node.place.where}: is reached over {netdev}, which is a rail, and a deploy sets that up anew; name its "
        f"address on the network that your ssh uses"
    )


def _lines(remark: Remark) -> list[str]:
    where = f"{remark.where}: " if remark.where else ""
    return [f"{where}{remark.statement}", *(f"  Fix: {line}" for line in remark.fix.splitlines())]


def _stated(rank: int, name: str, node: Node, seen: NodeFacts) -> StatedNode:
    """The node as an inventory without rails states it."""
    where, ports = node.place.where, seen.host.ports
    if node.address is None:
        raise Refused([f"{where}: is reached by IPv6; name its IPv4 address, by which the other nodes reach it too"])
    if isinstance(ports, Unknown):
        raise Refused([f"{where}: its ports could not be read: {ports.reason}"])
    position: Position = "worker" if rank else "head"
    return StatedNode(name=name, rank=rank, position=position, local=False, management_address=node.address)


def _pool() -> Pool:
    """Where rails get addresses: as the settings say, which hold for rails that have some as well."""
    knob = KNOBS["rail_network"]
    try:
        stated = runpy.run_path(str(ROOT / "group_data" / "all.py")).get("rail_network")
    except Exception as error:  # whatever the operator's own file runs into
        raise Refused([f"group_data/all.py: cannot be read ({type(error).__name__}: {error})"]) from None
    try:
        return Pool(IPv4Network(str(knob.default if stated is None else knob.parse(stated))), stated is not None)
    except ValueError as reason:
        raise Refused([f"group_data/all.py: rail_network = {stated!r}: {reason}"]) from None


def _describe(outcome: Outcome, nodes: Mapping[str, Node], found: Found, key: Path | None) -> None:
    """What the inventory states of each node, and what is told of it."""
    for name, node in nodes.items():
        remarks = [remark for remark in found.notes if remark.where == name]
        outcome.nodes.append(
            FoundNode(
                name=name,
                host=node.place.host,
                user=node.place.user,
                address="" if node.address is None or _is(node.place.host, node.address) else str(node.address),
                port=node.place.port,
                key=_key(node, key),
                rails=tuple(FoundRail(rail.netdev, rail.hca, str(rail.address)) for rail in found.rails[name]),
                remarks=tuple(remark.statement for remark in remarks),
            )
        )
    outcome.told += [line for remark in found.notes for line in _lines(remark)]
    for name, rails in found.rails.items():
        outcome.told += [f"{name}: rail {number} is {rail.netdev} ({rail.hca})" for number, rail in enumerate(rails)]


def _key(node: Node, stated: Path | None) -> str:
    """The key's file, where a deploy must be told: it would try those of the agent first."""
    if stated is not None:
        return str(stated)
    return node.key.place if node.key is not None and node.keys.is_crowded and node.key.place != AGENT else ""


def _is(host: str, address: IPv4Address) -> bool:
    return host == str(address)


# What is written and said


def _write(outcome: Outcome, target: Path, *, asked: bool) -> None:
    """The inventory, where none of the operator's is lost by it."""
    try:
        there = target.read_bytes() if target.exists() else None
    except OSError as error:
        raise Refused([f"{target}: cannot be read ({error.strerror})"]) from None
    if there is not None and there != outcome.text.encode() and not asked and not _is_example(there):
        return
    try:
        [file] = write(target.absolute().parent, {target.name: outcome.text}, kept="before-discover")
    except NotWritten as error:
        raise Refused([str(error)]) from None
    outcome.path, outcome.written = target, not file.same
    outcome.kept = None if there is None or _is_example(there) else file.kept
    if file.kept is not None and outcome.kept is None:
        file.kept.unlink()


def _is_example(text: bytes) -> bool:
    return hashlib.sha256(text).hexdigest() in EXAMPLES


def _report(outcome: Outcome, shown: Screen) -> None:
    for line in outcome.told:
        shown.say(line)
    if outcome.path is None:
        shown.say("inventory.py is yours and stays as it is. What was found, as one (--write FILE writes it):")
        shown.say("")
        shown.say(outcome.text)
        return
    kept = f"; the former one is {outcome.kept}" if outcome.kept else ""
    shown.say(f"{outcome.path}: written{kept}" if outcome.written else f"{outcome.path}: as it was")
    shown.say("Next: say in group_data/all.py what they serve; make lock; pyinfra inventory.py deploy.py --dry")


def _document(outcome: Outcome, changed: Sequence[str]) -> dict[str, object]:
    return {
        "format": 1,
        "nodes": proposal.document(outcome.nodes),
        "changed": list(changed),
        "told": outcome.told,
        "inventory": outcome.text,
        "path": str(outcome.path) if outcome.path else None,
        "written": outcome.written,
    }


def _refuse(error: Refused, changed: Sequence[str], *, as_json: bool) -> int:
    head = (
        "First contact stopped; what is said above to be done stays."
        if changed
        else "First contact refused; nothing was changed, here or on a node."
    )
    for line in (head, *(f"  {line}" for line in error.lines)):
        print(line, file=sys.stderr)
    if as_json:
        print(json.dumps({"format": 1, "refused": list(error.lines), "changed": list(changed)}, indent=1))
    return REFUSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
