#!/usr/bin/python3 -I
"""Stand-in for a Spark's hardware: RDMA sysfs and devices of its ConnectX-7 ports, and 128 GB of unified memory.

/sys/class/infiniband follows the real addresses and carrier of the rails' netdevs, as the kernel's RoCE GID table
does. /proc/meminfo shows a GB10's memory, of which the anonymous and shared memory that this host's processes
really hold is taken away.
"""

import ipaddress
import json
import os
import pathlib
import select
import shutil
import socket
import stat
import subprocess
import time

SETTINGS = json.loads(pathlib.Path("/etc/lab/hardware.json").read_text())
PLACE = pathlib.Path("/run/lab-standins")
CLASS = PLACE / "class"
TABLE_LENGTH = 256
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
# Reading the type of an empty row fails with EINVAL on real hardware; so does reading this file of the kernel.
UNREADABLE = "/proc/self/clear_refs"
V1, V2 = "IB/RoCE v1", "RoCE v2"


def run(*words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def put(path, text):
    """Replace a small file as a whole."""
    draft = path.with_name("." + path.name)
    draft.write_text(text + "\n")
    draft.replace(path)


def gid_text(address):
    """An address in the notation of sysfs; IPv4 is mapped into IPv6."""
    packed = ipaddress.ip_address(address).packed
    if len(packed) == 4:
        packed = bytes(10) + b"\xff\xff" + packed
    return ":".join(packed[place : place + 2].hex() for place in range(0, 16, 2))


def link_local(mac):
    """The address that the kernel derives from a MAC: a port's GID before it has any address."""
    octets = [int(part, 16) for part in mac.split(":")]
    octets[0] ^= 2
    words = [*octets[:3], 0xFF, 0xFE, *octets[3:]]
    pairs = [f"{words[i] << 8 | words[i + 1]:x}" for i in range(0, 8, 2)]
    return gid_text("fe80::" + ":".join(pairs))


class Port:
    """One HCA with its single port, presented under /sys/class/infiniband."""

    def __init__(self, rail, hole):
        self.netdev, self.first = rail["netdev"], 2 + hole
        self.home = CLASS / "infiniband" / rail["hca"]
        self.port = self.home / "ports/1"
        default = link_local(rail["mac"])
        self.rows = {0: (default, V1), 1: (default, V2)}
        self.shown = {}
        self.state = None
        for place in ("gids", "gid_attrs/types", "gid_attrs/ndevs", "counters", "hw_counters"):
            (self.port / place).mkdir(parents=True)
        (self.home / "device/net" / self.netdev).mkdir(parents=True)
        (self.home / "device/infiniband" / rail["hca"]).mkdir(parents=True)
        guid = default[20:]
        for name, text in {
            "node_type": "1: CA", "fw_ver": "28.45.4028", "hca_type": "MT4129", "hw_rev": "0x0",
            "board_id": "NVD0000000087", "node_guid": guid, "sys_image_guid": guid, "node_desc": socket.gethostname(),
            "device/uevent": f"DRIVER=mlx5_core\nPCI_SLOT_NAME={rail['pci']}", "device/numa_node": "-1",
            "ports/1/link_layer": "Ethernet", "ports/1/rate": "200 Gb/sec (4X HDR)", "ports/1/lid": "0x0",
            "ports/1/sm_lid": "0x0", "ports/1/lid_mask_count": "0", "ports/1/cap_mask": "0x00010000",
            "ports/1/sm_sl": "0",
        }.items():  # fmt: skip
            put(self.home / name, text)
        for index in range(TABLE_LENGTH):
            put(self.port / f"gids/{index}", EMPTY)
            for place in ("types", "ndevs"):
                (self.port / f"gid_attrs/{place}/{index}").symlink_to(UNREADABLE)

    def refresh(self, links):
        """Follow the netdev: one pair of rows per address, kept in place as long as the address is there."""
        link = links.get(self.netdev, {"flags": [], "addr_info": []})
        wanted = {gid_text(info["local"]): None for info in link["addr_info"] if "local" in info}
        wanted.pop(self.rows[0][0], None)
        for index, (gid, _) in list(self.rows.items()):
            if index > 1 and gid not in wanted:
                del self.rows[index]
        present = {gid for gid, _ in self.rows.values()}
        for gid in wanted:
            if gid not in present:
                for kind in (V1, V2):
                    index = next(i for i in range(self.first, TABLE_LENGTH) if i not in self.rows)
                    self.rows[index] = (gid, kind)
        for index in self.shown.keys() - self.rows.keys():
            put(self.port / f"gids/{index}", EMPTY)
            for place in ("types", "ndevs"):
                path = self.port / f"gid_attrs/{place}/{index}"
                path.unlink()
                path.symlink_to(UNREADABLE)
        for index, row in self.rows.items():
            if self.shown.get(index) != row:
                put(self.port / f"gid_attrs/types/{index}", row[1])
                put(self.port / f"gid_attrs/ndevs/{index}", self.netdev)
                put(self.port / f"gids/{index}", row[0])
        self.shown = dict(self.rows)
        lit = {"UP", "LOWER_UP"} <= set(link["flags"])
        if lit != self.state:
            put(self.port / "state", "4: ACTIVE" if lit else "1: DOWN")
            put(self.port / "phys_state", "5: LinkUp" if lit else "3: Disabled")
            self.state = lit


def present_ports():
    """Lay a copy of /sys/class with an infiniband class over the real one; links within it keep working."""
    # Started again after a failure: what lies over the real places goes first.
    for place in ("/proc/meminfo", "/sys/class"):
        while subprocess.run(["umount", "--recursive", place], capture_output=True).returncode == 0:
            pass
    for place in CLASS.glob("*"):
        subprocess.run(["umount", str(place)], capture_output=True)
    shutil.rmtree(CLASS, ignore_errors=True)
    CLASS.mkdir(parents=True)
    for entry in sorted(os.listdir("/sys/class")):
        (CLASS / entry).mkdir()
        run("mount", "--bind", f"/sys/class/{entry}", str(CLASS / entry))
    (CLASS / "infiniband").mkdir(exist_ok=True)
    ports = [Port(rail, SETTINGS["gid_hole"]) for rail in SETTINGS["rails"]]
    run("mount", "--rbind", str(CLASS), "/sys/class")
    devices = pathlib.Path("/dev/infiniband")
    devices.mkdir(exist_ok=True)
    nodes = {f"uverbs{i}": (231, 192 + i) for i in range(len(ports))}
    nodes["rdma_cm"] = (10, 122)
    for name, numbers in nodes.items():
        if not (devices / name).exists():
            os.mknod(devices / name, stat.S_IFCHR, os.makedev(*numbers))
        os.chmod(devices / name, 0o666)
    return ports


def held_kib():
    """What the processes of this host hold and the kernel could not take back."""
    total = 0
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/status") as status:
                for line in status:
                    if line.startswith(("RssAnon:", "RssShmem:")):
                        total += int(line.split()[1])
        except OSError:
            continue
    return total


class Memory:
    """/proc/meminfo of a GB10 with nothing else running."""

    def __init__(self):
        self.total = SETTINGS["memory_total_kib"]
        self.path = PLACE / "meminfo"
        self.path.write_text(self.text(held_kib()))
        run("mount", "--bind", str(self.path), "/proc/meminfo")
        self.file = os.open(self.path, os.O_WRONLY)

    def text(self, held):
        cached = 1_600_000
        free = max(self.total - 2_400_000 - cached - held, 0)
        values = {
            "MemTotal": self.total, "MemFree": free, "MemAvailable": min(free + cached, self.total),
            "Buffers": 120_000, "Cached": cached, "SwapCached": 0, "Active": 900_000, "Inactive": 1_100_000,
            "Unevictable": 0, "Mlocked": 0, "SwapTotal": 0, "SwapFree": 0, "Dirty": 64, "Writeback": 0,
            "AnonPages": held, "Mapped": 300_000, "Shmem": 20_000, "KReclaimable": 200_000, "Slab": 500_000,
            "SReclaimable": 200_000, "SUnreclaim": 300_000, "PageTables": 12_000, "Committed_AS": held,
        }  # fmt: skip
        # Every line of one length, so that a reader never meets half of an old and half of a new text.
        return "".join(f"{name + ':':<15}{value:>10} kB\n" for name, value in values.items())

    def refresh(self):
        os.pwrite(self.file, self.text(held_kib()).encode(), 0)


def notify(text):
    """Tell systemd."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(text.encode(), "\0" + address[1:] if address.startswith("@") else address)


def main():
    ports = present_ports()
    memory = Memory()
    monitor = subprocess.Popen(["ip", "monitor", "link", "address"], stdout=subprocess.PIPE)
    ready = False
    while True:
        links = {link["ifname"]: link for link in json.loads(run("ip", "-j", "address"))}
        for port in ports:
            port.refresh(links)
        memory.refresh()
        if not ready:
            notify("READY=1")
            ready = True
        # At once when an address or a carrier changes; otherwise each second, for the memory.
        until = time.monotonic() + 1
        readable, _, _ = select.select([monitor.stdout], [], [], 1)
        if readable:
            time.sleep(0.02)
            os.read(monitor.stdout.fileno(), 1 << 16)
        elif until > time.monotonic():
            time.sleep(until - time.monotonic())


main()
