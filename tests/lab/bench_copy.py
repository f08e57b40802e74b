"""Files from the head to the worker by our programs, by rsync over ssh and by scp, beside what link and disks can do:
`make bench-copy`.

One run does each in turn, several times, on the same files. Ours are the programs of a node as the deploy starts them
(main.py serve, main.py stage), over both rails, with verification and fsync; the others run over one rail, which is
all that they can. The two hosts share the machine's cores and its one disk, so what the disk can give a copy is what
it reads and writes at the same time.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import platform
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import base, disks, hosts, lifecycle, settings
from lab.settings import HEAD, HOSTS, WORKER, Host
from lab.shell import LabError, inside, quiet, run, wait_until
from node import content, errand, pages, paths, wire
from tests.lab import pair

TABLE = settings.CHECKOUT / "docs/results/bench-copy.md"
SOURCE, TARGET, PLACE = "/srv/bench-copy", "/srv/bench-copy-in", "/srv/bench-copy-programs"
PROGRAM = ["/usr/bin/python3", "-sEB", f"{PLACE}/main.py"]
"""As node.paths.PROGRAM has it, from a place that no deploy knows."""
SERVE_UNIT, COPY_UNIT = "sparkpair-bench-serve", "sparkpair-bench-copy"
KEY = f"{PLACE}/id_ed25519"
MARK = "sparkpair-bench-copy"
SHARE, TIMES_RSYNC, CACHED = 0.9, 3.0, 0.05
"""The goal: this share of the slowest of link and disk, or so many times rsync; and how much may stay cached."""
LINK_SECONDS = 3
BOTH = "read and write at once"
MTU = 9000


def main(words: Sequence[str]) -> int:
    """Measure and print; 1 when neither goal is reached, or when files of ours stay in a page cache."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench_copy")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--mib", type=int, default=256, help="of each file")
    arguments = parser.parse_args(words)
    if not lifecycle.is_up():
        print("the lab is down: `make lab-up` starts it", file=sys.stderr)
        return 1
    if shutil.which("iperf3") is None:
        base.install(["iperf3"])
    # What is set up is taken away on the way out, also when somebody ends it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    with real_disks(), rails(), files(arguments.files, arguments.mib) as rows, programs(rows), keys():
        seen = measure(arguments.runs, rows)
    report = Report(seen, sum(size for _, size, _ in rows), arguments.runs, arguments.files)
    print("\n".join(report.lines()))
    TABLE.write_text("\n".join(report.page()) + "\n")
    return 0 if report.is_reached else 1


# What is measured


@dataclass
class Taken:
    """One transfer: wall seconds until its command ended, and until the disk had all; processor seconds of both hosts,
    and of all else on the machine meanwhile, its kernel threads included; bytes left in both page caches; peak memory
    of our programs in KiB, by word."""

    seconds: float
    durable_seconds: float
    cpu_seconds: float
    other_cpu_seconds: float
    cached: int
    rss_kib: dict[str, int]


@dataclass
class Seen:
    """All runs."""

    transfers: dict[str, list[Taken]]
    ceilings: dict[str, list[float]]
    """MiB/s."""


def measure(runs: int, rows: Sequence[errand.FileRow]) -> Seen:
    """Every transfer and every ceiling once, and again."""
    size = sum(row[1] for row in rows)
    commands: dict[str, tuple[Host, list[str]]] = {
        "ours": (WORKER, [*PROGRAM, "stage", f"{PLACE}/errand.json"]),
        "rsync -e ssh": (HEAD, ["rsync", "-a", "-e", shlex.join(ssh("ssh")), f"{SOURCE}/", f"{there()}:{TARGET}/"]),
        "scp": (HEAD, [*ssh("scp"), "-q", "-r", f"{SOURCE}/.", f"{there()}:{TARGET}/"]),
    }
    ceilings: dict[str, Callable[[], float]] = {
        "link": link,
        "read": lambda: size / 2**20 / seconds_of(read_directly),
        "write": lambda: size / 2**20 / seconds_of(lambda: write_directly(size)),
        BOTH: lambda: size / 2**20 / seconds_of(read_directly, lambda: write_directly(size)),
    }
    seen = Seen({name: [] for name in commands}, {name: [] for name in ceilings})
    for _ in range(runs):
        for name, ceiling in ceilings.items():
            seen.ceilings[name].append(ceiling())
            print(f"  {name}: {seen.ceilings[name][-1]:.0f} MiB/s", flush=True)
        for name, (host, command) in commands.items():
            seen.transfers[name].append(transfer(host, command, rows))
            taken = seen.transfers[name][-1]
            print(f"  {name}: {size / 2**20 / taken.seconds:.0f} MiB/s, {taken}", flush=True)
    return seen


