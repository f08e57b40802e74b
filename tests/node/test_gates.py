"""The gates against an engine that passes them all, and against one that fails each; with exact messages."""

from __future__ import annotations

import asyncio
import json
import re
import struct
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from node import gates
from node.decide import Gating
from node.door import Api
from node.network import Seen
from node.probe import CanarySettings, EngineProbe
from tests.node.gate_engine import Body, GateEngine, Reply, good, text_of, thinking

SUM = "What is 17*23?"
CANARY = {"prompt": SUM, "expect": "391", "max_tokens": 8, "timeout_seconds": 5}
SETTINGS: Mapping[str, Any] = {
    "api": {"max_model_len": 32768, "tools": True, "reasoning": True},
    "canary": CANARY,
    "smoke_prompt": SUM,
    "smoke_expected": "391",
    "smoke_max_tokens": 200,
    "gate_warm_up_seconds": 10,
    "gate_smoke_seconds": 10,
    "gate_tool_call_seconds": 10,
    "gate_reasoning_seconds": 10,
    "gate_reasoning_off_seconds": 10,
    "gate_image_seconds": 10,
    "gate_needle_seconds": 10,
    "gate_needle_tokens": 16000,
    "gate_needle_expected": None,
    "gate_reuse_seconds": 10,
}
ALL = (
    "warm_up",
    "canary",
    "smoke",
    "tool_call",
    "tool_call_reasoning",
    "reasoning_on",
    "reasoning_off",
    "image",
    "needle",
    "reuse",
)


def only(name: str, **more: Any) -> gates.Gates:
    """That gate alone."""
    wanted = gates.parse({**SETTINGS, **more})
    return gates.Gates(tuple(gate for gate in wanted.gates if gate.name == name))


def probe(engine: GateEngine, key_file: str = "") -> EngineProbe:
    canary = CanarySettings(SUM, "391", 8, 2.0)
    return EngineProbe(Api(engine.port, "m", key_file=key_file), canary, time.monotonic)


async def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not done():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def judged(own: EngineProbe, wanted: gates.Gates) -> Gating:
    own.run_gates(wanted)
    await until(lambda: own.gates is not None and own.gates.state != "pending")
    assert own.gates is not None
    return own.gates


def ask(engine: GateEngine, wanted: gates.Gates) -> tuple[Gating, list[dict[str, Any]]]:
    async def go() -> tuple[Gating, list[dict[str, Any]]]:
        own = probe(engine)
        return await judged(own, wanted), own.gate_results

    return asyncio.run(go())


def with_probe(engine: GateEngine, use: Callable[[EngineProbe], Awaitable[None]], key_file: str = "") -> None:
    async def go() -> None:
        await use(probe(engine, key_file))

    asyncio.run(go())


# ---------------------------------------------------------------- which are asked


def test_every_gate_passes_in_order() -> None:
    with GateEngine() as engine:
        gating, results = ask(engine, gates.parse(SETTINGS))
    assert gating == Gating("passed")
    assert [(item["gate"], item["outcome"]) for item in results] == [(name, "passed") for name in ALL]
    assert {item["gate"]: item["detail"] for item in results} == {
        "warm_up": "every shape was answered",
        "canary": "answered 'It is 391.'",
        "smoke": "answered 'It is 391.'",
        "tool_call": "get_weather was called",
        "tool_call_reasoning": "get_weather was called",
        "reasoning_on": "it came in its own field",
        "reasoning_off": "answered 'It is 391.'",
        "image": "answered 'It is 391.'",
        "needle": "answered '7391'",
        "reuse": "the second turn found the first",
    }
    assert all(0 <= item["seconds"] < 10 for item in results)


