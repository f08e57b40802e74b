"""Rails from ports and from what is heard: pairs, rings and switches, cables elsewhere, addresses, contradictions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from itertools import combinations

import pytest

from spec.cluster import Rail
from spec.discovery import Found, Look, Pool, as_they_are, find, must_ask, written

POOL = Pool(IPv4Network("10.200.0.0/16"))
NAMES = ("spark-a", "spark-b", "spark-c", "spark-d")
# Both netdevs of either port, as ibdev2netdev lists them (S01 of the field reports: in this order).
SPARK = {
    "enP2p1s0f0np0": ("roceP2p1s0f0", "0002:01:00.0"),
    "enP2p1s0f1np1": ("roceP2p1s0f1", "0002:01:00.1"),
    "enp1s0f0np0": ("rocep1s0f0", "0000:01:00.0"),
    "enp1s0f1np1": ("rocep1s0f1", "0000:01:00.1"),
}
F0 = ("enp1s0f0np0", "enP2p1s0f0np0")
F1 = ("enp1s0f1np1", "enP2p1s0f1np1")


@dataclass(frozen=True)
class Port:
    """A port of a Spark."""

    netdev: str
    carrier: bool | None = False
    addresses: tuple[IPv4Interface, ...] = ()
    hca: str = ""
    pci: str = ""

    @property
    def domain(self) -> str:
        return self.pci.partition(":")[0]

    @property
    def function(self) -> str:
        return self.pci.rpartition(".")[2]


@dataclass(frozen=True)
class Frame:
    """A frame that arrived."""

    at: str
    node: str
    netdev: str


def spark(
    number: int,
    lit: Iterable[str],
    addresses: dict[str, str] | None = None,
    off: Iterable[str] = (),
    stated: Sequence[tuple[str, str]] = (),
    file: Sequence[tuple[str, str]] = (),
    links: dict[str, str] | None = None,
    deaf: str = "",
) -> Look:
    """A node with these netdevs lit, and others dark or switched off."""
    held = {netdev: (IPv4Interface(text),) for netdev, text in (addresses or {}).items()}
    ports = tuple(
        Port(netdev, None if netdev in off else netdev in lit, held.get(netdev, ()), hca, pci)
        for netdev, (hca, pci) in SPARK.items()
    )
    management = IPv4Address(f"192.168.1.{10 + number}")
    others = {"eth0": (IPv4Interface((management, 24)),)}
    others |= {name: (IPv4Interface(text),) for name, text in (links or {}).items()}
    return Look(
        name=NAMES[number],
        management=management,
        ports=ports,
        stated=tuple(Rail(netdev=n, hca=SPARK[n][0], address=IPv4Interface(a)) for n, a in stated),
        file=tuple((netdev, IPv4Interface(address)) for netdev, address in file),
        links={**others, **held},
        deaf=deaf,
    )


def cable(*ends: tuple[int, Iterable[str]]) -> dict[str, list[Frame]]:
    """All that these ends hear when they are on one wire or one switch: each of them each other one, but itself."""
    return heard(*[((one, here), (other, there)) for (one, heres), (other, theres) in combinations(ends, 2)
                   for here in heres for there in theres])  # fmt: skip


def heard(*pairs: tuple[tuple[int, str], tuple[int, str]]) -> dict[str, list[Frame]]:
    """Frames in both directions between these ends; nodes that nothing arrives at took part as well."""
    found: dict[str, list[Frame]] = {name: [] for name in NAMES}
    for (one, here), (other, there) in pairs:
        found[NAMES[one]].append(Frame(here, NAMES[other], there))
        found[NAMES[other]].append(Frame(there, NAMES[one], here))
    return found


def both(*talks: dict[str, list[Frame]]) -> dict[str, list[Frame]]:
    """Several cables."""
    return {name: [frame for talk in talks for frame in talk[name]] for name in NAMES}


def rails(found: Found) -> dict[str, list[str]]:
    """Netdev and address of each rail, by node."""
    return {name: [f"{rail.netdev} {rail.address}" for rail in ends] for name, ends in found.rails.items()}


def said(remarks: Iterable[object]) -> list[str]:
    """Remarks as one would read them."""
    return [f"{remark.where}: {remark.statement}".removeprefix(": ") for remark in remarks]  # type: ignore[attr-defined]


# Pairs


@pytest.mark.report("NET-24")
@pytest.mark.parametrize("is_switched", [True, False], ids=["each hears each", "one to one"])
@pytest.mark.parametrize(("ours", "theirs"), [(F0, F0), (F1, F1), (F0, F1), (F1, F0)])
def test_one_cable(ours: tuple[str, str], theirs: tuple[str, str], is_switched: bool) -> None:
    """Whichever ports it joins: two rails, domain 0000 first on both nodes, HCAs as sysfs has them."""
    looks = [spark(0, ours), spark(1, theirs)]
    frames = (
        cable((0, ours), (1, theirs))
        if is_switched
        else heard(*[((0, a), (1, b)) for a, b in zip(ours, theirs, strict=True)])
    )
    found = find(looks, frames, POOL)
    assert rails(found) == {
        "spark-a": [f"{ours[0]} 10.200.0.1/24", f"{ours[1]} 10.200.1.1/24"],
        "spark-b": [f"{theirs[0]} 10.200.0.2/24", f"{theirs[1]} 10.200.1.2/24"],
    }
    assert [rail.hca for rail in found.rails["spark-b"]] == [SPARK[netdev][0] for netdev in theirs]
    assert found.proven and not found.notes and not found.refusals


@pytest.mark.report("NET-19")
def test_netdevs_that_are_cabled_crosswise_are_paired_by_what_they_hear() -> None:
    """Not by their index: a rail is where frames pass."""
    found = find([spark(0, F0), spark(1, F0)], heard(((0, F0[0]), (1, F0[1])), ((0, F0[1]), (1, F0[0]))), POOL)
    assert [rail.netdev for rail in found.rails["spark-a"]] == list(F0)
    assert [rail.netdev for rail in found.rails["spark-b"]] == [F0[1], F0[0]]


@pytest.mark.report("NET-01")
def test_a_port_to_a_computer_is_no_rail() -> None:
    """It is up as well, and nobody of the pair is there."""
    looks = [spark(0, (*F0, *F1)), spark(1, F0)]
    found = find(looks, cable((0, F0), (1, F0)), POOL)
    assert [rail.hca for rail in found.rails["spark-a"]] == ["rocep1s0f0", "roceP2p1s0f0"]
    assert said(found.notes) == [
        f"spark-a: {netdev} ({SPARK[netdev][0]}) has a carrier, but no other node is heard there: it is left out"
        for netdev in F1[::-1]
    ]


def test_the_port_to_a_computer_may_be_the_lower_one() -> None:
    found = find([spark(0, (*F0, *F1)), spark(1, F0)], cable((0, F1), (1, F0)), POOL)
    assert [rail.netdev for rail in found.rails["spark-a"]] == list(F1)
    assert [rail.netdev for rail in found.rails["spark-b"]] == list(F0)


def test_two_cables_are_one_port() -> None:
    """The lower ports; the other cable is told."""
    looks = [spark(0, (*F0, *F1)), spark(1, (*F0, *F1))]
    found = find(looks, both(cable((0, F0), (1, F0)), cable((0, F1), (1, F1))), POOL)
    assert [rail.netdev for rail in found.rails["spark-a"]] == list(F0)
    assert len(found.notes) == 4
    assert said(found.notes)[0] == (
        "spark-a: enP2p1s0f1np1 (roceP2p1s0f1) hears spark-b (enP2p1s0f1np1), spark-b (enp1s0f1np1), and is left out: "
        "the rails are on one port, enP2p1s0f0np0, enp1s0f0np0"
    )


def test_two_cables_crosswise() -> None:
    """The head's lower port, and what is at its other end."""
    looks = [spark(0, (*F0, *F1)), spark(1, (*F0, *F1))]
    found = find(looks, both(cable((0, F0), (1, F1)), cable((0, F1), (1, F0))), POOL)
    assert [[rail.netdev for rail in ends] for ends in found.rails.values()] == [list(F0), list(F1)]


