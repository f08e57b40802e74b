"""A small all-reduce of all ranks in the image that will serve, as its launch has the fabric: pings and perftest pass
where a collective hangs, takes sockets, or crawls (field reports: NET-05, NET-11, RDMA-01, RDMA-03)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gevent
from paramiko import SSHException
from pyinfra.api.command import StringCommand

from checks import image
from facts.gate import Collective
from facts.values import Image, NodeFacts, Unknown
from operations import collective_side
from operations.run import Run
from spec.cluster import Node
from spec.stacks import GidIndex

NAME = "sparkpair-gate-collective"
MARK = "sparkpair-collective "
SECONDS = 90
"""The import of torch took up to 13 s on two cores of a Xeon, and ranks that do not meet never do."""
MIB, TIMES = 64, 5
FLOOR_BYTES = 8 * 2**30
"""Of available memory: torch, CUDA's context and NCCL's buffers are some GiB that no limit on a container counts."""
MEMORY_MAX = "6g"
"""Of what such a limit does count."""
PASSED = ("NCCL_", "GLOO_", "TORCH_NCCL_", "TP_SOCKET_", "MN_IF_")


def run_collective(run: Run) -> Collective | str:
    """What came of it, or why it was not tried."""
    facts = run.all_seen()
    images = {}
    for node in run.cluster.nodes:
        held = image.find(run.cluster, facts[node.name])
        if not isinstance(held, Image):
            return f"the image is not on {node.name} yet"
        images[node.name] = held.id
    for node in run.cluster.nodes:
        has = facts[node.name].memory_available
        if isinstance(has, Unknown) or has < FLOOR_BYTES:
            told = "an unknown part" if isinstance(has, Unknown) else f"{has >> 20} MiB"
            return f"{told} of {node.name}'s memory is available, and {FLOOR_BYTES >> 20} MiB must be"
        if any(index is None for index in _indices(run, node, facts[node.name]).values()):
            return f"an HCA of {node.name} has no RoCE v2 GID for its rail"
    jobs = [gevent.spawn(_rank, run, node, images[node.name], facts[node.name]) for node in run.cluster.nodes]
    gevent.joinall(jobs, raise_error=True)
    return read(run.cluster.image, {node.name: job.value for node, job in zip(run.cluster.nodes, jobs, strict=True)})


def read(reference: str, answers: Mapping[str, Mapping[str, Any]]) -> Collective:
    """One word on all ranks' answers: trouble is told by whichever has it, and where several do by all."""
    troubles = [f"{name}: {said['trouble']}" for name, said in answers.items() if said.get("trouble")]
    first = next(iter(answers.values()))
    lacking = next((str(said["lacking"]) for said in answers.values() if said.get("lacking")), "")
    transports = {str(said.get("nccl", {}).get("transport", "")) for said in answers.values()} - {""}
    settings: dict[str, str] = {}
    for said in answers.values():
        settings.update({str(name): str(value) for name, value in dict(said.get("settings", {})).items()})
    busbw = [float(said["busbw"]) for said in answers.values() if "busbw" in said]
    return Collective(
        backend=str(first.get("backend", "")),
        transport="Socket" if "Socket" in transports else next(iter(transports), ""),
        gigabytes_per_second=round(min(busbw), 2) if busbw else None,
        trouble="" if lacking else "; ".join(troubles)[:600],
        settings=settings,
        image=reference,
        lacking=lacking,
    )


def _indices(run: Run, node: Node, seen: NodeFacts) -> dict[GidIndex, int | None]:
    hcas = {} if isinstance(seen.hcas, Unknown) else seen.hcas
    found = {}
    for _, value in run.cluster.launch(node).env:
        if isinstance(value, GidIndex):
            hca = hcas.get(value.hca)
            found[value] = None if hca is None else hca.roce_v2_index(str(value.address))
    return found


def command_line(run: Run, node: Node, held: str, indices: Mapping[GidIndex, int | None]) -> str:
    """The shell line that runs one rank's container. Whatever becomes of its caller, it ends by itself."""
    launch = run.cluster.launch(node)
    argv = ["docker", "run", "--rm", "-i", "--name", NAME, "--pull", "never", "--log-driver", "none"]
    argv += ["--oom-score-adj", "1000", "--memory", MEMORY_MAX, "--pids-limit", "1024"]
    argv += [word for group in launch.container for word in group if group[0] != "--restart"]
    for name, value in launch.env:
        if name.startswith(PASSED) and isinstance(value, str | GidIndex):
            argv += ["-e", f"{name}={indices[value] if isinstance(value, GidIndex) else value}"]
    argv += ["--entrypoint", "python3", held, "-c", collective_side.BOOTSTRAP]
    end = shlex.join(["timeout", "--kill-after=10", str(SECONDS + 30), *argv])
    gone = f"docker rm -f {NAME} >/dev/null 2>&1"
    return f": {NAME}; {gone}; {end}; code=$?; {gone}; echo; echo {NAME}-exit $code"


def _rank(run: Run, node: Node, held: str, seen: NodeFacts) -> dict[str, Any]:
    asked = {
        "program": Path(collective_side.__file__).read_text(encoding="utf-8"),
        "mark": MARK,
        "rank": node.rank,
        "ranks": len(run.cluster.nodes),
        "master": str(run.cluster.head.rails[0].ip),
        "port": run.cluster.knobs.master_port,
        "seconds": SECONDS,
        "mib": MIB,
        "times": TIMES,
    }
    line = command_line(run, node, held, _indices(run, node, seen))
    try:
        _, output = run.hosts[node.name].run_shell_command(
            StringCommand(line), _sudo=True, _stdin=json.dumps(asked), _timeout=2 * SECONDS + 60
        )
    except (OSError, EOFError, SSHException) as error:
        return {"trouble": f"the node gave no answer: {str(error) or type(error).__name__}"}
    return answer(output.output_lines)


def answer(lines: list[str]) -> dict[str, Any]:
    """What one container said. Never raises: no answer is trouble."""
    for line in reversed(lines):
        if line.startswith(MARK):
            try:
                found = json.loads(line.removeprefix(MARK))
            except (ValueError, RecursionError):
                break
            if isinstance(found, dict) and isinstance(found.get("settings", {}), dict):
                return found
    said = [line.strip() for line in lines if line.strip()]
    return {"trouble": f"its container gave no answer: {' '.join(said[-2:])[-300:] or 'it said nothing'}"}
