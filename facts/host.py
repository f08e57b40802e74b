"""A node's hardware, system and network as its own tools tell them: frozen values, each part known or Unknown.

`brief` parts are read at every look (files, and tools that answer in milliseconds); `full` parts when doctor asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Interface

from facts.unknown import Unknown

NOT_ASKED = Unknown("not asked")


@dataclass(frozen=True)
class Release:
    """What the system calls itself: `id` "ubuntu", `version` "24.04", `dgx` "7.5.0" ("" where it is no DGX OS)."""

    id: str
    version: str
    name: str
    dgx: str = ""


@dataclass(frozen=True)
class Board:
    """The machine and its firmware, from DMI. `bios_date` as ISO 8601, "" where DMI has none."""

    product: str
    bios_version: str
    bios_date: str


@dataclass(frozen=True)
class Port:
    """One netdev of a ConnectX port with its HCA. A QSFP port has two: equal `function`, other PCI `domain`."""

    hca: str
    netdev: str
    mac: str
    pci: str
    """As "0000:01:00.0"; "" where sysfs does not say."""
    state: str
    """Of the RDMA port: ACTIVE, DOWN, INIT, ARMED."""
    carrier: bool | None
    """None while the netdev is administratively down."""
    mtu: int
    addresses: tuple[IPv4Interface, ...] = ()
    speed_mbps: int | None = None
    """Of the link; None where the kernel does not say."""
    firmware: str = ""
    active_mtu: int | None = None
    """RDMA's own, 256 to 4096 bytes; None where ibv_devinfo is not there or does not say."""
    link_width: int | None = None
    """PCIe lanes in use; None where sysfs does not say."""
    link_speed: str = ""
    """As sysfs says it: "32.0 GT/s PCIe"."""
    module: str = ""
    """Maker and part number of what is plugged in, by ethtool -m; "" where that was not asked or does not say."""

    @property
    def domain(self) -> str:
        """The PCI domain: the two halves of a port lie in two."""
        return self.pci.partition(":")[0]

    @property
    def function(self) -> str:
        """The PCI function: the port's number."""
        return self.pci.rpartition(".")[2]


@dataclass(frozen=True)
class Definition:
    """Settings of a netdev in somebody's file: netplan's, networkd's or NetworkManager's."""

    file: str
    line: int
    """Of its first line; 1 is the first of the file."""
    id: str
    """The key in netplan, the file's name elsewhere."""
    netdev: str
    """The netdev of ours that it is about."""
    kind: str
    """netplan, networkd or NetworkManager."""
    named: bool
    """Whether it names that netdev alone (not a pattern, nor a MAC address, nor a member of something)."""
    renderer: str = ""
    addresses: tuple[str, ...] = ()
    mtu: int | None = None
    volatile: bool = False
    """Whether it lies below /run, where a reboot forgets it."""


@dataclass(frozen=True)
class NmDevice:
    """A device as NetworkManager sees it: `state` "connected", "unmanaged"...; `connection` "" for none."""

    netdev: str
    kind: str
    state: str
    connection: str


@dataclass(frozen=True)
class NmProfile:
    """A connection profile: `file` "" where it lives in memory only; volatile where that is below /run."""

    name: str
    uuid: str
    file: str
    netdev: str

    @property
    def volatile(self) -> bool:
        return not self.file or self.file.startswith("/run/")


@dataclass(frozen=True)
class NetworkManager:
    """Whether it runs, and what it manages."""

    running: bool
    devices: tuple[NmDevice, ...] = ()
    profiles: tuple[NmProfile, ...] = ()


@dataclass(frozen=True)
class Firewall:
    """`manager` is ufw, firewalld, nftables (somebody's own rules) or "" (nothing filters what comes in).

    `drops` where what is not allowed is dropped or rejected; `rules` as the tool lists them, a line each."""

    manager: str
    drops: bool
    rules: tuple[str, ...] = ()


@dataclass(frozen=True)
class DockerSide:
    """What surrounds Docker on a node, beside what the daemon answers."""

    security: tuple[str, ...] = ()
    """docker info's SecurityOptions."""
    driver: str = ""
    root: str = ""
    containerd_store: bool = False
    """Images lie in containerd's store (docker info: Driver Status has io.containerd.snapshotter.v1)."""
    settings_runtimes: tuple[str, ...] = ()
    """Runtimes in /etc/docker/daemon.json."""
    settings_trouble: str = ""
    """Why that file cannot be read; "" where it can, or is not there."""
    snap: bool = False
    """Docker as a snap is installed."""
    packaged: bool = False
    """A dockerd from packages is installed."""
    rootless: tuple[str, ...] = ()
    """Sockets of rootless daemons below /run/user."""
    user_context: str = ""
    """The context that the user's own client uses; "" or "default" is the system's daemon."""
    user_in_group: bool | None = None
    """Whether the user who logs in is in the group docker; None where there is no such group."""
    memlock: int | None = None
    """What the daemon may lock in bytes, LimitMEMLOCK of docker.service; None is unlimited, or that it does not run."""
    daemons: tuple[tuple[int, str], ...] = ()
    """(pid, command line) of each dockerd that runs."""


