"""The rank agent: starts, stops and reports this node's rank for the keeper, and ends it when its lease runs out."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import grp
import hashlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node import alive, gids, health, memory, merged, network, nfs, paths, report, secret, wire
from node.docker import Container, Docker, DockerError
from node.journal import log
from node.lines import listen
from node.threads import in_thread

RUN_TIMEOUT_SECONDS = 180.0
"""`docker run -d` returns within seconds; much longer means that Docker itself is stuck."""
LOGS_KEPT = 10
ADMITTED_KEPT = 100
"""Rank texts that may be started here again; more than the keeper's longest row of generations."""
LOG_LINES_KEPT = 400
LOG_LINES_ASKED = 5000
LOG_BYTES_ASKED = 2_000_000
"""Of one answer, which is one message (node.wire.MAX_LINE)."""
LOG_SECONDS = 20.0
LOOKED = re.compile(r'"GET /(?:health|metrics) HTTP/1\.[01]" 200')
"""What the engine logs of the keeper's looks, and of other monitors'."""
LOOKS_PER_LINE = 50
"""So many more are read, since between two lines of an idle engine there may be minutes of looks."""
LEASE_CHECK_SECONDS = 0.5
CLOCKS_SECONDS = 300.0
"""Between two questions to nvidia-smi, which is a program of some size."""
DOCKER_LOOK_SECONDS = 1.5
"""Well below the keeper's patience with an answer (node.link.POLL_SECONDS)."""
LEASE_STOP_GRACE_SECONDS = 2.0


def boottime() -> float:
    """Seconds since boot, suspended time included; no clock step moves it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class Lease:
    """Until when this node's rank may run without word from the keeper."""

    epoch: int = 0
    deadline: float | None = None
    """Seconds of `boottime`; None: no keeper has been seen since boot."""


@dataclass(frozen=True)
class Places:
    """Where the agent keeps things; tests give their own."""

    socket: Path = paths.AGENT_SOCKET
    lease: Path = paths.AGENT_LEASE
    state: Path = paths.AGENT_STATE
    wanted: Path = paths.WANTED_RANK
    logs: Path = paths.LOGS
    admitted: Path = paths.ADMITTED
    weights: Path = paths.WEIGHTS
    cgroups: tuple[Path, ...] = paths.ENGINE_CGROUPS
    infiniband: Path = gids.SYSFS
    net: Path = Path("/sys/class/net")
    secrets: Path = paths.SECRETS
    units: Path = paths.UNITS
    machine_id: Path = Path(secret.MACHINE_ID)
    proc: Path = Path("/proc")
    meminfo: Path = Path(memory.MEMINFO)
    rank: Path = paths.RANK_STATE
    recorded: Path = paths.MEMORY
    drop_caches: Path = Path(memory.DROP_CACHES)
    kmsg: Path = health.KMSG


class Refused(Exception):
    """The request is not carried out; the message goes to the keeper."""


