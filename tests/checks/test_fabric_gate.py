"""What a measurement of the rails says, and when a start needs one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from checks import fabric_gate
from checks.check import Sight, When
from checks.fabric_gate import FIRMWARE, MEASURE, POWER, RDMA
from checks.preflight import refusals
from checks.verdict import Verdict, broken, holds, told
from facts.gate import BANDWIDTH, LATENCY, Collective, Gate, Measured
from facts.values import Unknown
from tests.checks.sights import HEAD, WORKER, port, sight, sound, without_ranks
from tests.plan.world import World

HEAD_PORTS = (port("enp1s0f0np0"), port("enP2p1s0f0np0"))
WORKER_PORTS = (port("enp1s0f1np1"), port("enP2p1s0f1np1"))
REQUIRED = {"require_fabric_gate": True}
AT = "2026-12-01T10:00:00+0000"


def bandwidth(gbps: float, rail: int = 0, back: bool = False, **more: Any) -> Measured:
    ends = (WORKER, HEAD) if back else (HEAD, WORKER)
    return Measured(BANDWIDTH, (rail,), *ends, "ib_write_bw", gbps, each=(gbps,), rdma_mtu=4096, **more)


def both(first: float, second: float) -> Measured:
    return Measured(BANDWIDTH, (0, 1), HEAD, WORKER, "ib_write_bw", first + second, each=(first, second), rdma_mtu=4096)


def latency(usec: float, mtu: int = 4096) -> Measured:
    return Measured(LATENCY, (0,), HEAD, WORKER, "ib_write_lat", usec=usec, rdma_mtu=mtu)


HEALTHY = (
    bandwidth(111.7), bandwidth(111.2, back=True), latency(1.9),
    bandwidth(108.9, 1), bandwidth(109.3, 1, back=True), both(80.4, 80.8),
)  # fmt: skip


def seen(
    *rows: Measured, serves: bool = False, knobs: Mapping[str, object] | None = None, starts: bool = True,
    collective: Collective | None = None, width: int = 4, speed: int = 200000,
) -> Sight:  # fmt: skip
    """The pair, with a result of its rails as they are."""

    def rest(world: World) -> None:
        if not serves:
            without_ranks(world)
            world.head["documents"]["/run/sparkpair/status.json"]["json"]["phase"] = "resting"

    worker = tuple(replace(one, link_width=width, speed_mbps=speed) for one in WORKER_PORTS)
    made = sight(sound(ports=HEAD_PORTS), sound(ports=worker), rest, knobs=knobs, starts=starts)
    of = fabric_gate.subject(made.cluster, made.facts)
    assert not isinstance(of, Unknown)
    # Where it is not what is asked about: one that passed.
    ran = replace(collective or Collective("nccl", "IB", 11.5), image=made.cluster.image)
    gate = Gate(AT, of, rows, ran) if rows else None
    return replace(made, facts={**made.facts, HEAD: replace(made.facts[HEAD], gate=gate)})


def judged(*rows: Measured, **more: Any) -> list[Verdict]:
    found = seen(*rows, **more)
    gate = found.facts[HEAD].gate
    assert isinstance(gate, Gate)
    verdicts = list(fabric_gate.judged(found.cluster, found.facts, gate))
    return verdicts if "collective" in more else verdicts[:-1]


def test_healthy_rails_pass() -> None:
    """The published figures: each above 90, both above 150 (NET-12, S32)."""
    assert judged(*HEALTHY)[0] == holds("", "rail 0, spark-a to spark-b: 111.7 Gb/s by ib_write_bw, wanted 90")
    assert judged(*HEALTHY)[-1] == holds(
        "", "rails 0 and 1, spark-a to spark-b together: 161.2 Gb/s by ib_write_bw (80.4 and 80.8), wanted 150"
    )
    found = seen(*HEALTHY)
    gate = found.facts[HEAD].gate
    assert isinstance(gate, Gate) and fabric_gate.passed(found.cluster, found.facts, gate)


DIRECTION = "rail 0, spark-a to spark-b"
BELOW = "Gb/s by ib_write_bw, wanted 90 (fabric_gate_gbps)"


@pytest.mark.report("NET-22")
def test_a_degraded_port_is_told_by_its_figure() -> None:
    """13 Gb/s over a link that says 200 and four lanes: only power removal helps."""
    [verdict] = judged(bandwidth(13.23))
    assert verdict == broken(
        "",
        f"{DIRECTION}: 13.2 {BELOW}; link and PCIe look healthy, so a ConnectX-7 of the two has come up degraded",
        POWER,
    )


@pytest.mark.report("NET-22")
def test_so_is_one_that_was_measured_by_tcp() -> None:
    """12.86 Gb/s by iperf3, of the same report."""
    row = replace(bandwidth(12.86), tool="iperf3", rdma_mtu=None)
    [verdict] = judged(row)
    assert (verdict.fix, verdict.statement.startswith(f"{DIRECTION}: 12.9 Gb/s by iperf3, wanted 25")) == (POWER, True)


@pytest.mark.report("NET-12")
@pytest.mark.report("NET-26")
def test_lanes_and_links_are_named_before_the_figure_is_explained() -> None:
    """What sysfs says of the PCIe link and of the cable is the nearer cause."""
    assert judged(bandwidth(50.1), width=2) == [
        broken("", f"{DIRECTION}: 50.1 {BELOW}; a rail has 4 PCIe lanes: enp1s0f1np1 has 2", FIRMWARE)
    ]
    assert judged(bandwidth(13.2), speed=40000) == [
        broken(
            "", f"{DIRECTION}: 13.2 {BELOW}; the link itself is slower: enp1s0f1np1 at 40 Gb/s",
            f"use a cable for 200 Gb/s, seated on both ends; then: {MEASURE}",
        )
    ]  # fmt: skip


@pytest.mark.report("NET-12")
def test_half_of_a_rail_and_two_rails_that_share_one() -> None:
    """Where nothing says why, the figure does."""
    [half] = judged(bandwidth(52.0))
    assert half == broken(
        "", f"{DIRECTION}: 52.0 {BELOW}: about half of a rail, as one on two PCIe lanes carries", FIRMWARE
    )
    *_, together = judged(bandwidth(98.0), bandwidth(98.2, back=True), both(49.5, 49.8))
    assert together == broken(
        "",
        "rails 0 and 1, spark-a to spark-b together: 99.3 Gb/s by ib_write_bw (49.5 and 49.8), wanted 150 "
        "(fabric_gate_both_gbps): no more than one of them alone (98.2), so they share what one has",
        FIRMWARE,
    )
    *_, less = judged(bandwidth(98.0), both(70.0, 70.0))
    assert not less.holds and "share" not in less.statement


@pytest.mark.report("NET-10")
def test_a_small_mtu_of_roce_is_named() -> None:
    """1024 where 4096 fits: the cause where the figure is low, else told."""
    [low] = judged(replace(bandwidth(70.0), rdma_mtu=1024))
    assert "RoCE's own MTU is 1024 there, and rail_mtu = 9000 allows 4096" in low.statement and not low.told
    assert judged(latency(1.9, mtu=1024)) == [
        holds("", f"{DIRECTION}: 1.9 us by ib_write_lat"),
        told(
            "", f"{DIRECTION}: RoCE's own MTU is 1024, and rail_mtu = 9000 allows 4096",
            f"run deploy.py, which sets the MTU on both ends; then: {MEASURE}",
        ),
    ]  # fmt: skip
    assert [fabric_gate.rdma_mtu(size) for size in (1280, 1500, 4200, 9000)] == [1024, 1024, 4096, 4096]


def test_a_slow_answer_is_told() -> None:
    """For a Spark no latency is published, so none is refused."""
    [verdict] = judged(latency(55.0))
    assert verdict == told(
        "", f"{DIRECTION}: 55.0 us by ib_write_lat, where RoCE takes less than 20", "does anything else use the rail?"
    )


def test_other_low_figures_have_no_cause_made_up() -> None:
    """What is left is to look, and to measure again."""
    [verdict] = judged(bandwidth(80.0))
    assert verdict == broken(
        "", f"{DIRECTION}: 80.0 {BELOW}",
        f"does anything else use the rail, or hold the processor? Then measure again: {MEASURE}",
    )  # fmt: skip


def test_tcp_instead_of_rdma_says_why() -> None:
    """A program that is not installed is told; RDMA that does not work is refused, unless TCP was asked for."""
    without = replace(bandwidth(60.0), tool="iperf3", instead_of="ib_write_bw is not installed on spark-b")
    failing = replace(without, instead_of="ib_write_bw: spark-b: Unable to find the Infiniband/RoCE device")
    assert [verdict.told for verdict in judged(without)] == [False, True]
    assert judged(failing)[1] == broken(
        "",
        "the rails were measured by TCP, not by RDMA: ib_write_bw: spark-b: Unable to find the Infiniband/RoCE device",
        RDMA,
    )
    assert judged(failing, knobs={"allow_tcp": True})[1].told


@pytest.mark.parametrize(
    ("trouble", "fix"),
    [
        (
            "ib_write_bw is not installed on spark-a; iperf3 is not installed on spark-a",
            "sudo apt-get install perftest iperf3",
        ),
        ("spark-a: 1024 MiB of memory are available, and 2048 must be", "stop the pair"),
        ("spark-a: iperf3: unable to connect to server: Connection refused", "does the other end answer"),
    ],
)
def test_what_could_not_be_measured_is_no_figure(trouble: str, fix: str) -> None:
    """And has its own remedy."""
    [verdict] = judged(replace(bandwidth(0.0), gbps=None, trouble=trouble))
    assert verdict.holds is False and verdict.statement == f"{DIRECTION} could not be measured: {trouble}"
    assert verdict.fix.startswith(fix)


@pytest.mark.report("NET-05")
@pytest.mark.report("NET-11")
@pytest.mark.report("RDMA-01")
@pytest.mark.report("RDMA-03")
@pytest.mark.parametrize(
    ("collective", "mark", "words"),
    [
        (Collective("nccl", "IB", 11.5), "holds", "(nccl) ended well over IB, 11.50 GB/s"),
        (Collective("gloo", "", 0.4), "holds", "(gloo) ended well, 0.40 GB/s"),
        (Collective("nccl", "", None, "no end within 60 s"), "refused", "did not end well: no end within 60 s"),
        (Collective("nccl", "Socket", 2.1), "refused", "NCCL took sockets, not the HCAs"),
        (Collective("nccl", "IB", 3.04), "refused", "rails that carry their data over the HCAs reach many times"),
        (
            Collective("nccl", "IB", 11.5, "", {"NCCL_IB_USE_INLINE": "1"}),
            "told",
            "the image's own /etc/nccl.conf sets NCCL_IB_USE_INLINE=1",
        ),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else None,
)
def test_a_collective_in_the_serving_image(collective: Collective, mark: str, words: str) -> None:
    """Pings and perftest pass where a collective hangs, takes sockets, or crawls."""
    first = judged(bandwidth(111.0), collective=collective)[1]
    assert words in first.statement
    assert ("told" if first.told else "holds" if first.holds else "refused") == mark


# When a start needs one


def words(found: Sight) -> list[str]:
    """What preflight refuses of the rails."""
    return [
        verdict.statement
        for verdict in refusals(found.cluster, found.facts, starts=found.starts)
        if "measured" in verdict.statement or "Gb/s" in verdict.statement
    ]


@pytest.mark.report("NET-22")
def test_a_pair_that_serves_is_not_restarted_without_a_result() -> None:
    """Where nothing serves the deploy measures; where the pair serves, it is refused with what to do."""
    assert words(seen(serves=True, knobs=REQUIRED)) == ["the rails were never measured, and require_fabric_gate = True"]
    assert words(seen(serves=False, knobs=REQUIRED)) == []
    assert words(seen(serves=True)) == []
    assert words(seen(serves=True, knobs=REQUIRED, starts=False)) == []
    assert words(seen(bandwidth(13.2), serves=True)) == []
    [failed] = words(seen(bandwidth(13.2), serves=True, knobs=REQUIRED))
    assert "come up degraded" in failed
    assert words(seen(*HEALTHY, serves=True, knobs=REQUIRED)) == []


def test_it_is_due_until_a_result_holds() -> None:
    """Never measured, failed, or of other rails; not while the pair serves, and not unless it is required."""

    def due(found: Sight) -> bool:
        return fabric_gate.due(found.cluster, found.facts)

    assert due(seen(knobs=REQUIRED)) and due(seen(bandwidth(13.2), knobs=REQUIRED))
    assert not due(seen(*HEALTHY, knobs=REQUIRED))
    assert not due(seen()) and not due(seen(knobs=REQUIRED, serves=True))
    other = seen(*HEALTHY, knobs=REQUIRED)
    gate = other.facts[HEAD].gate
    assert isinstance(gate, Gate)
    never = replace(other.facts[HEAD], gate=replace(gate, collective=None))
    assert due(replace(other, facts={**other.facts, HEAD: never}))
    worker = replace(other.facts[WORKER], host=sound(ports=WORKER_PORTS, kernel="7.0.0-1019-nvidia"))
    assert due(replace(other, facts={**other.facts, WORKER: worker}))


@pytest.mark.report("KRN-02")
def test_a_result_of_other_rails_is_not_believed() -> None:
    """Another kernel or firmware is another fabric; the words say which."""
    found = seen(*HEALTHY, serves=True, knobs=REQUIRED)
    ports = tuple(replace(one, firmware="28.47.1000") for one in WORKER_PORTS)
    worker = replace(found.facts[WORKER], host=sound(ports=ports, kernel="7.0.0-1019-nvidia"))
    [refused] = words(replace(found, facts={**found.facts, WORKER: worker}))
    assert refused == (
        "the rails were measured 2026-12-01 10:00, and are others since: "
        "kernel of spark-b was 6.17.0-1031-nvidia, and is 7.0.0-1019-nvidia; "
        "rail 0 of spark-b was enp1s0f1np1, rocep1s0f1, 10.200.0.2/24, MTU 9000, firmware 28.46.1006, "
        "and is enp1s0f1np1, rocep1s0f1, 10.200.0.2/24, MTU 9000, firmware 28.47.1000; "
        "rail 1 of spark-b was enP2p1s0f1np1, roceP2p1s0f1, 10.200.1.2/24, MTU 9000, firmware 28.46.1006, "
        "and is enP2p1s0f1np1, roceP2p1s0f1, 10.200.1.2/24, MTU 9000, firmware 28.47.1000, "
        "and require_fabric_gate = True"
    )


def test_doctor_tells_what_is_known() -> None:
    """Never measured is told; a result is told whole, and a bad one is a failure whatever the knob says."""
    [told_of] = fabric_gate._told(seen())
    assert told_of == told("", "the rails were never measured", MEASURE)
    first, *rest = fabric_gate._told(seen(*HEALTHY))
    assert first == holds(HEAD, "the rails were measured 2026-12-01 10:00, as they are now")
    assert len(rest) == len(HEALTHY) + 1 and all(one.holds for one in rest)
    assert [one.holds for one in fabric_gate._told(seen(bandwidth(13.2)))] == [True, False, True]


def test_what_cannot_be_read_is_not_no() -> None:
    """A file of another form, and a kernel that is not known."""
    found = seen(*HEALTHY, serves=True, knobs=REQUIRED)
    head = replace(found.facts[HEAD], gate=Unknown("the probe's document cannot be read: it is of another format"))
    [verdict] = fabric_gate._required(replace(found, facts={**found.facts, HEAD: head}))
    assert verdict.holds is None and "the rails' last measurement could not be read" in verdict.statement
    blind = replace(found.facts[WORKER], host=sound(ports=WORKER_PORTS, kernel=Unknown("no uname")))
    [verdict] = fabric_gate._required(replace(found, facts={**found.facts, WORKER: blind}))
    assert verdict.holds is None and "the kernel of spark-b: no uname" in verdict.statement


def test_what_is_measured() -> None:
    """Each rail both ways and its latency, then both at once."""
    plan = [(one.kind, one.rails, one.source.name) for one in fabric_gate.plan(seen().cluster)]
    assert plan == [
        (BANDWIDTH, (0,), HEAD), (BANDWIDTH, (0,), WORKER), (LATENCY, (0,), HEAD),
        (BANDWIDTH, (1,), HEAD), (BANDWIDTH, (1,), WORKER), (LATENCY, (1,), HEAD),
        (BANDWIDTH, (0, 1), HEAD),
    ]  # fmt: skip


def test_the_questions_are_asked_where_they_matter() -> None:
    """Doctor tells; preflight alone refuses."""
    assert [(check.name, check.when) for check in fabric_gate.CHECKS] == [
        ("fabric.gate", frozenset({When.DOCTOR})),
        ("fabric.gate-required", frozenset({When.PREFLIGHT})),
    ]
