"""What NCCL says of itself in an engine's log: over what it sends, and which release it is."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BYTES_READ = 64 * 2**20
"""From a log's beginning, where NCCL says it. A start writes a few MiB."""
CHARACTERS_READ = 2000
"""Of each line."""
SECONDS = 15.0
PIECE = 65536

# `spark-a:454:454 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE ...`, behind what the engine puts before a line of
# another process. A launch must not be judged by what users wrote, so a pattern begins where the line does.
_NCCL = (
    r"^(?:\d{4}-\d\d-\d\dT\S{1,30} )?(?:\([\w .:=-]{1,60}\) ?){0,3}(?:\S{1,80}:\d{1,9}:\d{1,9} \[\d{1,3}\] )?NCCL INFO "
)
SOCKET_USED = re.compile(_NCCL + r".{0,80}Using network Socket\b")
SOCKET_READY = re.compile(_NCCL + r"NET/Socket : Using ")
RDMA = re.compile(_NCCL + r"(?:NET/IB : Using |.{0,80}Using network IB\b)")
RELEASE = re.compile(r"vLLM is using nccl==(\d[\w.+-]{0,30})|^(?:\S{1,80} )?NCCL version (\d[\w.+-]{0,30})")


@dataclass(frozen=True)
class Seen:
    """Of one rank. Each is the line that says it, "" where none does."""

    tcp: str = ""
    rdma: str = ""
    release: str = ""


def read(lines: Iterable[str]) -> Seen:
    """The first line of each kind. A socket that is only made ready, beside RDMA in use, is not what NCCL uses."""
    used = ready = rdma = release = ""
    for line in lines:
        used = used or (line if SOCKET_USED.search(line) else "")
        ready = ready or (line if SOCKET_READY.search(line) else "")
        rdma = rdma or (line if RDMA.search(line) else "")
        if not release and (found := RELEASE.search(line)):
            release = found.group(1) or found.group(2)
    return Seen(used or ("" if rdma else ready), rdma, release)


def of_container(identity: str) -> Seen:
    """Of the container that runs a rank. Raises OSError."""
    return read(said(["docker", "logs", identity]))


def said(words: Sequence[str], limit: int = BYTES_READ, seconds: float = SECONDS) -> Iterator[str]:
    """The lines that a program prints, from the first on, held one at a time and cut short: what an engine logs of its
    users has lines of megabytes."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    end = threading.Timer(seconds, process.kill)
    end.start()
    try:
        begun = b""
        while limit > 0 and (piece := process.stdout.read(PIECE)):
            limit -= len(piece)
            *whole, rest = piece.split(b"\n")
            if whole:
                whole[0] = begun + whole[0]
                begun = b""
            for line in whole:
                yield line[: CHARACTERS_READ * 4].decode(errors="replace")[:CHARACTERS_READ]
            begun = (begun + rest)[: CHARACTERS_READ * 4]
        if begun:
            yield begun.decode(errors="replace")[:CHARACTERS_READ]
    finally:
        end.cancel()
        process.kill()
        process.stdout.close()
        process.wait()


def parse(data: Mapping[str, Any]) -> Seen:
    """As an agent answers it."""
    return Seen(*(str(data.get(name) or "")[:CHARACTERS_READ] for name in ("tcp", "rdma", "release")))
