"""The failure table as data, and how a case is run on any pair of ranks: containers or processes, real or contract.

Expectations are those of a real vLLM 0.32 in containers. `within` bounds are generous: the machine has two cores.
"""

from __future__ import annotations

import base64
import json
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from node import gates
from tests.lab.contract import client
from tests.lab.contract.client import ENDLESS, Background, Reply

HEAD, WORKER = 0, 1
MAIN = "main"
"""A rank's main process: PID 1 of its container."""

ANSWER = "Hello from the tiny model."
REASONING = "The user asks; answer briefly."


class Pair(Protocol):
    """Two ranks of one engine, and how long its cases wait."""

    api: tuple[str, int]
    start_seconds: float
    """A start that takes longer has failed."""
    calm_seconds: float
    """What is to stay is watched for as long."""
    pace: float
    """1 for containers; less shortens every wait that only gives a slow engine its time."""

    def start(self, rank: int, flags: Mapping[str, str | None], env: Mapping[str, str]) -> None:
        """Start a rank; a flag of None is dropped, one of "" has no value."""

    def occupy(self, rank: int, what: Literal["api", "master"]) -> None:
        """Let another program listen on a rank's port first."""

    def kill(self, rank: int, title: str, number: signal.Signals) -> None:
        """Send a signal to the process of that title."""

    def freeze(self, rank: int, *, thaw: bool = False) -> None:
        """Stop or continue every process of a rank."""

    def cut(self, *, join: bool = False) -> None:
        """Pull the cable between the ranks, or put it back."""

    def exit_code(self, rank: int) -> int | None:
        """The exit code of a rank's main process; None while it runs."""

    def logs(self, rank: int) -> str:
        """What a rank has printed."""

    def remove(self) -> None:
        """End and forget both ranks and whatever occupies a port."""


# ---------------------------------------------------------------- what a case says


@dataclass(frozen=True)
class Exit:
    """The rank's main process leaves with this code, in this time."""

    code: int
    within: float
    after: float = 0.0

    def __str__(self) -> str:
        return f"exit {self.code}, {f'{self.after:g} to ' if self.after else '< '}{self.within:g} s"


RUNS = None
"""The rank's main process stays."""


@dataclass(frozen=True)
class Kill:
    rank: int
    title: str
    number: signal.Signals = signal.SIGKILL


@dataclass(frozen=True)
class Freeze:
    rank: int


@dataclass(frozen=True)
class Cut:
    seconds: float


@dataclass(frozen=True)
class Start:
    """How the ranks are started where it is not the usual way. A variable of "" is unset."""

    ranks: tuple[int, ...] = (WORKER, HEAD)
    flags: Mapping[str, str | None] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    occupied: Literal["", "api", "master"] = ""
    pause_seconds: float = 0.0
    """Time between the ranks."""


Load = Literal["idle", "stream", "both"]
"""What is in flight: nothing, an endless stream, or a stream and a request that is not streamed."""

Request = Literal["answers", "500", "hangs", "gone"]


@dataclass(frozen=True)
class Case:
    """One row: a fault in a ready pair, or a start that fails."""

    name: str
    fault: Kill | Freeze | Cut | None = None
    load: Load = "idle"
    start: Start = Start()
    ready: bool = True
    head: Exit | None = RUNS
    worker: Exit | None = RUNS
    during: Request | None = None
    """A request while the fault's exit is still to come."""
    request: Request = "gone"
    """The first request after the fault has shown what it does."""
    head_then: Exit | None = RUNS
    """What that request does to the head; what it does to the worker is only written down."""
    stream: tuple[str, ...] = ()
    """How what was in flight may end: "error, [DONE]", "500", "open"."""
    said: Mapping[int, str] = field(default_factory=dict)
    """Text in a rank's log."""
    containers_only: bool = False
    slow: bool = False
    """Too slow for the fast tests and for a lab pass."""
    quick: bool = False
    """Whether it is run against the real engine in every lab pass too."""


