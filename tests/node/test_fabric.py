"""The rails under guard: what is not confirmed is taken back."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from node import fabric
from node.fabric import Address, Edit, FabricError, Guard, Places, Wanted

RAIL = Address("10.200.0.1/24", "enp1s0f0np0", 9000)
NETDEV, MANAGEMENT = RAIL.netdev, "192.168.1.10"
STOP = "systemctl stop sparkpair-fabric-rollback.timer"
PUT_IN_FORCE = [STOP, "systemd-run", "netplan generate", "netplan apply"]
TAKEN_BACK = ["netplan generate", "netplan apply"]
FOREIGN = "network:\n  ethernets:\n    enp1s0f0np0: {addresses: [192.168.100.10/24]}\n"
LEFT = "# network:\n"


def link(address: str, mtu: int = 1500) -> dict[str, Any]:
    infos = [{"local": ip, "prefixlen": int(prefix)} for ip, _, prefix in [address.partition("/")] if ip]
    return {"mtu": mtu, "addr_info": [*infos, {"local": "fe80::1", "prefixlen": 64}]}


class Node:
    """A node's programs and network, played by the test: netplan gives what its files say, unless `netplan` of the
    test does something else."""

    def __init__(self, place: Path) -> None:
        self.places = Places(place / "staged.yaml", place / "etc", place / "run", place / "kept")
        self.places.etc.mkdir()
        self.places.staged.write_text("new\n")
        self.links: dict[str, Any] = {"enP7s7": link(f"{MANAGEMENT}/24"), NETDEV: link("")}
        self.routes = [{"dst": "default", "gateway": "192.168.1.1", "dev": "enP7s7", "protocol": "static"}]
        self.managed: dict[str, str] = {}
        self.is_nm_running = False
        self.netplan: Callable[[Node], None] = Node.obey
        self.calls: list[str] = []
        self.failing: list[str] = []
        """What fails, once each, in this order."""
        self.seconds = 0.0
        self.later: list[tuple[float, Callable[[], None]]] = []

    def obey(self) -> None:
        """What netplan does: the rails as the file says, whatever was there before."""
        if self.places.trial.exists() or (self.places.etc / fabric.NAME).exists():
            self.links[NETDEV] = link(RAIL.ip, RAIL.mtu)

    def call(self, argv: Sequence[str]) -> str:
        text = " ".join(argv)
        if argv[:2] != ["ip", "-j"] and argv[:2] != ["nmcli", "-t"]:
            self.calls.append("systemd-run" if argv[0] == "systemd-run" else text)
        if self.failing and text.startswith(self.failing[0]):
            del self.failing[0]
            raise FabricError(f"{text} exited 1: no")
        if text == "netplan apply":
            self.netplan(self)
        elif text.startswith("ip -j address"):
            return json.dumps([{"ifname": name, **data} for name, data in self.links.items()])
        elif text.startswith("ip -j route"):
            return json.dumps(self.routes)
        elif argv[:2] == ["ip", "address"]:
            self.address(*argv[2:])
        elif argv[:3] == ["ip", "link", "set"] and argv[4] == "mtu":
            self.links[argv[3]]["mtu"] = int(argv[5])
        elif argv[0] == "nmcli":
            return self.nmcli(argv)
        return ""

    def address(self, word: str, address: str, dev: str, netdev: str) -> None:
        infos = self.links[netdev]["addr_info"]
        ip, _, prefix = address.partition("/")
        infos[:] = [info for info in infos if info["local"] != ip]
        if word == "replace":
            infos.append({"local": ip, "prefixlen": int(prefix)})

    def nmcli(self, argv: Sequence[str]) -> str:
        if not self.is_nm_running:
            raise FabricError("nmcli exited 8: Error: NetworkManager is not running.")
        if argv[1] == "-t":
            return "".join(f"{name}:{state}\n" for name, state in self.managed.items())
        self.managed[argv[3]] = "connecting (getting IP configuration)" if argv[5] == "yes" else "unmanaged"
        return ""

    def pause(self, seconds: float) -> None:
        self.seconds += seconds
        for at, change in self.later:
            if self.seconds >= at:
                change()

    @property
    def guard(self) -> Guard:
        return Guard(self.places, self.call, self.pause, lambda: self.seconds)

    def apply(self, adopted: dict[str, Edit] | None = None) -> None:
        self.guard.apply(Wanted(MANAGEMENT, [RAIL], adopted or {}))

    def held(self, netdev: str) -> list[str]:
        infos = self.links[netdev]["addr_info"]
        return [f"{info['local']}/{info['prefixlen']}" for info in infos if ":" not in info["local"]]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.report("NET-06")
def test_on_trial_and_then_permanent(node: Node) -> None:
    """Before it is confirmed a reboot forgets it: it is in /run only."""
    node.apply()
    assert node.calls == PUT_IN_FORCE
    assert node.places.trial.read_text() == "new\n"
    assert not (node.places.etc / fabric.NAME).exists()
    node.calls.clear()
    node.guard.confirm()
    assert node.calls == ["netplan generate", STOP]
    assert (node.places.etc / fabric.NAME).read_text() == "new\n"
    assert (node.places.etc / fabric.NAME).stat().st_mode & 0o777 == 0o600
    assert list(node.places.run.iterdir()) == []


@pytest.mark.parametrize(
    ("after", "wanted"),
    [
        (
            {"enP7s7": link("192.168.1.99/24"), NETDEV: link(RAIL.ip, 9000)},
            "the management address 192.168.1.10 is gone",
        ),
        ({"enP7s7": link("192.168.1.10/24"), NETDEV: link("10.200.0.7/24")}, f"{NETDEV} has not got 10.200.0.1/24"),
        ({"enP7s7": link("192.168.1.10/24"), NETDEV: link(RAIL.ip)}, f"{NETDEV} has MTU 1500, not 9000"),
    ],
)  # fmt: skip
def test_taken_back_when_the_node_is_not_as_it_must_be(node: Node, after: dict[str, Any], wanted: str) -> None:
    before = copy.deepcopy(node.links)

    def netplan(node: Node) -> None:
        node.links = copy.deepcopy(after if node.places.trial.exists() else before)

    node.netplan = netplan
    with pytest.raises(FabricError, match=rf"^after netplan apply, {wanted} within 20 s\. The rails are as they were$"):
        node.apply()
    assert node.calls[-3:] == [*TAKEN_BACK, STOP]
    assert list(node.places.run.iterdir()) == []
    assert node.links == before


def test_taken_back_when_netplan_refuses_the_file(node: Node) -> None:
    node.failing = ["netplan generate"]
    with pytest.raises(FabricError, match=r"^netplan generate exited 1: no\. The rails are as they were$"):
        node.apply()
    assert not node.places.trial.exists()


@pytest.mark.report("NET-07")
@pytest.mark.parametrize("seconds", [0.1, 1.0, 15.0])
def test_a_management_address_that_is_away_for_a_while(node: Node, seconds: float) -> None:
    """NetworkManager drops it while netplan restarts it: one look at the wrong time proves nothing."""
    there = node.links["enP7s7"]

    def netplan(node: Node) -> None:
        node.obey()
        node.links["enP7s7"] = link("")
        node.later = [(node.seconds + seconds, lambda: node.links.update({"enP7s7": there}))]

    node.netplan = netplan
    node.apply()
    assert node.calls == PUT_IN_FORCE
    assert seconds <= node.seconds < seconds + 2 * fabric.POLL_SECONDS


@pytest.mark.report("NET-07")
def test_a_management_address_that_netplan_takes_away_for_good(node: Node) -> None:
    """As when somebody's file was edited and not applied: netplan cannot give it back, so it is put back from what was
    there, with the way out, well within the minute."""

    def netplan(node: Node) -> None:
        node.obey()
        node.links["enP7s7"] = link("192.168.1.99/24")
        node.routes = [{"dst": "default", "gateway": "192.168.1.254"}, {"dst": "192.168.1.0/24", "protocol": "kernel"}]

    node.netplan = netplan
    with pytest.raises(FabricError) as told:
        node.apply()
    assert str(told.value) == (
        "after netplan apply, the management address 192.168.1.10 is gone within 20 s. The rails are as they were. "
        "enP7s7 has its management address 192.168.1.10 and its routes again, but netplan's own files say otherwise: "
        "netplan apply takes them away, and so does the next boot. Correct the files (netplan get), then deploy again"
    )
    assert f"{MANAGEMENT}/24" in node.held("enP7s7")
    assert "ip route delete default via 192.168.1.254 dev enP7s7" in node.calls
    assert "ip route replace default via 192.168.1.1 dev enP7s7" in node.calls
    assert node.held(NETDEV) == [] and node.links[NETDEV]["mtu"] == 1500
    assert node.seconds < 30


@pytest.mark.parametrize("step", ["netplan generate", "netplan apply"])
def test_what_could_not_be_taken_back_at_once_is_by_the_timer(node: Node, step: str) -> None:
    """The first error is told, and whoever takes back later finds that there is something left to do."""
    node.failing = ["netplan apply", step, step]
    with pytest.raises(FabricError) as told:
        node.apply()
    assert str(told.value) == (
        f"netplan apply exited 1: no. Taking the rails back failed as well: {step} exited 1: no. "
        "The node tries that again by itself, every 40 s"
    )
    assert not node.places.trial.exists()
    assert node.calls.count(STOP) == 1  # before it was armed
    with pytest.raises(FabricError, match=f"^{step} exited 1: no$"):
        node.guard.restore()
    node.calls.clear()
    node.guard.restore()
    assert node.calls == [*TAKEN_BACK, STOP]
    node.calls.clear()
    node.guard.restore()
    assert node.calls == [STOP]


def test_addresses_are_put_back_even_where_netplan_fails(node: Node) -> None:
    node.links[NETDEV] = link("10.9.9.9/24")
    node.apply()
    assert node.held(NETDEV) == [RAIL.ip]
    node.failing = ["netplan apply"]
    with pytest.raises(FabricError):
        node.guard.restore()
    assert node.held(NETDEV) == ["10.9.9.9/24"]
    assert node.links[NETDEV]["mtu"] == 1500


def test_what_is_being_taken_back_is_not_confirmed(node: Node) -> None:
    node.apply()
    node.failing = ["netplan apply"]
    with pytest.raises(FabricError):
        node.guard.restore()
    with pytest.raises(FabricError, match=r"^nothing is on trial"):
        node.guard.confirm()


def test_a_new_trial_ends_what_was_left_of_the_last(node: Node) -> None:
    node.apply()
    node.failing = ["netplan apply"]
    with pytest.raises(FabricError):
        node.guard.restore()
    node.apply()
    node.guard.confirm()
    assert list(node.places.run.iterdir()) == []


def test_an_answer_that_cannot_be_read_takes_the_rails_back(node: Node) -> None:
    node.links = {NETDEV: {"no": "addresses"}}
    with pytest.raises(FabricError, match=r"The rails are as they were$"):
        node.apply()
    assert not node.places.trial.exists()


def test_nothing_is_put_in_force_without_the_timer(node: Node) -> None:
    node.failing = ["systemd-run"]
    with pytest.raises(FabricError, match="systemd-run"):
        node.apply()
    assert "netplan apply" not in node.calls
    assert not node.places.trial.exists()


def test_a_late_confirmation_is_refused(node: Node) -> None:
    node.apply()
    node.guard.restore()
    with pytest.raises(FabricError, match=r"^nothing is on trial: the confirmation came too late"):
        node.guard.confirm()
    assert not (node.places.etc / fabric.NAME).exists()


def test_taking_back_nothing_touches_no_network(node: Node) -> None:
    node.guard.restore()
    assert node.calls == [STOP]


@pytest.mark.report("NET-17")
def test_an_address_that_somebody_gave_by_hand_goes(node: Node) -> None:
    def netplan(node: Node) -> None:
        node.obey()
        node.call(["ip", "address", "replace", "10.9.9.9/24", "dev", NETDEV])

    node.netplan = netplan
    node.apply()
    assert node.held(NETDEV) == [RAIL.ip]


@pytest.mark.report("NET-06")
@pytest.mark.report("NET-25")
def test_networkmanager_lets_go_of_a_rail_before_netplan_sets_it_up(node: Node) -> None:
    node.is_nm_running = True
    node.managed = {NETDEV: "connecting (getting IP configuration)", "enP7s7": "connected", "lo": "unmanaged"}
    node.apply()
    assert node.calls == [*PUT_IN_FORCE[:3], f"nmcli device set {NETDEV} managed no", "netplan apply"]
    node.guard.restore()
    assert node.managed[NETDEV].startswith("connecting")  # it has its rail back
    assert node.held(NETDEV) == []


def test_networkmanager_that_does_not_let_go(node: Node) -> None:
    node.is_nm_running = True
    node.managed = {NETDEV: "connected"}

    def netplan(node: Node) -> None:
        node.obey()
        node.managed = {NETDEV: "connected"}

    node.netplan = netplan
    with pytest.raises(FabricError, match=f"^after netplan apply, NetworkManager manages {NETDEV} still within 20 s"):
        node.apply()


def foreign(node: Node, mode: int = 0o600) -> dict[str, Edit]:
    path = node.places.etc / "40-cx7.yaml"
    path.write_text(FOREIGN)
    path.chmod(mode)
    return {"40-cx7.yaml": Edit(hashlib.sha256(FOREIGN.encode()).hexdigest(), LEFT)}


@pytest.mark.report("NET-15")
def test_somebodys_file_is_adopted_on_trial_too(node: Node) -> None:
    edits = foreign(node, 0o640)
    node.apply(edits)
    path = node.places.etc / "40-cx7.yaml"
    assert path.read_text() == FOREIGN
    assert (node.places.run / "40-cx7.yaml").read_text() == LEFT
    node.guard.confirm()
    assert path.read_text() == LEFT
    assert path.stat().st_mode & 0o777 == 0o640
    assert (node.places.kept / "40-cx7.yaml").read_text() == FOREIGN
    assert (node.places.kept / "40-cx7.yaml.ours").read_text() == LEFT
    assert list(node.places.run.iterdir()) == []


@pytest.mark.report("NET-15")
def test_somebodys_file_is_as_it_was_when_it_is_taken_back(node: Node) -> None:
    node.apply(foreign(node))
    node.guard.restore()
    assert (node.places.etc / "40-cx7.yaml").read_text() == FOREIGN
    assert list(node.places.run.iterdir()) == []
    assert not node.places.kept.exists()


@pytest.mark.parametrize("when", ["before", "between"])
def test_a_file_that_changed_meanwhile_is_left_alone(node: Node, when: str) -> None:
    edits, path = foreign(node), node.places.etc / "40-cx7.yaml"
    changed = f"{path} was changed since the deploy read it; deploy again"
    if when == "before":
        path.write_text("other\n")
        with pytest.raises(FabricError, match=changed):
            node.apply(edits)
    else:
        node.apply(edits)
        path.write_text("other\n")
        with pytest.raises(FabricError, match=changed):
            node.guard.confirm()
        assert not (node.places.etc / fabric.NAME).exists()
        node.guard.restore()
    assert path.read_text() == "other\n"
    assert list(node.places.run.iterdir()) == []


def test_a_program_that_fails_says_what_it_said() -> None:
    with pytest.raises(FabricError, match=r"^sh -c echo why >&2; exit 3 exited 3: why$"):
        fabric.run(["sh", "-c", "echo why >&2; exit 3"])


def moved(node: Node) -> None:
    """Our file in force is of the other port, which still has its address."""
    old = 'network:\n  ethernets:\n    "enp1s0f1np1":\n      addresses: ["10.200.0.1/24"]\n      mtu: 9000\n'
    (node.places.etc / fabric.NAME).write_text(old)
    node.links["enp1s0f1np1"] = link(RAIL.ip, RAIL.mtu)
    node.links["enp1s0f1np1"]["addr_info"].append({"local": "10.9.9.9", "prefixlen": 24})


@pytest.mark.report("NET-03")
def test_a_rail_that_moves_to_another_port_leaves_its_address(tmp_path: Path) -> None:
    """And nothing else of the port that it leaves; taken back it has it again."""
    node = Node(tmp_path)
    moved(node)
    guard = Guard(node.places, node.call, pause=lambda seconds: None, clock=lambda: 0.0)
    guard.apply(Wanted(MANAGEMENT, [RAIL]))
    assert node.calls[-1] == "ip address delete 10.200.0.1/24 dev enp1s0f1np1"
    assert [info["local"] for info in node.links["enp1s0f1np1"]["addr_info"]] == ["fe80::1", "10.9.9.9"]
    guard.restore()
    assert "10.200.0.1" in [info["local"] for info in node.links["enp1s0f1np1"]["addr_info"]]