class Agent:
    """One node's rank. Requests come from one keeper at a time: an epoch below the highest seen is refused."""

    def __init__(
        self, docker: Docker, places: Places | None = None, clock: Callable[[], float] = boottime, code: str = ""
    ) -> None:
        self._docker = docker
        self._places = places or Places()
        self._clock = clock
        self._code = code
        self._incarnation = secrets.token_hex(4)
        self._lease = self._load_lease()
        self._work: asyncio.Task[None] | None = None
        self._looking: asyncio.Future[list[Container]] | None = None
        self._asking: asyncio.Future[None] | None = None
        self._doing = ""
        self._error = ""
        self._ended: Path | None = None
        """The last lines of a rank of the last start, once it has ended."""
        self._frozen_since: float | None = None
        self._noted = ""
        """Which engine the recorder was told of."""
        self._threshold = 0
        self._emergency = memory.Emergency(0)
        self._kernel = health.Kernel(self._places.kmsg, clock)
        self._clocks: str | None = None
        self._clocks_at = float("-inf")
        self._boot_id = _boot_id()

    async def handle(self, message: dict[str, Any]) -> dict[str, Any]:
        """Answer one request. Never raises for what a keeper may send."""
        answer: dict[str, Any]
        try:
            operation = {
                "poll": self._poll,
                "wanted": self._wanted,
                "holds": self._holds,
                "start": self._start,
                "stop": self._stop,
                "logs": self._tail,
                "transport": self._transport,
                "report": self._report,
                "hello": self._hello,
            }.get(str(message.get("op")))
            if operation is None:
                raise Refused(f"unknown request {message.get('op')!r}; keeper and agent are of different releases")
            answer = {"ok": True, **await operation(message)}
        except (Refused, DockerError, wire.WireError, gids.GidError, secret.SecretError, OSError) as error:
            answer = {"ok": False, "error": str(error)}
        return {"id": message.get("id"), "epoch": self._lease.epoch, **answer}

    def announce(self) -> None:
        """Leave word of which programs run here, beside the lease: a deploy compares them with those installed."""
        self._save_lease()
        if not self._places.wanted.exists():
            return  # nothing was deployed here yet
        try:
            self._admit_text(wire.read_text(self._places.wanted))
        except (wire.WireError, OSError) as error:
            log(f"{self._places.wanted} could not be kept: {error}", "warning")

    async def watch_lease(self) -> None:
        """End the rank when nobody renews the lease: no rank outlives its pair."""
        while True:
            await asyncio.sleep(LEASE_CHECK_SECONDS)
            await self._watch_memory()
            await self._watch_clocks()
            if not self._expired() or self._busy():
                continue
            try:
                left = await in_thread(self._ours)
            except DockerError:
                continue
            if left and self._expired() and not self._busy():  # Docker may have taken its time, and word have come
                log(f"lease of epoch {self._lease.epoch} ran out, no word from the keeper: ending the rank", "warning")
                self._begin("stopping", self._end(LEASE_STOP_GRACE_SECONDS))

    async def _watch_memory(self) -> None:
        """End the rank before the node wedges: unified memory does not fail, it takes the way in with it."""
        available = self._available()
        if available is None or not self._emergency.feed(self._clock(), available):
            return
        if (self._busy() and self._doing == "stopping") or not self._processes():
            return
        text = f"{available / 2**20:.0f} MiB of memory were left on the node (memory_emergency_mib), the rank was ended"
        log(text, "error")
        if self._work is not None and self._busy():
            self._work.cancel()
        self._kill_cgroup()
        self._error = text

    async def _watch_clocks(self) -> None:
        """Ask the GPU now and then, while it works for us."""
        if self._clock() - self._clocks_at >= CLOCKS_SECONDS and self._processes():
            self._clocks_at = self._clock()
            self._asking = asyncio.ensure_future(self._ask_clocks())

    async def _ask_clocks(self) -> None:
        self._clocks = await health.clocks()

    def _guard(self, threshold: int) -> None:
        if threshold != self._threshold:
            self._threshold, self._emergency = threshold, memory.Emergency(threshold)

    def _available(self) -> int | None:
        try:
            return memory.meminfo(self._places.meminfo).available
        except OSError:
            return None

    def _expired(self) -> bool:
        return self._lease.deadline is not None and self._clock() >= self._lease.deadline

    async def _hello(self, message: dict[str, Any]) -> dict[str, Any]:
        del message
        return {"boot_id": self._boot_id, "code": self._code}

    async def _poll(self, message: dict[str, Any]) -> dict[str, Any]:
        self._admit(message)
        ttl = float(message.get("lease_seconds", 0))
        if ttl > 0:
            self._lease.deadline = self._clock() + ttl
            self._save_lease()
        netdevs = [str(name) for name in message.get("netdevs", [])]
        self._guard(int(message.get("emergency_bytes", 0)))
        rank = await self._rank()
        return {
            "boot_id": self._boot_id,
            "code": self._code,
            "incarnation": self._incarnation,
            "rank": rank,
            "rail_up": all(self._carrier(name) for name in netdevs) if netdevs else None,
            **self._life(rank),
            "memory_available": self._available(),
            "memory": memory.recorded(self._places.recorded),
            "xids": [{**xid, "age_seconds": round(self._clock() - xid["at"], 1)} for xid in self._kernel.xids()],
            "clocks": self._clocks,
        }

    def _life(self, rank: dict[str, Any]) -> dict[str, Any]:
        """What the rank's processes show: how many, how long one has been stopped, what grows while it works."""
        seen = alive.look(memory.processes(self._places.cgroups), self._places.proc)
        if seen.stopped or rank.get("paused"):
            self._frozen_since = self._clock() if self._frozen_since is None else self._frozen_since
        else:
            self._frozen_since = None
        frozen = 0.0 if self._frozen_since is None else self._clock() - self._frozen_since
        log_bytes = _size(str(rank.pop("log_path", "")))
        work = None if log_bytes is None else {"log": log_bytes, "io": seen.io, "cpu": round(seen.cpu, 2)}
        return {"processes": len(seen.pids), "frozen_seconds": round(frozen, 1), "work": work}

    async def _rank(self) -> dict[str, Any]:
        if self._busy():
            return {"state": self._doing, "error": ""}
        work = self._work
        try:
            ours = await self._look()
        except DockerError as error:
            return {"state": "unknown", "error": str(error)}
        if self._work is not work:  # what was seen is older than what was begun meanwhile
            return {"state": self._doing, "error": ""}
        container = ours[0] if ours else None
        seen = (
            {}
            if container is None
            else {
                "container": container.id,
                "name": container.name,
                "engine": container.labels.get(wire.LABEL_ENGINE),
                "rank": container.labels.get(wire.LABEL_RANK),
                "epoch": container.labels.get(wire.LABEL_EPOCH),
                "started_at": container.started_at,
                "exit_code": None if container.running else container.exit_code,
                "paused": container.status == "paused",
                "log_path": container.log_path,
            }
        )
        if container is not None and container.running:
            # One that an agent of an earlier release started has left no word for the recorder.
            self._note_rank(str(seen["engine"]), only_new=True)
        if self._error:
            state = "failed"
        elif container is None:
            state = "absent" if self._processes() == 0 else "exited"
        else:
            state = "running" if container.running else "exited"
        return {"state": state, "error": self._error, **seen}

    async def _look(self) -> list[Container]:
        """Our containers, or DockerError when Docker is slow: the keeper's question is answered in time, since silence
        would look like a dead node. A look that is under way is waited for again at the next question."""
        look = self._looking
        if look is None:
            look = self._looking = asyncio.ensure_future(in_thread(self._ours))
            look.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may be nobody's by then
        done, _ = await asyncio.wait([look], timeout=DOCKER_LOOK_SECONDS)
        if not done:
            raise DockerError(f"Docker has not answered for {DOCKER_LOOK_SECONDS:g} s")
        if self._looking is look:
            self._looking = None
        return look.result()

    async def _wanted(self, message: dict[str, Any]) -> dict[str, Any]:
        """The wanted rank of this node with what it refers to, so that the keeper can refuse before anything stops."""
        del message
        if not self._places.wanted.exists():
            raise Refused(f"{self._places.wanted} is missing; run deploy.py")
        text = wire.read_text(self._places.wanted)
        spec = wire.parse_rank(text)
        try:
            image = await in_thread(self._docker.image, spec.image)
        except DockerError as error:
            if error.status != 404:
                raise
            raise Refused(f"image {spec.image} is not here; run deploy.py, whose image role pulls it") from None
        self._admit_text(text)
        identities = [self._identity(path) for path in spec.content]
        for _, path in spec.secrets:
            identities.append(await in_thread(secret.identity, self._secret(path), str(self._places.machine_id)))
        return {"text": text, "identities": identities, "image": image}

    async def _holds(self, message: dict[str, Any]) -> dict[str, Any]:
        """Whether a launch of earlier can be started here again: its image, and the identities of its content."""
        text = str(message["text"])
        spec = wire.parse_rank(text)
        if not self._was_wanted(text):
            raise Refused("that launch was never wanted here")
        try:
            image = await in_thread(self._docker.image, spec.image)
        except DockerError as error:
            if error.status != 404:
                raise
            raise Refused(f"image {spec.image} is not here any more") from None
        return {"identities": [self._identity(path) for path in spec.content], "image": image["id"]}

    async def _start(self, message: dict[str, Any]) -> dict[str, Any]:
        self._admit(message)
        if self._busy():
            raise Refused(f"busy: {self._doing}")
        text = str(message["text"])
        engine = str(message["engine"])
        ports = [int(port) for port in message.get("ports", [])]
        self._error = ""
        drop = bool(message.get("drop_page_cache", False))
        self._begin("starting", self._launch(text, engine, self._lease.epoch, ports, drop))
        return {}

    async def _stop(self, message: dict[str, Any]) -> dict[str, Any]:
        self._admit(message)
        if self._busy() and self._doing == "stopping":
            return {}
        if self._work is not None and self._busy():
            self._work.cancel()
        self._error = ""
        self._begin("stopping", self._end(float(message.get("grace_seconds", 0))))
        return {}

    async def _tail(self, message: dict[str, Any]) -> dict[str, Any]:
        count = min(int(message.get("lines", 40)), LOG_LINES_ASKED)
        ours = await in_thread(self._ours)
        if ours:
            lines = await in_thread(_docker_logs, ours[0].id, count, bool(message.get("times")))
            return {"lines": lines, "container": ours[0].id}
        if self._error:
            return {"lines": [self._error]}
        kept = sorted(self._places.logs.glob("*.log")) if self._places.logs.is_dir() else []
        lines = _fitting(kept[-1].read_text(errors="replace").splitlines()[-count:]) if kept else []
        if not message.get("times"):
            lines = [merged.split(line)[2] for line in lines]
        return {"lines": lines, "former": not kept or kept[-1] != self._ended}

    async def _transport(self, message: dict[str, Any]) -> dict[str, Any]:
        """What this rank's log says of NCCL."""
        ours = await in_thread(self._ours)
        if not ours:
            raise Refused("no rank is here")
        return {"transport": vars(await in_thread(network.of_container, ours[0].id))}

    async def _report(self, message: dict[str, Any]) -> dict[str, Any]:
        """It takes a minute: whoever asks has a connection of their own, beside the keeper's."""
        try:
            return {"texts": await report.gather(bool(message.get("engine_logs", True)))}
        except report.NotMade as error:
            raise Refused(str(error)) from None

    async def _launch(self, text: str, engine: str, epoch: int, ports: list[int], drop_page_cache: bool) -> None:
        """Start a rank. What goes wrong becomes the rank's state, with its reason, for the keeper to judge."""
        try:
            spec = wire.parse_rank(text)
            if not self._was_wanted(text):
                raise Refused("this launch was never wanted here; run deploy.py, which installs what may be started")
            await self._clear(0.0)
            self._ended = None
            self._check_ports(ports)
            for directory in spec.directories:
                _make_directory(Path(directory))
            if spec.mount is not None:
                await nfs.mount_anew(spec.mount, functools.partial(_run, variables={}), self._places.units)
            index = {
                value: gids.roce_v2_index(value.hca, value.address, self._places.infiniband)
                for _, value in spec.env
                if isinstance(value, wire.GidIndex)
            }
            # By id: it may be here under another name, and what is not here `docker run` would pull, unasked.
            image = await in_thread(self._docker.image, spec.image)
            self._refuse_foreign(spec.name)
            values = {name: self._secret(path) for name, path in spec.secrets}
            local = dataclasses.replace(spec, image=str(image["id"]))
            if drop_page_cache:
                await in_thread(self._drop_page_cache)
            self._note_rank(engine)
            code, output = await _run(wire.docker_run(local, engine, epoch, index), RUN_TIMEOUT_SECONDS, values)
            if code != 0:
                raise Refused(f"docker run exited {code}: {output.strip()[-600:]}")
            memory.spare(memory.processes(self._places.cgroups), proc=self._places.proc)
            log(f"rank {spec.rank} of {engine[:12]} started")
        except Exception as error:  # an unforeseen one too: a rank that silently stays absent is asked for for ever
            self._error = f"could not start: {error}"
            log(f"a rank of {engine[:12]} could not start: {error!r}", "error")
            try:
                for container in await in_thread(self._ours):
                    await in_thread(self._docker.remove, container.id)
            except DockerError as later:
                log(f"what is left of it could not be removed: {later}", "error")

    def _drop_page_cache(self) -> None:
        """The engine takes what is cached for used. Not being able to is no reason not to start."""
        done = memory.drop_page_cache(self._places.drop_caches, self._places.meminfo)
        if done:
            log(done)

    def _note_rank(self, engine: str, *, only_new: bool = False) -> None:
        """Tell the recorder whose floor it measures from now on."""
        if only_new and (self._noted == engine or memory.recorded(self._places.rank).get("engine") == engine):
            self._noted = engine
            return
        self._noted = engine
        try:
            temporary = self._places.rank.with_suffix(".new")
            temporary.write_text(json.dumps({"engine": engine, "since": time.strftime("%Y-%m-%dT%H:%M:%S%z")}))
            os.replace(temporary, self._places.rank)
        except OSError as error:
            log(f"{self._places.rank} could not be written: {error}", "warning")

    async def _end(self, grace: float) -> None:
        try:
            await self._clear(grace)
        except (DockerError, OSError) as error:
            # Not remembered as the rank's error: the state is read anew at every poll, and the keeper asks again.
            log(f"ending the rank: {error}", "error")

    async def _clear(self, grace: float) -> None:
        """End and remove whatever rank is here: asked first, then the whole cgroup, so that no process is left."""
        ours = await in_thread(self._ours)
        for container in ours:
            try:
                await in_thread(self._keep_log, container)
            except OSError as error:  # a full disk must not keep a rank alive
                log(f"the last lines could not be kept: {error}", "warning")
            if container.status == "paused":
                await in_thread(self._docker.unpause, container.id)
            if container.running and grace > 0:
                await in_thread(self._docker.signal, container.id, "SIGTERM")
        until = self._clock() + grace
        while grace > 0 and self._clock() < until and any([await in_thread(self._alive, one) for one in ours]):
            await asyncio.sleep(0.2)
        self._kill_cgroup()
        for container in ours:
            await in_thread(self._docker.remove, container.id)
        until = self._clock() + 10.0
        while self._processes() and self._clock() < until:
            self._kill_cgroup()
            await asyncio.sleep(0.1)
        if ours:
            log("the rank has ended")

    def _ours(self) -> list[Container]:
        found = self._docker.containers(wire.LABEL_RANK)
        return sorted(found, key=lambda container: (not container.running, container.started_at))

    def _alive(self, container: Container) -> bool:
        try:
            return self._docker.inspect(container.id).running
        except DockerError as error:
            return error.status != 404

    def _refuse_foreign(self, name: str) -> None:
        try:
            other = self._docker.inspect(name)
        except DockerError as error:
            if error.status == 404:
                return
            raise
        if wire.LABEL_RANK not in other.labels:
            raise Refused(
                f"a container named {name} is here and is not ours ({other.status}). "
                f"If it is an older kit's: docker rm -f {name}"
            )

    def _check_ports(self, ports: list[int]) -> None:
        for port in ports:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("0.0.0.0", port))
                except OSError as error:
                    raise Refused(
                        f"port {port} is in use ({error.strerror}). See who holds it: ss -ltnp 'sport = :{port}'"
                    ) from None

    def _was_wanted(self, text: str) -> bool:
        if (self._places.admitted / _digest(text)).is_file():
            return True
        return self._places.wanted.exists() and wire.read_text(self._places.wanted) == text

    def _admit_text(self, text: str) -> None:
        """Remember a launch that deploy has installed here as root. Only such a one is ever started: whoever holds the
        keeper's key can start and stop what the operator has deployed, and nothing of their own."""
        path = self._places.admitted / _digest(text)
        if path.is_file():
            os.utime(path)
            return
        wire.write_atomic(path, text)
        known = sorted(self._places.admitted.iterdir(), key=lambda entry: entry.stat().st_mtime)
        for old in known[:-ADMITTED_KEPT]:
            old.unlink()

    def _admit(self, message: dict[str, Any]) -> None:
        epoch = int(message.get("epoch", 0))
        if epoch < self._lease.epoch:
            raise Refused(f"epoch {epoch} is over; epoch {self._lease.epoch} holds the lease")
        if epoch > self._lease.epoch:
            self._lease.epoch = epoch
            try:
                wire.write_atomic(self._places.state, json.dumps({"epoch": epoch}))
            except OSError as error:
                log(f"{self._places.state} could not be written: {error}", "warning")

    def _load_lease(self) -> Lease:
        """A damaged file is as good as none: the keeper's next poll writes it anew."""
        lease = Lease()
        for path in (self._places.state, self._places.lease):
            try:
                data = wire.read_json(path) or {}
                lease.epoch = max(lease.epoch, int(data.get("epoch", 0)))
                if data.get("boot_id") == _boot_id() and data.get("deadline") is not None:
                    lease.deadline = float(data["deadline"])
            except (wire.WireError, TypeError, ValueError) as error:
                log(f"{error}; going on without it", "warning")
        return lease

    def _save_lease(self) -> None:
        data = {**dataclasses.asdict(self._lease), "boot_id": self._boot_id, "code": self._code}
        temporary = self._places.lease.with_suffix(".new")
        try:
            temporary.write_text(json.dumps(data))  # on a tmpfs: nothing to sync
            os.replace(temporary, self._places.lease)
        except OSError as error:  # it only matters to an agent that is restarted: it then waits for the next word
            log(f"{self._places.lease} could not be written: {error}", "warning")

    def _identity(self, directory: str) -> str:
        path = self._places.weights / paths.manifest_path(directory).name
        data = wire.read_json(path)
        if data is None:
            raise Refused(f"{path} is missing: {directory} was never verified; run deploy.py")
        return str(data["identity"])

    def _secret(self, path: str) -> str:
        return secret.read(str(self._places.secrets / Path(path).name))

    def _carrier(self, netdev: str) -> bool:
        try:
            return (self._places.net / netdev / "carrier").read_text().strip() == "1"
        except OSError:  # no such netdev, or it is administratively down
            return False

    def _processes(self) -> int:
        """Processes below our cgroup parent; 0 when it does not exist."""
        return len(memory.processes(self._places.cgroups))

    def _kill_cgroup(self) -> None:
        for cgroup in self._places.cgroups:
            try:
                (cgroup / "cgroup.kill").write_text("1")
            except FileNotFoundError:
                pass  # the other driver's, or no container was ever started

    def _keep_log(self, container: Container) -> None:
        lines = _docker_logs(container.id, LOG_LINES_KEPT, True)
        self._places.logs.mkdir(parents=True, exist_ok=True)
        engine = container.labels.get(wire.LABEL_ENGINE, "")[:12]
        name = f"{time.strftime('%Y%m%dT%H%M%S')}-{engine}-rank{container.labels.get(wire.LABEL_RANK)}.log"
        self._ended = self._places.logs / name
        self._ended.write_text("\n".join(lines) + "\n")
        for old in sorted(self._places.logs.glob("*.log"))[:-LOGS_KEPT]:
            old.unlink()

    def _busy(self) -> bool:
        return self._work is not None and not self._work.done()

    def _begin(self, doing: str, work: Any) -> None:
        former = self._work
        self._doing = doing
        self._work = asyncio.get_running_loop().create_task(_after(former, work))
        self._work.add_done_callback(lambda _: self._forget_look())

    def _forget_look(self) -> None:
        """A look that began before some work ended says nothing of its result."""
        self._looking = None


