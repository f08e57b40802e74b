"""Staging as a whole: a node's disk, the real huggingface_hub, and the hub double with its faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import hub as hubs
from lab.hub import Double
from lab.repositories import MIB
from node import content, errand, wire
from node.download import Process
from node.errand import Peer, Way
from node.peer import Server
from node.stage import StageError
from tests import repository
from tests.node.staging import NAME, Node, Threads, files, process, repository_of, whole

CONTENTS = files(9, 1)
BIG, SMALL = "model-0.safetensors", "model-1.safetensors"
MIRROR = "mirror/model"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node with nothing on it."""
    return Node(tmp_path)


@pytest.fixture
def hub() -> Iterator[Double]:
    """The far side with one model and its mirror."""
    with hubs.serving([repository_of(CONTENTS), repository_of(CONTENTS, MIRROR)]) as double:
        yield double


def closing(node: Node) -> str:
    """What is said when all is there."""
    identity = json.loads((node.state / content.manifest_name(str(node.directory))).read_text())["identity"]
    return f"weights: 3 files, 10.0 MiB, are in {node.directory} as the lock says ({identity[:12]})"


def test_a_node_with_nothing_gets_everything_once(node: Node, hub: Double) -> None:
    """Files, manifest and nothing beside them; and a second run neither asks nor reads."""
    wanted = node.errand(hub)
    assert node.run(wanted)
    assert node.here() == whole(CONTENTS)
    assert node.said == [closing(node)]
    assert hub.sent() == sum(each.size for each in CONTENTS.values())
    entries, _ = content.listing(str(node.directory))
    manifest = json.loads((node.state / content.manifest_name(str(node.directory))).read_text())
    assert manifest == {
        "directory": str(node.directory),
        "identity": wanted.sets[0].identity,
        "files": [list(row) for row in wanted.sets[0].files],
        "stamps": [list(entry) for entry in entries],
    }
    assert sorted(path.name for path in node.state.iterdir()) == sorted(
        [content.manifest_name(str(node.directory)), content.verified_name(str(node.directory))]
    )
    assert not (node.directory / ".sparkpair").exists()
    hub.forget()
    before = _bytes_read()
    assert node.run(wanted)
    assert hub.requests == []
    assert _bytes_read() - before < 64 * 1024


def _bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize("at", [0, 5 * MIB + 1])
def test_killed_at_a_byte_it_goes_on_from_what_the_disk_has(node: Node, hub: Double, at: int) -> None:
    """SIGKILL of the whole unit; its child ends with it, and the part has what was written in whole buffers."""
    hub.fault("stall", path=BIG, at=at)
    wanted = node.errand(hub)
    place = node.place / "errand.json"
    place.write_text(errand.text(wanted))
    program = (
        f"import os, sys; sys.path.insert(0, {str(repository.ROOT)!r})\n"
        "from pathlib import Path\nfrom node import errand\nfrom node.stage import Stage\n"
        "from tests.node.staging import process\n"
        f"Stage(errand.parse(Path({str(place)!r}).read_text()), (os.getuid(), os.getgid()), None, print, "
        f"state=Path({str(node.state)!r}), start=process).run()"
    )
    unit = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
    kept = at - at % (4 * MIB)
    part = node.directory / ".sparkpair" / f"{hub.files(NAME)[BIG][1][:16]}.part"
    _until(lambda: _requests(hub, BIG) > 0 and (node.directory / SMALL).exists() and part.stat().st_size == kept)
    [child] = _children(unit.pid)
    unit.send_signal(signal.SIGKILL)
    unit.wait()
    _until(lambda: not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2])
    hub.clear()
    hub.forget()
    assert node.run(wanted)
    assert node.here() == whole(CONTENTS)
    [request] = [request for request in hub.requests if request.file == BIG and request.method == "GET"]
    assert request.range == (f"bytes={kept}-" if kept else "")
    assert hub.sent() == CONTENTS[BIG].size - kept


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()] or [
        int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()
    ]


def _requests(hub: Double, path: str) -> int:
    return sum(request.file == path and request.host == "cdn" for request in hub.requests)


