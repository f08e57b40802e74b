"""Blobs over several ways as one stream: what one way does not bring, the next one goes on with, at the same byte."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from node import oci
from node.journal import log

PATIENCE_SECONDS = 120.0
"""Without a byte over any way, until whoever asked is told that none comes."""
LONGEST_WAIT_SECONDS = 30.0
FIRST_WAIT_SECONDS = 1.0
SHUNNED_SECONDS = 30.0
"""A way that has just failed is the last choice for so long."""
HOPELESS = (401, 403, 404)
"""HTTP statuses that waiting does not cure."""


class Client(Protocol):
    """One way to one repository: node.oci.Client, or what stands for it."""

    def manifest(self, reference: str) -> oci.Manifest:
        """The manifest of that digest."""

    def blob(self, digest: str, offset: int = 0) -> tuple[Generator[bytes, None, None], int]:
        """Its bytes from the offset on, and its size."""


class Source(Protocol):
    """Where a registry takes its answers from."""

    def manifest(self, digest: str) -> oci.Manifest:
        """The manifest of that digest. Raises OciError."""

    def read(self, digest: str, size: int, begin: int) -> Iterator[bytes]:
        """The bytes of a blob from `begin` to its end. Raises OciError."""


@dataclass
class Way:
    """One way with what is known of it."""

    name: str
    client: Client
    at_work: int = 0
    failed_at: float = float("-inf")
    """Seconds of the clock."""


class Relay:
    """Ways to one repository. Blobs that are read at the same time are spread over the ways. Threads may share it."""

    def __init__(
        self,
        ways: Sequence[Way],
        patience: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._ways = list(ways)
        self._patience = patience
        self._clock = clock
        self._wait = wait
        self._turn = threading.Lock()

    def manifest(self, digest: str) -> oci.Manifest:
        """The manifest of that digest, over the first way that brings it."""
        attempts = _Attempts(self, f"manifest {digest[:19]}")
        while True:
            way = self._begin(attempts.failed)
            try:
                return way.client.manifest(digest)
            except oci.OciError as error:
                attempts.lost(way, error)
            finally:
                self._end(way)

    def read(self, digest: str, size: int, begin: int = 0) -> Iterator[bytes]:
        """The bytes of a blob from `begin` to its end. Only what one way brings as a whole is compared with the digest
        here: whoever keeps it compares it."""
        attempts = _Attempts(self, f"blob {digest[:19]}")
        at = begin
        while at < size:
            way = self._begin(attempts.failed)
            try:
                parts, found = way.client.blob(digest, at)
                with closing(parts):
                    if found != size:
                        raise oci.WrongBytes(f"{way.name}: blob {digest[:19]} has {found} bytes, wanted {size}")
                    for part in parts:
                        at += len(part)
                        attempts.progress()
                        yield part
            except oci.WrongBytes:
                raise
            except oci.OciError as error:
                attempts.lost(way, error)
            finally:
                self._end(way)

    def _begin(self, failed: Sequence[Way]) -> Way:
        """The way that has least to do, of those that did not just fail."""
        now = self._clock()
        with self._turn:
            way = min(
                self._ways,
                key=lambda way: (way in failed, now - way.failed_at < SHUNNED_SECONDS, way.at_work),
            )
            way.at_work += 1
            return way

    def _end(self, way: Way) -> None:
        with self._turn:
            way.at_work -= 1


class _Attempts:
    """What has failed since the last byte."""

    def __init__(self, relay: Relay, what: str) -> None:
        self._relay = relay
        self._what = what
        self._last = relay._clock()
        self._pause = FIRST_WAIT_SECONDS
        self.failed: list[Way] = []

    def progress(self) -> None:
        """A byte came."""
        self._last = self._relay._clock()
        self._pause = FIRST_WAIT_SECONDS
        self.failed.clear()

    def lost(self, way: Way, error: oci.OciError) -> None:
        """Wait before the next attempt if every way has failed; raises what no waiting cures."""
        now = way.failed_at = self._relay._clock()
        others = [other for other in self._relay._ways if other not in (*self.failed, way)]
        if others:
            self.failed.append(way)
            log(f"{self._what}: {error}; going on over {others[0].name}", "warning")
            return
        self.failed.clear()
        if error.status in HOPELESS:
            raise error
        left = self._last + self._relay._patience - now
        if left <= 0:
            raise oci.OciError(f"{error} (no byte for {self._relay._patience:.0f} s)", error.status)
        pause = max(self._pause, error.retry_after or 0.0)
        log(f"{self._what}: {error}; again in {min(pause, left):.0f} s", "warning")
        self._pause = min(self._pause * 2, LONGEST_WAIT_SECONDS)
        self._relay._wait(min(pause, left))
