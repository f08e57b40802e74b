"""The engine's own opinion of a launch: when to ask for it and where, what is asked, and what its answer says."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checks import content, pair
from checks.outlook import rank_text
from checks.verdict import Verdict, broken
from facts.values import Content, NodeFacts, Unknown
from spec.cluster import Cluster, Node
from spec.knobs import KNOBS, shown

MARK = "sparkpair-opinion "
"""Begins the line that holds the answer."""
EXIT = "sparkpair-opinion-exit "
"""Begins the line with the exit code of docker."""
SHORTEST_SECRET = 6
"""Shorter values of `engine_env` (1, true, DEBUG) are no secrets, and would take words out of every message."""
BUSY = "75"
"""The exit code where other runs have kept the node's one place."""
LOW = "76"
"""The exit code where the node's memory went below the floor before it was asked."""
PATIENCE_SECONDS = 120
"""Reading both ranks' arguments took vLLM 0.32 on two cores of a Xeon 6 to 13 s, nearly all of it imports."""
RESERVE_BYTES = 1024 * 2**20
"""What a node must keep beside the container's limit. Heads of the reference kit were measured by their users to serve
with 0.5 to 3 GB to spare, and a GB10 that runs out of memory wedges instead of failing."""
KILLED_BY_MEMORY = (137, 9)

_FIXED_ENV = {
    # Nothing outside the tmpfs can be written, and nothing of an attempt is kept.
    "HOME": "/tmp",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "NVIDIA_VISIBLE_DEVICES": "void",
}
_NOT_PASSED = re.compile(r"(NCCL|GLOO|TP_SOCKET|MN_IF)_|.*(TOKEN|SECRET|PASSWORD|PASSWD|API_KEY|CREDENTIAL)", re.I)


@dataclass(frozen=True)
class Place:
    """Where the engine is asked."""

    node: Node
    mounts: tuple[tuple[str, str], ...]
    """(directory of the node, where the container sees it): weights and drafter, where they are there."""
    has_weights: bool
    scratch: tuple[str, ...] = ()
    """Where the launch sees its caches, which it may write to: empty and in memory here."""


@dataclass(frozen=True)
class Opinion:
    """What came of asking. No refusals and no doubts: every argument was read, and taken."""

    refusals: tuple[Verdict, ...] = ()
    doubts: tuple[str, ...] = ()
    """What is not known, each with its reason."""
    engine: str = ""
    seconds: float = 0.0
    peak_mib: int = 0


def is_due(cluster: Cluster, facts: Mapping[str, NodeFacts], wanted: str | None, texts: Sequence[str]) -> bool:
    """Whether the launch is another than the keeper has accepted: `texts` are the ranks', as wanted. Other weights
    under the same path, or another key, make another engine hash, and no other arguments. Raises UnknownFact."""
    head = facts[cluster.head.name]
    if wanted is not None and pair.accepted(head).engine == wanted:
        return False
    accepted = {} if isinstance(head.texts, Unknown) else head.texts
    return any(accepted.get(rank_text(rank)) != text for rank, text in enumerate(texts))


