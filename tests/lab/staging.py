"""Staging on the simulated pair in the hands of a test: locks, runs of stage.py, and what arrived where."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lab import settings
from lab.hub_service import Remote
from lab.settings import HOSTS, Host
from tests.lab import pair

UNIT = "sparkpair-stage"
PLACE = "/srv/staged"
LOCKS = settings.LAB / "locks"
MIB = 2**20
IN_FLIGHT = 6 * MIB
"""What a connection that was cut may have had in the kernel at both ends: it counts as sent, and did not arrive."""

Files = dict[str, tuple[int, str]]


@dataclass(frozen=True)
class Errand:
    """What a row stages: a repository into a directory of the same name on both hosts."""

    repository: str
    revision: str = "main"
    more: tuple[str, ...] = ()
    """Further knobs, `knob=value`."""
    stall_seconds: int = 10
    """After so long without a byte of its peer a host downloads the peer's share, too."""
    engine: str = "contract"
    """Whose image the settings name: `contract` or `engine` (lab/README.md)."""

    @property
    def directory(self) -> str:
        return f"{PLACE}/{self.repository.replace('/', '-')}"

    @property
    def lock(self) -> Path:
        """Where its lock file lies."""
        return LOCKS / f"{self.repository.replace('/', '-')}.lock"

    def data(self) -> tuple[str, ...]:
        """Arguments of pyinfra and of lock.py."""
        knobs = [
            f"image={pair.images()[self.engine]}",
            f"weights_repository={self.repository}",
            f"weights_path={self.directory}",
            f"hub_endpoint={settings.HUB}",
            f"lock_file={self.lock}",
            f"download_stall_seconds={self.stall_seconds}",
            *self.more,
        ]
        return tuple(word for knob in knobs for word in ("--data", knob))


def environment(token: str) -> dict[str, str]:
    """What the control machine's client reads its token from; nothing of the person who runs the tests."""
    return {"HF_HOME": str(LOCKS / "home"), "HF_TOKEN": token, "HF_HUB_OFFLINE": "0"}


def make_lock(errand: Errand, *arguments: str, token: str = "") -> pair.Run:
    """A run of lock.py on the control machine."""
    LOCKS.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "../lock.py", *arguments, *errand.data()],
        cwd=settings.SOURCE, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **environment(token)},
    )  # fmt: skip
    return pair.Run(done.returncode, done.stdout + done.stderr, 0.0)


def locked(errand: Errand) -> Errand:
    """The errand, with its lock as the hub stands."""
    run = make_lock(errand)
    assert run.code == 0, run.text
    return errand


def start(errand: Errand, *arguments: str, token: str = "") -> pair.Deploy:
    """Begin a run of stage.py."""
    words = ("-y", *errand.data(), *arguments, "inventory.py", "../stage.py")
    return pair.start_deploy(*words, env=environment(token))


def stage(errand: Errand, *arguments: str, token: str = "") -> pair.Run:
    """A whole run of stage.py."""
    return start(errand, *arguments, token=token).wait(300)


def plan(errand: Errand) -> dict[str, list[str]]:
    """What a run would change."""
    return pair.dry(*errand.data(), "inventory.py", "../stage.py").plan


def forget(errand: Errand) -> None:
    """Both hosts without the directory and all that is known of it, no unit at work; an empty log and no faults at the
    hub."""
    far = Remote()
    far.clear()
    far.forget()
    name = errand.directory.strip("/").replace("/", "-")
    for host in HOSTS.values():
        pair.on(
            host,
            f"systemctl stop {UNIT} sparkpair-weights-serve 2>/dev/null; "
            f"systemctl reset-failed {UNIT} sparkpair-weights-serve 2>/dev/null; "
            f"rm -rf {errand.directory} /var/lib/sparkpair/weights/{name}-*",
            check=False,
        )


# --- what arrived


def assert_arrived(errand: Errand, wanted: Files | None = None) -> None:
    """Every file of the repository is on both hosts to the byte, and nothing else is; no part is left."""
    wanted = wanted if wanted is not None else Remote().files(errand.repository, errand.revision)
    for host in HOSTS.values():
        told = pair.on(host, f"cd {errand.directory} && find . -type f -print0 | xargs -0 sha256sum")
        found = {
            path.removeprefix("./"): sha256 for sha256, path in (line.split("  ", 1) for line in told.splitlines())
        }
        differs = sorted({*found.items()} ^ {(path, sha256) for path, (_, sha256) in wanted.items()})
        assert not differs, f"{host.name}: {differs[:4]}"


def state(errand: Errand) -> dict[str, list[str]]:
    """What a refusal must leave as it is, by host: the directory, what is known of weights, settings, programs, units.
    What keeper and agent write while a pair serves is not among it."""
    places = f"{errand.directory} /var/lib/sparkpair/weights /etc/sparkpair /usr/local/lib/sparkpair*"
    command = (
        f"find {places} -printf '%p %s %T@\\n' 2>/dev/null | sort; ls -d /run/sparkpair/errand* /run/sparkpair/hub*; "
        "systemctl list-units 'sparkpair*' --all --plain --no-legend"
    )
    return {host.name: pair.on(host, command, check=False).splitlines() for host in HOSTS.values()}


def assert_unchanged(errand: Errand, before: dict[str, list[str]]) -> None:
    """The state is what it was."""
    for name, lines in state(errand).items():
        differs = sorted({*lines} ^ {*before[name]})
        assert not differs, f"{name}: changed: {differs[:4]}"


def size(errand: Errand) -> int:
    """Bytes of the repository."""
    return sum(count for count, _ in Remote().files(errand.repository, errand.revision).values())


def sent(errand: Errand, file: str = "", host: Host | None = None) -> int:
    """Bytes that the hub sent of it, of whichever mirror, since `forget`."""
    del errand
    return Remote().sent(file=file, client=host.address if host else "")


def assert_sent_once(errand: Errand, spoilt: tuple[str, ...] = ()) -> int:
    """The hub sent each byte once over both hosts, but for what a connection that was cut had in flight; a file that
    was spoilt on its way, as often as it was begun. Tells the bytes in all."""
    requests = [request for request in Remote().requests if request.sent and request.file]
    for path, (count, _) in Remote().files(errand.repository, errand.revision).items():
        of_file = [request for request in requests if request.file == path]
        hosts = {request.client for request in of_file}
        assert len(hosts) <= 1, f"{path} was downloaded by {hosts}"
        limit = count * len(of_file) if path in spoilt else count + max(len(of_file) - 1, 0) * IN_FLIGHT
        total = sum(request.sent for request in of_file)
        assert total <= limit, (
            f"{path}: {total} bytes of {count} sent in {len(of_file)} parts, at most {limit} expected"
        )
    return sum(request.sent for request in requests)


def wait_sent(errand: Errand, count: int, seconds: float = 60) -> None:
    """Until the hub has sent so many bytes."""
    pair.wait_for(lambda: sent(errand) >= count, seconds, f"{count} bytes from the hub", 0.05)


def unit_state(host: Host) -> str:
    """What systemd says of the staging unit."""
    return pair.on(host, f"systemctl is-active {UNIT}", check=False).strip()


def kill_unit(host: Host) -> None:
    """SIGKILL to every process of the staging unit."""
    pair.on(host, f"systemctl kill --signal=KILL {UNIT}", check=False)


def invocation(host: Host) -> str:
    """Which run of the staging unit is at work; empty when none is."""
    if unit_state(host) != "active":
        return ""
    return pair.on(host, f"systemctl show --property=InvocationID --value {UNIT}").strip()