CORE, TP0, TP1 = "VLLM::EngineCore", "VLLM::Worker_TP0", "VLLM::Worker_TP1"
ERROR = "error, [DONE]"
LOST = "Worker proc VllmWorker-1 died unexpectedly"

CASES: tuple[Case, ...] = (
    Case("EngineCore killed, idle", Kill(HEAD, CORE), head=Exit(0, 8)),
    Case("EngineCore killed, streaming", Kill(HEAD, CORE), load="both", head=Exit(0, 8), stream=(ERROR, "500")),
    Case("Worker_TP0 killed, idle", Kill(HEAD, TP0), head=Exit(0, 8)),
    Case("Worker_TP0 killed, streaming", Kill(HEAD, TP0), load="stream", head=Exit(0, 8), stream=(ERROR,)),
    Case(
        "Worker_TP1 killed, idle",
        Kill(WORKER, TP1),
        worker=Exit(0, 8),
        request="500",
        head_then=Exit(0, 8),
        said={WORKER: LOST},
        quick=True,
    ),
    Case(
        "Worker_TP1 killed, streaming",
        Kill(WORKER, TP1),
        load="stream",
        head=Exit(0, 8),
        worker=Exit(0, 10),
        stream=(ERROR,),
        said={WORKER: LOST},
    ),
    Case(
        "PID 1 of the worker killed, idle",
        Kill(WORKER, MAIN),
        worker=Exit(137, 4),
        request="500",
        head_then=Exit(0, 8),
        containers_only=True,
    ),
    Case(
        "PID 1 of the worker killed, streaming",
        Kill(WORKER, MAIN),
        load="stream",
        head=Exit(0, 8),
        worker=Exit(137, 4),
        stream=(ERROR,),
        containers_only=True,
    ),
    Case("PID 1 of the head killed, idle", Kill(HEAD, MAIN), head=Exit(137, 4), containers_only=True),
    Case("worker frozen, idle", Freeze(WORKER), request="hangs"),
    Case(
        "worker frozen, execute timeout 12 s",
        Freeze(WORKER),
        start=Start(env={"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "12"}),
        request="500",
        head_then=Exit(0, 8),
        slow=True,
    ),
    Case("rail down 15 s, idle", Cut(15), request="answers", containers_only=True),
    Case("SIGTERM to the head, idle", Kill(HEAD, MAIN, signal.SIGTERM), head=Exit(0, 8)),
    Case(
        "SIGTERM to the head, streaming",
        Kill(HEAD, MAIN, signal.SIGTERM),
        load="both",
        head=Exit(0, 40),
        stream=(ERROR, "500", "open"),
    ),
    Case(
        "SIGTERM to the worker",
        Kill(WORKER, MAIN, signal.SIGTERM),
        worker=Exit(0, 18, after=8),
        during="answers",
        request="500",
        head_then=Exit(0, 8),
        containers_only=True,
    ),
    Case(
        "SIGTERM to the head, waiting for the worker",
        Kill(HEAD, MAIN, signal.SIGTERM),
        start=Start((HEAD,)),
        ready=False,
    ),
    Case(
        "SIGTERM to the worker, waiting for the head",
        Kill(WORKER, MAIN, signal.SIGTERM),
        start=Start((WORKER,)),
        ready=False,
        worker=Exit(0, 18, after=8),
        containers_only=True,
    ),
    Case("worker first, head 15 s later", start=Start(pause_seconds=15), request="answers", slow=True),
    Case(
        "head first, worker 15 s later",
        start=Start((HEAD, WORKER), pause_seconds=15),
        request="answers",
        slow=True,
    ),
    Case(
        "first request kills (no C++ compiler)",
        start=Start(env={"TORCHDYNAMO_DISABLE": "0", "CONTRACT_FIRST_REQUEST": "kills"}),
        request="500",
        head_then=Exit(0, 10),
    ),
    Case(
        "API port in use",
        start=Start((HEAD,), occupied="api"),
        ready=False,
        head=Exit(1, 40),
        said={HEAD: "OSError: [Errno 98] Address already in use"},
    ),
    Case(
        "master port in use",
        start=Start((WORKER, HEAD), occupied="master"),
        ready=False,
        head=Exit(1, 120),
        said={HEAD: "EADDRINUSE"},
    ),
    Case(
        "model missing",
        start=Start(flags={"model": "/nonexistent/model"}),
        ready=False,
        head=Exit(1, 40),
        worker=Exit(1, 40),
        said=dict.fromkeys((HEAD, WORKER), "Repo id must be in the form 'repo_name' or 'namespace/repo_name'"),
    ),
    Case(
        "max_model_len too large",
        start=Start((HEAD,), flags={"--max-model-len": "999999"}),
        ready=False,
        head=Exit(1, 40),
        said={HEAD: "User-specified max_model_len (999999) is greater than the derived max_model_len"},
    ),
    Case(
        "KV cache too small",
        # The images set 1 GiB; without it the flag decides.
        start=Start(flags={"--kv-cache-memory-bytes": "1000000"}, env={"VLLM_CPU_KVCACHE_SPACE": ""}),
        ready=False,
        head=Exit(1, 120),
        said={HEAD: "To serve at least one request with the model's max seq len"},
    ),
    Case(
        "unknown flag",
        start=Start((HEAD,), flags={"--no-such-flag": "1"}),
        ready=False,
        head=Exit(2, 40),
        said={HEAD: "vllm: error: unrecognized arguments: --no-such-flag 1"},
    ),
    Case(
        "head alone, distributed timeout 20 s",
        start=Start((HEAD,), flags={"--distributed-timeout-seconds": "20"}),
        ready=False,
        head=Exit(1, 120, after=15),
        slow=True,
    ),
    Case(
        "worker alone, distributed timeout 20 s",
        start=Start((WORKER,), flags={"--distributed-timeout-seconds": "20"}),
        ready=False,
        worker=Exit(1, 120, after=15),
        said={WORKER: "DistNetworkError"},
        slow=True,
    ),
)


# ---------------------------------------------------------------- what is seen


@dataclass
class Seen:
    """One run of a case: cells for the table, and what differs from the case."""

    case: str
    ready: str = "-"
    head: str = "-"
    worker: str = "-"
    api: str = ""
    wrong: list[str] = field(default_factory=list)


def run(case: Case, pair: Pair) -> Seen:
    """Start, break, watch, ask; the pair is removed whatever happens."""
    seen = Seen(case.name)
    try:
        _run(case, pair, seen)
        for rank, text in case.said.items():
            if text not in pair.logs(rank):
                seen.wrong.append(f"rank {rank} did not say {text!r}; its log ends: {pair.logs(rank)[-300:]!r}")
    finally:
        pair.remove()
    return seen


def _run(case: Case, pair: Pair, seen: Seen) -> None:
    api: list[str] = []
    began = time.monotonic()
    _start(case, pair)
    if case.ready:
        came = wait(lambda: client.request(pair.api, "/health", seconds=3).status == 200, pair.start_seconds)
        seen.ready = f"{time.monotonic() - began:.1f} s"
        if not came:
            seen.wrong.append(f"never ready; rank 0 ends: {pair.logs(0)[-300:]!r}, rank 1: {pair.logs(1)[-300:]!r}")
            return
        if case.fault or case.load != "idle":
            warm = client.chat(pair.api, 60)
            if warm.status != 200:
                seen.wrong.append(f"no answer before the fault: {warm}")
                return
    elif case.fault:
        waiting = {HEAD: "world_size=2 rank=0", WORKER: "world_size=2 rank=1"}
        rank = case.start.ranks[0]
        if not wait(lambda: waiting[rank] in pair.logs(rank), pair.start_seconds):
            seen.wrong.append(f"rank {rank} did not get to the rendezvous")
            return
        time.sleep(2 * pair.pace)

    in_flight: list[Background] = []
    if case.load != "idle":
        in_flight.append(Background(pair.api, 30 * pair.pace, stream=True, **ENDLESS))
    if case.load == "both":
        in_flight.append(Background(pair.api, 30 * pair.pace, **ENDLESS))
    if in_flight:
        time.sleep(2 * pair.pace)

    began = _break(case, pair) if case.fault else began
    if case.during:
        time.sleep(2 * pair.pace)
        _ask(case.during, pair, api, seen, "meanwhile: ")
    codes = _watch(case, pair, began, seen)
    if in_flight:
        ends = [_end_of(background.end(35)) for background in in_flight]
        api.append(f"in flight: {'; '.join(ends)}")
        if unexpected := [end for end in ends if end not in case.stream]:
            seen.wrong.append(f"what was in flight ended as {unexpected}, wanted one of {case.stream}")
    if case.ready:
        _after(case, pair, codes, api, seen)
    seen.api = "; ".join(api)


def _start(case: Case, pair: Pair) -> None:
    if case.start.occupied:
        pair.occupy(HEAD, case.start.occupied)
    for number, rank in enumerate(case.start.ranks):
        if number:
            time.sleep(case.start.pause_seconds)
        pair.start(rank, case.start.flags, case.start.env)


def _break(case: Case, pair: Pair) -> float:
    fault = case.fault
    if isinstance(fault, Kill):
        pair.kill(fault.rank, fault.title, fault.number)
    elif isinstance(fault, Freeze):
        pair.freeze(fault.rank)
    elif isinstance(fault, Cut):
        pair.cut()
        time.sleep(fault.seconds)
        pair.cut(join=True)
    return time.monotonic()


def _watch(case: Case, pair: Pair, began: float, seen: Seen) -> dict[int, int | None]:
    """Wait for the exits that must come, then a while for those that must not."""
    wanted = {HEAD: case.head, WORKER: case.worker}
    left = {rank: exit.within for rank, exit in wanted.items() if exit and rank in case.start.ranks}
    at: dict[int, float] = {}
    while True:
        now = time.monotonic() - began
        for rank in case.start.ranks:
            if rank not in at and pair.exit_code(rank) is not None:
                at[rank] = now
        if all(rank in at or now > within for rank, within in left.items()) and now > pair.calm_seconds:
            break
        time.sleep(0.1)
    codes = {rank: pair.exit_code(rank) for rank in case.start.ranks}
    for rank, name in ((HEAD, "head"), (WORKER, "worker")):
        if rank in codes:
            code = codes[rank]
            setattr(seen, name, "runs on" if code is None else f"exit {code} at {at[rank]:.1f} s")
            _judge(name, wanted[rank], code, at.get(rank, 0.0), seen)
    return codes


def _judge(name: str, wanted: Exit | None, code: int | None, seconds: float, seen: Seen) -> None:
    got = "runs on" if code is None else f"exit {code} after {seconds:.1f} s"
    if wanted is None:
        fine = code is None
    else:
        fine = code == wanted.code and wanted.after <= seconds <= wanted.within
    if not fine:
        seen.wrong.append(f"{name}: {got}, wanted {wanted or 'runs on'}")


def _after(case: Case, pair: Pair, codes: dict[int, int | None], api: list[str], seen: Seen) -> None:
    """The first request after the fault, and what it does."""
    if codes.get(HEAD) is None:
        health = client.request(pair.api, "/health", seconds=3).status
        api.append(f"/health {health}")
        if health != 200:
            seen.wrong.append(f"/health said {health} although the head runs")
    _ask(case.request, pair, api, seen, "")
    if case.request == "hangs":
        numbers = client.metrics(pair.api)
        still = [numbers.get(f"vllm:num_requests_{name}") for name in ("running", "waiting")]
        api.append(f"then running and waiting read {still[0]:g} and {still[1]:g}")
        if still != [0, 0]:
            seen.wrong.append(f"running and waiting read {still} after the client gave up")
        assert isinstance(case.fault, Freeze)
        pair.freeze(case.fault.rank, thaw=True)
        _ask("answers", pair, api, seen, "thawed: ")
    if case.head_then is not None:
        began = time.monotonic()
        wait(lambda: pair.exit_code(HEAD) is not None, case.head_then.within)
        seconds, code = time.monotonic() - began, pair.exit_code(HEAD)
        seen.head += ", then runs on" if code is None else f", then exit {code} at {seconds:.1f} s"
        _judge("head after the request", case.head_then, code, seconds, seen)
        if codes[WORKER] is None:
            wait(lambda: pair.exit_code(WORKER) is not None, pair.calm_seconds)
            code = pair.exit_code(WORKER)
            seen.worker += "" if code is None else f", then exit {code}"


def _ask(wanted: Request, pair: Pair, api: list[str], seen: Seen, when: str) -> None:
    """One request and what became of it."""
    reply = client.chat(pair.api, 8 * pair.pace if wanted == "hangs" else 30)
    got: str
    if reply.status == 200:
        got = "answers" if ANSWER in reply.text else f"200 {reply.text[:80]}"
    elif reply.status == 0:
        got = "hangs" if "timed out" in reply.text else "gone"
    else:
        got = str(reply.status)
    api.append(f"{when}request {got}{f' after {reply.seconds:.1f} s' if got not in ('gone', 'hangs') else ''}")
    if got != wanted:
        seen.wrong.append(f"{when}request: {got} ({reply.text[:200]}), wanted {wanted}")
    if got == "500" and "EngineCore encountered an issue" not in reply.text:
        seen.wrong.append(f"the 500 said {reply.text[:200]}")


def _end_of(reply: Reply) -> str:
    """How something in flight ended."""
    if reply.status == 200 and reply.events[-1:] == ["[DONE]"]:
        return ERROR if '"error"' in reply.events[-2] and '"code": 500' in reply.events[-2] else "complete"
    if reply.status == 0:
        return "open" if reply.text == "open" or "timed out" in reply.text else f"broken off: {reply.text[-80:]}"
    return str(reply.status)


def wait(true: Callable[[], bool], seconds: float, pause: float = 0.2) -> bool:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True


# ---------------------------------------------------------------- what a healthy pair answers


def check_answers(pair: Pair) -> dict[str, str]:
    """What a ready pair says, reduced to what clients read; both engines must give the same."""
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
    looped = {"chat_template_kwargs": {"loop": True}}
    said: dict[str, str] = {}

    def whole(name: str, **more: object) -> None:
        reply = client.chat(pair.api, 60, **more)
        if reply.status != 200:
            said[name] = f"{reply.status} {reply.text}"
            return
        choice, usage = reply.json["choices"][0], reply.json["usage"]
        message = choice["message"]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or []]
        counts = (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])
        thought = usage["completion_tokens_details"]["reasoning_tokens"]
        said[name] = str((message["content"], message["reasoning"], calls, choice["finish_reason"], counts, thought))

    def streamed(name: str, **more: object) -> None:
        reply = client.chat(pair.api, 60, stream=True, stream_options={"include_usage": True}, **more)
        chunks = [json.loads(event) for event in reply.events[:-1]]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        texts = [[delta[field] for delta in deltas if delta.get(field)] for field in ("reasoning", "content")]
        calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", [])]
        called = ["".join(call.get(part) or "" for call in calls) for part in ("name", "arguments")]
        finish = [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]][-1]
        usage = chunks[-1]["usage"]
        counts = (usage["prompt_tokens"], usage["completion_tokens"])
        said[name] = str((texts, called, finish, counts, reply.events[-1]))

    whole("chat")
    whole("chat, enable_thinking false", chat_template_kwargs={"enable_thinking": False})
    whole("chat, tools", tools=tools)
    whole("chat, max_tokens 3", max_tokens=3)
    whole("chat, loop, max_tokens 9", max_tokens=9, **looped)
    talk = [{"role": "system", "content": "Be nice."}, {"role": "user", "content": "What is 17*23? The tiny thing."}]
    whole("chat, messages", messages=[*talk, {"role": "user", "content": [{"type": "text", "text": "Grüße"}]}])
    # What comes after the end that was to be ignored depends on the weights.
    beyond = client.chat(pair.api, 60, max_tokens=30, ignore_eos=True).json
    text = beyond["choices"][0]["message"]["content"][: len(ANSWER)]
    said["chat, ignore_eos"] = str((text, beyond["choices"][0]["finish_reason"], beyond["usage"]["completion_tokens"]))
    streamed("stream")
    streamed("stream, tools", tools=tools)
    streamed("stream, loop, max_tokens 6", max_tokens=6, **looped)
    counted = client.request(
        pair.api, "/tokenize", {"model": client.MODEL, "prompt": "What is the weather? Grüße"}
    ).json
    said["/tokenize"] = str((counted["count"], counted["max_model_len"], len(counted["tokens"])))
    picture = "data:image/png;base64," + base64.b64encode(gates.png()).decode()
    looks = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": picture}}]
    whole("chat, an image", messages=[{"role": "user", "content": looks}])
    refused: dict[str, dict[str, object]] = {
        "wrong model": {"model": "nope", "messages": [{"role": "user", "content": "hi"}]},
        "max_tokens too large": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 10**6},
        "max_tokens negative": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": -1},
    }
    for name, body in refused.items():
        reply = client.request(pair.api, "/v1/chat/completions", {"model": client.MODEL, **body})
        said[name] = f"{reply.status} {reply.json}"
    reply = client.request(pair.api, "/v1/chat/completions", {"model": client.MODEL})
    said["no messages"] = f"{reply.status} {reply.json['error']['type']} {reply.json['error']['param']}"
    said["not JSON"] = str(client.request(pair.api, "/v1/chat/completions", b"{").status)
    for path in ("/health", "/version", "/nope", "/ping", "/load"):
        reply = client.request(pair.api, path)
        said[path] = f"{reply.status} {reply.text}"
    said["POST /health"] = str(client.request(pair.api, "/health", {}).status)
    said["GET /v1/chat/completions"] = str(client.request(pair.api, "/v1/chat/completions").status)
    models = client.request(pair.api, "/v1/models").json["data"]
    said["/v1/models"] = str([(model["id"], model["root"], model["max_model_len"]) for model in models])
    return said


