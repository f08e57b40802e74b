"""A node that stages, with the hub double as the far side and the real huggingface_hub in between."""

from __future__ import annotations

import json
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import huggingface_hub

from lab.hub import Double
from lab.repositories import MIB, Content, Repository, shard, text_file
from node import content, errand, pages, wire
from node.download import Process, Start
from node.fetch import Client, Crew, Task
from node.stage import Stage
from tests import repository

PROGRAM = (
    sys.executable, "-sB", "-c",
    f"import sys; sys.path.insert(0, {str(repository.ROOT)!r}); from node.main import main; sys.exit(main(['fetch']))",
)  # fmt: skip
NAME = "owner/model"
PATIENT_SECONDS = 60.0
"""A stall that no busy machine has by itself."""


def process(request: dict[str, Any], owner: tuple[int, int], home: str) -> Process:
    """The download as on a node, from this checkout."""
    return Process(request, owner, home, PROGRAM)


class Threads:
    """The download in this process, for tests that need not end it: another Python costs more than they do."""

    def __init__(self, request: dict[str, Any], owner: tuple[int, int], home: str) -> None:
        del owner, home
        near, far = os.pipe()
        self._lines = os.fdopen(near, "rb", buffering=0)
        self._held = b""
        self._tasks: queue.Queue[Task | None] = queue.Queue()
        client = Client(request["endpoint"], request["token"])
        crew = Crew(client, pages.Rate(request["rate"]), far)
        self._thread = threading.Thread(target=self._run, args=(crew, far), daemon=True)
        self._thread.start()

    def _run(self, crew: Crew, far: int) -> None:
        crew.run(iter(self._tasks.get, None))
        os.close(far)

    def send(self, message: dict[str, Any]) -> None:
        self._tasks.put(Task(**message))

    def lines(self, seconds: float) -> list[dict[str, Any]]:
        if not select.select([self._lines], [], [], seconds)[0]:
            return []
        *whole, self._held = (self._held + self._lines.read(1 << 16)).split(b"\n")
        return [json.loads(line) for line in whole]

    def last_words(self) -> str:
        return ""

    def end(self) -> None:
        self._tasks.put(None)
        self._thread.join(10)
        self._lines.close()
        huggingface_hub.close_session()


def files(*sizes_mib: int) -> dict[str, Content]:
    """A small file and shards of these sizes."""
    shards = {f"model-{number}.safetensors": shard(f"s{number}", size * MIB) for number, size in enumerate(sizes_mib)}
    return {"config.json": text_file("{}\n"), **shards}


def repository_of(contents: Mapping[str, Content], name: str = NAME, **more: Any) -> Repository:
    """A repository with one commit."""
    made = Repository(name, **more)
    made.commit(contents)
    return made


@dataclass
class Node:
    """One node's disk, and what its staging unit said."""

    place: Path
    said: list[str] = field(default_factory=list)
    client: str = "/usr/local/lib/sparkpair-hub"

    @property
    def directory(self) -> Path:
        return self.place / "model"

    @property
    def state(self) -> Path:
        return self.place / "state"

    def errand(self, far: Double, *repositories: str, **changes: Any) -> errand.Errand:
        """What it is told: all files of the first repository, and its mirrors."""
        names = repositories or (NAME,)
        rows = tuple(sorted((path, *row) for path, row in far.files(names[0]).items()))
        wanted = errand.Set(
            name="weights", directory=str(self.directory), identity=wire.manifest_identity(rows), files=rows,
            hub=tuple((name, far.repositories[name].branches["main"]) for name in names),
            fetch=tuple(path for path, _, _ in rows),
        )  # fmt: skip
        top = {"owner": "nobody", "rate": 0, "stall_seconds": PATIENT_SECONDS, "peers": (),
               "hub": errand.Hub(far.endpoint, self.client)}  # fmt: skip
        top.update({name: changes.pop(name) for name in list(changes) if name in top})
        made = errand.Errand(sets=(errand.Set(**{**vars(wanted), **changes}),), **top)
        return errand.parse(errand.text(made))

    def stage(self, wanted: errand.Errand, token: str | None = None, start: Start = Threads, **more: Any) -> Stage:
        """The unit's work, about to begin."""
        owner = (os.getuid(), os.getgid())
        return Stage(wanted, owner, token, self.said.append, state=self.state, start=start, **more)

    def run(self, wanted: errand.Errand, token: str | None = None, start: Start = Threads) -> bool:
        """All of it."""
        return self.stage(wanted, token, start).run()

    def begin(self, wanted: errand.Errand, start: Start = Threads) -> tuple[Stage, threading.Thread]:
        """The same in a thread."""
        stage = self.stage(wanted, start=start)
        thread = threading.Thread(target=stage.run)
        thread.start()
        return stage, thread

    def here(self) -> dict[str, bytes]:
        """The files, those of the work included."""
        found = sorted(path for path in self.directory.rglob("*") if path.is_file())
        return {str(path.relative_to(self.directory)): path.read_bytes() for path in found}


CONTENTS = files(9, 1)
BIG, SMALL = "model-0.safetensors", "model-1.safetensors"
MIRROR = "mirror/model"


def whole(contents: Mapping[str, Content]) -> dict[str, bytes]:
    """What a node shall have."""
    return {path: b"".join(content.read(0, content.size)) for path, content in sorted(contents.items())}


def closing(node: Node) -> str:
    """What is said when all is there."""
    identity = json.loads((node.state / content.manifest_name(str(node.directory))).read_text())["identity"]
    return f"weights: 3 files, 10.0 MiB, are in {node.directory} as the lock says ({identity[:12]})"


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for it."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)
