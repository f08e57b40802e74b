"""The keeper's judgement: a pure function from rules, memory and one look at the pair to memory and actions.

Time is seconds of CLOCK_BOOTTIME, handed in. Unknown is not no: what could not be seen changes nothing until its
deadline. Progress counts before probes: a pair whose counters move is alive, whatever else is silent.
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
    """A start is due and a node is out of reach."""
    BACKOFF = "backoff"
    """A start is due and its time has not come."""
    STARTING = "starting"
    GATING = "gating"
    """The API is up; the canary has not answered yet."""
    RUNNING = "running"
    RESTING = "resting"
    """The restart budget is spent; a person or a deploy goes on."""
    STOPPED = "stopped"
    """On purpose; kept over reboots."""


@dataclass(frozen=True)
class Rules:
    """The supervision settings that matter for a decision. Seconds, counts."""

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


@dataclass(frozen=True)
class Node:
    """One node as the keeper sees it. `rank` is None while it is out of reach."""

    rank: Rank | None
    silent_seconds: float = 0.0
    rail_up: bool | None = None


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
    """The gates after a start: pending, passed, failed with its reason, or busy: no answer within a deadline while
    others' requests went on, which is no fault."""

    state: str
    reason: str = ""
    answered: bool = True
    """An answer came, right or wrong; False: none within the deadline."""


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
class Promote:
    """The accepted generation passed its gates."""


@dataclass(frozen=True)
class Failed:
    """An attempt or a run ended; the reason and both ranks' last lines are worth keeping."""

    reason: str


@dataclass(frozen=True)
class Ready:
    """The pair answers."""

    seconds: float


Action = StopRank | StartRank | SendCanary | Promote | Failed | Ready

STUCK_STOP_SECONDS = 60.0
"""Ending a rank takes its grace and a few seconds; longer means that the kernel holds its processes."""
CANARY_STRIKES = 2
"""One canary may be lost to a hiccup; a restart needs two in a row."""


def decide(rules: Rules, memory: Memory, view: View) -> tuple[Memory, list[Action]]:
    """The next memory and what to do now."""
    if memory.accepted is None and memory.desired == "run":
        return _ended(rules, memory, view, Phase.EMPTY, "nothing was deployed yet")
    if memory.desired == "stop":
        return _ended(rules, memory, view, Phase.STOPPED, "stopped on purpose")
    if memory.phase is Phase.RESTING:
        return _ended(rules, memory, view, Phase.RESTING, memory.reason)
    if memory.phase is Phase.STARTING:
        return _starting(rules, memory, view)
    if memory.phase is Phase.GATING:
        return _gating(rules, memory, view)
    if memory.phase is Phase.RUNNING:
        return _running(rules, memory, view)
    return _clearing(memory, view)


def request_start(memory: Memory, now: float, reason: str, *, accepted: str | None = None) -> Memory:
    """A person or a deploy wants the pair started anew: budget and back-off begin afresh. A pair that was stopped on
    purpose stays stopped, with the new generation accepted."""
    memory = dataclasses.replace(memory, accepted=accepted or memory.accepted)
    if memory.desired == "stop":
        return memory
    return _restart(memory, now, reason, gentle=True, failures=(), not_before=now)


def request_rest(memory: Memory, now: float, reason: str) -> Memory:
    """What was accepted cannot be started at all: a person or a deploy must act."""
    return dataclasses.replace(memory, phase=Phase.RESTING, since=now, reason=reason, gentle=False)


def request_stop(memory: Memory, now: float) -> Memory:
    """Stop and stay stopped, over reboots too."""
    return dataclasses.replace(
        memory, desired="stop", phase=Phase.STOPPING, since=now, reason="stopped on purpose", gentle=True
    )


def request_run(memory: Memory, now: float, reason: str) -> Memory:
    """Take back a stop."""
    return request_start(dataclasses.replace(memory, desired="run"), now, reason)