def holders(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> list[Node]:
    """The nodes that have the image."""
    found = []
    for node in cluster.nodes:
        now = facts[node.name].docker
        image = None if isinstance(now, Unknown) or not now.answers else now.images.get(cluster.image)
        if image is not None and not isinstance(image, Unknown):
            found.append(node)
    return found


def place(cluster: Cluster, facts: Mapping[str, NodeFacts]) -> Place | str:
    """The node with the most memory to spare among those that have the image, or why none is asked."""
    if not cluster.knobs.ask_the_engine:
        return "ask_the_engine is False"
    spare = {node.name: facts[node.name].memory_available for node in holders(cluster, facts)}
    known = {name: count for name, count in spare.items() if not isinstance(count, Unknown)}
    if not known:
        return "the memory available could not be read" if spare else "its image is on no node"
    needed = floor(cluster)

    def merit(one: str) -> tuple[bool, int]:
        # What is read over NFS is not looked into; a node that has the files itself can say more.
        return (known[one] >= needed and not cluster.mounts_weights(cluster.node(one)), known[one])

    name = max(known, key=merit)
    if known[name] < needed:
        return (
            f"{name} has {_mib(known[name])} MiB of memory available, and the question may take "
            f"{cluster.knobs.opinion_memory_mib} (opinion_memory_mib) of {_mib(needed)} that must be there"
        )
    node = cluster.node(name)
    present = [path for path in cluster.launch(node).content if _is_present(facts[name], path)]
    mounts = tuple((source, target) for source, target, *_ in cluster.launch(node).mounts if source in present)
    scratch = tuple(mount[1] for mount in cluster.launch(node).mounts if len(mount) == 2)
    return Place(node, mounts, node.weights_path in present, scratch)


def floor(cluster: Cluster) -> int:
    """Bytes that must be available on the node that is asked: what the container may take, and what stays beside it."""
    return cluster.knobs.opinion_memory_mib * 2**20 + RESERVE_BYTES


def _is_present(seen: NodeFacts, path: str) -> bool:
    found = content.find(seen, path)
    return isinstance(found, Content) and found.present and not found.missing


def _mib(count: int) -> int:
    return count // 2**20


def question(cluster: Cluster, where: Place) -> dict[str, Any]:
    """What `operations/engine_side.py` is given, but for itself: no secret and nothing of the network in it."""
    launch = cluster.launch(where.node)
    env = {name: value for name, value in launch.env if isinstance(value, str) and not _NOT_PASSED.match(name)}
    stated = {item.partition("=")[0] for item in cluster.knobs.engine_env}
    judged = stated | {name for knob in KNOBS.values() if knob.env for name in knob.env.names}
    ranks = [[list(group) for group in cluster.launch(node).command] for node in cluster.nodes]
    return {
        "mark": MARK,
        "seconds": PATIENCE_SECONDS,
        "env": env,
        "fixed_env": _FIXED_ENV,
        "ranks": ranks,
        "variables": sorted(judged & set(env)),
        "paths": _paths(cluster, where, {name: value for name, value in env.items() if name in stated}),
        "weights": where.has_weights,
    }


def _paths(cluster: Cluster, where: Place, env: Mapping[str, str]) -> list[list[str]]:
    """[flag or variable, path] of whatever must be there in the container and can be seen in this one."""
    launch = cluster.launch(where.node)
    mounted = {target for _, target in where.mounts}
    hidden = [target for _, target, *_ in launch.mounts if target not in mounted] + ["/tmp", "/dev", "/proc", "/sys"]
    rows = [[group[0], word] for group in launch.command[1:] for word in group[1:]] + [
        [name, value] for name, value in env.items()
    ]
    return [
        [name, value]
        for name, value in rows
        if re.fullmatch(r"/[^:\s]+", value) and not any(f"{value}/".startswith(f"{top}/") for top in hidden)
    ]


# The answer


def read(cluster: Cluster, lines: Sequence[str]) -> Opinion:
    """The opinion in what the container and docker printed. Never raises: what cannot be read is a doubt."""
    codes = [line.removeprefix(EXIT).strip() for line in lines if line.startswith(EXIT)]
    answers = [line.removeprefix(MARK) for line in lines if line.startswith(MARK)]
    if not answers:
        return Opinion(doubts=(_no_answer(cluster, codes, lines),))
    try:
        return _read(cluster, json.loads(_without_values(cluster, answers[-1])))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        return Opinion(doubts=(f"its answer is damaged: {error!r}",))


def _without_values(cluster: Cluster, text: str) -> str:
    """The text without what `engine_env` holds: a reader that refuses a value repeats it, and it may be a secret."""
    for item in cluster.knobs.engine_env:
        value = json.dumps(item.partition("=")[2])[1:-1]
        if len(value) >= SHORTEST_SECRET and not value.startswith("/"):
            text = text.replace(value, "(its value)")
    return text


def _no_answer(cluster: Cluster, codes: Sequence[str], lines: Sequence[str]) -> str:
    said = [line.strip() for line in lines if line.strip() and not line.startswith((EXIT, "WARNING: Your kernel"))]
    last = f": {said[-1][:300]}" if said else ""
    if not codes:
        return f"the node said nothing of how it went{last}"
    if codes[-1] == BUSY:
        return "other runs kept asking on that node"
    if codes[-1] == LOW:
        return f"less than the {_mib(floor(cluster))} MiB that must be there was available when its turn came"
    if codes[-1] == "137":
        return f"the container was killed, as by its memory limit of {cluster.knobs.opinion_memory_mib} MiB{last}"
    if codes[-1] == "124":
        return f"the container gave no answer in time and was ended{last}"
    return f"docker ended with exit code {codes[-1]}{last}"


def _read(cluster: Cluster, said: Mapping[str, Any]) -> Opinion:
    doubts = [str(text) for text in list(said.get("unsure", ()))]
    if isinstance(said.get("unsure"), str):
        raise TypeError("unsure is a text")
    trouble = said.get("trouble")
    if trouble is not None:
        text = str(trouble)
        if said.get("signal") in KILLED_BY_MEMORY:
            text += f" (its memory limit is opinion_memory_mib = {cluster.knobs.opinion_memory_mib})"
        doubts.insert(0, text)
    ranks = [[(tuple(map(str, flags)), str(text)) for flags, text in rank] for rank in said.get("ranks", [])]
    if trouble is None and len(ranks) != len(cluster.nodes):
        doubts.insert(0, f"it answered for {len(ranks)} of {len(cluster.nodes)} ranks")
    refusals = [
        _refusal(cluster, flags, text, [number for number, rank in enumerate(ranks) if (flags, text) in rank])
        for flags, text in dict.fromkeys(row for rank in ranks for row in rank)
    ]
    for name, text in said.get("variables", []):
        knob = _knob_of_variable(str(name))
        refusals.append(_told(cluster, knob, str(name), f"the engine refuses it: {text}"))
    for name, path in said.get("missing", []):
        if str(name).startswith("-"):
            text = f"{path} is not there in the container"
            refusals.append(_told(cluster, knob_of_flag(str(name)), str(name), text))
        else:
            doubts.append(f"{name} (engine_env) names {path}, which is not there in the container")
    if not math.isfinite(float(said.get("seconds", 0.0))):
        raise ValueError("seconds is no time")
    return Opinion(
        refusals=tuple(dict.fromkeys(refusals)),
        doubts=tuple(dict.fromkeys(doubts)),
        engine=str(said.get("engine", "")),
        seconds=float(said.get("seconds", 0.0)),
        peak_mib=int(said.get("peak_mib", 0)),
    )


def _refusal(cluster: Cluster, flags: Sequence[str], text: str, ranks: Sequence[int]) -> Verdict:
    whose = "both ranks" if len(ranks) == len(cluster.nodes) == 2 else "every rank"
    if len(ranks) < len(cluster.nodes):
        whose = "rank " + " and ".join(map(str, ranks))
    said = f"the engine refuses it: {text}"
    if not flags:
        return broken("", f"the arguments of {whose}: {said}", _FIX)
    knobs = [knob_of_flag(flag) for flag in flags]
    if len(flags) == 1:
        return _told(cluster, knobs[0], f"{flags[0]}, {whose}", said)
    names = " and ".join(_shown(cluster, knob, flag) for knob, flag in zip(knobs, flags, strict=True))
    return broken("", f"{names} ({whose}): {said}", _FIX)


_FIX = "state what this image's engine takes, or the image that takes it; docs/knobs.md has every knob"


def _told(cluster: Cluster, knob: str | None, where: str, said: str) -> Verdict:
    if knob is None:
        return broken("", f"{where} (no knob: the stack {cluster.stack.name} writes it): {said}", _FIX)
    if knob == "engine_env":
        return broken("", f"engine_env ({where}): {said}", _FIX)
    return broken("", f"{_shown(cluster, knob, '')} ({where}): {said}", _FIX)


def _shown(cluster: Cluster, knob: str | None, flag: str) -> str:
    if knob is None:
        return flag
    value = getattr(cluster.knobs, knob)
    return knob if value is None else f"{knob} = {shown(value)}"


def knob_of_flag(flag: str) -> str | None:
    """The knob that writes a flag, whatever abbreviation of it a stack uses; None for what the launch itself needs."""
    for name, knob in KNOBS.items():
        if knob.flag and knob.flag.name == flag:
            return name
    for name, knob in KNOBS.items():
        if knob.becomes and re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", knob.becomes.text):
            return name
    if flag in _WRITTEN_WITH:
        return _WRITTEN_WITH[flag]
    longer = [name for name, knob in KNOBS.items() if knob.flag and knob.flag.name.startswith(f"{flag}-")]
    return longer[0] if len(longer) == 1 else None


_WRITTEN_WITH = {"--enable-auto-tool-choice": "tool_call_parser"}
"""Flags that stand beside the flag of a knob, by spec/stacks/common.py."""


def _knob_of_variable(variable: str) -> str:
    for name, knob in KNOBS.items():
        if knob.env and variable in knob.env.names:
            return name
    return "engine_env"
