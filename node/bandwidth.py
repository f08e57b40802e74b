"""One measurement over the rails between two nodes: perftest's and iperf3's own programs, bounded in time and memory,
and how what they print is read.

operations/gate.py sends this text to both nodes and runs it there in transient units, the serving side first; so it
imports nothing of ours, and whether a deploy ever was on the node does not matter.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

RDMA_BANDWIDTH, RDMA_LATENCY, TCP_BANDWIDTH, TCP_LATENCY = "ib_write_bw", "ib_write_lat", "iperf3", "ping"
TOOLS = (RDMA_BANDWIDTH, RDMA_LATENCY, TCP_BANDWIDTH, TCP_LATENCY)
MESSAGE_BYTES = 65536
QUEUE_PAIRS = 8
"""As in the check of NVIDIA/dgx-spark-playbooks pull request 108, whose figures the signatures are from."""
STREAMS = 16
"""One core does not fill a rail by TCP. Published with 16 streams: 96 Gb/s at MTU 1500 (catharsis.net.au)."""
FLOOR_BYTES = 2 * 2**30
"""Of available memory, below which nothing is measured: heads were measured to serve with 0.5 to 3 GB to spare, and a
GB10 that runs out of memory wedges. The programs themselves hold some tens of MiB."""
READY_SECONDS = 10.0
MARGIN_SECONDS = 20.0
"""For connecting, and for perftest's own start, beyond the time of the measurement."""
OUTPUT_BYTES = 65536
LOW, NOT_READY = 76, 77
"""Exit codes: too little memory; the serving side did not begin to listen."""


class Garbled(ValueError):
    """What a program printed has not the figure that it should hold; the message says what was seen."""


@dataclass(frozen=True)
class Figure:
    """What one program measured. `usec` as the program counts it: perftest one way, ping there and back."""

    gbps: float | None = None
    usec: float | None = None
    rdma_mtu: int | None = None
    """Of RoCE, in bytes; None where the program says nothing of it."""


# What they print


def read(tool: str, text: str) -> Figure:
    """The figure in a program's output. Raises Garbled."""
    return _READERS[tool](text)


def _write_bw(text: str) -> Figure:
    units = {"Gb/sec": 1.0, "MiB/sec": 8 * 2**20 / 1e9, "MB/sec": 8 * 2**20 / 1e9}
    header = re.search(r"^\s*#bytes\s+#iterations\s.*BW average\[([^\]\n]+)\].*$", text, re.MULTILINE)
    if header is None or header[1] not in units:
        raise _garbled(RDMA_BANDWIDTH, text)
    row = _row(RDMA_BANDWIDTH, text, header.end(), 4)
    return Figure(gbps=_figure(RDMA_BANDWIDTH, row[3]) * units[header[1]], rdma_mtu=_mtu(text))


def _write_lat(text: str) -> Figure:
    header = re.search(r"^\s*#bytes\s+#iterations\s+t_.*$", text, re.MULTILINE)
    if header is None:
        raise _garbled(RDMA_LATENCY, text)
    names = header[0].split()
    column = next((names.index(name) for name in ("t_typical[usec]", "t_avg[usec]") if name in names), None)
    if column is None:
        raise _garbled(RDMA_LATENCY, text)
    row = _row(RDMA_LATENCY, text, header.end(), column + 1)
    return Figure(usec=_figure(RDMA_LATENCY, row[column]), rdma_mtu=_mtu(text))


def _iperf3(text: str) -> Figure:
    try:
        document = json.loads(text[text.index("{") :])
        if isinstance(document.get("error"), str):
            raise Garbled(f"iperf3: {document['error'][:200]}")
        bits = document["end"]["sum_received"]["bits_per_second"]
    except Garbled:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _garbled(TCP_BANDWIDTH, text) from None
    if isinstance(bits, bool) or not isinstance(bits, (int, float)):
        raise _garbled(TCP_BANDWIDTH, text)
    return Figure(gbps=_figure(TCP_BANDWIDTH, str(bits)) / 1e9)


def _ping(text: str) -> Figure:
    found = re.search(r"(?:rtt|round-trip) min/avg/max(?:/mdev)? = [\d.]+/([\d.]+)/", text)
    if found is None:
        raise _garbled(TCP_LATENCY, text)
    return Figure(usec=_figure(TCP_LATENCY, found[1]) * 1000)


_READERS = {RDMA_BANDWIDTH: _write_bw, RDMA_LATENCY: _write_lat, TCP_BANDWIDTH: _iperf3, TCP_LATENCY: _ping}


def _row(tool: str, text: str, start: int, columns: int) -> list[str]:
    """The last row of figures below the header."""
    rows = [line.split() for line in text[start:].splitlines() if re.match(r"\s*\d+\s+\d", line)]
    if not rows or len(rows[-1]) < columns:
        raise _garbled(tool, text)
    return rows[-1]


