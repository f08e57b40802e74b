"""Over the whole space of settings: whatever loads renders, and what is rendered says again what was stated."""

from __future__ import annotations

import json
import re
import string
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyinfra.api.exceptions import DeployError

from node import service, wire
from spec import render
from spec.cluster import Cluster
from spec.kinds import (
    Address,
    Commit,
    ControlPath,
    Endpoint,
    Hours,
    Image,
    Kind,
    Licences,
    Name,
    Network,
    NodePath,
    Number,
    OneOf,
    Pairs,
    Prefix,
    Repository,
    Revision,
    Several,
    Size,
    Switch,
    Whole,
    WholeOr,
    Words,
)
from spec.knobs import KNOBS, Cost, Knob
from spec.presets import values_of
from tests.unit import pair

WORD = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=12).filter(
    lambda text: text[0].isalnum()
)
LINE = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=40)


def values(kind: Kind) -> st.SearchStrategy[Any]:
    """Values that a kind takes, at its bounds too."""
    match kind:
        case Whole(low, high):
            return st.integers(low, high) | st.sampled_from([low, high])
        case Number(low, high, above):
            numbers = st.floats(low if low is not None else above, high, exclude_min=low is None, allow_nan=False)
            return numbers | st.just(high)
        case WholeOr(low, high, word):
            return st.integers(low, high) | st.just(word)
        case Switch():
            return st.booleans()
        case OneOf(words):
            return st.sampled_from(words)
        case Name():
            return WORD
        case Words():
            return LINE.filter(lambda text: bool(text.strip()))
        case NodePath():
            parts = st.lists(WORD, min_size=1, max_size=3).map("/".join)
            return st.tuples(st.sampled_from(["/", "~/"]), parts).map("".join)
        case Image():
            return st.text("0123456789abcdef", min_size=64, max_size=64).map(
                "registry.example:5000/a/b@sha256:{}".format
            )
        case Pairs():
            names = st.text(string.ascii_uppercase, min_size=1, max_size=8).map("X_{}".format)
            return st.dictionaries(names, LINE | st.just(""), max_size=3).map(
                lambda table: [f"{name}={value}" for name, value in table.items()]
            )
        case Size():
            return st.integers(1, 999).map("{}g".format)
        case Address():
            return st.sampled_from(["0.0.0.0", "127.0.0.1", pair.HEAD["ssh_hostname"], "10.200.0.1"])
        case Network():
            return st.sampled_from(["10.200.0.0/16", "172.20.0.0/22"])
        case Repository():
            return st.tuples(WORD, WORD).map("/".join).filter(lambda text: ".." not in text and "--" not in text)
        case Commit():
            return st.text("0123456789abcdef", min_size=40, max_size=40)
        case Revision():
            return st.sampled_from(["main", "refs/pr/7", "v1.0", "0" * 40])
        case Endpoint():
            return st.sampled_from(["https://huggingface.co", "http://192.168.1.5:8080/hub"])
        case ControlPath():
            return WORD | st.just("/srv/locks/pair.lock")
        case Licences():
            return st.sampled_from(["cc-by-nc-nd-4.0", "mit,other"])
        case Hours():
            return st.sampled_from(["03:00-05:00", "23:30-00:15"])
        case Prefix():
            return st.text("0123456789abcdef", min_size=8, max_size=64)
        case Several(words):
            return st.lists(st.sampled_from(words), min_size=1, unique=True).map(",".join)
    raise AssertionError(f"no values for {kind}")


def states(knob: Knob) -> st.SearchStrategy[Any]:
    """A value, and the other states that the knob has."""
    found = values(knob.kind)
    if knob.may_be_empty:
        found |= st.just("")
    return found