async def _after(former: asyncio.Task[None] | None, work: Any) -> None:
    """One thing at a time: a cancelled start is waited for before its remains are cleared."""
    if former is not None and not former.done():
        await asyncio.wait([former])
    await work


async def _run(argv: Sequence[str], timeout: float, variables: Mapping[str, str]) -> tuple[int, str]:
    """Run a program with more variables in its environment, and what it printed."""
    environment = {**os.environ, **variables} if variables else None
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), timeout)
    except (asyncio.TimeoutError, asyncio.CancelledError) as error:
        process.kill()
        await process.wait()
        if isinstance(error, asyncio.CancelledError):
            raise
        return 124, f"no answer within {timeout:.0f} s"
    return process.returncode or 0, output.decode(errors="replace")


def _make_directory(path: Path) -> None:
    """Make a directory of the engine's, below a user's home or elsewhere; it belongs to whom its parent belongs."""
    if path.is_dir():
        return
    _make_directory(path.parent)
    path.mkdir()
    owner = path.parent.stat()
    os.chown(path, owner.st_uid, owner.st_gid)


def _docker_logs(container: str, lines: int, times: bool = False) -> list[str]:
    """The last lines that are about the engine: the looks at its health and metrics, two lines a second, are none."""
    asked = min(LOG_LINES_ASKED, lines * LOOKS_PER_LINE)
    words = ["docker", "logs", *(["--timestamps"] if times else []), "--tail", str(asked), container]
    # Read piece by piece: a rank that logs what it is asked writes lines of megabytes, and this program may hold few.
    return _fitting(telling(report.said(words, LOG_BYTES_ASKED, LOG_SECONDS).splitlines())[-lines:])


