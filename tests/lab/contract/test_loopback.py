"""The contract engine as plain processes on the loopback device: whatever of the table needs no container.

The cases wait more than they work, so all of them are started at once and asked for one by one.
"""

from __future__ import annotations

import json
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spec.knobs import KNOBS
from tests.lab.contract import client
from tests.lab.contract.cases import (
    CASES,
    CORE,
    HEAD,
    MAIN,
    TP0,
    TP1,
    WORKER,
    Seen,
    check_answers,
    check_load,
    run,
    wait,
)
from tests.lab.contract.client import ENDLESS, Background
from tests.lab.contract.pairs import PROGRAM, Processes

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

QUICK = {case.name: case for case in CASES if not (case.containers_only or case.slow)}
RECORDED = json.loads(Path(__file__).with_name("answers.json").read_text())
"""What a real vLLM said in the lab (python -m tests.lab.contract.record writes it)."""

TEST = Callable[[Processes], Any]


def start(pair: Processes, *ranks: int, flags: dict[str, str | None] | None = None, **env: str) -> None:
    """Start ranks and wait until the API answers."""
    for rank in ranks or (WORKER, HEAD):
        pair.start(rank, flags or {}, env)
    assert wait(lambda: client.request(pair.api, "/health").status == 200, 60, 0.05), pair.logs(HEAD)


def exits(pair: Processes, rank: int, seconds: float = 6) -> int | None:
    """The exit code of a rank, waited for."""
    wait(lambda: pair.exit_code(rank) is not None, seconds, 0.05)
    return pair.exit_code(rank)


# ---------------------------------------------------------------- single tests, each with a pair of its own


def answers(pair: Processes) -> dict[str, str]:
    start(pair)
    said = check_answers(pair)
    place = str(pair.place / "model")
    return {name: text.replace(place, "/models/tiny") for name, text in said.items()}


def load(pair: Processes) -> dict[str, str]:
    start(pair)
    return check_load(pair)


def looks(pair: Processes) -> dict[str, object]:
    """Process tree, names and memory."""
    start(pair)
    client.chat(pair.api)
    titles = [set(pair.titles(rank).values()) for rank in (HEAD, WORKER)]
    pids = [pid for rank in (HEAD, WORKER) for pid in pair.titles(rank)]
    comms = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids]
    pss = [Path(f"/proc/{pid}/smaps_rollup").read_text().split("Pss:")[1].split()[0] for pid in pids]
    return {"titles": titles, "comms": comms, "pss": [int(kib) for kib in pss]}


def head_orphans(pair: Processes) -> dict[str, object]:
    """Outside a container a killed head leaves EngineCore and Worker_TP0, which hold the master port."""
    start(pair)
    pair.kill(HEAD, MAIN, signal.SIGKILL)
    exits(pair, HEAD)
    time.sleep(0.5)
    with socket.socket() as probe:
        held = probe.connect_ex(("127.0.0.1", pair.master_port)) == 0
    return {"left": set(pair.titles(HEAD).values()), "held": held, "worker": pair.exit_code(WORKER)}


def worker_orphan(pair: Processes) -> dict[str, object]:
    """Outside a container Worker_TP1 outlives its main process, and still serves."""
    start(pair)
    pair.kill(WORKER, MAIN, signal.SIGKILL)
    exits(pair, WORKER)
    time.sleep(0.3)
    return {"left": set(pair.titles(WORKER).values()), "chat": client.chat(pair.api).status}


def worker_terminated(pair: Processes) -> dict[str, object]:
    """A worker serves on until the grace after its SIGTERM is over; here the grace is short."""
    start(pair, CONTRACT_TERM_SECONDS="1.5")
    pair.kill(WORKER, MAIN, signal.SIGTERM)
    meanwhile = client.chat(pair.api).status
    code = exits(pair, WORKER)
    return {"meanwhile": meanwhile, "code": code, "left": pair.titles(WORKER), "then": client.chat(pair.api).status}


def head_terminated(pair: Processes) -> dict[str, object]:
    """The other way the real head's SIGTERM goes, and the quick one."""
    start(pair, CONTRACT_TERM_ANSWERS="1")
    both = [Background(pair.api, 10, stream=stream, **ENDLESS) for stream in (True, False)]
    time.sleep(0.5)
    pair.kill(HEAD, MAIN, signal.SIGTERM)
    stream, whole = (one.end(5) for one in both)
    return {"stream": stream.events[-1], "whole": whole.status, "code": exits(pair, HEAD, 3)}