def after_boot(memory: Memory, now: float) -> Memory:
    """The head was booted: whatever ran has gone, what was wanted still is. The boot clock began again."""
    memory = dataclasses.replace(memory, failures=(), not_before=now, asked={}, mark=None, canary_sent=None, strikes=0)
    if memory.desired == "stop" or memory.accepted is None or memory.phase is Phase.RESTING:
        return dataclasses.replace(memory, since=now)
    return _restart(memory, now, "the head was booted", gentle=False, failures=(), not_before=now)


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
    for name in ("since", "not_before", "moved", "answered"):
        values[name] = float(values.get(name, 0.0))
    for name in ("reason", "due"):
        values[name] = str(values.get(name, ""))
    values["phase"] = Phase(values["phase"])
    values["failures"] = tuple(float(value) for value in values.get("failures", ()))
    values["asked"] = {int(rank): str(incarnation) for rank, incarnation in dict(values.get("asked", {})).items()}
    if values.get("mark") is not None:
        values["mark"] = tuple(float(value) for value in values["mark"])
    return Memory(**values)


def _ended(rules: Rules, memory: Memory, view: View, final: Phase, reason: str) -> tuple[Memory, list[Action]]:
    """No start is wanted: end what is there, then stay."""
    stops = _stops(memory, view)
    clear = all(
        node.silent_seconds > rules.lease_seconds if node.rank is None else node.rank.state == "absent"
        for node in view.nodes
    )
    phase = final if clear or final is not Phase.STOPPED else Phase.STOPPING
    if memory.phase is not phase or memory.reason != reason:
        memory = dataclasses.replace(memory, phase=phase, since=view.now, reason=reason)
    return memory, stops


def _clearing(memory: Memory, view: View) -> tuple[Memory, list[Action]]:
    """A start is due: end what is left, wait for every node and for the back-off, then begin."""
    stops = _stops(memory, view)
    away = [rank for rank, node in enumerate(view.nodes) if node.rank is None]
    unknown = [rank for rank, node in enumerate(view.nodes) if node.rank is not None and node.rank.state == "unknown"]
    left = [rank for rank, node in enumerate(view.nodes) if node.rank is not None and node.rank.state != "absent"]
    if away:
        return _phase(memory, view, Phase.WAITING, f"{_ranks(away)} out of reach; {memory.due}"), stops
    if unknown:
        return _phase(memory, view, Phase.WAITING, f"Docker does not answer on {_ranks(unknown)}; {memory.due}"), stops
    if left:
        stuck = [rank for rank in left if view.nodes[rank].rank is not None and memory.phase is Phase.STOPPING]
        if stuck and view.now - memory.since > STUCK_STOP_SECONDS:
            return _phase(memory, view, Phase.STOPPING, _does_not_end(view, stuck)), stops
        return _phase(memory, view, Phase.STOPPING, memory.due), stops
    cut = [rank for rank, node in enumerate(view.nodes) if node.rail_up is False]
    if cut:
        return _phase(memory, view, Phase.WAITING, f"the rail of {_ranks(cut)} has no carrier; {memory.due}"), []
    if view.now < memory.not_before:
        wait = memory.not_before - view.now
        return _phase(memory, view, Phase.BACKOFF, memory.due or f"next start in {wait:.0f} s"), []
    begun = dataclasses.replace(
        memory,
        phase=Phase.STARTING,
        since=view.now,
        reason=memory.due,
        asked={},
        mark=None,
        canary_sent=None,
        strikes=0,
    )
    return begun, []


def _starting(rules: Rules, memory: Memory, view: View) -> tuple[Memory, list[Action]]:
    failure = _lost(rules, memory, view)
    if failure:
        return _fail(rules, memory, view, failure)
    actions: list[Action] = []
    for position in rules.start_order:
        rank = view.nodes[position].rank
        if rank is None or rank.state in ("unknown", "stopping"):
            break
        if rank.state == "absent":  # asked until the agent shows it: a lost message is only asked again
            actions.append(StartRank(position))
            break
        if memory.asked.get(position) != rank.incarnation:
            memory = dataclasses.replace(memory, asked={**memory.asked, position: rank.incarnation})
        if rank.state == "starting":
            break
    else:
        if view.healthy:
            sent = dataclasses.replace(
                memory,
                phase=Phase.GATING,
                since=memory.since,
                reason="the API is up; canary sent",
                canary_sent=view.now,
                answered=view.now,
                moved=view.now,
            )
            return sent, [SendCanary("first answer after the start")]
    if view.now - memory.since > rules.ready_timeout_seconds:
        return _fail(rules, memory, view, f"not ready within {rules.ready_timeout_seconds:.0f} s")
    return memory, actions


