"""The keeper's judgement: a pure function from rules, memory and one look at the pair to memory and actions.

Unknown is not no: what could not be seen changes nothing until its deadline. Progress counts before probes: a pair
whose counters move is alive, whatever else is silent.
"""

from __future__ import annotations

import dataclasses

from node.state import (
    Action,
    Canary,
    Failed,
    Gating,
    Memory,
    Node,
    Phase,
    Promote,
    Rank,
    Ready,
    Reject,
    Rules,
    RunGates,
    SendCanary,
    StartRank,
    StopRank,
    Verdict,
    View,
    Work,
    dump,
    restore,
)

__all__ = [
    "Action",
    "Canary",
    "Failed",
    "Gating",
    "Memory",
    "Node",
    "Phase",
    "Promote",
    "Rank",
    "Ready",
    "Reject",
    "Rules",
    "RunGates",
    "SendCanary",
    "StartRank",
    "StopRank",
    "Verdict",
    "View",
    "Work",
    "after_boot",
    "decide",
    "dump",
    "request_rest",
    "request_run",
    "request_start",
    "request_stop",
    "restore",
]

STUCK_STOP_SECONDS = 60.0
"""Ending a rank takes its grace and a few seconds; longer means that the kernel holds its processes."""
CANARY_STRIKES = 2
"""One canary may be lost to a hiccup; a restart needs two in a row."""
FROZEN_SECONDS = 15.0
"""Somebody may stop a process for a moment to look at it."""
GATES_AGAIN_SECONDS = 60.0
"""Between two tries of gates that found no free slot."""
WORKING_CORES = 1.5
"""A start that hangs spins on one core (field reports: ENG-01); more is work."""
CORES_OVER_SECONDS = 10.0
REFRESH_IDLE_SECONDS = 60.0
REFRESH_APART_SECONDS = 12 * 3600.0
"""A restart for memory's sake is made once in a night, whether it helped or not."""
GIB = 2**30


def decide(rules: Rules, memory: Memory, view: View) -> tuple[Memory, list[Action]]:
    """The next memory and what to do now."""
    if memory.accepted is None and memory.desired == "run":
        return _ended(rules, memory, view, Phase.EMPTY, "nothing was deployed yet")
    if memory.desired == "stop":
        return _ended(rules, memory, view, Phase.STOPPED, "stopped on purpose")
    if memory.phase is Phase.RESTING:
        booted = _booted(memory, view)
        if booted:
            return request_start(memory, view.now, f"{booted}; it rested for what a boot may mend"), []
        return _ended(rules, memory, view, Phase.RESTING, memory.reason)
    if memory.phase is Phase.STARTING:
        return _starting(rules, memory, view)
    if memory.phase is Phase.GATING:
        return _gating(rules, memory, view)
    if memory.phase is Phase.RUNNING:
        return _running(rules, memory, view)
    return _clearing(rules, memory, view)


def request_start(memory: Memory, now: float, reason: str, *, accepted: str | None = None) -> Memory:
    """A person or a deploy wants the pair started anew: budget and back-off begin afresh. A pair that was stopped on
    purpose stays stopped, with the new generation accepted."""
    memory = dataclasses.replace(memory, accepted=accepted or memory.accepted, attempts=0, needs_boot=False)
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
    """Take back a stop, or go on after resting; then whatever the nodes' memory says."""
    insist = memory.phase is Phase.RESTING
    started = request_start(dataclasses.replace(memory, desired="run"), now, reason)
    return dataclasses.replace(started, insist=insist)


def after_boot(memory: Memory, now: float) -> Memory:
    """The head was booted: whatever ran has gone, what was wanted still is. The boot clock began again."""
    memory = dataclasses.replace(
        memory, failures=(), not_before=now, asked={}, mark=None, canary_sent=None, strikes=0,
        up=None, cleared=None, refreshed=None, work=(),
    )  # fmt: skip
    if memory.phase in (Phase.STARTING, Phase.GATING):
        # It may be the launch that took the head down, as one that leaves a node no memory does.
        memory = dataclasses.replace(memory, attempts=memory.attempts + 1)
    rests = memory.phase is Phase.RESTING and not memory.needs_boot
    if memory.desired == "stop" or memory.accepted is None or rests:
        return dataclasses.replace(memory, since=now)
    memory = dataclasses.replace(memory, needs_boot=False)
    return _restart(memory, now, "the head was booted", gentle=False, failures=(), not_before=now)


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


