"""What the engine says of itself over HTTP: health, counters that move, and one canary completion at a time."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from node import secret
from node.decide import Canary
from node.journal import log
from node.threads import in_thread

HTTP_SECONDS = 5.0
STALE_SECONDS = 15.0
"""An answer older than this says nothing about now."""
SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{[^}]*\})? ([-+0-9.eE]+|NaN|[-+]?Inf)", re.MULTILINE)
PROGRESS = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:kv_cache_usage_perc",
    "vllm:request_success_total",
)
"""KV use moves during a long prefill, when no token counter does."""
BUSY = ("vllm:num_requests_running", "vllm:num_requests_waiting")


@dataclass(frozen=True)
class Api:
    """Where the engine answers, on the head itself."""

    port: int
    model: str
    ready_path: str = "/health"
    metrics_path: str = "/metrics"
    host: str = "127.0.0.1"
    key_file: str = ""
    """Where the key is that the engine asks for; "" where it asks for none."""


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
        self._asking: asyncio.Task[None] | None = None
        self._canary: asyncio.Task[None] | None = None
        self._at = float("-inf")
        self._healthy: bool | None = None
        self._metrics: dict[str, float] | None = None
        self._proven = ""
        self.canary: Canary | None = None

    def use(self, api: Api, canary: CanarySettings) -> None:
        """Speak to another engine from now on, or ask it otherwise."""
        self._api, self._settings = api, canary

    def look(self) -> None:
        """Begin a look, unless one is under way."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.get_running_loop().create_task(self._look())

    def forget(self) -> None:
        """The engine that answered is gone."""
        for task in (self._asking, self._canary):
            if task is not None:
                task.cancel()
        self._asking = self._canary = None
        self._healthy = self._metrics = self.canary = None
        self._proven = ""

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

    async def _ask(self) -> None:
        try:
            status, body = await asyncio.wait_for(in_thread(self._post), self._settings.timeout_seconds + HTTP_SECONDS)
            self.canary = self._judge(status, body)
        except secret.SecretError as error:
            self.canary = self._locked(str(error))
        except (OSError, http.client.HTTPException, asyncio.TimeoutError) as error:
            limit = self._settings.timeout_seconds
            slow = isinstance(error, (TimeoutError, asyncio.TimeoutError))
            self.canary = Canary("failed", f"no answer within {limit:g} s" if slow else f"{error}", answered=False)

    def _judge(self, status: int, body: bytes) -> Canary:
        text = body.decode(errors="replace")
        if status == 401:
            return self._locked(self._locked_out())
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

    def _locked_out(self) -> str:
        if not self._api.key_file:
            return "the engine asks for a key, and is to ask for none (HTTP 401)"
        return f"the engine asks for another key than {self._api.key_file} holds (HTTP 401)"

    def _get(self, path: str) -> tuple[int, bytes]:
        return self._request("GET", path, None, HTTP_SECONDS)

    def _post(self) -> tuple[int, bytes]:
        body = {
            "model": self._api.model,
            "messages": [{"role": "user", "content": self._settings.prompt}],
            "max_tokens": self._settings.max_tokens,
            "temperature": 0,
            "user": "sparkpair-canary",
            "chat_template_kwargs": {"enable_thinking": False},
        }
        if not self._api.key_file:
            return self._complete(body, "")
        trouble = f"{self._api.key_file} was changed"
        try:
            key = secret.read(self._api.key_file)
        except secret.SecretError as error:
            if not self._proven:
                raise
            trouble = str(error)
        else:
            status, answer = self._complete(body, key)
            if status == 200:
                self._proven = key
            if status != 401 or self._proven in ("", key):
                return status, answer
        # The engine asks for the key of its start until it is restarted: what became of the file meanwhile is no fault.
        status, answer = self._complete(body, self._proven)
        if status != 401:
            log(f"{trouble}; the engine is asked with the key of its start until deploy.py restarts it", "warning")
        return status, answer

    def _complete(self, body: Mapping[str, object], key: str) -> tuple[int, bytes]:
        timeout = self._settings.timeout_seconds
        return self._request("POST", "/v1/chat/completions", json.dumps(body), timeout, key)

    def _request(self, method: str, path: str, body: str | None, timeout: float, key: str = "") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._api.host, self._api.port, timeout=timeout)
        headers = {"Content-Type": "application/json", "X-Request-Id": "sparkpair-canary"} if body else {}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()