def _figure(tool: str, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e15:  # not a number is neither
        raise Garbled(f"{tool}: {word[:60]!r} is no figure")
    return value


def _mtu(text: str) -> int | None:
    found = re.search(r"^\s*Mtu\s*:\s*(\d{1,5})\[B\]", text, re.MULTILINE)
    return int(found[1]) if found else None


def _garbled(tool: str, text: str) -> Garbled:
    last = [line.strip() for line in text.splitlines() if line.strip(" -\t")]
    return Garbled(f"{tool} printed no figure: {last[-1][:160] if last else 'it printed nothing'}")


# What is run


def server_argv(tool: str, way: dict[str, Any], seconds: int) -> list[str]:
    """The side that waits, and ends with its one client. ping needs none."""
    if tool == TCP_BANDWIDTH:
        return ["iperf3", "-s", "-1", "-B", way["local"], "-p", str(way["port"]), "-i", "0"]  # or it fills the pipe
    return _perftest(tool, way, seconds)


def client_argv(tool: str, way: dict[str, Any], seconds: int) -> list[str]:
    """The side that sends, and prints the figure."""
    if tool == TCP_LATENCY:
        return ["ping", "-n", "-q", "-c", "100", "-i", "0.01", "-W", "2", "-I", way["local"], way["remote"]]
    if tool == TCP_BANDWIDTH:
        place = ["-c", way["remote"], "-B", way["local"], "-p", str(way["port"])]
        return ["iperf3", *place, "-t", str(seconds), "-P", str(STREAMS), "-i", "0", "-J"]
    return [*_perftest(tool, way, seconds), way["remote"]]


def _perftest(tool: str, way: dict[str, Any], seconds: int) -> list[str]:
    argv = [tool, "-d", way["hca"], "-i", "1", "-x", str(way["gid"]), "-p", str(way["port"]), "-F"]
    if tool == RDMA_LATENCY:
        return [*argv, "-s", "8", "-n", "5000"]
    return [*argv, "-s", str(MESSAGE_BYTES), "-q", str(QUEUE_PAIRS), "-D", str(seconds), "--report_gbits"]


def serve(tool: str, ways: list[dict[str, Any]], seconds: int) -> int:
    """Start the waiting side of every way, say so to systemd when all listen, and end with them."""
    running = [_start(server_argv(tool, way, seconds)) for way in ways]
    until = time.monotonic() + READY_SECONDS
    waiting = {int(way["port"]) for way in ways}
    while waiting:
        waiting -= _listening()
        ended = [process for process in running if process.poll() is not None]
        if waiting and (ended or time.monotonic() > until):
            said = [_said(process) for process in ended]
            _end(running)
            print("\n".join(said) or f"{tool} did not listen within {READY_SECONDS:g} s", file=sys.stderr)
            return NOT_READY
        time.sleep(0.02)
    _notify("READY=1")
    until = time.monotonic() + seconds + MARGIN_SECONDS
    while any(process.poll() is None for process in running) and time.monotonic() < until:
        time.sleep(0.05)
    _end(running)
    return 0


def ask(tool: str, ways: list[dict[str, Any]], seconds: int) -> int:
    """Run the sending side of every way at the same time; one JSON line with what each printed."""
    running = [_start(client_argv(tool, way, seconds)) for way in ways]
    until = time.monotonic() + seconds + MARGIN_SECONDS
    answers = []
    for process in running:
        try:
            out, _ = process.communicate(timeout=max(0.1, until - time.monotonic()))
            code = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            out, code = process.communicate()[0], 124
        answers.append({"code": code, "out": out[-OUTPUT_BYTES:].decode(errors="replace")})
    print(json.dumps(answers), flush=True)
    return 0


def _start(argv: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "LC_ALL": "C"},
    )  # fmt: skip


def _said(process: subprocess.Popen[bytes]) -> str:
    out = process.communicate()[0].decode(errors="replace")
    lines = [line.strip() for line in out.splitlines() if line.strip(" -\t") and "WARNING" not in line]
    return "; ".join(lines[-2:])[-400:] or f"it ended with exit code {process.returncode}"


def _end(running: list[subprocess.Popen[bytes]]) -> None:
    for process in running:
        if process.poll() is None:
            process.kill()
            process.wait()


def _listening() -> set[int]:
    """TCP ports of this node that somebody listens on."""
    ports = set()
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/net/{name}", encoding="ascii") as stream:
                rows = [line.split() for line in stream]
        except OSError:
            continue
        ports |= {int(row[1].rpartition(":")[2], 16) for row in rows[1:] if row[3] == "0A"}
    return ports


def _notify(word: str) -> None:
    """Tell systemd; nobody where it did not start this."""
    place = os.environ.get("NOTIFY_SOCKET", "")
    if place:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.connect("\0" + place[1:] if place.startswith("@") else place)
            channel.send(word.encode())


def available(path: str = "/proc/meminfo") -> int:
    """Bytes of memory that a new program may take. Raises OSError."""
    with open(path, encoding="ascii") as stream:
        for line in stream:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise OSError(f"{path} has no MemAvailable")


def main(argv: list[str]) -> int:
    """serve|ask, and what: {"tool", "ways", "seconds"} as JSON."""
    word, text = argv
    asked = json.loads(text)
    has = available()
    if has < FLOOR_BYTES:
        print(f"{has >> 20} MiB of memory are available, and {FLOOR_BYTES >> 20} must be", file=sys.stderr)
        return LOW
    try:
        return {"serve": serve, "ask": ask}[word](asked["tool"], asked["ways"], int(asked["seconds"]))
    except OSError as error:
        print(f"{error.filename or 'a program'}: {error.strerror}", file=sys.stderr)
        return NOT_READY


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
