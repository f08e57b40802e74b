"""Rows about the nodes as they are found: rails that nobody set up, that somebody else set up, or that a change of the
network takes the login away with. One deploy each, a reboot, and nothing planned after it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from lab import network
from lab.settings import HEAD, WORKER, Host
from spec import objects
from tests.lab import pair
from tests.lab.chaos import Row
from tests.lab.chaos_rows import use

RAILS = [rail.netdev for rail in WORKER.rails]
ADDRESSES = [f"10.200.{rail.number}.{WORKER.number}" for rail in WORKER.rails]
SET_UP = "Fabric | Set the rails up"
FIREWALL = "Fabric | Open the firewall for the rails"
AWAY_SECONDS = 60
"""For how long a node may be away when its network was changed."""
PLAYBOOK = f"""\
network:
  version: 2
  ethernets:
    # the first half of the port
    {RAILS[0]}:
      addresses:
        - 192.168.100.11/24
      dhcp4: no
    {RAILS[1]}:
      addresses:
        - 192.168.101.11/24
      dhcp4: no
"""


def contract(*more: str) -> tuple[str, ...]:
    """Arguments of every run here."""
    return use("contract", *more)


def converge(*more: str) -> None:
    """The pair serves, and there is nothing to do."""
    if pair.dry(*contract(*more)).plan != {}:
        run = pair.deploy(*contract(*more))
        assert run.code == 0, run.text[-1500:]
    pair.wait_running()


def without_ours(host: Host) -> None:
    """The host as before any deploy, as far as its rails go."""
    pair.on(host, f"rm -f {objects.NETPLAN_FILE} && netplan generate && netplan apply")
    for netdev in RAILS:
        pair.on(host, f"ip address flush dev {netdev}; ip link set {netdev} mtu 1500 up")


def works(*more: str) -> str:
    """The rails carry full packets, and do so after a reboot of the host; verify holds, and nothing is planned."""
    held = pair.on(WORKER, "ip -4 -o address show")
    for netdev, address in zip(RAILS, ADDRESSES, strict=True):
        assert [line.split()[3] for line in held.splitlines() if f" {netdev} " in line] == [f"{address}/24"], held
        pair.on(HEAD, f"ping -c 1 -W 2 -M do -s 8972 {address}")
    assert pair.dry(*contract(*more)).plan == {}, "planned again"
    pair.lab("reboot", WORKER.name)
    pair.wait_for(lambda: reachable(ADDRESSES[0]) and reachable(ADDRESSES[1]), 60, "the rails after a reboot")
    pair.wait_running()
    assert pair.dry(*contract(*more)).plan == {}, "planned after a reboot"
    # The keeper may not have seen yet that its worker was away, and starts the pair anew then.
    pair.wait_for(lambda: pair.verify(*contract(*more)).code == 0, 120, "verify")
    return "full packets pass, also after a reboot; nothing planned again, verify holds"


def reachable(address: str) -> bool:
    """Whether a packet of full size comes back from the worker."""
    return "1 received" in pair.on(HEAD, f"ping -c 1 -W 1 -M do -s 8972 {address}", check=False)


def repaired(spoil: Callable[[], object], *more: str, told: tuple[str, ...] = (), rows: tuple[str, ...] = ()) -> str:
    """Spoiled, planned as what it is, and one deploy sets it right. The pair serves before."""
    spoil()
    planned = pair.dry(*contract(*more)).plan
    assert planned == {row: [WORKER.hostname] for row in (rows or (SET_UP,))}, planned
    run = pair.deploy(*contract(*more))
    assert run.code == 0, run.text[-1500:]
    text = " ".join(run.text.split())
    for words in told:
        assert words in text, f"{words!r} was not told: {run.text[-2500:]}"
    return f"one deploy of {run.seconds:.0f} s; {works(*more)}"


def without_address() -> str:
    """NET-06: cable in, link up, nothing set up."""
    converge()
    return repaired(lambda: without_ours(WORKER))


def wrong_mtu() -> str:
    """NET-09: as firmware leaves it, on one of the twins."""
    converge()
    return repaired(partial(pair.on, WORKER, f"ip link set {RAILS[1]} mtu 1500"))


def by_hand() -> str:
    """NET-17: the right address by hand on one rail, a strange one on the other, and no file."""

    def spoil() -> None:
        without_ours(WORKER)
        pair.on(WORKER, f"ip address add {ADDRESSES[0]}/24 dev {RAILS[0]}; ip address add 10.9.9.9/24 dev {RAILS[1]}")

    converge()
    return repaired(spoil, told=(f"rail 1: {RAILS[1]} has 10.9.9.9/24, which {objects.NETPLAN_FILE} does not give it",))


def foreign_file() -> str:
    """NET-15: a playbook's file sets the rails up. Refused with its lines; taken over with the knob, and given back by
    removal."""
    path = "/etc/netplan/40-cx7.yaml"

    def spoil() -> None:
        without_ours(WORKER)
        pair.on(WORKER, f"cat > {path} <<'E'\n{PLAYBOOK}E\nchmod 600 {path} && netplan apply")

    converge()
    spoil()
    try:
        refused = pair.dry(*contract())
        assert refused.code == 1, refused.text[-1500:]
        for words in (f"rail 0: {RAILS[0]} is set up in {path} line 5", "- 192.168.100.11/24", "adopt_rails = True"):
            assert words in refused.text, refused.text[-2500:]
        knob = ("--data", "adopt_rails=True")
        seen = repaired(spoil, *knob, told=(f"{path} line 5; the deploy takes it over",))
        assert pair.on(WORKER, f"cat {objects.ADOPTED}/40-cx7.yaml") == PLAYBOOK
        left = pair.on(WORKER, f"cat {path}")
        assert f"#     {RAILS[0]}:" in left and "# the first half" in left, left
        arguments = ("-y", *contract(*knob), "--data", "remove_also=rails", "inventory.py", "../remove.py")
        run = pair.start_deploy(*arguments).wait(300)
        assert run.code == 0, run.text[-1500:]
        assert pair.on(WORKER, f"cat {path}") == PLAYBOOK
        held = pair.on(WORKER, "ip -4 -o address show")
        assert "192.168.100.11/24" in held and "10.200." not in held, held
    finally:
        pair.on(WORKER, f"rm -f {path}; netplan generate; netplan apply")
    converge()
    return f"refused with the lines; with adopt_rails: {seen}; removal gave the file back as it was"


@contextmanager
def network_manager() -> Iterator[None]:
    """NetworkManager on the worker, managing what nobody else does, as on DGX OS. It leaves a veth alone by a rule of
    its own, so that rule is shadowed: the netdevs of a real port are none."""
    rule = "85-nm-unmanaged.rules"
    pair.on(
        WORKER,
        f"sed /veth/d /usr/lib/udev/rules.d/{rule} > /etc/udev/rules.d/{rule}; udevadm control --reload;"
        " systemctl enable --now NetworkManager",
    )
    try:
        yield
    finally:
        pair.on(WORKER, f"systemctl disable --now NetworkManager; rm -f /etc/udev/rules.d/{rule}", check=False)


def managed() -> str:
    """What NetworkManager says of the worker's rails."""
    return pair.on(WORKER, "nmcli -t -f DEVICE,STATE device", check=False)


