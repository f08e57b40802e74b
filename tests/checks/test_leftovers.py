"""What prune removes: ours and needed by nothing; everything else stays."""

from __future__ import annotations

import http.server
import json
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checks import content, leftovers
from facts import leftovers_side
from facts.leftovers import HeldImage, Holdings, Leftovers
from facts.values import Unknown
from tests.plan.world import converged
from tests.unit import pair

CLUSTER = pair.cluster(pair.UPSTREAM)
HEAD, WORKER = CLUSTER.nodes
NAME = "192.168.77.1:5000/vllm-cpu"


def digest(letter: str) -> str:
    return "sha256:" + letter * 64


def held(identity: str, *names: str) -> HeldImage:
    return HeldImage(digest(identity), names, 100)


def node(*images: HeldImage, used: tuple[str, ...] = (), launched: tuple[str, ...] = ()) -> Leftovers:
    return Leftovers(images, frozenset(map(digest, used)), frozenset(launched), None)


def test_an_image_of_ours_that_nothing_needs_goes() -> None:
    """Under whichever of its names it came: its registry's, the peer's, and our own for it."""
    old = held("1", f"{NAME}@{digest('a')}", "sparkpair/engine:aaaaaaaaaaaa")
    from_peer = held("2", f"127.0.0.1:8731/vllm-cpu@{digest('b')}")
    by_tag = held("3", f"{NAME}:v1")
    seen = {HEAD.name: node(old, from_peer, by_tag), WORKER.name: node()}
    assert leftovers.images(CLUSTER, seen, HEAD) == (old, from_peer, by_tag)
    assert leftovers.images(CLUSTER, seen, WORKER) == ()


@pytest.mark.parametrize(
    "image",
    [
        held("1", CLUSTER.image, "sparkpair/engine:555555555555"),
        held("1", f"127.0.0.1:8731/vllm-cpu@{CLUSTER.image.partition('@')[2]}"),
        held("9", f"{NAME}@{digest('a')}"),
        held("1", f"{NAME}@{digest('e')}"),
        held("1", "team/other:v1"),
        held("1", f"{NAME}@{digest('a')}", "keep/this:v1"),
        held("1", f"127.0.0.1:8731/other@{digest('a')}"),
        held("1"),
    ],
    ids=[
        "wanted",
        "wanted, from the peer",
        "a container's",
        "a generation's of the other node",
        "somebody else's",
        "of two owners",
        "another local registry's",
        "without a name",
    ],
)
def test_what_is_needed_or_not_ours_stays(image: HeldImage) -> None:
    seen = {
        HEAD.name: node(launched=(f"{NAME}@{digest('e')}",)),
        WORKER.name: node(image, used=("9",)),
    }
    assert leftovers.images(CLUSTER, seen, WORKER) == ()


@pytest.mark.parametrize(
    "names",
    [(f"{NAME}@{digest('e')}",), (f"127.0.0.1:8731/vllm-cpu@{digest('e')}",), ("sparkpair/engine:eeeeeeeeeeee",)],
    ids=["its registry's name", "the peer's", "ours alone"],
)
def test_the_image_of_a_kept_generation_stays_on_every_node(names: tuple[str, ...]) -> None:
    """The last good one above all: a rollback finds it by digest, also where no settings name it any more and only the
    head keeps the generation."""
    old = held("1", f"{NAME}@{digest('a')}", "sparkpair/engine:aaaaaaaaaaaa")
    last_good = held("2", *names)
    seen = {HEAD.name: node(old, last_good, launched=(f"{NAME}@{digest('e')}",)), WORKER.name: node(old, last_good)}
    for where in (HEAD, WORKER):
        assert leftovers.images(CLUSTER, seen, where) == (old,)


def test_a_removal_takes_what_we_brought_and_no_other_of_that_repository() -> None:
    launched = held("1", CLUSTER.image, "sparkpair/engine:555555555555")
    former = held("2", f"{NAME}@{digest('a')}", "sparkpair/engine:aaaaaaaaaaaa")
    good = held("3", f"127.0.0.1:8731/vllm-cpu@{digest('e')}")
    theirs = held("4", f"{NAME}:nightly", f"{NAME}@{digest('b')}")
    both = held("5", "sparkpair/engine:cccccccccccc", "keep/this:v1")
    images = (launched, former, good, theirs, both)
    seen = {HEAD.name: node(*images), WORKER.name: node(launched=(f"{NAME}@{digest('e')}",))}
    assert leftovers.brought(CLUSTER, seen, HEAD) == (launched, former, good)


