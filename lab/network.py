"""Namespaces and cables: the control machine, two hosts, a management switch, two rails, and a port to spare.

A rail is a cable of its own: each host holds one end of a veth, the other ends lie in the control namespace on a
bridge without an address. Pulling the cable sets those far ends down, so that both hosts see the carrier go
while nothing inside them was touched.
"""

from __future__ import annotations

import time
from pathlib import Path

from lab.settings import (
    CONTROL_ADDRESS,
    CONTROL_NAMESPACE,
    FAR_PORTS,
    HOSTS,
    MANAGEMENT_NETDEV,
    MANAGEMENT_PREFIX,
    RAIL_NUMBERS,
    Host,
)
from lab.shell import LabError, inside, lock, quiet, run

RAIL_CABLE_MTU = 9500
HOST_LETTER = {"head": "h", "worker": "w"}


def exists(namespace: str) -> bool:
    """Whether a namespace of this name is there and can be entered."""
    return Path(f"/run/netns/{namespace}").exists() and quiet(*inside(namespace, "true"))


def ip(namespace: str, *words: object) -> None:
    """Run ip(8) on a namespace."""
    run("ip", "-n", namespace, *words)


def far_end(host: Host, rail: int) -> str:
    """The cable's end of a host's rail, in the control namespace."""
    return f"r{rail}-{HOST_LETTER[host.name]}"


def spare_end(host: Host, number: int) -> str:
    """What is at the other end of a host's spare port, if anything."""
    return f"s{number}-{HOST_LETTER[host.name]}"


def pc(host: Host, plugged: bool) -> None:
    """A cable from the host's spare port to a computer that is none of the pair: both netdevs get a carrier, and nobody
    answers there."""
    for end in host.spare:
        ip(CONTROL_NAMESPACE, "link", "set", spare_end(host, end.number), "up" if plugged else "down")


def move(host: Host, spare: bool) -> None:
    """Put the host's end of the pair's cable into its other port, or back into the first one."""
    for end in host.rails:
        first, other = far_end(host, end.number), spare_end(host, end.number)
        pulled, plugged = (first, other) if spare else (other, first)
        ip(CONTROL_NAMESPACE, "link", "set", pulled, "nomaster")
        ip(CONTROL_NAMESPACE, "link", "set", pulled, "down")
        ip(CONTROL_NAMESPACE, "link", "set", plugged, "mtu", RAIL_CABLE_MTU)
        ip(CONTROL_NAMESPACE, "link", "set", plugged, "master", f"rail{end.number}")
        ip(CONTROL_NAMESPACE, "link", "set", plugged, "up")


def create_control() -> None:
    """Make the control namespace: the management switch, the control machine's address, the rails' cables."""
    run("ip", "netns", "add", CONTROL_NAMESPACE)
    ip(CONTROL_NAMESPACE, "link", "set", "lo", "up")
    ip(CONTROL_NAMESPACE, "link", "add", "br0", "type", "bridge")
    ip(CONTROL_NAMESPACE, "addr", "add", f"{CONTROL_ADDRESS}/{MANAGEMENT_PREFIX}", "dev", "br0")
    for rail in RAIL_NUMBERS:
        ip(CONTROL_NAMESPACE, "link", "add", f"rail{rail}", "type", "bridge", "mcast_snooping", 0)
    bridges = ["br0", *(f"rail{rail}" for rail in RAIL_NUMBERS)]
    for bridge in bridges:
        # A cable has no address of its own, not even a link-local one.
        quiet(*inside(CONTROL_NAMESPACE, "sysctl", "-qw", f"net.ipv6.conf.{bridge}.disable_ipv6=1"))
        ip(CONTROL_NAMESPACE, "link", "set", bridge, "up")
    for rail in RAIL_NUMBERS:
        ip(CONTROL_NAMESPACE, "link", "set", f"rail{rail}", "mtu", RAIL_CABLE_MTU)


