"""The probe's answer as frozen values: recorded ones whole, damaged ones in part, anything without an exception."""

from __future__ import annotations

import copy
import dataclasses
import json
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts.node import from_output
from facts.values import Docker, NodeFacts, Unknown, UnknownFact, item, known, parse

HERE = Path(__file__).parent
RECORDED: dict[str, dict[str, Any]] = {
    name: json.loads((HERE / f"{name}.json").read_text())["answer"] for name in ("head", "worker")
}
# The key in the probe's answer, and the field of NodeFacts that is read from it.
PARTS = {
    "hostname": "hostname",
    "machine": "machine",
    "machine_id": "machine_id",
    "boot_id": "boot_id",
    "files": "files",
    "texts": "texts",
    "trees": "trees",
    "accounts": "accounts",
    "tools": "tools",
    "links": "links",
    "rails": "netdevs",
    "network_files": "mentions",
    "hcas": "hcas",
    "docker": "docker",
    "content": "content",
    "secrets": "secrets",
    "disks": "disks",
    "memory": "memory",
    "ports": "ports",
    "host_key": "host_key",
    "units": "units",
    "gpu": "gpus",
    "documents": "status",
}


def recorded(name: str = "head") -> dict[str, Any]:
    return copy.deepcopy(RECORDED[name])


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_answers_are_read_whole(name: str) -> None:
    facts = parse(recorded(name))
    unknown = [field.name for field in dataclasses.fields(facts) if isinstance(getattr(facts, field.name), Unknown)]
    assert unknown == []
    assert (facts.sudo, facts.trouble, facts.machine) == (True, "", "aarch64")


def test_a_recorded_head() -> None:
    facts = parse(recorded())
    assert (facts.user, facts.home, facts.python) == ("spark", "/home/spark", (3, 13, 5))
    assert facts.gpus == (("NVIDIA GB10", "580.95.05"),)
    link = item(facts.links, "enp1s0f0np0", "links")
    assert (link.mtu, link.addresses) == (9000, (IPv4Interface("10.200.0.1/24"),))
    assert item(facts.netdevs, "enp1s0f0np0", "netdevs").carrier is True
    assert item(facts.hcas, "rocep1s0f0", "HCAs").roce_v2_index("10.200.0.1") is not None
    assert item(facts.hcas, "rocep1s0f0", "HCAs").roce_v2_index("10.200.0.9") is None
    docker = known(facts.docker, "Docker")
    assert docker.has_nvidia
    containers = known(docker.containers, "containers")
    assert [container.labels["sparkpair.rank"] for container in containers] == ["0"]
    weights = known(item(facts.content, "weights", "content"), "weights")
    assert weights.is_whole
    assert weights.identity is not None
    status = known(facts.status, "status")
    assert status is not None
    assert (status.phase, status.desired, sorted(status.ranks)) == ("running", "run", [0, 1])
    assert facts.kept == (status.accepted, "run")
    assert item(facts.units, "sparkpair-keeper.service", "units").is_active
    assert facts.agent_code == status.code


GARBAGE: list[object] = [None, 7, "?", [], {}, [[]], {"x": None}, {"error": "it broke"}, {"error": 5}, True]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_failed_leaves_the_others(part: str) -> None:
    """What the probe could not read is unknown with its reason, not absent."""
    document = recorded()
    document[part] = {"error": "it broke"}
    facts, whole = parse(document), parse(recorded())
    assert getattr(facts, PARTS[part]) == Unknown("it broke")
    for other in set(PARTS.values()) - {PARTS[part]}:
        assert getattr(facts, other) == getattr(whole, other)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_is_missing_is_unknown(part: str) -> None:
    document = recorded()
    del document[part]
    assert getattr(parse(document), PARTS[part]) == Unknown(f"the probe's answer has no {part}")


@pytest.mark.parametrize("part", [part for part in PARTS if part not in ("gpu", "documents")])
@pytest.mark.parametrize("value", [None, 7, True, {"x": 3}, ["x", 4]], ids=str)
def test_a_part_of_another_form_is_unknown(part: str, value: object) -> None:
    document = recorded()
    document[part] = value
    found = getattr(parse(document), PARTS[part])
    if isinstance(found, dict):  # directories are read one by one
        (found,) = found.values()
    assert isinstance(found, Unknown), found
    assert "cannot be read" in found.reason


def test_one_damaged_document_does_not_hide_the_other() -> None:
    document = recorded()
    document["documents"]["/run/sparkpair/status.json"] = {"error": "/run/sparkpair/status.json is damaged: no JSON"}
    facts = parse(document)
    assert facts.status == Unknown("/run/sparkpair/status.json is damaged: no JSON")
    assert facts.kept is not None
    assert not isinstance(facts.kept, Unknown)


