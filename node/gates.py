"""Gates: what a launch must do after its start before it counts as good, each within a deadline.

What is asked and what is wanted stands here; how a question gets to the engine is node/probe.py's.
"""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from node.network import Seen
from node.signatures import printable

Transports = Callable[[], Awaitable[Mapping[int, "Seen | str"]]]
"""What each rank's log says of NCCL, by rank, or why it could not be had."""
TRANSPORT_SECONDS = 30.0

HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
HITS_SECONDS, HITS_PAUSE_SECONDS = 5.0, 0.25
"""How long after an answer the metrics may still be those from before it, and how often they are read."""

MARKS = ("<think>", "</think>")
TOOL_PROMPT = "What is the weather in Paris? Use the tool."
TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city, now.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TOOL_TOKENS, REASONING_TOKENS = 2048, 1024
"""Longest answers: a call after reasoning; reasoning of which the beginning is enough."""

WARM_UP_TOKENS, REUSE_TOKENS = 8000, 10000
"""Prompts of about so many tokens: as the reference kit v2.3-tier1 warms up; four blocks of the largest block size in
use (2304 tokens, the same kit), since only whole blocks are kept, and with a drafter not the last of them."""

SAMPLE_CHARACTERS = 2000
CHARACTERS_PER_TOKEN = 4
"""Of English, where the engine does not count for us. Taken for length only: no tokenizer makes more tokens than
characters of such a text, and it is never longer in characters than half of what the engine takes in tokens."""
SMALLEST_MODEL_LEN = 4096
"""Taken for granted where neither the settings nor the engine say how long a prompt may be."""

FACT = "7391"
FACT_LINE = f"The code of the lighthouse is {FACT}."
FACT_QUESTION = "What is the code of the lighthouse? Answer with the code only."
FACT_PLACE = 0.4
"""Where in the text the fact is."""

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
PEOPLE = (
    "the harbour master",
    "a fisherman",
    "the pilot",
    "an old sailor",
    "the net maker",
    "a merchant",
    "the cook",
    "a deck hand",
    "the ferryman",
    "a boat builder",
    "the postman",
)
DEEDS = (
    "mended the nets by the wall",
    "counted barrels on the quay",
    "painted a blue boat",
    "watched the tide turn",
    "carried ropes to the store",
    "bought bread and salted fish",
    "told a long story of the north",
    "swept the steps of the hall",
    "waited for the evening ferry",
    "wrote a letter to a cousin",
    "looked for a lost anchor",
    "lit the lamps along the pier",
    "slept until the rain was over",
)


class Wrong(Exception):
    """A gate failed. The text says what was asked, what was seen and what was wanted."""

    def __init__(self, text: str, *, answered: bool = True, excused: bool = False) -> None:
        super().__init__(text)
        self.answered = answered
        """An answer came, right or wrong."""
        self.excused = excused
        """Requests of others, where there are some, can bring it about."""


class Skipped(Exception):
    """A gate has nothing to ask this engine. The text says why."""


@dataclass(frozen=True)
class Answer:
    """One chat completion. `calls` are tools' names and arguments as they were written."""

    content: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]
    finish: str
    cached_tokens: int
    """Tokens of the prompt that the engine had kept, where it says so; else 0."""

    @property
    def shown(self) -> str:
        """The text for a message."""
        text = repr(self.content if len(self.content) <= 120 else self.content[:117] + "...")
        if not self.content.strip() and self.reasoning:
            text += " after reasoning"
        return text + (", cut off" if self.finish == "length" else "")


class Engine(Protocol):
    """The engine as a gate sees it."""

    async def complete(self, asked: str, body: Mapping[str, object]) -> Answer:
        """One chat completion; `asked` says in short what it is for. Raises Wrong."""

    async def tokenize(self, text: str) -> tuple[int, int] | None:
        """How many tokens a text is, and how many the engine takes (0: not said); None if it does not count them."""

    async def metric(self, name: str) -> float | None:
        """One of its metrics; None if it has none of that name."""

    async def transports(self) -> Mapping[int, Seen | str]:
        """What each rank's log says of NCCL, or why it could not be had."""


@dataclass(frozen=True)
class Gate:
    """One gate."""

    name: str
    seconds: float
    """Its deadline."""

    async def ask(self, engine: Engine) -> str:
        """Ask; in short what was seen. Raises Wrong or Skipped."""
        raise NotImplementedError


@dataclass(frozen=True)
class Gates:
    """Which gates are asked, in order."""

    gates: tuple[Gate, ...] = ()