def transfer(host: Host, command: Sequence[str], rows: Sequence[errand.FileRow]) -> Taken:
    """One transfer into an empty directory, from files that are in no cache."""
    empty()
    before, busy = cpu_seconds(), busy_seconds()
    with Memory() as memory:
        began = time.monotonic()
        words = ["systemd-run", "--quiet", "--wait", "--pipe", f"--unit={COPY_UNIT}", "--", *command]
        pair.on(host, shlex.join(words), seconds=600)
        seconds = time.monotonic() - began
        run("sync", "--file-system", WORKER.disk)
        durable = time.monotonic() - began
    spent, others = cpu_seconds() - before, busy_seconds() - busy
    for path, size, _ in rows:
        if (on_disk(WORKER, TARGET) / path).stat().st_size != size:
            raise AssertionError(f"{path} did not arrive whole")
    cached = resident(on_disk(HEAD, SOURCE)) + resident(on_disk(WORKER, TARGET))
    return Taken(seconds, durable, spent, others - spent, cached, memory.peaks)


def empty() -> None:
    """No file at the target, none of the source in a cache, nothing left to be written."""
    shutil.rmtree(on_disk(WORKER, TARGET), ignore_errors=True)
    user = pair.on(WORKER, f"id -u {WORKER.user}").strip()
    on_disk(WORKER, TARGET).mkdir()
    os.chown(on_disk(WORKER, TARGET), int(user), -1)
    for each in on_disk(HEAD, SOURCE).iterdir():
        pages.drop(str(each))
    state = WORKER.root / str(paths.WEIGHTS)[1:]
    for name in (content.manifest_name, content.verified_name, content.marker_name):
        (state / name(TARGET)).unlink(missing_ok=True)
    run("sync", "--file-system", WORKER.disk)


def cpu_seconds() -> float:
    """Of all processes of both hosts, user and system, since they were started."""
    total = 0
    for host in HOSTS.values():
        for top in hosts.control_groups():
            stat = top / host.namespace / "cpu.stat"
            if stat.exists():
                found = re.search(r"usage_usec (\d+)", stat.read_text())
                total += int(found[1]) if found else 0
    return total / 1e6


def busy_seconds() -> float:
    """Of the whole machine since it was started, idle and waiting for disks left out."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def resident(place: Path) -> int:
    """Bytes of a directory's files in the page cache."""
    names = [str(each) for each in place.iterdir() if each.is_file()]
    return sum(int(line) for line in run("fincore", "--noheadings", "--bytes", "--output=RES", *names).stdout.split())