@pytest.mark.report("NET-12")
@pytest.mark.parametrize("lit", [0, 1])
def test_half_a_port_is_one_rail_and_told(lit: int) -> None:
    looks = [spark(0, F0), spark(1, [F1[lit]], off=[F1[1 - lit]])]
    found = find(looks, heard(((0, F0[lit]), (1, F1[lit]))), POOL)
    assert rails(found) == {"spark-a": [f"{F0[lit]} 10.200.0.1/24"], "spark-b": [f"{F1[lit]} 10.200.0.2/24"]}
    twin, other = F1[1 - lit], F0[1 - lit]
    assert sorted(said(found.notes)) == sorted([
        f"spark-a: {other} ({SPARK[other][0]}) is the twin of {F0[lit]}, hears nobody, and joins no rail: half of the "
        f"port is left out",
        f"spark-b: {twin} ({SPARK[twin][0]}) is switched off (ip link), and its twin {F1[lit]} is a rail: half of the "
        f"port is left out",
    ])  # fmt: skip
    assert f"sudo ip link set {twin} up; then run again" in [note.fix for note in found.notes]


# More than two


@pytest.mark.parametrize("count", [3, 4])
def test_nodes_at_a_switch(count: int) -> None:
    """Ports may differ; each node has the next address."""
    used = [F0, F1, F0, F0][:count]
    found = find([spark(n, port) for n, port in enumerate(used)], cable(*enumerate(used)), POOL)
    assert [[rail.netdev for rail in ends] for ends in found.rails.values()] == [list(port) for port in used]
    assert [str(ends[1].address) for ends in found.rails.values()] == [f"10.200.1.{n + 1}/24" for n in range(count)]