METRICS = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
    "vllm:num_preemptions_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
)


def check_load(pair: Pair) -> dict[str, str]:
    """What the metrics say while work runs, waits, is given up and hangs; slots: 4."""
    said: dict[str, str] = {}

    def numbers() -> dict[str, float]:
        values = client.metrics(pair.api)
        return {name: values[name] for name in METRICS}

    def counts(values: dict[str, float]) -> str:
        return f"running {values[METRICS[0]]:g}, waiting {values[METRICS[1]]:g}"

    before = numbers()
    client.chat(pair.api, 60)
    after = numbers()
    said["one chat counts"] = str([int(after[name] - before[name]) for name in METRICS[3:6]])
    six = [Background(pair.api, 8 * pair.pace, stream=True, **ENDLESS) for _ in range(6)]
    time.sleep(4 * pair.pace)
    busy = numbers()
    said["six endless streams"] = counts(busy)
    said["tokens move, KV in use"] = str((numbers()[METRICS[4]] > after[METRICS[4]], busy[METRICS[2]] > 0))
    ends = {_end_of(one.end(12)) for one in six}
    time.sleep(1 * pair.pace)
    gone = numbers()
    said["all six gave up"] = f"{ends}, {counts(gone)}, KV {gone[METRICS[2]]:g}"
    time.sleep(1 * pair.pace)
    said["tokens stand still"] = str(numbers()[METRICS[4]] == gone[METRICS[4]])

    stream = Background(pair.api, 7 * pair.pace, stream=True, **ENDLESS)
    time.sleep(2 * pair.pace)
    pair.freeze(WORKER)
    time.sleep(2 * pair.pace)
    first = numbers()
    time.sleep(1 * pair.pace)
    second = numbers()
    said["worker frozen, streaming"] = f"{counts(second)}, tokens move: {first[METRICS[4]] != second[METRICS[4]]}"
    said["its client gave up"] = f"{_end_of(stream.end(12))}, {counts(numbers())}"
    pair.freeze(WORKER, thaw=True)
    time.sleep(1 * pair.pace)
    said["thawed"] = f"{counts(numbers())}, chat {client.chat(pair.api, 30).status}"
    return said