@pytest.mark.parametrize(
    ("more", "left_out"),
    [
        ({f"gate_{name}_seconds": 0}, left_out)
        for name, left_out in {
            "warm_up": {"warm_up"},
            "smoke": {"smoke"},
            "tool_call": {"tool_call", "tool_call_reasoning"},
            "reasoning": {"reasoning_on"},
            "reasoning_off": {"reasoning_off"},
            "image": {"image"},
            "needle": {"needle"},
            "reuse": {"reuse"},
        }.items()
    ]
    + [
        ({"gate_image_seconds": None}, {"image"}),
        ({"gate_reasoning_off_seconds": None}, {"reasoning_off"}),
        ({"api": {"tools": False, "reasoning": True}}, {"tool_call", "tool_call_reasoning"}),
        ({"api": {"tools": True, "reasoning": False}}, {"tool_call_reasoning", "reasoning_on", "reasoning_off"}),
    ],
    ids=str,
)
def test_gates_are_left_out(more: dict[str, Any], left_out: set[str]) -> None:
    wanted = gates.parse({**SETTINGS, **more})
    assert [gate.name for gate in wanted.gates] == [name for name in ALL if name not in left_out]


def test_settings_of_an_earlier_release_name_the_canary_alone() -> None:
    wanted = gates.parse({"api": {"port": 1, "model": "m"}, "canary": CANARY})
    assert wanted == gates.Gates((gates.Question("canary", 5.0, SUM, "391", 8),))
    with pytest.raises(KeyError):
        gates.parse({"api": {}})


def test_what_is_asked() -> None:
    with GateEngine() as engine:
        ask(engine, gates.parse(SETTINGS))
    assert all(body["model"] == "m" for body in engine.bodies)
    warm_up = [body for body in engine.bodies if body["user"] == "sparkpair-gate-warm_up"]
    assert [(body["max_tokens"], body["temperature"], thinking(body)) for body in warm_up] == [
        (64, 0, False),
        (48, 0.8, True),
        *[(96, 0, False)] * 4,
        (32, 0, False),
    ]
    assert 31_900 < len(text_of(warm_up[-1])) < 32_100
    tools = [thinking(body) for body in engine.bodies if body.get("tools")]
    assert tools == [None, False, True]
    needle = text_of(next(body for body in engine.bodies if body["user"] == "sparkpair-gate-needle"))
    assert 63_900 < len(needle) < 64_300
    assert needle.count("7391") == 1
    assert 0.35 < needle.index("7391") / len(needle) < 0.45
    assert engine.marks.count("sparkpair-canary") == 1
    others = [mark for mark in engine.marks if mark != "sparkpair-canary"]
    assert len(set(others)) == len(others)
    assert all(mark.startswith("sparkpair-gate-") for mark in others)


@pytest.mark.parametrize(
    ("stated", "told", "per_character", "characters"),
    [
        (32768, 0, 0.25, 64_000),
        (32768, 0, 1.0, 16_000),
        (8192, 0, 0.25, 16_384),  # half of the longest prompt, in tokens
        (None, 8192, 0.25, 16_384),
        (131072, 0, None, 64_000),  # nobody counts: four characters each,
        (32768, 0, None, 16_384),  # never more than a tokenizer that knows nothing but letters can take
        (None, 0, None, 2048),
    ],
)
def test_the_needle_is_as_long_as_the_engine_takes(
    stated: int | None, told: int, per_character: float | None, characters: int
) -> None:
    with GateEngine() as engine:
        engine.tokens_per_character, engine.max_model_len = per_character, told
        gating, _ = ask(engine, only("needle", api={"max_model_len": stated}))
        (body,) = engine.bodies
    assert gating.state == "passed"
    assert abs(len(text_of(body)) - characters) < 150


def test_the_picture_is_a_png() -> None:
    data = gates.png(4)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, rest = {}, data[8:]
    while rest:
        (length,) = struct.unpack(">I", rest[:4])
        kind, body, check = rest[4:8], rest[8 : 8 + length], rest[8 + length : 12 + length]
        assert struct.unpack(">I", check) == (zlib.crc32(kind + body),)
        chunks[kind], rest = body, rest[12 + length :]
    assert struct.unpack(">IIBB", chunks[b"IHDR"][:10]) == (4, 4, 8, 2)
    red, green, blue, white = b"\xff\0\0", b"\0\xff\0", b"\0\0\xff", b"\xff\xff\xff"
    rows = [b"\0" + red * 2 + green * 2] * 2 + [b"\0" + blue * 2 + white * 2] * 2
    assert zlib.decompress(chunks[b"IDAT"]) == b"".join(rows)


