"""The gate of the rails: what is measured, what a result is true of, and what it says. The thresholds are knobs, so a
result is judged anew whenever it is looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from checks import pair
from checks.check import Check, Sight, When
from checks.verdict import Verdict, broken, failures, holds, told, unknown
from facts.gate import BANDWIDTH, LATENCY, Gate, Measured
from facts.host import Port
from facts.values import NodeFacts, Unknown, UnknownFact
from spec.cluster import Cluster, Node

DEGRADED_GBPS = (8.0, 25.0)
"""What a ConnectX-7 carries that came up degraded, by RDMA and TCP alike, while its link says 200 Gb/s and its PCIe
Gen5 x4 (field reports: NET-22; NVIDIA/dgx-spark-playbooks pull request 108: 13.23 and 12.86)."""
HEALTHY_MBPS, HEALTHY_LANES = 100_000, 4
ALONE = 1.15
"""Both rails together carry more than this times the faster one alone, or they share one PCIe link (field reports:
NET-12: 98 Gb/s by one, 161 by both)."""
HALF = (0.4, 0.65)
"""Of the threshold: what half of a rail's lanes leave (field reports: NET-12, a second controller at x2)."""
SLOW_USEC = 20.0
"""RoCE between two nodes takes some microseconds (1.8 between ConnectX-5, linux-rdma/perftest pull request 98); for a
Spark nothing is published, so a slow answer is told and refuses nothing."""
WRONG_PATH_GIGABYTES = 4.0
"""GB/s of bus bandwidth at which collectives stood where the HCAs for the data were not named: 3.04, and 23.74 with
them (field reports: NET-11)."""

MEASURE = "make fabric-test"
INSTALL = "sudo apt-get install perftest on both nodes, then measure again: make fabric-test"
RDMA = "python doctor.py says what RDMA lacks; allow_tcp = True would have the pair serve over TCP"
POWER = (
    "shut both nodes down and pull their power plugs for some minutes; a reboot does not help, and mlx5's warning of "
    f"27 W means nothing either way. Then measure again: {MEASURE}"
)
FIRMWARE = (
    "update the firmware of both nodes (sudo fwupdmgr refresh; sudo fwupdmgr update; a BIOS of before 2026-04 may give "
    f"the second controller two lanes), pull their power plugs once, then measure again: {MEASURE}"
)


@dataclass(frozen=True)
class Asked:
    """One measurement that is to be made, by which rails and in which direction."""

    kind: str
    rails: tuple[int, ...]
    source: Node
    target: Node


def plan(cluster: Cluster) -> list[Asked]:
    """All measurements, between every two nodes: each rail both ways and its latency, then all rails together."""
    found = []
    for one, other in combinations(cluster.nodes, 2):
        rails = range(min(len(one.rails), len(other.rails)))
        for number in rails:
            found.append(Asked(BANDWIDTH, (number,), one, other))
            found.append(Asked(BANDWIDTH, (number,), other, one))
            found.append(Asked(LATENCY, (number,), one, other))
        if len(rails) > 1:
            found.append(Asked(BANDWIDTH, tuple(rails), one, other))
    return found


def rdma_mtu(rail_mtu: int) -> int:
    """RoCE's own MTU on a rail: the largest that fits below the netdev's, 58 bytes of headers left out."""
    return max((size for size in (256, 512, 1024, 2048, 4096) if size + 58 <= rail_mtu), default=256)


# What a result is true of


