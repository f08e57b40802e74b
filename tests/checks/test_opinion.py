"""When the engine is asked about a launch, what it is asked, and what its recorded answers come to."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checks import opinion
from checks.opinion import Opinion, Place
from checks.outlook import rank_text
from facts.values import STATUS, Unknown, UnknownFact
from operations import engine_side
from operations.opinion import command_line
from spec import render
from spec.cluster import Cluster
from tests import repository
from tests.plan.world import GIB, World, converged, fresh
from tests.unit import pair

RECORDED = json.loads((Path(__file__).parent / "recorded" / "opinion.json").read_text())["lines"]
FIX = "state what this image's engine takes, or the image that takes it; docs/knobs.md has every knob"
MIB = 2**20


def cluster(**more: Any) -> Cluster:
    return pair.cluster({**pair.UPSTREAM, **more})


def read(name: str, **more: Any) -> Opinion:
    return opinion.read(cluster(**more), RECORDED[name])


def refused(found: Opinion) -> list[str]:
    assert all(verdict.where == "" and verdict.fix == FIX for verdict in found.refusals)
    return [verdict.statement for verdict in found.refusals]


# What it says


def test_all_is_taken() -> None:
    found = read("taken")
    assert (found.refusals, found.doubts) == ((), ())
    assert (found.engine, found.peak_mib) == ("0.32.0", 532)


def test_both_ranks_saying_the_same_is_said_once_and_each_flag_by_its_knob() -> None:
    first, second = refused(read("two flags", kv_cache_dtype="fp9"))
    assert first.startswith(
        'kv_cache_dtype = "fp9" (--kv-cache-dtype, both ranks): the engine refuses it: '
        "argument --kv-cache-dtype: invalid choice: 'fp9' (choose from 'auto', 'bfloat16',"
    )
    assert second == (
        "kda_prefill_backend (--kda-prefill-backend, both ranks): the engine refuses it: argument "
        "--kda-prefill-backend: invalid choice: 'x' (choose from 'auto', 'triton', 'flashkda', 'flashinfer', 'fused')"
    )


def test_flags_that_it_does_not_know() -> None:
    assert refused(read("unknown flags")) == [
        "mixed_prefill_token_cap and mixed_prefill_decode_weight (both ranks): the engine refuses it: "
        "unrecognized arguments: --mixed-prefill-token-cap 3 --mixed-prefill-decode-weight 2"
    ]


def test_an_abbreviated_flag_is_its_knobs() -> None:
    assert refused(read("an abbreviated flag", kv_cache_memory_bytes=2**30)) == [
        "kv_cache_memory_bytes = 1073741824 (--kv-cache-memory, both ranks): the engine refuses it: "
        "argument --kv-cache-memory-bytes: Value x cannot be converted to <function human_readable_int>."
    ]


@pytest.mark.parametrize(
    ("name", "more", "begin"),
    [
        (
            "a tool parser",
            {"tool_call_parser": "nope"},
            'tool_call_parser = "nope" (--tool-call-parser, rank 0): the engine refuses it: '
            "invalid tool call parser: nope (chose from { apertus,",
        ),
        (
            "a reasoning parser",
            {"reasoning_parser": "nope"},
            'reasoning_parser = "nope" (--reasoning-parser, rank 0): the engine refuses it: '
            "Reasoning parser 'nope' not found. Available parsers: cohere_command3,",
        ),
        (
            "speculation",
            {"speculative_method": "ngram", "speculative_tokens": 3},
            'speculative_method = "ngram" (--speculative-config, both ranks): the engine refuses it: '
            'argument --speculative-config/-sc: Value {"method": cannot be converted to <function loads>.',
        ),
        (
            "variables",
            {"engine_env": ["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=abc"]},
            "engine_env (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS): the engine refuses it: "
            "invalid literal for int() with base 10: 'abc'",
        ),
        (
            "a chat template",
            {"chat_template": "none.jinja"},
            'chat_template = "none.jinja" (--chat-template, both ranks): the engine refuses it: The supplied chat '
            "template string (/models/tiny/none.jinja) appears path-like, but doesn't exist! Tried:",
        ),
    ],
)
def test_what_is_checked_after_parsing(name: str, more: dict[str, Any], begin: str) -> None:
    (text,) = refused(read(name, **more))
    assert text.startswith(begin)


@pytest.mark.parametrize(
    ("name", "doubt"),
    [
        ("a variable that breaks it", "it does not even take the model alone: Unable to configure handler 'vllm'"),
        ("no time", "it gave no answer within 1 s"),
        ("no weights", "what depends on the model: the weights are not on that node yet"),
    ],
)
def test_unknown_is_told_and_refuses_nothing(name: str, doubt: str) -> None:
    found = read(name)
    assert (found.refusals, found.doubts) == ((), (doubt,))


MARK, EXIT = opinion.MARK, opinion.EXIT
WARNING = "WARNING: Your kernel does not support memory limit capabilities or the cgroup is not mounted."


@pytest.mark.parametrize(
    ("lines", "doubt"),
    [
        ([], "the node said nothing of how it went"),
        (["Connection closed"], "the node said nothing of how it went: Connection closed"),
        (
            [WARNING, "", f"{EXIT}137"],
            "the container was killed, as by its memory limit of 1536 MiB",
        ),
        ([f"{EXIT}75"], "other runs kept asking on that node"),
        ([f"{EXIT}76"], "less than the 2560 MiB that must be there was available when its turn came"),
        ([f'{MARK}{{"ranks": [[], []], "peak_mib": 1e999}}'], "its answer is damaged: OverflowError("),
        ([f'{MARK}{{"ranks": [[], []], "seconds": 1e999}}'], "its answer is damaged: ValueError("),
        ([f'{MARK}{{"ranks": [[], []], "unsure": "abc"}}'], "its answer is damaged: TypeError("),
        ([f"{EXIT}124"], "the container gave no answer in time and was ended"),
        (
            ["docker: Error response from daemon: No such image", f"{EXIT}125"],
            "docker ended with exit code 125: docker: Error response from daemon: No such image",
        ),
        ([f"{MARK}{{", f"{EXIT}0"], "its answer is damaged: JSONDecodeError("),
        ([f"{MARK}[]", f"{EXIT}0"], "its answer is damaged: AttributeError("),
        ([f'{MARK}{{"ranks": [[[1]], []]}}'], "its answer is damaged: "),
        ([f'{MARK}{{"ranks": [[]]}}'], "it answered for 1 of 2 ranks"),
        ([f"{MARK}{{}}"], "it answered for 0 of 2 ranks"),
        (
            [f'{MARK}{{"trouble": "it was killed (signal 9): it said nothing", "signal": 9}}'],
            "it was killed (signal 9): it said nothing (its memory limit is opinion_memory_mib = 1536)",
        ),
    ],
)
def test_what_is_no_answer(lines: list[str], doubt: str) -> None:
    found = opinion.read(cluster(), lines)
    assert found.refusals == ()
    assert len(found.doubts) == 1
    assert found.doubts[0].startswith(doubt)


def test_paths_that_are_not_there() -> None:
    answer = {"ranks": [[], []], "missing": [["--chat-template", "/x.jinja"], ["A_FILE", "/etc/a"]]}
    found = opinion.read(cluster(), [MARK + json.dumps(answer)])
    assert refused(found) == ["chat_template (--chat-template): /x.jinja is not there in the container"]
    assert found.doubts == ("A_FILE (engine_env) names /etc/a, which is not there in the container",)


def test_what_no_knob_writes() -> None:
    answer = {"ranks": [[[["--nnodes"], "argument --nnodes: no"]], [[[], "something else"]]]}
    assert refused(opinion.read(cluster(), [MARK + json.dumps(answer)])) == [
        "--nnodes, rank 0 (no knob: the stack vllm writes it): the engine refuses it: argument --nnodes: no",
        "the arguments of rank 1: the engine refuses it: something else",
    ]


@pytest.mark.parametrize("stack", [{}, {"stack": "vllm"}])
def test_every_flag_of_a_stack_leads_to_its_knob(stack: dict[str, str]) -> None:
    """But for those by which the ranks find each other."""
    one = pair.cluster({**pair.UPSTREAM, **stack} if stack else {})
    flags = {group[0] for node in one.nodes for group in one.launch(node).command[1:]}
    ours = {"--distributed-executor-backend", "--nnodes", "--node-rank", "--master-addr", "--headless"}
    assert {flag for flag in flags if opinion.knob_of_flag(flag) is None} == ours


# When and where


def hash_of(world: World) -> str:
    return str(world.head["documents"][STATUS]["json"]["accepted"])


def test_it_is_due_when_the_launch_is_another_than_the_one_accepted() -> None:
    world = converged(cluster())
    texts = [render.rank_text(world.cluster, node) for node in world.cluster.nodes]
    other = [texts[0], texts[1].replace('"8000"', '"8001"')]
    assert not opinion.is_due(world.cluster, world.facts(), hash_of(world), texts)
    assert opinion.is_due(world.cluster, world.facts(), "1" * 64, other)
    assert opinion.is_due(world.cluster, world.facts(), None, other)
    assert not opinion.is_due(world.cluster, world.facts(), "1" * 64, texts), "other weights, the same arguments"
    assert not opinion.is_due(world.cluster, world.facts(), None, texts), "weights that were touched"
    del world.head["texts"][rank_text(1)]
    assert opinion.is_due(world.cluster, world.facts(), "1" * 64, texts)
    world.head["documents"][STATUS] = {"error": "damaged"}
    with pytest.raises(UnknownFact):
        opinion.is_due(world.cluster, world.facts(), "1" * 64, texts)


def test_the_node_with_most_to_spare_is_asked() -> None:
    world = converged(cluster())
    head, worker = world.cluster.nodes
    world.head["memory"]["MemAvailable"] = 3 * GIB
    world.worker["memory"]["MemAvailable"] = 3 * GIB + 1
    found = opinion.place(world.cluster, world.facts())
    caches = ("/root/.triton", "/root/.cache/flashinfer", "/root/.cache/vllm")
    assert found == Place(worker, ((worker.weights_path, "/models/tiny"),), has_weights=True, scratch=caches)
    world.worker["docker"]["images"] = {world.cluster.image: None}
    found = opinion.place(world.cluster, world.facts())
    assert isinstance(found, Place)
    assert found.node == head


def test_a_node_that_has_the_weights_itself_is_asked_where_it_can_be() -> None:
    """What the other one reads over NFS is not looked into."""
    world = converged(pair.cluster({**pair.UPSTREAM, "weights": "nfs"}))
    world.head["memory"]["MemAvailable"], world.worker["memory"]["MemAvailable"] = 90 * GIB, 60 * GIB
    where = opinion.place(world.cluster, world.facts())
    assert isinstance(where, Place)
    assert (where.node.name, where.has_weights) == ("spark-b", True)
    world.worker["memory"]["MemAvailable"] = 2**20
    where = opinion.place(world.cluster, world.facts())
    assert isinstance(where, Place)
    assert (where.node.name, where.has_weights) == ("spark-a", False)


def test_below_the_floor_none_is_asked() -> None:
    world = converged(cluster())
    world.head["memory"]["MemAvailable"] = 2 * GIB
    world.worker["memory"]["MemAvailable"] = 2560 * MIB - 1
    assert opinion.place(world.cluster, world.facts()) == (
        "spark-b has 2559 MiB of memory available, and the question may take 1536 (opinion_memory_mib) of 2560 that "
        "must be there"
    )
    world.worker["memory"]["MemAvailable"] = 2560 * MIB
    assert isinstance(opinion.place(world.cluster, world.facts()), Place)


def test_a_value_of_engine_env_is_not_repeated() -> None:
    """Not even where the engine's own reader repeats it."""
    secret = "hf_abcdefgh"
    answer = {"ranks": [[], []], "variables": [["MY_LEVEL", f"invalid literal for int(): '{secret}'"]]}
    found = opinion.read(cluster(engine_env=[f"MY_LEVEL={secret}"]), [MARK + json.dumps(answer)])
    assert [verdict.statement for verdict in found.refusals] == [
        "engine_env (MY_LEVEL): the engine refuses it: invalid literal for int(): '(its value)'"
    ]


