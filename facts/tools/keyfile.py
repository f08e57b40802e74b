"""NetworkManager's profiles as files, /etc/NetworkManager/system-connections/*.nmconnection."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable

from facts.host import Definition
from facts.tools import ini
from facts.tools.netdevs import Netdev


def netdev_of(text: str) -> str:
    """The netdev that a profile names; "" where it names none."""
    return next((e.value for e in ini.entries(text) if (e.section, e.key) == ("connection", "interface-name")), "")


def definitions(path: str, text: str, netdevs: Iterable[Netdev]) -> list[Definition]:
    """One per netdev that the profile names, by name, by a pattern or by its MAC address. One that names none is for
    whatever is there: NetworkManager's own devices tell where it is used."""
    read = ini.entries(text)
    values = {(entry.section, entry.key): entry for entry in read}
    external = values.get((".nmmeta", "external"))
    if external is not None and external.value == "true":
        return []  # only mirrors what somebody else has set
    name = values.get(("connection", "interface-name"))
    pattern = values.get(("match", "interface-name"))
    mac = values.get(("ethernet", "mac-address")) or values.get(("802-3-ethernet", "mac-address"))
    identity = values.get(("connection", "id"))
    mtu = values.get(("ethernet", "mtu")) or values.get(("802-3-ethernet", "mtu"))
    addresses = tuple(
        entry.value.split(",")[0]
        for entry in read
        if entry.section == "ipv4" and re.fullmatch(r"address(es)?\d*", entry.key) and entry.value
    )
    found = []
    for netdev in netdevs:
        about = _about(netdev, name, pattern, mac)
        if about is not None:
            found.append(
                Definition(
                    file=path,
                    line=about.line,
                    id=identity.value if identity else path.rpartition("/")[2],
                    netdev=netdev.name,
                    kind="NetworkManager",
                    named=about is name,
                    renderer="NetworkManager",
                    addresses=addresses,
                    mtu=int(mtu.value) if mtu and re.fullmatch(r"[1-9][0-9]{0,5}", mtu.value) else None,
                    volatile=path.startswith("/run/"),
                )
            )
    return found


def _about(
    netdev: Netdev, name: ini.Entry | None, pattern: ini.Entry | None, mac: ini.Entry | None
) -> ini.Entry | None:
    """The line by which it means the netdev."""
    if name is not None and name.value:
        return name if name.value == netdev.name else None
    if pattern is not None and pattern.value:
        words = [word for word in re.split(r"[;,\s]+", pattern.value) if word]
        return pattern if any(fnmatch.fnmatchcase(netdev.name, word) for word in words) else None
    if mac is not None and netdev.mac and mac.value.lower().replace("-", ":") == netdev.mac.lower():
        return mac
    return None
