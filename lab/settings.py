"""Names, addresses and places of the lab: constants, and what follows from the checkout's path."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
SOURCE = CHECKOUT / "lab"
LAB = CHECKOUT / ".lab"

# Two checkouts may have a lab each: every name outside LAB carries this.
TAG = "sp" + hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:6]

MANAGEMENT_NETDEV = "enP7s7"
MANAGEMENT_PREFIX = 24
CONTROL_ADDRESS = "192.168.77.1"
REGISTRY_PORT = 5000
REGISTRY = f"{CONTROL_ADDRESS}:{REGISTRY_PORT}"
HUB_PORT = 8900
HUB = f"http://{CONTROL_ADDRESS}:{HUB_PORT}"
"""What HF_ENDPOINT is set to."""
CDN_ADDRESS = "192.168.77.2"
"""The hub's CDN and the store of xet, at the two ports after the hub's: by the host name a client tells them apart."""
FAR_PORTS = (REGISTRY_PORT, HUB_PORT, HUB_PORT + 1, HUB_PORT + 2)
"""What stands for the internet."""

DISK_GIB = int(os.environ.get("LAB_DISK_GIB", "16"))
"""Size of each host's own disk. Sparse: it takes from the machine only what the host wrote."""


@dataclass(frozen=True)
class RailEnd:
    """One end of a rail: the netdev, and the HCA that a Spark would show for it."""

    number: int
    netdev: str
    hca: str
    pci: str
    mac: str


@dataclass(frozen=True)
class Host:
    """One simulated Spark."""

    name: str
    address: str
    user: str
    rails: tuple[RailEnd, ...]
    spare: tuple[RailEnd, ...]
    """The two netdevs of the other QSFP port: dark, unless a cable from there to a computer is put in (`pc`)."""
    number: int
    """The last number of its addresses on the rails."""
    gid_hole: int
    """Empty rows left in the GID table before the IPv4 rows, as after addresses that came and went:
    the two hosts then never agree on an index."""

    @property
    def hostname(self) -> str:
        """What the host calls itself, and its name in the inventory."""
        return f"lab-{self.name}"

    @property
    def ports(self) -> tuple[RailEnd, ...]:
        """All netdevs of its card."""
        return (*self.rails, *self.spare)

    @property
    def namespace(self) -> str:
        return f"{TAG}-{self.name}"

    @property
    def directory(self) -> Path:
        return LAB / "hosts" / self.name

    @property
    def disk_file(self) -> Path:
        return self.directory / "disk.img"

    @property
    def disk(self) -> Path:
        """Where the host's own disk is mounted."""
        return self.directory / "disk"

    @property
    def root(self) -> Path:
        """The host's root file system, as seen from the machine."""
        return self.directory / "root"

    @property
    def console(self) -> Path:
        return self.directory / "console.log"


HEAD = Host(
    name="head",
    address="192.168.77.11",
    user="spark",
    rails=(
        RailEnd(0, "enp1s0f0np0", "rocep1s0f0", "0000:01:00.0", "02:5a:00:00:01:00"),
        RailEnd(1, "enP2p1s0f0np0", "roceP2p1s0f0", "0002:01:00.0", "02:5a:00:00:01:01"),
    ),
    spare=(
        RailEnd(0, "enp1s0f1np1", "rocep1s0f1", "0000:01:00.1", "02:5a:00:00:01:10"),
        RailEnd(1, "enP2p1s0f1np1", "roceP2p1s0f1", "0002:01:00.1", "02:5a:00:00:01:11"),
    ),
    number=1,
    gid_hole=0,
)
WORKER = Host(
    name="worker",
    address="192.168.77.12",
    user="sparky",
    rails=(
        RailEnd(0, "enp1s0f1np1", "rocep1s0f1", "0000:01:00.1", "02:5a:00:00:02:00"),
        RailEnd(1, "enP2p1s0f1np1", "roceP2p1s0f1", "0002:01:00.1", "02:5a:00:00:02:01"),
    ),
    spare=(
        RailEnd(0, "enp1s0f0np0", "rocep1s0f0", "0000:01:00.0", "02:5a:00:00:02:10"),
        RailEnd(1, "enP2p1s0f0np0", "roceP2p1s0f0", "0002:01:00.0", "02:5a:00:00:02:11"),
    ),
    number=2,
    gid_hole=2,
)
HOSTS = {host.name: host for host in (HEAD, WORKER)}
RAIL_NUMBERS = (0, 1)

CONTROL_NAMESPACE = f"{TAG}-ctl"

CACHE = LAB / "cache"
REGISTRY_STORE = LAB / "registry"
REGISTRY_LOG = LAB / "registry.log"
IMAGES = LAB / "images.json"
STATE = LAB / "state.json"
KEY = Path(os.environ.get("LAB_KEY", LAB / "id_ed25519"))
"""The key of the control machine. LAB_KEY names another: reading the inventory then needs no lab."""
KNOWN_HOSTS = LAB / "known_hosts"

MODEL_ON_HEAD = "/srv/models/tiny"
WEIGHTS_ON_WORKER = "/srv/weights/tiny"