def three_ranks(pair: Processes) -> dict[str, object]:
    start(pair, 2, 1, 0, flags={"--nnodes": "3", "--tensor-parallel-size": "3"})
    chat = client.chat(pair.api)
    pair.kill(2, "VLLM::Worker_TP2", signal.SIGKILL)
    return {"chat": chat.status, "then": client.chat(pair.api).status, "head": exits(pair, HEAD)}


def hanging_start(pair: Processes) -> dict[str, object]:
    for rank in (WORKER, HEAD):
        pair.start(rank, {}, {"CONTRACT_START_HANG": "1"})
    time.sleep(2)
    health = client.request(pair.api, "/health").status
    return {"health": health, "codes": [pair.exit_code(rank) for rank in (HEAD, WORKER)]}


def failing_start(pair: Processes) -> dict[str, object]:
    for rank in (WORKER, HEAD):
        pair.start(rank, {}, {"CONTRACT_START_FAIL": "1"})
    return {"codes": [exits(pair, rank) for rank in (HEAD, WORKER)]}


def slow_start(pair: Processes) -> float:
    began = time.monotonic()
    start(pair, CONTRACT_START_SECONDS="2")
    return time.monotonic() - began


def wrong_answer(pair: Processes) -> str:
    start(pair, CONTRACT_ANSWER="Something else.")
    text: str = client.chat(pair.api).json["choices"][0]["message"]["content"]
    return text


def long_prompt(pair: Processes) -> dict[str, object]:
    """While a long prompt is read no token counter moves: only the KV cache fills."""
    start(pair, CONTRACT_PREFILL_TOKENS_PER_SECOND="4000", flags={"--max-num-batched-tokens": "512"})
    message = {"role": "user", "content": "x" * 8000}
    chat = Background(pair.api, 20, messages=[message], max_tokens=3)
    seen = []
    for _ in range(2):
        time.sleep(0.6)
        values = client.metrics(pair.api)
        seen.append([values[f"vllm:{name}"] for name in ("num_requests_running", "prompt_tokens_total")])
        seen[-1].append(values["vllm:kv_cache_usage_perc"])
    return {"seen": seen, "chat": chat.end(20).status, "then": client.metrics(pair.api)["vllm:prompt_tokens_total"]}


def with_key(pair: Processes) -> dict[str, object]:
    """Status by path and key: what asks for the key, and what stays open."""
    start(pair, VLLM_API_KEY="a-key-of-the-tests")
    paths = ("/v1/models", "/v1/nothing", "/v2", "/health", "/metrics", "/version", "/nothing")
    seen: dict[str, object] = {
        path: tuple(client.request(pair.api, path, key=key).status for key in ("", "another", "a-key-of-the-tests"))
        for path in paths
    }
    body = {"model": client.MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    refused = client.request(pair.api, "/v1/chat/completions", body)
    seen["chat"] = client.request(pair.api, "/v1/chat/completions", body, key="a-key-of-the-tests").status
    return {**seen, "refused": (refused.status, refused.text)}


def unknown_variable(pair: Processes) -> dict[str, object]:
    pair.start(HEAD, {}, {"CONTRACT_TYPO": "1"})
    return {"code": exits(pair, HEAD), "said": pair.logs(HEAD)}


SINGLE: tuple[TEST, ...] = (
    answers,
    load,
    looks,
    head_orphans,
    worker_orphan,
    worker_terminated,
    head_terminated,
    three_ranks,
    hanging_start,
    failing_start,
    slow_start,
    wrong_answer,
    long_prompt,
    with_key,
    unknown_variable,
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Any]]]:
    """Everything started at once; a test waits for its own."""
    place = tmp_path_factory.mktemp("contract")
    Processes(place)

    def alone(test: TEST) -> Any:
        pair = Processes(place)
        try:
            return test(pair)
        finally:
            pair.remove()

    with ThreadPoolExecutor(len(QUICK) + len(SINGLE)) as pool:
        futures: dict[str, Future[Any]] = {
            name: pool.submit(run, case, Processes(place)) for name, case in QUICK.items()
        }
        futures |= {test.__name__: pool.submit(alone, test) for test in SINGLE}
        yield futures


@pytest.mark.parametrize("name", QUICK)
def test_case(name: str, outcomes: dict[str, Future[Any]]) -> None:
    """A row of the table."""
    seen: Seen = outcomes[name].result()
    assert not seen.wrong, seen


