"""Measure the rails between the nodes, one measurement after the other, and keep what was found on the head."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from paramiko import SSHException
from pyinfra import logger
from pyinfra.api.command import FunctionCommand, StringCommand
from pyinfra.api.host import Host
from pyinfra.api.state import State

from checks import fabric_gate
from checks.fabric_gate import Asked
from checks.verdict import failures
from facts.gate import BANDWIDTH, Collective, Gate, Measured, text
from facts.node import forget
from facts.values import NodeFacts, Unknown, UnknownFact, known
from node import bandwidth
from operations import lock
from operations.collective import run_collective
from operations.core import Commands, callback, node_operation, noop
from operations.files import write
from operations.run import Run
from operations.sight import starts
from operations.units import shell
from spec import objects
from spec.cluster import Node

MEMORY_MAX_MIB = 512
"""Of each side; what perftest and iperf3 hold is a tenth of it."""
RDMA = {BANDWIDTH: bandwidth.RDMA_BANDWIDTH, "latency": bandwidth.RDMA_LATENCY}
TCP = {BANDWIDTH: bandwidth.TCP_BANDWIDTH, "latency": bandwidth.TCP_LATENCY}


class Failed(Exception):
    """A measurement gave no figure; the message says why."""


def measure(run: Run) -> Gate:
    """All measurements, told as they come; the result is on the head afterwards. Raises UnknownFact."""
    cluster = run.cluster
    of = known(_subject(run), "what the rails are")
    measured = []
    for asked in fabric_gate.plan(cluster):
        row = _measure(run, asked)
        measured.append(row)
        _tell(run, row)
    gate = Gate(at=_now(run), of=of, measured=tuple(measured), collective=_collective(run, measured))
    _keep(run, gate)
    return gate


def _collective(run: Run, measured: Sequence[Measured]) -> Collective | None:
    """In the image that is to serve; where it cannot be tried yet that is told, and the next measurement does."""
    facts = run.all_seen()
    if any(row.trouble for row in measured):
        found: Collective | str = "a rail by itself could not be measured"
    elif fabric_gate.serves(facts, run.cluster.head.name):
        former = facts[run.cluster.head.name].gate
        if isinstance(former, Gate) and former.collective is not None:
            return former.collective  # of which image it was stands with it
        found = "the pair serves, and has the GPU"
    else:
        found = run_collective(run)
    if isinstance(found, str):
        run.hosts[run.cluster.head.name].log(f"no collective in the serving image: {found}", logger.info)
        return None
    return found


def _subject(run: Run) -> dict[str, str] | Unknown:
    return fabric_gate.subject(run.cluster, run.all_seen())


def _tell(run: Run, row: Measured) -> None:
    rails = " and ".join(map(str, row.rails))
    figure = row.trouble or (f"{row.gbps:.1f} Gb/s" if row.gbps is not None else f"{row.usec:.1f} us")
    said = f"rail {rails}, {row.source} to {row.target}: {figure} ({row.tool})"
    run.hosts[run.cluster.head.name].log(said, logger.info)


def _measure(run: Run, asked: Asked) -> Measured:
    """By RDMA where that works, else by TCP, which then says why."""
    instead = _no_rdma(run, asked)
    if not instead:
        try:
            return _by(run, asked, RDMA[asked.kind], "")
        except Failed as error:
            instead = f"{RDMA[asked.kind]}: {error}"
    lacks = _lacking(run, asked, TCP[asked.kind])
    if lacks:
        return _row(asked, RDMA[asked.kind], trouble=f"{instead}; {lacks}")
    try:
        return _by(run, asked, TCP[asked.kind], instead)
    except Failed as error:
        return _row(asked, TCP[asked.kind], trouble=str(error), instead_of=instead)


def _no_rdma(run: Run, asked: Asked) -> str:
    """Why RDMA cannot be tried; "" where it can."""
    lacks = _lacking(run, asked, RDMA[asked.kind])
    if lacks:
        return lacks
    for node in (asked.source, asked.target):
        seen = run.seen(node)
        hcas = known(seen.hcas, f"the HCAs of {node.name}")
        for number in asked.rails:
            rail = node.rails[number]
            hca = hcas.get(rail.hca)
            if hca is None:
                return f"{node.name} has no HCA {rail.hca}"
            if "ACTIVE" not in hca.state:
                return f"the port of {rail.hca} on {node.name} is {hca.state or 'in no state that it tells'}"
            if _gid(node, number, seen) is None:
                return f"{rail.hca} on {node.name} has no RoCE v2 GID for {rail.ip}"
    return ""


def _gid(node: Node, number: int, seen: NodeFacts) -> int | None:
    rail = node.rails[number]
    if node.nccl_ib_gid_index is not None and number == 0:
        return node.nccl_ib_gid_index
    hca = known(seen.hcas, f"the HCAs of {node.name}").get(rail.hca)
    return None if hca is None else hca.roce_v2_index(str(rail.ip))


def _lacking(run: Run, asked: Asked, tool: str) -> str:
    without = [
        node.name
        for node in (asked.source, asked.target)
        if tool != bandwidth.TCP_LATENCY and not known(run.seen(node).tools, "its programs").get(tool)
    ]
    return f"{tool} is not installed on {' and '.join(without)}" if without else ""


def _by(run: Run, asked: Asked, tool: str, instead: str) -> Measured:
    """One tool's measurement, on all rails of the question at the same time. Raises Failed."""
    seconds = run.cluster.knobs.fabric_gate_seconds
    if tool != bandwidth.TCP_LATENCY:
        _serve(run, asked, tool, seconds)
    try:
        answers = _ask(run, asked, tool, seconds)
    finally:
        if tool != bandwidth.TCP_LATENCY:
            _shell(run.hosts[asked.target.name], shell(["systemctl", "stop", f"{objects.GATE_SERVER}.service"]))
    figures = []
    for number, answer in zip(asked.rails, answers, strict=True):
        try:
            if answer["code"] == 124:
                which = f"rail {number}: " if len(answers) > 1 else ""
                raise Failed(f"{which}no end within {seconds + bandwidth.MARGIN_SECONDS:g} s")
            figures.append(bandwidth.read(tool, answer["out"]))
        except bandwidth.Garbled as error:
            raise Failed(str(error)) from None
    each = tuple(round(figure.gbps, 2) for figure in figures if figure.gbps is not None)
    return _row(
        asked,
        tool,
        gbps=round(sum(each), 2) if each else None,
        usec=next((round(figure.usec, 2) for figure in figures if figure.usec is not None), None),
        each=each,
        rdma_mtu=min((figure.rdma_mtu for figure in figures if figure.rdma_mtu is not None), default=None),
        instead_of=instead,
    )