def test_one_text_that_cannot_be_read_does_not_hide_the_others() -> None:
    document = recorded()
    document["texts"]["/var/lib/sparkpair/current/rank0.json"] = {"error": "IsADirectoryError: is a directory"}
    texts = known(parse(document).texts, "texts")
    assert texts["/var/lib/sparkpair/current/rank0.json"] == Unknown("IsADirectoryError: is a directory")
    assert isinstance(texts["/etc/sparkpair/ssh/id_ed25519.pub"], str)


def test_how_long_the_last_start_took() -> None:
    """As published, and as kept; what is no number is told as nothing and fails nobody."""
    facts = parse(recorded())
    status = known(facts.status, "status")
    assert status is not None
    assert (status.last_start_seconds, facts.kept_start_seconds) == (88.3, 88.3)
    for nonsense in ("soon", True, -1, 10**400, float("nan"), float("inf")):
        document = recorded()
        for file in document["documents"].values():
            file["json"]["last_start_seconds"] = nonsense
        facts = parse(document)
        status = known(facts.status, "status")
        assert status is not None
        assert (status.last_start_seconds, facts.kept_start_seconds) == (None, None)


def test_docker_that_does_not_answer_knows_no_containers() -> None:
    """Not an empty list: whoever counts containers must not read silence as none."""
    document = recorded()
    document["docker"].update(answers=False, trouble="Connection refused")
    docker = known(parse(document).docker, "Docker")
    assert docker.containers == Unknown("Docker does not answer: Connection refused")
    assert docker.disk == Unknown("Docker does not answer: Connection refused")
    assert not docker.has_nvidia


def test_an_image_that_could_not_be_asked_for_is_unknown() -> None:
    document = recorded()
    (reference,) = document["docker"]["images"]
    document["docker"]["images"][reference] = {"error": "Docker answered 500: overloaded"}
    assert known(parse(document).docker, "Docker").images[reference] == Unknown("Docker answered 500: overloaded")


def test_needing_what_is_unknown_says_what_and_why() -> None:
    with pytest.raises(UnknownFact, match=r"^its links could not be read: no ip$"):
        known(Unknown("no ip"), "its links")
    with pytest.raises(UnknownFact, match=r"^its files could not be read: b is not in the probe's answer$"):
        item({"a": 1}, "b", "its files")


@pytest.mark.parametrize(
    ("output", "trouble"),
    [
        ([], "the probe answered ''"),
        (["bash: fork: retry"], "the probe answered 'bash: fork: retry'"),
        (['{"format":1,'], "the probe's answer is damaged: "),
        (['{"format":1}'], "the probe's answer has no 'user'"),
        (['{"broken": "there is no /usr/bin/python3"}'], "there is no /usr/bin/python3"),
        (["[" * 100_000], "the probe answered '[[["),
    ],
    ids=["empty", "garbled", "partial", "of another program", "broken", "deep"],
)
def test_output_that_is_no_answer(output: list[str], trouble: str) -> None:
    facts = from_output(output)
    assert facts.trouble.startswith(trouble)
    assert facts.python == ()
    assert isinstance(facts.links, Unknown)


def test_lines_before_the_answer_do_not_matter() -> None:
    lines = ["Welcome to DGX OS", "{a banner}", json.dumps(recorded())]
    assert from_output(lines) == parse(recorded())


def test_a_refused_sudo_is_told_from_no_answer() -> None:
    facts = from_output(['{"sudo": false, "user": "alice"}'])
    assert (facts.sudo, facts.user, facts.trouble) == (False, "alice", "")


def test_facts_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        parse(recorded()).user = "root"  # type: ignore[misc]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_anything_is_read_without_an_exception(document: object) -> None:
    assert isinstance(parse(document), NodeFacts)


@given(st.data(), JSON)
def test_a_damaged_answer_is_read_without_an_exception(data: st.DataObject, value: object) -> None:
    """Any one place in a recorded answer is replaced by anything; what stays known is of its type."""
    document = recorded()
    place: Any = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        inner = place[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        place = inner
    place[key] = value
    facts = parse(document)
    assert isinstance(facts, NodeFacts)
    assert isinstance(facts.docker, Docker | Unknown)


@given(st.text(max_size=400), st.integers(0, 30_000))
def test_a_cut_answer_is_read_without_an_exception(noise: str, length: int) -> None:
    text = json.dumps(recorded())
    assert isinstance(from_output([noise, text[:length]]), NodeFacts)