def test_a_ring_needs_a_switch() -> None:
    looks = [spark(n, (*F0, *F1)) for n in range(3)]
    ring = both(*[cable((n, F1), ((n + 1) % 3, F0)) for n in range(3)])
    found = find(looks, ring, POOL)
    assert not found.known
    assert found.refusals[0].statement.startswith(
        "no rail joins all 3 nodes, though each hears each other one: spark-a enP2p1s0f0np0 hears spark-c (enP2p1s0f1"
    )
    assert "to one switch" in found.refusals[0].fix


def test_a_node_that_is_not_cabled_is_named() -> None:
    looks = [spark(0, F0), spark(1, F0), spark(2, F1)]
    found = find(looks, cable((0, F0), (1, F0)), POOL)
    assert found.refusals[0].statement.startswith(
        "no cable was found between spark-a and spark-c, nor between spark-b and spark-c: spark-a enP2p1s0f0np0 hears"
    )


# Nothing


@pytest.mark.parametrize(
    ("worker", "line", "fix"),
    [
        (
            spark(1, ()),
            "spark-b: none of its ports has a carrier: enP2p1s0f0np0 has no carrier, enP2p1s0f1np1 has no carrier, "
            "enp1s0f0np0 has no carrier, enp1s0f1np1 has no carrier",
            "seat the cable on both ends",
        ),
        (
            spark(1, (), off=SPARK),
            "spark-b: none of its ports has a carrier: enP2p1s0f0np0 is switched off (ip link), enP2p1s0f1np1 is "
            "switched off (ip link), enp1s0f0np0 is switched off (ip link), enp1s0f1np1 is switched off (ip link)",
            "sudo ip link set enP2p1s0f0np0 up, and the others; then run again",
        ),
        (
            Look("spark-b", IPv4Address("192.168.1.11"), ()),
            "spark-b: it has no RDMA device with a netdev, so nothing that could be a rail",
            "sudo modprobe mlx5_ib; ibdev2netdev then lists them",
        ),
        (
            spark(1, F0, deaf="Operation not permitted"),
            "spark-b: its ports could not listen: Operation not permitted",
            "make that work, then run again",
        ),
    ],
)
def test_why_there_is_no_rail(worker: Look, line: str, fix: str) -> None:
    found = find([spark(0, F0), worker], heard(), POOL)
    assert (said(found.refusals), found.refusals[0].fix, found.known) == ([line], fix, False)