def _row(asked: Asked, tool: str, **found: Any) -> Measured:
    return Measured(asked.kind, asked.rails, asked.source.name, asked.target.name, tool, **found)


def _ways(run: Run, asked: Asked, here: Node, there: Node) -> list[dict[str, Any]]:
    seen = run.seen(here)
    return [
        {
            "hca": here.rails[number].hca,
            "gid": _gid(here, number, seen),
            "local": str(here.rails[number].ip),
            "remote": str(there.rails[number].ip),
            "port": objects.GATE_PORT + number,
        }
        for number in asked.rails
    ]


def _serve(run: Run, asked: Asked, tool: str, seconds: int) -> None:
    """Have the target wait; systemd says when it does."""
    ways = _ways(run, asked, asked.target, asked.source)
    host = run.hosts[asked.target.name]
    unit = objects.GATE_SERVER
    argv = unit_argv(unit, "serve", tool, ways, seconds, ["--service-type=notify"])
    stop = f"systemctl stop {unit}.service 2>/dev/null; systemctl reset-failed {unit}.service 2>/dev/null; "
    why = f"journalctl --quiet --unit={unit}.service --output=cat --lines=3 --no-pager _COMM=python3"
    ok, lines = _shell(host, StringCommand(f"{stop}{shlex.join(argv)} 2>/dev/null || {{ {why}; exit 1; }}"))
    if not ok:
        raise Failed(f"{asked.target.name}: {_last(lines)}")


def _ask(run: Run, asked: Asked, tool: str, seconds: int) -> list[dict[str, Any]]:
    """Have the source send, and return what each of its programs printed."""
    ways = _ways(run, asked, asked.source, asked.target)
    unit = objects.GATE_CLIENT
    argv = unit_argv(unit, "ask", tool, ways, seconds, ["--pipe", "--wait"])
    stop = f"systemctl stop {unit}.service 2>/dev/null; systemctl reset-failed {unit}.service 2>/dev/null; "
    ok, lines = _shell(run.hosts[asked.source.name], StringCommand(f"{stop}{shlex.join(argv)}"))
    for line in reversed(lines):
        if ok and line.startswith("["):
            try:
                found = json.loads(line)
            except ValueError:
                break
            if isinstance(found, list) and len(found) == len(ways):
                return found
    raise Failed(f"{asked.source.name}: {_last(lines)}")