def telling(lines: Sequence[str]) -> list[str]:
    """The lines without those of looks at health and metrics that were answered."""
    return [line for line in lines if LOOKED.search(line) is None]


def _fitting(lines: Sequence[str]) -> list[str]:
    """The last of these lines, as many as fit into an answer. As JSON a character takes up to six times its bytes."""
    left = LOG_BYTES_ASKED
    for place in range(len(lines) - 1, -1, -1):
        left -= len(json.dumps(lines[place])) + 1
        if left < 0:
            return list(lines[place + 1 :])
    return list(lines)


def _size(path: str) -> int | None:
    """Bytes of a file; None where there is none to be seen."""
    try:
        return os.stat(path).st_size if path else None
    except OSError:
        return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


async def serve(agent: Agent, path: Path) -> None:
    """Answer requests on the socket until SIGTERM. The running rank stays: it is not this process's child."""

    server = await listen(path, agent.handle)
    path.chmod(0o660)
    try:
        os.chown(path, 0, grp.getgrnam(paths.PEER_USER).gr_gid)
    except KeyError:
        pass  # the head has no peer user: only root talks to its agent
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    agent.announce()
    lease = asyncio.create_task(agent.watch_lease())
    told = asyncio.create_task(stop.wait())
    log("rank agent ready")
    await asyncio.wait([lease, told], return_when=asyncio.FIRST_COMPLETED)
    server.close()
    if lease.done():
        lease.result()  # without its watch this agent is of no use: end with the error, to be started again
    lease.cancel()


def main(argv: list[str]) -> int:
    """Run the agent until it is told to stop."""
    if argv:
        print("agent takes no arguments", file=sys.stderr)
        return 2
    code = wire.programs_hash(wire.programs(Path(__file__).parent))
    asyncio.run(serve(Agent(Docker(), code=code), paths.AGENT_SOCKET))
    return 0
