"""A small pair for tests: real keeper and agents over real sockets; Docker and the engine are stand-ins in memory."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from node import agent, paths, secret, service, wire
from node.agent import Agent, Places
from node.docker import Container, DockerError
from node.keeper import Keeper
from node.lines import listen
from node.link import AgentLink
from node.probe import EngineProbe
from node.rails import RailWatch
from node.store import Store

IMAGE = "registry/engine@sha256:" + "1" * 64


SECRET = ["VLLM_API_KEY", {"secret": str(paths.API_KEY)}]


def rank_text(rank: int, knob: int = 4, *, key: bool = False) -> str:
    return json.dumps(
        {
            "stack": "vllm",
            "rank": rank,
            "name": "vllm_test",
            "image": IMAGE,
            "content": ["/srv/m"],
            "container": [["--network", "host"]],
            "mounts": [],
            "directories": [],
            "env": [["A", "b"], *([SECRET] if key and rank == 0 else [])],
            "command": [["vllm", "serve", "/m"], ["--max-num-seqs", str(knob)]],
        }
    )


class FakeDocker:
    """Docker of one node, in memory."""

    def __init__(self) -> None:
        self.all: dict[str, Container] = {}
        self.images = {IMAGE: {"id": "sha256:i", "layers": ["l1", "l2"]}}
        self.answers = True
        self.slow = 0.0
        self.refuses_run = ""
        self.refuses_knob = ""
        self.started = 0
        self.argv: list[str] = []
        self.variables: dict[str, str] = {}
        self._ids = itertools.count(1)

    def run(self, argv: list[str], variables: dict[str, str]) -> tuple[int, str]:
        self.argv, self.variables = argv, variables
        if self.refuses_run or (self.refuses_knob and argv[-1] == self.refuses_knob):
            return 125, self.refuses_run or "no such knob"
        labels = dict(word.split("=", 1) for at, word in enumerate(argv) if argv[at - 1] == "--label")
        identity = f"c{next(self._ids)}"
        self.started += 1
        self.all[identity] = Container(
            identity, argv[argv.index("--name") + 1], labels, True, "running", 0, identity, ""
        )
        return 0, identity

    def end(self, code: int = 0) -> None:
        self.all = {
            key: dataclasses.replace(container, running=False, status="exited", exit_code=code)
            for key, container in self.all.items()
        }

    @property
    def running(self) -> list[Container]:
        return [container for container in self.all.values() if container.running]

    def containers(self, label: str) -> list[Container]:
        self._check()
        return [container for container in self.all.values() if label in container.labels]

    def inspect(self, name: str) -> Container:
        self._check()
        for container in self.all.values():
            if name in (container.id, container.name):
                return container
        raise DockerError("no such container", 404)

    def image(self, reference: str) -> dict[str, Any]:
        self._check()
        if reference not in self.images:
            raise DockerError("no such image", 404)
        return self.images[reference]

    def signal(self, container: str, name: str) -> None:
        self._check()
        self.all[container] = dataclasses.replace(self.all[container], running=False, status="exited", exit_code=143)

    def remove(self, container: str) -> None:
        self._check()
        self.all.pop(container, None)

    def unpause(self, container: str) -> None:
        self._check()

    def _check(self) -> None:
        time.sleep(self.slow)
        if not self.answers:
            raise DockerError("Docker does not answer on x: refused")


class FakeEngine:
    """The API of an engine that works while both ranks' containers run."""

    def __init__(self) -> None:
        self.healthy = True
        self.answer = "it is 391"
        self.status = 200
        self.completions = 0
        self.busy = 0
        self.tokens = 0
        self.key = ""
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/metrics":
                    text = (
                        f'vllm:generation_tokens_total{{engine="0"}} {engine.tokens}\n'
                        f'vllm:num_requests_running{{engine="0"}} {engine.busy}\nvllm:num_requests_waiting 0\n'
                    )
                    self._send(200, text.encode())
                else:
                    self._send(200 if engine.healthy else 503, b"")

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                if engine.key and self.headers["Authorization"] != f"Bearer {engine.key}":
                    self._send(401, b'{"error":"Unauthorized"}')
                    return
                engine.completions += 1
                body = {"choices": [{"message": {"content": engine.answer}}]}
                self._send(engine.status, json.dumps(body).encode())

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


CANARY = {"prompt": "17*23?", "expect": "391", "max_tokens": 8, "timeout_seconds": 2}


def settings(port: int, key_file: str = "", **rules: Any) -> service.Service:
    text = json.dumps(
        {
            "nodes": [
                {"rank": 0, "name": "head", "local": True, "addresses": [], "netdevs": []},
                {"rank": 1, "name": "worker", "local": True, "addresses": [], "netdevs": []},
            ],
            "api": {
                "port": port,
                "model": "m",
                "ready_path": "/health",
                "metrics_path": "/metrics",
                **({"address": "127.0.0.1", "key_file": key_file} if key_file else {}),
            },
            "canary": CANARY,
            "watch_interval_seconds": 0.05,
            "lease_seconds": 3,
            "ready_timeout_seconds": 20,
            "stop_grace_seconds": 0.2,
            "canary_interval_seconds": 60,
            "stuck_seconds": 60,
            "backoff_seconds": 0.1,
            "backoff_max_seconds": 0.2,
            "restart_budget": 3,
            "restart_window_seconds": 3600,
            "generations_kept": 3,
            "ports": [],
            "start_order": [1, 0],
            **rules,
        }
    )
    return service.parse(text)


