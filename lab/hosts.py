"""Life of a host: start, hard power cut, reboot, and ways in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from lab import network, settings
from lab.settings import Host
from lab.shell import (
    LabError,
    daemon,
    end,
    inside,
    quiet,
    record,
    recorded,
    run,
    start_time,
    wait_until,
)

REBOOT = 133
"""systemd-nspawn's exit code when the host asked for a reboot."""

KEEPER, NSPAWN, INIT = "supervisor.json", "nspawn.json", "init.json"
"""Records of a host's three processes on the machine: ours that restarts it, systemd-nspawn, the host's PID 1."""


def control_groups() -> list[Path]:
    """The machine's cgroup2 mount, and the v1 hierarchy named systemd where there is one."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split()
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options.split(",")):
            found.append(Path(left.split()[4]))
    if not found:
        raise LabError("no cgroup2 on this machine: mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified")
    return found


def enter_control_group(host: Host) -> None:
    """Move this process to the host's own control group, so that both hosts do not share nspawn's."""
    for top in control_groups():
        place = top / host.namespace
        place.mkdir(exist_ok=True)
        (place / "cgroup.procs").write_text("0")


def in_control_group(host: Host) -> list[int]:
    """Processes in the host's control group, all levels."""
    pids: set[int] = set()
    for top in control_groups():
        for file in (top / host.namespace).rglob("cgroup.procs"):
            try:
                pids.update(int(pid) for pid in file.read_text().split())
            except OSError:
                continue
    return sorted(pids)


def remove_control_groups(host: Host) -> None:
    """Remove the host's empty control groups, innermost first."""
    for top in control_groups():
        places = [path for path in (top / host.namespace).rglob("*") if path.is_dir()]
        for place in sorted(places, key=lambda path: len(path.parts), reverse=True):
            place.rmdir()
        if (top / host.namespace).exists():
            (top / host.namespace).rmdir()


def nspawn_command(host: Host) -> list[str]:
    """The one command line that starts a host, at `up`, after a reboot and after a power cut."""
    from lab.disks import SHARES

    # Started inside the namespace, not with --network-namespace-path: nspawn mounts /sys before it joins that
    # path, so udev and networkd would see the machine's links and wait for ever.
    return inside(
        host.namespace, "systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--boot",
        "-D", host.root, "-M", host.namespace, f"--hostname={host.hostname}", "--console=pipe",
        # Docker in the host: all capabilities, keyrings, device programs of its own control groups.
        "--capability=all", "--system-call-filter=@keyring @privileged bpf perf_event_open",
        "--link-journal=no", "--resolv-conf=off", "--timezone=off",
        "--bind=/dev/fuse",  # the stand-in for the kernel's NFS client
        *[f"--bind={host.disk / name}:{place}" for name, place in SHARES.items()],
    )  # fmt: skip


def supervise(host: Host) -> None:
    """Run a host until it is switched off: each reboot that it asks for starts it again."""
    records = host.directory
    environment = {
        "PATH": os.environ["PATH"],
        # Without the first, `docker run` finds a read-only cgroup v1; without the second, Docker cannot forward.
        "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
        "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "1",
    }
    code: int | None = REBOOT
    while code == REBOOT:
        network.power_on(host)
        with host.console.open("ab") as console:
            child = subprocess.Popen(
                nspawn_command(host), stdin=subprocess.DEVNULL, stdout=console, stderr=console, env=environment,
                preexec_fn=lambda: enter_control_group(host), start_new_session=True,
            )  # fmt: skip
        record(records / NSPAWN, child.pid)
        init: int | None = None
        while init is None and child.poll() is None:
            init = first_child(child.pid)
            time.sleep(0.02)
        if init is not None:
            record(records / INIT, init)
        code = child.wait()
    for name in (NSPAWN, INIT):
        (records / name).unlink(missing_ok=True)
    network.power_off(host)


def first_child(pid: int) -> int | None:
    """The first child of a process: of systemd-nspawn, the host's PID 1, once it runs the host's own systemd."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    for child in children:
        try:
            status = Path(f"/proc/{child}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
        if len(numbers) > 1 and numbers[-1] == "1":
            return int(child)
    return None


def init_of(host: Host) -> int | None:
    """The host's PID 1 as a process of the machine, while it runs."""
    return recorded(host.directory / INIT)


def is_on(host: Host) -> bool:
    """Whether the host runs, or is between two boots."""
    return recorded(host.directory / KEEPER) is not None


def start(host: Host) -> None:
    """Switch a host on; returns at once."""
    if is_on(host):
        return
    # A host that lost its supervisor would not come back from a reboot: it starts afresh.
    kill(host)
    daemon([sys.executable, "-m", "lab", "supervise", host.name], host.directory / "supervisor.log",
           host.directory / KEEPER)  # fmt: skip