def _of_stack(stack: str) -> st.SearchStrategy[dict[str, Any]]:
    fitting = {
        name: states(knob)
        for name, knob in KNOBS.items()
        if name not in ("stack", "tensor_parallel_size") and (knob.only is None or knob.only.stack == stack)
    }
    must = {**(pair.UPSTREAM if stack == "vllm" else {}), "stack": stack}
    some = st.lists(st.sampled_from(list(fitting)), max_size=12, unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: fitting[name] for name in names})
    )
    return some.map(lambda chosen: {**must, **chosen})


def stated() -> st.SearchStrategy[dict[str, Any]]:
    """What an operator may state: a stack, what that stack must be told, and some other knobs."""
    return _of_stack("vllm-exl3") | _of_stack("vllm")


def loaded(everywhere: dict[str, Any], more: int = 0) -> Cluster:
    """The pair with these settings. Knobs that a rule between knobs names are taken out of `everywhere` until the rest
    is allowed, so that what is left is as large a part of the space as the rules leave."""
    while True:
        try:
            return pair.cluster(everywhere, more=more)
        except DeployError as refused:
            named = [name for name in everywhere if name not in MUST and re.search(rf"\b{name}\b", str(refused))]
            if not named:
                assume(False)
                raise
            del everywhere[named[-1]]


MUST = {"stack", *pair.UPSTREAM}


def read_flags(words: list[str]) -> dict[str, str | None]:
    """A reader of the engine's command line: every flag once, with its value if one follows."""
    flags: dict[str, str | None] = {}
    for index, word in enumerate(words):
        if word.startswith("--"):
            assert word not in flags, f"{word} is there twice"
            following = words[index + 1] if index + 1 < len(words) else "--"
            flags[word] = None if following.startswith("--") else following
    return flags


def same(value: object, text: str) -> bool:
    """Whether a text on the command line says the value."""
    return float(text) == value if isinstance(value, int | float) else text == value


@given(stated(), st.integers(0, 2))
def test_whatever_loads_renders_and_reads_back(everywhere: dict[str, Any], more: int) -> None:
    """The programs on the node read every text; every stated flag is there with its value, and no other of a knob."""
    cluster = loaded(everywhere, more)
    service.parse(render.service_text(cluster))
    spelled = {"--kv-cache-memory-bytes": "--kv-cache-memory"} if cluster.stack.name == "vllm-exl3" else {}
    for node in cluster.nodes:
        render.netplan_text(cluster, node)
        spec = wire.parse_rank(render.rank_text(cluster, node))
        words = [word for group in spec.command for word in group]
        flags = read_flags(words)
        environment = {name: value for name, value in spec.env if isinstance(value, str)}
        for name, value in {**values_of(everywhere.get("preset")), **everywhere}.items():
            knob = KNOBS[name]
            silent = value == "" or value is False or (name == "kv_cache_memory_bytes" and value == "auto")
            if knob.flag is not None and silent:
                assert spelled.get(knob.flag.name, knob.flag.name) not in flags
            elif knob.flag:
                written = flags[spelled.get(knob.flag.name, knob.flag.name)]
                if name == "chat_template":
                    value = f"{words[2]}/{value}"
                assert written is None if value is True else written is not None and same(value, written)
            for variable in knob.env.names if knob.env else ():
                if value == "":
                    assert variable not in environment
                else:
                    assert environment[variable] == {True: "1", False: "0"}.get(value, str(value))
        for item in everywhere.get("engine_env", ()):
            key, _, rest = item.partition("=")
            assert environment[key] == rest
        known = {spelled.get(knob.flag.name, knob.flag.name) for knob in KNOBS.values() if knob.flag}
        assert set(flags) - known <= {
            "--host", "--speculative-config", "--enable-auto-tool-choice", "--default-chat-template-kwargs",
            "--headless", "--distributed-executor-backend", "--nnodes", "--node-rank", "--master-addr", "--master-port",
        }  # fmt: skip


