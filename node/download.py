"""The hub as a source of a staging unit: it runs the download (node/fetch.py) as the login user, watches its bytes, and
knows what to do when they stop."""

from __future__ import annotations

import json
import os
import pwd
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any, Protocol

from node import errand, pages, paths
from node.board import Board, Job
from node.fetch import FILES_AT_ONCE, Task
from node.ladder import Ladder, Rung, described
from node.local import BUNDLE

SOURCE = "hub"
LOOK_SECONDS = 0.25
END_SECONDS = 5.0
"""For a few MiB to reach the disk."""
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    # Nothing of the user's own, no progress bars, no questions, no reports of use.
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "HF_HUB_VERBOSITY": "error",
    # What xet holds in memory. By itself it takes a sixteenth of the memory and more for each file (hf_xet 1.8:
    # xet_runtime/src/config/groups/reconstruction.rs), which on a Spark is several GiB beside the engine.
    "HF_XET_RECONSTRUCTION_DOWNLOAD_BUFFER_SIZE": "48mb",
    "HF_XET_RECONSTRUCTION_DOWNLOAD_BUFFER_PERFILE_SIZE": "8mb",
    "HF_XET_RECONSTRUCTION_DOWNLOAD_BUFFER_LIMIT": "72mb",
    "HF_XET_CLIENT_AC_MAX_DOWNLOAD_CONCURRENCY": "8",
    # And on disk: nothing is kept of what passes.
    "HF_XET_CHUNK_CACHE_SIZE_BYTES": "0",
    "HF_XET_SHARD_CACHE_SIZE_LIMIT": "0",
}


_PASSED = threading.Event()
"""For the shared rate, which the child has kept to already: it is charged, and nobody waits."""
_PASSED.set()


class Child(Protocol):
    """The download: it is given lines, and gives some."""

    def send(self, message: dict[str, Any]) -> None:
        """A file to bring."""

    def lines(self, seconds: float) -> list[dict[str, Any]]:
        """What it said since, or says within that time."""

    def last_words(self) -> str:
        """Why it ended, once it did; empty while it lives."""

    def end(self) -> None:
        """Let it end, now."""


# The request, the owner (uid, gid), and a directory for what the client keeps.
Start = Callable[[dict[str, Any], tuple[int, int], str], Child]


@dataclass
class _Active:
    """A file that the child is at."""

    job: Job
    rung: Rung
    moved: float
    at: int