def _clearing(rules: Rules, memory: Memory, view: View) -> tuple[Memory, list[Action]]:
    """A start is due: end what is left, wait for every node, its memory and the back-off, then begin."""
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
    if memory.cleared is None:
        memory = dataclasses.replace(memory, cleared=view.now)
    cut = _cut(view)
    if cut:
        return _phase(memory, view, Phase.WAITING, f"{cut}; {memory.due}"), []
    if view.now < memory.not_before:
        wait = memory.not_before - view.now
        return _phase(memory, view, Phase.BACKOFF, memory.due or f"next start in {wait:.0f} s"), []
    if memory.attempts >= rules.start_attempts:  # by boots of the head; other failures were judged as they came
        settled = _give_up(memory, view, f"the head was booted {memory.attempts} times while it started", certain=False)
        if settled is not None:
            return settled
    short = _short_of_memory(rules, memory, view)
    if short:
        return _wait_for_memory(rules, memory, view, short)
    return _begin(memory, view), []


def _begin(memory: Memory, view: View) -> Memory:
    """Start with the next look."""
    available = tuple(None if node.rank is None else node.rank.available for node in view.nodes)
    return dataclasses.replace(
        memory,
        phase=Phase.STARTING,
        since=view.now,
        reason=memory.due,
        asked={},
        mark=None,
        canary_sent=None,
        strikes=0,
        up=None,
        worked=view.now,
        work=(),
        work_at=view.now,
        before=available,
    )


def _short_of_memory(rules: Rules, memory: Memory, view: View) -> str:
    """Which nodes have clearly less memory than before the last good start; "" if none has, or a person insists."""
    if memory.insist:
        return ""
    found = []
    for position, (node, idle) in enumerate(zip(view.nodes, memory.idle, strict=False)):
        available = node.rank.available if node.rank is not None else None
        if available is not None and idle is not None and available < idle - rules.memory_tolerance_bytes:
            found.append(
                f"rank {position}: {available / GIB:.1f} GiB of memory available after its end, "
                f"{idle / GIB:.1f} before the last good start"
            )
    return "; ".join(found)


def _wait_for_memory(rules: Rules, memory: Memory, view: View, short: str) -> tuple[Memory, list[Action]]:
    since = memory.cleared if memory.cleared is not None else view.now
    if view.now - since <= rules.memory_wait_seconds:
        return _phase(memory, view, Phase.WAITING, f"{short}; waiting for it to come back; {memory.due}"), []
    reason = (
        f"{short}, and it did not come back within {rules.memory_wait_seconds:.0f} s: end what uses it, "
        "or boot the node (a driver may keep memory after a crash)"
    )
    return _rest(memory, view, reason, needs_boot=True), [Failed(reason)]


def _starting(rules: Rules, memory: Memory, view: View) -> tuple[Memory, list[Action]]:
    memory = _note_work(memory, view)
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
            return _ask_gates(dataclasses.replace(memory, phase=Phase.GATING, up=view.now), view)
    if view.now - memory.since > rules.ready_timeout_seconds:
        reason = f"not ready within {rules.ready_timeout_seconds:.0f} s"
        return _fail(rules, memory, view, reason, hung=True)
    if 0 < rules.load_stall_seconds < view.now - memory.worked:
        reason = (
            f"no sign of work from any rank for {view.now - memory.worked:.0f} s: no log line, no file read or "
            f"written, no more than {WORKING_CORES:g} cores"
        )
        return _fail(rules, memory, view, reason, hung=True)
    return memory, actions


def _note_work(memory: Memory, view: View) -> Memory:
    """Keep when a rank last showed work. What cannot be seen counts as work: unknown is not no."""
    now = tuple(node.rank.work if node.rank is not None else None for node in view.nodes)
    seen = tuple(item for item in now if item is not None)
    if len(seen) < len(now) or len(memory.work) != len(seen):
        return dataclasses.replace(memory, worked=view.now, work=seen, work_at=view.now)
    pairs = list(zip(memory.work, seen, strict=True))
    if any(new.log != old.log or new.io != old.io for old, new in pairs):
        return dataclasses.replace(memory, worked=view.now, work=seen, work_at=view.now)
    seconds = view.now - memory.work_at
    if seconds < CORES_OVER_SECONDS:
        return memory
    busy = any(new.cpu - old.cpu > WORKING_CORES * seconds for old, new in pairs)
    return dataclasses.replace(memory, worked=view.now if busy else memory.worked, work=seen, work_at=view.now)


def _ask_gates(memory: Memory, view: View) -> tuple[Memory, list[Action]]:
    asked = dataclasses.replace(
        memory, reason="the API is up; its gates are asked", canary_sent=view.now, answered=view.now, moved=view.now
    )
    return asked, [RunGates()]