def test_frames_that_pass_in_one_direction_are_no_rail() -> None:
    looks = [spark(0, F0[:1]), spark(1, F0[:1])]
    found = find(looks, {"spark-a": [Frame(F0[0], "spark-b", F0[0])], "spark-b": []}, POOL)
    assert said(found.refusals) == [
        "no cable was found between spark-a and spark-b: spark-a enp1s0f0np0 hears spark-b (enp1s0f0np0); "
        "spark-b enp1s0f0np0 hears nobody"
    ]


# Addresses


def test_addresses_that_are_there_stay() -> None:
    looks = [
        spark(0, F0, {F0[0]: "192.168.100.10/24", F0[1]: "192.168.101.10/24"}),
        spark(1, F0, {F0[0]: "192.168.100.11/24", F0[1]: "192.168.101.11/24"}),
    ]
    found = find(looks, cable((0, F0), (1, F0)), POOL)
    assert rails(found)["spark-b"] == [f"{F0[0]} 192.168.100.11/24", f"{F0[1]} 192.168.101.11/24"]
    assert not found.notes
    insisted = find(looks, cable((0, F0), (1, F0)), Pool(IPv4Network("10.201.0.0/16"), insisted=True))
    assert rails(insisted)["spark-b"] == [f"{F0[0]} 10.201.0.2/24", f"{F0[1]} 10.201.1.2/24"]


@pytest.mark.report("NET-02")
def test_twins_in_one_network_get_two() -> None:
    """And it is said by which rule."""
    looks = [
        spark(0, F0, {F0[0]: "192.168.100.10/24", F0[1]: "192.168.100.12/24"}),
        spark(1, F0, {F0[0]: "192.168.100.11/24", F0[1]: "192.168.100.13/24"}),
    ]
    found = find(looks, cable((0, F0), (1, F0)), POOL)
    assert rails(found)["spark-a"] == [f"{F0[0]} 10.200.0.1/24", f"{F0[1]} 10.200.1.1/24"]
    assert said(found.notes)[0] == (
        "spark-a: enp1s0f0np0 has 192.168.100.10/24 and enP2p1s0f0np0 has 192.168.100.12/24: each rail needs a network "
        "of its own, or the node answers for one on the other; the rails get 10.200.0.1/24, 10.200.1.1/24"
    )


@pytest.mark.report("NET-18")
def test_link_local_addresses_are_none() -> None:
    looks = [spark(0, F0, {F0[0]: "169.254.163.17/16"}), spark(1, F0, {F0[0]: "169.254.9.9/16"})]
    found = find(looks, cable((0, F0), (1, F0)), POOL)
    assert rails(found)["spark-a"] == [f"{F0[0]} 10.200.0.1/24", f"{F0[1]} 10.200.1.1/24"]
    assert "a link-local address, which changes from boot to boot" in found.notes[0].statement


def test_a_network_that_is_taken_is_refused() -> None:
    looks = [spark(0, F0), spark(1, F0, links={"wg0": "10.200.1.77/24"})]
    found = find(looks, cable((0, F0), (1, F0)), POOL)
    assert (found.rails, said(found.refusals)) == (
        {},
        [
            "spark-b: rail_network = 10.200.0.0/16: rail 1 would get 10.200.1.0/24, and wg0 has 10.200.1.77/24",
        ],
    )
    assert found.refusals[0].fix == (
        'state another one in group_data/all.py, such as rail_network = "10.201.0.0/16"'
    )  # fmt: skip


# What is set up


def set_up(number: int, port: tuple[str, str], lit: Iterable[str], **more: object) -> Look:
    """A node after a deploy."""
    file = [(port[0], f"10.200.0.{number + 1}/24"), (port[1], f"10.200.1.{number + 1}/24")]
    return spark(number, lit, file=file, **more)  # type: ignore[arg-type]


