"""NodeProbe: everything that the roles compare, in one command per node and phase."""

from __future__ import annotations

import base64
import json
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from threading import Lock
from weakref import WeakKeyDictionary

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.facts import FactBase
from pyinfra.api.host import Host
from pyinfra.api.state import State

from facts.unknown import Unknown
from facts.values import NodeFacts, parse, unreadable
from node import content, secret

TIMEOUT_SECONDS = 90
"""A node that is there answers in tenths of a second; one whose disk hangs does not answer at all."""

_BOOTSTRAP = (
    "import sys\n"
    "if sys.version_info < (3, 10):\n"
    '    print(\'{"sudo": true, "user": "", "home": "", "python": %s}\' % list(sys.version_info[:3]))\n'
    "    sys.exit()\n"
    "import base64, json, zlib\n"
    "for name, source in json.loads(zlib.decompress(base64.b64decode(sys.argv.pop()))):\n"
    "    module = sys.modules[name] = type(sys)(name)\n"
    '    exec(compile(source, "<" + name + ">", "exec"), module.__dict__)\n'
    'sys.modules["facts.probe"].main()\n'
)
_NO_PYTHON = '{"broken": "there is no /usr/bin/python3"}'
_NO_ANSWER = '{"broken": "the probe ended without an answer; has it memory and disk left? sudo /usr/bin/python3 -V"}'


@dataclass(frozen=True)
class Query:
    """What a probe is to look at; paths are the node's, and ~/ is its user's home."""

    files: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    trees: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    netdevs: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    content: Mapping[str, str] = field(default_factory=dict)
    state: str = "/var/lib/sparkpair/weights"
    mounts: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    overlays: tuple[str, ...] = ()
    disks: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    gpu: bool = False
    cgroups: tuple[str, ...] = ()
    """Where the engine's processes are; who holds memory is looked at where any are named."""
    host: str = ""
    """How much of facts.host is asked: nothing, "brief" or "full"."""

    def text(self) -> str:
        """As the probe reads it."""
        return json.dumps(dict(sorted(vars(self).items())), separators=(",", ":"))


@cache
def _payload(with_host: bool = False) -> str:
    """The probe and the modules that it uses, packed: quoting would otherwise make it four times as long."""
    here = Path(__file__).parent
    sources = [
        ["node", ""],
        ["node.content", Path(content.__file__).read_text(encoding="utf-8")],
        ["node.secret", Path(secret.__file__).read_text(encoding="utf-8")],
        ["facts.probe", (here / "probe.py").read_text(encoding="utf-8")],
    ]
    if with_host:
        sources += [["facts", ""], ["facts.probe_host", (here / "probe_host.py").read_text(encoding="utf-8")]]
    return base64.b64encode(zlib.compress(json.dumps(sources).encode(), 9)).decode()


class NodeProbe(FactBase[NodeFacts]):
    """Run the probe as root. It escalates by itself and never asks for a password: pyinfra would ask for one, and put
    it into the node's process list."""

    @staticmethod
    def default() -> NodeFacts:
        """What no answer means."""
        return unreadable("it did not answer")

    def command(self, query: str) -> StringCommand:
        """One shell line, the same for root and for a user with sudo."""
        payload = _payload(bool(json.loads(query).get("host")))
        program = StringCommand("$1 /usr/bin/python3 -ISB -c", QuoteString(_BOOTSTRAP), QuoteString(query))
        return StringCommand(
            ": sparkpair-probe; user=$(id -un); run() {", program, '"$user"', payload, "2>/dev/null; };",
            "if [ ! -x /usr/bin/python3 ]; then echo", QuoteString(_NO_PYTHON),
            '; elif [ "$(id -u)" = 0 ]; then run "" || echo', QuoteString(_NO_ANSWER),
            '; else run "sudo -n" || if sudo -n true 2>/dev/null; then echo', QuoteString(_NO_ANSWER),
            "; else printf", QuoteString('{"sudo": false, "user": "%s"}\\n'), '"$user"; fi; fi',
        )  # fmt: skip

    def process(self, output: list[str]) -> NodeFacts:
        """The last line that is an answer; a login shell may have printed something before it."""
        return from_output(output)


def from_output(output: Sequence[str]) -> NodeFacts:
    """The facts in the probe's output."""
    for line in reversed(output):
        if line.startswith("{"):
            try:
                return parse(json.loads(line))
            except (ValueError, RecursionError) as error:
                return unreadable(f"the probe's answer is damaged: {error}")
    return unreadable(f"the probe answered {' '.join(output)[:80]!r}")


# One probe per node and phase


@dataclass
class _Seen:
    lock: Lock = field(default_factory=Lock)
    key: tuple[bool, str] | None = None
    facts: NodeFacts | None = None
    changes: int = 0
    probes: int = 0


_seen: WeakKeyDictionary[Host, _Seen] = WeakKeyDictionary()
_unreached: WeakKeyDictionary[Host, str] = WeakKeyDictionary()


def cannot_be_reached(host: Host, reason: str) -> None:
    """From now on there is nothing to be seen of this node: no connection is tried again."""
    _unreached[host] = reason


def node_facts(host: Host, query: Query) -> NodeFacts:
    """What is true on a node. Probed once in each phase, and again after an operation of ours changed something there;
    hosts that ask for each other's facts at the same time wait for the one probe."""
    if host in _unreached:
        return unreadable(f"it cannot be reached: {_unreached[host]}")
    seen = _seen.setdefault(host, _Seen())
    text = query.text()
    with seen.lock:
        key = (host.state.is_executing, text)
        if seen.facts is None or seen.key != key:
            seen.probes += 1
            changes = seen.changes
            keep_unprinted(host.state)
            asked = time.time()
            found = host.get_fact(NodeProbe, query=text, _sudo=False, _ignore_errors=True, _timeout=TIMEOUT_SECONDS)
            found = timed(found, asked, time.time())
            if changes != seen.changes:
                return found  # the node was changed meanwhile: good enough for the asker, kept for nobody else
            seen.facts, seen.key = found, key
        return seen.facts


def timed(facts: NodeFacts, asked: float, answered: float) -> NodeFacts:
    """The facts with the control machine's own clock beside the node's, without which that says little."""
    clock = facts.host.clock
    if isinstance(clock, Unknown):
        return facts
    return replace(facts, host=replace(facts.host, clock=replace(clock, asked=asked, answered=answered)))


def keep_unprinted(state: State) -> None:
    """From now on pyinfra prints no answers of nodes, which it does with -vvv: the launches that are installed and
    accepted are among them, and what the operator states as engine_env may be a token. For good, since nodes are asked
    at the same time; what is executed and what that prints is still shown."""
    state.print_fact_output = False


def forget(host: Host) -> None:
    """What was seen of this node is not true any more."""
    seen = _seen.setdefault(host, _Seen())
    seen.facts = None
    seen.changes += 1


def probes(host: Host) -> int:
    """How often this node was probed in this run."""
    seen = _seen.get(host)
    return seen.probes if seen else 0