# ---------------------------------------------------------------- each fails


def says(content: str | None, **more: Any) -> Callable[[Body], Reply]:
    return lambda body: (200, {"content": content, **more})


def calls(name: str, arguments: str) -> Callable[[Body], Reply]:
    return says(None, tool_calls=[{"function": {"name": name, "arguments": arguments}}])


def refuses(status: int, text: str, unless: Callable[[Body], bool] = lambda body: False) -> Callable[[Body], Reply]:
    return lambda body: good(body) if unless(body) else (status, {"error": text})


def no_call_when(asked: bool | None) -> Callable[[Body], Reply]:
    return lambda body: good(body) if thinking(body) is not asked else (200, {"content": "I would look."})


FAILURES: tuple[tuple[str, Callable[[Body], Reply], str], ...] = (
    (
        "warm_up",
        refuses(500, "boom"),
        'one greedy answer of 64 tokens: HTTP 500: {"error": "boom"}',
    ),
    (
        "warm_up",
        refuses(500, "boom", lambda body: body["max_tokens"] != 96),
        'four answers of 96 tokens at once: HTTP 500: {"error": "boom"}',
    ),
    (
        "warm_up",
        refuses(400, "too long", lambda body: body["max_tokens"] != 32),
        'a prompt of about 8000 tokens: HTTP 400: {"error": "too long"}',
    ),
    ("canary", says("It is 400."), "'What is 17*23?': answered 'It is 400.', wanted '391' in it"),
    ("smoke", says("  "), "'What is 17*23?': answered '  ', wanted '391' in it"),
    (
        "smoke",
        says(None, reasoning="Let me", finish="length"),
        "'What is 17*23?': answered '' after reasoning, cut off, wanted '391' in it",
    ),
    ("smoke", says("ab" * 100), f"'What is 17*23?': answered '{'ab' * 58}a...', wanted '391' in it"),
    (
        "tool_call",
        no_call_when(None),
        "a tool call: none came, but the text 'I would look.'; wanted get_weather with a city",
    ),
    (
        "tool_call",
        no_call_when(False),
        "a tool call, reasoning off: none came, but the text 'I would look.'; wanted get_weather with a city",
    ),
    (
        "tool_call_reasoning",
        no_call_when(True),
        "a tool call, reasoning on: none came, but the text 'I would look.'; wanted get_weather with a city",
    ),
    (
        "tool_call",
        calls("get_weather", '{"city": "Par'),
        'a tool call: called get_weather({"city": "Par); wanted get_weather with a city',
    ),
    (
        "tool_call",
        calls("get_time", '{"city": "Paris"}'),
        'a tool call: called get_time({"city": "Paris"}); wanted get_weather with a city',
    ),
    (
        "reasoning_on",
        says("391"),
        "'What is 17*23?', reasoning on: no reasoning came, but the text '391'; wanted it in a field of its own",
    ),
    (
        "reasoning_on",
        says("<think>x</think>391", reasoning="x"),
        "'What is 17*23?', reasoning on: there is reasoning in the answer '<think>x</think>391'; wanted none there",
    ),
    (
        "reasoning_off",
        says("17*23</think>391"),
        "'What is 17*23?', reasoning off: there is reasoning in the answer '17*23</think>391'; wanted none there",
    ),
    (
        "reasoning_off",
        says("391", reasoning_content="Seventeen times"),
        "'What is 17*23?', reasoning off: the model reasoned, 'Seventeen times'; wanted an answer without",
    ),
    ("reasoning_off", says(""), "'What is 17*23?', reasoning off: answered '', wanted any text"),
    ("image", refuses(500, "no template"), 'an image: HTTP 500: {"error": "no template"}'),
    ("image", says("\n"), r"an image: answered '\n', wanted any text"),
    (
        "needle",
        says("I do not know."),
        "one fact in a text of 64000 characters: answered 'I do not know.', wanted '7391' in it",
    ),
)