def _gating(rules: Rules, memory: Memory, view: View) -> tuple[Memory, list[Action]]:
    failure = _lost(rules, memory, view)
    if failure:
        return _fail(rules, memory, view, failure)
    if view.canary is None:  # the keeper was restarted meanwhile
        return dataclasses.replace(memory, canary_sent=view.now), [SendCanary("first answer after the start")]
    if view.canary.state in ("failed", "locked"):
        return _fail(rules, memory, view, f"the first completion failed: {view.canary.reason}")
    if view.canary.state == "ok":
        running = dataclasses.replace(
            memory,
            phase=Phase.RUNNING,
            since=view.now,
            reason="",
            mark=view.progress,
            moved=view.now,
            answered=view.now,
            canary_sent=None,
            strikes=0,
            gentle=True,
        )
        return running, [Promote(), Ready(view.now - memory.since)]
    return memory, []


def _running(rules: Rules, memory: Memory, view: View) -> tuple[Memory, list[Action]]:
    failure = _lost(rules, memory, view)
    if failure:
        return _fail(rules, memory, view, failure)
    memory = _note_progress(rules, memory, view)
    down = [rank for rank, node in enumerate(view.nodes) if node.rail_up is False]
    if down:
        # Requests hang while the engine's rail is cut and go on by themselves when it is back: wait, judge nothing.
        note = f"the rail of {_ranks(down)} has no carrier; waiting for the cable"
        return dataclasses.replace(memory, reason=note, moved=view.now, answered=view.now, canary_sent=None), []
    if memory.reason:
        memory = dataclasses.replace(memory, reason="")
    if memory.canary_sent is not None:
        return _judge_canary(rules, memory, view)
    if view.now - memory.answered > rules.silent_api_seconds and view.now - memory.moved > rules.silent_api_seconds:
        return _fail(rules, memory, view, f"the API has not answered for {view.now - memory.answered:.0f} s")
    quiet = view.now - memory.moved
    if view.busy == 0 and quiet >= rules.canary_interval_seconds:
        return dataclasses.replace(memory, canary_sent=view.now), [SendCanary("idle")]
    if view.busy and quiet >= rules.stuck_seconds:
        return dataclasses.replace(memory, canary_sent=view.now), [SendCanary(f"{view.busy} requests, no progress")]
    return memory, []


def _judge_canary(rules: Rules, memory: Memory, view: View) -> tuple[Memory, list[Action]]:
    if view.canary is None:  # the keeper was restarted meanwhile
        return dataclasses.replace(memory, canary_sent=None), []
    if view.canary.state == "pending":
        return memory, []
    sent = memory.canary_sent if memory.canary_sent is not None else view.now
    memory = dataclasses.replace(memory, canary_sent=None)
    if view.canary.state == "ok":
        return dataclasses.replace(memory, strikes=0, moved=view.now, answered=view.now, mark=view.progress), []
    if view.canary.state == "locked" and view.busy == 0:
        # Somebody exchanged or removed the key's file since the start. Nothing else is wrong with an idle pair.
        return dataclasses.replace(memory, strikes=0, moved=view.now, answered=view.now), []
    if not view.canary.answered and memory.moved > sent:  # others' tokens moved while it waited: busy, not dead
        return dataclasses.replace(memory, strikes=0), []
    strikes = memory.strikes + 1
    if strikes < CANARY_STRIKES:
        again = dataclasses.replace(memory, strikes=strikes, canary_sent=view.now)
        return again, [SendCanary(f"again, after: {view.canary.reason}")]
    return _fail(rules, memory, view, f"{strikes} canaries failed, the last: {view.canary.reason}")


def _note_progress(rules: Rules, memory: Memory, view: View) -> Memory:
    if view.healthy or view.progress is not None:
        memory = dataclasses.replace(memory, answered=view.now)
    if view.progress is not None and view.progress != memory.mark:
        moved = memory.moved if memory.mark is None else view.now
        memory = dataclasses.replace(memory, mark=view.progress, moved=moved)
    if memory.failures and view.now - memory.since > rules.stable_seconds:
        memory = dataclasses.replace(memory, failures=())
    return memory


