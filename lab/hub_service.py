"""The hub double as a part of the lab: the program that `up` runs beside the registry, and how a test steers it."""

from __future__ import annotations

import json
import signal
import sys
import threading
import urllib.error
import urllib.request
from typing import Any

from lab import hub, settings
from lab.hub_log import Fault, Request, sent
from lab.hub_pages import CONTROL
from lab.repositories import Digests, of_the_lab
from lab.shell import LabError, daemon, end, inside, quiet, recorded, run, wait_until

RECORD = settings.LAB / "hub.json"
LOG = settings.LAB / "hub.log"
DIGESTS = settings.CACHE / "hub-sha256.json"
START_SECONDS = 60
"""The sha256 of 2 GiB is computed before the first start answers; later starts read it."""


def start() -> None:
    """Serve the lab's repositories to the hosts from the control namespace."""
    address = f"{settings.CDN_ADDRESS}/{settings.MANAGEMENT_PREFIX}"
    run("ip", "-n", settings.CONTROL_NAMESPACE, "addr", "replace", address, "dev", "br0")
    daemon(inside(settings.CONTROL_NAMESPACE, sys.executable, "-m", "lab.hub_service"), LOG, RECORD)
    probe = inside(settings.CONTROL_NAMESPACE, "curl", "-sf", "-m", "2", f"{settings.HUB}{CONTROL}repositories")
    if not wait_until(lambda: quiet(*probe), START_SECONDS, 0.1):
        raise LabError(f"the hub double does not answer at {settings.HUB}; see {LOG}")


def is_running() -> bool:
    """Whether the double that `up` started still runs."""
    return recorded(RECORD) is not None


def stop() -> None:
    """End it."""
    end(RECORD)


class Remote:
    """The lab's double from the control machine, in the words of hub.Double."""

    def __init__(self, endpoint: str = settings.HUB) -> None:
        self.endpoint = endpoint

    def _ask(self, method: str, place: str, **data: Any) -> Any:
        body = json.dumps(data).encode() if data else None
        request = urllib.request.Request(f"{self.endpoint}{CONTROL}{place}", body, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise LabError(f"hub double: {method} {place} said {error.code}: {error.read().decode()}") from None

    def fault(self, kind: str, repository: str = "", path: str = "", **more: Any) -> Fault:
        """Let something go wrong from now on."""
        return Fault(**self._ask("POST", "faults", kind=kind, repository=repository, path=path, **more))

    @property
    def faults(self) -> list[Fault]:
        """What is set to go wrong, and how often it has."""
        return [Fault(**data) for data in self._ask("GET", "faults")]

    def clear(self) -> None:
        """No faults from now on."""
        self._ask("DELETE", "faults")

    @property
    def requests(self) -> list[Request]:
        """Everything that was asked since the log was emptied."""
        return [Request(**data) for data in self._ask("GET", "requests")]

    def forget(self) -> None:
        """Empty the log."""
        self._ask("DELETE", "requests")

    def move(self, repository: str, branch: str, revision: str) -> None:
        """Let a branch point to another commit."""
        self._ask("POST", "branch", repository=repository, branch=branch, revision=revision)

    def files(self, repository: str, revision: str = "main") -> dict[str, tuple[int, str]]:
        """Size and sha256 of each file of a revision."""
        found = self._ask("GET", f"files/{repository}/{revision}")
        return {path: (size, digest) for path, (size, digest) in found.items()}

    def sent(self, repository: str = "", file: str = "", client: str = "") -> int:
        """Bytes of file contents that were sent since the log was emptied."""
        return sent(self.requests, repository, file, client)


def main() -> None:
    """Serve until SIGTERM."""
    digests = Digests(DIGESTS)
    repositories = of_the_lab()
    for repository in repositories:
        for commit in repository.commits.values():
            for content in commit.files.values():
                digests.of(content)
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    with hub.serving(
        repositories, settings.CONTROL_ADDRESS, settings.HUB_PORT, elsewhere=settings.CDN_ADDRESS, digests=digests
    ):
        over.wait()


if __name__ == "__main__":
    main()
