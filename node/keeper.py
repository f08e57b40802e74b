"""The keeper: the one program that starts, watches, restarts and stops the pair. It runs on the head.

One loop: ask every agent (which renews its lease), let decide() judge, carry out what it says, publish the state.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from node import decide, paths, service, wire
from node.agent import boottime
from node.decide import Memory, Phase
from node.journal import log
from node.lines import listen
from node.link import AgentLink, Away, Refusal
from node.probe import EngineProbe
from node.store import Generation, Store

HASTE_SECONDS = 0.25
"""Between looks while ranks are being ended or begun: there the pair is down, and each second counts."""
ENDING_GRACE_SECONDS = 2.0
"""For the rest of a failed pair: its requests are lost already, and rank 1 would take 13 s to end by itself."""
WANTED_SECONDS = 20.0
WANTED_CALL_SECONDS = 5.0
"""One try; while it lasts no lease is renewed."""
LOG_LINES = 25
HURRIED = (Phase.STOPPING, Phase.STARTING, Phase.GATING)
SERVING = (Phase.STARTING, Phase.GATING, Phase.RUNNING)


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
        self._wake = asyncio.Event()
        self._epoch = 0
        self._counters: dict[str, int] = {}
        self._last_failure: dict[str, Any] | None = None
        self._last_start_seconds: float | None = None
        self._ranks: dict[int, dict[str, Any]] = {}
        self._published = ""
        self._generation: Generation | None = None
        self._serving = False
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
            reason = f"generation {(self.memory.accepted or '')[:12]} is damaged on this head; run deploy.py again"
            self._remember(decide.request_rest(self.memory, self._clock(), reason))
        if self._unsaved:
            self._save()
        judged = self.memory
        memory, actions = decide.decide(self._settings.rules, judged, view)
        failures = [action.reason for action in actions if isinstance(action, decide.Failed)]
        logs = await self._tails() if failures else []
        if self.memory is not judged:
            return  # somebody asked for something meanwhile: look again with that in mind
        for reason in failures:
            self._failed(reason, logs, memory)
        self._remember(memory)
        for action in actions:
            await self._act(action)
        self._publish()

    async def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Answer the sparkpair command."""
        op = message.get("op")
        now = self._clock()
        if op == "status":
            return {"ok": True, "status": self.status()}
        if op == "logs":
            logs = await self._tails(int(message.get("lines", LOG_LINES)))
            return {"ok": True, "logs": {str(rank): lines for rank, lines in enumerate(logs)}}
        if op == "accept":
            return await self._accept(str(message.get("engine", "")))
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
        }

    async def _look(self) -> decide.View:
        if self.memory.phase in SERVING and self._ranks.get(0, {}).get("state") == "running":
            self._serving = True
            self._probe.look()
        elif self._serving:
            self._serving = False
            self._probe.forget()
        nodes = await asyncio.gather(*(self._poll(link) for link in self._links))
        return decide.View(
            now=self._clock(),
            nodes=tuple(nodes),
            healthy=self._probe.healthy,
            progress=self._probe.progress,
            busy=self._probe.busy,
            canary=self._probe.canary,
        )

    async def _poll(self, link: AgentLink) -> decide.Node:
        entry = self._settings.nodes[link.rank]
        try:
            answer = await link.call(
                "poll", epoch=self._epoch, lease_seconds=self._settings.lease_seconds, netdevs=list(entry.netdevs)
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
        }
        seen = decide.Rank(
            state=str(rank["state"]),
            engine=rank.get("engine"),
            exit_code=rank.get("exit_code"),
            error=str(rank.get("error", "")),
            processes=int(answer["processes"]),
            incarnation=str(answer["incarnation"]),
        )
        return decide.Node(seen, 0.0, answer["rail_up"])

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
        )
        if rank == self._settings.rules.start_order[0]:
            self._counters["starts"] += 1
            log(f"starting generation {self._generation.engine[:12]}: {self.memory.reason}")
            self._record("start", engine=self._generation.engine, reason=self.memory.reason)

    def _promote(self) -> None:
        engine = self.memory.accepted
        if engine is None:
            return
        try:
            self._store.promote(engine, {"canary": "ok", "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")})
            self._store.prune(self._settings.generations_kept)
        except OSError as error:  # it serves all the same; the next start promotes it
            log(f"generation {engine[:12]} passed, and could not be marked so: {error}", "error")

    def _ready(self, seconds: float) -> None:
        self._counters["ready"] += 1
        self._last_start_seconds = round(seconds, 1)
        self._save()
        log(f"generation {(self.memory.accepted or '')[:12]} answers, {seconds:.1f} s after its start", "notice")
        self._record("ready", engine=self.memory.accepted, seconds=round(seconds, 1))

    def _failed(self, reason: str, logs: list[list[str]], memory: Memory) -> None:
        """Keep why it failed, with both ranks' last lines, before anything is taken away."""
        self._counters["failures"] += 1
        self._last_failure = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "engine": memory.accepted,
            "reason": reason,
            "logs": {str(rank): lines for rank, lines in enumerate(logs)},
        }
        self._save()
        log(f"generation {(memory.accepted or '')[:12]} failed: {reason}", "error")
        self._record("failed", engine=memory.accepted, reason=reason)
        if memory.phase is Phase.RESTING:
            log(f"resting: {memory.reason}. To try again: sparkpair start", "error")
            self._record("resting", reason=memory.reason)

    async def _tails(self, lines: int = LOG_LINES) -> list[list[str]]:
        return list(await asyncio.gather(*(self._tail(link, lines) for link in self._links)))

    async def _tail(self, link: AgentLink, lines: int) -> list[str]:
        try:
            answer = await link.call("logs", timeout=5.0, lines=lines)
            return [str(line) for line in answer["lines"]]
        except (Away, Refusal) as error:
            return [f"(no log: {error})"]

    async def _accept(self, engine: str) -> dict[str, Any]:
        """Take over the wanted set of all nodes, if it is whole and is the one that deploy means."""
        if engine == self.memory.accepted and self.memory.phase not in (Phase.RESTING, Phase.EMPTY):
            return {"ok": True, "note": f"already {self.memory.phase.value}"}
        refusals: list[str] = []
        answers = await asyncio.gather(*(self._wanted(link, refusals) for link in self._links))
        wanted = [answer for answer in answers if answer is not None]
        if not refusals:
            layers = {tuple(answer["image"]["layers"]) for answer in wanted}
            if len(layers) != 1:
                refusals.append("the nodes hold different layers for the wanted image; run deploy.py again")
            ranks = [(answer["text"], answer["identities"]) for answer in wanted]
            found = wire.engine_hash(ranks)
            if found != engine:
                refusals.append(
                    f"the nodes' wanted set is {found[:12]}, deploy handed over {engine[:12]}: "
                    "it was changed meanwhile; run deploy.py again"
                )
            for rank, answer in enumerate(wanted):
                if wire.parse_rank(answer["text"]).rank != rank:
                    refusals.append(f"{self._links[rank].name} holds another rank's wanted set; run deploy.py again")
        if refusals:
            return {"ok": False, "error": "\n".join(refusals)}
        manifest = {
            "engine": engine,
            "accepted": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "nodes": [link.name for link in self._links],
            "identities": [answer["identities"] for answer in wanted],
            "image": wanted[0]["image"]["id"],
        }
        texts = [answer["text"] for answer in wanted]
        self._generation = self._store.snapshot(engine, texts, manifest, self._settings.text)
        self._serve_with(self._settings)
        reason = "first start" if self.memory.accepted is None else "the configuration changed"
        if engine == self.memory.accepted:
            reason = "deployed again after resting"
        self._record("accepted", engine=engine)
        log(f"accepted generation {engine[:12]}")
        self._remember(decide.request_start(self.memory, self._clock(), reason, accepted=engine))
        self._publish()
        self._wake.set()
        return {"ok": True}

    async def _wanted(self, link: AgentLink, refusals: list[str]) -> dict[str, Any] | None:
        """A link may just be connecting, as right after a start of both programs: tried until a deadline."""
        until = self._clock() + WANTED_SECONDS
        while True:
            try:
                return await link.call("wanted", timeout=WANTED_CALL_SECONDS)
            except Refusal as error:
                refusals.append(str(error))
                return None
            except Away as error:
                if self._clock() > until:
                    refusals.append(f"{error}; is the node up? sparkpair-agent.service?")
                    return None
                await asyncio.sleep(0.3)

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
                memory = dataclasses.replace(memory, mark=None, moved=now, answered=now, canary_sent=None, strikes=0)
            else:
                memory = decide.after_boot(memory, now)
        if memory.accepted is not None:
            try:
                self._generation = self._store.generation(memory.accepted)
                self._store.point_at(memory.accepted)
                self._adopt_settings(self._generation)
            except (wire.WireError, OSError) as error:
                # What runs may go on; only a start needs the texts, and tells.
                log(str(error), "error")
        self.memory = memory
        self._epoch = epoch + 1
        self._counters = {"starts": 0, "ready": 0, "failures": 0, "canaries": 0, **counters}
        self._last_failure = failure
        self._last_start_seconds = seconds
        self._save()

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
        self._probe.use(settings.api, settings.canary)

    def _remember(self, memory: Memory) -> None:
        former, self.memory = self.memory, memory
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
            self._store.save(
                {
                    "memory": decide.dump(self.memory),
                    "epoch": self._epoch,
                    "boot_id": self._boot_id,
                    "counters": self._counters,
                    "last_failure": self._last_failure,
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
        """The state for everybody; the ranks' lines, which may hold what users wrote, are for root."""
        status = self.status()
        if status["last_failure"] is not None:
            status["last_failure"] = {key: value for key, value in status["last_failure"].items() if key != "logs"}
        text = json.dumps(status)
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
    return dataclasses.replace(memory, mark=None, moved=0.0, answered=0.0, canary_sent=None, strikes=0)


async def serve() -> int:
    """Run the keeper until SIGTERM. The pair goes on without it for the length of the lease."""
    paths.STATUS.unlink(missing_ok=True)  # a former keeper's word: who reads it must wait for ours
    settings = service.load(paths.WANTED_SERVICE)
    links = [AgentLink(node.rank, node.name, () if node.local else node.addresses, boottime) for node in settings.nodes]
    keeper = Keeper(
        settings,
        Store(),
        links,
        EngineProbe(settings.api, settings.canary, boottime),
        code=wire.programs_hash(wire.programs(Path(__file__).parent)),
        boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
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
