"""What a node can tell of itself for a support bundle: texts by name, bounded and without secrets.

Made by a unit of its own, `sparkpair-report`, with little memory and the lowest priority: it runs beside an engine that
has nearly all of both.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node import paths, redact, secret, wire
from node.docker import Docker, DockerError

MEMORY_MAX = "64M"
MOST_BYTES = 3_000_000
"""Of one node's report as JSON, so that it fits into a message (node.wire.MAX_LINE)."""
TEXT_BYTES = 64_000
JOURNAL_BYTES = 500_000
LOG_BYTES = 300_000
TOOL_SECONDS = 10.0
LONGEST_SECONDS = 60.0
"""After which nothing more is looked at."""
MADE_SECONDS = 90.0
JOURNAL_LINES = 2000
ENGINE_LINES = 400
KEPT_LINES = 100
KEPT_LOGS = 4
KERNEL_LINES = 500
KERNEL_WORDS = r"NVRM|Xid|mlx5|[Oo]om|Out of memory|Killed process|hung task|blocked for more than"
JOURNALS = ("sparkpair-agent.service", "sparkpair-keeper.service", "sparkpair-recorder.service")
OTHER_JOURNALS = (
    "sparkpair-stage.service",
    "sparkpair-image-pull.service",
    "sparkpair-image-registry.service",
    "sparkpair-weights-hash.service",
    "sparkpair-weights-deep.service",
    "sparkpair-nfs-prove.service",
    "sparkpair-fabric-rollback.service",
    "docker.service",
)
UNIT_PROPERTIES = (
    "Id,LoadState,ActiveState,SubState,UnitFileState,Result,NRestarts,ExecMainStatus,MainPID,MemoryCurrent,"
    "ActiveEnterTimestamp,NeedDaemonReload"
)


class NotMade(Exception):
    """There is no report of this node; the message says why."""


@dataclass(frozen=True)
class Places:
    """Where things lie; tests give their own."""

    run: Path = paths.RUN
    wanted: Path = paths.WANTED_RANK
    secrets: Path = paths.SECRETS
    logs: Path = paths.LOGS
    admitted: Path = paths.ADMITTED
    memory: Path = paths.MEMORY_RECORD
    proc: Path = Path("/proc")


def collect(engine_logs: bool = True, places: Places | None = None, docker: Docker | None = None) -> dict[str, str]:
    """All of it, redacted. Never raises: what cannot be read says so in its place."""
    at, here = places or Places(), docker or Docker(timeout=5.0)
    secrets = known_secrets(at.secrets)
    for launch in _launches(at):
        secrets += redact.rank_text(launch)[1]
    containers, inspected, values = _containers(here)
    until = time.monotonic() + LONGEST_SECONDS
    texts = {}
    for name, make in _pieces(at, here, containers, inspected, engine_logs):
        texts[name] = make() if time.monotonic() < until else "(left out: the report took too long)\n"
    redactor = redact.Redactor([*secrets, *values])
    return fitted((name, redactor.text(text)) for name, text in texts.items())


def known_secrets(directory: Path) -> list[str]:
    """Every line of every file of secrets, usable as one or not."""
    lines: list[str] = []
    for path in sorted(directory.iterdir()) if directory.is_dir() else []:
        try:
            with path.open("rb") as stream:
                lines += stream.read(secret.LONGEST + 2).decode(errors="replace").split()
        except OSError:
            continue
    return lines


def fitted(texts: Iterable[tuple[str, str]], most: int = MOST_BYTES) -> dict[str, str]:
    """The texts as far as they fit, in their order; what does not is said to be left out."""
    kept: dict[str, str] = {}
    left = most
    for name, text in texts:
        size = len(json.dumps(text)) + len(name) + 16
        if size > left - 2000:
            text = "(left out: the report is full)\n"
            size = len(text) + len(name) + 16
        kept[name] = text
        left -= size
    return kept


Piece = tuple[str, Callable[[], str]]