@settings(max_examples=50)
@given(stated())
def test_ranks_differ_only_where_they_must(everywhere: dict[str, Any]) -> None:
    """Same image, same flags; the worker's command is the head's with its own rank, and no API."""
    cluster = loaded(everywhere)
    head, worker = (wire.parse_rank(render.rank_text(cluster, node)) for node in cluster.nodes)
    assert (head.image, head.name, head.container) == (worker.image, worker.name, worker.container)
    expected = [("--node-rank", "1") if group == ("--node-rank", "0") else group for group in head.command]
    assert [*expected, ("--headless",)] == list(worker.command)
    own = {
        "VLLM_HOST_IP", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME",
        "TP_SOCKET_IFNAME", "MN_IF_NAME", "VLLM_API_KEY",
    }  # fmt: skip
    assert [pair for pair in head.env if pair[0] not in own] == [pair for pair in worker.env if pair[0] not in own]


@settings(max_examples=50)
@given(stated(), st.data())
def test_what_costs_no_restart_moves_no_launch(everywhere: dict[str, Any], data: st.DataObject) -> None:
    """A knob that restarts nothing leaves every rank's text, and so the engine hash, as it was."""
    cheap = [knob for knob in KNOBS.values() if knob.cost in (Cost.NOTHING, Cost.SERVICE, Cost.FABRIC)]
    knob = data.draw(st.sampled_from(cheap))
    before = loaded(everywhere)
    after = loaded({**everywhere, knob.name: data.draw(states(knob))})
    for old, new in zip(before.nodes, after.nodes, strict=True):
        assert render.rank_text(before, old) == render.rank_text(after, new)


@settings(max_examples=50)
@given(stated(), st.data())
def test_what_costs_a_restart_says_so(everywhere: dict[str, Any], data: st.DataObject) -> None:
    """Conversely: a flag or variable that is turned to another value changes every rank's text."""
    turnable = [knob for knob in KNOBS.values() if (knob.flag or knob.env) and f"{knob.name}" in everywhere]
    assume(bool(turnable))
    knob = data.draw(st.sampled_from(turnable))
    value = data.draw(values(knob.kind))
    before = loaded(everywhere)
    after = loaded({**everywhere, knob.name: value})
    old, new = getattr(before.knobs, knob.name), getattr(after.knobs, knob.name)

    def silent(value: object) -> bool:
        """Left to the engine: nothing, an empty text, the word for it, or a switch that is off."""
        return knob.leaves_it_to_the_engine(value) or (knob.flag is not None and value is False)

    assume(old != new and not (silent(old) and silent(new)))
    texts = [
        (render.rank_text(before, a), render.rank_text(after, b))
        for a, b in zip(before.nodes, after.nodes, strict=True)
    ]
    assert all(old_text != new_text for old_text, new_text in texts)


@settings(max_examples=50)
@given(stated(), stated(), st.booleans())
def test_the_engine_hash_is_that_of_the_texts(one: dict[str, Any], other: dict[str, Any], related: bool) -> None:
    """It differs exactly where some rank's text does, or the content that a rank reads."""
    before = loaded(dict(one))
    after = loaded({**other, **one} if related else dict(other))
    identities = [["a" * 64, "b" * 64], ["a" * 64, "b" * 64]]

    def texts(cluster: Cluster) -> list[str]:
        return [render.rank_text(cluster, node) for node in cluster.nodes]

    hashes = [render.engine_hash(texts(cluster), identities) for cluster in (before, after)]
    assert (hashes[0] == hashes[1]) is (texts(before) == texts(after))
    assert render.engine_hash(texts(before), [["a" * 64, "b" * 64], ["a" * 64, "c" * 64]]) != hashes[0]


@given(LINE)
def test_free_text_survives(prompt: str) -> None:
    """A prompt arrives at the keeper character by character."""
    assume(bool(prompt.strip()))
    cluster = pair.cluster({"canary_prompt": prompt})
    assert json.loads(render.service_text(cluster).encode("utf-8"))["canary"]["prompt"] == prompt
