"""The keeper: the one program that starts, watches, restarts and stops the pair. It runs on the head.

One loop: ask every agent (which renews its lease), let decide() judge, carry out what it says, publish the state.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from node import decide, echo, handover, health, network, paths, service, signatures, wire
from node.agent import boottime
from node.decide import Memory, Phase, Verdict
from node.floors import Floors
from node.journal import log
from node.lines import listen
from node.link import AgentLink, Away, Refusal
from node.probe import EngineProbe
from node.rails import RailWatch
from node.release import RELEASE
from node.store import Generation, Store

HASTE_SECONDS = 0.25
"""Between looks while ranks are being ended or begun: there the pair is down, and each second counts."""
ENDING_GRACE_SECONDS = 2.0
"""For the rest of a failed pair: its requests are lost already, and rank 1 would take 13 s to end by itself."""
XID_SECONDS = 60.0
"""An Xid this long before the last sign of work may still be what ended the pair."""
NEWS_SECONDS = 20.0
"""The question itself has 3; beside a start the program may wait for its turn."""
LOG_LINES = 25
NO_LINE = "(no line of this start)"
HURRIED = (Phase.STOPPING, Phase.STARTING, Phase.GATING)
SERVING = (Phase.STARTING, Phase.GATING, Phase.RUNNING)
CLEARING = (Phase.STOPPING, Phase.WAITING, Phase.BACKOFF)
"""A start is due."""


class Keeper:
    """Holds the pair to the accepted generation."""

    def __init__(
        self,
        settings: service.Service,
        store: Store,
        links: Sequence[AgentLink],
        probe: EngineProbe,
        *,
        code: str,
        boot_id: str,
        clock: Callable[[], float] = boottime,
        status_path: Path = paths.STATUS,
        wanted_path: Path = paths.WANTED_RANK,
        rails: RailWatch | None = None,
        news: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._links = links
        self._probe = probe
        self._code = code
        self._boot_id = boot_id
        self._clock = clock
        self._status_path = status_path
        self._wanted_path = wanted_path
        self._serving_ports = settings.ports
        self._unsaved = False
        self._unkept: dict[str, str] = {}
        """Rejections that are to be written yet, with the reasons."""
        self._wake = asyncio.Event()
        self._epoch = 0
        self._counters: dict[str, int] = {}
        self._last_failure: dict[str, Any] | None = None
        self._last_start_seconds: float | None = None
        self._ranks: dict[int, dict[str, Any]] = {}
        self._published = ""
        self._generation: Generation | None = None
        self._serving = False
        self._served = float("-inf")
        """When the pair was last seen to work."""
        self._last_rollback: dict[str, Any] | None = None
        self._gates = settings.gates
        self._listed: list[dict[str, Any]] = []
        self._floors = Floors(store, clock)
        self._slow: set[int] = set()
        self._update = ""
        self._news = news
        self._asking_news: asyncio.Task[None] | None = None
        self._rails = rails or RailWatch({}, "", clock, _nobody)
        probe.transports = self._transports
        self._load()

    async def run(self) -> None:
        """Look, judge, act, until cancelled."""
        while True:
            await self.tick()
            hurried = self.memory.phase in HURRIED
            pause = HASTE_SECONDS if hurried else self._settings.watch_interval_seconds
            try:
                await asyncio.wait_for(self._wake.wait(), pause)
            except asyncio.TimeoutError:
                pass
            self._wake.clear()

    async def tick(self) -> None:
        """One look and what follows from it."""
        view = await self._look()
        if self.memory.phase is Phase.STARTING and self._generation is None:
            await self._mend_generation()
        if self._unsaved:
            self._save()
        judged = self.memory
        memory, actions = decide.decide(self._settings.rules, judged, view)
        logs: list[list[str]] = []
        if any(isinstance(action, (decide.Failed, decide.Reject)) for action in actions):
            logs = await self._tails(signatures.LINES_READ, former=False, unbegun=_unbegun(judged, view))
            back = await self._way_back(judged, view.good)
            view = dataclasses.replace(view, verdict=self._verdict(logs), way_back=back)
            memory, actions = decide.decide(self._settings.rules, judged, view)
        if self.memory is not judged:
            return  # somebody asked for something meanwhile: look again with that in mind
        for action in actions:
            if isinstance(action, decide.Failed):
                self._failed(action.reason, logs, judged.accepted, memory)
            elif isinstance(action, decide.Reject):
                self._reject(action, str(memory.accepted), logs)
        self._remember(memory)
        for action in actions:
            await self._act(action)
        self._publish()

    async def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Answer the sparkpair command."""
        try:
            return await self._answer(message)
        except OSError as error:
            return {"ok": False, "error": f"the head's disk does not take it ({error}): free some space and ask again"}

    async def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        op = message.get("op")
        now = self._clock()
        if op == "status":
            return {"ok": True, "status": self.status()}
        if op == "logs":
            logs = await self._tails(int(message.get("lines", LOG_LINES)), times=bool(message.get("times")))
            return {"ok": True, "logs": {str(rank): lines for rank, lines in enumerate(logs)}}
        if op == "accept":
            return await self._accept(str(message.get("engine", "")), again=bool(message.get("again")))
        if op == "rollback":
            return await self._rollback(str(message.get("engine", "")))
        if op == "warm-up":
            return self._warm_up()
        if op == "stop":
            self._record("stop requested")
            self._remember(decide.request_stop(self.memory, now))
        elif op in ("start", "restart"):
            if self.memory.accepted is None:
                return {"ok": False, "error": "nothing was deployed yet; run deploy.py"}
            if op == "start" and self.memory.desired == "run" and self.memory.phase is not Phase.RESTING:
                return {"ok": True, "note": f"already {self.memory.phase.value}"}
            self._record(f"{op} requested")
            self._remember(decide.request_run(self.memory, now, f"{op} requested"))
        else:
            return {"ok": False, "error": f"unknown request {op!r}"}
        self._wake.set()
        return {"ok": True}

    def status(self) -> dict[str, Any]:
        """What `sparkpair status --json` prints."""
        memory = self.memory
        since = time.time() - (self._clock() - memory.since)
        return {
            "phase": memory.phase.value,
            "since": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(since)),
            "reason": memory.reason,
            "desired": memory.desired,
            "accepted": memory.accepted,
            "last_good": self._store.last_good(),
            "epoch": self._epoch,
            "code": self._code,
            "service": self._settings.digest,
            "last_start_seconds": self._last_start_seconds,
            "counters": {**self._counters, "failures_in_window": len(memory.failures)},
            "ranks": {
                str(link.rank): {"node": link.name, **self._ranks.get(link.rank, {"state": "unknown"})}
                for link in self._links
            },
            "last_failure": self._last_failure,
            "rejected": self._store.rejected(),
            "rollback": self._last_rollback,
            "gates": self._probe.gate_results,
            "gating": self._probe.gates.state if self._probe.gates else None,
            "generations": self._listed,
            "memory": {
                str(rank): {"available": seen.get("memory_available"), "floor": self._floors.now.get(rank)}
                for rank, seen in sorted(self._ranks.items())
            },
            "asked": self._probe.asked,
            "update": self._update,
            "release": RELEASE,
        }

    async def _look(self) -> decide.View:
        # A head whose agent or Docker does not answer may serve as before, and only the API itself can tell.
        if self.memory.phase in SERVING and self._ranks.get(0, {}).get("state", "unknown") in ("running", "unknown"):
            self._serving = True
            self._probe.look()
        elif self._serving:
            self._serving = False
            self._probe.forget()
        if self.memory.phase in (*SERVING, *CLEARING):  # who waits for a rail must go on asking
            self._rails.look()
        nodes = await asyncio.gather(*(self._poll(link) for link in self._links))
        clock = time.localtime()
        return decide.View(
            now=self._clock(),
            nodes=tuple(nodes),
            healthy=self._probe.healthy,
            progress=self._probe.progress,
            busy=self._probe.busy,
            canary=self._probe.canary,
            gates=self._probe.gates,
            good=self._store.way_back(),
            minute=clock.tm_hour * 60 + clock.tm_min,
        )

    async def _poll(self, link: AgentLink) -> decide.Node:
        entry = self._settings.nodes[link.rank]
        try:
            answer = await link.call(
                "poll",
                epoch=self._epoch,
                lease_seconds=self._settings.lease_seconds,
                netdevs=list(entry.netdevs),
                emergency_bytes=self._settings.memory.emergency_bytes,
            )
        except Away as error:
            self._ranks[link.rank] = {
                "state": "unknown",
                "away": str(error),
                "silent_seconds": round(link.silent_seconds),
            }
            return decide.Node(None, link.silent_seconds)
        except Refusal as error:
            self._ranks[link.rank] = {"state": "unknown", "away": str(error)}
            if link.epoch > self._epoch:
                self._outbid(link)
                return decide.Node(None, link.silent_seconds)
            return decide.Node(decide.Rank("unknown", error=str(error)))
        rank = answer["rank"]
        self._ranks[link.rank] = {
            **rank,
            "address": link.address,
            "boot_id": answer["boot_id"],
            "code": answer["code"],
            "rail_up": answer["rail_up"],
            "processes": answer["processes"],
            "memory_available": answer.get("memory_available"),
            "xids": answer.get("xids", []),
            "clocks": answer.get("clocks"),
        }
        warning = self._settings.memory.warning_bytes
        short = self._floors.note(link.rank, link.name, self.memory.accepted, answer, warning)
        if short:
            log(short, "warning")
            self._record("memory", text=short)
        self._tell_clock(link, str(answer.get("clocks") or ""))
        work = answer.get("work")
        seen = decide.Rank(
            state=str(rank["state"]),
            engine=rank.get("engine"),
            exit_code=rank.get("exit_code"),
            error=str(rank.get("error", "")),
            processes=int(answer["processes"]),
            incarnation=str(answer["incarnation"]),
            frozen_seconds=float(answer.get("frozen_seconds", 0.0)),
            work=decide.Work(int(work["log"]), int(work["io"]), float(work["cpu"])) if work else None,
            available=answer.get("memory_available"),
            boot=str(answer["boot_id"]),
        )
        # Who answers by that rail is reached over it, whatever a firewall does with an echo.
        by_rail = bool(entry.addresses) and link.address == entry.addresses[0]
        return decide.Node(seen, 0.0, answer["rail_up"], True if by_rail else self._rails.reach(link.rank))

    def _tell_clock(self, link: AgentLink, clocks: str) -> None:
        """A GPU that is clamped answers as before, at half the speed: said once until it is well again."""
        if not clocks.startswith(health.SLOW):
            self._slow.discard(link.rank)
        elif link.rank not in self._slow:
            self._slow.add(link.rank)
            log(f"{link.name}: its GPU is {clocks}", "warning")
            self._record("clocks", text=f"{link.name}: {clocks}")

    def _outbid(self, link: AgentLink) -> None:
        """The agent knows a later epoch than ours: this head's state is older than the agent's, as after a restore."""
        log(f"{link.name} knows epoch {link.epoch}, ours was {self._epoch}: going on above it", "warning")
        self._epoch = link.epoch + 1
        self._save()

    async def _act(self, action: decide.Action) -> None:
        try:
            if isinstance(action, decide.StopRank):
                grace = self._settings.stop_grace_seconds if action.gentle else ENDING_GRACE_SECONDS
                await self._links[action.rank].call("stop", epoch=self._epoch, grace_seconds=grace)
            elif isinstance(action, decide.StartRank):
                await self._start(action.rank)
            elif isinstance(action, decide.SendCanary):
                self._counters["canaries"] += 1
                if action.purpose != "idle":
                    log(f"canary: {action.purpose}")
                self._probe.send_canary()
            elif isinstance(action, decide.RunGates):
                self._probe.run_gates(self._gates)
            elif isinstance(action, decide.Promote):
                self._promote()
            elif isinstance(action, decide.Ready):
                self._ready(action.seconds)
        except (Away, Refusal) as error:
            log(f"{error}; asking again", "warning")

    async def _start(self, rank: int) -> None:
        if self._generation is None:
            return
        link = self._links[rank]
        ports = list(self._serving_ports) if rank == 0 else []
        await link.call(
            "start",
            timeout=10.0,
            epoch=self._epoch,
            engine=self._generation.engine,
            text=self._generation.texts[rank],
            ports=ports,
            drop_page_cache=self._settings.memory.drop_page_cache,
        )
        if rank == self._settings.rules.start_order[0]:
            self._counters["starts"] += 1
            self._floors.begin()
            self._ask_for_news()
            log(f"starting generation {self._generation.engine[:12]}: {self.memory.reason}")
            self._record("start", engine=self._generation.engine, reason=self.memory.reason)

    def _ask_for_news(self) -> None:
        """Whether there is a newer release, in the background of a start; whatever becomes of it is no concern here."""
        if self._news is not None and self._settings.update.check:
            self._asking_news = asyncio.get_running_loop().create_task(self._hear_news(self._news))

    async def _hear_news(self, news: Callable[[], Awaitable[str]]) -> None:
        self._update = await news()
        if self._update:
            log(self._update, "notice")

    def _promote(self) -> None:
        engine = self.memory.accepted
        if engine is None:
            return
        try:
            note = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "gates": self._probe.gate_results}
            self._store.promote(engine, note)
            self._store.forgive(engine)
            self._store.prune(self._settings.generations_kept)
        except OSError as error:  # it serves all the same; the next start promotes it
            log(f"generation {engine[:12]} passed, and could not be marked so: {error}", "error")
        self._list()

    def _ready(self, seconds: float) -> None:
        self._counters["ready"] += 1
        self._last_start_seconds = round(seconds, 1)
        self._save()
        log(f"generation {(self.memory.accepted or '')[:12]} answers, {seconds:.1f} s after its start", "notice")
        self._record("ready", engine=self.memory.accepted, seconds=round(seconds, 1))
        if self._probe.gates is not None and self._probe.gates.state == "failed":
            log(f"it serves as a launch that was good before, and {self._probe.gates.reason}", "error")
            self._record("gate failed", engine=self.memory.accepted, reason=self._probe.gates.reason)

    def _failed(self, reason: str, logs: list[list[str]], engine: str | None, memory: Memory) -> None:
        """Keep why it failed, with both ranks' last lines, before anything is taken away."""
        self._counters["failures"] += 1
        self._last_failure = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "engine": engine,
            "reason": reason,
            "logs": {str(rank): lines[-LOG_LINES:] for rank, lines in enumerate(logs)},
        }
        self._floors.keep(engine)
        self._save()
        log(f"generation {(engine or '')[:12]} failed: {reason}", "error")
        self._record("failed", engine=engine, reason=reason)
        if memory.phase is Phase.RESTING:
            log(f"resting: {memory.reason}. To try again: sparkpair start", "error")
            self._record("resting", reason=memory.reason)

    def _reject(self, rejected: decide.Reject, good: str, logs: list[list[str]]) -> None:
        """Written before the state that names the good one: a power cut in between is seen at the next load."""
        try:
            self._store.reject(rejected.engine, rejected.reason)
        except OSError as error:
            self._unkept[rejected.engine] = rejected.reason
            log(f"that launch {rejected.engine[:12]} was rejected could not be kept: {error}", "error")
        self._note_rollback(rejected.engine, good, rejected.reason, logs)
        log(f"launch {rejected.engine[:12]} is rejected: {rejected.reason}; going back to {good[:12]}", "error")
        self._record("rejected", engine=rejected.engine, reason=rejected.reason, to=good)
        self._return_to(good)

    def _verdict(self, logs: list[list[str]]) -> Verdict | None:
        """What the nodes' kernels tell of a GPU that is lost, else what the ranks' last lines tell."""
        for rank, seen in sorted(self._ranks.items()):
            for xid in seen.get("xids", []):
                # A pair that has served since then was not hindered by it, neither then nor at a later start.
                if xid["fatal"] and float(xid["age_seconds"]) <= self._clock() - self._served + XID_SECONDS:
                    text = f"rank {rank}: {xid['meaning']} (Xid {xid['xid']} at {xid['time']}). Fix: {xid['fix']}"
                    return Verdict(f"xid-{xid['xid']}", "rest", text)
        return signatures.match(logs)

    def _warm_up(self) -> dict[str, Any]:
        if self.memory.phase is not Phase.RUNNING:
            return {"ok": False, "error": f"the pair is {self.memory.phase.value}; a start asks the gates by itself"}
        self._probe.run_gates(self._gates)
        self._record("warm-up requested")
        return {"ok": True}

    async def _tails(
        self, lines: int = LOG_LINES, *, times: bool = False, former: bool = True, unbegun: Collection[int] = ()
    ) -> list[list[str]]:
        """The ranks' last lines. Those of a former start are for a person to read, and no evidence of this one."""
        asked = (self._tail(link, lines, times, former, link.rank in unbegun) for link in self._links)
        return list(await asyncio.gather(*asked))

    async def _tail(self, link: AgentLink, lines: int, times: bool, former: bool, unbegun: bool) -> list[str]:
        if unbegun:
            return [NO_LINE]
        try:
            answer = await link.call("logs", timeout=5.0, lines=lines, times=times)
            if answer.get("former") and not former:
                return [NO_LINE]
            return [str(line) for line in answer["lines"]]
        except (Away, Refusal) as error:
            return [f"(no log: {error})"]

    async def _transports(self) -> dict[int, network.Seen | str]:
        """What each rank's log says of NCCL, or why it could not be had."""
        found: dict[int, network.Seen | str] = {}
        for link, answer in zip(self._links, await asyncio.gather(*map(self._transport, self._links)), strict=True):
            found[link.rank] = answer
        return found

    async def _transport(self, link: AgentLink) -> network.Seen | str:
        try:
            answer = await link.call("transport", timeout=network.SECONDS + 5, epoch=self._epoch)
            return network.parse(answer["transport"])
        except (Away, Refusal) as error:
            return str(error)

    async def _accept(self, engine: str, *, again: bool) -> dict[str, Any]:
        """Take over the wanted set of all nodes, if it is whole and is the one that deploy means."""
        if engine == self.memory.accepted and self.memory.phase not in (Phase.RESTING, Phase.EMPTY):
            return {"ok": True, "note": f"already {self.memory.phase.value}"}
        rejection = self._store.rejected().get(engine)
        if rejection is not None and not again:
            return {
                "ok": False,
                "error": f"launch {engine[:12]} was rejected on {rejection['time']}: {rejection['reason']}. "
                # Whole: its first digits alone may read as a number.
                f"To try it once more: deploy with retry_rejected={engine}",
            }
        found = await handover.wanted(self._links, engine, self._clock)
        if found.refusals:
            return {"ok": False, "error": "\n".join(found.refusals)}
        self._generation = self._store.snapshot(engine, found.texts, found.manifest, self._settings.text)
        self._unkept.pop(engine, None)
        self._store.forgive(engine)  # only now: a disk that takes no snapshot must not cost the rejection
        self._serve_with(self._settings)
        self._list()
        reason = "first start" if self.memory.accepted is None else "the configuration changed"
        if engine == self.memory.accepted:
            reason = "deployed again after resting"
        self._record("accepted", engine=engine)
        log(f"accepted generation {engine[:12]}")
        self._remember(decide.request_start(self.memory, self._clock(), reason, accepted=engine))
        self._publish()
        self._wake.set()
        return {"ok": True}

    async def _rollback(self, prefix: str) -> dict[str, Any]:
        """Back to a launch that was good, at a person's word."""
        accepted = self.memory.accepted
        if self.memory.desired == "stop":
            return {"ok": False, "error": "the pair is stopped on purpose; sparkpair start first"}
        good = [entry for entry in self._listed if entry["good"] and entry["engine"] != accepted]
        found = [entry for entry in good if entry["engine"].startswith(prefix)]
        if not prefix and self._store.last_good() not in (None, accepted):
            found = [entry for entry in good if entry["engine"] == self._store.last_good()]
        if not found or (prefix and len(found) > 1):
            known = ", ".join(f"{entry['engine'][:12]} of {entry['accepted']}" for entry in good) or "none"
            which = f"that begins with {prefix[:12]}" if prefix else "to go back to"
            many = "more than one launch" if found else "no other launch that was good"
            return {"ok": False, "error": f"there is {many} {which}; kept and good: {known}"}
        target = found[0]
        to = str(target["engine"])
        generation = self._store.generation(to)
        lacking = await handover.cannot_start(self._links, generation.texts, target["identities"])
        if lacking:
            return {"ok": False, "error": f"launch {to[:12]} cannot be started any more: {lacking}"}
        reason = "taken back by the operator"
        if accepted is not None:
            self._store.reject(accepted, reason)
        self._store.forgive(to)
        self._return_to(to)
        self._note_rollback(accepted, to, reason, [])
        self._record("rollback requested", engine=to, former=accepted)
        self._remember(decide.request_start(self.memory, self._clock(), f"back to launch {to[:12]}", accepted=to))
        self._publish()
        self._wake.set()
        return {"ok": True, "note": f"going back to launch {to[:12]}", "engine": to}

    def _return_to(self, engine: str) -> None:
        """A kept generation is the accepted one from now on, with the API and gates that belong to it."""
        try:
            self._generation = self._store.generation(engine)
            self._store.point_at(engine)
            self._adopt_settings(self._generation)
        except (wire.WireError, OSError) as error:
            self._generation = None
            log(str(error), "error")
        self._list()

    def _note_rollback(self, former: str | None, to: str, reason: str, logs: list[list[str]]) -> None:
        self._last_rollback = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "from": former,
            "to": to,
            "reason": reason,
            "logs": {str(rank): lines[-LOG_LINES:] for rank, lines in enumerate(logs)},
        }

    async def _way_back(self, judged: Memory, good: str | None) -> str:
        """Why the last good generation cannot take the place of one that fails; "" where it can, or none is meant."""
        if good in (None, judged.accepted):
            return ""
        try:
            generation = self._store.generation(str(good))
            identities = self._store.manifest(str(good))["identities"]
        except (wire.WireError, KeyError) as error:
            return str(error)
        return await handover.cannot_start(self._links, generation.texts, identities)

    async def _mend_generation(self) -> None:
        """The accepted generation is damaged on this head: from the nodes' wanted sets, if they are still it; else the
        last good one; else rest."""
        judged, engine, now = self.memory, self.memory.accepted or "", self._clock()
        found = await handover.wanted(self._links, engine, self._clock)
        if self.memory is not judged:
            return  # somebody asked for something meanwhile
        if engine and not found.refusals:
            try:
                self._generation = self._store.snapshot(engine, found.texts, found.manifest, self._settings.text)
            except OSError as error:
                reason = f"generation {engine[:12]} is damaged on this head and cannot be written: {error.strerror}"
                self._remember(
                    decide.request_rest(self.memory, now, f"{reason}; see to the disk (df -h), then sparkpair start")
                )
                return
            self._list()
            log(f"generation {engine[:12]} was damaged on this head, and is whole again", "notice")
            return
        good = self._store.way_back()
        if good not in (None, engine) and any(entry["engine"] == good for entry in self._listed):
            reason = f"generation {engine[:12]} is damaged on this head; going back to {str(good)[:12]}"
            self._return_to(str(good))
            self._remember(decide.request_start(self.memory, now, reason, accepted=good))
            return
        reason = f"generation {engine[:12]} is damaged on this head; run deploy.py again"
        self._remember(decide.request_rest(self.memory, now, reason))

    def _load(self) -> None:
        now = self._clock()
        try:
            state = self._store.load()
            if not state and self._store.current() is not None:
                raise wire.WireError("the keeper's state is missing")
            memory = decide.restore(state["memory"]) if state else Memory()
            epoch = int(state.get("epoch", 0))
            counters = {name: int(value) for name, value in dict(state.get("counters", {})).items()}
            failure = dict(state["last_failure"]) if state.get("last_failure") else None
            self._last_rollback = dict(state["rollback"]) if state.get("rollback") else None
            seconds = float(state["last_start_seconds"]) if state.get("last_start_seconds") is not None else None
        except (wire.WireError, KeyError, TypeError, ValueError, AttributeError) as error:
            aside = self._store.set_aside()
            memory = self._recovered(now)
            log(
                f"{error}; going on with generation {(memory.accepted or 'none')[:12]}, see {aside or 'the links'}",
                "error",
            )
            state, epoch, counters, failure, seconds = {}, 0, {}, None, None
        else:
            if not state or state.get("boot_id") == self._boot_id:
                # The clock has gone on; what was seen of progress is old, and unknown is not no.
                memory = dataclasses.replace(
                    memory, mark=None, moved=now, answered=now, canary_sent=None, strikes=0, worked=now, work=()
                )
            else:
                memory = decide.after_boot(memory, now)
        good = self._store.way_back()
        if memory.accepted in self._store.rejected() and good not in (None, memory.accepted):
            reason = self._store.rejected()[str(memory.accepted)]["reason"]
            self._note_rollback(memory.accepted, str(good), reason, [])
            memory = decide.request_start(memory, now, f"back to launch {str(good)[:12]}", accepted=good)
        if memory.accepted is not None:
            try:
                self._generation = self._store.generation(memory.accepted)
                self._store.point_at(memory.accepted)
                self._adopt_settings(self._generation)
            except (wire.WireError, OSError) as error:
                # What runs may go on; only a start needs the texts, and tells.
                log(str(error), "error")
        self.memory = memory
        if memory.phase is Phase.RUNNING:
            self._served = memory.moved
        self._epoch = epoch + 1
        self._counters = {"starts": 0, "ready": 0, "failures": 0, "canaries": 0, **counters}
        self._last_failure = failure
        self._last_start_seconds = seconds
        self._list()
        self._save()

    def _list(self) -> None:
        """Look through the kept generations, whenever they change."""
        self._listed = self._store.listed()

    def _recovered(self, now: float) -> Memory:
        """The state is lost; the links into the generations say what ran. It is taken to run still: what is not true of
        that is seen at the first look, and mended like any failure."""
        accepted = self._store.current()
        memory = Memory(accepted=accepted, since=now, moved=now, answered=now)
        if self._store.stopped:
            return dataclasses.replace(memory, desired="stop", phase=Phase.STOPPING)
        return dataclasses.replace(memory, phase=Phase.EMPTY if accepted is None else Phase.RUNNING)

    def _adopt_settings(self, generation: Generation) -> None:
        """Which API and canary belong to the accepted generation. The settings on disk are those of the wanted set,
        which may be newer: a deploy that has not got to the hand-over, or a pair that is stopped on purpose."""
        try:
            wanted = wire.read_text(self._wanted_path)
        except wire.WireError:
            wanted = ""
        kept = self._store.service(generation.engine)
        if wanted == generation.texts[0] or kept is None:
            self._store.keep_service(generation.engine, self._settings.text)
            self._serve_with(self._settings)
            return
        try:
            self._serve_with(service.parse(kept))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise wire.WireError(f"the settings kept with generation {generation.engine[:12]}: {error!r}") from None

    def _serve_with(self, settings: service.Service) -> None:
        self._serving_ports = settings.ports
        self._gates = settings.gates
        self._probe.use(settings.api, settings.canary)

    def _remember(self, memory: Memory) -> None:
        former, self.memory = self.memory, memory
        if memory.phase is Phase.RUNNING:
            self._served = memory.moved
        if former.desired != memory.desired:
            self._mark_stopped(memory.desired == "stop")
        if _lasting(former) != _lasting(memory):
            self._save()
        if former.phase is not memory.phase:
            log(f"{memory.phase.value}{': ' + memory.reason if memory.reason else ''}")

    def _mark_stopped(self, stopped: bool) -> None:
        try:
            self._store.mark_stopped(stopped)
        except OSError as error:
            log(f"that the pair is {'stopped' if stopped else 'wanted'} could not be marked: {error}", "warning")

    def _save(self) -> None:
        """Keep the state. A full disk must not end the keeper, and with it the leases of a pair that serves."""
        try:
            for engine, reason in list(self._unkept.items()):
                self._store.reject(engine, reason)
                del self._unkept[engine]
            self._store.save(
                {
                    "memory": decide.dump(self.memory),
                    "epoch": self._epoch,
                    "boot_id": self._boot_id,
                    "counters": self._counters,
                    "last_failure": self._last_failure,
                    "rollback": self._last_rollback,
                    "last_start_seconds": self._last_start_seconds,
                }
            )
        except OSError as error:
            if not self._unsaved:
                log(f"the keeper's state could not be written, trying again at each look: {error}", "error")
            self._unsaved = True
            return
        if self._unsaved:
            log("the keeper's state is written again", "notice")
        self._unsaved = False

    def _record(self, event: str, **details: Any) -> None:
        try:
            self._store.record(event, **details)
        except OSError as error:
            log(f"history: {event} could not be recorded: {error}", "warning")

    def _publish(self) -> None:
        """The state for everybody; the ranks' lines, which may hold what users wrote, are for root, quoted ones too."""
        status = self.status()
        for name in ("last_failure", "rollback"):
            if status[name] is not None:
                status[name] = {key: value for key, value in status[name].items() if key != "logs"}
        text = json.dumps(signatures.without_quotes(status))
        if text == self._published and self._status_path.exists():
            return
        temporary = self._status_path.with_suffix(".new")
        try:
            temporary.write_text(text)
            temporary.chmod(0o644)
            temporary.replace(self._status_path)
            self._published = text
        except OSError as error:
            log(f"{self._status_path} could not be written: {error}", "warning")