@pytest.mark.parametrize(("available", "code"), [(2621440, 0), (2621439, 76)])
def test_the_floor_is_looked_at_again_when_its_turn_comes(tmp_path: Path, available: int, code: int) -> None:
    """By the very words of the line, on a /proc/meminfo of our own."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 9999999 kB\nMemAvailable: {available} kB\n")
    line = command_line(cluster().image, 1536, 2560 * MIB, Place(cluster().head, (), True))
    words = next(word for word in shlex.split(line) if word.startswith("awk "))
    told = words.replace("/proc/meminfo", str(tmp_path / "meminfo"))
    assert subprocess.run(["sh", "-c", told, "x", "true"], check=False).returncode == code


def test_an_operator_may_say_not_to_ask() -> None:
    """It stays unknown, and the plan says so."""
    world = converged(pair.cluster({**pair.UPSTREAM, "ask_the_engine": False}))
    assert opinion.place(world.cluster, world.facts()) == "ask_the_engine is False"


def test_without_image_or_facts_none_is_asked() -> None:
    world = fresh(cluster())
    assert opinion.holders(world.cluster, world.facts()) == []
    assert opinion.place(world.cluster, world.facts()) == "its image is on no node"
    world = converged(cluster())
    for node in (world.head, world.worker):
        node["memory"] = {"error": "no meminfo"}
    assert isinstance(world.facts()["spark-a"].memory_available, Unknown)
    assert opinion.place(world.cluster, world.facts()) == "the memory available could not be read"


# What is asked


def test_the_question_holds_no_secret_and_nothing_of_the_network() -> None:
    more = ["HF_TOKEN=hf_secret", "OPENAI_API_KEY=sk", "A=/b", "VLLM_LOGGING_LEVEL=INFO", "L=/c:/d", "T=/tmp/e"]
    one = cluster(engine_env=more)
    where = Place(one.head, ((one.head.weights_path, "/models/tiny"),), has_weights=True)
    asked = opinion.question(one, where)
    assert "secret" not in json.dumps(asked)
    assert not {name for name in asked["env"] if name.startswith(("NCCL", "GLOO"))}
    assert {"HF_TOKEN", "OPENAI_API_KEY"}.isdisjoint(asked["env"])
    assert asked["variables"] == ["A", "L", "T", "VLLM_LOGGING_LEVEL"]
    # The cache is not mounted, and /tmp is this container's own.
    assert asked["paths"] == [["A", "/b"]]
    assert [rank[0] for rank in asked["ranks"]] == [["vllm", "serve", "/models/tiny"]] * 2
    assert ["--headless"] in asked["ranks"][1]


def test_paths_below_weights_that_are_not_there_are_not_looked_for() -> None:
    one = cluster(chat_template="a.jinja")
    assert opinion.question(one, Place(one.head, (), has_weights=False))["paths"] == []
    where = Place(one.head, ((one.head.weights_path, "/models/tiny"),), has_weights=True)
    assert opinion.question(one, where)["paths"] == [["--chat-template", "/models/tiny/a.jinja"]]


def test_the_container_has_no_gpu_no_network_and_a_limit() -> None:
    one = cluster()
    line = command_line(one.image, 1536, 2560 * MIB, Place(one.head, (("/w", "/models/w"),), True, ("/cache",)))
    for words in (
        "flock --wait 150 --conflict-exit-code 75 /run/lock/sparkpair-opinion.lock sh -c ",
        "{ exit ($2 < 2621440) }",
        " sparkpair-opinion timeout --kill-after=10 150 docker",
        "run --rm -i --name sparkpair-opinion-",
        "--pull never",
        "--network none --read-only --tmpfs /tmp:size=64m --tmpfs /cache:size=16m",
        "--memory 1536m --memory-swap 1536m --oom-score-adj 1000",
        "--mount type=bind,source=/w,target=/models/w,readonly",
        f"--entrypoint python3 {one.image} -c ",
    ):
        assert words in line
    assert "--gpus" not in line
    assert "sparkpair-engine" not in line, "that slice is killed as a whole"


# The program, with the contract engine's parser

SITE = repository.ROOT / "lab" / "contract_engine" / "site"


def ask(tmp_path: Path, site: Path = SITE, **more: Any) -> Opinion:
    one = cluster(tool_call_parser="glm47", reasoning_parser="glm45")
    where = Place(one.head, (), has_weights=True)
    program = Path(engine_side.__file__).read_text()
    asked = {**opinion.question(one, where), "program": program, "bootstrap": engine_side.BOOTSTRAP, **more}
    environment = {
        **os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1",
        "CONTRACT_PROGRAM": str(repository.ROOT / "lab" / "contract_engine" / "vllm"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", engine_side.BOOTSTRAP, "watch"],
        input=json.dumps(asked), capture_output=True, text=True, env=environment, cwd=tmp_path, check=True,
    )  # fmt: skip
    return opinion.read(one, done.stdout.splitlines())


def fake(tmp_path: Path, serve: str, main: str = "def main(): pass\n") -> Path:
    """A package of that name with other contents."""
    place = tmp_path / "site" / "vllm" / "entrypoints" / "cli"
    place.mkdir(parents=True)
    (place / "serve.py").write_text(serve)
    (place / "main.py").write_text(main)
    return tmp_path / "site"


def test_the_contract_engine_takes_a_launch(tmp_path: Path) -> None:
    found = ask(tmp_path)
    assert (found.refusals, found.doubts, found.engine) == ((), (), "0.32.0")


def test_every_flag_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    head = ["vllm", "serve", "/models/tiny"]
    ranks = [
        [head, ["--max-num-seqs", "many"], ["--port", "http"], ["--no-such-flag", "1"]],
        [head, ["--max-num-seqs", "many"], ["--headless"]],
    ]
    assert refused(ask(tmp_path, ranks=ranks)) == [
        "max_num_seqs (--max-num-seqs, both ranks): the engine refuses it: argument --max-num-seqs: invalid int value: "
        "'many'",
        "api_port = 8000 (--port, rank 0): the engine refuses it: argument --port: invalid int value: 'http'",
        "--no-such-flag, rank 0 (no knob: the stack vllm writes it): the engine refuses it: "
        "unrecognized arguments: --no-such-flag 1",
    ]


def test_an_image_without_vllm_is_unknown(tmp_path: Path) -> None:
    found = ask(tmp_path, site=tmp_path)
    assert found.refusals == ()
    assert found.doubts[0].startswith("the image's vllm cannot be asked (ModuleNotFoundError: No module named 'vllm")


SERVE = "class ServeSubcommand:\n    @staticmethod\n    def cmd(args): pass\n"


def test_a_command_that_does_not_serve_is_unknown(tmp_path: Path) -> None:
    found = ask(tmp_path, site=fake(tmp_path, SERVE))
    assert found.refusals == ()
    assert "its command line read the arguments and did not come to serve" in found.doubts


def test_an_engine_that_refuses_everything_is_unknown(tmp_path: Path) -> None:
    """As one would that needs a GPU to know its own arguments."""
    main = "def main(): raise ValueError('Failed to infer device type')\n"
    found = ask(tmp_path, site=fake(tmp_path, SERVE, main))
    assert found.refusals == ()
    assert "it does not even take the model alone: Failed to infer device type" in found.doubts


@pytest.mark.parametrize(
    ("main", "doubt"),
    [
        ("def main():\n import os, signal\n os.kill(os.getpid(), 9)\n", "it was killed (signal 9): it said nothing ("),
        ("import os\nos._exit(3)\n", "it ended with exit code 3: it said nothing"),
        ("import time\ntime.sleep(60)\n", "it gave no answer within 1 s"),
    ],
)
def test_one_that_is_ended_is_unknown(tmp_path: Path, main: str, doubt: str) -> None:
    found = ask(tmp_path, site=fake(tmp_path, SERVE, main), seconds=1 if "sleep" in main else 60)
    assert found.refusals == ()
    assert found.doubts[0].startswith(doubt)


def test_paths_are_looked_for_whatever_the_engine_says(tmp_path: Path) -> None:
    paths = [["--chat-template", "/nowhere/a.jinja"], ["--chat-template", str(tmp_path)]]
    found = ask(tmp_path, site=tmp_path, paths=paths)
    assert refused(found) == ["chat_template (--chat-template): /nowhere/a.jinja is not there in the container"]
