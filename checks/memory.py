"""Memory of a node before an engine starts there. CPU and GPU share one, and GB10 wedges where it runs out."""

from __future__ import annotations

from collections.abc import Iterator

from checks.content import amount
from checks.verdict import Verdict, broken, holds, unknown
from facts.values import NodeFacts, Unknown
from spec import objects
from spec.cluster import Cluster, Node

DEPLOY = "run deploy.py"

OTHER_GUARDS = ("earlyoom.service", "systemd-oomd.service", "dgx-anti-oom.service")
"""Programs that end processes by themselves when memory is short."""

SWAP_BYTES = 30 * 2**30
"""R5: reading the weights through the page cache takes all swap there is; with 32 GiB the head lived, with the usual 16
it died near 90% of the load (reference kit v2.3-tier1)."""

THROUGH_PAGE_CACHE = ("", "auto", "safetensors")
"""What vLLM calls its own default, which empty leaves it at: safetensors files, mapped into memory."""


def in_use(cluster: Cluster, node: Node, seen: NodeFacts) -> Iterator[Verdict]:
    """Nothing else holds the memory that the engine's budget was proven with. Not judged while a rank of ours is
    there, whose own memory would be counted, or may be there: that Docker does not say is refused by itself."""
    most = cluster.knobs.memory_used_max_gib
    if not most or _a_rank_is_there(seen) is not False:
        return
    if isinstance(seen.memory, Unknown):
        yield unknown(node.name, "its memory", seen.memory)
        return
    used = seen.memory.total - seen.memory.available
    if used > most * 2**30:
        yield broken(
            node.name,
            f"{amount(used)} of memory are in use before the engine starts, wanted at most {most} GiB "
            f"(memory_used_max_gib): the engine's budget was proven with less, and a node that runs out wedges",
            "end what is not needed (ps -eo rss,comm --sort=-rss | head; a desktop session counts);\n"
            "or lower kv_cache_memory_bytes by as much, and raise memory_used_max_gib",
        )


def swap(cluster: Cluster, node: Node, seen: NodeFacts) -> Iterator[Verdict]:
    """R5: enough swap for weights that are read through the page cache."""
    if cluster.stack.name != "vllm-exl3" or cluster.knobs.load_format not in THROUGH_PAGE_CACHE:
        return
    if isinstance(seen.memory, Unknown):
        yield unknown(node.name, "its swap", seen.memory)
    elif seen.memory.swap < SWAP_BYTES:
        yield broken(
            node.name,
            f'{amount(seen.memory.swap)} of swap, and load_format is "{cluster.knobs.load_format}": weights read '
            f"through the page cache need {amount(SWAP_BYTES)}, or the node dies near 90% of the load",
            "leave load_format out (instanttensor reads past the page cache), or give the node more swap",
        )


def watched(cluster: Cluster, node: Node, seen: NodeFacts, code: str) -> Iterator[Verdict]:
    """For verify: the recorder runs the installed programs and tells of this node, and the login is protected as asked.
    Files and units themselves are stated with the others."""
    word = seen.recorded
    if isinstance(word, Unknown):
        yield unknown(node.name, "what its recorder says", word)
    elif word is None:
        yield broken(node.name, f"{objects.RECORDER_UNIT} says nothing", f"journalctl -u {objects.RECORDER_UNIT}")
    elif word.code != code:
        yield broken(node.name, f"{objects.RECORDER_UNIT} runs other programs than those installed", DEPLOY)
    else:
        least = "" if word.floor is None else f", {amount(word.floor)} or more since its rank was started"
        yield holds(node.name, f"memory is recorded: {amount(word.available)} available{least}")
    yield from _login(cluster, node, seen)


def _login(cluster: Cluster, node: Node, seen: NodeFacts) -> Iterator[Verdict]:
    units, files = seen.units, seen.files
    if isinstance(units, Unknown) or isinstance(files, Unknown):
        return  # stated with the others
    there = [unit for unit in objects.PROTECTED_UNITS if files.get(objects.protection(unit)) is not None]
    unread = [name for name in objects.PROTECTED_UNITS if (unit := units.get(name)) is None or unit.needs_reload]
    if unread:
        yield broken(
            node.name,
            f"systemd has other settings of {', '.join(unread)} than the files say",
            "sudo systemctl daemon-reload, which starts nothing anew; or run deploy.py",
        )
    elif not cluster.knobs.protect_login and there:
        yield broken(node.name, f"{', '.join(there)}: still protected, and protect_login is False", DEPLOY)
    elif cluster.knobs.protect_login:
        yield holds(node.name, "login sessions and sshd keep memory of their own")


def _a_rank_is_there(seen: NodeFacts) -> bool | None:
    """None where Docker does not say."""
    if isinstance(seen.docker, Unknown) or isinstance(seen.docker.containers, Unknown):
        return None
    return any(container.is_ours and container.state != "exited" for container in seen.docker.containers)
