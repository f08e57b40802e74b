"""Staging where it has to wait: for a stall, a pause after a failure, a peer. It needs time, and no simulated pair."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import hub as hubs
from lab.hub import Double
from lab.repositories import MIB
from node.errand import Peer, Way
from node.peer import Server
from tests.node.staging import BIG, CONTENTS, MIRROR, NAME, SMALL, Node, closing, files, process, repository_of, whole

pytestmark = pytest.mark.lab


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node with nothing on it."""
    return Node(tmp_path)


@pytest.fixture
def hub() -> Iterator[Double]:
    """The far side with one model and its mirror."""
    with hubs.serving([repository_of(CONTENTS), repository_of(CONTENTS, MIRROR)]) as double:
        yield double


SAID: dict[str, list[str]] = {
    # huggingface_hub goes on by itself.
    "truncate": [],
    "reset": [f"weights: {NAME}: [Errno 104] Connection reset by peer ({BIG}); again in 1 s"],
}


@pytest.mark.parametrize("kind", SAID)
def test_one_fault_costs_no_byte_that_was_good(node: Node, hub: Double, kind: str) -> None:
    """Each ends with the right bytes; only wrong ones are brought again."""
    hub.fault(kind, path=BIG, at=3 * MIB, times=1)
    assert node.run(node.errand(hub))
    assert node.here() == whole(CONTENTS)
    assert hub.sent() - sum(each.size for each in CONTENTS.values()) in range(MIB + 1)
    assert node.said == [*SAID[kind], closing(node)]


def test_a_stall_is_ended_and_gone_on_from(node: Node, hub: Double) -> None:
    """What the child had buffered is on the disk before it ends."""
    hub.fault("stall", path=BIG, at=3 * MIB, times=1)
    assert node.run(node.errand(hub, stall_seconds=2.0), start=process)
    assert node.here() == whole(CONTENTS)
    assert f"weights: {NAME}: no byte for 2 s ({BIG}); again in 1 s" in node.said
    ranges = [request.range for request in hub.requests if request.file == BIG and request.host == "cdn"]
    assert f"bytes={3 * MIB}-" in ranges


@pytest.mark.parametrize(("status", "host"), [(429, "hub"), (503, "cdn")])
def test_a_server_that_asks_to_wait_is_waited_for(node: Node, hub: Double, status: int, host: str) -> None:
    """As long as it says, and then as if nothing had been."""
    hub.fault("status", path=BIG, host=host, status=status, retry_after=1, times=1)
    began = time.monotonic()
    assert node.run(node.errand(hub))
    assert time.monotonic() - began > 1
    assert node.said == [f"weights: {NAME}: the hub answered {status}; again in 1 s", closing(node)]


def test_xet_that_says_nothing_is_left(node: Node) -> None:
    """Tried twice, as the hub wants it; then by plain HTTP. The client is the real one."""
    with hubs.serving([repository_of(files(1), cas="silent")]) as hub:
        assert node.run(node.errand(hub, stall_seconds=1.0), start=process)
        assert node.here() == whole(files(1))
        assert f"weights: {NAME}: no byte for 1 s ({BIG}); now without xet in 2 s" in node.said
        assert any(request.host == "cas" for request in hub.requests)


def test_two_nodes_download_each_half_and_exchange(tmp_path: Path, hub: Double) -> None:
    """Every byte leaves the hub once."""
    net = tmp_path / "net" / "rail"
    net.mkdir(parents=True)
    (net / "carrier").write_text("1\n")
    nodes = [Node(tmp_path / name) for name in ("a", "b")]
    shares = [(BIG,), ("config.json", SMALL)]
    servers = []
    for node in nodes:
        node.state.mkdir(parents=True)
        servers.append(Server("127.0.0.1", 0, ["127.0.0.1"], {"weights": str(node.directory)}, node.state))
    stages = []
    for node, share, server in zip(nodes, shares, reversed(servers), strict=True):
        peer = Peer("other", (Way("127.0.0.1", "rail", True),))
        wanted = node.errand(hub, fetch=share, wait=True, peers=(peer,), stall_seconds=30)
        stages.append(node.stage(wanted, port=server.server_address[1], net=net.parent))
    threads = [threading.Thread(target=server.serve_forever, daemon=True) for server in servers]
    threads += [threading.Thread(target=stage.run) for stage in stages]
    for thread in threads:
        thread.start()
    for thread in threads[2:]:
        thread.join(30)
    for server in servers:
        server.shutdown()
        server.server_close()
    for node in nodes:
        assert node.here() == whole(CONTENTS)
        assert node.said == [closing(node)]
    assert hub.sent() == sum(each.size for each in CONTENTS.values())
