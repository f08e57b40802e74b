"""RDMA between the ranks: devices, ports, MTU, locked memory, the rows of GID tables, and what NCCL then used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from checks.check import BEFORE_AND_DOCTOR, DOCTOR_ALONE, Check, Sight, When, each
from checks.content import amount
from checks.look import look
from checks.verdict import Verdict, broken, holds, told, unknown
from facts.host import Port
from facts.values import Container, Hca, NodeFacts, Unknown
from node.gids import mapped
from node.wire import LABEL_GIDS, LABEL_RANK
from spec.cluster import Node

RUNS = frozenset({When.VERIFY, When.DOCTOR})
RESTART = "sudo sparkpair restart, on the head"
ROCE_HEADERS = 96
"""What of a netdev's MTU the kernel leaves out before it chooses RoCE's (Linux, ib_addr.h: iboe_get_mtu)."""
ROCE_MTUS = (4096, 2048, 1024, 512, 256)
FULL_MBPS = 200_000
"""Of a ConnectX-7 port of a Spark (field reports: NET-26)."""
FULL_LANES, FULL_LANE = 4, "32.0"
"""PCIe of each half of a port: Gen5 x4 (field reports: NET-22); x2 was seen with a BIOS before 2026-04 (NET-12)."""
MEMLOCK = ("--ulimit", "memlock=-1:-1")
CAPABILITY = ("--cap-add", "IPC_LOCK")
DEVICE = ("--device", "/dev/infiniband:/dev/infiniband")
SET_UP = "run deploy.py, which sets up the rails; ip addr; rdma link"


def roce_mtu(mtu: int) -> int:
    """RDMA's MTU over a netdev with that MTU."""
    return next((size for size in ROCE_MTUS if size <= mtu - ROCE_HEADERS), ROCE_MTUS[-1])


def devices(sight: Sight) -> Iterator[Verdict]:
    """What a program opens for RDMA. The launch hands /dev/infiniband on, and Docker refuses one that is not there."""
    found, unread = look(sight, "/dev/infiniband", lambda seen: seen.host.devices)
    yield from unread
    for name, (_, names) in found.items():
        verbs = [device for device in names if device.startswith("uverbs")]
        if not names:
            yield broken(
                name,
                "there is no /dev/infiniband: a container gets no RDMA device, and does not start",
                "sudo modprobe -a ib_uverbs mlx5_ib rdma_ucm; rdma link; DGX OS loads them by itself",
            )
        elif not verbs:
            yield told(
                name,
                f"/dev/infiniband has {', '.join(names)}, and no uverbs: NCCL finds no device",
                "sudo modprobe -a ib_uverbs mlx5_ib; rdma link",
            )
        else:
            yield holds(name, f"/dev/infiniband has {', '.join(verbs)}")


def ports(sight: Sight) -> Iterator[Verdict]:
    """The port of each rail's HCA is ACTIVE. Where TCP is allowed, it is told."""
    say = told if sight.cluster.knobs.allow_tcp else broken
    for name, seen in sight.usable():
        if isinstance(seen.hcas, Unknown):
            yield unknown(name, "its HCAs", seen.hcas)
            continue
        for number, rail in enumerate(sight.cluster.node(name).rails):
            hca = seen.hcas.get(rail.hca)
            if hca is None:
                known = ", ".join(sorted(seen.hcas)) or "none"
                yield say(name, f"rail {number}: there is no HCA {rail.hca} (present: {known})", "rdma link; lspci")
            elif "ACTIVE" not in hca.state:
                yield say(
                    name,
                    f"rail {number}: the port of {rail.hca} is {hca.state or 'of no state'}, wanted ACTIVE",
                    "is the cable seated on both ends, and the netdev up? ip link; ibstat",
                )
            else:
                yield holds(name, f"rail {number}: the port of {rail.hca} is ACTIVE")


def mtu(sight: Sight) -> Iterator[Verdict]:
    """RDMA's own MTU is as large as the netdev's allows, and that is the largest there is."""
    largest, wanted = ROCE_MTUS[0], roce_mtu(sight.cluster.knobs.rail_mtu)
    if wanted < largest:
        yield told(
            "",
            f"rail_mtu = {sight.cluster.knobs.rail_mtu} leaves RDMA packets of {wanted} bytes; 4200 and more allow "
            f"{largest}, which was measured to be 5% faster",
            "leave rail_mtu out, which is 9000",
        )
    for name, number, port in _rails(sight):
        if port.active_mtu is None:
            continue  # ibv_devinfo is not there, and the netdev's MTU is stated with the rails
        if port.active_mtu < wanted:
            yield broken(
                name,
                f"rail {number}: {port.hca} has an RDMA MTU of {port.active_mtu}, wanted {wanted}: with less, NCCL is "
                "slower throughout",
                f"ip link show {port.netdev}: its MTU must be {sight.cluster.knobs.rail_mtu} on both ends; {SET_UP}",
            )
        else:
            yield holds(name, f"rail {number}: {port.hca} has an RDMA MTU of {port.active_mtu}")


