"""What the engine says of itself over HTTP: health, counters that move, one canary completion at a time, and the gates
after a start."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from node import gates, network, secret
from node.decide import Canary, Gating
from node.door import Api, Door, Request, locked_out
from node.journal import log
from node.threads import in_thread

HTTP_SECONDS = 5.0
STALE_SECONDS = 15.0
"""An answer older than this says nothing about now."""
COMPLETIONS = "/v1/chat/completions"
CANARY_MARK, GATE_MARK = "sparkpair-canary", "sparkpair-gate-"
"""Requests of ours carry these as user and X-Request-Id, so that whoever counts can leave them out."""
TICK_SECONDS = 1.0
"""Between two looks for others' requests while a gate waits."""
SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{[^}]*\})? ([-+0-9.eE]+|NaN|[-+]?Inf)", re.MULTILINE)
PROGRESS = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:kv_cache_usage_perc",
    "vllm:request_success_total",
)
"""KV use moves during a long prefill, when no token counter does."""
ASKED = ("requests", "prompt_tokens", "completion_tokens")
BUSY = ("vllm:num_requests_running", "vllm:num_requests_waiting")


@dataclass(frozen=True)
class CanarySettings:
    """The smallest question that goes through every rank."""

    prompt: str
    expect: str
    max_tokens: int
    timeout_seconds: float


def parse_metrics(text: str) -> dict[str, float]:
    """Prometheus text to sums over labels; what is not a sample is passed over."""
    sums: dict[str, float] = {}
    for name, value in SAMPLE.findall(text):
        try:
            number = float(value)
        except ValueError:
            continue
        if number == number:
            sums[name] = sums.get(name, 0.0) + number
    return sums