@dataclass(frozen=True)
class GpuApp:
    """A process that uses the GPU; `mib` is None where the driver does not say."""

    pid: int
    command: str
    mib: int | None
    container: str | None


@dataclass(frozen=True)
class Gpu:
    """nvidia-smi's word on the GPU; figures that it gives as [N/A] or Not Supported are None."""

    name: str
    driver: str
    sm_mhz: float | None
    max_sm_mhz: float | None
    utilization: float | None
    power_watts: float | None
    temperature: float | None
    reasons: tuple[str, ...] = ()
    """Active clock event reasons, in nvidia-smi's words."""


@dataclass(frozen=True)
class Session:
    """The desktop: the default target, and processes of a graphical session, (pid, command)."""

    default_target: str
    graphical: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Clock:
    """`seconds` since the epoch as the node says it, `asked` and `answered` by the control machine's own clock, which
    stamps them around the probe (facts.node); `synchronized` as timedatectl says it, None where it does not."""

    seconds: float
    synchronized: bool | None = None
    service: str = ""
    asked: float | None = None
    answered: float | None = None


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket as ss tells it."""

    address: str
    port: int
    pid: int | None
    command: str


@dataclass(frozen=True)
class FirmwareDevice:
    """A device as fwupd knows it; `pending` is the version that waits for a reboot or that is offered, "" for none."""

    name: str
    version: str
    pending: str = ""


@dataclass(frozen=True)
class KernelLine:
    """A line of the kernel's log that is known to mean something."""

    signature: str
    text: str
    seconds: float | None = None
    """Since boot."""


@dataclass(frozen=True)
class Boot:
    """A boot in the journal; `ended` says how the one before ended: "clean", "cut" (the journal ends in the middle of
    work) or "" (not known)."""

    id: str
    ended: str = ""


@dataclass(frozen=True)
class HostFacts:
    """All of it. A part that was not asked for, or could not be read, is Unknown."""

    release: Release | Unknown = NOT_ASKED
    kernel: str | Unknown = NOT_ASKED
    page_size: int | Unknown = NOT_ASKED
    cmdline: tuple[str, ...] | Unknown = NOT_ASKED
    board: Board | Unknown = NOT_ASKED
    meminfo: Mapping[str, int] | Unknown = NOT_ASKED
    """/proc/meminfo in bytes, MemFree and CmaFree among it."""
    ports: tuple[Port, ...] | Unknown = NOT_ASKED
    devices: tuple[str, ...] | Unknown = NOT_ASKED
    """Names in /dev/infiniband."""
    definitions: tuple[Definition, ...] | Unknown = NOT_ASKED
    """Of the netdevs of any port, in files that are not ours."""
    network_texts: Mapping[str, str] | Unknown = NOT_ASKED
    """The netplan files that define such a netdev, whole; not ours."""
    network_manager: NetworkManager | Unknown = NOT_ASKED
    firewall: Firewall | Unknown = NOT_ASKED
    docker: DockerSide | Unknown = NOT_ASKED
    session: Session | Unknown = NOT_ASKED
    gpu_apps: tuple[GpuApp, ...] | Unknown = NOT_ASKED
    clock: Clock | Unknown = NOT_ASKED
    nccl_conf: str | Unknown | None = NOT_ASKED
    """/etc/nccl.conf of the node; None where there is none."""
    # Asked by doctor alone.
    gpu: tuple[Gpu, ...] | Unknown = NOT_ASKED
    listeners: tuple[Listener, ...] | Unknown = NOT_ASKED
    firmware: tuple[FirmwareDevice, ...] | Unknown = NOT_ASKED
    kernel_lines: tuple[KernelLine, ...] | Unknown = NOT_ASKED
    boots: tuple[Boot, ...] | Unknown = NOT_ASKED
    netplan: str | Unknown = NOT_ASKED
    """`netplan get`: all that netplan would put into force, merged."""
    pci: tuple[str, ...] | Unknown = NOT_ASKED
    """Addresses of the PCI functions that are a ConnectX-7, whether the kernel's driver took them or not."""
    pairs: tuple[str, ...] | Unknown = NOT_ASKED
    """ibdev2netdev's lines, as "rocep1s0f0 enp1s0f0np0 Up": a second opinion on which HCA has which netdev."""
    missing: tuple[str, ...] = field(default=())
    """Tools that are not installed and that a part was asked of."""