def test_what_is_set_up_needs_no_talk() -> None:
    """And nothing moves, whatever else has a carrier."""
    looks = [set_up(0, F0, (*F0, *F1)), set_up(1, F1, F1)]
    assert not must_ask(looks)
    found = find(looks, None, POOL)
    assert rails(found)["spark-b"] == [f"{F1[0]} 10.200.0.2/24", f"{F1[1]} 10.200.1.2/24"]
    assert as_they_are(looks).rails == found.rails
    assert find(looks, cable((0, F0), (1, F1)), POOL).rails == found.rails


@pytest.mark.parametrize(
    "looks",
    [
        [set_up(0, F0, F0), spark(1, F0)],
        [set_up(0, F0, F1), set_up(1, F0, F0)],
        [set_up(0, F0, F0), spark(1, F0, file=[(F0[0], "10.200.0.2/24")])],
        [set_up(0, F0, F0), spark(1, F0, file=[(F0[0], "10.200.7.2/24"), (F0[1], "10.200.1.2/24")])],
        [spark(n, F0, file=[(F0[0], f"10.200.0.{n + 1}/24")]) for n in range(2)],
        [spark(n, F0, stated=[(F0[0], f"10.200.0.{n + 1}/24")]) for n in range(2)],
    ],
    ids=["new node", "moved cable", "one rail here", "other network", "a twin is lit", "stated, not set up"],
)
def test_when_the_nodes_are_asked(looks: list[Look]) -> None:
    assert must_ask(looks)


def test_stated_rails_in_force_need_no_talk() -> None:
    stated = [[(F0[0], f"10.200.0.{n}/24"), (F0[1], f"10.200.1.{n}/24")] for n in (1, 2)]
    looks = [spark(n, F0, stated=stated[n], file=stated[n]) for n in range(2)]
    assert not must_ask(looks)
    assert find(looks, None, POOL).known


@pytest.mark.report("NET-03")
def test_a_moved_cable_moves_the_rails() -> None:
    """With their addresses."""
    looks = [set_up(0, F0, F1), set_up(1, F0, F0)]
    found = find(looks, cable((0, F1), (1, F0)), POOL)
    assert rails(found)["spark-a"] == [f"{F1[0]} 10.200.0.1/24", f"{F1[1]} 10.200.1.1/24"]
    assert said(found.notes) == [
        "spark-a: enp1s0f0np0, enP2p1s0f0np0 has no carrier any more; the rails move to enP2p1s0f1np1, enp1s0f1np1"
    ]


def test_a_pulled_cable_moves_nothing() -> None:
    """Though another port has a carrier: the rails stay what they are, and it is told."""
    looks = [set_up(0, F0, F1), set_up(1, F0, ())]
    assert must_ask(looks)
    found = find(looks, heard(), POOL)
    assert rails(found)["spark-a"] == [f"{F0[0]} 10.200.0.1/24", f"{F0[1]} 10.200.1.1/24"]
    assert said(found.notes)[0].startswith("spark-b: none of its ports has a carrier")
    assert not found.refusals


def test_another_network_moves_the_addresses() -> None:
    looks = [set_up(0, F0, F0), set_up(1, F0, F0)]
    found = find(looks, None, Pool(IPv4Network("10.99.0.0/16"), insisted=True))
    assert rails(found)["spark-a"] == [f"{F0[0]} 10.99.0.1/24", f"{F0[1]} 10.99.1.1/24"]


# Stated rails


def stated(number: int, netdevs: Sequence[str], lit: Iterable[str], **more: object) -> Look:
    """A node with stated rails."""
    rows = [(netdev, f"10.200.{rail}.{number + 1}/24") for rail, netdev in enumerate(netdevs)]
    return spark(number, lit, stated=rows, **more)  # type: ignore[arg-type]