def _until(condition: object, seconds: float = 20.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


FAULTS = {
    "truncate": {"at": 3 * MIB, "times": 1},
    "reset": {"at": 3 * MIB, "times": 1},
    "corrupt": {"at": 3 * MIB, "times": 1},
}
SAID = {
    # huggingface_hub goes on by itself.
    "truncate": [],
    "reset": [f"weights: {NAME}: [Errno 104] Connection reset by peer ({BIG}); again in 1 s"],
}


@pytest.mark.parametrize("kind", FAULTS)
def test_one_fault_costs_no_byte_that_was_good(node: Node, hub: Double, kind: str) -> None:
    """Each ends with the right bytes; only wrong ones are brought again."""
    hub.fault(kind, path=BIG, **FAULTS[kind])
    assert node.run(node.errand(hub))
    assert node.here() == whole(CONTENTS)
    again = CONTENTS[BIG].size if kind == "corrupt" else 0
    assert hub.sent() - sum(each.size for each in CONTENTS.values()) - again in range(MIB + 1)
    *said, last = node.said
    assert last == closing(node)
    if kind == "corrupt":
        [line] = said
        sha256 = hub.files(NAME)[BIG][1]
        assert line.startswith(f"weights: {NAME}: sent other bytes for {BIG} (sha256 ")
        assert line.endswith(f", wanted {sha256[:12]}); thrown away")
    else:
        assert said == SAID[kind]


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


def test_wrong_bytes_twice_are_refused_by_name(node: Node, hub: Double) -> None:
    """From the repository and from its mirror; the other files stay, and are not asked for again."""
    hub.fault("corrupt", path=BIG, at=10)
    wanted = node.errand(hub, NAME, MIRROR)
    assert not node.run(wanted)
    assert node.said[-1] == (
        f"weights: {BIG} arrived with other bytes than the lock states, twice. Fix: make lock, if the repository was "
        "changed; else a disk, a rail or a proxy on the way is failing"
    )
    assert set(node.here()) == {"config.json", SMALL}
    assert (node.state / content.marker_name(str(node.directory))).read_text() == wanted.sets[0].identity
    hub.clear()
    hub.forget()
    assert node.run(wanted)
    assert hub.sent() == CONTENTS[BIG].size


def test_after_wrong_bytes_the_mirror_is_next(node: Node, hub: Double) -> None:
    """It had the same files when the lock was made."""
    hub.fault("corrupt", NAME, BIG, at=10)
    assert node.run(node.errand(hub, NAME, MIRROR))
    assert node.here() == whole(CONTENTS)
    assert hub.sent(MIRROR, BIG) == CONTENTS[BIG].size


def test_a_client_that_is_not_there_is_said(node: Node, hub: Double) -> None:
    """With what mends it."""
    code = f"import sys; sys.path.insert(0, {str(repository.ROOT)!r}); sys.modules['httpx'] = None\n"
    program = (sys.executable, "-c", code + "from node.main import main; sys.exit(main(['fetch']))")
    wanted = node.errand(hub, hub=errand.Hub(hub.endpoint, str(node.place / "client")))
    assert not node.run(wanted, start=lambda request, owner, home: Process(request, owner, home, program))
    assert node.said == [
        f"huggingface_hub cannot be used from {node.place}/client: import of httpx halted; None in sys.modules. Fix: "
        "remove that directory and run the deploy again"
    ]


def test_a_part_that_is_wrong_counts_against_nobody(node: Node, hub: Double) -> None:
    """An earlier run left other bytes: what is brought after them is thrown away, and then all of it is right."""
    part = node.directory / ".sparkpair" / f"{hub.files(NAME)[BIG][1][:16]}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(4096))
    hub.fault("corrupt", path=BIG, at=10, times=1)
    assert node.run(node.errand(hub))
    assert node.here() == whole(CONTENTS)
    assert len(node.said) == 3


def test_files_that_are_there_are_hashed_and_only_wrong_ones_are_brought(node: Node, hub: Double) -> None:
    """The old file stays until the new one is proven."""
    right = whole(CONTENTS)
    node.directory.mkdir()
    (node.directory / SMALL).write_bytes(right[SMALL])
    (node.directory / BIG).write_bytes(bytes(len(right[BIG])))
    hub.fault("stall", path=BIG, at=MIB)
    stage, thread = node.begin(node.errand(hub), process)
    _until(lambda: _requests(hub, BIG) > 0 and (node.directory / "config.json").exists())
    assert (node.directory / BIG).read_bytes() == bytes(len(right[BIG]))
    stage.board.fail("stopped")
    thread.join(10)
    assert not thread.is_alive()
    hub.clear()
    assert node.run(node.errand(hub))
    assert node.here() == right
    assert hub.sent(file=SMALL) == 0


def test_a_damaged_file_is_brought_again_alone(node: Node, hub: Double) -> None:
    """What a deep check has found: the same size and time, and other bytes."""
    wanted = node.errand(hub)
    assert node.run(wanted)
    hub.forget()
    place, damaged = node.directory / BIG, node.state / content.damaged_name(str(node.directory))
    status = place.stat()
    with place.open("r+b") as stream:
        stream.write(b"bad")
    os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))
    damaged.write_text(json.dumps({"at": "2026-11-30T00:00:00+0000", "files": [BIG]}))
    assert node.run(wanted)
    assert node.here() == whole(CONTENTS)
    assert hub.sent() == CONTENTS[BIG].size
    assert not damaged.exists()


