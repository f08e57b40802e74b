"""The keeper's judgement against a pair that does whatever a pair may do, in any order.

The world below holds what is true of two nodes: containers, agents, leases, rails, memory, what the API would answer.
The judgement sees of it what a keeper sees, at the moments when it looks, and what it orders is carried out, or lost on
the way. After every look these must hold:

 1. No rank is begun while a rank of an earlier start may live on any node, be it out of reach.
 2. A start begins when every node is seen empty, no rail is seen cut, the memory is back (or a person insists), and not
    before its back-off is over.
 3. What is promoted passed its gates in this very start, and runs. Nothing else makes a launch the last good one.
 4. A rejected launch is never begun again, unless it was accepted anew. Only a launch that was never good is rejected,
    only while it starts, or before it is started again after it took the head down, and only where the way back is
    free; then the last good one takes its place, and nothing but that changes what is accepted.
 5. While tokens move nothing is restarted, except for a rank that is dead, frozen, gone or another's, for gates that
    were answered wrongly, and for a person. A canary that is answered wrongly twice counts as dead. A canary is sent to
   a pair that is idle, or whose tokens have not moved for long.
 6. Ranks are ended only when a restart or an end was decided, never by a look that finds the pair well.
 7. Failures within the window beyond the budget end in rest. Resting stays so until a person or a deploy asks, or a
    node is booted where that may help.
 8. Stopped on purpose stays stopped, whatever happens, over restarts of the keeper and boots of the head too.
 9. The same look at the same memory decides the same, changes neither, and a memory that was written down and read
    back decides the same again. A lost order is given again.
10. A rank that is seen dead ends the run, or the start, at that look; a start that is not through in its time ends.
11. When the world is mended and left alone, the pair comes to serve, unless it rests or was stopped.

Time is that of the head's CLOCK_BOOTTIME, which never steps back and begins anew with a boot; the minute of the day
jumps as it likes. Looks may come late by more than an hour.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import Phase as Stage
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from node import decide
from node.decide import (
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
)

GIB = 2**30
RULES = Rules(
    start_order=(1, 0),
    lease_seconds=60,
    ready_timeout_seconds=600,
    canary_interval_seconds=60,
    stuck_seconds=120,
    backoff_seconds=10,
    backoff_max_seconds=120,
    restart_budget=3,
    restart_window_seconds=3600,
    stable_seconds=600,
    load_stall_seconds=120,
    start_attempts=2,
    memory_wait_seconds=120,
    memory_tolerance_bytes=6 * GIB,
    memory_restart_bytes=4 * GIB,
    quiet_minutes=(180, 240),
)
ENGINES = ["a" * 64, "b" * 64, "c" * 64]
IDLE_BYTES = 115 * GIB
SERVING = (Phase.STARTING, Phase.GATING, Phase.RUNNING)
BEFORE_A_START = (Phase.STOPPING, Phase.WAITING, Phase.BACKOFF)
FAULTS = st.sampled_from([8.0, 40.0, 90.0, 400.0])
"""Seconds that a fault of a node lasts."""
LOAD_SECONDS = 40.0
CANARY_SECONDS = 30.0
"""Until one that has no answer counts as failed."""


@dataclass
class Container:
    engine: str
    start: int
    """Which start of the pair it belongs to."""
    state: str = "starting"
    until: float = 0.0
    """When docker run, or the end, is through."""
    code: int | None = None
    error: str = ""
    frozen_since: float | None = None
    of_use: bool = True
    """Whether what is frozen is needed for tokens; a helper process is not."""

    def holds_up(self) -> bool:
        return self.frozen_since is not None and self.of_use


@dataclass
class Machine:
    """What is true of one node."""

    container: Container | None = None
    reachable: bool = True
    docker: bool = True
    rail_up: bool = True
    reach: bool = True
    lost_bytes: int = 0
    """Memory that something else took, or that a driver kept."""
    mends: dict[str, float] = field(default_factory=dict)
    """When which of the above is well again by itself."""
    heard: float = 0.0
    lease_until: float = 0.0
    incarnation: int = 0
    log: int = 0

    def breaks(self, name: str, value: object, until: float) -> None:
        setattr(self, name, value)
        self.mends[name] = until

    def mend(self, time: float) -> None:
        for name in [name for name, until in self.mends.items() if time >= until]:
            del self.mends[name]
            setattr(self, name, 0 if name == "lost_bytes" else True)


@dataclass
class World:
    """What is true of the pair, and what happens by itself as time goes."""

    time: float = 1000.0
    booted: float = 0.0
    nodes: tuple[Machine, Machine] = field(default_factory=lambda: (Machine(), Machine()))
    kind: str = "well"
    """Of the engines: well; hangs (in its load, spinning on one core); dies (after a few seconds)."""
    loaded: float = 0.0
    tokens: float = 0.0
    busy: int = 0
    stuck: bool = False
    """The engine serves no token, and answers on every endpoint."""
    full: bool = False
    """Every slot is taken by requests that go on: what is asked beside them gets no answer in time."""
    canary: tuple[str, float] | None = None
    """How it will end, and when it was sent."""
    canary_ends: str = "ok"
    gates: tuple[str, float, int] | None = None
    """How they will end, when they were asked, of which start."""
    gates_end: str = "passed"

    def works(self) -> bool:
        """Whether a request gets through both ranks."""
        return self.serves() and not self.stuck and all(node.rail_up and node.reach for node in self.nodes)

    def serves(self) -> bool:
        """Whether the API says that it is ready."""
        ranks = [node.container for node in self.nodes]
        if any(rank is None or rank.state != "running" or rank.holds_up() for rank in ranks):
            return False
        return self.loaded >= LOAD_SECONDS

    def go(self, seconds: float) -> None:
        """Let time pass, in steps that are short against every deadline."""
        end = self.time + seconds
        while self.time < end:
            step = min(5.0 if end - self.time < 300 else 60.0, end - self.time)
            self.time += step
            for node in self.nodes:
                self._node(node)
            both = all(node.container is not None and node.container.state == "running" for node in self.nodes)
            frozen = any(node.container is not None and node.container.holds_up() for node in self.nodes)
            if not both:
                self.loaded = 0.0
            elif self.kind != "hangs" and not frozen:
                self.loaded += step
                for node in self.nodes:
                    node.log += 10 if self.loaded < LOAD_SECONDS else 0
            if self.works() and self.busy:
                self.tokens += step

    def _node(self, node: Machine) -> None:
        node.mend(self.time)
        rank = node.container
        if rank is None:
            return
        if not node.reachable and self.time > node.lease_until:
            node.container = None  # the agent ends what its keeper does not ask for any more
        elif rank.state == "starting" and self.time >= rank.until:
            rank.state, rank.until = "running", self.time + 6.0
        elif rank.state == "running" and self.kind == "dies" and self.time >= rank.until:
            rank.state, rank.code = "exited", 1
        elif rank.state == "stopping" and self.time >= rank.until:
            node.container = None


def _works(work: int, seconds: float) -> Work:
    return Work(log=work, io=0, cpu=seconds)


class PairMachine(RuleBasedStateMachine):
    """The world, the keeper's memory, and what a careful observer remembers of both."""

    @initialize(
        deployed=st.sampled_from(
            ["a good one", "a second launch", "a good one", "a second launch", "a first launch", "nothing"]
        )
    )
    def begin(self, deployed: str) -> None:
        self.world = World()
        self.memory = Memory()
        self.start = 0
        """Counts the starts of the pair."""
        self.good: str | None = None
        self.ever_good: set[str] = set()
        self.rejected: set[str] = set()
        self.way_back = ""
        self.verdict: str | None = None
        self.lose = False
        self.minute = 600
        self.metrics = True
        self.failures: list[float] = []
        """Since a person, a deploy, a boot, a rejection or a long run wiped them away; as the boot clock had it."""
        self.moved = 0.0
        """When a look last saw tokens move."""
        self.seen: tuple[float, ...] | None = None
        self.sent = 0.0
        """When the canary that is judged next was sent."""
        self.asked = 0
        """Canaries in a row that had no right answer."""
        self.cut = -1.0
        """When a look last saw a rail cut."""
        if deployed != "nothing":
            self.a_deploy_hands_over(ENGINES[0], again=False)
        if deployed in ("a good one", "a second launch"):
            for _ in range(30):
                self.passes(3.0)
            assert self.memory.phase is Phase.RUNNING
        if deployed == "a second launch":
            self.a_deploy_hands_over(ENGINES[1], again=False)

    @invariant()
    def the_keeper_looks(self) -> None:
        if hasattr(self, "world"):
            for _ in range(3):
                self.passes(2.0)

    # What a keeper sees.

    def now(self) -> float:
        return self.world.time - self.world.booted

    def view(self) -> View:
        world = self.world
        nodes = []
        for node in world.nodes:
            if not node.reachable:
                nodes.append(Node(None, world.time - node.heard))
                continue
            node.heard, node.lease_until = world.time, world.time + RULES.lease_seconds
            nodes.append(Node(self.rank(node), 0.0, node.rail_up, node.reach))
        head = world.nodes[0].container
        probed = self.memory.phase in SERVING and head is not None and head.state == "running"
        if not probed:
            world.canary = None
        serves = probed and head is not None and world.serves()
        return View(
            now=self.now(),
            nodes=tuple(nodes),
            healthy=True if serves else None,
            progress=(world.tokens,) if serves and self.metrics else None,
            busy=world.busy if serves and self.metrics else None,
            canary=self.canary(),
            gates=self.gates(),
            good=self.fallback(),
            minute=self.minute,
        )

    def fallback(self) -> str | None:
        """The last good launch, unless a person took it back."""
        return None if self.good in self.rejected else self.good

    def rank(self, node: Machine) -> Rank:
        incarnation = str(node.incarnation)
        available = IDLE_BYTES - node.lost_bytes
        if not node.docker:
            return Rank("unknown", error="Docker does not answer", incarnation=incarnation, available=available)
        rank = node.container
        if rank is None:
            return Rank("absent", incarnation=incarnation, available=available, work=_works(node.log, 0))
        return Rank(
            state=rank.state,
            engine=rank.engine,
            exit_code=rank.code,
            error=rank.error,
            processes=3,
            incarnation=incarnation,
            frozen_seconds=0.0 if rank.frozen_since is None else self.world.time - rank.frozen_since,
            work=_works(node.log, self.world.time),
            available=available - 110 * GIB if rank.state == "running" else available,
        )

    def answers(self) -> bool:
        """Whether what is asked now would be answered."""
        return self.world.works() and not self.world.full

    def canary(self) -> Canary | None:
        if self.world.canary is None:
            return None
        end, sent = self.world.canary
        if end == "locked":
            return Canary("locked", "the engine asks for another key")
        if self.answers() and self.world.time > sent:
            return Canary("ok") if end == "ok" else Canary("failed", "answered 'x'")
        if self.world.time - sent > CANARY_SECONDS:
            return Canary("failed", "no answer", answered=False)
        return Canary("pending")

    def gates(self) -> Gating | None:
        """What was told once stays told until they are asked anew, be it of an engine that has ended meanwhile."""
        if self.world.gates is None:
            return None
        end, asked, start = self.world.gates
        waited = self.world.time - asked
        if end == "asked" and waited > 5 and self.answers():
            end = self.world.gates_end
        elif end == "asked" and waited > CANARY_SECONDS:
            end = "busy" if self.world.works() and self.world.busy else "unanswered"
        self.world.gates = end, asked, start
        if end == "asked":
            return Gating("pending")
        if end == "unanswered":
            return Gating("failed", "gate arithmetic: no answer", answered=False)
        return Gating(end, "" if end == "passed" else f"gate arithmetic: {end}")

    # One look, as the keeper takes it.

    def look(self) -> None:
        view = self.view()
        if None not in (view.progress, self.seen) and view.progress != self.seen:
            self.moved = view.now
        self.seen = view.progress  # what was not seen is not compared with
        if any(node.rail_up is False or node.rail_reach is False for node in view.nodes):
            self.cut = view.now
        before = self.memory
        if before.phase is Phase.RUNNING and view.now - before.since > RULES.stable_seconds:
            self.failures.clear()
        after, actions = self.judge(before, view)
        if any(isinstance(action, Failed | Reject) for action in actions):
            verdict = None if self.verdict is None else Verdict("said", self.verdict, f"rank 1: {self.verdict}")
            back = ""
            if view.good not in (None, before.accepted):
                back = self.way_back
            view = dataclasses.replace(view, verdict=verdict, way_back=back)
            after, actions = self.judge(before, view)
        self.check(before, view, after, actions)
        self.memory = after
        for action in actions:
            self.carry_out(action)

    def judge(self, memory: Memory, view: View) -> tuple[Memory, list[Action]]:
        """9: pure, and the same after the memory was written down."""
        asked = dict(memory.asked)
        after, actions = decide.decide(RULES, memory, view)
        assert decide.decide(RULES, memory, view) == (after, actions)
        assert memory.asked == asked  # all else is frozen
        if actions or after.phase is not memory.phase:
            again = decide.restore(json.loads(json.dumps(decide.dump(memory))))
            assert again == memory
            assert decide.decide(RULES, again, view) == (after, actions)
        return after, actions

    def check(self, before: Memory, view: View, after: Memory, actions: list[Action]) -> None:
        assert after.since <= view.now
        self.check_starts(before, view, after, actions)
        self.check_promotion(before, after, actions)
        self.check_rejection(before, view, after, actions)
        self.check_failures(before, view, after, actions)
        if after.phase in SERVING:
            assert not [action for action in actions if isinstance(action, StopRank)], "6"
        if before.canary_sent is None and any(isinstance(action, SendCanary) for action in actions):
            assert view.busy is not None, "5"
            wait = RULES.stuck_seconds if view.busy else RULES.canary_interval_seconds
            assert view.now - self.moved >= wait, "5: a canary is sent to an idle pair, or where nothing moves"
        if before.phase is Phase.RESTING:
            assert (after.phase, after.reason) == (Phase.RESTING, before.reason), "7"
            assert all(isinstance(action, StopRank) for action in actions), "7"
        if before.desired == "stop":
            assert after.desired == "stop", "8"
            assert after.phase in (Phase.STOPPING, Phase.STOPPED), "8"
            assert all(isinstance(action, StopRank) for action in actions), "8"

    def check_starts(self, before: Memory, view: View, after: Memory, actions: list[Action]) -> None:
        starts = [action for action in actions if isinstance(action, StartRank)]
        assert len(starts) <= 1
        for _ in starts:
            assert after.phase is Phase.STARTING
            assert after.accepted not in self.rejected, "4"
            others = [n.container for n in self.world.nodes if n.container is not None]
            assert all(rank.start == self.start for rank in others), "1"
        if after.phase is Phase.STARTING and before.phase is not Phase.STARTING:
            assert before.phase in BEFORE_A_START
            assert not starts
            assert all(node.container is None for node in self.world.nodes), "1"
            for node, idle in zip(view.nodes, before.idle or (None, None), strict=True):
                assert node.rank is not None, "2"
                assert node.rank.state == "absent", "2"
                assert node.rail_up is not False, "2"
                assert node.rail_reach is not False, "2"
                enough = idle is None or (node.rank.available or 0) >= idle - RULES.memory_tolerance_bytes
                assert enough or before.insist, "2"
            assert view.now >= self.due(), "2"

    def due(self) -> float:
        """2: when the failures that count allow the next start."""
        if len(self.failures) < 2:
            return 0.0
        last = self.failures[-1]
        count = sum(1 for at in self.failures if last - at < RULES.restart_window_seconds)
        if count < 2:
            return last
        return last + min(RULES.backoff_seconds * 2 ** (count - 2), RULES.backoff_max_seconds)

    def check_promotion(self, before: Memory, after: Memory, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Promote):
                assert before.phase is Phase.GATING, "3"
                assert after.phase is Phase.RUNNING, "3"
                assert self.world.gates is not None, "3"
                assert (self.world.gates[0], self.world.gates[2]) == ("passed", self.start), "3"
                ranks = [node.container for node in self.world.nodes if node.reachable]
                assert all(rank is not None and rank.engine == after.accepted for rank in ranks), "3"
        if after.phase is Phase.RUNNING and before.phase is not Phase.RUNNING:
            assert before.phase is Phase.GATING
            assert any(isinstance(action, Ready) for action in actions)
            promoted = any(isinstance(action, Promote) for action in actions)
            assert promoted or after.accepted == self.good, "3: it serves, and has not shown what it must"

    def check_rejection(self, before: Memory, view: View, after: Memory, actions: list[Action]) -> None:
        rejects = [action for action in actions if isinstance(action, Reject)]
        assert len(rejects) <= 1
        if not rejects:
            assert after.accepted == before.accepted, "4"
        for action in rejects:
            worn = before.phase in BEFORE_A_START and before.attempts >= RULES.start_attempts
            assert worn or before.phase in (Phase.STARTING, Phase.GATING), "4"
            assert action.engine == before.accepted, "4"
            assert self.fallback() is not None, "4"
            assert after.accepted == self.fallback() != action.engine, "4"
            assert view.way_back == "", "4"

    def check_failures(self, before: Memory, view: View, after: Memory, actions: list[Action]) -> None:
        failed = [action for action in actions if isinstance(action, Failed)]
        assert len(failed) <= 1
        if failed and view.verdict is not None and view.verdict.action == "rest":
            assert after.phase is Phase.RESTING, "7"
        if after.phase is Phase.STARTING:
            assert view.now - after.since <= RULES.ready_timeout_seconds, "10"
        dead = before.phase in SERVING and self.dead(before, view)
        assert dead <= bool(failed), "10"
        restarted = before.phase in SERVING and after.phase not in SERVING
        assert restarted <= (bool(failed) or "memory_restart_mib" in after.reason)
        if restarted and not failed:
            assert view.busy == 0, "5"
            assert view.minute is not None
            assert 180 <= view.minute < 240
        if failed and before.phase in (Phase.GATING, Phase.RUNNING) and not self.dead(before, view):
            self.check_verdict_of_probes(before, view, failed[0].reason)
        if failed and not [action for action in actions if isinstance(action, Reject)]:
            recent = [at for at in self.failures if view.now - at < RULES.restart_window_seconds]
            if before.phase is not Phase.BACKOFF and len(recent) + 1 > RULES.restart_budget:
                assert after.phase is Phase.RESTING, "7"

    def check_verdict_of_probes(self, before: Memory, view: View, reason: str) -> None:
        """5: what asked has had its time, nobody's tokens moved meanwhile, and the rails carried."""
        if before.phase is Phase.GATING:
            assert reason.startswith("gate "), "5"
            assert self.world.gates is not None
            asked = self.world.gates[1] - self.world.booted
            assert self.cut < asked, "5: gates are asked anew after a cut"
            assert self.world.gates[2] == self.start, "5: gates of another start"
        elif "canaries failed" in reason:
            assert self.asked >= 2, "5: one canary may be lost to a hiccup"
            assert self.cut < self.sent, "5"
            assert "answered" in reason or "another key" in reason or self.moved <= self.sent, "5"
        else:
            assert reason.startswith("the API has not answered for "), "5"
            assert view.now - self.moved > RULES.silent_api_seconds, "5"
            assert view.now - self.cut > RULES.silent_api_seconds, "5"

    def dead(self, memory: Memory, view: View) -> bool:
        return any(self.lost(memory, view, node) for node in view.nodes)

    def lost(self, memory: Memory, view: View, node: Node) -> bool:
        rank = node.rank
        if rank is None:
            return node.silent_seconds > RULES.lease_seconds
        if rank.state in ("exited", "failed"):
            return True
        if rank.state == "absent":
            return memory.phase is not Phase.STARTING
        foreign = rank.engine != memory.accepted
        quiet = view.now - max(self.moved, memory.moved) > decide.FROZEN_SECONDS or memory.phase is Phase.STARTING
        frozen = rank.frozen_seconds > decide.FROZEN_SECONDS and quiet
        return rank.state == "running" and (foreign or frozen)

    # What follows from a look.

    def carry_out(self, action: Action) -> None:
        world = self.world
        lost, self.lose = self.lose, False
        if isinstance(action, Failed):
            self.failures.append(self.now())
            if self.memory.phase is Phase.RESTING:
                self.failures.clear()
        elif isinstance(action, Reject):
            self.rejected.add(action.engine)
            self.failures.clear()
        elif isinstance(action, Promote):
            assert self.memory.accepted is not None
            self.good = self.memory.accepted
            self.ever_good.add(self.good)
            self.rejected.discard(self.good)
        elif isinstance(action, SendCanary):
            world.canary = (world.canary_ends, world.time)
            self.sent = self.now()
            self.asked += 1
        elif isinstance(action, RunGates):
            world.gates = ("asked", world.time, self.start)
        elif isinstance(action, StartRank | StopRank) and not lost:
            node = world.nodes[action.rank]
            if node.reachable and node.docker:
                self.order(node, action)

    def order(self, node: Machine, action: StartRank | StopRank) -> None:
        if isinstance(action, StopRank):
            if node.container is not None:
                node.container.state = "stopping"
                node.container.until = self.world.time + (10.0 if action.gentle else 2.0)
            return
        assert self.memory.accepted is not None
        if node.container is None:
            node.container = Container(self.memory.accepted, self.start, until=self.world.time + 2.0)
            self.world.loaded = 0.0

    # What happens.

    @rule(seconds=st.sampled_from([0.25, 5.0, 20.0]), looks=st.integers(3, 12))
    def time_goes_by(self, seconds: float, looks: int) -> None:
        for _ in range(looks):
            self.passes(seconds)

    @rule(seconds=st.sampled_from([61.0, 130.0, 700.0, 4000.0]))
    def a_look_comes_late(self, seconds: float) -> None:
        self.passes(seconds)

    def passes(self, seconds: float) -> None:
        self.world.go(seconds)
        self.tick()

    def tick(self) -> None:
        was = self.memory.phase
        self.look()
        if self.memory.phase is not Phase.RUNNING or (self.memory.strikes == 0 and self.memory.canary_sent is None):
            self.asked = 0
        if self.memory.phase is Phase.STARTING and was is not Phase.STARTING:
            self.start += 1

    @rule(engine=st.sampled_from(ENGINES), again=st.booleans())
    def a_deploy_hands_over(self, engine: str, again: bool) -> None:
        if engine == self.memory.accepted and self.memory.phase not in (Phase.RESTING, Phase.EMPTY):
            return
        if engine in self.rejected and not again:
            return
        self.rejected.discard(engine)
        self.memory = decide.request_start(self.memory, self.now(), "the configuration changed", accepted=engine)
        self.failures.clear()

    @precondition(lambda self: self.memory.accepted is not None)
    @rule(seconds=st.sampled_from([0.0, 5.0, 90.0]))
    def the_operator_restarts(self, seconds: float) -> None:
        self.memory = decide.request_run(self.memory, self.now(), "restart requested")
        self.failures.clear()

    @precondition(lambda self: self.memory.accepted is not None)
    @rule(seconds=st.sampled_from([5.0, 90.0]), boots=st.booleans(), deploys=st.booleans())
    def the_operator_stops_and_starts(self, seconds: float, boots: bool, deploys: bool) -> None:
        self.memory = decide.request_stop(self.memory, self.now())
        self.passes(1.0)
        self.passes(seconds)
        if boots:
            self.the_head_is_booted()
        if deploys:
            self.a_deploy_hands_over(ENGINES[2], again=False)
        self.passes(seconds)
        assert self.memory.phase in (Phase.STOPPING, Phase.STOPPED), "8"
        self.the_operator_restarts(0.0)

    @precondition(lambda self: self.memory.accepted is not None)
    @rule()
    def the_operator_stops(self) -> None:
        self.memory = decide.request_stop(self.memory, self.now())

    @precondition(lambda self: self.memory.desired == "run" and bool(self.ever_good - {self.memory.accepted}))
    @rule()
    def the_operator_takes_back(self) -> None:
        to = min(self.ever_good - {self.memory.accepted or ""})
        if self.memory.accepted is not None:
            self.rejected.add(self.memory.accepted)
        self.rejected.discard(to)
        self.memory = decide.request_start(self.memory, self.now(), "back", accepted=to)
        self.failures.clear()

    @rule()
    def the_keeper_is_restarted(self) -> None:
        memory, now = decide.restore(json.loads(json.dumps(decide.dump(self.memory)))), self.now()
        self.memory = dataclasses.replace(
            memory, mark=None, moved=now, answered=now, canary_sent=None, strikes=0, worked=now, work=()
        )
        self.world.canary = self.world.gates = None
        self.seen = None

    @rule()
    def the_head_is_booted(self) -> None:
        world = self.world
        world.go(90.0)
        head, worker = world.nodes
        head.container = None
        head.incarnation += 1
        if world.time > worker.lease_until:
            worker.container = None  # nobody renewed it
        world.booted = world.time - 20.0
        rested = self.memory.phase is Phase.RESTING and not self.memory.needs_boot
        memory = decide.restore(json.loads(json.dumps(decide.dump(self.memory))))
        self.memory = decide.after_boot(memory, self.now())
        assert self.memory.desired == memory.desired, "8"
        if rested:
            assert self.memory.phase is Phase.RESTING, "7"
        self.failures.clear()
        self.moved = self.sent = 0.0
        self.cut = -1.0
        self.seen = None
        world.canary = world.gates = None

    @rule(rank=st.integers(0, 1), code=st.sampled_from([0, 1, 137]))
    def a_rank_dies(self, rank: int, code: int) -> None:
        container = self.world.nodes[rank].container
        if container is not None and container.state in ("starting", "running"):
            container.state, container.code = "exited", code

    @rule(rank=st.integers(0, 1))
    def a_rank_cannot_start(self, rank: int) -> None:
        container = self.world.nodes[rank].container
        if container is not None and container.state == "starting":
            container.state, container.error = "failed", "could not start: port 8000 is in use"

    @rule(rank=st.integers(0, 1))
    def the_node_ends_its_rank_for_memory(self, rank: int) -> None:
        container = self.world.nodes[rank].container
        if container is not None and container.state == "running":
            container.state, container.error = "failed", "1900 MiB of memory were left on the node"

    @rule(rank=st.integers(0, 1), thaws=st.booleans(), of_use=st.booleans())
    def a_rank_is_frozen_or_thawed(self, rank: int, thaws: bool, of_use: bool) -> None:
        container = self.world.nodes[rank].container
        if container is not None and container.state == "running":
            container.frozen_since, container.of_use = None if thaws else self.world.time, of_use
            for _ in range(5):
                self.passes(5.0)

    @precondition(lambda self: self.memory.phase is Phase.RUNNING)
    @rule(rank=st.integers(0, 1))
    def a_helper_is_frozen_while_tokens_move(self, rank: int) -> None:
        self.world.busy, self.world.full, self.world.stuck, self.metrics = 1, False, False, True
        for _ in range(3):
            self.passes(5.0)
        self.a_rank_is_frozen_or_thawed(rank, thaws=False, of_use=False)

    @rule(rank=st.integers(0, 1), engine=st.sampled_from(ENGINES))
    def somebody_starts_a_rank_by_hand(self, rank: int, engine: str) -> None:
        node = self.world.nodes[rank]
        if node.container is None and node.reachable and engine != self.memory.accepted:
            node.container = Container(engine, -1, "running")

    @rule(rank=st.integers(0, 1))
    def somebody_removes_a_container(self, rank: int) -> None:
        self.world.nodes[rank].container = None

    @rule(rank=st.integers(0, 1), power=st.booleans(), seconds=FAULTS)
    def a_node_goes_away(self, rank: int, power: bool, seconds: float) -> None:
        node = self.world.nodes[rank]
        node.breaks("reachable", False, self.world.time + seconds)
        if power:
            node.container = None
            node.incarnation += 1

    @rule(rank=st.integers(0, 1))
    def an_agent_is_restarted(self, rank: int) -> None:
        node = self.world.nodes[rank]
        node.incarnation += 1
        if node.container is not None and node.container.state == "starting":
            node.container = None  # docker run was a child of it

    @rule(rank=st.integers(0, 1), seconds=FAULTS)
    def docker_is_silent(self, rank: int, seconds: float) -> None:
        self.world.nodes[rank].breaks("docker", False, self.world.time + seconds)

    @rule(rank=st.integers(0, 1), what=st.sampled_from(["rail_up", "reach"]), seconds=FAULTS)
    def a_rail_is_cut(self, rank: int, what: str, seconds: float) -> None:
        self.world.nodes[rank].breaks(what, False, self.world.time + seconds)

    @rule(rank=st.integers(0, 1), gib=st.sampled_from([3, 10, 112]), seconds=FAULTS)
    def memory_is_taken(self, rank: int, gib: int, seconds: float) -> None:
        self.world.nodes[rank].breaks("lost_bytes", gib * GIB, self.world.time + seconds)

    @rule(busy=st.sampled_from([0, 1, 4]), stuck=st.booleans(), metrics=st.booleans())
    def users_come_and_go(self, busy: int, stuck: bool, metrics: bool) -> None:
        self.world.busy, self.world.stuck, self.metrics = busy, stuck and bool(busy), metrics
        self.world.full = busy == 4
        for _ in range(20 if stuck else 0):
            self.passes(10.0)

    @precondition(lambda self: self.memory.phase is Phase.RUNNING)
    @rule(stuck=st.integers(12, 15))
    def every_slot_goes_on_after_a_pause(self, stuck: int) -> None:
        """A canary that was sent meanwhile gets no answer, while tokens move again."""
        self.world.busy, self.world.full, self.world.stuck, self.metrics = 4, True, True, True
        for step in range(28):
            self.world.stuck = step < stuck
            self.passes(10.0)

    @precondition(lambda self: self.memory.phase in (Phase.RUNNING, Phase.GATING))
    @rule(fault=st.sampled_from(["rail_up", "reach", "full", "frozen"]), seconds=FAULTS, rank=st.integers(0, 1))
    def the_gates_meet_trouble(self, fault: str, seconds: float, rank: int) -> None:
        self.memory = decide.request_run(self.memory, self.now(), "restart requested")
        self.failures.clear()
        for _ in range(40):
            if self.memory.phase is not Phase.GATING:
                self.passes(2.0)
        node = self.world.nodes[rank]
        if fault == "full":
            self.world.busy, self.world.full = 4, True
        elif fault != "frozen":
            node.breaks(fault, False, self.world.time + seconds)
        elif node.container is not None:
            node.container.frozen_since = self.world.time
        for _ in range(10):
            self.passes(5.0)

    @rule(canary=st.sampled_from(["ok", "ok", "wrong", "locked"]), gates=st.sampled_from(["passed", "failed", "busy"]))
    def the_engine_will_answer(self, canary: str, gates: str) -> None:
        self.world.canary_ends, self.world.gates_end = canary, gates
        for _ in range(8 if canary == "wrong" else 0):
            self.passes(20.0)

    @rule(
        kind=st.sampled_from(["well", "hangs", "dies", "dies"]),
        verdict=st.sampled_from([None, None, "retry", "reject", "rest"]),
        back=st.sampled_from(["", "", "its image is gone"]),
        deploys=st.booleans(),
    )
    def the_engine_is_another_kind(self, kind: str, verdict: str | None, back: str, deploys: bool) -> None:
        self.world.kind, self.verdict, self.way_back = kind, verdict, back
        if deploys:
            self.a_deploy_hands_over(ENGINES[1] if self.good == ENGINES[0] else ENGINES[0], again=True)
        for _ in range(40 if kind == "dies" else 0):
            self.passes(5.0)

    @precondition(lambda self: self.memory.phase is Phase.RUNNING)
    @rule(
        minute=st.sampled_from([0, 179, 180, 239, 240, 600]),
        gib=st.sampled_from([0, 3]),
        busy=st.sampled_from([0, 0, 1]),
    )
    def the_wall_clock_steps(self, minute: int, gib: int, busy: int) -> None:
        """While the pair is idle or not, with memory left or hardly any."""
        self.minute, self.metrics = minute, True
        self.world.busy, self.world.full, self.world.stuck = busy, False, bool(busy)
        if gib:
            self.world.nodes[0].breaks("lost_bytes", gib * GIB, self.world.time + 90.0)
        for _ in range(8):
            self.passes(10.0)

    @rule()
    def the_next_order_is_lost(self) -> None:
        self.lose = True

    def teardown(self) -> None:
        """11: good weather."""
        if not hasattr(self, "world"):
            return
        world = self.world
        for node in world.nodes:
            node.mend(float("inf"))
            if node.container is not None:
                node.container.frozen_since = None
        world.kind, world.stuck, world.full, self.lose = "well", False, False, False
        world.busy, world.canary_ends, world.gates_end, self.metrics = 0, "ok", "passed", True
        self.verdict, self.minute = None, 600
        ends = {"stop": Phase.STOPPED, "run": Phase.EMPTY if self.memory.accepted is None else Phase.RUNNING}
        for _ in range(120):
            self.passes(5.0)
        wanted = ends[self.memory.desired]
        assert self.memory.phase in (wanted, Phase.RESTING), f"11: {self.memory}"
        alive = [node.container for node in world.nodes if node.container is not None]
        if self.memory.phase is Phase.RUNNING:
            assert [rank.engine for rank in alive] == [self.memory.accepted] * 2, "11"
            assert {(rank.start, rank.state) for rank in alive} == {(self.start, "running")}, "11"
        else:
            assert not alive, "11"


def _run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        PairMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Stage.generate],  # to make a long story short takes minutes, and it is short enough
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_invariants_hold_whatever_happens():
    _run(50, 20)


@pytest.mark.slow
def test_the_invariants_hold_for_long():
    _run(400, 60)
