"""Ask each node's image whether it is whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from paramiko import SSHException
from pyinfra.api.command import StringCommand

from checks import access, image, opinion, self_contained
from checks.verdict import Verdict, broken, unknown
from facts.values import Image, Unknown
from operations import image_side, throwaway
from operations.run import Run
from spec.cluster import Node

NAME = "sparkpair-image-check"
SECONDS = 150
"""Reading every file of b12x and one import of vLLM; on two cores of a Xeon the latter took up to 13 s."""


def statements(run: Run) -> Iterator[Verdict]:
    """Every check on every node, and that both hold the same image."""
    facts = run.all_seen()
    yield from access.access(run.cluster, facts)
    if not all(access.usable(seen) for seen in facts.values()):
        return
    yield from image.image_layers(run.cluster, facts)
    for node in run.cluster.nodes:
        found = image.find(run.cluster, facts[node.name])
        if isinstance(found, Image):
            yield from _ask(run, node, found)
        elif found is None:
            yield broken(node.name, f"the image {image.short(run.cluster.image)} is not there", "run stage.py")
        else:
            yield unknown(node.name, f"the image {image.short(run.cluster.image)}", found)


def _ask(run: Run, node: Node, found: Image) -> Iterator[Verdict]:
    program = Path(image_side.__file__).read_text(encoding="utf-8")
    asked = {**self_contained.question(run.cluster), "program": program}
    words = ["-c", image_side.BOOTSTRAP]
    memory, floor = run.cluster.knobs.opinion_memory_mib, opinion.floor(run.cluster)
    line = throwaway.command_line(NAME, found.id, words, memory, floor, SECONDS)
    try:
        _, output = run.hosts[node.name].run_shell_command(
            StringCommand(line), _sudo=True, _stdin=json.dumps(asked), _timeout=2 * SECONDS + 30
        )
    except (OSError, EOFError, SSHException) as error:
        reason = Unknown(f"the node gave no answer: {str(error) or type(error).__name__}")
        yield unknown(node.name, "what the image holds", reason)
        return
    yield from self_contained.read(run.cluster, node.name, output.output_lines)