class Memory:
    """Peak memory of our programs, looked at while they run."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.1):
            units = [
                unit
                for host in HOSTS.values()
                for top in hosts.control_groups()
                for unit in (top / host.namespace).glob("payload/system.slice/sparkpair-bench-*/cgroup.procs")
            ]
            for unit in units:
                self._look_at(unit)

    def _look_at(self, unit: Path) -> None:
        try:
            for pid in unit.read_text().split():
                argv = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
                if argv[: len(PROGRAM)] == PROGRAM and peak:
                    word = argv[len(PROGRAM)]
                    self.peaks[word] = max(self.peaks.get(word, 0), int(peak[1]))
        except OSError:
            # It ended in between.
            return


# Ceilings


def link() -> float:
    """MiB/s over both rails at the same time, by iperf3, to the worker."""
    with concurrent.futures.ThreadPoolExecutor(len(settings.RAIL_NUMBERS)) as pool:
        return sum(pool.map(_rail, settings.RAIL_NUMBERS))


def _rail(rail: int) -> float:
    server = subprocess.Popen(
        inside(WORKER.namespace, "iperf3", "--server", "--one-off", "--bind", address(WORKER, rail)),
        stdout=subprocess.DEVNULL,
    )
    try:
        client = inside(
            HEAD.namespace, "iperf3", "--json", "--client", address(WORKER, rail), "--time", LINK_SECONDS,
            "--parallel", 2,
        )  # fmt: skip
        ends: list[dict[str, Any]] = []

        def is_measured() -> bool:
            # While the server is not there yet, it says so in JSON and exits 0.
            ends.append(json.loads(run(*client, check=False, capture_output=True).stdout).get("end", {}))
            return "sum_received" in ends[-1]

        if not wait_until(is_measured, 10):
            raise LabError(f"iperf3 on rail {rail} measured nothing")
        return float(ends[-1]["sum_received"]["bits_per_second"]) / 8 / 2**20
    finally:
        server.terminate()
        server.wait()


def read_directly() -> None:
    """All files of the source, past the page cache."""
    for each in sorted(on_disk(HEAD, SOURCE).iterdir()):
        run("dd", f"if={each}", "of=/dev/null", "iflag=direct", "bs=4M")


def write_directly(size: int) -> None:
    """As many bytes at the target, past the page cache and on the disk."""
    place = on_disk(WORKER, PLACE) / "written"
    try:
        run("dd", "if=/dev/zero", f"of={place}", "oflag=direct", "conv=fsync", "bs=4M", f"count={size // 2**22}")
    finally:
        place.unlink(missing_ok=True)


def seconds_of(*works: Callable[[], None]) -> float:
    """Wall seconds of these works at the same time."""
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(work) for work in works]:
            done.result()
    return time.monotonic() - began


# What is set up, and taken away again


@contextmanager
def real_disks() -> Iterator[None]:
    """The hosts' disks without the machine's page cache below them: otherwise a direct read would read memory."""
    loops = [loop for host in HOSTS.values() for loop in disks.loops_of(host.directory)]
    try:
        for loop in loops:
            run("losetup", "--direct-io=on", loop)
        yield
    finally:
        for loop in loops:
            run("losetup", "--direct-io=off", loop)


def address(host: Host, rail: int) -> str:
    """Of its own, so that nothing depends on whether the pair was deployed."""
    return f"10.254.{rail}.{host.number}"


@contextmanager
def rails() -> Iterator[None]:
    """Addresses on both rails, at the MTU that a deploy gives them."""
    before: dict[tuple[str, str], str] = {}
    try:
        for host in HOSTS.values():
            for end in host.rails:
                shown = run("ip", "-n", host.namespace, "-o", "link", "show", end.netdev).stdout
                before[host.namespace, end.netdev] = re.findall(r"mtu (\d+)", shown)[0]
                run("ip", "-n", host.namespace, "link", "set", end.netdev, "mtu", MTU)
                run("ip", "-n", host.namespace, "addr", "replace", f"{address(host, end.number)}/24", "dev", end.netdev)
        yield
    finally:
        for host in HOSTS.values():
            for end in host.rails:
                quiet("ip", "-n", host.namespace, "addr", "del", f"{address(host, end.number)}/24", "dev", end.netdev)
                mtu = before.get((host.namespace, end.netdev), MTU)
                quiet("ip", "-n", host.namespace, "link", "set", end.netdev, "mtu", mtu)


def on_disk(host: Host, place: str) -> Path:
    """A path of the host below /srv, as the machine sees it: the same files, the same page cache."""
    return host.disk / place[1:]


@contextmanager
def files(count: int, mib: int) -> Iterator[list[errand.FileRow]]:
    """Files that nothing can compress, on the head, known to our server as verified."""
    source = on_disk(HEAD, SOURCE)
    state = HEAD.root / str(paths.WEIGHTS)[1:]
    record = state / content.verified_name(SOURCE)
    try:
        shutil.rmtree(source, ignore_errors=True)
        source.mkdir()
        state.mkdir(parents=True, exist_ok=True)
        rows, stamps = [], {}
        for number in range(count):
            path = source / f"model-{number + 1:05}-of-{count:05}.safetensors"
            with pages.Sink(str(path)) as sink:
                for _ in range(mib):
                    sink.write(os.urandom(2**20))
            status, sha256 = path.stat(), pages.sha256(str(path))
            rows.append((path.name, status.st_size, sha256))
            stamps[path.name] = [status.st_size, status.st_mtime_ns, status.st_ino, sha256]
        record.write_text(json.dumps({"directory": SOURCE, "files": stamps}))
        yield rows
    finally:
        shutil.rmtree(source, ignore_errors=True)
        record.unlink(missing_ok=True)


@contextmanager
def programs(rows: Sequence[errand.FileRow]) -> Iterator[None]:
    """Our programs on both hosts, the errand on the worker, and the server running on the head."""
    ways = [errand.Way(address(HEAD, end.number), end.netdev, True) for end in WORKER.rails]
    wanted = errand.Set("weights", TARGET, wire.manifest_identity(rows), tuple(rows), wait=True)
    told = errand.Errand(WORKER.user, 0, 60, None, (errand.Peer(HEAD.hostname, tuple(ways)),), (wanted,))
    try:
        for host in HOSTS.values():
            place = on_disk(host, PLACE)
            shutil.rmtree(place, ignore_errors=True)
            for name, data in wire.programs(settings.CHECKOUT / "node").items():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_bytes(data)
        (on_disk(WORKER, PLACE) / "errand.json").write_text(errand.text(told))
        argv = [*PROGRAM, "serve"]
        for rail in settings.RAIL_NUMBERS:
            argv += ["--address", address(HEAD, rail), "--peer", address(WORKER, rail)]
        words = ["systemd-run", "--quiet", f"--unit={SERVE_UNIT}", "--", *argv, f"weights={SOURCE}"]
        pair.on(HEAD, f"systemctl stop {SERVE_UNIT} 2>/dev/null; {shlex.join(words)}")
        listening = f"ss -Hltn sport = {paths.WEIGHTS_PORT}"
        if not wait_until(lambda: len(pair.on(HEAD, listening).splitlines()) == len(settings.RAIL_NUMBERS), 10):
            raise LabError(pair.on(HEAD, f"journalctl -u {SERVE_UNIT} -n 20 --no-pager"))
        yield
    finally:
        for host in HOSTS.values():
            pair.on(host, f"systemctl stop {COPY_UNIT} {SERVE_UNIT}", check=False)
            pair.on(host, f"systemctl reset-failed {COPY_UNIT} {SERVE_UNIT}", check=False)
            shutil.rmtree(on_disk(host, PLACE), ignore_errors=True)
        empty()
        on_disk(WORKER, TARGET).rmdir()


def ssh(program: str) -> list[str]:
    """A program of OpenSSH with the key of this run, and no other file of its user."""
    return [
        program, "-F", "/dev/null", "-i", KEY, "-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=yes",
        "-o", f"UserKnownHostsFile={PLACE}/known_hosts", "-o", "LogLevel=ERROR",
    ]  # fmt: skip


def there() -> str:
    """The worker's user at the first rail."""
    return f"{WORKER.user}@{address(WORKER, 0)}"


