"""RDMA readiness: what is told of each part, and that a sound pair is told so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from checks import rdma
from facts.host import HostFacts
from facts.values import STATUS
from node import wire
from tests.checks.sights import HEAD, WORKER, port, said, sight, sound, statements
from tests.plan.world import World

DEVICES = ("issm0", "rdma_cm", "umad0", "uverbs0", "uverbs1")
GEN5 = {"link_width": 4, "link_speed": "32.0 GT/s PCIe", "active_mtu": 4096}


def rails(number: int = 0, **changes: Any) -> HostFacts:
    """A node with the pair's rails in port f0 or f1; what is changed is rail 0's."""
    names = (f"enp1s0f{number}np{number}", f"enP2p1s0f{number}np{number}")
    hcas = (f"rocep1s0f{number}", f"roceP2p1s0f{number}")
    ports = (port(names[0], hca=hcas[0], **{**GEN5, **changes}), port(names[1], hca=hcas[1], **GEN5))
    return sound(ports=ports, devices=DEVICES, nccl_conf=None)


def pair(**changes: Any) -> tuple[HostFacts, HostFacts]:
    """A sound head, and a worker with something else."""
    return rails(), rails(1, **changes)


def test_a_sound_pair_is_told_so() -> None:
    seen = sight(*pair())
    for check in rdma.CHECKS:
        assert said(check.judge(seen)) == [], check.name
    assert statements(rdma.devices(seen))[0] == f"{HEAD}: /dev/infiniband has uverbs0, uverbs1"
    assert statements(rdma.ports(seen))[-1] == f"{WORKER}: rail 1: the port of roceP2p1s0f1 is ACTIVE"
    assert statements(rdma.mtu(seen))[0] == f"{HEAD}: rail 0: rocep1s0f0 has an RDMA MTU of 4096"
    assert statements(rdma.link(seen))[0].endswith("has 200 Gb/s, PCIe x4 of 32.0 GT/s PCIe")
    assert statements(rdma.both(seen))[0].startswith("NCCL uses 1 of 2 rails, as nccl_rails says.")


@pytest.mark.report("RDMA-01", "RDMA-05")
def test_no_device() -> None:
    bare = sound(devices=(), ports=())
    assert said(rdma.devices(sight(worker=bare))) == [
        f"refused  {WORKER}: there is no /dev/infiniband: a container gets no RDMA device, and does not start\n"
        "    Fix: sudo modprobe -a ib_uverbs mlx5_ib rdma_ucm; rdma link; DGX OS loads them by itself"
    ]
    [found] = said(rdma.devices(sight(worker=sound(devices=("rdma_cm",), ports=()))))
    assert found.startswith(f"told  {WORKER}: /dev/infiniband has rdma_cm, and no uverbs: NCCL finds no device")


def hca(**changes: Any) -> Callable[[World], None]:
    """Rail 0's HCA on the worker as the probe tells it."""
    return lambda world: world.worker["hcas"]["rocep1s0f1"].update(changes)


def no_hca(world: World) -> None:
    world.worker["hcas"].pop("rocep1s0f1")


@pytest.mark.report("RDMA-01", "NET-18")
def test_a_port_that_is_down() -> None:
    """Told where TCP is allowed."""
    [found] = said(rdma.ports(sight(change=hca(state="1: DOWN"))))
    assert found.startswith(f"refused  {WORKER}: rail 0: the port of rocep1s0f1 is 1: DOWN, wanted ACTIVE\n")
    [found] = said(rdma.ports(sight(change=no_hca)))
    assert found.startswith(f"refused  {WORKER}: rail 0: there is no HCA rocep1s0f1 (present: roceP2p1s0f1)\n")
    [found] = said(rdma.ports(sight(change=no_hca, knobs={"allow_tcp": True})))
    assert found.startswith("told")


@pytest.mark.report("NET-10")
def test_rdmas_own_mtu() -> None:
    """As S-rows of the kernel: 1500 leaves 1024, 4200 all of it."""
    assert [rdma.roce_mtu(mtu) for mtu in (1280, 1500, 2200, 4200, 9000)] == [1024, 1024, 2048, 4096, 4096]
    [found] = said(rdma.mtu(sight(*pair(active_mtu=1024))))
    assert f"refused  {WORKER}: rail 0: rocep1s0f1 has an RDMA MTU of 1024, wanted 4096" in found
    [found] = said(rdma.mtu(sight(*pair(active_mtu=1024), knobs={"rail_mtu": 1500})))[:1]
    assert found.startswith("told  rail_mtu = 1500 leaves RDMA packets of 1024 bytes; 4200 and more allow 4096")


@pytest.mark.report("NET-26")
def test_a_slower_link() -> None:
    [found] = said(rdma.link(sight(*pair(speed_mbps=40000))))
    assert found.startswith(f"told  {WORKER}: rail 0: the link of enp1s0f1np1 runs at 40 Gb/s, and the port can 200\n")
    assert "Amphenol NJAAKK-N911" in found


@pytest.mark.report("NET-12")
@pytest.mark.parametrize("change", [{"link_width": 2}, {"link_speed": "16.0 GT/s PCIe"}])
def test_a_narrow_link(change: dict[str, Any]) -> None:
    [found] = said(rdma.link(sight(*pair(**change))))
    assert "usual are 4 of 32.0 GT/s: half the lanes carry half the data" in found


def test_what_the_kernel_does_not_say_is_not_judged() -> None:
    found = said(rdma.link(sight(*pair(speed_mbps=None, link_width=None, link_speed="", active_mtu=None))))
    assert found == []