@pytest.mark.parametrize(("name", "reply", "reason"), FAILURES)
def test_a_gate_fails(name: str, reply: Callable[[Body], Reply], reason: str) -> None:
    with GateEngine(reply) as engine:
        gating, results = ask(engine, only(name))
    assert gating == Gating("failed", f"gate {name}: {reason}")
    assert [(item["gate"], item["outcome"], item["detail"]) for item in results] == [(name, "failed", reason)]


def test_nothing_is_asked_after_a_failure() -> None:
    with GateEngine(says("no")) as engine:
        gating, results = ask(engine, gates.parse(SETTINGS))
    assert gating.reason.startswith("gate canary: ")
    assert [item["outcome"] for item in results] == ["passed", "failed"]


@pytest.mark.parametrize(("expected", "state"), [("", "passed"), ("know", "passed"), ("no idea", "failed")])
def test_the_needle_may_be_another(expected: str, state: str) -> None:
    with GateEngine(says("I do not know.")) as engine:
        gating, _ = ask(engine, only("needle", gate_needle_expected=expected))
    assert gating.state == state


def test_where_any_text_will_do_reasoning_is_text() -> None:
    with GateEngine(says(None, reasoning="Let me", finish="length")) as engine:
        gating, results = ask(engine, only("needle", gate_needle_expected=""))
        assert (gating, results[0]["detail"]) == (Gating("passed"), "answered '' after reasoning, cut off")
        assert ask(engine, only("image"))[0] == Gating("passed")
        assert ask(engine, only("needle"))[0].state == "failed"


def test_reasoning_in_the_field_of_earlier_releases() -> None:
    with GateEngine(says("391", reasoning_content="Seventeen times")) as engine:
        assert ask(engine, only("reasoning_on"))[0] == Gating("passed")


NOT_KEPT = (
    "the second turn of a conversation: it was read anew (vllm:prefix_cache_hits_total stays at 0); "
    "wanted the first turn to be kept"
)
REUSE = gates.Gates((gates.Reuse("reuse", 10.0, 32768, hits_seconds=0.1),))


def test_nothing_is_kept() -> None:
    with GateEngine() as engine:
        engine.keeps_prefixes = False
        gating, _ = ask(engine, REUSE)
        first, second = engine.bodies
    assert gating == Gating("failed", f"gate reuse: {NOT_KEPT}")
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]
    assert second["messages"][0] == first["messages"][0]
    assert len(text_of(first)) == pytest.approx(40_000, abs=100)


def test_what_others_requests_drove_out_is_no_fault() -> None:
    with GateEngine() as engine:
        engine.keeps_prefixes, engine.others = False, 5
        gating, _ = ask(engine, gates.Gates((gates.Reuse("reuse", 2.0, 32768, hits_seconds=0.6),)))
    assert (gating.state, gating.answered) == ("busy", True)
    assert gating.reason.endswith("wanted the first turn to be kept, while other requests went on")


def test_reuse_is_passed_over_where_no_metric_shows_it() -> None:
    with GateEngine() as engine:
        engine.metrics = {}
        gating, results = ask(engine, only("reuse"))
        assert engine.bodies == []
    assert gating == Gating("passed")
    assert [(item["outcome"], item["detail"]) for item in results] == [
        ("skipped", "the engine's metrics have no vllm:prefix_cache_hits_total")
    ]