def test_the_mirror_is_next_when_a_repository_is_gone(node: Node, hub: Double) -> None:
    """It had the same files when the lock was made."""
    wanted = node.errand(hub, NAME, MIRROR)
    commit = hub.repositories[NAME].commits.popitem()[0]
    assert node.run(wanted)
    assert node.said[0] == f"weights: {NAME}: {NAME} has no commit {commit[:12]} any more. now from {MIRROR}"
    assert hub.sent(MIRROR) == sum(each.size for each in CONTENTS.values())


def test_what_no_waiting_cures_ends_at_once(node: Node) -> None:
    """With its fix; the address of the bytes and the token stand in no line."""
    with hubs.serving([repository_of(CONTENTS, gated=True)]) as hub:
        assert not node.run(node.errand(hub))
        assert node.said == [
            f"weights: {NAME} on the hub is gated. Fix: accept its terms on its page, and on the control machine: "
            "hf auth login"
        ]
        node.said.clear()
        assert node.run(node.errand(hub), "hf_reader_of_the_simulated_hub")
        assert node.here() == whole(CONTENTS)
        assert {request.host for request in hub.requests if request.authorized} == {"hub"}
        assert {request.host for request in hub.requests} == {"hub", "cdn"}


def test_xet_that_says_nothing_is_left(node: Node) -> None:
    """Tried twice, as the hub wants it; then by plain HTTP. The client is the real one."""
    with hubs.serving([repository_of(files(1), cas="silent")]) as hub:
        assert node.run(node.errand(hub, stall_seconds=1.0), start=process)
        assert node.here() == whole(files(1))
        assert f"weights: {NAME}: no byte for 1 s ({BIG}); now without xet in 2 s" in node.said
        assert any(request.host == "cas" for request in hub.requests)


class Full(Threads):
    """The download on a disk that takes nothing."""

    def send(self, message: dict[str, Any]) -> None:
        self._full = message["number"]

    def lines(self, seconds: float) -> list[dict[str, Any]]:
        return [{"task": self._full, "failed": "full", "text": "No space left on device", "after": 0.0}]


def test_a_full_disk_ends_it_and_a_free_one_lets_it_go_on(node: Node, hub: Double) -> None:
    """Said with what is missing, where, and how much to free."""
    wanted = node.errand(hub)
    assert not node.run(wanted, start=Full)
    [said] = node.said
    assert said.startswith(f"weights: the disk of {node.directory} has ")
    assert said.endswith(
        "10.0 MiB are still to come. What is here stays. Fix: free 0.0 MiB there, and run the deploy again: it goes on"
    )
    assert node.run(wanted)
    assert node.here() == whole(CONTENTS)


def test_a_disk_that_cannot_hold_it_is_refused_before_a_byte(node: Node, hub: Double) -> None:
    """By what is missing on it, not by what the directory will have."""
    rows = (("big.safetensors", 2**60, "a" * 64),)
    wanted = node.errand(hub, files=rows, identity=wire.manifest_identity(rows), fetch=("big.safetensors",))
    assert not node.run(wanted)
    assert hub.requests == []
    assert f"{2**30:.1f} GiB are still to come" in node.said[0]


def test_a_file_of_nobody_is_refused(node: Node, hub: Double) -> None:
    """The engine would see it."""
    node.directory.mkdir()
    (node.directory / "notes.txt").write_text("mine")
    with pytest.raises(StageError) as refusal:
        node.stage(node.errand(hub))
    assert str(refusal.value) == (
        f"{node.directory} holds notes.txt, which the lock does not have. Fix: remove what does not belong there"
    )


def test_a_bundle_gives_what_it_has_and_the_hub_the_rest(node: Node, hub: Double) -> None:
    """A file of it that is wrong is brought from elsewhere."""
    bundle, right = node.place / "bundle", whole(CONTENTS)
    bundle.mkdir()
    (bundle / SMALL).write_bytes(right[SMALL])
    (bundle / BIG).write_bytes(bytes(len(right[BIG])))
    hub.fault("refuse", host="hub")
    stage, thread = node.begin(node.errand(hub, bundle=str(bundle), fetch=()))
    _until(lambda: any("has other bytes than the lock states" in line for line in node.said))
    hub.clear()
    thread.join(30)
    assert not stage.board.failure
    assert node.here() == right
    assert hub.sent(file=SMALL) == 0
    assert f"weights: {bundle}/config.json cannot be read from the bundle: No such file or directory" in node.said


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