def _lasting(memory: Memory) -> Memory:
    """What must survive a restart of the keeper; the rest moves with every look and is not worth a disk write."""
    return dataclasses.replace(
        memory, mark=None, moved=0.0, answered=0.0, canary_sent=None, strikes=0, worked=0.0, work=(), work_at=0.0
    )


def _unbegun(memory: Memory, view: decide.View) -> list[int]:
    """The ranks that this start has not come to."""
    if memory.phase is not Phase.STARTING:
        return []
    absent = [rank for rank, node in enumerate(view.nodes) if node.rank is not None and node.rank.state == "absent"]
    return [rank for rank in absent if rank not in memory.asked]


async def _newer_releases() -> str:
    """What the program of that name says; "" when it says nothing in time."""
    try:
        process = await asyncio.create_subprocess_exec(
            *paths.PROGRAM, "updates",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        return ""
    try:
        said, _ = await asyncio.wait_for(process.communicate(), NEWS_SECONDS)
    except asyncio.TimeoutError:
        process.kill()
        await process.wait()
        return ""
    return said.decode(errors="replace").strip()


async def _nobody(address: str, netdev: str) -> None:
    """Stands where no rail is watched."""
    del address, netdev


async def serve() -> int:
    """Run the keeper until SIGTERM. The pair goes on without it for the length of the lease."""
    paths.STATUS.unlink(missing_ok=True)  # a former keeper's word: who reads it must wait for ours
    settings = service.load(paths.WANTED_SERVICE)
    links = [AgentLink(node.rank, node.name, () if node.local else node.addresses, boottime) for node in settings.nodes]
    # A worker's first address is that of the rail that the engine uses.
    peers = {node.rank: node.addresses[0] for node in settings.nodes if node.addresses}
    rails = RailWatch(peers, (settings.nodes[0].netdevs or ("",))[0], boottime, echo.reaches)
    keeper = Keeper(
        settings,
        Store(),
        links,
        EngineProbe(settings.api, settings.canary, boottime),
        code=wire.programs_hash(wire.programs(Path(__file__).parent)),
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        rails=rails,
        news=_newer_releases,
    )

    server = await listen(paths.KEEPER_SOCKET, keeper.request)
    paths.KEEPER_SOCKET.chmod(0o600)
    loop = asyncio.get_running_loop()
    work = loop.create_task(keeper.run())
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, work.cancel)
    log(f"keeper ready, {len(links)} nodes, {keeper.memory.phase.value}")
    try:
        await work
    except asyncio.CancelledError:
        pass
    server.close()
    await asyncio.gather(*(link.close() for link in links))
    return 0


def main(argv: list[str]) -> int:
    """Run the keeper until it is told to stop."""
    if argv:
        print("keeper takes no arguments", file=sys.stderr)
        return 2
    try:
        return asyncio.run(serve())
    except wire.WireError as error:
        log(str(error), "error")
        return 1