def _lost(rules: Rules, memory: Memory, view: View) -> str:
    """Why the ranks are not a whole pair of the accepted generation any more; "" if they are, or may be."""
    reasons = []
    for position, node in enumerate(view.nodes):
        rank = node.rank
        if rank is None:
            if node.silent_seconds > rules.lease_seconds:
                reasons.append(f"rank {position}: no word for {node.silent_seconds:.0f} s, so its lease has run out")
        elif rank.state == "exited":
            reasons.append(f"rank {position}: the container exited with code {rank.exit_code}")
        elif rank.state == "failed":
            reasons.append(f"rank {position}: {rank.error}")
        elif rank.state == "running" and rank.engine != memory.accepted:
            reasons.append(f"rank {position}: runs another generation ({(rank.engine or 'none')[:12]})")
        elif rank.state == "absent" and _should_be_there(memory, position, rank):
            reasons.append(f"rank {position}: the container is gone")
    return "; ".join(reasons)


def _should_be_there(memory: Memory, position: int, rank: Rank) -> bool:
    # While starting: begun by this very agent and gone again. An agent that was restarted is asked once more.
    return memory.phase is not Phase.STARTING or memory.asked.get(position) == rank.incarnation


def _fail(rules: Rules, memory: Memory, view: View, reason: str) -> tuple[Memory, list[Action]]:
    # Attempts that never got to answer count together however long each took: the window is for runs that did.
    tried = memory.phase in (Phase.STARTING, Phase.GATING)
    counted = [at for at in memory.failures if tried or view.now - at < rules.restart_window_seconds]
    failures = (*counted[-rules.restart_budget :], view.now)
    if len(failures) > rules.restart_budget:
        rest = f"{len(failures)} failures in {view.now - failures[0]:.0f} s, the last: {reason}"
        resting = dataclasses.replace(
            memory, phase=Phase.RESTING, since=view.now, reason=rest, failures=failures, gentle=False, canary_sent=None
        )
        return resting, [Failed(reason)]
    delay = 0.0
    if len(failures) > 1:
        delay = min(rules.backoff_seconds * 2 ** (len(failures) - 2), rules.backoff_max_seconds)
    again = _restart(memory, view.now, reason, gentle=False, failures=failures, not_before=view.now + delay)
    return again, [Failed(reason)]


def _restart(
    memory: Memory, now: float, reason: str, *, gentle: bool, failures: tuple[float, ...], not_before: float
) -> Memory:
    return dataclasses.replace(
        memory,
        phase=Phase.STOPPING,
        since=now,
        reason=reason,
        due=reason,
        gentle=gentle,
        failures=failures,
        not_before=not_before,
        asked={},
        mark=None,
        canary_sent=None,
        strikes=0,
    )


def _stops(memory: Memory, view: View) -> list[Action]:
    """What to end now. A healthy pair ends by its head, whose requests may finish; the other ranks have none of their
    own and would take long to notice (13 s after SIGTERM), so they follow when the head is gone."""
    head = view.nodes[0].rank
    if memory.gentle and head is not None and head.state in ("running", "stopping"):
        return [StopRank(0, gentle=True)] if head.state == "running" else []
    return [
        StopRank(position, gentle=False)
        for position, node in enumerate(view.nodes)
        if node.rank is not None and node.rank.state in ("starting", "running", "exited", "failed")
    ]


def _does_not_end(view: View, ranks: list[int]) -> str:
    counts = [f"rank {rank}: {node.processes}" for rank in ranks if (node := view.nodes[rank].rank) is not None]
    return f"processes that do not end ({', '.join(counts)}); if that stays so, reboot the node"


def _phase(memory: Memory, view: View, phase: Phase, reason: str) -> Memory:
    if memory.phase is phase and memory.reason == reason:
        return memory
    since = memory.since if memory.phase is phase else view.now
    return dataclasses.replace(memory, phase=phase, since=since, reason=reason)


def _ranks(positions: list[int]) -> str:
    return " and ".join(f"rank {position}" for position in positions)