@contextmanager
def keys() -> Iterator[None]:
    """A key of the head's that the worker lets in, for this run."""
    allowed = WORKER.root / f"home/{WORKER.user}/.ssh/authorized_keys"
    before = allowed.read_text()
    try:
        pair.on(HEAD, f"ssh-keygen -q -t ed25519 -N '' -C {MARK} -f {KEY}")
        allowed.write_text(before + (on_disk(HEAD, PLACE) / "id_ed25519.pub").read_text())
        host_key = (WORKER.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()
        line = f"{address(WORKER, 0)} {host_key[0]} {host_key[1]}\n"
        (on_disk(HEAD, PLACE) / "known_hosts").write_text(line)
        yield
    finally:
        allowed.write_text(before)


# What is told


class Report:
    """The figures side by side: medians of all rounds, and ratios within each round, since the machine's disk is not
    equally fast at all times."""

    def __init__(self, seen: Seen, size: int, runs: int, count: int) -> None:
        self._seen, self._mib, self._runs, self._count = seen, size / 2**20, runs, count
        ours, rsync = seen.transfers["ours"], seen.transfers["rsync -e ssh"]
        slowest = map(min, seen.ceilings["link"], seen.ceilings[BOTH])
        self.of_ceiling = statistics.median(
            self._mib / taken.seconds / rate for taken, rate in zip(ours, slowest, strict=True)
        )
        self.of_rsync = statistics.median(
            other.seconds / taken.seconds for taken, other in zip(ours, rsync, strict=True)
        )
        self.cached = max(taken.cached for taken in ours) / (2 * size)
        self.is_reached = (self.of_ceiling >= SHARE or self.of_rsync >= TIMES_RSYNC) and self.cached < CACHED

    def lines(self) -> list[str]:
        """The tables."""
        lines = [
            "| copy | MiB/s | min | max | until on the disk | CPU s, both hosts | other CPU s | page cache left | n |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        for name, all_taken in self._seen.transfers.items():
            rates = [self._mib / taken.seconds for taken in all_taken]
            durable = statistics.median(self._mib / taken.durable_seconds for taken in all_taken)
            cpu = statistics.median(taken.cpu_seconds for taken in all_taken)
            others = statistics.median(taken.other_cpu_seconds for taken in all_taken)
            cached = statistics.median(taken.cached for taken in all_taken) / 2**20 / (2 * self._mib)
            lines.append(
                f"| {name} | {statistics.median(rates):.0f} | {min(rates):.0f} | {max(rates):.0f} | {durable:.0f} "
                f"| {cpu:.1f} | {others:.1f} | {cached:.1%} | {len(rates)} |"
            )
        lines += ["", "| ceiling | MiB/s | min | max | ours of it |", "| --- | ---: | ---: | ---: | ---: |"]
        ours = [self._mib / taken.seconds for taken in self._seen.transfers["ours"]]
        for name, rates in self._seen.ceilings.items():
            share = statistics.median(rate / ceiling for rate, ceiling in zip(ours, rates, strict=True))
            lines.append(
                f"| {name} | {statistics.median(rates):.0f} | {min(rates):.0f} | {max(rates):.0f} | {share:.2f} |"
            )
        peaks = [taken.rss_kib for taken in self._seen.transfers["ours"]]
        memory = ", ".join(f"{word} {max(peak.get(word, 0) for peak in peaks) / 1024:.0f} MiB" for word in peaks[0])
        return [
            *lines,
            "",
            f"Ours is {self.of_ceiling:.2f} of the slowest ceiling (the link, or the disk at both works at once), "
            f"wanted {SHARE:g}; and {self.of_rsync:.2f} times `rsync -e ssh`, wanted {TIMES_RSYNC:g}: one of both is "
            f"{'reached' if self.is_reached else 'not reached'}. Page cache left by ours, of the bytes read and "
            f"written: at most {self.cached:.1%} (wanted under {CACHED:.0%}). Peak memory: {memory}.",
        ]

    def page(self) -> list[str]:
        """The page of the documentation."""
        return [
            "# Copies from node to node",
            "",
            f"Written by `make bench-copy` on {time.strftime('%Y-%m-%d %H:%M')}: {self._count} files, "
            f"{self._mib / 1024:g} GiB of random bytes, from the head to the worker of the simulated pair, "
            f"{self._runs} rounds of each in turn, medians, ratios within a round. {os.cpu_count()} cores "
            f"({platform.machine()}) and one disk for both hosts. Ours is `main.py serve` and `stage`, both rails, "
            "sha256 and fsync included; rsync and scp one rail, as they are. Ceilings: iperf3 over both rails at once; "
            "`dd` with O_DIRECT, 4 MiB blocks. Other CPU: what everything else on the machine used meanwhile, the "
            "kernel's work for the disks included.",
            "",
            *self.lines(),
        ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