class EngineProbe:
    """Asks in the background, so that an engine that hangs never holds the keeper up."""

    def __init__(self, api: Api, canary: CanarySettings, clock: Callable[[], float]) -> None:
        self._api = api
        self._settings = canary
        self._clock = clock
        self._door = Door()
        self._asking: asyncio.Task[None] | None = None
        self._canary: asyncio.Task[None] | None = None
        self._gating: asyncio.Task[None] | None = None
        self._at = float("-inf")
        self._healthy: bool | None = None
        self._metrics: dict[str, float] | None = None
        self._marked = itertools.count(1)
        self.canary: Canary | None = None
        self.gates: Gating | None = None
        self.gate_results: list[dict[str, Any]] = []
        """Of the last run, also when its engine is gone: gate, outcome (passed, failed, busy, skipped), seconds,
        detail."""
        self.asked = dict.fromkeys(ASKED, 0)
        """Our own completions since the engine started."""
        self.transports: gates.Transports = _unsaid
        """What the ranks' logs say of NCCL."""

    def use(self, api: Api, canary: CanarySettings) -> None:
        """Speak to another engine from now on, or ask it otherwise."""
        self._api, self._settings = api, canary

    def look(self) -> None:
        """Begin a look, unless one is under way."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._look())

    def forget(self) -> None:
        """The engine that answered is gone."""
        for task in (self._asking, self._canary, self._gating):
            if task is not None:
                task.cancel()
        self._asking = self._canary = self._gating = None
        self._healthy = self._metrics = self.canary = self.gates = None
        self.asked = dict.fromkeys(ASKED, 0)
        self._door.forget()

    @property
    def healthy(self) -> bool | None:
        """What the ready path said; None when that is old."""
        return self._healthy if self._clock() - self._at < STALE_SECONDS else None

    @property
    def progress(self) -> tuple[float, ...] | None:
        """The counters that move while the engine works."""
        if self._metrics is None or self._clock() - self._at >= STALE_SECONDS:
            return None
        return tuple(self._metrics.get(name, 0.0) for name in PROGRESS)

    @property
    def busy(self) -> int | None:
        """Requests running and waiting."""
        if self._metrics is None or self._clock() - self._at >= STALE_SECONDS:
            return None
        return int(sum(self._metrics.get(name, 0.0) for name in BUSY))

    def send_canary(self) -> None:
        """Send one; `canary` is pending until it is answered or its deadline has passed."""
        if self._canary is not None:
            self._canary.cancel()  # its late answer would be taken for this one's
        self.canary = Canary("pending")
        self._canary = asyncio.get_running_loop().create_task(self._ask())

    def run_gates(self, wanted: gates.Gates) -> None:
        """Ask them one after another; `gates` is pending until one has failed or all are passed. A run that is under
        way ends."""
        if self._gating is not None:
            self._gating.cancel()
        self.gates, self.gate_results = Gating("pending"), []
        self._gating = asyncio.get_running_loop().create_task(self._run(wanted))

    async def _look(self) -> None:
        healthy: bool | None
        try:
            healthy = (await in_thread(self._get, self._api.ready_path))[0] == 200
        except (OSError, http.client.HTTPException):
            healthy = None
        metrics = None
        if healthy is not None:
            try:
                status, body = await in_thread(self._get, self._api.metrics_path)
                metrics = parse_metrics(body.decode(errors="replace")) if status == 200 else None
            except (OSError, http.client.HTTPException):
                metrics = None
        if healthy is not None or metrics is not None:
            self._at = self._clock()
        self._healthy, self._metrics = healthy, metrics

    async def complete(
        self, mark: str, request_id: str, body: Mapping[str, object], seconds: float
    ) -> tuple[int, bytes]:
        """One chat completion of ours, counted. Raises OSError, HTTPException or SecretError."""
        self.asked["requests"] += 1
        text = json.dumps({"model": self._api.model, "user": mark, **body})
        status, answer = await self._door.through(self._api, Request("POST", COMPLETIONS, seconds, text, request_id))
        if status == 200:
            for name, tokens in _usage(answer).items():
                self.asked[name] += tokens
        return status, answer

    async def ask_gate(self, name: str, asked: str, body: Mapping[str, object], seconds: float) -> gates.Answer:
        """One question of a gate. Raises Wrong."""
        mark = CANARY_MARK if name == "canary" else GATE_MARK + name
        # An engine may refuse an identifier that another request in flight has, and a gate may ask four at once.
        identity = CANARY_MARK if name == "canary" else f"{mark}-{next(self._marked)}"
        try:
            status, answer = await self.complete(mark, identity, body, seconds)
        except secret.SecretError as error:
            raise gates.Wrong(self._locked(str(error)).reason) from None
        except (OSError, http.client.HTTPException) as error:
            raise gates.Wrong(f"{asked}: {error}", answered=False) from None
        text = answer.decode(errors="replace")
        if status == 401:
            raise gates.Wrong(self._locked(locked_out(self._api)).reason)
        if status != 200:
            raise gates.Wrong(f"{asked}: HTTP {status}: {text[:200]}")
        try:
            return gates.read(text)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            raise gates.Wrong(f"{asked}: not a completion: {text[:200]}") from None

    async def tokenize(self, text: str) -> tuple[int, int] | None:
        """How many tokens a text is, and how many the engine takes (0: not said); None if it does not count them."""
        body = json.dumps({"model": self._api.model, "prompt": text})
        try:
            status, answer = await self._door.through(self._api, Request("POST", "/tokenize", HTTP_SECONDS, body))
            told: Any = json.loads(answer) if status == 200 else {}
            return int(told["count"]), int(told.get("max_model_len") or 0)
        except (OSError, http.client.HTTPException, secret.SecretError):
            return None
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
            return None  # it answers something else there

    async def metric(self, name: str) -> float | None:
        """One metric, now; None if there is none of that name or the engine does not say."""
        try:
            status, answer = await self._door.through(self._api, Request("GET", self._api.metrics_path, HTTP_SECONDS))
        except (OSError, http.client.HTTPException, secret.SecretError):
            return None
        return parse_metrics(answer.decode(errors="replace")).get(name) if status == 200 else None

    async def _run(self, wanted: gates.Gates) -> None:
        loop, many = asyncio.get_running_loop(), len(wanted.gates)
        for place, gate in enumerate(wanted.gates, 1):
            self.gates = Gating("pending", f"gate {gate.name}, {place} of {many}")
            began = loop.time()
            outcome, detail, answered = await self._pass(gate)
            seconds = round(loop.time() - began, 2)
            log(
                f"gate {gate.name}: {outcome} after {seconds:g} s: {detail}",
                "info" if outcome == "passed" else "warning",
            )
            result = {"gate": gate.name, "outcome": outcome, "seconds": seconds, "detail": detail}
            self.gate_results = [*self.gate_results, result]
            if outcome in ("failed", "busy"):
                self.gates = Gating(outcome, f"gate {gate.name}: {detail}", answered)
                return
        self.gates = Gating("passed")

    async def _pass(self, gate: gates.Gate) -> tuple[str, str, bool]:
        """Outcome, detail, and whether anything was answered."""
        asker = _Asker(self, gate)
        task = asyncio.ensure_future(gate.ask(asker))
        others = False
        try:
            others = await self._wait(task, gate.seconds, asker)
            if task.done():
                return "passed", task.result(), True
            silence = f"{asker.asking}: no answer within {gate.seconds:g} s"
            if others:
                return "busy", f"{silence}, while other requests went on", False
            return "failed", silence, False
        except gates.Skipped as why:
            return "skipped", str(why), True
        except gates.Wrong as wrong:
            if wrong.excused and others:
                return "busy", f"{wrong}, while other requests went on", wrong.answered
            return "failed", str(wrong), wrong.answered
        except Exception as error:  # a start must not wait for ever for a gate that is broken itself
            return "failed", f"it could not be judged: {error!r}", True
        finally:
            task.cancel()

    async def _wait(self, task: asyncio.Future[str], seconds: float, asker: _Asker) -> bool:
        """Wait for a gate until its deadline; whether others' requests moved meanwhile."""
        loop = asyncio.get_running_loop()
        end, tick = loop.time() + seconds, min(TICK_SECONDS, seconds / 20)
        others, mark = False, self.progress
        while not task.done() and (left := end - loop.time()) > 0:
            await asyncio.wait({task}, timeout=min(tick, left))
            self.look()
            now = self.progress
            if now is not None and mark is not None and now != mark:
                # On a busy head the numbers are some looks old, and may count requests of ours that have ended.
                others = others or (self.busy or 0) > asker.most
            mark = now or mark
        return others

    async def _ask(self) -> None:
        settings = self._settings
        body = {
            "messages": [{"role": "user", "content": settings.prompt}],
            "max_tokens": settings.max_tokens,
            "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        asking = self.complete(CANARY_MARK, CANARY_MARK, body, settings.timeout_seconds)
        try:
            status, answer = await asyncio.wait_for(asking, settings.timeout_seconds + HTTP_SECONDS)
            self.canary = self._judge(status, answer)
        except secret.SecretError as error:
            self.canary = self._locked(str(error))
        except (OSError, http.client.HTTPException, asyncio.TimeoutError) as error:
            limit = settings.timeout_seconds
            slow = isinstance(error, (TimeoutError, asyncio.TimeoutError))
            self.canary = Canary("failed", f"no answer within {limit:g} s" if slow else f"{error}", answered=False)

    def _judge(self, status: int, body: bytes) -> Canary:
        text = body.decode(errors="replace")
        if status == 401:
            return self._locked(locked_out(self._api))
        if status != 200:
            return Canary("failed", f"HTTP {status}: {text[:200]}")
        try:
            message: Any = json.loads(text)["choices"][0]["message"]
            content = message.get("content") or ""
        except (ValueError, LookupError, TypeError, AttributeError):
            return Canary("failed", f"not a completion: {text[:200]}")
        if self._settings.expect not in content or not content.strip():
            return Canary("failed", f"answered {content[:120]!r}, wanted {self._settings.expect!r} in it")
        return Canary("ok")

    def _locked(self, why: str) -> Canary:
        log(f"whether the engine answers is not known: {why}", "warning")
        return Canary("locked", why)

    def _get(self, path: str) -> tuple[int, bytes]:
        return Request("GET", path, HTTP_SECONDS).send(self._api)


class _Asker:
    """The engine as one gate sees it: gates.Engine."""

    def __init__(self, probe: EngineProbe, gate: gates.Gate) -> None:
        self._probe, self._gate = probe, gate
        self.asking = "the engine"
        self.open = 0
        """Completions of this gate that are not answered yet."""
        self.most = 0
        """The most that there were at once."""

    async def complete(self, asked: str, body: Mapping[str, object]) -> gates.Answer:
        self.asking = asked
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            # The gate's own deadline comes first.
            return await self._probe.ask_gate(self._gate.name, asked, body, self._gate.seconds + HTTP_SECONDS)
        finally:
            self.open -= 1

    async def tokenize(self, text: str) -> tuple[int, int] | None:
        return await self._probe.tokenize(text)

    async def metric(self, name: str) -> float | None:
        return await self._probe.metric(name)

    async def transports(self) -> Mapping[int, network.Seen | str]:
        self.asking = "the logs"
        return await self._probe.transports()


async def _unsaid() -> Mapping[int, network.Seen | str]:
    return {}


def _usage(answer: bytes) -> dict[str, int]:
    """Tokens that a completion says it took."""
    try:
        usage: Any = json.loads(answer)["usage"]
        return {name: int(usage[name]) for name in ASKED[1:]}
    except (ValueError, LookupError, TypeError, OverflowError):
        return {}