class Download:
    """Takes files from the board and has them downloaded. One thread calls `run`."""

    def __init__(
        self, board: Board, hub: errand.Hub, token: str | None, rate: int, shared: pages.Rate,
        say: Callable[[str], None], start: Start, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._board, self._hub, self._token, self._rate, self._shared = board, hub, token, rate, shared
        self._say, self._start_child, self._clock = say, start, clock
        self._ladders = {wanted.name: Ladder(wanted.hub) for wanted in board.errand.sets if wanted.hub}
        self._peers = [peer.name for peer in board.errand.peers]
        self._active: dict[int, _Active] = {}
        self._child: Child | None = None
        self._number = 0
        self._until = 0.0
        self._told_wait = 0.0
        self.trouble = ""
        """What went wrong last, for a message; empty since bytes came."""

    def run(self) -> None:
        """Until the board is over. Raises OSError for a part that cannot be made."""
        try:
            while not self._board.over.is_set():
                if self._clock() >= self._until:
                    self._fill()
                elif self._clock() < self._told_wait:
                    self._board.heard(SOURCE)
                if self._child is None:
                    self._board.over.wait(LOOK_SECONDS)
                    continue
                for said in self._child.lines(LOOK_SECONDS):
                    self._hear(said)
                self._watch()
        finally:
            self._end_child()

    def _fill(self) -> None:
        """Give the child files until it has as many as it works on."""
        while len(self._active) < FILES_AT_ONCE:
            job = self._board.take(SOURCE, self._is_share) or self._board.take(SOURCE, self._may)
            if job is None:
                return
            rung = self._ladders[job.set].rung()
            if rung is None:
                self._board.give_back(job)
                return
            if self._child is None:
                self._child = self._start(job)
            self._number += 1
            self._active[self._number] = _Active(job, rung, self._clock(), job.offset)
            task = Task(
                self._number, rung.repository, rung.revision, job.path, job.size, job.sha256, job.part, rung.xet
            )
            self._child.send(asdict(task))

    def _is_share(self, wanted: errand.Set, path: str) -> bool:
        return wanted.name in self._ladders and path in wanted.fetch

    def _is_of_share(self, job: Job) -> bool:
        return any(job.path in wanted.fetch for wanted in self._board.errand.sets if wanted.name == job.set)

    def _may(self, wanted: errand.Set, path: str) -> bool:
        """Files beside this node's share: when no peer is at them, or none has brought anything for long. What the
        bundle has is not downloaded."""
        if wanted.name not in self._ladders or self._ladders[wanted.name].rung() is None:
            return False
        if self._board.has_declined(SOURCE, wanted, path):
            return False
        if wanted.bundle and not self._board.has_declined(BUNDLE, wanted, path):
            return False
        if not self._peers or not wanted.wait:
            return True
        return self._board.quiet_seconds(self._peers) > self._board.errand.stall_seconds

    def _start(self, job: Job) -> Child:
        request = {
            "client": self._hub.client, "endpoint": self._hub.endpoint, "token": self._token, "rate": self._rate,
        }  # fmt: skip
        # What the client must keep somewhere lies beside the parts, and goes with them.
        home = os.path.join(os.path.dirname(job.part), "home")
        return self._start_child(request, self._board.owner, home)

    # What the child says

    def _hear(self, said: dict[str, Any]) -> None:
        active = self._active.get(said["task"])
        if said.get("failed") == "client":
            self._board.fail(
                f"huggingface_hub cannot be used from {self._hub.client}: {said['text']}. Fix: remove that directory "
                "and run the deploy again"
            )
        if active is None:
            return
        if "at" in said:
            self._moved(active, said["at"])
        elif "read" in said:
            active.moved = self._clock()
        elif "done" in said:
            self._done(said["task"], active, said["done"])
        else:
            self._failed(said["task"], active, said["failed"], said["text"], said.get("after", 0.0))

    def _moved(self, active: _Active, at: int) -> None:
        if at > active.at:
            self._ladders[active.job.set].moved()
            self._shared.take(at - active.at, _PASSED)
            self.trouble = ""
        active.at, active.moved = at, self._clock()
        self._board.progress(active.job, at)

    def _done(self, number: int, active: _Active, sha256: str) -> None:
        del self._active[number]
        if not self._board.done(active.job, sha256):
            self._ladders[active.job.set].wrong(active.rung)
            self._tell(active, f"sent other bytes for {active.job.path} (sha256 {sha256[:12]}, "
                               f"wanted {active.job.sha256[:12]}); thrown away")  # fmt: skip

    def _failed(self, number: int, active: _Active, kind: str, text: str, after: float) -> None:
        del self._active[number]
        ladder, job = self._ladders[active.job.set], active.job
        if kind == "wrong":
            self._board.done(job, "")
            ladder.wrong(active.rung)
            self._tell(active, f"{job.path}: {text}")
            return
        if kind == "absent" and not self._is_of_share(job):
            # What an operator laid beside the weights is on the other node, and on no hub.
            self._board.decline(SOURCE, job)
            return
        self._board.give_back(job)
        is_gone = kind in ("gone", "absent")
        if kind == "full":
            self._board.full()
        elif kind in ("disk", "gated") or (is_gone and not ladder.is_gone(active.rung)):
            self._board.fail(f"{job.set}: {text}")
        elif is_gone:
            self._tell(active, f"{text.partition(' Fix:')[0]} {self._next(ladder, active.rung)}")
        elif kind == "busy":
            seconds = ladder.asked_to_wait(active.rung, after)
            self._wait(seconds, is_told=after > 0)
            self._tell(active, f"{text}; {self._next(ladder, active.rung)} in {seconds:.0f} s")
        else:
            seconds = ladder.failed(active.rung)
            self._wait(seconds, is_told=False)
            self._tell(active, f"{text} ({job.path}); {self._next(ladder, active.rung)} in {seconds:.0f} s")

    def _wait(self, seconds: float, is_told: bool) -> None:
        self._until = max(self._until, self._clock() + seconds)
        if is_told:
            self._told_wait = self._until

    def _next(self, ladder: Ladder, tried: Rung) -> str:
        rung = ladder.rung()
        return "" if rung is None else described(rung, tried)

    def _tell(self, active: _Active, text: str) -> None:
        text = f"{active.rung.repository}: {text}"
        if text != self.trouble:
            self._say(f"{active.job.set}: {text}")
        self.trouble = text

    def _watch(self) -> None:
        """End a child that hangs or died; what its files have stays."""
        stall = self._board.errand.stall_seconds
        stalled = [active for active in self._active.values() if self._clock() - active.moved > stall]
        died = self._child is not None and self._child.last_words()
        if died:
            self._lose_all(f"the download ended by itself: {died}")
        elif stalled:
            self._lose_all(f"no byte for {stall:.0f} s")

    def _lose_all(self, text: str) -> None:
        self._end_child()
        for number, active in list(self._active.items()):
            self._failed(number, active, "lost", text, 0.0)

    def _end_child(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None
        if self._board.over.is_set():
            for active in self._active.values():
                self._board.give_back(active.job)
            self._active.clear()


class Process:
    """The download as a process of its own, which runs as the owner of the files."""

    def __init__(
        self, request: dict[str, Any], owner: tuple[int, int], home: str,
        program: Sequence[str] = (*paths.PROGRAM, "fetch"),
    ) -> None:  # fmt: skip
        uid, gid = owner
        identity: dict[str, Any] = {}
        if os.geteuid() == 0:
            groups = os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
            identity = {"user": uid, "group": gid, "extra_groups": groups}
        self._errors: IO[bytes] = os.fdopen(os.memfd_create("sparkpair-fetch"), "w+b")
        self._process = subprocess.Popen(
            list(program), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, cwd="/",
            env={**ENVIRONMENT, "HOME": home, "HF_HOME": home}, **identity,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._token = request["token"]
        self._held = b""
        self._is_over = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)
        self.send(request)

    def send(self, message: dict[str, Any]) -> None:
        """A line of its input; a child that has died is seen by its output."""
        try:
            self._input.write(json.dumps(message).encode() + b"\n")
            self._input.flush()
        except BrokenPipeError:
            return

    def lines(self, seconds: float) -> list[dict[str, Any]]:
        """What it said since, or says within that time."""
        if self._is_over or not self._selector.select(seconds):
            return []
        data = os.read(self._output.fileno(), 1 << 16)
        self._is_over = not data
        *whole, self._held = (self._held + data).split(b"\n")
        return [json.loads(line) for line in whole]

    def last_words(self) -> str:
        """Why it ended, once it did; empty while it lives."""
        if not self._is_over:
            return ""
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read()[-2000:].decode(errors="replace").strip().splitlines()
        last = said[-1][:200] if said else f"exit code {code}" if code >= 0 else f"signal {-code}"
        return last.replace(self._token, "<token>") if self._token else last

    def end(self) -> None:
        """End it. What it has buffered it writes, if it can; what a part has is looked up when it is taken again."""
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._selector.close()
        for stream in (self._input, self._output, self._errors):
            try:
                stream.close()
            except BrokenPipeError:
                continue