def test_stated_rails_that_are_heard_are_proven() -> None:
    looks = [stated(0, F0, F0), stated(1, F1, F1)]
    found = find(looks, cable((0, F0), (1, F1)), POOL)
    assert found.proven and not found.refusals and not found.notes
    assert not find(looks, None, POOL).proven


@pytest.mark.report("NET-03")
def test_a_stated_port_that_is_dark() -> None:
    """The inventory says f1, the cable is in f0: refused with both."""
    looks = [stated(0, F1, F0), stated(1, F0, F0)]
    found = find(looks, cable((0, F0), (1, F0)), POOL)
    assert said(found.refusals)[0] == (
        "spark-a: rail 0: enp1s0f1np1 is stated, and has no carrier; enP2p1s0f0np0 (roceP2p1s0f0) has one and hears "
        "spark-b (enP2p1s0f0np0), spark-b (enp1s0f0np0), enp1s0f0np0 (rocep1s0f0) has one and hears spark-b "
        "(enP2p1s0f0np0), spark-b (enp1s0f0np0)"
    )
    assert found.refusals[0].fix == (
        "state for spark-a in inventory.py what is cabled, or leave rails out there on every node"
    )


def test_stated_rails_that_cannot_be_heard_are_told() -> None:
    """Switched off, or no cable anywhere: a deploy sets the rails up all the same."""
    looks = [stated(0, F0, (), off=F0), stated(1, F0, ())]
    found = find(looks, heard(), POOL)
    assert not found.refusals
    assert said(found.notes)[0] == (
        "spark-a: rail 0: enp1s0f0np0 is stated, and is switched off (ip link): whether it is cabled as stated is not "
        "known"
    )
    assert said(found.notes)[2] == "spark-b: rail 0: enp1s0f0np0 is stated, and has no carrier"
    deaf = find([stated(0, F0, F0, deaf="no"), stated(1, F0, F0)], heard(), POOL)
    assert said(deaf.notes) == ["spark-a: its rails are taken as stated, since it could not listen: no"]
    assert not deaf.refusals


@pytest.mark.report("NET-19")
def test_swapped_twins_are_refused() -> None:
    looks = [stated(0, F0, F0), stated(1, (F0[1], F0[0]), F0)]
    found = find(looks, heard(((0, F0[0]), (1, F0[0])), ((0, F0[1]), (1, F0[1]))), POOL)
    assert said(found.refusals)[0] == (
        "spark-a: rail 0: enp1s0f0np0 is stated to reach spark-b (enP2p1s0f0np0), and hears spark-b (enp1s0f0np0), "
        "which is stated as rail 1 there"
    )
    assert "in the other order" in found.refusals[0].fix


def test_a_wrong_peer_is_refused() -> None:
    """The stated port reaches another node, or nobody; where the peer is heard is said."""
    looks = [stated(0, F0, (*F0, *F1)), stated(1, F0, F0)]
    found = find(looks, cable((0, F1), (1, F0)), POOL)
    assert said(found.refusals)[0].startswith(
        "spark-a: rail 0: enp1s0f0np0 is stated to reach spark-b (enp1s0f0np0), and hears nobody; enP2p1s0f1np1 "
        "(roceP2p1s0f1) hears spark-b (enP2p1s0f0np0), spark-b (enp1s0f0np0); "
    )


def test_one_direction_is_refused() -> None:
    looks = [stated(0, F0[:1], F0[:1]), stated(1, F0[:1], F0[:1])]
    found = find(looks, {"spark-a": [Frame(F0[0], "spark-b", F0[0])], "spark-b": []}, POOL)
    assert "it hears that, and is not heard there: one direction alone passes" in said(found.refusals)[0]


# The file


def test_our_file_is_read_back() -> None:
    text = 'network:\n  ethernets:\n    "enp1s0f0np0":\n      addresses: ["10.200.0.1/24"]\n      mtu: 9000\n'
    assert written(text) == (("enp1s0f0np0", IPv4Interface("10.200.0.1/24")),)
    assert written("") == written(text.replace("10.200.0.1/24", "dhcp")) == ()