def parse(data: Mapping[str, Any]) -> Gates:
    """The gates of the keeper's settings; those of an earlier release name the canary alone. Raises ValueError,
    KeyError or TypeError."""

    def seconds(name: str, *, where: bool = True) -> float:
        return float(data.get(f"gate_{name}_seconds") or 0) if where else 0.0

    api, canary = data["api"], data["canary"]
    tools, reasoning = bool(api.get("tools")), bool(api.get("reasoning"))
    longest = int(api.get("max_model_len") or 0)
    prompt, smoke_tokens = str(data.get("smoke_prompt") or ""), int(data.get("smoke_max_tokens") or 0)
    needle = data.get("gate_needle_expected")
    found: tuple[Gate, ...] = (
        # A generation of an earlier release says nothing of it, and is not asked.
        Transport("transport", TRANSPORT_SECONDS if "allow_tcp" in data else 0.0, bool(data.get("allow_tcp"))),
        WarmUp("warm_up", seconds("warm_up"), reasoning, longest),
        Question(
            "canary",
            float(canary["timeout_seconds"]),
            str(canary["prompt"]),
            str(canary["expect"]),
            int(canary["max_tokens"]),
        ),
        Question("smoke", seconds("smoke"), prompt, str(data.get("smoke_expected") or ""), smoke_tokens),
        # A client that says nothing of reasoning gets what the template takes for unsaid, which is a case of its own.
        ToolCall("tool_call", seconds("tool_call", where=tools), (None, False) if reasoning else (None,)),
        ToolCall("tool_call_reasoning", seconds("tool_call", where=tools and reasoning), (True,)),
        ReasoningOn("reasoning_on", seconds("reasoning", where=reasoning), prompt),
        ReasoningOff("reasoning_off", seconds("reasoning_off", where=reasoning), prompt, smoke_tokens),
        Image("image", seconds("image"), smoke_tokens),
        Needle(
            "needle",
            seconds("needle"),
            int(data.get("gate_needle_tokens") or 0),
            FACT if needle is None else str(needle),
            smoke_tokens,
            longest,
        ),
        Reuse("reuse", seconds("reuse"), longest),
    )
    return Gates(tuple(gate for gate in found if gate.seconds > 0 or gate.name == "canary"))


@dataclass(frozen=True)
class Transport(Gate):
    """The ranks talk by RDMA: over TCP a pair answers too, at a fraction of its speed, and nothing else says so. An
    engine that says nothing of NCCL, as one on CPUs, is not judged."""

    allow_tcp: bool

    async def ask(self, engine: Engine) -> str:
        answers = dict(sorted((await engine.transports()).items()))
        said = {rank: seen for rank, seen in answers.items() if isinstance(seen, Seen)}
        releases = {rank: seen.release for rank, seen in said.items() if seen.release}
        if len(set(releases.values())) > 1:
            each = ", ".join(f"rank {rank} has {release}" for rank, release in releases.items())
            raise Wrong(f"NCCL is not the same on all ranks: {each}. Fix: one image for all of them", answered=False)
        for rank, seen in said.items():
            if seen.tcp and not self.allow_tcp:
                line = printable(seen.tcp).replace('"', "'")
                raise Wrong(
                    f'rank {rank}: NCCL sends over TCP, not by RDMA ("{line}"). Fix: doctor.py says what RDMA lacks; '
                    "allow_tcp = True lets the pair serve so",
                    answered=False,
                )
        by_tcp = [f"rank {rank}" for rank, seen in said.items() if seen.tcp]
        if by_tcp:
            return f"{', '.join(by_tcp)}: over TCP, as allow_tcp permits"
        if not any(seen.rdma for seen in said.values()):
            unheard = [f"rank {rank}: {why}" for rank, why in answers.items() if isinstance(why, str)]
            raise Skipped("; ".join(unheard) or "no rank's log says what NCCL sends over")
        return "by RDMA: " + ", ".join(f"rank {rank}" for rank, seen in said.items() if seen.rdma)


@dataclass(frozen=True)
class WarmUp(Gate):
    """The shapes that the reference kit v2.3-tier1 sends after a start, so that no user pays for compiling them."""

    reasoning: bool
    max_model_len: int

    async def ask(self, engine: Engine) -> str:
        count = "Count from one to one hundred, in words."
        await engine.complete("one greedy answer of 64 tokens", _body(_user(count), 64))
        await engine.complete(
            "an answer of 48 tokens at temperature 0.8",
            {**_body(_user(count), 48, thinking=self.reasoning), "temperature": 0.8},
        )
        four = [_body(_user(f"Tell a story of the harbour on a {day}."), 96) for day in DAYS[:4]]
        await _all([engine.complete("four answers of 96 tokens at once", body) for body in four])
        length = await _characters(engine, WARM_UP_TOKENS, self.max_model_len)
        text = _text("A day at the harbour", length)
        asked = f"a prompt of about {WARM_UP_TOKENS} tokens"
        await engine.complete(asked, _body(_user(f"{text}\n\nWhat is this text about?"), 32))
        return "every shape was answered"