def _gating(rules: Rules, memory: Memory, view: View) -> tuple[Memory, list[Action]]:
    memory = _note_progress(rules, memory, view)
    failure = _lost(rules, memory, view)
    if failure:
        return _fail(rules, memory, view, failure)
    cut = _cut(view)
    if cut:  # what is asked now hangs, and is asked anew when the cable is back
        return dataclasses.replace(memory, reason=f"{cut}; waiting for the cable", canary_sent=None), []
    if view.gates is None or memory.canary_sent is None:  # the keeper was restarted, or the rail was cut
        return _ask_gates(memory, view)
    if view.gates.state == "pending":
        return memory, []
    if view.gates.state == "failed" and not _serves_all_the_same(rules, memory, view, view.gates):
        return _fail(rules, memory, view, view.gates.reason)
    if view.gates.state == "busy" and memory.accepted != view.good:
        # It serves, and every slot is taken: it counts as good only when it has shown what it must.
        if view.now - memory.canary_sent >= GATES_AGAIN_SECONDS:
            return _ask_gates(memory, view)
        return dataclasses.replace(memory, reason=f"it serves; {view.gates.reason}"), []
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
        attempts=0,
        insist=False,
        idle=memory.before or memory.idle,
        gentle=True,
    )
    ready = Ready((memory.up if memory.up is not None else view.now) - memory.since)
    return running, [Promote(), ready] if view.gates.state == "passed" else [ready]


def _serves_all_the_same(rules: Rules, memory: Memory, view: View, gates: Gating) -> bool:
    """Whether a launch that was good before serves although a gate was answered wrongly, again and again: what the gate
    wants may be what is wrong, and a canary that fails still restarts it."""
    return memory.accepted == view.good and gates.answered and memory.attempts + 1 >= rules.start_attempts


def _running(rules: Rules, memory: Memory, view: View) -> tuple[Memory, list[Action]]:
    memory = _note_progress(rules, memory, view)
    failure = _lost(rules, memory, view)
    if failure:
        return _fail(rules, memory, view, failure)
    cut = _cut(view)
    if cut and (_is_dark(view) or view.now - memory.moved > FROZEN_SECONDS):
        # Requests hang while the engine's rail is cut and go on by themselves when it is back: wait, judge nothing.
        note = f"{cut}; waiting for the cable"
        moved = view.now if _is_dark(view) else memory.moved
        return dataclasses.replace(memory, reason=note, moved=moved, answered=view.now, canary_sent=None), []
    if memory.reason:
        memory = dataclasses.replace(memory, reason="")
    if memory.canary_sent is not None:
        return _judge_canary(rules, memory, view)
    if view.now - memory.answered > rules.silent_api_seconds and view.now - memory.moved > rules.silent_api_seconds:
        return _fail(rules, memory, view, f"the API has not answered for {view.now - memory.answered:.0f} s")
    low = _low_at_night(rules, memory, view)
    if low:
        again = _restart(memory, view.now, low, gentle=True, failures=memory.failures, not_before=view.now)
        return dataclasses.replace(again, refreshed=view.now), []
    quiet = view.now - memory.moved
    if view.busy == 0 and quiet >= rules.canary_interval_seconds:
        return dataclasses.replace(memory, canary_sent=view.now), [SendCanary("idle")]
    if view.busy and quiet >= rules.stuck_seconds:
        return dataclasses.replace(memory, canary_sent=view.now), [SendCanary(f"{view.busy} requests, no progress")]
    return memory, []


def _low_at_night(rules: Rules, memory: Memory, view: View) -> str:
    """Why an idle pair is restarted now for its memory's sake; "" if it is not."""
    if not rules.memory_restart_bytes or rules.quiet_minutes is None or view.minute is None:
        return ""
    begin, end = rules.quiet_minutes
    within = begin <= view.minute < end if begin < end else view.minute >= begin or view.minute < end
    if not within or view.busy != 0 or view.now - memory.moved < REFRESH_IDLE_SECONDS:
        return ""
    if memory.refreshed is not None and view.now - memory.refreshed < REFRESH_APART_SECONDS:
        return ""
    for position, node in enumerate(view.nodes):
        available = node.rank.available if node.rank is not None else None
        if available is not None and available < rules.memory_restart_bytes:
            return f"rank {position} has {available / GIB:.1f} GiB of memory left, less than memory_restart_mib"
    return ""


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
    if memory.phase is Phase.RUNNING and memory.failures and view.now - memory.since > rules.stable_seconds:
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
        elif rank.state == "running" and _is_frozen(memory, view, rank):
            reasons.append(f"rank {position}: its processes have been stopped for {rank.frozen_seconds:.0f} s")
    return "; ".join(reasons)


def _is_frozen(memory: Memory, view: View, rank: Rank) -> bool:
    """Whether a rank that was stopped from outside holds the pair up."""
    moves = memory.phase is not Phase.STARTING and view.now - memory.moved <= FROZEN_SECONDS
    return rank.frozen_seconds > FROZEN_SECONDS and not moves