def test_answers_are_those_of_a_real_vllm(outcomes: dict[str, Future[Any]]) -> None:
    """Every answer, streamed or not, refusals included."""
    assert outcomes["answers"].result() == RECORDED["answers"]


def test_metrics_are_those_of_a_real_vllm(outcomes: dict[str, Future[Any]]) -> None:
    """Running and waiting while slots are full, while clients give up, and while nothing moves."""
    assert outcomes["load"].result() == RECORDED["load"]


def test_process_tree(outcomes: dict[str, Future[Any]]) -> None:
    """The titles that a supervisor sees, and little memory."""
    seen = outcomes["looks"].result()
    (head, worker) = seen["titles"]
    assert {CORE, TP0} < head
    assert len(head) == 3
    assert TP1 in worker
    assert len(worker) == 2
    assert sorted(comm for comm in seen["comms"] if comm.startswith("VLLM")) == [
        "VLLM::EngineCor", "VLLM::Worker_TP", "VLLM::Worker_TP",
    ]  # fmt: skip
    assert max(seen["pss"]) < 40_000


def test_outside_a_container_children_survive(outcomes: dict[str, Future[Any]]) -> None:
    """What no pid namespace ends stays: orphans that hold ports, or even serve."""
    assert outcomes["head_orphans"].result() == {"left": {CORE, TP0}, "held": True, "worker": None}
    assert outcomes["worker_orphan"].result() == {"left": {TP1}, "chat": 200}


def test_worker_serves_through_its_grace(outcomes: dict[str, Future[Any]]) -> None:
    assert outcomes["worker_terminated"].result() == {"meanwhile": 200, "code": 0, "left": {}, "then": 500}


def test_terminated_head_may_tell_its_clients(outcomes: dict[str, Future[Any]]) -> None:
    assert outcomes["head_terminated"].result() == {"stream": "[DONE]", "whole": 500, "code": 0}


def test_three_ranks(outcomes: dict[str, Future[Any]]) -> None:
    """Every rank takes part in every answer."""
    assert outcomes["three_ranks"].result() == {"chat": 200, "then": 500, "head": 0}


def test_injected_starts(outcomes: dict[str, Future[Any]]) -> None:
    """The CONTRACT_* variables that README.md describes."""
    assert outcomes["hanging_start"].result() == {"health": 0, "codes": [None, None]}
    assert outcomes["failing_start"].result() == {"codes": [1, 1]}
    assert outcomes["slow_start"].result() > 2
    assert outcomes["wrong_answer"].result() == "Something else."
    seen = outcomes["unknown_variable"].result()
    assert seen["code"] == 1
    assert "unknown variable CONTRACT_TYPO" in seen["said"]


def test_a_key_guards_what_it_guards_in_vllm(outcomes: dict[str, Future[Any]]) -> None:
    """As vLLM 0.32 does (vllm/entrypoints/serve/middleware/authenticate.py): by the beginning of the path."""
    assert outcomes["with_key"].result() == {
        "/v1/models": (401, 401, 200),
        "/v1/nothing": (401, 401, 404),
        "/v2": (401, 401, 404),
        "/health": (200, 200, 200),
        "/metrics": (200, 200, 200),
        "/version": (200, 200, 200),
        "/nothing": (404, 404, 404),
        "chat": 200,
        "refused": (401, '{"error":"Unauthorized"}'),
    }


def test_a_long_prompt_moves_no_counter(outcomes: dict[str, Future[Any]]) -> None:
    """As in vLLM: prompt tokens are counted when the prompt is read, so only the KV cache tells progress."""
    result = outcomes["long_prompt"].result()
    first, second = result["seen"]
    assert first[:2] == second[:2] == [1, 0]
    assert 0 < first[2] < second[2]
    assert result["chat"] == 200
    assert result["then"] > 8000


# ---------------------------------------------------------------- without a process


def test_knows_every_flag_of_the_stacks() -> None:
    """A knob whose flag the engine does not know would end each lab start with exit code 2."""
    known = runpy.run_path(str(PROGRAM))["parser"]()._option_string_actions
    flags = {knob.flag.name for knob in KNOBS.values() if knob.flag}
    assert flags <= set(known)


def test_program_is_checked_like_the_rest() -> None:
    """It has no suffix, so nobody else gives it to the linter."""
    for words in (["check", "--quiet"], ["format", "--check", "--quiet"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *words, str(PROGRAM)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "Stand-in (contract engine) for vLLM" in PROGRAM.read_text().splitlines()[1]
