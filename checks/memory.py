"""Memory of a node before an engine starts there. CPU and GPU share one, and GB10 wedges where it runs out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from checks.content import amount
from checks.verdict import Verdict, broken, holds, unknown
from facts.values import Holders, Memory, NodeFacts, Unknown
from spec import capacity, objects
from spec.cluster import Cluster, Node
from spec.knobs import Knobs

DEPLOY = "run deploy.py"

OTHER_GUARDS = {
    "earlyoom.service": "the process that the kernel would end first, which is the engine, where available memory and "
    "free swap are both below its limits (10% each unless set)",
    "systemd-oomd.service": "a whole cgroup, where a unit asks for it (oomctl lists them): by swap used, or by time "
    "spent waiting for memory, as while weights are loaded",
    "dgx-anti-oom.service": "processes by rules of its own, an engine among them",
}
"""Programs that end processes by themselves when memory is short (field reports: MEM-13), and which."""
EARLYOOM_SETTINGS = "/etc/default/earlyoom"

GIB = 2**30
SWAP_BYTES = 30 * GIB
"""R5: reading the weights through the page cache takes all swap there is; with 32 GiB the head lived, with the usual 16
it died near 90% of the load (reference kit v2.3-tier1)."""

THROUGH_PAGE_CACHE = ("", "auto", "safetensors")
"""What vLLM calls its own default, which empty leaves it at: safetensors files, mapped into memory."""


def in_use(cluster: Cluster, node: Node, seen: NodeFacts, *, starts: bool) -> Iterator[Verdict]:
    """Nothing else holds the memory that the engine's budget was proven with: now, or, while a rank of ours is there,
    once it has ended. Judged only where the deploy `starts` the pair, or starts it anew: a pair that serves has proven
    that it fits, and a refusal would keep from it what has nothing to do with that."""
    most = cluster.knobs.memory_used_max_gib
    is_there = _a_rank_is_there(seen)
    if not most or not starts or is_there is None:
        return  # that Docker does not say is refused by itself
    used, how = _used(seen, is_there)
    if isinstance(used, Unknown):
        yield unknown(node.name, how, used)
        return
    excess = used - most * GIB
    if excess <= 0:
        return
    when = "will be in use after the engine has ended" if is_there else "are in use before the engine starts"
    yield broken(
        node.name,
        f"{amount(used)} of memory {when}{how}, wanted at most {most} GiB (memory_used_max_gib): the engine's budget "
        f"was proven with less, and a node that runs out wedges{_largest(seen)}",
        "end what is not needed (ps -eo rss,pid,comm --sort=-rss | head; a desktop session counts);\n"
        + _smaller(cluster.knobs, used, excess),
    )


def _used(seen: NodeFacts, is_there: bool) -> tuple[int | Unknown, str]:
    """Bytes that an engine finds in use when it starts, and how that was found out; or what could not be read."""
    if isinstance(seen.memory, Unknown):
        return seen.memory, "its memory"
    if not is_there:
        return seen.memory.total - seen.memory.available, ""
    if isinstance(seen.holders, Holders):
        return after_exit(seen.memory, seen.holders)
    return seen.holders or Unknown("it was not asked"), "who holds its memory"


def after_exit(memory: Memory, holders: Holders) -> tuple[int, str]:
    """Bytes in use once the engine's processes have ended, and in which way that was found out.

    What is in use now less the engine's own; never less than what the others and the kernel hold by themselves, since
    the driver's account of the engine may hold what the kernel's holds too. Where the driver tells nothing ([N/A], as
    it does of the whole GPU), the latter alone.
    """
    theirs = holders.others + max(0, memory.shmem - holders.engine_shmem) + memory.kernel
    if holders.engine_gpu is None:
        return theirs, " (all other processes and the kernel; the driver does not tell what the engine holds)"
    engine = holders.engine + holders.engine_shmem + holders.engine_gpu
    rest = memory.total - memory.available - engine
    if rest < theirs:
        return theirs, " (all other processes and the kernel)"
    return rest, f" (all that is in use but the engine's {amount(engine)})"


def _largest(seen: NodeFacts) -> str:
    if not isinstance(seen.holders, Holders) or not seen.holders.largest:
        return ""
    rows = []
    for large in seen.holders.largest:
        container = _container(seen, large.container)
        rows.append(f"{large.command or 'a process'} (process {large.pid}{container}) {amount(large.bytes)}")
    return f". Largest: {', '.join(rows)}"


def _container(seen: NodeFacts, wanted: str | None) -> str:
    if wanted is None:
        return ""
    known = (
        ()
        if isinstance(seen.docker, Unknown) or isinstance(seen.docker.containers, Unknown)
        else (seen.docker.containers)
    )
    names = [name for container in known if container.id == wanted for name in container.names]
    return f", container {names[0] if names else wanted[:12]}"


def _smaller(knobs: Knobs, used: int, excess: int) -> str:
    """A budget that is smaller by as much as is in use too much, and the limit that then has to be stated."""
    most = f"memory_used_max_gib = {-(-used // GIB)}"
    now = knobs.kv_cache_memory_bytes
    budget = (now - excess) // capacity.STEP * capacity.STEP if isinstance(now, int) else 0
    if not isinstance(now, int):
        return f"or lower what the engine takes by as much, and state {most}"
    room = capacity.estimate(knobs.model_copy(update={"kv_cache_memory_bytes": budget})) if budget > 0 else None
    if budget <= 0 or (room is not None and room.full_requests < 1):
        return (
            f"there is no smaller budget that would do: kv_cache_memory_bytes = {now} less {amount(excess)} holds no "
            f"request of max_model_len = {knobs.max_model_len}"
        )
    pool = "" if room is None else f" (a pool of {room.pool_tokens:,} tokens)"
    return f"or kv_cache_memory_bytes = {budget}{pool}, and {most}"


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


def other_guards(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> Iterator[str]:
    """What else on a node may end the engine, and tell nobody of ours (docs/decisions/0020)."""
    for node in cluster.nodes:
        units = facts[node.name].units
        for name, what in OTHER_GUARDS.items():
            if isinstance(units, Unknown) or name not in units or not units[name].is_active:
                continue
            found = _earlyoom_arguments(facts[node.name]) if name == "earlyoom.service" else ""
            yield (
                f"{node.name}: {name} is active: it ends {what}{found}. To the keeper a rank that it ends has crashed. "
                f"Where the pair alone is to be guarded, the rank agent does that (memory_emergency_mib): "
                f"sudo systemctl disable --now {name}"
            )


def _earlyoom_arguments(seen: NodeFacts) -> str:
    text = None if isinstance(seen.texts, Unknown) else seen.texts.get(EARLYOOM_SETTINGS)
    found = re.search(r"^\s*EARLYOOM_ARGS=(.*)$", text, re.MULTILINE) if isinstance(text, str) else None
    return f"; here it is set to: {found.group(1).strip().strip(chr(34))}" if found else ""


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