@dataclass(frozen=True)
class Question(Gate):
    """A question whose answer is known."""

    prompt: str
    expect: str
    max_tokens: int

    async def ask(self, engine: Engine) -> str:
        answer = await engine.complete(repr(self.prompt), _body(_user(self.prompt), self.max_tokens))
        return _judged(repr(self.prompt), answer, self.expect)


@dataclass(frozen=True)
class ToolCall(Gate):
    """A tool is called, for each of these ways to say whether to reason (None: not said)."""

    thinking: tuple[bool | None, ...]

    async def ask(self, engine: Engine) -> str:
        for thinking in self.thinking:
            how = {None: "", False: ", reasoning off", True: ", reasoning on"}[thinking]
            body = {**_body(_user(TOOL_PROMPT), TOOL_TOKENS, thinking=thinking), "tools": [TOOL]}
            asked = f"a tool call{how}"
            answer = await engine.complete(asked, body)
            if not any(name == "get_weather" and _city(written) for name, written in answer.calls):
                calls = ", ".join(f"{name}({written})" for name, written in answer.calls)
                seen = f"called {calls}" if calls else f"none came, but the text {answer.shown}"
                raise Wrong(f"{asked}: {seen}; wanted get_weather with a city")
        return "get_weather was called"


@dataclass(frozen=True)
class ReasoningOn(Gate):
    """Reasoning arrives in its own field."""

    prompt: str

    async def ask(self, engine: Engine) -> str:
        asked = f"{self.prompt!r}, reasoning on"
        answer = await engine.complete(asked, _body(_user(self.prompt), REASONING_TOKENS, thinking=True))
        _no_marks(asked, answer)
        if not answer.reasoning.strip():
            raise Wrong(f"{asked}: no reasoning came, but the text {answer.shown}; wanted it in a field of its own")
        return "it came in its own field"


@dataclass(frozen=True)
class ReasoningOff(Gate):
    """Switched off, there is no reasoning."""

    prompt: str
    max_tokens: int

    async def ask(self, engine: Engine) -> str:
        asked = f"{self.prompt!r}, reasoning off"
        answer = await engine.complete(asked, _body(_user(self.prompt), self.max_tokens))
        _no_marks(asked, answer)
        if answer.reasoning.strip():
            raise Wrong(f"{asked}: the model reasoned, {answer.reasoning[:80]!r}; wanted an answer without")
        return _judged(asked, answer, "")


@dataclass(frozen=True)
class Image(Gate):
    """An image is taken. What is seen in it is not judged."""

    max_tokens: int

    async def ask(self, engine: Engine) -> str:
        url = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
        parts = [
            {"type": "text", "text": "Describe this picture in a few words."},
            {"type": "image_url", "image_url": {"url": url}},
        ]
        answer = await engine.complete("an image", _body([{"role": "user", "content": parts}], self.max_tokens))
        return _judged("an image", answer, "", reasoning_will_do=True)


@dataclass(frozen=True)
class Needle(Gate):
    """One fact in a long text is found."""

    tokens: int
    expect: str
    max_tokens: int
    max_model_len: int

    async def ask(self, engine: Engine) -> str:
        length = await _characters(engine, self.tokens, self.max_model_len)
        before = _text("The book of the lighthouse", int(length * FACT_PLACE))
        after = _text("The second part", length - len(before))
        asked = f"one fact in a text of {length} characters"
        prompt = f"{before}\n{FACT_LINE}\n{after}\n\n{FACT_QUESTION}"
        answer = await engine.complete(asked, _body(_user(prompt), self.max_tokens))
        return _judged(asked, answer, self.expect, reasoning_will_do=True)


@dataclass(frozen=True)
class Reuse(Gate):
    """The engine keeps what it has read: a conversation's second turn hits the prefix cache."""

    max_model_len: int
    hits_seconds: float = HITS_SECONDS

    async def ask(self, engine: Engine) -> str:
        if await engine.metric(HITS) is None:
            raise Skipped(f"the engine's metrics have no {HITS}")
        text = _text("The log of the ferry", await _characters(engine, REUSE_TOKENS, self.max_model_len))
        turns = _user(f"{text}\n\nWhich days are named in this text?")
        first = await engine.complete("the first turn of a conversation", _body(turns, 32))
        hits, queries = await engine.metric(HITS) or 0.0, await engine.metric(QUERIES)
        turns += [{"role": "assistant", "content": first.content or "All seven."}, *_user("And who is named first?")]
        asked = "the second turn of a conversation"
        second = await engine.complete(asked, _body(turns, 32))
        if second.cached_tokens or await _rises(engine, HITS, hits, self.hits_seconds):
            return "the second turn found the first"
        if queries is not None and not await _rises(engine, QUERIES, queries, 0):
            raise Skipped(f"the engine keeps no prefixes ({QUERIES} stands still)")
        seen = f"it was read anew ({HITS} stays at {hits:.0f}); wanted the first turn to be kept"
        raise Wrong(f"{asked}: {seen}", excused=True)  # what others ask may have taken its place