def _pieces(at: Places, docker: Docker, containers: dict[str, str], inspected: str, engine_logs: bool) -> list[Piece]:
    """In the order of their worth, since the last ones may not fit."""

    def tools(*lines: Sequence[str]) -> Callable[[], str]:
        return lambda: "\n".join(f"$ {' '.join(argv)}\n{said(argv)}" for argv in lines)

    pieces: list[Piece] = [
        ("units.txt", lambda: units()),
        *((f"journal-{unit.split('.')[0]}.txt", _journal([unit], JOURNAL_BYTES)) for unit in JOURNALS),
        ("memory.txt", lambda: files([at.proc / name for name in ("meminfo", "pressure/memory", "loadavg", "swaps")])),
        ("run.txt", lambda: files(sorted(at.run.glob("*.json")))),
        ("wanted-rank.json", lambda: _launch(at.wanted)),
        ("docker.json", lambda: _documents(docker, "/version", "/info")),
        ("docker-inspect.json", lambda: inspected),
        ("kernel.txt", lambda: kernel()),
        ("system.txt", lambda: system(at.proc)),
        ("processes.txt", tools(["ps", "-eo", "pid,ppid,rss,etimes,stat,comm", "--sort=-rss"])),
        # Only this node's own file systems: one that is mounted over NFS may never answer.
        ("disk.txt", tools(["df", "-lhT"], ["df", "-li"])),
        ("network.txt", tools(["ip", "-j", "addr"], ["ip", "-j", "route"], ["ip", "-j", "-s", "link"])),
        ("rdma.txt", tools(["rdma", "link"], ["ibdev2netdev"])),
        ("gpu.txt", tools(["nvidia-smi"], ["nvidia-smi", "-q", "-d", "CLOCK,TEMPERATURE,POWER,PERFORMANCE"])),
        ("memory-record.txt", lambda: _newest(at.memory, LOG_BYTES)),
        ("journal-others.txt", _journal(OTHER_JOURNALS, JOURNAL_BYTES)),
    ]
    if engine_logs:
        pieces += [(f"engine-{name}.log", _engine_log(identity)) for name, identity in containers.items()]
        pieces.append(("engine-ended.log", lambda: _kept_logs(at.logs)))
    return pieces


def said(argv: Sequence[str], most: int = TEXT_BYTES, seconds: float = TOOL_SECONDS) -> str:
    """The last `most` bytes of what a program prints, or why there is nothing. One that hangs, as beside a driver that
    does, is left behind."""
    try:
        child = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"},
        )  # fmt: skip
    except OSError as error:
        return f"({argv[0]}: {error.strerror})\n"
    assert child.stdout is not None
    tail, size, ended = b"", 0, False
    until = time.monotonic() + seconds
    with child.stdout as stream:
        while not ended and select.select([stream], [], [], max(0.0, until - time.monotonic()))[0]:
            data = os.read(stream.fileno(), 65536)
            ended = not data
            size += len(data)
            tail = (tail + data)[-most:]
    note = _end(child, ended, seconds)
    return _text(tail, size) + note


def _end(child: subprocess.Popen[bytes], ended: bool, seconds: float) -> str:
    try:
        if ended:
            code = child.wait(1.0)
            return f"(exit code {code})\n" if code else ""
        child.kill()
        child.wait(1.0)
    except subprocess.TimeoutExpired:
        pass  # it waits for a driver, and the kernel for it
    return f"(no end within {seconds:g} s)\n"


def files(found: Sequence[Path], most: int = TEXT_BYTES) -> str:
    """Small files under their names."""
    return "\n".join(f"== {path}\n{tail(path, most)}" for path in found) or "(none)\n"


def tail(path: Path, most: int) -> str:
    """The last bytes of a file."""
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > most:
                stream.seek(size - most)
            data = stream.read(most)
    except OSError as error:
        return f"({error.strerror})\n"
    return _text(data, size)


def _text(data: bytes, size: int) -> str:
    note = ""
    if size > len(data):
        # Whatever was cut in two is left out with the rest: half a secret would not be known again.
        data = data.partition(b"\n")[2]
        note = f"({size - len(data)} bytes before this are left out)\n"
    text = data.decode(errors="replace")
    return f"{note}{text}" if not text or text.endswith("\n") else f"{note}{text}\n"


def units() -> str:
    """How systemd sees ours."""
    everything = ["sparkpair*", "docker.service", "ssh.service", "nfs-server.service", "mnt-sparkpair-weights.mount"]
    listed = said(["systemctl", "list-units", "--all", "--plain", "--no-pager", "--full", *everything])
    shown = said(["systemctl", "show", f"--property={UNIT_PROPERTIES}", *JOURNALS, "docker.service"])
    return f"{listed}\n{shown}"


def kernel() -> str:
    """What the kernel said of the GPU, the rails and the want of memory since it was booted."""
    argv = ["journalctl", "--dmesg", "--no-pager", "--output=short-iso", "--case-sensitive=yes"]
    return said([*argv, f"--grep={KERNEL_WORDS}", f"--lines={KERNEL_LINES}"], LOG_BYTES)


def system(proc: Path) -> str:
    """Which kernel, system and Python, and since when."""
    about = " ".join(platform.uname())
    return f"{about}\nPython {platform.python_version()}\n" + files(
        [Path("/etc/os-release"), proc / "cmdline", proc / "uptime"]
    )


def _journal(names: Sequence[str], most: int) -> Callable[[], str]:
    chosen = [f"--unit={name}" for name in names]
    argv = ["journalctl", *chosen, "--no-pager", "--output=short-iso-precise", f"--lines={JOURNAL_LINES}"]
    return lambda: said(argv, most)


