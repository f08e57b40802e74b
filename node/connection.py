"""A kept-alive HTTP/1.1 connection to a peer's server (node/peer.py), every wait bounded; what both say."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from urllib.parse import quote

PREFIX = "/v1/"
DIGEST_HEADER = "X-Sha256"
CONNECT_SECONDS = 3.0
"""On a rail a connection stands within milliseconds."""
LONGEST_STALL_SECONDS = 15.0
"""Without a byte for so long another connection does better, and goes on where this one stopped."""
LOOK_SECONDS = 1.0
"""How often a read that brings nothing looks whether it still makes sense."""
MOST_HEAD_BYTES = 64 * 1024


def index_target(name: str) -> str:
    """What to ask for to know which files of a set are there."""
    return PREFIX + quote(name, safe="")


def file_target(name: str, path: str) -> str:
    """What to ask for to get one file."""
    return f"{index_target(name)}/{quote(path)}"


class WayError(Exception):
    """Nothing comes over this way just now; the message says why."""


class Connection:
    """One connection. `check` is called while nothing comes, and raises what ends the wait."""

    def __init__(self, address: str, port: int, check: Callable[[], None], stall_seconds: float) -> None:
        self.place = f"{address} port {port}"
        self._host = f"{address}:{port}"
        self._check = check
        self._stall_seconds = min(stall_seconds, LONGEST_STALL_SECONDS)
        self._ahead = b""
        self._body: Body | None = None
        try:
            self._socket = socket.create_connection((address, port), CONNECT_SECONDS)
        except OSError as error:
            raise WayError(f"{self.place}: {error.strerror or error}") from None
        # The kernel's own timeout: with Python's, a receive could not wait for a whole piece (MSG_WAITALL).
        self._socket.settimeout(None)
        bound = struct.pack("ll", *divmod(int(LOOK_SECONDS * 1e6), 10**6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bound)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bound)

    @property
    def is_idle(self) -> bool:
        """Whether the last answer was read to its end, so that more may be asked."""
        return self._body is None or self._body.left == 0

    def get(self, target: str, offset: int = 0) -> Body:
        """Ask for a target, from a byte on. It must be idle. Raises WayError."""
        asked = f"GET {target} HTTP/1.1\r\nHost: {self._host}\r\n"
        asked += f"Range: bytes={offset}-\r\n\r\n" if offset else "\r\n"
        try:
            self._socket.sendall(asked.encode())
        except OSError as error:
            raise self._lost(error) from None
        head = bytearray(self._ahead)
        space = memoryview(bytearray(4096))
        while b"\r\n\r\n" not in head:
            head += space[: self._receive(space, 0)]
            if len(head) > MOST_HEAD_BYTES:
                raise WayError(f"{self.place} does not answer as a server of ours")
        text, _, self._ahead = bytes(head).partition(b"\r\n\r\n")
        self._body = Body(self, text.decode("latin-1"))
        return self._body

    def read_into(self, space: memoryview) -> int:
        """Fill the space with bytes of the body, or as much of it as comes within a second. Raises WayError."""
        if self._ahead:
            count = min(len(self._ahead), len(space))
            space[:count] = self._ahead[:count]
            self._ahead = self._ahead[count:]
            return count
        return self._receive(space, socket.MSG_WAITALL)

    def close(self) -> None:
        self._socket.close()

    def _receive(self, space: memoryview, flags: int) -> int:
        began = time.monotonic()
        while True:
            try:
                count = self._socket.recv_into(space, len(space), flags)
            except BlockingIOError:
                self._check()
                if time.monotonic() - began >= self._stall_seconds:
                    raise WayError(f"{self.place}: no byte for {self._stall_seconds:g} s") from None
                continue
            except OSError as error:
                raise self._lost(error) from None
            if count == 0:
                raise WayError(f"{self.place} closed the connection")
            return count

    def _lost(self, error: OSError) -> WayError:
        return WayError(f"{self.place}: {error.strerror or error}")


class Body:
    """An answer: its code and headers (names in small letters), and the bytes that are still to be read."""

    def __init__(self, connection: Connection, head: str) -> None:
        self._connection = connection
        first, *lines = head.split("\r\n")
        try:
            self.code = int(first.split(" ")[1])
            self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            self.left = int(self.headers["content-length"])
        except (ValueError, IndexError, KeyError):
            raise WayError(f"{connection.place} does not answer as a server of ours: {first[:80]!r}") from None

    def expect(self, code: int, size: int) -> None:
        """Raises WayError when it is another answer than this code with so many bytes."""
        if (self.code, self.left) != (code, size):
            raise WayError(
                f"{self._connection.place} answers {self.code} with {self.left} bytes, wanted {code} with {size}"
            )

    def read_into(self, space: memoryview) -> int:
        """At most so many of its bytes as fit; at least one. Raises WayError."""
        count = self._connection.read_into(space[: self.left])
        self.left -= count
        return count

    def read(self, most: int) -> bytes:
        """All of it, when it is no longer than `most` bytes. Raises WayError."""
        if self.left > most:
            raise WayError(f"{self._connection.place} answers {self.left} bytes, at most {most} make sense")
        whole = bytearray(self.left)
        at = 0
        while self.left:
            at += self.read_into(memoryview(whole)[at:])
        return bytes(whole)