def read(text: str) -> Answer:
    """A chat completion's JSON. Raises ValueError, LookupError, TypeError, AttributeError or OverflowError."""
    data: Any = json.loads(text)
    choice = data["choices"][0]
    message = choice["message"]
    functions = [call["function"] for call in message.get("tool_calls") or []]
    return Answer(
        content=_string(message.get("content")),
        # vLLM's own field; its earlier releases called it reasoning_content.
        reasoning=_string(message.get("reasoning")) or _string(message.get("reasoning_content")),
        calls=tuple((_string(item.get("name")), _string(item.get("arguments"))) for item in functions),
        finish=_string(choice.get("finish_reason")),
        cached_tokens=int(((data.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
    )


def png(side: int = 64) -> bytes:
    """A small picture: a red, a green, a blue and a white square. Models that see refuse a picture of a few pixels."""
    half = side // 2
    upper = b"\0" + b"\xff\0\0" * half + b"\0\xff\0" * half
    lower = b"\0" + b"\0\0\xff" * half + b"\xff\xff\xff" * half

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 2 * half, 2 * half, 8, 2, 0, 0, 0)
    rows = zlib.compress(upper * half + lower * half)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def _user(text: str) -> list[dict[str, object]]:
    return [{"role": "user", "content": text}]


def _body(
    messages: Sequence[Mapping[str, object]], max_tokens: int, *, thinking: bool | None = False
) -> dict[str, object]:
    said = {} if thinking is None else {"chat_template_kwargs": {"enable_thinking": thinking}}
    return {"messages": messages, "max_tokens": max_tokens, "temperature": 0, **said}


async def _all(coroutines: Sequence[Coroutine[Any, Any, Answer]]) -> None:
    """Wait for all at once. The first failure ends the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _characters(engine: Engine, tokens: int, max_model_len: int) -> int:
    """How long a text of ours is that has about so many tokens; never more than half of what the engine takes."""
    counted = await engine.tokenize(_text("A sample", SAMPLE_CHARACTERS))
    if counted is None or counted[0] < 1:
        return min(tokens * CHARACTERS_PER_TOKEN, (max_model_len or SMALLEST_MODEL_LEN) // 2)
    count, told = counted
    return min(tokens, (max_model_len or told or SMALLEST_MODEL_LEN) // 2) * SAMPLE_CHARACTERS // count


def _text(title: str, characters: int) -> str:
    """A text of that length, the same each time. Its title comes first, so that no two texts share a beginning."""
    parts, length = [title], len(title)
    for line in _lines():
        if length >= characters:
            break
        parts.append(line)
        length += len(line) + 1
    return "\n".join(parts)[:characters]


def _lines() -> Iterator[str]:
    turn = 0
    while True:
        yield f"On {DAYS[turn % len(DAYS)]} {PEOPLE[turn % len(PEOPLE)]} {DEEDS[turn % len(DEEDS)]}."
        turn += 1


async def _rises(engine: Engine, name: str, former: float, seconds: float) -> bool:
    """Whether a counter gets above what it was, in time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while (await engine.metric(name) or 0.0) <= former:
        if loop.time() >= end:
            return False
        await asyncio.sleep(HITS_PAUSE_SECONDS)
    return True


def _judged(asked: str, answer: Answer, expect: str, *, reasoning_will_do: bool = False) -> str:
    """In short what was answered. Raises Wrong. Where any text will do, a model that cannot but reason may be cut off
    before it says anything."""
    if reasoning_will_do and not expect and answer.reasoning.strip():
        return f"answered {answer.shown}"
    if expect not in answer.content or not answer.content.strip():
        raise Wrong(f"{asked}: answered {answer.shown}, wanted {f'{expect!r} in it' if expect else 'any text'}")
    return f"answered {answer.shown}"


def _no_marks(asked: str, answer: Answer) -> None:
    if any(mark in answer.content for mark in MARKS):
        raise Wrong(f"{asked}: there is reasoning in the answer {answer.shown}; wanted none there")


def _city(written: str) -> bool:
    try:
        arguments = json.loads(written)
    except ValueError:
        return False
    return isinstance(arguments, dict) and bool(arguments.get("city"))


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""