def _engine_log(identity: str) -> Callable[[], str]:
    return lambda: said(["docker", "logs", "--timestamps", "--tail", str(ENGINE_LINES), identity], LOG_BYTES)


def _kept_logs(directory: Path) -> str:
    newest = sorted(directory.glob("*.log"))[-KEPT_LOGS:] if directory.is_dir() else []
    parts = []
    for path in reversed(newest):
        lines = tail(path, LOG_BYTES // KEPT_LOGS).splitlines()[-KEPT_LINES:]
        parts.append(f"== {path.name}\n" + "\n".join(lines) + "\n")
    return "\n".join(parts) or "(none)\n"


def _newest(directory: Path, most: int) -> str:
    """The end of the newest file of a directory."""
    there = [path for path in directory.glob("*") if path.is_file()] if directory.is_dir() else []
    if not there:
        return "(none)\n"
    path = max(there, key=lambda one: one.stat().st_mtime)
    return f"== {path.name}\n{tail(path, most)}"


def _launches(at: Places) -> list[str]:
    """Every launch of this node that a program of ours may have spoken of."""
    there = [at.wanted, *(sorted(at.admitted.iterdir()) if at.admitted.is_dir() else [])]
    texts = []
    for path in there:
        try:
            texts.append(wire.read_text(path))
        except wire.WireError:
            continue
    return texts


def _launch(path: Path) -> str:
    if not path.exists():
        return "(none)\n"
    try:
        return redact.rank_text(wire.read_text(path))[0]
    except wire.WireError as error:
        return f"({error})\n"


def _containers(docker: Docker) -> tuple[dict[str, str], str, list[str]]:
    """The ids of our containers by name, what Docker says of them, and the values that are not shown."""
    named: dict[str, str] = {}
    documents: list[Any] = []
    hidden: list[str] = []
    try:
        for container in docker.containers(wire.LABEL_RANK):
            document, values = redact.inspected(docker.document(f"/containers/{container.id}/json"))
            hidden += values
            documents.append(document)
            named[container.name] = container.id
    except (DockerError, KeyError, TypeError, ValueError) as error:
        return named, f"({error})\n", hidden
    return named, _head(json.dumps(documents, indent=1), LOG_BYTES), hidden


def _documents(docker: Docker, *targets: str) -> str:
    parts = []
    for target in targets:
        try:
            told = _head(json.dumps(docker.document(target), indent=1), TEXT_BYTES)
        except DockerError as error:
            told = f"({error})\n"
        parts.append(f"== {target}\n{told}")
    return "\n".join(parts)


def _head(text: str, most: int) -> str:
    """The first lines of a text, whole ones."""
    if len(text) <= most:
        return f"{text}\n"
    return f"{text[:most].rpartition(chr(10))[0]}\n(the rest is left out)\n"


async def gather(engine_logs: bool, argv: Sequence[str] | None = None) -> dict[str, str]:
    """The report of this node, made by the unit. Raises NotMade."""
    process = await asyncio.create_subprocess_exec(
        *(argv or unit_argv(engine_logs)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), MADE_SECONDS)
    except asyncio.TimeoutError:
        process.kill()
        await process.wait()
        raise NotMade(f"the report was not made within {MADE_SECONDS:.0f} s") from None
    try:
        texts = wire.decode(output)
    except wire.WireError:
        told = errors.decode(errors="replace").strip().splitlines()
        raise NotMade(f"the report was not made: {told[-1] if told else f'exit code {process.returncode}'}") from None
    return {str(name): str(text) for name, text in texts.items()}


def unit_argv(engine_logs: bool) -> list[str]:
    """systemd-run of this very program. Where a tool takes too much memory it alone is ended, not the report."""
    properties = [
        f"MemoryMax={MEMORY_MAX}", "MemorySwapMax=0", "OOMScoreAdjust=1000", "OOMPolicy=continue", "Nice=19",
        "IOSchedulingClass=idle", "CPUWeight=1", f"RuntimeMaxSec={MADE_SECONDS:.0f}",
    ]  # fmt: skip
    argv = ["systemd-run", "--quiet", "--pipe", "--wait", "--collect", f"--unit={paths.REPORT_UNIT}"]
    argv += [f"--property={text}" for text in properties]
    return [*argv, "--", *paths.PROGRAM, "report", *([] if engine_logs else ["--without-engine-logs"])]


def main(argv: list[str]) -> int:
    """Print this node's report as one line of JSON."""
    if argv not in ([], ["--without-engine-logs"]):
        print("report takes --without-engine-logs or nothing", file=sys.stderr)
        return 2
    sys.stdout.buffer.write(wire.encode(collect(not argv)))
    sys.stdout.buffer.flush()
    return 0
