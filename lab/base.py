"""The hosts' operating system: Debian packages, and on them a layer that makes a host look like a Spark."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from lab import disks, settings
from lab.shell import LabError, contained, digest, quiet, run, say, stage, write

SUITE = "trixie"
"""Nearer to DGX OS (Ubuntu 24.04) than the machine's own Debian 12: systemd 257, Docker 26, netplan 1.1."""

PACKAGES = [
    "systemd", "systemd-sysv", "systemd-resolved", "systemd-timesyncd", "udev", "dbus", "libpam-systemd",
    "linux-sysctl-defaults", "openssh-server", "openssh-client", "sudo", "netplan.io", "iproute2", "nftables",
    "iptables", "iputils-ping", "ethtool", "kmod", "procps", "docker.io", "docker-cli", "ca-certificates",
    "curl", "python3", "python3-yaml", "rsync", "less", "jq", "libcap2-bin",
    "network-manager", "ufw", "iperf3", "perftest", "ibverbs-utils",
    "nfs-common", "nfs-kernel-server", "nfs-ganesha", "nfs-ganesha-vfs", "libnfs14", "python3-fusepy", "fuse3",
]  # fmt: skip

TOOLS = {
    "mmdebstrap": "mmdebstrap",
    "systemd-nspawn": "systemd-container",
    "nft": "nftables",
    "ip": "iproute2",
    "sysctl": "procps",
    "ssh": "openssh-client",
    "mkfs.ext4": "e2fsprogs",
    "losetup": "mount",
    "setpriv": "util-linux",
    "curl": "curl",
}
"""Programs that the lab runs on the machine, and the packages that hold them."""

SLIM = [
    '--aptopt=Acquire::Languages "none"',
    *[f"--dpkgopt=path-exclude=/usr/share/{place}/*" for place in ("man", "doc", "locale", "info")],
]

STANDINS = {
    "hardware.py": "/usr/local/lib/lab-standins/hardware.py",
    "lab-hardware.service": "/etc/systemd/system/lab-hardware.service",
    "nvidia-smi": "/usr/bin/nvidia-smi",
    "nvidia-ctk": "/usr/bin/nvidia-ctk",
    "nvidia-container-runtime": "/usr/bin/nvidia-container-runtime",
    "nvidia-container-runtime-hook": "/usr/bin/nvidia-container-runtime-hook",
    "ibdev2netdev": "/usr/sbin/ibdev2netdev",
    "uname": "/usr/bin/uname",
    "runc": "/usr/sbin/runc",
    "exportfs": "/usr/sbin/exportfs",
    "mount.nfs": "/usr/sbin/mount.nfs",
    "nfs-server.service": "/etc/systemd/system/nfs-server.service",
}
"""Each file of lab/standins/ and the place where the real thing would be."""

DIVERTED = ("uname", "runc", "exportfs", "mount.nfs")
"""Stand-ins that lie in front of a program of the distribution, which moves to the same name with `.real`."""

MASKED = [
    "apt-daily.timer", "apt-daily-upgrade.timer", "e2scrub_all.timer", "e2scrub_reap.service", "fstrim.timer",
    "getty.target", "console-getty.service", "systemd-networkd-wait-online.service", "systemd-pstore.service",
    "systemd-timesyncd.service", "dpkg-db-backup.timer",
    # The kernel's own NFS and what belongs to versions before 4: there is no such kernel module.
    "run-rpc_pipefs.mount", "proc-fs-nfsd.mount", "nfs-mountd.service", "nfs-idmapd.service", "nfsdcld.service",
    "fsidd.service", "rpc-statd-notify.service", "nfs-blkmap.service", "rpc-gssd.service", "rpc-svcgssd.service",
    "auth-rpcgss-module.service", "rpcbind.service", "rpcbind.socket", "nfs-ganesha.service",
    "nfs-ganesha-lock.service",
]  # fmt: skip
"""Noise, and what cannot work in a host that shares the machine's kernel and has no way out."""


def install_tools() -> None:
    """Install the Debian packages that the lab itself needs on the machine."""
    missing = sorted({package for program, package in TOOLS.items() if shutil.which(program) is None})
    if missing:
        install(missing)