class World:
    """Two agents and a keeper below one directory. `async with` it. With a key, the engine takes the one with which
    the head's rank was started."""

    def __init__(self, root: Path, key: str = "", **rules: Any) -> None:
        self.root = root
        self.key = key
        self.engine = FakeEngine()
        self.dockers = [FakeDocker(), FakeDocker()]
        self.settings = settings(self.engine.port, str(self.place(0).secrets / "api-key") if key else "", **rules)
        self.store = Store(root / "state")
        self.knob = 4
        self.rails: RailWatch | None = None
        self.agents: list[asyncio.Task[None]] = []
        self._working: asyncio.Task[None] | None = None
        self._by_text: dict[str, FakeDocker] = {}

    async def __aenter__(self) -> World:
        if self.key:
            self.write_key(self.key)
        for rank in (0, 1):
            self.write_wanted(rank, self.knob)
            self.agents.append(asyncio.create_task(self._agent(rank)))
        await self.keeper_up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.keeper_down()
        for task in self.agents:
            task.cancel()
        await asyncio.gather(*self.agents, return_exceptions=True)
        self.engine.close()

    def place(self, rank: int) -> Places:
        base = self.root / f"n{rank}"
        return Places(
            socket=base / "s",
            lease=base / "lease.json",
            state=base / "agent.json",
            wanted=base / "rank.json",
            logs=base / "logs",
            admitted=base / "admitted",
            weights=base / "weights",
            cgroups=(base / "cgroup",),
            secrets=base / "secrets",
            machine_id=base / "machine-id",
            meminfo=base / "meminfo",
            rank=base / "rank-state.json",
            recorded=base / "memory.json",
            drop_caches=base / "drop_caches",
            kmsg=base / "kmsg",
        )

    def write_wanted(self, rank: int, knob: int) -> None:
        place = self.place(rank)
        place.weights.mkdir(parents=True, exist_ok=True)
        place.wanted.write_text(rank_text(rank, knob, key=bool(self.key)))
        place.machine_id.write_text(f"{rank:032x}\n")
        if not place.meminfo.exists():
            self.write_memory(rank, 110)
        (place.weights / paths.manifest_path("/srv/m").name).write_text(json.dumps({"identity": "w" * 64}))

    def write_memory(self, rank: int, available_gib: float) -> None:
        """What the node's kernel says of its memory."""
        kib = int(available_gib * 2**20)
        rows = {
            "MemTotal": 120 * 2**20,
            "MemFree": kib,
            "MemAvailable": kib,
            "Cached": 0,
            "SwapTotal": 0,
            "SwapFree": 0,
        }
        self.place(rank).meminfo.write_text("".join(f"{name}: {value} kB\n" for name, value in rows.items()))

    def want(self, knob: int) -> str:
        for rank in (0, 1):
            self.write_wanted(rank, knob)
        identities: list[list[str]] = [["w" * 64], ["w" * 64]]
        if self.key:
            identities[0].append(secret.identity(self.key, str(self.place(0).machine_id)))
        texts = [rank_text(rank, knob, key=bool(self.key)) for rank in (0, 1)]
        return wire.engine_hash(list(zip(texts, identities, strict=True)))

    def write_key(self, key: str) -> None:
        """As an operator would replace it."""
        self.key = key
        place = self.place(0).secrets
        place.mkdir(parents=True, exist_ok=True)
        (place / "api-key").write_text(key + "\n")

    async def keeper_up(self, boot_id: str = "boot") -> None:
        self.links = [
            AgentLink(rank, ("head", "worker")[rank], (), agent.boottime, socket=self.place(rank).socket)
            for rank in (0, 1)
        ]
        probe = EngineProbe(self.settings.api, self.settings.canary, agent.boottime)
        self.keeper = Keeper(
            self.settings,
            self.store,
            self.links,
            probe,
            code="code",
            boot_id=boot_id,
            status_path=self.root / "status.json",
            wanted_path=self.place(0).wanted,
            rails=self.rails,
        )
        self._working = asyncio.create_task(self.keeper.run())

    async def keeper_down(self) -> None:
        assert self._working is not None
        self._working.cancel()
        results = await asyncio.gather(self._working, return_exceptions=True)
        for link in self.links:
            await link.close()
        assert isinstance(results[0], asyncio.CancelledError), results[0]

    async def accept(self, engine: str) -> dict[str, Any]:
        """Hand over as deploy does, once both agents are reached: the keeper would wait for them for longer."""
        end = agent.boottime() + 1.0
        while any(seen["state"] == "unknown" for seen in self.keeper.status()["ranks"].values()):
            if agent.boottime() > end:
                break
            await asyncio.sleep(0.01)
        return await self.keeper.request({"op": "accept", "engine": engine})

    async def until(self, phase: str, seconds: float = 10.0) -> dict[str, Any]:
        end = agent.boottime() + seconds
        while self.keeper.status()["phase"] != phase:
            assert agent.boottime() < end, f"not {phase}: {self.keeper.status()}"
            await asyncio.sleep(0.02)
        return self.keeper.status()

    async def _agent(self, rank: int) -> None:
        own = Agent(self.dockers[rank], self.place(rank))  # type: ignore[arg-type]

        server = await listen(self.place(rank).socket, own.handle)
        try:
            await own.watch_lease()
        finally:
            server.close()
