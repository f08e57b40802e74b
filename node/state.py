"""What the keeper's judgement reads and gives back: rules, one look at the pair, memory, and what to do.

Time is seconds of CLOCK_BOOTTIME, handed in.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Phase(str, Enum):
    """Where the pair is. `sparkpair status` prints these words."""

    EMPTY = "empty"
    """No generation was handed over yet."""
    STOPPING = "stopping"
    """Ranks are being ended, before a start or for good."""
    WAITING = "waiting"
    """A start is due and a node is out of reach, or its memory is not back."""
    BACKOFF = "backoff"
    """A start is due and its time has not come."""
    STARTING = "starting"
    GATING = "gating"
    """The API is up; the gates are not through yet."""
    RUNNING = "running"
    RESTING = "resting"
    """The restart budget is spent, or only a person can help; a person or a deploy goes on."""
    STOPPED = "stopped"
    """On purpose; kept over reboots."""


@dataclass(frozen=True)
class Rules:
    """The supervision settings that matter for a decision. Seconds, counts, bytes."""

    start_order: tuple[int, ...]
    lease_seconds: float
    ready_timeout_seconds: float
    canary_interval_seconds: float
    stuck_seconds: float
    backoff_seconds: float
    backoff_max_seconds: float
    restart_budget: int
    restart_window_seconds: float
    stable_seconds: float = 600.0
    """A run this long clears the failures before it."""
    load_stall_seconds: float = 0.0
    """A start in which for this long no rank showed work has hung; 0: only ready_timeout_seconds counts."""
    start_attempts: int = 2
    """Failed starts of a generation that never passed its gates, before the last good one is returned to."""
    memory_wait_seconds: float = 120.0
    memory_tolerance_bytes: int = 6 * 2**30
    """A start is due only when a node has as much memory available as before the last good start, less this."""
    memory_restart_bytes: int = 0
    """An idle pair with a node below this is restarted within the quiet minutes; 0: never."""
    quiet_minutes: tuple[int, int] | None = None
    """Begin and end, in minutes of the day."""
    silent_api_seconds: float = 60.0
    """No HTTP answer for this long, with no progress either, is a failure."""


@dataclass(frozen=True)
class Work:
    """What grows while a rank loads: bytes of its log, bytes that it read and wrote, seconds of processor time."""

    log: int = 0
    io: int = 0
    cpu: float = 0.0


@dataclass(frozen=True)
class Rank:
    """One rank as its agent sees it."""

    state: str
    """absent, starting, running, stopping, exited, failed, or unknown (Docker does not answer)."""
    engine: str | None = None
    exit_code: int | None = None
    error: str = ""
    processes: int = 0
    """Processes below the engine's cgroup parent."""
    incarnation: str = ""
    """Changes when the agent restarts: what the former one was asked for may not have happened."""
    frozen_seconds: float = 0.0
    """For how long a process of it has been stopped (SIGSTOP), or its container paused."""
    work: Work | None = None
    available: int | None = None
    """MemAvailable of its node; None: unknown."""
    boot: str = ""
    """Which boot of its node this is; "": unknown."""


@dataclass(frozen=True)
class Node:
    """One node as the keeper sees it. `rank` is None while it is out of reach."""

    rank: Rank | None
    silent_seconds: float = 0.0
    rail_up: bool | None = None
    """Carrier of the rail that the engine uses."""
    rail_reach: bool | None = None
    """Whether the node answers over that rail; None: not known, or it never did."""


@dataclass(frozen=True)
class Canary:
    """The last canary completion: pending, ok, failed with its reason, or locked: there is no key that opens the API.
    It answered then, and what it would have completed is not known."""

    state: str
    reason: str = ""
    answered: bool = True
    """An answer came, right or wrong; False: none within the deadline."""


@dataclass(frozen=True)
class Gating:
    """The gates after a start: pending, passed, failed with the reason, or busy: one had no answer within its deadline,
    or found nothing kept, while the tokens of others moved, which is no fault."""

    state: str
    reason: str = ""
    answered: bool = True


@dataclass(frozen=True)
class Verdict:
    """What the ranks' last lines, or the kernel's, tell of a failure."""

    name: str
    action: str
    """retry; reject: this launch is certain to fail again; rest: only a person can help."""
    text: str


@dataclass(frozen=True)
class View:
    """One look at the pair."""

    now: float
    nodes: tuple[Node, ...]
    healthy: bool | None = None
    """What the ready path said: 200 or not; None: not asked, or the last answer is old."""
    progress: tuple[float, ...] | None = None
    """Counters that move while the engine works; None: unknown."""
    busy: int | None = None
    """Requests running and waiting; None: unknown."""
    canary: Canary | None = None
    gates: Gating | None = None
    good: str | None = None
    """The last good generation."""
    minute: int | None = None
    """Of the day, by the head's clock."""
    verdict: Verdict | None = None
    """Of a failure that this very look shows; None while the lines were not read."""
    way_back: str = ""
    """Why the last good generation cannot be started; "" where it can."""