def install(packages: list[str]) -> None:
    """Install Debian packages, fetching apt's lists when they are missing or too old to serve."""
    say(f"installing {' '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    words = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]
    first = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if first.returncode:
        run("apt-get", "update", "-q", env=environment)
        run(*words, env=environment)


def mirror() -> str:
    """The Debian mirror that this machine's apt is set up for."""
    for _ in range(2):
        sites = run("apt-get", "indextargets", "--format", "$(SITE)").stdout.split()
        found = [site for site in sites if site.rstrip("/").endswith("/debian")]
        if found:
            return found[0]
        run("apt-get", "update", "-q")
    raise LabError("apt knows no Debian mirror (an address that ends in /debian): add one to /etc/apt/sources.list.d/")


def bootstrap(name: str, suite: str, packages: list[str]) -> Path:
    """A cached Debian tree with these packages, keyed by what goes into it."""
    tree = settings.CACHE / f"{name}-{digest(suite, *packages, *SLIM)}"
    if tree.exists():
        return tree
    discard_old(name, tree)
    install_tools()
    draft = settings.CACHE / f"{name}.draft"
    disks.unmount_below(draft)
    shutil.rmtree(draft, ignore_errors=True)
    draft.parent.mkdir(parents=True, exist_ok=True)
    with stage(f"Debian {suite}, {len(packages)} packages"):
        run(*contained("mmdebstrap", "--quiet", "--variant=minbase", "--format=directory",
                       f"--include={','.join(packages)}", *SLIM, suite, draft, mirror()))  # fmt: skip
    shutil.rmtree(draft / "var/lib/apt/lists", ignore_errors=True)
    draft.rename(tree)
    return tree


def discard_old(name: str, wanted: Path) -> None:
    """Remove cached trees of the same name that were made from other inputs, unless a running host uses them."""
    mounted = Path("/proc/self/mountinfo").read_text()
    for tree in settings.CACHE.glob(f"{name}-*"):
        if tree != wanted and str(tree) not in mounted:
            shutil.rmtree(tree)


def host_layers() -> list[Path]:
    """The layers of a host's root, from the top down: our layer, Debian."""
    debian = bootstrap("debian", SUITE, PACKAGES)
    sources = [(settings.SOURCE / "standins" / name).read_text() for name in STANDINS]
    facts = json.dumps([hardware_of(host) for host in settings.HOSTS.values()])
    layer = settings.CACHE / f"host-{digest(debian.name, Path(__file__).read_text(), facts, *sources)}"
    if not layer.exists():
        discard_old("host", layer)
        draft = settings.CACHE / "host.draft"
        root, work = settings.CACHE / "host.root", settings.CACHE / "host.work"
        for place in (root, draft, work):
            disks.unmount_below(place)
            shutil.rmtree(place, ignore_errors=True)
        with stage("host layer"):
            disks.mount_overlay(root, [debian], draft, work)
            try:
                customise(root)
            finally:
                disks.unmount_below(root)
        root.rmdir()
        shutil.rmtree(work)
        draft.rename(layer)
    return [layer, debian]


def customise(root: Path) -> None:
    """Turn a Debian tree into the root of a simulated Spark; nothing in it is particular to one host."""
    for name in DIVERTED:
        place = STANDINS[name]
        run("chroot", root, "dpkg-divert", "--quiet", "--rename", "--divert", f"{place}.real", "--add", place)
    for name, place in STANDINS.items():
        mode = 0o644 if name.endswith(".service") else 0o755
        write(root / place[1:], (settings.SOURCE / "standins" / name).read_text(), mode)
    write(root / "etc/docker/daemon.json",
          json.dumps({"insecure-registries": [settings.REGISTRY]}, indent=4) + "\n")  # fmt: skip
    write(root / "etc/systemd/journald.conf.d/lab.conf", "[Journal]\nReadKMsg=no\nAudit=no\nStorage=persistent\n")
    # udev replays only this namespace's network devices, not the machine's disks.
    write(root / "etc/systemd/system/systemd-udev-trigger.service.d/lab.conf",
          "[Service]\nExecStart=\nExecStart=/usr/bin/udevadm trigger --prioritized-subsystem=net"
          " --subsystem-match=net --action=add\n")  # fmt: skip
    run("systemctl", f"--root={root}", "--quiet", "mask", *MASKED)
    # As on a node where the operator has only just installed the package and not looked further.
    run("systemctl", f"--root={root}", "--quiet", "disable", "nfs-server.service", "NetworkManager.service",
        "NetworkManager-dispatcher.service", "NetworkManager-wait-online.service", "ufw.service", "iperf3.service",
        "wpa_supplicant.service")  # fmt: skip
    for place in (root / "etc/systemd/system").glob("nfs-*.requires"):
        shutil.rmtree(place)  # by these the package ties its server to what is masked here
    run("systemctl", f"--root={root}", "--quiet", "enable",
        "systemd-networkd.service", "ssh.service", "lab-hardware.service")  # fmt: skip
    for key in (root / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
    lines += [f"{host.address} {host.hostname} {host.name}" for host in settings.HOSTS.values()]
    write(root / "etc/hosts", "\n".join(lines) + "\n")
    # As on Ubuntu: the sbin directories are on everyone's PATH, over ssh too.
    write(root / "etc/environment", 'PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"\n')


def hardware_of(host: settings.Host) -> dict[str, object]:
    """What the hardware stand-in of a host is to show."""
    return {
        "rails": [{"netdev": e.netdev, "hca": e.hca, "pci": e.pci, "mac": e.mac} for e in host.ports],
        "gid_hole": host.gid_hole,
        "memory_total_kib": 127_535_016,
    }


def personalise(host: settings.Host) -> None:
    """Write what makes one host itself: name, user, keys, management network."""
    root = host.root
    write(root / "etc/hostname", f"{host.hostname}\n")
    write(root / "etc/machine-id", digest(settings.TAG, host.name, os.urandom(8)) * 2 + "\n")
    write(root / "etc/lab/hardware.json", json.dumps(hardware_of(host), indent=1) + "\n")
    write(root / "etc/netplan/10-management.yaml",
          "network:\n  version: 2\n  renderer: networkd\n  ethernets:\n"
          f"    {settings.MANAGEMENT_NETDEV}:\n      addresses: [{host.address}/{settings.MANAGEMENT_PREFIX}]\n"
          f"      link-local: []\n      routes: [{{to: default, via: {settings.CONTROL_ADDRESS}}}]\n",
          0o600)  # fmt: skip
    if not quiet("chroot", root, "id", host.user):
        run("chroot", root, "useradd", "--create-home", "--shell", "/bin/bash", "--groups", "sudo,docker", host.user)
    write(root / f"etc/sudoers.d/{host.user}", f"{host.user} ALL=(ALL) NOPASSWD:ALL\n", 0o440)
    write(root / f"home/{host.user}/.ssh/authorized_keys", settings.KEY.with_suffix(".pub").read_text(), 0o600)
    run("chroot", root, "chown", "-R", f"{host.user}:", f"/home/{host.user}/.ssh")
    for kind in ("ed25519", "ecdsa"):
        key = root / f"etc/ssh/ssh_host_{kind}_key"
        if not key.exists():
            run("ssh-keygen", "-q", "-t", kind, "-N", "", "-C", host.hostname, "-f", key)
