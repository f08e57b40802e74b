"""The way to the engine's API: one HTTP request at a time, in a thread, with the key that the engine asks for."""

from __future__ import annotations

import asyncio
import http.client
import socket
from dataclasses import dataclass

from node import secret
from node.journal import log
from node.threads import in_thread


@dataclass(frozen=True)
class Api:
    """Where the engine answers, on the head itself."""

    port: int
    model: str
    ready_path: str = "/health"
    metrics_path: str = "/metrics"
    host: str = "127.0.0.1"
    key_file: str = ""
    """Where the key is that the engine asks for; "" where it asks for none."""


class Request:
    """One request. `abandon` ends it from outside, so that the engine drops what it does for it, too."""

    def __init__(self, method: str, path: str, timeout_seconds: float, body: str = "", mark: str = "") -> None:
        self.method, self.path, self.timeout_seconds = method, path, timeout_seconds
        self.body = body
        self.mark = mark
        """Its X-Request-Id."""
        self._socket: socket.socket | None = None
        self._abandoned = False

    def send(self, api: Api, key: str = "") -> tuple[int, bytes]:
        """Blocks. Status and body; raises OSError or HTTPException."""
        connection = http.client.HTTPConnection(api.host, api.port, timeout=self.timeout_seconds)
        headers = {"Content-Type": "application/json", "X-Request-Id": self.mark} if self.body else {}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        try:
            connection.connect()
            self._socket = connection.sock
            if self._abandoned:
                raise ConnectionAbortedError("nobody waits for the answer any more")
            connection.request(self.method, self.path, self.body or None, headers)
            # Closed by itself: of an answer that broke off it holds the socket, which the connection has given away.
            with connection.getresponse() as response:
                return response.status, response.read()
        finally:
            self._socket = None
            connection.close()

    def abandon(self) -> None:
        """From another thread: nobody waits for the answer any more."""
        self._abandoned = True
        if (held := self._socket) is not None:
            try:
                held.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it ended by itself


class Door:
    """The API behind its key: the one in the key's file, or the one of the engine's start once the file is another."""

    def __init__(self) -> None:
        self._proven = ""

    def forget(self) -> None:
        """The engine that took the key is gone."""
        self._proven = ""

    async def through(self, api: Api, request: Request) -> tuple[int, bytes]:
        """Status and body. Raises OSError, HTTPException or SecretError; cancelled, it abandons the request."""
        try:
            return await in_thread(self._with_key, api, request)
        except asyncio.CancelledError:
            request.abandon()
            raise

    def _with_key(self, api: Api, request: Request) -> tuple[int, bytes]:
        if not api.key_file:
            return request.send(api)
        trouble = f"{api.key_file} was changed"
        try:
            key = secret.read(api.key_file)
        except secret.SecretError as error:
            if not self._proven:
                raise
            trouble = str(error)
        else:
            status, answer = request.send(api, key)
            if status == 200:
                self._proven = key
            if status != 401 or self._proven in ("", key):
                return status, answer
        # The engine asks for the key of its start until it is restarted: what became of the file meanwhile is no fault.
        status, answer = request.send(api, self._proven)
        if status != 401:
            log(f"{trouble}; the engine is asked with the key of its start until deploy.py restarts it", "warning")
        return status, answer


def locked_out(api: Api) -> str:
    """What an answer of 401 means."""
    if not api.key_file:
        return "the engine asks for a key, and is to ask for none (HTTP 401)"
    return f"the engine asks for another key than {api.key_file} holds (HTTP 401)"
