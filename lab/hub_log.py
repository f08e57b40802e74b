"""What the hub double (lab/hub.py) is told to do wrong, and what it saw: a fault and a request as data."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

KINDS = ("stall", "truncate", "corrupt", "reset", "status", "size", "slow", "refuse")
HUB, CDN, CAS = "hub", "cdn", "cas"
"""The three hosts of the far side."""


@dataclass
class Fault:
    """What goes wrong, where, and how often.

    stall, reset, truncate: the body ends at byte `at` of the file, by silence, by RST, or by a close too early.
    corrupt: byte `at` is another one. status: the answer is `status`, with Retry-After when it is stated.
    size: the file is told to have `at` bytes, and has. slow: `rate` bytes per second. refuse: nobody listens.
    """

    kind: str
    repository: str = ""
    path: str = ""
    """Empty: every one."""
    host: str = ""
    """hub, cdn; empty: whichever sends the file's bytes, and for `status` both."""
    client: str = ""
    """The address of the one client that has this fault; empty: all."""
    at: int = 0
    times: int | None = None
    """How often; None: until it is cleared."""
    status: int = 503
    retry_after: int | None = None
    rate: int = 0
    happened: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"fault {self.kind!r}: one of {', '.join(KINDS)}")

    def fits(self, request: Request) -> bool:
        """Whether it is meant for this request and not used up."""
        return (
            self.repository in ("", request.repository)
            and self.path in ("", request.file)
            and self.host in ("", request.host)
            and self.client in ("", request.client)
            and (self.times is None or self.happened < self.times)
        )


@dataclass
class Request:
    """One request as it was seen, and what was sent for it."""

    number: int
    host: str
    client: str
    method: str
    target: str
    """Path and query."""
    repository: str = ""
    file: str = ""
    revision: str = ""
    range: str = ""
    status: int = 0
    sent: int = 0
    """Bytes of the body that were handed to the network."""
    authorized: bool = False
    """Whether an authorization header was seen."""
    fault: str = ""
    finished: bool = False
    when: float = field(default_factory=time.time)


def sent(requests: Iterable[Request], repository: str = "", file: str = "", client: str = "") -> int:
    """Bytes of file contents that these requests were sent."""
    return sum(
        request.sent
        for request in requests
        if request.file
        and repository in ("", request.repository)
        and file in ("", request.file)
        and client in ("", request.client)
    )