def managed_by_networkmanager() -> str:
    """NET-06, NET-08: a generic profile with DHCP in /run, which takes the address away again after 45 s."""
    converge()
    with network_manager():

        def spoil() -> None:
            without_ours(WORKER)
            pair.on(WORKER, "udevadm trigger --action=add --subsystem-match=net --settle")
            pair.on(WORKER, "systemctl restart NetworkManager")
            pair.wait_for(lambda: all(f"{netdev}:connecting" in managed() for netdev in RAILS), 30, "DHCP on the rails")

        seen = repaired(spoil, told=(f"rail 0: NetworkManager manages {RAILS[0]} by the profile",))
        assert all(f"{netdev}:unmanaged" in managed() for netdev in RAILS), managed()
        network.cut(0)
        try:
            time.sleep(3)
            assert f"{ADDRESSES[0]}/24" in pair.on(WORKER, "ip -4 -o address show"), "a cut took the address away"
        finally:
            network.join(0)
        pair.wait_for(lambda: reachable(ADDRESSES[0]), 20, "the rail after a cut")
        pair.wait_running()
        assert pair.dry(*contract()).plan == {}
        return f"{seen}; NetworkManager lets go of both rails, and a cut takes no address away"


def carrier_flap() -> str:
    """NET-25: a cable that is out for a moment, time and again, takes no address away."""
    converge()
    for _ in range(3):
        network.cut(1)
        time.sleep(1)
        held = pair.on(WORKER, "ip -4 -o address show")
        assert f"{ADDRESSES[1]}/24" in held, held
        network.join(1)
        time.sleep(1)
    pair.wait_for(lambda: reachable(ADDRESSES[1]), 20, "the rail after three cuts")
    pair.wait_running()
    assert pair.dry(*contract()).plan == {}
    return "three cuts of a second each: the address stays, nothing is planned"