def _should_be_there(memory: Memory, position: int, rank: Rank) -> bool:
    # While starting: begun by this very agent and gone again. An agent that was restarted is asked once more.
    return memory.phase is not Phase.STARTING or memory.asked.get(position) == rank.incarnation


def _booted(memory: Memory, view: View) -> str:
    """Which nodes were booted since the pair came to rest for what that may mend; "" if none was."""
    if not memory.needs_boot:
        return ""
    pairs = enumerate(zip(memory.boots, view.nodes, strict=False))
    found = [rank for rank, (old, node) in pairs if old and node.rank and node.rank.boot not in ("", old)]
    return f"booted: the node of {_ranks(found)}" if found else ""


def _is_dark(view: View) -> bool:
    """Whether a rail has no carrier: a fact, where silence over it may be a firewall's."""
    return any(node.rail_up is False for node in view.nodes)


def _cut(view: View) -> str:
    """Which rails carry nothing; "" if all do, as far as known."""
    dark = [rank for rank, node in enumerate(view.nodes) if node.rail_up is False]
    if dark:
        return f"the rail of {_ranks(dark)} has no carrier"
    mute = [rank for rank, node in enumerate(view.nodes) if node.rail_reach is False]
    return f"{_ranks(mute)} does not answer over the rail" if mute else ""


def _fail(rules: Rules, memory: Memory, view: View, reason: str, *, hung: bool = False) -> tuple[Memory, list[Action]]:
    tried = memory.phase in (Phase.STARTING, Phase.GATING)
    # Of ranks that live, and answered wrongly, what they waited for on the way up explains nothing.
    verdict = None if view.verdict is not None and view.verdict.action == "retry" and _live(view) else view.verdict
    if verdict is not None and verdict.text:
        reason = f"{reason}; {verdict.text}"
    failed = Failed(reason)
    if verdict is not None and verdict.action == "rest":
        return _rest(memory, view, reason, needs_boot=True), [failed]
    certain = verdict is not None and verdict.action == "reject"
    if tried and _is_to_blame(memory, view):
        memory = dataclasses.replace(memory, attempts=memory.attempts + 1)
        if certain or hung or memory.attempts >= rules.start_attempts:
            settled = _give_up(memory, view, reason, certain=certain)
            if settled is not None:
                return settled[0], [failed, *settled[1]]
    # Attempts that never got to answer count together however long each took: the window is for runs that did.
    counted = [at for at in memory.failures if tried or view.now - at < rules.restart_window_seconds]
    failures = (*counted[-rules.restart_budget :], view.now)
    if len(failures) > rules.restart_budget:
        rest = f"{len(failures)} failures in {view.now - failures[0]:.0f} s, the last: {reason}"
        return dataclasses.replace(_rest(memory, view, rest), failures=failures), [failed]
    delay = 0.0
    if len(failures) > 1:
        delay = min(rules.backoff_seconds * 2 ** (len(failures) - 2), rules.backoff_max_seconds)
    again = _restart(memory, view.now, reason, gentle=False, failures=failures, not_before=view.now + delay)
    return again, [failed]


def _live(view: View) -> bool:
    return all(node.rank is not None and node.rank.state == "running" for node in view.nodes)


def _is_to_blame(memory: Memory, view: View) -> bool:
    """Whether a failed start tells against its launch: not where a node, its agent, Docker or a rail was lost."""
    for position, node in enumerate(view.nodes):
        if node.rank is None or node.rank.state == "unknown":
            return False
        if memory.asked.get(position, node.rank.incarnation) != node.rank.incarnation:
            return False
    return not _cut(view)


def _give_up(memory: Memory, view: View, reason: str, *, certain: bool) -> tuple[Memory, list[Action]] | None:
    """No further start of a launch that was never good: back to the last good one, or rest. None: try again."""
    launch = memory.accepted or ""
    if view.good == launch:
        return None
    if view.good is None:
        if not certain:
            return None
        return _rest(memory, view, f"this launch cannot start: {reason}"), []
    if view.way_back:
        rest = f"launch {launch[:12]} failed: {reason}; the last good one cannot take its place: {view.way_back}"
        return _rest(memory, view, rest), []
    due = f"launch {launch[:12]} was rejected: {reason}; going back to {view.good[:12]}"
    back = dataclasses.replace(memory, accepted=view.good, attempts=0)
    again = _restart(back, view.now, due, gentle=False, failures=(), not_before=view.now)
    return again, [Reject(launch, reason)]


def _rest(memory: Memory, view: View, reason: str, *, needs_boot: bool = False) -> Memory:
    return dataclasses.replace(
        memory,
        phase=Phase.RESTING,
        since=view.now,
        reason=reason,
        gentle=False,
        canary_sent=None,
        needs_boot=needs_boot,
        boots=tuple("" if node.rank is None else node.rank.boot for node in view.nodes),
    )


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
        up=None,
        cleared=None,
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