def subject(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> dict[str, str] | Unknown:
    """The rails in words that are compared: another netdev, address, MTU, kernel or firmware is another fabric."""
    found = {}
    for node in cluster.nodes:
        seen = facts[node.name]
        if isinstance(seen.host.kernel, Unknown):
            return Unknown(f"the kernel of {node.name}: {seen.host.kernel.reason}")
        if isinstance(seen.host.ports, Unknown):
            return Unknown(f"the ports of {node.name}: {seen.host.ports.reason}")
        found[f"kernel of {node.name}"] = seen.host.kernel
        for number, rail in enumerate(node.rails):
            port = _port(node, number, seen)
            firmware = port.firmware if port is not None else ""
            found[f"rail {number} of {node.name}"] = (
                f"{rail.netdev}, {rail.hca}, {rail.address}, MTU {cluster.knobs.rail_mtu}, "
                f"firmware {firmware or 'unknown'}"
            )
    return found


def differences(gate: Gate, now: Mapping[str, str]) -> list[str]:
    """What is another now than when the result was made."""
    return [
        f"{name} was {gate.of.get(name, 'not there')}, and is {now.get(name, 'not there')}"
        for name in dict.fromkeys([*gate.of, *now])
        if gate.of.get(name) != now.get(name)
    ]


def _port(node: Node, number: int, seen: NodeFacts) -> Port | None:
    ports = () if isinstance(seen.host.ports, Unknown) else seen.host.ports
    return next((port for port in ports if port.netdev == node.rails[number].netdev), None)


def serves(facts: Mapping[str, NodeFacts], head: str) -> bool:
    """Whether a rank runs on some node, or the keeper is about to start one: the rails are then in use."""
    for seen in facts.values():
        docker = seen.docker
        containers = () if isinstance(docker, Unknown) or isinstance(docker.containers, Unknown) else docker.containers
        if any(one.is_ours and one.state == "running" for one in containers):
            return True
    try:
        now = pair.accepted(facts[head])
    except UnknownFact:
        return False
    return now.desired != "stop" and now.phase not in ("empty", "resting", "silent")


# What it says


def judged(cluster: Cluster, facts: Mapping[str, NodeFacts], gate: Gate) -> Iterator[Verdict]:
    """Each measurement of a result against what is wanted now, and the collective."""
    for row in gate.measured:
        yield from _row(cluster, facts, row, gate.measured)
    reasons = [row.instead_of for row in gate.measured if row.instead_of]
    if reasons:
        yield _instead(cluster, reasons[0])
    yield from _collective(cluster, gate)


def passed(cluster: Cluster, facts: Mapping[str, NodeFacts], gate: Gate) -> bool:
    """Whether everything holds that may forbid a start."""
    return bool(gate.measured) and not failures(judged(cluster, facts, gate))


def _row(
    cluster: Cluster, facts: Mapping[str, NodeFacts], row: Measured, rows: tuple[Measured, ...]
) -> Iterator[Verdict]:
    what = _name(row)
    if row.trouble:
        yield broken("", f"{what} could not be measured: {row.trouble}", _after_trouble(row))
    elif row.kind == LATENCY:
        yield from _latency(cluster, row, what)
    elif len(row.rails) > 1:
        yield _together(cluster, row, rows, what)
    else:
        yield _alone(cluster, facts, row, what)


def _name(row: Measured) -> str:
    rails = "rail" if len(row.rails) == 1 else "rails"
    return f"{rails} {' and '.join(map(str, row.rails))}, {row.source} to {row.target}"


def _after_trouble(row: Measured) -> str:
    if "not installed" in row.trouble:
        return "sudo apt-get install perftest iperf3 on both nodes, then measure again: make fabric-test"
    if "of memory are available" in row.trouble:
        return f"stop the pair (sudo sparkpair stop on the head), or what else holds memory there; then: {MEASURE}"
    return f"does the other end answer (python doctor.py)? A firewall must let the peer in on the rail; then: {MEASURE}"


def _alone(cluster: Cluster, facts: Mapping[str, NodeFacts], row: Measured, what: str) -> Verdict:
    wanted = cluster.knobs.fabric_gate_gbps if row.by_rdma else cluster.knobs.fabric_gate_tcp_gbps
    knob = "fabric_gate_gbps" if row.by_rdma else "fabric_gate_tcp_gbps"
    gbps = row.gbps or 0.0
    said = f"{what}: {gbps:.1f} Gb/s by {row.tool}"
    if gbps >= wanted:
        return holds("", f"{said}, wanted {wanted:g}")
    ends = [(cluster.node(name), facts[name]) for name in (row.source, row.target) if name in facts]
    ports = [port for node, seen in ends if (port := _port(node, row.rails[0], seen)) is not None]
    less = f"{said}, wanted {wanted:g} ({knob})"
    narrow = [port for port in ports if port.link_width is not None and port.link_width < HEALTHY_LANES]
    slow = [port for port in ports if port.speed_mbps is not None and port.speed_mbps < HEALTHY_MBPS]
    mtu = rdma_mtu(cluster.knobs.rail_mtu)
    if narrow:
        lanes = ", ".join(f"{port.netdev} has {port.link_width}" for port in narrow)
        return broken("", f"{less}; a rail has {HEALTHY_LANES} PCIe lanes: {lanes}", FIRMWARE)
    if slow:
        speeds = ", ".join(f"{port.netdev} at {(port.speed_mbps or 0) / 1000:g} Gb/s" for port in slow)
        return broken(
            "",
            f"{less}; the link itself is slower: {speeds}",
            f"use a cable for 200 Gb/s, seated on both ends; then: {MEASURE}",
        )
    if DEGRADED_GBPS[0] <= gbps <= DEGRADED_GBPS[1]:
        text = f"{less}; link and PCIe look healthy, so a ConnectX-7 of the two has come up degraded"
        return broken("", text, POWER)
    if row.rdma_mtu is not None and row.rdma_mtu < mtu:
        text = f"{less}; RoCE's own MTU is {row.rdma_mtu} there, and rail_mtu = {cluster.knobs.rail_mtu} allows {mtu}"
        return broken("", text, f"run deploy.py, which sets the MTU on both ends; then: {MEASURE}")
    if row.by_rdma and HALF[0] * wanted <= gbps <= HALF[1] * wanted:
        return broken("", f"{less}: about half of a rail, as one on two PCIe lanes carries", FIRMWARE)
    return broken("", less, f"does anything else use the rail, or hold the processor? Then measure again: {MEASURE}")


def _together(cluster: Cluster, row: Measured, rows: tuple[Measured, ...], what: str) -> Verdict:
    gbps = row.gbps or 0.0
    each = " and ".join(f"{part:.1f}" for part in row.each)
    said = f"{what} together: {gbps:.1f} Gb/s by {row.tool} ({each})"
    if not row.by_rdma:
        return holds("", said)  # nothing is published that it could be held against
    wanted = cluster.knobs.fabric_gate_both_gbps
    if gbps >= wanted:
        return holds("", f"{said}, wanted {wanted:g}")
    less = f"{said}, wanted {wanted:g} (fabric_gate_both_gbps)"
    single = [
        one.gbps
        for one in rows
        if one.kind == BANDWIDTH and len(one.rails) == 1 and one.gbps and {one.source, one.target} == _ends(row)
    ]
    if single and gbps <= ALONE * max(single):
        text = f"{less}: no more than one of them alone ({max(single):.1f}), so they share what one has"
        return broken("", text, FIRMWARE)
    return broken("", less, f"does anything else use the rails, or hold the processor? Then measure again: {MEASURE}")


def _ends(row: Measured) -> set[str]:
    return {row.source, row.target}


def _latency(cluster: Cluster, row: Measured, what: str) -> Iterator[Verdict]:
    usec = row.usec or 0.0
    said = f"{what}: {usec:.1f} us by {row.tool}" + ("" if row.by_rdma else ", there and back")
    if row.by_rdma and usec > SLOW_USEC:
        yield told("", f"{said}, where RoCE takes less than {SLOW_USEC:g}", "does anything else use the rail?")
    else:
        yield holds("", said)
    mtu = rdma_mtu(cluster.knobs.rail_mtu)
    if row.rdma_mtu is not None and row.rdma_mtu < mtu:
        text = f"{what}: RoCE's own MTU is {row.rdma_mtu}, and rail_mtu = {cluster.knobs.rail_mtu} allows {mtu}"
        yield told("", text, f"run deploy.py, which sets the MTU on both ends; then: {MEASURE}")


def _instead(cluster: Cluster, reason: str) -> Verdict:
    said = f"the rails were measured by TCP, not by RDMA: {reason}"
    if "not installed" in reason:
        return told("", said, INSTALL)
    if cluster.knobs.allow_tcp:
        return told("", said, "allow_tcp = True lets the pair serve so, at a fraction of its speed")
    return broken("", said, RDMA)


def _collective(cluster: Cluster, gate: Gate) -> Iterator[Verdict]:
    found = gate.collective
    if found is None or found.image != cluster.image:
        yield told("", "no collective has run in the image that is to serve", MEASURE)
        return
    if found.lacking:
        yield told("", f"no collective can run in the image: {found.lacking}", "an engine without torch needs none")
        return
    for name, value in found.settings.items():
        yield told(
            "", f"the image's own /etc/nccl.conf sets {name}={value}",
            "NCCL reads that file for every launch; collectives froze with NCCL_IB_USE_INLINE=1 in it. State "
            f"{name} in engine_env to have another value, or use an image without the file",
        )  # fmt: skip
    what = f"an all-reduce of all ranks in the serving image ({found.backend})"
    if found.trouble:
        fix = (
            "where the rails themselves pass, it is the image's NCCL settings, or GID, memlock and /dev/infiniband: "
            f"python doctor.py. Then measure again: {MEASURE}"
        )
        yield broken("", f"{what} did not end well: {found.trouble}", fix)
        return
    rate = "" if found.gigabytes_per_second is None else f", {found.gigabytes_per_second:.2f} GB/s"
    over = f" over {found.transport}" if found.transport else ""
    said = f"{what} ended well{over}{rate}"
    if found.transport == "Socket" and found.backend == "nccl":
        text = f"{said}: NCCL took sockets, not the HCAs"
        yield told("", text, RDMA) if cluster.knobs.allow_tcp else broken("", text, RDMA)
    elif found.transport == "IB" and (found.gigabytes_per_second or 0.0) < WRONG_PATH_GIGABYTES:
        text = f"{said}; rails that carry their data over the HCAs reach many times that"
        yield broken("", text, f"does engine_env or the image override NCCL_IB_HCA? Then measure again: {MEASURE}")
    else:
        yield holds("", said)


# As a question


def due(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> bool:
    """Whether a start needs a measurement that is not there, and nothing serves that it would disturb."""
    if not cluster.knobs.require_fabric_gate or serves(facts, cluster.head.name):
        return False
    gate, now = facts[cluster.head.name].gate, subject(cluster, facts)
    if gate is None or isinstance(gate, Unknown) or isinstance(now, Unknown):
        return True
    tried = gate.collective is not None and gate.collective.image == cluster.image
    return not tried or bool(differences(gate, now)) or not passed(cluster, facts, gate)


def _told(sight: Sight) -> Iterator[Verdict]:
    """What is known of the rails, for whoever asks everything."""
    if _can_be_judged(sight):
        yield from _known(sight.cluster, sight.facts, required=sight.cluster.knobs.require_fabric_gate)


def _required(sight: Sight) -> Iterator[Verdict]:
    """Whether the pair may be started: where nothing serves, the deploy measures by itself."""
    if not (sight.cluster.knobs.require_fabric_gate and sight.starts and _can_be_judged(sight)):
        return
    if not due(sight.cluster, sight.facts):
        yield from _known(sight.cluster, sight.facts, required=True)


def _can_be_judged(sight: Sight) -> bool:
    return sight.whole and all(node.rails for node in sight.cluster.nodes)


def _known(cluster: Cluster, facts: Mapping[str, NodeFacts], *, required: bool) -> Iterator[Verdict]:
    head = cluster.head.name
    gate, now = facts[head].gate, subject(cluster, facts)
    fix = (
        f"sudo sparkpair stop on {head}, {MEASURE}, then deploy; or python fabric_test.py --while-serving"
        if serves(facts, head)
        else MEASURE
    )

    def lacking(statement: str) -> Verdict:
        return broken("", f"{statement}, and require_fabric_gate = True", fix) if required else told("", statement, fix)

    if isinstance(gate, Unknown):
        yield replace(unknown(head, "the rails' last measurement", gate), fix=fix)
    elif gate is None:
        yield lacking("the rails were never measured")
    elif isinstance(now, Unknown):
        yield unknown(head, "what the rails' measurement is true of", now)
    elif changed := differences(gate, now):
        yield lacking(f"the rails were measured {_day(gate.at)}, and are others since: {'; '.join(changed)}")
    else:
        yield holds(head, f"the rails were measured {_day(gate.at)}, as they are now")
        yield from judged(cluster, facts, gate)


def _day(at: str) -> str:
    return at[:16].replace("T", " ")


_REPORTS = ("NET-05", "NET-10", "NET-11", "NET-12", "NET-22", "RDMA-03")

CHECKS: tuple[Check, ...] = (
    Check(
        "fabric.gate",
        "Do the rails carry what they should, and did a collective in the serving image end well?",
        _told,
        frozenset({When.DOCTOR}),
        _REPORTS,
    ),
    Check(
        "fabric.gate-required",
        "With require_fabric_gate: have the rails passed, as they are now?",
        _required,
        frozenset({When.PREFLIGHT}),
        _REPORTS,
    ),
)