@dataclass(frozen=True)
class Memory:
    """What the keeper remembers from one look to the next, and over its own restarts."""

    desired: str = "run"
    phase: Phase = Phase.EMPTY
    accepted: str | None = None
    since: float = 0.0
    """When the phase began."""
    reason: str = ""
    due: str = ""
    """Why the start that is due, or in progress, happens."""
    not_before: float = 0.0
    failures: tuple[float, ...] = ()
    attempts: int = 0
    """Starts of the accepted generation that failed by its own fault, since it was accepted."""
    asked: Mapping[int, str] = field(default_factory=dict)
    """Ranks that this start has seen begin, with the incarnation of the agent that did it."""
    gentle: bool = True
    """The ranks are healthy as far as known: let requests end within the grace period."""
    mark: tuple[float, ...] | None = None
    moved: float = 0.0
    """When the counters last moved."""
    answered: float = 0.0
    """When the API last answered anything."""
    canary_sent: float | None = None
    strikes: int = 0
    up: float | None = None
    """When the API of this start said that it is ready."""
    worked: float = 0.0
    """When a rank last showed work while it loads."""
    work: tuple[Work, ...] = ()
    work_at: float = 0.0
    cleared: float | None = None
    """When no rank was left, for the start that is due."""
    before: tuple[int | None, ...] = ()
    """Available bytes of each node before this start."""
    idle: tuple[int | None, ...] = ()
    """The same before the last start that was good."""
    insist: bool = False
    """A person wants the start whatever the memory says."""
    needs_boot: bool = False
    """It rests for what a boot of a node may mend."""
    boots: tuple[str, ...] = ()
    """The nodes' boots as it came to rest so."""
    refreshed: float | None = None
    """When it was last restarted for its memory."""


@dataclass(frozen=True)
class StopRank:
    rank: int
    gentle: bool


@dataclass(frozen=True)
class StartRank:
    rank: int


@dataclass(frozen=True)
class SendCanary:
    purpose: str


@dataclass(frozen=True)
class RunGates:
    """Ask the accepted generation what it must be able to answer."""


@dataclass(frozen=True)
class Promote:
    """The accepted generation passed its gates."""


@dataclass(frozen=True)
class Reject:
    """A generation is not to be started again; the last good one takes its place."""

    engine: str
    reason: str


@dataclass(frozen=True)
class Failed:
    """An attempt or a run ended; the reason and both ranks' last lines are worth keeping."""

    reason: str


@dataclass(frozen=True)
class Ready:
    """The pair answers. Seconds from its start to an API that said it is ready."""

    seconds: float


Action = StopRank | StartRank | SendCanary | RunGates | Promote | Reject | Failed | Ready


def dump(memory: Memory) -> dict[str, Any]:
    """Memory as JSON values."""
    data = dataclasses.asdict(memory)
    data["phase"] = memory.phase.value
    data["asked"] = {str(rank): incarnation for rank, incarnation in memory.asked.items()}
    return data


def restore(data: Mapping[str, Any]) -> Memory:
    """Memory from JSON values. Raises ValueError, TypeError or KeyError for anything else."""
    fields = {item.name for item in dataclasses.fields(Memory)}
    values = {key: value for key, value in data.items() if key in fields}
    if values["desired"] not in ("run", "stop"):
        raise ValueError(f"desired is {values['desired']!r}")
    accepted = values["accepted"]
    if accepted is not None and not (isinstance(accepted, str) and re.fullmatch(r"[0-9a-f]{64}", accepted)):
        raise ValueError(f"accepted is {accepted!r}")
    for name in ("since", "not_before", "moved", "answered", "worked", "work_at"):
        values[name] = float(values.get(name, 0.0))
    for name in ("canary_sent", "up", "cleared", "refreshed"):
        values[name] = None if values.get(name) is None else float(values[name])
    for name in ("reason", "due"):
        values[name] = str(values.get(name, ""))
    for name in ("attempts", "strikes"):
        values[name] = int(values.get(name, 0))
    for name in ("gentle", "insist", "needs_boot"):
        values[name] = bool(values.get(name, name == "gentle"))
    values["boots"] = tuple(str(item) for item in values.get("boots", ()))
    for name in ("before", "idle"):
        values[name] = tuple(None if item is None else int(item) for item in values.get(name, ()))
    values["phase"] = Phase(values["phase"])
    values["failures"] = tuple(float(value) for value in values.get("failures", ()))
    values["work"] = tuple(
        Work(int(item["log"]), int(item["io"]), float(item["cpu"])) for item in values.get("work", ())
    )
    values["asked"] = {int(rank): str(incarnation) for rank, incarnation in dict(values.get("asked", {})).items()}
    if values.get("mark") is not None:
        values["mark"] = tuple(float(value) for value in values["mark"])
    return Memory(**values)