def link(sight: Sight) -> Iterator[Verdict]:
    """The cable carries what the port can, and so does the PCIe link behind it. Told: it is slower, and works."""
    for name, number, port in _rails(sight):
        slow = port.speed_mbps is not None and 0 < port.speed_mbps < FULL_MBPS
        if slow and port.speed_mbps is not None:
            yield told(
                name,
                f"rail {number}: the link of {port.netdev} runs at {port.speed_mbps / 1000:g} Gb/s, and the port can "
                f"{FULL_MBPS // 1000}",
                f"a QSFP112 cable for 200 Gb/s (the first page of sudo ethtool -m {port.netdev} tells which this is); "
                "known to do: Amphenol NJAAKK-N911 or NJAAKK0006, Luxshare LMTQF022-SD-R",
            )
        lanes = port.link_width
        narrow = lanes is not None and 0 < lanes < FULL_LANES
        old = bool(port.link_speed) and not port.link_speed.startswith(FULL_LANE)
        if narrow or old:
            yield told(
                name,
                f"rail {number}: {port.hca} has {lanes or 'unknown'} lanes of {port.link_speed or 'unknown speed'}, "
                f"usual are {FULL_LANES} of {FULL_LANE} GT/s: half the lanes carry half the data",
                "firmware first: sudo fwupdmgr refresh && sudo fwupdmgr upgrade; a BIOS before 2026-04 may be why",
            )
        elif not slow and (port.speed_mbps or lanes):
            speed = f"{port.speed_mbps / 1000:g} Gb/s" if port.speed_mbps else "unknown speed"
            behind = f", PCIe x{lanes} of {port.link_speed}" if lanes and port.link_speed else ""
            yield holds(name, f"rail {number}: the link of {port.netdev} has {speed}{behind}")


def both(sight: Sight) -> Iterator[Verdict]:
    """One rail or both, and what the other way would bring."""
    rails, used = min(len(node.rails) for node in sight.cluster.nodes), sight.cluster.knobs.nccl_rails
    if not rails:
        return  # said where they are looked for
    gain = "+5% in reading a cold prompt, nothing in answering it; +64% in a collective by itself"
    if rails == 1:
        yield told(
            "",
            "the pair has one rail, which is half of a QSFP port: 98 of its 161 Gb/s. Published for both beside one: "
            f"{gain}",
            "leave rails out of inventory.py, so that both are found, or state the other half there too",
        )
    elif used < rails:
        yield holds("", f"NCCL uses {used} of {rails} rails, as nccl_rails says. Published for both: {gain}")
    else:
        yield holds("", f"NCCL uses {used} rails")


def locked_memory(sight: Sight) -> Iterator[Verdict]:
    """RDMA locks the memory that it sends from. The launch asks for all that it needs, whatever Docker's own limit is;
    that a daemon without root cannot give it is said with Docker's side."""
    for name, seen in sight.usable():
        if not all(node.rails for node in sight.cluster.nodes):
            return  # there is no launch without them
        container = sight.cluster.launch(sight.cluster.node(name)).container
        lacks = [" ".join(words) for words in (MEMLOCK, CAPABILITY, DEVICE) if words not in container]
        side = seen.host.docker
        if lacks:
            yield broken(name, f"the launch lacks {', '.join(lacks)}: RDMA registers no memory", "use a stack of ours")
        else:
            limit = None if isinstance(side, Unknown) else side.memlock
            own = "" if limit is None else f" (Docker's own is {amount(limit)}, which a launch does not take over)"
            yield holds(
                name,
                f"the launch has locked memory without limit, IPC_LOCK and /dev/infiniband{own}. Where an engine says "
                "Cannot allocate memory of ibv_reg_mr all the same, it is the kernel",
            )


def nccl_settings(sight: Sight) -> Iterator[Verdict]:
    """A file of the system changes what NCCL does, and no variable shows it. The node's own is not in a container."""
    for name, seen in sight.usable():
        text = seen.host.nccl_conf
        if isinstance(text, Unknown) or text is None:
            continue
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
        if lines:
            yield told(
                name,
                f"/etc/nccl.conf sets {', '.join(lines)[:200]}: for every NCCL program on this node but the engine, "
                "which has its image's files",
                "take it away if it is a trial's: NCCL_IB_USE_INLINE=1 was seen to freeze the first collective",
            )


def rows(sight: Sight) -> Iterator[Verdict]:
    """The row of the GID table that each rank was started with is still its rail's. NCCL keeps it as it was, so that
    after a row has moved no connection is made again."""
    for name, seen in sight.usable():
        if isinstance(seen.hcas, Unknown) or isinstance(seen.docker, Unknown):
            continue  # said with the ports, and with Docker
        containers = seen.docker.containers
        for container in () if isinstance(containers, Unknown) else containers:
            if container.is_ours and container.state == "running":
                yield from _moved(sight.cluster.node(name), seen.hcas, container)


