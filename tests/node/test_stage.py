"""Staging as a whole: a node's disk, the real huggingface_hub, and the hub double with its faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import hub as hubs
from lab.hub import Double
from lab.repositories import MIB
from node import content, errand, wire
from node.download import Process
from node.stage import StageError
from tests import repository
from tests.node.staging import (
    BIG,
    CONTENTS,
    MIRROR,
    NAME,
    SMALL,
    Node,
    Threads,
    closing,
    process,
    repository_of,
    until,
    whole,
)  # fmt: skip


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node with nothing on it."""
    return Node(tmp_path)


@pytest.fixture
def hub() -> Iterator[Double]:
    """The far side with one model and its mirror."""
    with hubs.serving([repository_of(CONTENTS), repository_of(CONTENTS, MIRROR)]) as double:
        yield double


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


def test_killed_at_a_byte_it_goes_on_from_what_the_disk_has(node: Node, hub: Double) -> None:
    """SIGKILL of the whole unit; its child ends with it, and the part has what was written in whole buffers."""
    at = 5 * MIB + 1
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
    until(lambda: _requests(hub, BIG) > 0 and (node.directory / SMALL).exists() and part.stat().st_size == kept)
    [child] = _children(unit.pid)
    unit.send_signal(signal.SIGKILL)
    unit.wait()
    until(lambda: not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2])
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


def test_a_corrupted_file_alone_is_brought_again(node: Node, hub: Double) -> None:
    """From the beginning; nothing else is."""
    hub.fault("corrupt", path=BIG, at=3 * MIB, times=1)
    assert node.run(node.errand(hub))
    assert node.here() == whole(CONTENTS)
    assert hub.sent() == sum(each.size for each in CONTENTS.values()) + CONTENTS[BIG].size
    [line, last] = node.said
    assert line.startswith(f"weights: {NAME}: sent other bytes for {BIG} (sha256 ")
    assert line.endswith(f", wanted {hub.files(NAME)[BIG][1][:12]}); thrown away")
    assert last == closing(node)


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
    until(lambda: _requests(hub, BIG) > 0 and (node.directory / "config.json").exists())
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
    until(lambda: any("has other bytes than the lock states" in line for line in node.said))
    hub.clear()
    thread.join(30)
    assert not stage.board.failure
    assert node.here() == right
    assert hub.sent(file=SMALL) == 0
    assert f"weights: {bundle}/config.json cannot be read from the bundle: No such file or directory" in node.said
