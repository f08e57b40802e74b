"""Verify's statements: true of a converged pair, each false for its own reason, none true for want of an answer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import pytest

from checks import api, api_key, converged, rails, staging
from checks.verdict import Verdict
from facts.api import Answer
from facts.values import STATUS, Unknown
from node import wire
from spec import objects
from spec.render import netplan_text, rank_text, service_text
from tests.plan.world import World, digest, programs, unit
from tests.plan.world import converged as converged_world
from tests.unit import pair

Change = Callable[[World], None]


def world(knobs: Mapping[str, object] = pair.UPSTREAM) -> World:
    return converged_world(pair.cluster(knobs))


def told(here: World) -> list[Verdict]:
    """Everything that is said of the nodes; the API is asked by others."""
    cluster, facts = here.cluster, here.facts()
    code = {path: hashlib.sha256(data).hexdigest() for path, data in programs().items()}
    found: list[Verdict] = []
    for node in cluster.nodes:
        files = {
            objects.RANK_FILE: digest(rank_text(cluster, node)),
            objects.NETPLAN_FILE: digest(netplan_text(cluster, node)),
        }
        found += rails.are_set_up(cluster, node, facts[node.name])
        found += staging.docker(node, facts[node.name])
        found += converged.installed(node, facts[node.name], files, code)
    found += converged.weights_agree(cluster, facts)
    engine = here.head["docker"]["containers"][0]["labels"]["sparkpair.engine"]
    found += converged.ranks_run(cluster, facts, engine)
    service = digest(service_text(cluster))
    found += converged.keeper_agrees(cluster.head, facts["spark-a"], wire.programs_hash(programs()), service, engine)
    return found


@pytest.mark.report("NET-09")
def test_a_converged_pair_is_said_to_be() -> None:
    found = told(world())
    assert [verdict.statement for verdict in found if not verdict.holds] == []
    assert len(found) == 17


def no_rank(here: World) -> None:
    here.worker["docker"]["containers"] = []


def other_rank(here: World) -> None:
    here.worker["docker"]["containers"][0]["labels"]["sparkpair.engine"] = "0" * 64


def no_containers_known(here: World) -> None:
    here.worker["docker"]["containers"] = {"error": "Docker answered 500: overloaded"}


CASES: dict[str, tuple[Change, str, bool | None]] = {
    "no carrier": (
        lambda here: here.worker["rails"]["enp1s0f1np1"].update(carrier=False),
        "rail 0 (enp1s0f1np1): no carrier; is the cable seated on both ends?",
        False,
    ),
    "no GID": (
        lambda here: here.worker["hcas"]["rocep1s0f1"]["gids"].pop(),
        "rail 0 (enp1s0f1np1): rocep1s0f1 has no RoCE v2 GID for 10.200.0.2",
        False,
    ),
    "MTU": (
        lambda here: here.worker["links"]["enp1s0f1np1"].update(mtu=1500),
        "rail 0 (enp1s0f1np1): MTU is 1500, wanted 9000",
        False,
    ),
    "links unknown": (
        lambda here: here.worker.update(links={"error": "no ip"}),
        "its links could not be read: no ip",
        None,
    ),
    "a file": (
        lambda here: here.worker["files"][objects.RANK_FILE].update(sha256="0" * 64),
        f"not as wanted: {objects.RANK_FILE}",
        False,
    ),
    "programs": (
        lambda here: here.worker["trees"][objects.LIB].update({"node/x.py": "0" * 64}),
        f"not as wanted: {objects.LIB}",
        False,
    ),
    "agent failed": (
        lambda here: here.worker["units"].update({objects.AGENT_UNIT: unit("failed")}),
        f"{objects.AGENT_UNIT} is failed and enabled, wanted active and enabled",
        False,
    ),
    "agent not enabled": (
        lambda here: here.worker["units"].update({objects.AGENT_UNIT: unit("active", "disabled")}),
        f"{objects.AGENT_UNIT} is active and disabled, wanted active and enabled",
        False,
    ),
    "no rank": (no_rank, "no rank runs", False),
    "another rank": (other_rank, f"rank 1 runs {'0' * 12}, wanted is ", False),
    "containers unknown": (
        no_containers_known,
        "its containers could not be read: Docker answered 500: overloaded",
        None,
    ),
    "weights": (
        lambda here: here.worker["content"]["weights"].update(identity=None),
        "weights in /srv/models/tiny: needs its files hashed",
        False,
    ),
    "resting": (
        lambda here: here.head["documents"][STATUS]["json"].update(phase="resting", reason="6 failures"),
        "the pair is resting: 6 failures",
        False,
    ),
    "stopped": (
        lambda here: here.head["documents"][STATUS]["json"].update(phase="stopped", desired="stop"),
        "the pair is stopped on purpose",
        False,
    ),
    "keeper's code": (
        lambda here: here.head["documents"][STATUS]["json"].update(code="0" * 64),
        "keeper or agent run other programs than those installed",
        False,
    ),
    "keeper's settings": (
        lambda here: here.head["documents"][STATUS]["json"].update(service="0" * 64),
        "the keeper runs with other settings than those wanted",
        False,
    ),
    "keeper unknown": (
        lambda here: here.head["documents"].update({STATUS: {"error": "it is damaged"}}),
        "the keeper's state could not be read: it is damaged",
        None,
    ),
}


@pytest.mark.parametrize(("change", "wanted", "holds"), CASES.values(), ids=list(CASES))
def test_each_fault_is_said(change: Change, wanted: str, holds: bool | None) -> None:
    here = world()
    change(here)
    wrong = [verdict for verdict in told(here) if not verdict.holds]
    assert [(verdict.statement.startswith(wanted), verdict.holds) for verdict in wrong] == [(True, holds)], wrong
    assert wrong[0].fix


class Scripted:
    """A server as the test wants it."""

    def __init__(
        self, served: tuple[str, ...] | Unknown = ("tiny",), locked: int | Unknown = 200, **answers: Answer | Unknown
    ) -> None:
        self.served = served
        self.locked = locked
        self.answers = answers

    def without_key(self) -> int | Unknown:
        return self.locked

    def models(self) -> tuple[str, ...] | Unknown:
        return self.served

    def ask(
        self, prompt: str, max_tokens: int, *, stream: bool = False, thinking: bool | None = None, tools: bool = False
    ) -> Answer | Unknown:
        kind = "tools" if tools else {True: "on", False: "off", None: "stream" if stream else "whole"}[thinking]
        usual = {
            "tools": Answer("", "", (("get_weather", '{"city": "Paris"}'),), "tool_calls"),
            "on": Answer("391", "17*23 is ...", (), "stop"),
        }
        return self.answers.get(kind, usual.get(kind, Answer("It is 391.", "", (), "stop")))


REASONING = {**pair.UPSTREAM, "smoke_expected": "391", "tool_call_parser": "glm47", "reasoning_parser": "glm45"}
NO = Unknown("Connection error.")

API_CASES: dict[str, tuple[Scripted, list[str]]] = {
    "sound": (Scripted(), []),
    "down": (Scripted(NO), ["the API at http://x/v1 does not answer: Connection error."]),
    "another model": (Scripted(("big",)), ["the API at http://x/v1 serves big, wanted tiny"]),
    "a wrong answer": (
        Scripted(whole=Answer("42", "", (), "stop")),
        [
            "smoke, at once: 'What is 17*23? Answer with the number only.' was answered '42', wanted '391'",
        ],
    ),
    "a blank answer": (
        Scripted(whole=Answer(" \n", "", (), "stop")),
        [r"smoke, at once: 'What is 17*23? Answer with the number only.' was answered ' \n', wanted '391'"],
    ),
    "no stream": (Scripted(stream=NO), ["smoke, streaming: no answer: Connection error."]),
    "no tool": (
        Scripted(tools=Answer("It is sunny.", "", (), "stop")),
        ["tool call: wanted get_weather with a city, got 'It is sunny.'"],
    ),
    "arguments that are no JSON": (
        Scripted(tools=Answer("", "", (("get_weather", "{city"),), "tool_calls")),
        ["tool call: wanted get_weather with a city, got get_weather({city)"],
    ),
    "reasoning in the answer": (
        Scripted(off=Answer("<think>hm</think>391", "", (), "stop")),
        ["reasoning off: there is reasoning in '<think>hm</think>391'"],
    ),
    "reasoning although off": (
        Scripted(off=Answer("391", "hm", (), "stop")),
        ["reasoning off: the model reasoned: 'hm'"],
    ),
    "cut off": (Scripted(off=Answer("", "", (), "length")), ["reasoning off: the answer is empty (length)"]),
    "reasoning not in its field": (
        Scripted(on=Answer("<think>hm</think>391", "", (), "stop")),
        ["reasoning on: it did not arrive in its own field; the answer is '<think>hm</think>391'"],
    ),
}


@pytest.mark.parametrize(("server", "wanted"), API_CASES.values(), ids=list(API_CASES))
def test_the_api(server: Scripted, wanted: list[str]) -> None:
    found = list(api.answers(world(REASONING).cluster, "http://x/v1", server))
    assert [verdict.statement for verdict in found if not verdict.holds] == wanted


def test_what_the_model_cannot_do_is_not_asked_for() -> None:
    found = list(api.answers(world().cluster, "http://x/v1", Scripted()))
    assert len(found) == 3


@pytest.mark.parametrize(("text", "holds"), [("I would rather not say.", True), (" \n", False)])
def test_of_any_model_any_text_will_do(text: str, holds: bool) -> None:
    """Upstream vLLM serves what it is given; only the stack that knows its model knows the answer."""
    answer = Answer(text, "", (), "stop")
    found = list(api.answers(pair.cluster(pair.UPSTREAM), "http://x/v1", Scripted(whole=answer, stream=answer)))
    assert [verdict.holds for verdict in found[1:3]] == [holds, holds]
    assert holds or found[1].statement.endswith(r"was answered ' \n', wanted any text")


WITH_KEY = {**pair.UPSTREAM, "require_api_key": True}


@pytest.mark.parametrize(
    ("locked", "statement", "holds"),
    [
        (401, "a request without the key is answered 401", True),
        (200, "the API at http://x/v1 answers 200 to a request without the key, wanted 401", False),
        (NO, "a request without the key: no answer: Connection error.", False),
    ],
)
def test_a_key_is_asked_for(locked: int | Unknown, statement: str, holds: bool) -> None:
    found = list(api.answers(pair.cluster(WITH_KEY), "http://x/v1", Scripted(locked=locked)))
    assert [(verdict.statement, verdict.holds) for verdict in found[1:2]] == [(statement, holds)]
    assert len(found) == 1 + len(list(api.answers(world().cluster, "http://x/v1", Scripted())))


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("it asks for a key (HTTP 401)", api.WITH_KEY),
        ("it asks for another key (HTTP 401)", api.DEPLOY),
        ("Connection error.", api.LOOK),
    ],
)
def test_a_key_that_does_not_fit_has_its_own_remedy(reason: str, fix: str) -> None:
    """The keeper has nothing to say of it, so nobody is sent to ask it."""

    class Locked(Scripted):
        def models(self) -> tuple[str, ...] | Unknown:
            return Unknown(reason)

    found = list(api.answers(world().cluster, "http://x/v1", Locked()))
    assert [(verdict.statement, verdict.fix) for verdict in found] == [
        (f"the API at http://x/v1 does not answer: {reason}", fix)
    ]


@pytest.mark.parametrize(
    ("bind", "place"),
    [
        ("0.0.0.0", api.Place("192.168.1.10", 8000, behind=False)),
        ("192.168.1.10", api.Place("192.168.1.10", 8000, behind=False)),
        ("127.0.0.1", api.Place("127.0.0.1", 8000, behind=True)),
        ("127.0.0.2", api.Place("127.0.0.2", 8000, behind=True)),
        ("10.200.0.1", api.Place("10.200.0.1", 8000, behind=True)),
    ],
)
def test_where_the_api_is(bind: str, place: api.Place) -> None:
    assert api.place(pair.cluster({**pair.UPSTREAM, "api_bind": bind})) == place


def change_key(**values: object) -> Callable[[World], None]:
    def change(here: World) -> None:
        here.head["secrets"][objects.API_KEY_FILE].update(values)

    return change


def key_mode(here: World) -> None:
    here.head["files"][objects.API_KEY_FILE]["mode"] = "644"


def lost_part(here: World) -> None:
    here.head["secrets"] = {"error": "PermissionError: no"}


KEY_CASES: dict[str, tuple[Callable[[World], None], str, bool | None]] = {
    "sound": (lambda _: None, "the API key is in /etc/sparkpair/secrets/api-key, and root's alone", True),
    "missing": (
        change_key(present=False, identity=None),
        "there is no API key in /etc/sparkpair/secrets/api-key",
        False,
    ),
    "useless": (
        change_key(identity=None, trouble="is empty"),
        "the API key cannot be used: /etc/sparkpair/secrets/api-key is empty",
        False,
    ),
    "open": (key_mode, "/etc/sparkpair/secrets/api-key is 644 root:root, wanted 600 root:root", False),
    "unknown": (
        lost_part,
        "the API key in /etc/sparkpair/secrets/api-key could not be read: PermissionError: no",
        None,
    ),
}


@pytest.mark.parametrize(("change", "statement", "holds"), KEY_CASES.values(), ids=list(KEY_CASES))
def test_the_key_is_kept(change: Callable[[World], None], statement: str, holds: bool | None) -> None:
    here = world(WITH_KEY)
    change(here)
    found = list(api_key.kept(here.cluster, here.facts()[here.cluster.head.name]))
    assert [(verdict.statement, verdict.holds) for verdict in found] == [(statement, holds)]
    assert found[0].holds or found[0].fix


def test_without_the_knob_nothing_is_said_of_a_key() -> None:
    here = world()
    assert list(api_key.kept(here.cluster, here.facts()[here.cluster.head.name])) == []
    assert list(api_key.usable(here.cluster, here.facts()[here.cluster.head.name])) == []