class Watch(threading.Thread):
    """Whether the worker answers at its management address, several times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.away: list[tuple[float, float]] = []
        self.ended = threading.Event()

    def run(self) -> None:
        lost = None
        while not self.ended.is_set():
            begun = time.monotonic()
            if not is_there():
                lost = lost or begun
            else:
                if lost:
                    self.away.append((lost, time.monotonic()))
                lost = None
            time.sleep(0.1)

    @property
    def longest(self) -> float:
        """The longest time without an answer, in seconds."""
        return max((end - begin for begin, end in self.away), default=0.0)


def cut_off(edit: str, words: tuple[str, ...], *, undone: str) -> str:
    """A deploy whose `netplan apply` takes the management address away: the node has it back by itself, and the deploy
    fails with one message. `edit` makes somebody's file so, without applying it; `undone` makes it good again."""
    converge()
    pair.on(WORKER, f"ip link set {RAILS[0]} mtu 1500; {edit}")
    watch = Watch()
    watch.start()
    try:
        run = pair.start_deploy("-y", *contract()).wait(300)
        pair.wait_for(is_there, AWAY_SECONDS, "the worker")
        time.sleep(1)
    finally:
        watch.ended.set()
        watch.join(5)
        pair.on(WORKER, undone)
    assert run.code == 1, run.text[-1500:]
    assert "Traceback" not in run.text, run.text[-1500:]
    errors = [line for line in run.text.splitlines() if "[lab-worker]" in line and "Connected" not in line]
    message = " ".join(run.text.split())
    for text in words:
        assert text in message, f"{text!r} was not said: {errors}"
    assert 1 < watch.longest < AWAY_SECONDS, watch.away
    assert "sparkpair-fabric-rollback" not in pair.on(WORKER, "systemctl list-timers --all")
    assert pair.on(WORKER, f"cat /sys/class/net/{RAILS[0]}/mtu").strip() == "1500", "the rails are not as they were"
    again = pair.deploy(*contract())
    assert again.code == 0, again.text[-1500:]
    assert pair.dry(*contract()).plan == {}
    return f"away for {watch.longest:.1f} s, exit 1 after {run.seconds:.0f} s with one message; the next deploy works"


def is_there() -> bool:
    """Whether the worker refuses a connection to a port on which nobody listens. Not sshd's: that one answers nobody
    any more who comes this often and says nothing."""
    try:
        socket.create_connection((WORKER.address, 9), 0.7).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True


def edited_and_not_applied() -> str:
    """NET-07: the management file holds another address since somebody edited it, and nobody has applied it."""
    file = "/etc/netplan/10-management.yaml"
    return cut_off(
        f"cp -p {file} /root/management; sed -i s/{WORKER.address}/192.168.77.99/ {file}",
        (
            "the management address 192.168.77.12 is gone",
            "The rails are as they were",
            "enP7s7 has its management address 192.168.77.12",
        ),
        undone=f"cp -p /root/management {file}; ip address delete 192.168.77.99/24 dev enP7s7 || true",
    )


def kept_out_by_a_route() -> str:
    """The address stays, and no answer finds its way out any more: whoever deploys sees that, and the node's timer,
    which waits for nobody."""
    file = "/etc/netplan/10-management.yaml"
    route = "{to: 192.168.77.1/32, via: 192.168.77.254}"
    return cut_off(
        f"cp -p {file} /root/management; sed -i 's|routes: .|&{route}, |' {file}",
        ("the confirmation came too late, and the rails are as they were",),
        undone=f"cp -p /root/management {file}; ip route delete 192.168.77.1 || true",
    )


def firewall() -> str:
    """NET-21: ufw with its defaults on the worker: the rails' peers are let in, and nobody else."""

    def spoil() -> None:
        pair.on(WORKER, "ufw allow 22/tcp && systemctl enable ufw && ufw --force enable")

    converge()
    try:
        spoil()
        shut = pair.on(HEAD, f"timeout 2 bash -c 'echo > /dev/tcp/{ADDRESSES[0]}/45123' 2>&1; echo $?", check=False)
        assert shut.strip().endswith("124"), shut  # dropped, not refused
        refused = pair.dry(*contract("--data", "open_firewall=False"))
        assert refused.code == 1 and "sudo ufw prepend allow in on" in refused.text, refused.text[-1500:]
        seen = repaired(lambda: None, told=("its firewall (ufw) keeps the rails' peers out",), rows=(FIREWALL,))
        for address in ADDRESSES:
            opened = pair.on(HEAD, f"timeout 2 bash -c 'echo > /dev/tcp/{address}/45123' 2>&1; echo $?", check=False)
            assert "refused" in opened, opened
        outside = "timeout 2 bash -c 'echo > /dev/tcp/192.168.77.12/45123' 2>&1; echo $?"
        assert pair.on(HEAD, outside, check=False).strip().endswith("124"), "the management network was let in"
        run = pair.start_deploy("-y", *contract(), "inventory.py", "../remove.py").wait(300)
        assert run.code == 0, run.text[-1500:]
        assert "10.200." not in pair.on(WORKER, "ufw status"), "a rule of ours stayed"
    finally:
        pair.on(WORKER, "ufw --force reset; systemctl disable ufw", check=False)
    converge()
    return f"{seen}; a random port of the rails answers the peer, none of the management network; removal closes again"


ROWS = [
    Row("rails without an address", "contract", without_address),
    Row("a rail with the wrong MTU", "contract", wrong_mtu),
    Row("rails with addresses by hand", "contract", by_hand),
    Row("rails in somebody's netplan file", "contract", foreign_file),
    Row("rails that NetworkManager manages", "contract", managed_by_networkmanager),
    Row("a cable that is out for a moment", "contract", carrier_flap),
    Row("netplan apply takes the management address away", "contract", edited_and_not_applied),
    Row("netplan apply keeps the control machine out", "contract", kept_out_by_a_route),
    Row("ufw on the worker", "contract", firewall),
]