def create_host(host: Host) -> None:
    """Make a host's namespace with its network devices, all down and without settings."""
    run("ip", "netns", "add", host.namespace)
    cables = [(MANAGEMENT_NETDEV, f"m-{HOST_LETTER[host.name]}", "br0", management_mac(host))]
    cables += [(end.netdev, far_end(host, end.number), f"rail{end.number}", end.mac) for end in host.rails]
    for netdev, far, bridge, mac in cables:
        ip(CONTROL_NAMESPACE, "link", "add", far, "type", "veth",
           "peer", "name", netdev, "address", mac, "netns", host.namespace)  # fmt: skip
        quiet(*inside(CONTROL_NAMESPACE, "sysctl", "-qw", f"net.ipv6.conf.{far}.disable_ipv6=1"))
        ip(CONTROL_NAMESPACE, "link", "set", far, "master", bridge)
        if bridge != "br0":
            ip(CONTROL_NAMESPACE, "link", "set", far, "mtu", RAIL_CABLE_MTU)
        ip(CONTROL_NAMESPACE, "link", "set", far, "up")
    for end in host.spare:
        far = spare_end(host, end.number)
        ip(CONTROL_NAMESPACE, "link", "add", far, "type", "veth",
           "peer", "name", end.netdev, "address", end.mac, "netns", host.namespace)  # fmt: skip
        quiet(*inside(CONTROL_NAMESPACE, "sysctl", "-qw", f"net.ipv6.conf.{far}.disable_ipv6=1"))
    ip(host.namespace, "link", "set", "lo", "up")


def management_mac(host: Host) -> str:
    """The address of the management port."""
    return host.rails[0].mac[:-2] + "77"


def power_on(host: Host) -> None:
    """Give the host a network as it is after a cold start: its devices and nothing else.

    Addresses, routes, MTU, filter rules and sysctls live in the namespace, so a reboot in the same one would find
    them all still there. The devices move to a new namespace of the same name; the cables keep their state.
    """
    netdevs = [MANAGEMENT_NETDEV, *(end.netdev for end in host.ports)]
    with lock("network.lock"):
        renew(host, netdevs)
        light_rails()


def renew(host: Host, netdevs: list[str]) -> None:
    """Move the devices to a new namespace of the same name."""
    waiting = f"{host.namespace}-next"
    quiet("ip", "netns", "del", waiting)
    run("ip", "netns", "add", waiting)
    for netdev in netdevs:
        ip(host.namespace, "link", "set", netdev, "netns", waiting)
    run("ip", "netns", "del", host.namespace)
    run("ip", "netns", "add", host.namespace)
    ip(host.namespace, "link", "set", "lo", "up")
    for netdev in netdevs:
        ip(waiting, "link", "set", netdev, "netns", host.namespace)
        ip(host.namespace, "link", "set", netdev, "down", "mtu", 1500)
    run("ip", "netns", "del", waiting)
    for end in host.ports:
        # The port has link as soon as the card has power, long before an operating system asks for it.
        ip(host.namespace, "link", "set", end.netdev, "up")


def power_off(host: Host) -> None:
    """Take the host off its networks: no carrier at its devices, nothing answers for it any more."""
    for netdev in [MANAGEMENT_NETDEV, *(end.netdev for end in host.ports)]:
        quiet("ip", "-n", host.namespace, "addr", "flush", "dev", netdev)
        quiet("ip", "-n", host.namespace, "link", "set", netdev, "down")
    with lock("network.lock"):
        light_rails()


def cut_marker(rail: int) -> str:
    """An alias on the cable's bridge: the cut is remembered where the cable is."""
    return f"cut{rail}"


def is_cut(rail: int) -> bool:
    """Whether this cable was pulled by `cut`."""
    shown = run("ip", "-n", CONTROL_NAMESPACE, "link", "show", f"rail{rail}").stdout
    return f"alias {cut_marker(rail)}" in shown


def powered(host: Host, netdev: str) -> bool:
    """Whether the host's end of a cable is lit."""
    shown = run("ip", "-n", host.namespace, "-o", "link", "show", netdev, check=False, capture_output=True).stdout
    return "UP" in shown.partition("<")[2].partition(">")[0].split(",")