def test_reuse_is_passed_over_where_prefixes_are_not_kept_on_purpose() -> None:
    with GateEngine() as engine:
        engine.keeps_prefixes = False
        engine.metrics = {"vllm:prefix_cache_hits_total": 0}

        def still(body: Body) -> Reply:
            engine.metrics["vllm:prefix_cache_queries_total"] = 0
            return good(body)

        engine.reply = still
        _, results = ask(engine, REUSE)
    assert [(item["outcome"], item["detail"]) for item in results] == [
        ("skipped", "the engine keeps no prefixes (vllm:prefix_cache_queries_total stands still)")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>",
        "[]",
        "5",
        '{"choices": []}',
        '{"choices": [5]}',
        '{"choices": [{"message": null}]}',
        '{"choices": [{"message": {"tool_calls": 5}}]}',
        '{"choices": [{"message": {"tool_calls": [{}]}}]}',
        '{"choices": [{"message": {"tool_calls": [{"function": "x"}]}}]}',
        '{"choices": [{"message": {}}], "usage": []}',
        '{"choices": [{"message": {}}], "usage": [5]}',
        '{"choices": [{"message": {}}], "usage": {"prompt_tokens_details": {"cached_tokens": Infinity}}}',
        '{"choices": [{"message": {}}], "usage": {"prompt_tokens_details": {"cached_tokens": "x"}}}',
    ],
)
def test_what_is_not_a_completion(text: str) -> None:
    with GateEngine(lambda body: (200, text)) as engine:
        gating, _ = ask(engine, only("smoke"))
    if text.endswith('"usage": []}'):
        assert gating.reason == "gate smoke: 'What is 17*23?': answered '', wanted '391' in it"
    else:
        assert gating.reason == f"gate smoke: 'What is 17*23?': not a completion: {text}"


def test_strange_parts_of_a_message_are_no_text() -> None:
    with GateEngine(says(None, reasoning=5, tool_calls=[{"function": {"name": 5}}])) as engine:
        gating, _ = ask(engine, only("tool_call"))
    assert gating.reason.startswith("gate tool_call: a tool call: called (); wanted")


@pytest.mark.parametrize("usage", [None, 5, [], {"prompt_tokens": "x"}, {"prompt_tokens": float("inf")}])
def test_a_strange_count_is_none(usage: Any) -> None:
    text = json.dumps({"choices": [{"message": {"content": "391"}}], "usage": usage})
    with GateEngine(lambda body: (200, text)) as engine:

        async def use(own: EngineProbe) -> None:
            own.send_canary()
            await until(lambda: own.canary is not None and own.canary.state == "ok")
            assert own.asked == {"requests": 1, "prompt_tokens": 0, "completion_tokens": 0}

        with_probe(engine, use)


@pytest.mark.parametrize("said", ["", "[]", '{"count": "x"}', '{"count": Infinity}', '{"count": 0}'])
def test_an_engine_that_counts_strangely_does_not_count(said: str) -> None:
    with GateEngine() as engine:
        engine.counts = said
        assert ask(engine, only("needle"))[0] == Gating("passed")
        assert len(text_of(engine.bodies[0])) == pytest.approx(16_384, abs=150)


# ---------------------------------------------------------------- no answer


def test_no_answer_within_the_deadline() -> None:
    with GateEngine() as engine:
        engine.hangs = lambda body: True

        async def use(own: EngineProbe) -> None:
            gating = await judged(own, only("smoke", gate_smoke_seconds=0.3))
            reason = "gate smoke: 'What is 17*23?': no answer within 0.3 s"
            assert gating == Gating("failed", reason, answered=False)
            await until(lambda: engine.gone == 1)  # and the engine is not left with our request

        with_probe(engine, use)


def test_the_shape_that_was_not_answered_is_named() -> None:
    with GateEngine() as engine:
        engine.hangs = lambda body: body["max_tokens"] == 96
        gating, _ = ask(engine, only("warm_up", gate_warm_up_seconds=0.5))
    assert gating.reason == "gate warm_up: four answers of 96 tokens at once: no answer within 0.5 s"


