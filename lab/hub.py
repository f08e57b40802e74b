"""Stand-in (hub double) for the far side of the internet only: what a real huggingface_hub asks through HF_ENDPOINT.

Three listeners, as the real hub has three hosts: the hub (API, small files, redirects of LFS files), its CDN, which
must never see a token, and the store of xet, of which there is only the failure. Every request is kept in a log, by
which a test tells what was fetched twice; faults are programmed per repository and file.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from lab.hub_log import CAS, CDN, HUB, Fault, Request, sent
from lab.hub_pages import CHUNK, Answer
from lab.repositories import TOKENS, Digests, Repository

LINK_SECONDS = 3600.0
"""How long an address at the CDN is valid."""


class Listener:
    """A port on which each connection has a thread; it can be closed and opened again under the same number."""

    def __init__(self, double: Double, name: str, host: str, port: int) -> None:
        self.double, self.name = double, name
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self.address = (host, port)
        self.open()

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    def open(self) -> None:
        """Listen."""
        if self._socket is None:
            made = socket.create_server(self.address, backlog=64)
            self.address = made.getsockname()[:2]
            self._socket = made
            threading.Thread(target=self._accept, args=(made,), daemon=True).start()

    def close(self) -> None:
        """Let connections be refused, and end those that are open."""
        with self._lock:
            listening, self._socket = self._socket, None
            connections = list(self._connections)
        if listening is not None:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
            listening.close()
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, address = listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection, address), daemon=True).start()

    def _serve(self, connection: socket.socket, address: tuple[str, int]) -> None:
        with self._lock:
            self._connections.add(connection)
        try:
            # What waits in the kernel counts as sent, so that little may wait there.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * CHUNK)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            Answer(connection, address, self)
        except (ConnectionError, TimeoutError):
            pass  # the client's right; the log tells how much it had
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()


class Double:
    """The far side: its repositories, its faults, its log."""

    def __init__(
        self,
        repositories: Iterable[Repository],
        addresses: tuple[tuple[str, int], ...],
        tokens: dict[str, str],
        digests: Digests,
        link_seconds: float,
    ) -> None:
        self.repositories = {repository.name: repository for repository in repositories}
        self.tokens, self.digests, self.link_seconds = tokens, digests, link_seconds
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._number = 0
        self.listeners = {
            name: Listener(self, name, *address) for name, address in zip((HUB, CDN, CAS), addresses, strict=True)
        }

    @property
    def endpoint(self) -> str:
        """What HF_ENDPOINT is set to."""
        return self.listeners[HUB].url

    def fault(self, kind: str, repository: str = "", path: str = "", **more: Any) -> Fault:
        """Let something go wrong from now on; the words are those of Fault."""
        made = Fault(kind, repository, path, **more)
        with self._lock:
            self.faults.append(made)
        if kind == "refuse":
            self._refused(made).close()
        return made

    def holds(self, fault: Fault) -> bool:
        """Whether a fault was not cleared yet."""
        return any(each is fault for each in self.faults)

    def clear(self) -> None:
        """No faults from now on. What is slow goes on fast; what stalls waits until its client leaves."""
        with self._lock:
            old, self.faults = self.faults, []
        for fault in old:
            if fault.kind == "refuse":
                self._refused(fault).open()

    def _refused(self, fault: Fault) -> Listener:
        return self.listeners[fault.host or HUB]

    def forget(self) -> None:
        """Empty the log."""
        with self._lock:
            self.requests = []

    def move(self, repository: str, branch: str, revision: str) -> None:
        """Let a branch point to another commit."""
        self.repositories[repository].move(branch, revision)

    def files(self, repository: str, revision: str = "main") -> dict[str, tuple[int, str]]:
        """Size and sha256 of each file of a revision."""
        commit = self.repositories[repository].find(revision)
        if commit is None:
            raise KeyError(revision)
        return {path: (content.size, self.digests.of(content)) for path, content in commit.files.items()}

    def sent(self, repository: str = "", file: str = "", client: str = "") -> int:
        """Bytes of file contents that were sent since the log was emptied."""
        return sent(self.requests, repository, file, client)

    def take(self, kinds: Iterable[str], request: Request, start: int = 0, end: int = 0) -> Fault | None:
        """The first fault that is due for a request whose body is bytes `start` to `end`; it counts as happened."""
        with self._lock:
            for fault in self.faults:
                if fault.kind not in kinds or not fault.fits(request):
                    continue
                if fault.kind in ("stall", "truncate", "corrupt", "reset") and not start <= fault.at < end:
                    continue
                fault.happened += 1
                request.fault = f"{request.fault} {fault.kind}".strip()
                return fault
        return None

    def seen(self, host: str, client: str, method: str, target: str) -> Request:
        """A new entry of the log."""
        with self._lock:
            self._number += 1
            made = Request(self._number, host, client, method, target)
            self.requests.append(made)
        return made

    def unseen(self) -> Request:
        """An entry that the log does not keep."""
        return Request(0, HUB, "", "", "")

    def control(self, method: str, words: list[str], query: dict[str, str], body: bytes) -> object:
        """What the control path answers. Raises KeyError, TypeError and ValueError for what it does not know."""
        said: dict[str, Any] = json.loads(body) if body else {}
        match method, words:
            case "POST", ["faults"]:
                return asdict(self.fault(**said))
            case "GET", ["faults"]:
                return [asdict(fault) for fault in self.faults]
            case "DELETE", ["faults"]:
                self.clear()
            case "GET", ["requests"]:
                since = int(query.get("since", "0"))
                return [asdict(request) for request in list(self.requests) if request.number > since]
            case "DELETE", ["requests"]:
                self.forget()
            case "POST", ["branch"]:
                self.move(said["repository"], said["branch"], said["revision"])
            case "GET", ["files", owner, name, revision]:
                return self.files(f"{owner}/{name}", revision)
            case "GET", ["repositories"]:
                return sorted(self.repositories)
            case _:
                raise KeyError(f"{method} {'/'.join(words)}")
        return {}

    def close(self) -> None:
        """End every connection and listen no more."""
        self.closing.set()
        for listener in self.listeners.values():
            listener.close()


@contextlib.contextmanager
def serving(
    repositories: Iterable[Repository],
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    elsewhere: str = "127.0.0.2",
    tokens: dict[str, str] | None = None,
    digests: Digests | None = None,
    link_seconds: float = LINK_SECONDS,
) -> Iterator[Double]:
    """The far side for the time of the block; with a port, the CDN and the store of xet have the two after it.

    They listen at the address `elsewhere`: by its host name the client tells that a redirect leaves the hub.
    """
    ports = (port, port + 1, port + 2) if port else (0, 0, 0)
    addresses = tuple(zip((host, elsewhere, elsewhere), ports, strict=True))
    double = Double(repositories, addresses, TOKENS if tokens is None else tokens, digests or Digests(), link_seconds)
    try:
        yield double
    finally:
        double.close()