def light_rails() -> None:
    """Let each end see light only when the cable is in and the other end has power, as on a direct cable."""
    hosts = list(HOSTS.values())
    for rail in RAIL_NUMBERS:
        cut = is_cut(rail)
        lit = {host.name: powered(host, host.rails[rail].netdev) for host in hosts}
        for host in hosts:
            others = [name for name in lit if name != host.name]
            state = "up" if not cut and all(lit[name] for name in others) else "down"
            if exists_link(far_end(host, rail)):
                ip(CONTROL_NAMESPACE, "link", "set", far_end(host, rail), state)


def exists_link(name: str) -> bool:
    """Whether the control namespace has this device."""
    return quiet("ip", "-n", CONTROL_NAMESPACE, "link", "show", name)


def cut(rail: int) -> None:
    """Pull the cable of a rail."""
    run("ip", "-n", CONTROL_NAMESPACE, "link", "set", f"rail{rail}", "alias", cut_marker(rail))
    with lock("network.lock"):
        light_rails()


def join(rail: int) -> None:
    """Put the cable of a rail back."""
    run("ip", "-n", CONTROL_NAMESPACE, "link", "set", f"rail{rail}", "alias", "")
    with lock("network.lock"):
        light_rails()


def loss(rail: int, permille: int) -> None:
    """Lose packets at random on a rail, each direction by itself; 0 stops it.

    This kernel may have no netem: nftables draws the numbers at both ends of the cable.
    """
    if not 0 <= permille <= 1000:
        raise LabError(f"loss {permille}: per mille, 0 to 1000")
    rules = [f"table netdev loss{rail} {{}}", f"delete table netdev loss{rail}"]
    if permille:
        rules.append(f"table netdev loss{rail} {{")
        for host in HOSTS.values():
            end = far_end(host, rail)
            rules.append(
                f' chain from_{host.name} {{ type filter hook ingress device "{end}" priority 0;'
                f" numgen random mod 1000 < {permille} counter drop; }}"
            )
        rules.append("}")
    run(*inside(CONTROL_NAMESPACE, "nft", "-f", "-"), input="\n".join(rules) + "\n")


def unplug(host: Host) -> None:
    """Pull a host's management cable; the switch's port goes dark. `plug` puts it back."""
    ip(CONTROL_NAMESPACE, "link", "set", f"m-{HOST_LETTER[host.name]}", "down")


def plug(host: Host) -> None:
    """Put a host's management cable back."""
    ip(CONTROL_NAMESPACE, "link", "set", f"m-{HOST_LETTER[host.name]}", "up")


def far_side_table(host: Host) -> str:
    """The nftables table that keeps a host from the far side."""
    return f"offline_{host.name}"


def offline(host: Host) -> None:
    """Keep a host from what stands for the internet, as a firewall does that drops; everything else it reaches.

    The rule lies at the switch, outside the host, so that it survives the host's reboot and nothing there shows it.
    """
    table, ports = far_side_table(host), ", ".join(map(str, FAR_PORTS))
    rules = (
        f"table netdev {table} {{}}\ndelete table netdev {table}\ntable netdev {table} {{ chain out {{"
        f' type filter hook ingress device "m-{HOST_LETTER[host.name]}" priority 0;'
        f" tcp dport {{ {ports} }} counter drop; }}; }}\n"
    )
    run(*inside(CONTROL_NAMESPACE, "nft", "-f", "-"), input=rules)


def online(host: Host) -> None:
    """Let a host reach the far side again."""
    quiet(*inside(CONTROL_NAMESPACE, "nft", "delete", "table", "netdev", far_side_table(host)))


def is_offline(host: Host) -> bool:
    """Whether `offline` holds for a host."""
    return quiet(*inside(CONTROL_NAMESPACE, "nft", "list", "table", "netdev", far_side_table(host)))


def delete_all() -> None:
    """Remove every namespace of this checkout, and with them all their devices."""
    names = [CONTROL_NAMESPACE]
    for host in HOSTS.values():
        names += [host.namespace, f"{host.namespace}-next"]
    for name in names:
        place = Path(f"/run/netns/{name}")
        if not place.exists():
            continue
        for _ in range(20):
            if quiet("ip", "netns", "del", name) or not place.exists():
                break
            time.sleep(0.1)
        else:
            raise LabError(f"namespace {name} cannot be removed: `ip netns del {name}` says why")