def test_slots_that_others_fill_are_no_fault() -> None:
    with GateEngine() as engine:
        engine.hangs, engine.others = lambda body: True, 5
        gating, results = ask(engine, gates.Gates(only("smoke", gate_smoke_seconds=0.6).gates * 2))
    detail = "'What is 17*23?': no answer within 0.6 s, while other requests went on"
    assert gating == Gating("busy", f"gate smoke: {detail}", answered=False)
    assert [(item["outcome"], item["detail"]) for item in results] == [("busy", detail)]


def test_our_own_tokens_do_not_excuse_us() -> None:
    with GateEngine() as engine:
        engine.hangs, engine.others = lambda body: True, 1  # one request runs, and it is ours
        gating, _ = ask(engine, only("smoke", gate_smoke_seconds=0.5))
    assert gating.state == "failed"


def test_an_engine_that_is_gone() -> None:
    with GateEngine() as engine:
        pass
    gating, _ = ask(engine, only("smoke"))
    assert gating == Gating("failed", "gate smoke: 'What is 17*23?': [Errno 111] Connection refused", answered=False)


# ---------------------------------------------------------------- runs


def test_a_new_run_ends_the_former() -> None:
    with GateEngine() as engine:

        async def use(own: EngineProbe) -> None:
            engine.hangs = lambda body: True
            own.run_gates(only("smoke"))
            assert own.gates == Gating("pending")
            await until(lambda: len(engine.bodies) == 1)
            assert own.gates == Gating("pending", "gate smoke, 1 of 1")
            engine.hangs = lambda body: False
            assert await judged(own, only("canary")) == Gating("passed")
            await until(lambda: engine.gone == 1)
            assert own.gates == Gating("passed")
            assert [item["gate"] for item in own.gate_results] == ["canary"]

        with_probe(engine, use)


def test_a_run_ends_with_the_engine() -> None:
    with GateEngine() as engine:

        async def use(own: EngineProbe) -> None:
            await judged(own, only("canary"))
            assert own.asked == {"requests": 1, "prompt_tokens": 10, "completion_tokens": 3}
            engine.hangs = lambda body: True
            own.run_gates(only("smoke"))
            await until(lambda: len(engine.bodies) == 2)
            own.forget()
            await until(lambda: engine.gone == 1)
            assert own.gates is None
            assert own.gate_results == [], "those of the last run, of which none was answered"
            assert own.asked == {"requests": 0, "prompt_tokens": 0, "completion_tokens": 0}

        with_probe(engine, use)


def test_what_we_asked_is_counted() -> None:
    with GateEngine() as engine:

        async def use(own: EngineProbe) -> None:
            await judged(own, gates.parse(SETTINGS))
            own.send_canary()
            await until(lambda: own.canary is not None and own.canary.state == "ok")
            many = len(engine.bodies)
            assert own.asked == {"requests": many, "prompt_tokens": 10 * many, "completion_tokens": 3 * many}

        with_probe(engine, use)
    assert engine.marks.count("sparkpair-canary") == 2


def test_gates_use_the_key(tmp_path: Path) -> None:
    file = tmp_path / "api-key"
    file.write_text("a-key-of-the-engine-0\n")
    with GateEngine() as engine:
        engine.key = "a-key-of-the-engine-0"

        async def use(own: EngineProbe) -> None:
            assert await judged(own, gates.parse(SETTINGS)) == Gating("passed")
            file.write_text("another-key-of-ours-1\n")  # the engine goes on with the key of its start
            assert await judged(own, only("smoke")) == Gating("passed")

        with_probe(engine, use, str(file))
        wrong = f"the engine asks for another key than {file} holds (HTTP 401)"

        async def locked(own: EngineProbe) -> None:
            assert await judged(own, only("smoke")) == Gating("failed", f"gate smoke: {wrong}")
            file.unlink()
            missing = f"gate smoke: {file} is missing; deploy.py makes one"
            assert await judged(own, only("smoke")) == Gating("failed", missing)

        with_probe(engine, locked, str(file))

        async def keyless(own: EngineProbe) -> None:
            reason = "gate smoke: the engine asks for a key, and is to ask for none (HTTP 401)"
            assert await judged(own, only("smoke")) == Gating("failed", reason)

        with_probe(engine, keyless)