def stated_row(sight: Sight, node: Node, seen: NodeFacts) -> Iterator[Verdict]:
    """A row that the operator states is a RoCE v2 one of the rail's own address, and not of another network's."""
    index = node.nccl_ib_gid_index
    if index is None or isinstance(seen.hcas, Unknown) or not node.rails:
        return
    rail = node.rails[0]
    hca = seen.hcas.get(rail.hca)
    right = None if hca is None else hca.roce_v2_index(str(rail.ip))
    if hca is None or right is None:
        return  # the rail is not set up yet; whether it is, is a question of its own
    row = next(((gid, kind) for number, gid, kind in hca.gids if number == index), None)
    if row is not None and row[0] == mapped(str(rail.ip)) and "v2" in row[1]:
        yield holds(node.name, f"nccl_ib_gid_index = {index} is the RoCE v2 row of {rail.ip} on {rail.hca}")
        return
    shown = f"{row[0]} {row[1]}" if row else "empty"
    yield broken(
        node.name,
        f"nccl_ib_gid_index = {index}, and that row of {rail.hca} is {shown}; {rail.ip} stands in row {right}",
        "leave nccl_ib_gid_index out: the row is looked up at every start",
    )


def transport(sight: Sight) -> Iterator[Verdict]:
    """What NCCL sends over, as the keeper read it in the ranks' logs at the last gates."""
    head = sight.cluster.head.name
    for name, seen in sight.usable():
        if name != head or isinstance(seen.status, Unknown) or seen.status is None:
            continue
        for gate, outcome, detail in seen.status.gates:
            if gate != "transport":
                continue
            if outcome == "failed":
                yield broken(head, detail.partition(". Fix: ")[0], "what RDMA lacks is said here beside it; " + RESTART)
            elif "over TCP" in detail:
                yield told(
                    head,
                    f"the ranks talk over TCP, at a fraction of RDMA's speed ({detail})",
                    "leave allow_tcp out when RDMA works again",
                )
            elif outcome == "passed":
                yield holds(head, f"the ranks talk {detail}")
            else:
                yield holds(head, f"how the ranks talk was not judged: {detail}")


def _rails(sight: Sight) -> Iterator[tuple[str, int, Port]]:
    """Each rail's port as sysfs and the tools have it."""
    for name, seen in sight.usable():
        found = seen.host.ports
        by_netdev = {} if isinstance(found, Unknown) else {port.netdev: port for port in found}
        for number, rail in enumerate(sight.cluster.node(name).rails):
            if rail.netdev in by_netdev:
                yield name, number, by_netdev[rail.netdev]


def _moved(node: Node, hcas: Mapping[str, Hca], container: Container) -> Iterator[Verdict]:
    rank = container.labels.get(LABEL_RANK, str(node.rank))
    for entry in container.labels.get(LABEL_GIDS, "").split(","):
        place, _, then = entry.partition("=")
        name, _, address = place.partition("/")
        hca = hcas.get(name)
        if hca is None or not then.isdigit():
            continue  # an HCA that is gone is said with the ports
        now = hca.roce_v2_index(address)
        if now is None:
            yield broken(
                node.name,
                f"rank {rank} was started with row {then} of {name} for {address}, which is in no row now",
                f"{SET_UP}; then {RESTART}: NCCL keeps the row that it began with",
            )
        elif now != int(then):
            yield broken(
                node.name,
                f"rank {rank} was started with row {then} of {name} for {address}, which is in row {now} now",
                f"{RESTART}: NCCL keeps the row that it began with, and after a flap no connection is made again",
            )
        else:
            yield holds(node.name, f"rank {rank} uses row {then} of {name} for {address}, where it still is")


CHECKS: tuple[Check, ...] = (
    Check("rdma.devices", "Is there what RDMA is opened by?", devices, BEFORE_AND_DOCTOR, ("RDMA-01", "RDMA-05")),
    Check("rdma.ports", "Is the port of each rail's HCA ACTIVE?", ports, RUNS, ("RDMA-01", "NET-18")),
    Check("rdma.mtu", "Is RDMA's own MTU the largest there is?", mtu, RUNS, ("NET-10",)),
    Check("rdma.link", "Do cable and PCIe carry what the port can?", link, DOCTOR_ALONE, ("NET-26", "NET-12")),
    Check("rdma.both", "Does the pair use both halves of the port?", both, DOCTOR_ALONE, ("NET-12",)),
    Check(
        "rdma.memory", "May the engine lock the memory that RDMA sends from?", locked_memory, DOCTOR_ALONE,
        ("RDMA-02", "RDMA-05"),
    ),
    Check("rdma.settings", "Does a file change what NCCL does?", nccl_settings, DOCTOR_ALONE, ("RDMA-03",)),
    Check("rdma.row", "Is the GID's row, where it is stated, the rail's?", each(stated_row), BEFORE_AND_DOCTOR,
          ("GID-05", "GID-03", "GID-02")),
    Check("rdma.rows", "Are the GIDs where they were when the ranks were started?", rows, RUNS, ("GID-06", "GID-07")),
    Check("rdma.transport", "Do the ranks talk by RDMA?", transport, RUNS, ("RDMA-01", "RDMA-04", "NET-11")),
)  # fmt: skip