def test_repositories_of_launches_are_ours_too() -> None:
    """An engine of before, from Docker Hub and from a registry with a port."""
    launched = (f"vllm/vllm-openai@{digest('e')}", f"localhost:5000/x/y@{digest('f')}", f"single@{digest('d')}")
    seen = {HEAD.name: node(launched=launched), WORKER.name: node()}
    assert leftovers.ours(CLUSTER, seen) == {
        NAME, "vllm/vllm-openai", "localhost:5000/x/y", "single", "sparkpair/engine", "127.0.0.1:8731/vllm-cpu",
        "127.0.0.1:8731/vllm/vllm-openai", "127.0.0.1:8731/x/y", "127.0.0.1:8731/library/single",
    }  # fmt: skip


def test_parts_go_only_where_everything_is_there() -> None:
    world = converged(CLUSTER)
    world.worker["content"]["weights"]["parts"] = 4096
    facts = world.facts()[WORKER.name]
    plans = content.plans(CLUSTER, world.facts())
    assert leftovers.parts(facts, plans, WORKER) == {"/srv/models/tiny/.sparkpair": 4096}
    assert leftovers.parts(world.facts()[HEAD.name], plans, HEAD) == {}
    world.worker["content"]["weights"].update(identity=None, copying=world.head["content"]["weights"]["identity"])
    unfinished = content.plans(CLUSTER, world.facts())
    assert leftovers.parts(world.facts()[WORKER.name], unfinished, WORKER) == {}


# The program on the node


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What a Docker socket of the test's own answers, by path."""
    answers: dict[str, Any] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in answers else 500)
            self.end_headers()
            self.wfile.write(json.dumps(answers.get(self.path, {"message": "overloaded"})).encode())

        def address_string(self) -> str:
            return "unix"

        def log_message(self, format: str, *arguments: object) -> None:
            """Quiet."""

    place = str(tmp_path / "docker.sock")
    monkeypatch.setattr(leftovers_side, "DOCKER_SOCKET", place)
    server = socketserver.ThreadingUnixStreamServer(place, Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield answers
    server.shutdown()
    server.server_close()


def test_the_program_reads_images_containers_and_launches(tmp_path: Path, docker: dict[str, Any]) -> None:
    names = {"RepoTags": ["sparkpair/engine:a", "<none>:<none>"], "RepoDigests": [f"{NAME}@{digest('a')}"]}
    docker["/images/json"] = [
        {"Id": digest("1"), "Size": 7, **names},
        {"Id": digest("2"), "Size": 8, "RepoTags": None, "RepoDigests": ["<none>@<none>"]},
    ]
    docker["/containers/json?all=1"] = [{"ImageID": digest("2")}, {"ImageID": digest("2")}]
    for number, reference in (("1", "r/a@x"), ("2", "r/b@x")):
        place = tmp_path / "generations" / number
        place.mkdir(parents=True)
        (place / "rank0.json").write_text(json.dumps({"image": reference}))
    store = tmp_path / "store"
    store.mkdir()
    (store / "blob").write_bytes(b"12345")
    asked = {"launches": [f"{tmp_path}/generations/*/rank*.json", f"{tmp_path}/none"], "store": str(store)}
    said = leftovers_side.collect(asked)
    assert Holdings().process(["Welcome", json.dumps(said)]) == Leftovers(
        images=(
            HeldImage(digest("1"), ("sparkpair/engine:a", f"{NAME}@{digest('a')}"), 7),
            HeldImage(digest("2"), (), 8),
        ),
        used=frozenset({digest("2")}),
        launched=frozenset({"r/a@x", "r/b@x"}),
        store=5,
    )
    assert leftovers_side.collect({**asked, "store": f"{tmp_path}/away"})["store"] is None


def test_half_an_answer_is_none(tmp_path: Path, docker: dict[str, Any]) -> None:
    """A generation that cannot be read may need any image."""
    docker["/images/json"] = []
    asked = {"launches": [f"{tmp_path}/rank*.json"], "store": "/none"}
    said = leftovers_side.collect(asked)
    assert said == {"error": 'ValueError: Docker answered 500: {"message": "overloaded"}'}
    docker["/containers/json?all=1"] = []
    (tmp_path / "rank0.json").write_text("{")
    said = leftovers_side.collect(asked)
    assert isinstance(Holdings().process([json.dumps(said)]), Unknown)
    assert said["error"].startswith("JSONDecodeError: ")
    assert Holdings().process(["bash: no"]) == Unknown("it answered 'bash: no'")
