"""Throwaway containers of an image: without GPU and network, under a memory limit that a serving node can spare."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Sequence

from checks.opinion import BUSY, LOW

LOCK = "/run/lock/sparkpair-opinion.lock"
"""Several runs may want one at once; the node has memory for one container."""
PROCESSES = 256


def command_line(
    name: str, image: str, words: Sequence[str], memory_mib: int, floor: int, seconds: int,
    scratch: Sequence[str] = (), mounts: Sequence[tuple[str, str]] = (),
) -> str:  # fmt: skip
    """The shell line that runs the image's Python with these words, if the node still has `floor` bytes available when
    its turn comes, and says how it ended (`NAME-exit CODE`). Its question comes by standard input; whatever becomes of
    this line's own caller, it ends by itself after `seconds`, and Docker removes it then."""
    container = f"{name}-{secrets.token_hex(4)}"
    argv = ["docker", "run", "--rm", "-i", "--name", container, "--pull", "never", "--log-driver", "none"]
    argv += ["--network", "none", "--read-only", "--tmpfs", "/tmp:size=64m"]
    for target in scratch:
        argv += ["--tmpfs", f"{target}:size=16m"]
    argv += ["--memory", f"{memory_mib}m", "--memory-swap", f"{memory_mib}m", "--oom-score-adj", "1000"]
    # A share, not a limit: the engine comes first where both want the processor.
    argv += ["--pids-limit", str(PROCESSES), "--cpu-shares", "64"]
    argv += ["-e", "NVIDIA_VISIBLE_DEVICES=void"]
    for source, target in mounts:
        argv += ["--mount", f"type=bind,source={source},target={target},readonly"]
    argv += ["--entrypoint", "python3", image, *words]
    low = f"awk '/^MemAvailable:/ {{ exit ($2 < {floor // 1024}) }}' /proc/meminfo"
    enough = f'{low} || exit {LOW}; exec "$@"'
    ended = ["sh", "-c", enough, name, "timeout", "--kill-after=10", str(seconds), *argv]
    busy = ["flock", "--wait", str(seconds), "--conflict-exit-code", BUSY, LOCK]
    end = shlex.join([*busy, *ended])
    tidy = f"[ $code = 0 ] || docker rm -f {container} >/dev/null 2>&1"
    return f": {name}; {end}; code=$?; {tidy}; echo; echo {name}-exit $code"