def test_the_key_is_in_no_result(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "api-key"
    file.write_text("a-key-of-the-engine-0\n")
    with GateEngine() as engine:
        engine.key = "another-key-of-ours-1"

        async def use(own: EngineProbe) -> None:
            await judged(own, gates.parse(SETTINGS))
            assert "a-key-of-the-engine-0" not in json.dumps([own.gate_results, str(own.gates)])

        with_probe(engine, use, str(file))
    assert "a-key-of-the-engine-0" not in "".join(capfd.readouterr())


# ---------------------------------------------------------------- what the operator reads


def test_every_failure_is_explained() -> None:
    """Each message above, and those of an engine that says nothing, has a row on the troubleshooting page."""
    page = (Path(__file__).parents[2] / "docs/troubleshooting.md").read_text()
    section = page.split("\n## A gate failed\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    rows = [re.escape(said).replace("…", ".*") for cell in cells for said in re.findall(r"`([^`]+)`", cell)]
    silent = "no answer within 1 s"
    said = [*(reason for _, _, reason in FAILURES), NOT_KEPT, silent, f"{silent}, while other requests went on"]
    assert [text for text in said if not any(re.search(row, text) for row in rows)] == []


TCP_LINE = 'spark-b:77:91 [0] NCCL INFO Using network "Socket"'


@pytest.mark.parametrize(
    ("allow_tcp", "said", "state", "detail"),
    [
        (
            False,
            {0: Seen("", "NET/IB", "2.31.2"), 1: Seen("", "NET/IB", "2.31.2")},
            "passed",
            "by RDMA: rank 0, rank 1",
        ),
        (
            False,
            {0: Seen("", "NET/IB"), 1: Seen(TCP_LINE)},
            "failed",
            "rank 1: NCCL sends over TCP, not by RDMA (\"spark-b:77:91 [0] NCCL INFO Using network 'Socket'\"). "
            "Fix: doctor.py says what RDMA lacks; allow_tcp = True lets the pair serve so",
        ),
        (True, {0: Seen("", "NET/IB"), 1: Seen(TCP_LINE)}, "passed", "rank 1: over TCP, as allow_tcp permits"),
        (False, {0: Seen(), 1: Seen()}, "passed", "no rank's log says what NCCL sends over"),
        (False, {0: Seen(), 1: "unknown request 'transport'"}, "passed", "rank 1: unknown request 'transport'"),
        (
            False,
            {0: Seen(release="2.30.7"), 1: Seen(release="2.28.9")},
            "failed",
            "NCCL is not the same on all ranks: rank 0 has 2.30.7, rank 1 has 2.28.9. Fix: one image for all of them",
        ),
    ],
)
@pytest.mark.report("RDMA-01", "RDMA-04", "NET-11")
def test_the_ranks_talk_by_rdma(allow_tcp: bool, said: Mapping[int, Seen | str], state: str, detail: str) -> None:
    """TCP is a fault, unless it is allowed; an engine that says nothing of NCCL is not judged."""

    async def transports() -> Mapping[int, Seen | str]:
        return said

    async def run() -> EngineProbe:
        with GateEngine() as engine:
            asked = probe(engine)
            asked.transports = transports
            asked.run_gates(only("transport", allow_tcp=allow_tcp))
            await until(lambda: asked.gates is not None and asked.gates.state != "pending")
            return asked

    asked = asyncio.run(run())
    assert asked.gates is not None
    assert (asked.gates.state, asked.gate_results[0]["detail"]) == (state, detail)
    # Not answered: no launch serves so all the same, not even one that was good before.
    assert state == "passed" or not asked.gates.answered


def test_a_generation_of_an_earlier_release_is_not_asked_how_it_talks() -> None:
    assert "transport" not in [gate.name for gate in gates.parse(SETTINGS).gates]
    assert gates.parse({**SETTINGS, "allow_tcp": False}).gates[0].name == "transport"