def unit_argv(
    unit: str, word: str, tool: str, ways: Sequence[dict[str, Any]], seconds: int, how: Sequence[str]
) -> list[str]:
    """The transient unit of one side: bounded in time and memory, and the first to go where memory ends."""
    longest = seconds + bandwidth.READY_SECONDS + bandwidth.MARGIN_SECONDS + 5
    properties = [f"RuntimeMaxSec={longest:g}", f"TimeoutStartSec={bandwidth.READY_SECONDS + 5:g}"]
    properties += [f"MemoryMax={MEMORY_MAX_MIB}M", "OOMScoreAdjust=1000", "TimeoutStopSec=5"]
    asked = json.dumps({"tool": tool, "ways": list(ways), "seconds": seconds})
    program = Path(bandwidth.__file__).read_text(encoding="utf-8")
    argv = ["systemd-run", "--quiet", "--collect", f"--unit={unit}", *how]
    argv += [f"--description=Sparkpair: measure the rails ({tool})"]
    argv += [f"--property={one}" for one in properties]
    return [*argv, "--", "/usr/bin/python3", "-ISB", "-c", program, word, asked]


def _shell(host: Host, command: StringCommand) -> tuple[bool, list[str]]:
    try:
        ok, output = host.run_shell_command(command, _sudo=True)
    except (OSError, EOFError, SSHException) as error:
        return False, [f"the connection was lost: {error}"]
    return bool(ok), list(output.output_lines)


def _last(lines: Sequence[str]) -> str:
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][:300] if said else "it said nothing"


def _now(run: Run) -> str:
    _, lines = _shell(run.hosts[run.cluster.head.name], StringCommand("date +%Y-%m-%dT%H:%M:%S%z"))
    return _last(lines)


def _keep(run: Run, gate: Gate) -> None:
    head = run.hosts[run.cluster.head.name]
    directory = objects.FABRIC_GATE.rpartition("/")[0]
    made = StringCommand(f"install -d -m 700 {objects.VAR} && install -d -m 755 {directory}")
    document = text(gate)
    for command, given in ((made, None), (write(objects.FABRIC_GATE, document, "644"), document)):
        ok, output = head.run_shell_command(command, _sudo=True, _stdin=given)
        if not ok:
            raise UnknownFact(objects.FABRIC_GATE, Unknown(f"it could not be written: {output.stderr.strip()[-200:]}"))
    forget(head)


# As a step of a deploy


@node_operation
def measure_rails(run: Run) -> Commands:
    """Before the pair is started, where require_fabric_gate wants it and no result is there that holds."""
    if not run.node.is_head:
        noop("the rails are measured from the head")
        return
    if not (starts(run) and fabric_gate.due(run.cluster, run.all_seen())):
        noop("the rails have passed, or need not")
        return
    yield FunctionCommand(_measured_well, (run,), {})


@callback
def _measured_well(state: State, host: Host, run: Run) -> bool:
    del state
    gate = measure(run)
    wrong = failures(fabric_gate.judged(run.cluster, run.all_seen(), gate))
    for verdict in wrong:
        for line in verdict.text().splitlines():
            host.log_styled(line, fg="red", log_func=logger.error)
    if wrong:
        text = "the rails have not passed, and require_fabric_gate = True: the pair was not started"
        host.log_styled(text, fg="red", log_func=logger.error)
    return not wrong


# As a verb of its own


def refusal(run: Run, while_serving: bool) -> str:
    """Why the rails are not measured now; "" where they may be."""
    facts = run.all_seen()
    if fabric_gate.serves(facts, run.cluster.head.name) and not while_serving:
        seconds = run.cluster.knobs.fabric_gate_seconds * len(fabric_gate.plan(run.cluster))
        return (
            f"the pair serves, and this takes its rails for about {seconds} s\n"
            f"    Fix: sudo sparkpair stop on {run.cluster.head.name}, then run again; or --while-serving"
        )
    return lock.claim(run.hosts[run.cluster.head.name]) if lock.is_real_run() else ""


def verdicts(run: Run) -> Iterator[Any]:
    """Measure, and judge what was found."""
    yield from fabric_gate.judged(run.cluster, run.all_seen(), measure(run))