def cut_power(host: Host) -> None:
    """Take the power away: the cables go dark, then SIGKILL to the host's PID 1 ends everything in it.

    In this order, because the kernel closes the sockets of killed processes politely, and a peer would be told.
    """
    pid = init_of(host)
    network.power_off(host)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    if not wait_until(lambda: not is_on(host), 20, 0.02):
        raise LabError(f"{host.name}: its supervisor did not end; see {host.directory / 'supervisor.log'}")


def kill(host: Host) -> None:
    """End every recorded process of a host, whatever state a killed run left it in."""
    pid = init_of(host)
    supervisor = host.directory / KEEPER
    if pid is not None:
        # The supervisor first, so that it starts nothing again. nspawn alone would leave the host running.
        end(supervisor, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: init_of(host) is None, 10, 0.02)
    end(supervisor, signal.SIGKILL)
    end(host.directory / NSPAWN, signal.SIGKILL)
    (host.directory / INIT).unlink(missing_ok=True)
    wait_until(lambda: not in_control_group(host), 10, 0.05)
    left = in_control_group(host)
    if left:
        names = ", ".join(f"{pid} ({process_name(pid)})" for pid in left[:5])
        raise LabError(
            f"{host.name}: processes of an earlier run that the lab has no record of: {names}.\n"
            f"  They hold its control group. Fix: end them (kill {left[0]} ...), then run the command again."
        )


def process_name(pid: int) -> str:
    """A process's name, for messages."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "gone"


# --- ways in


def ssh_command(host: Host, *words: str) -> list[str]:
    """The ssh of the control machine to a host, pinned key and all."""
    return inside(
        settings.CONTROL_NAMESPACE, "ssh", "-F", "/dev/null", "-i", settings.KEY, "-o", "IdentitiesOnly=yes",
        "-o", "StrictHostKeyChecking=yes", "-o", f"UserKnownHostsFile={settings.KNOWN_HOSTS}",
        "-o", "GlobalKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-o", "ConnectTimeout=3",
        "-o", "BatchMode=yes", f"{host.user}@{host.address}", *words,
    )  # fmt: skip


def exec_command(host: Host, *words: str) -> list[str]:
    """A command line that runs as root inside a host without ssh."""
    pid = init_of(host)
    if pid is None:
        raise LabError(f"{host.name} is off: `python3 -m lab on {host.name}` starts it")
    return ["nsenter", "-t", str(pid), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "--", "/usr/bin/env", "-i",
            "--chdir=/", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root",
            "LANG=C.UTF-8", "/bin/sh", "-c", " ".join(words)]  # fmt: skip


def answers(host: Host) -> bool:
    """Whether the host lets its user in over ssh."""
    return quiet(*ssh_command(host, "true"))


def wait_ready(host: Host, seconds: float = 90) -> str:
    """Wait until ssh answers and the host has finished starting; tells systemd's verdict."""
    if not wait_until(lambda: answers(host) or not is_on(host), seconds, 0.2) or not is_on(host):
        tail = host.console.read_text(errors="replace")[-2000:] if host.console.exists() else ""
        raise LabError(f"{host.name}: no ssh after {seconds:.0f} s. Its console ended with:\n{tail}")
    command = ssh_command(host, "sudo systemctl is-system-running --wait")
    state = run(*command, check=False, capture_output=True, timeout=120).stdout.strip()
    if state != "running":
        failed = run(*ssh_command(host, "systemctl --failed --no-legend --plain"), check=False, capture_output=True)
        raise LabError(f"{host.name}: systemd says {state or 'nothing'}: {failed.stdout.strip() or 'no unit failed'}")
    return state


def reboot(host: Host) -> None:
    """Reboot a host in order, and wait until it is back."""
    before = init_of(host)
    run(*exec_command(host, "systemctl reboot"), check=False, capture_output=True)
    if not wait_until(lambda: init_of(host) not in (None, before), 120, 0.1):
        raise LabError(f"{host.name} did not come back from its reboot; see {host.console}")
    wait_ready(host)


def summary(host: Host) -> dict[str, object]:
    """What is true of a host now."""
    pid = init_of(host)
    return {
        "power": "on" if is_on(host) else "off",
        "pid1": pid,
        "pid1_started": start_time(pid) if pid else None,
        "ssh": answers(host) if pid else False,
        "user": host.user,
        "address": host.address,
    }


def write_known_hosts() -> None:
    """Pin the hosts' keys for the control machine."""
    lines = []
    for host in settings.HOSTS.values():
        key = (host.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()
        lines.append(f"{host.address} {key[0]} {key[1]}")
    settings.KNOWN_HOSTS.write_text("\n".join(lines) + "\n")


def read_images() -> dict[str, str]:
    """The images that the registry serves, by name."""
    if not settings.IMAGES.exists():
        return {}
    images: dict[str, str] = json.loads(settings.IMAGES.read_text())
    return images