@pytest.mark.report("RDMA-02", "RDMA-05")
def test_locked_memory_is_the_launchs_own() -> None:
    """Whatever limit Docker has; it is said, so that nobody looks there again."""
    found = statements(rdma.locked_memory(sight()))
    assert found[0].startswith(f"{HEAD}: the launch has locked memory without limit, IPC_LOCK and /dev/infiniband. ")
    assert found[0].endswith("Where an engine says Cannot allocate memory of ibv_reg_mr all the same, it is the kernel")


@pytest.mark.report("RDMA-03")
def test_a_file_that_changes_nccl() -> None:
    worker = sound(nccl_conf="# tuned\nNCCL_IB_USE_INLINE=1\n\n")
    [found] = said(rdma.nccl_settings(sight(worker=worker)))
    assert found.startswith(f"told  {WORKER}: /etc/nccl.conf sets NCCL_IB_USE_INLINE=1: for every NCCL program")
    assert said(rdma.nccl_settings(sight(worker=sound(nccl_conf="\n# nothing\n")))) == []


def started_with(row: int) -> Callable[[World], None]:
    """The worker's rank was started with that row; its table has the address in row 3."""

    def change(world: World) -> None:
        labels = world.worker["docker"]["containers"][0]["labels"]
        labels[wire.LABEL_GIDS] = f"rocep1s0f1/10.200.0.2={row},gone/10.200.0.2=1,roceP2p1s0f1/10.200.1.2=3"

    return change


def lost(world: World) -> None:
    started_with(3)(world)
    world.worker["hcas"]["rocep1s0f1"]["gids"] = []


@pytest.mark.report("GID-06", "GID-07")
def test_a_row_that_has_moved_since_the_start() -> None:
    assert statements(rdma.rows(sight(change=started_with(3)))) == [
        f"{WORKER}: rank 1 uses row 3 of rocep1s0f1 for 10.200.0.2, where it still is",
        f"{WORKER}: rank 1 uses row 3 of roceP2p1s0f1 for 10.200.1.2, where it still is",
    ]
    [found] = said(rdma.rows(sight(change=started_with(4))))
    assert found == (
        f"refused  {WORKER}: rank 1 was started with row 4 of rocep1s0f1 for 10.200.0.2, which is in row 3 now\n"
        "    Fix: sudo sparkpair restart, on the head: NCCL keeps the row that it began with, and after a flap no "
        "connection is made again"
    )
    [found] = said(rdma.rows(sight(change=lost)))
    assert "which is in no row now" in found


@pytest.mark.report("GID-02", "GID-03", "GID-05")
@pytest.mark.parametrize(
    ("index", "shown"),
    [
        (3, ""),
        (1, "fe80:0000:0000:0000:005a:00ff:fe00:0100 RoCE v2"),
        (4, "0000:0000:0000:0000:0000:ffff:c0a8:5605 RoCE v2"),
        (5, "0000:0000:0000:0000:0000:ffff:0ac8:0001 IB/RoCE v1"),
        (9, "empty"),
    ],
)
def test_a_row_that_is_stated(index: int, shown: str) -> None:
    """Filled is not enough: it must be RoCE v2, and the rail's own address."""

    def more(world: World) -> None:
        world.head["hcas"]["rocep1s0f0"]["gids"] += [
            [4, "0000:0000:0000:0000:0000:ffff:c0a8:5605", "RoCE v2"],
            [5, "0000:0000:0000:0000:0000:ffff:0ac8:0001", "IB/RoCE v1"],
        ]

    seen = sight(change=more, knobs={"nccl_ib_gid_index": index})
    found = list(rdma.stated_row(seen, seen.cluster.head, seen.facts[HEAD]))
    if not shown:
        assert statements(found) == [f"{HEAD}: nccl_ib_gid_index = 3 is the RoCE v2 row of 10.200.0.1 on rocep1s0f0"]
    else:
        assert said(found) == [
            f"refused  {HEAD}: nccl_ib_gid_index = {index}, and that row of rocep1s0f0 is {shown}; 10.200.0.1 "
            "stands in row 3\n    Fix: leave nccl_ib_gid_index out: the row is looked up at every start"
        ]


def gate(outcome: str, detail: str) -> Callable[[World], None]:
    """What became of the gate that reads the ranks' logs."""
    row = {"gate": "transport", "outcome": outcome, "seconds": 0.1, "detail": detail}
    return lambda world: world.head["documents"][STATUS]["json"].update(gates=[row])


@pytest.mark.report("RDMA-01", "NET-11")
def test_what_the_ranks_talk_over() -> None:
    assert statements(rdma.transport(sight(change=gate("passed", "by RDMA: rank 0, rank 1")))) == [
        f"{HEAD}: the ranks talk by RDMA: rank 0, rank 1"
    ]
    [found] = said(rdma.transport(sight(change=gate("passed", "rank 1: over TCP, as allow_tcp permits"))))
    assert found.startswith(f"told  {HEAD}: the ranks talk over TCP, at a fraction of RDMA's speed")
    [found] = said(rdma.transport(sight(change=gate("failed", "rank 1: NCCL sends over TCP. Fix: x"))))
    assert found.startswith(f"refused  {HEAD}: rank 1: NCCL sends over TCP\n")
    assert statements(rdma.transport(sight(change=gate("skipped", "no rank's log says what NCCL sends over")))) == [
        f"{HEAD}: how the ranks talk was not judged: no rank's log says what NCCL sends over"
    ]
    assert list(rdma.transport(sight())) == []
