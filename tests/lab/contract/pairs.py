"""Pairs of ranks that the cases run on: containers on the lab's two hosts, or processes on the loopback device."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from lab import hosts, model, network, settings
from tests.lab.contract.cases import HEAD, MAIN

PROGRAM = settings.SOURCE / "contract_engine" / "vllm"
LISTEN = (
    "import socket, time; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); "
    "s.bind(('0.0.0.0', {port})); s.listen(); time.sleep(600)"
)


def command(
    rank: int, path: str, master: str, master_port: int, api_port: int, flags: Mapping[str, str | None]
) -> list[str]:
    """The words of `vllm serve` for one rank: the lab's settings, then what a case changes."""
    given: dict[str, str | None] = {
        "--served-model-name": "tiny", "--tensor-parallel-size": "2", "--max-model-len": "131072",
        "--max-num-seqs": "4", "--max-num-batched-tokens": "2048", "--block-size": "32",
        "--kv-cache-memory-bytes": "134217728", "--enforce-eager": "", "--tool-call-parser": "glm47",
        "--enable-auto-tool-choice": "", "--reasoning-parser": "glm45", "--host": "0.0.0.0", "--port": str(api_port),
        "--distributed-executor-backend": "mp", "--nnodes": "2", "--node-rank": str(rank),
        "--master-addr": master, "--master-port": str(master_port), "--headless": "" if rank else None,
        **{name: value for name, value in flags.items() if name != "model"},
    }  # fmt: skip
    words = ["vllm", "serve", flags.get("model") or path]
    for name, value in given.items():
        if value is not None:
            words += [name, value] if value else [name]
    return words


class Containers:
    """Containers `contract-test-0` and `contract-test-1` on the lab's hosts, beside whatever else runs there."""

    API_PORT, MASTER_PORT = 8100, 29599
    PLACE = "srv/contract-test-model"

    def __init__(self, image: str, start_seconds: float) -> None:
        self.image, self.start_seconds, self.calm_seconds, self.pace = image, start_seconds, 8.0, 1.0
        if start_seconds < 60:  # the contract engine
            self.calm_seconds, self.pace = 4.0, 0.4
        self.hosts = (settings.HEAD, settings.WORKER)
        self.api = (settings.HEAD.address, self.API_PORT)
        self.waiting: dict[int, subprocess.Popen[str]] = {}
        self.occupant: str | None = None
        self.paused: set[int] = set()
        self.remove()

    def on(self, rank: int, text: str, *, check: bool = True) -> str:
        """What a command says on a rank's host, as root."""
        words = hosts.exec_command(self.hosts[rank], text)
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False, timeout=900)
        if check and done.returncode:
            raise AssertionError(f"{self.hosts[rank].name}: {text!r} exited {done.returncode}: {done.stderr}")
        return done.stdout

    def address(self, rank: int) -> str:
        """Where the ranks meet: the first rail when it has an address, else the management network."""
        netdev = self.hosts[rank].rails[0].netdev
        words = self.on(rank, f"ip -4 -o addr show {netdev}").split()
        return words[3].partition("/")[0] if "inet" in words else self.hosts[rank].address

    def netdev(self, rank: int) -> str:
        """The netdev of that address."""
        on_rail = self.address(rank) != self.hosts[rank].address
        return self.hosts[rank].rails[0].netdev if on_rail else settings.MANAGEMENT_NETDEV

    def start(self, rank: int, flags: Mapping[str, str | None], env: Mapping[str, str]) -> None:
        place = self.hosts[rank].disk / self.PLACE
        if not place.exists():
            model.make(place)
        mine = self.address(rank)
        # What the stack `vllm` sets and a CPU reads.
        variables = {"VLLM_HOST_IP": mine, "HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": self.netdev(rank), **env}
        words = ["docker", "run", "-d", "--name", f"contract-test-{rank}", "--network", "host", "--ipc", "host"]
        words += ["--ulimit", "memlock=-1:-1", "--cap-add", "IPC_LOCK", "-v", f"/{self.PLACE}:/models/tiny:ro"]
        words += [word for name, value in variables.items() if value for word in ("-e", f"{name}={value}")]
        words += [self.image, "env", *(f"--unset={name}" for name, value in variables.items() if not value)]
        words += command(rank, "/models/tiny", self.address(HEAD), self.MASTER_PORT, self.API_PORT, flags)
        self.on(rank, shlex.join(words))
        waiting = hosts.exec_command(self.hosts[rank], f"docker wait contract-test-{rank}")
        self.waiting[rank] = subprocess.Popen(waiting, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def occupy(self, rank: int, what: Literal["api", "master"]) -> None:
        port = self.API_PORT if what == "api" else self.MASTER_PORT
        program = LISTEN.format(port=port)
        self.occupant = self.on(rank, f"nohup python3 -c {shlex.quote(program)} >/dev/null 2>&1 & echo $!").strip()

    def kill(self, rank: int, title: str, number: signal.Signals) -> None:
        name = f"contract-test-{rank}"
        if title == MAIN:
            pids = self.on(rank, f"docker inspect -f '{{{{.State.Pid}}}}' {name}").split()
        else:
            lines = self.on(rank, f"docker top {name} -eo pid,args").splitlines()
            pids = [line.split()[0] for line in lines if line.split()[1].startswith(title)]
        assert pids, f"no process {title} in {name}"
        self.on(rank, f"kill -{int(number)} {' '.join(pids)}")

    def freeze(self, rank: int, *, thaw: bool = False) -> None:
        self.on(rank, f"docker {'unpause' if thaw else 'pause'} contract-test-{rank}")
        self.paused ^= {rank}

    def cut(self, *, join: bool = False) -> None:
        assert self.address(HEAD) != self.hosts[HEAD].address, "the rails have no addresses: deploy first"
        (network.join if join else network.cut)(0)

    def exit_code(self, rank: int) -> int | None:
        process = self.waiting.get(rank)
        if process is None or process.poll() is None:
            return None
        if rank not in self._codes:
            self._codes[rank] = int(process.communicate()[0])
        return self._codes[rank]

    def logs(self, rank: int) -> str:
        return self.on(rank, f"docker logs contract-test-{rank} 2>&1", check=False)

    def remove(self) -> None:
        for rank in sorted(self.paused):
            self.freeze(rank, thaw=True)
        for rank in range(len(self.hosts)):
            self.on(rank, f"docker rm -f contract-test-{rank}", check=False)
        for process in self.waiting.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=10)
        if self.occupant:
            self.on(HEAD, f"kill -9 {self.occupant}", check=False)
        self.waiting, self.occupant, self.paused = {}, None, set()
        self._codes: dict[int, int] = {}

    def close(self) -> None:
        """Leave nothing behind on the hosts but the image."""
        self.remove()
        for host in self.hosts:
            shutil.rmtree(host.disk / self.PLACE, ignore_errors=True)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Processes:
    """Both ranks as processes of this machine, on 127.0.0.1: the contract engine's program without an image."""

    def __init__(self, place: Path, **env: str) -> None:
        self.start_seconds, self.calm_seconds, self.pace = 30.0, 0.6, 0.2
        self.place, self.env = place, env
        self.master_port = free_port()
        self.api = ("127.0.0.1", free_port())
        self.ranks: dict[int, subprocess.Popen[bytes]] = {}
        self.occupant: socket.socket | None = None
        if not (place / "model").exists():
            model.make(place / "model")

    def start(self, rank: int, flags: Mapping[str, str | None], env: Mapping[str, str]) -> None:
        words = command(rank, str(self.place / "model"), "127.0.0.1", self.master_port, self.api[1], flags)
        known = {name: value for name, value in env.items() if value and name != "TORCHDYNAMO_DISABLE"}
        with self.log(rank).open("wb") as log:
            self.ranks[rank] = subprocess.Popen(
                [sys.executable, "-S", str(PROGRAM), *words[1:]], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={"PATH": os.environ["PATH"], **self.env, **known}, start_new_session=True,
            )  # fmt: skip

    def log(self, rank: int) -> Path:
        """Where a rank's output goes."""
        return self.place / f"{self.master_port}-{rank}.log"

    def occupy(self, rank: int, what: Literal["api", "master"]) -> None:
        self.occupant = socket.create_server(("0.0.0.0", self.api[1] if what == "api" else self.master_port))

    def titles(self, rank: int) -> dict[int, str]:
        """The living processes of a rank's session."""
        found: dict[int, str] = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.ranks[rank].pid and fields[0] != "Z":
                    found[int(entry.name)] = (entry / "cmdline").read_text().rstrip("\0")
        return found

    def kill(self, rank: int, title: str, number: signal.Signals) -> None:
        pids = [pid for pid, name in self.titles(rank).items() if name == title]
        if title == MAIN:
            pids = [self.ranks[rank].pid]
        assert pids, f"no process {title} of rank {rank}"
        for pid in pids:
            os.kill(pid, number)

    def freeze(self, rank: int, *, thaw: bool = False) -> None:
        os.killpg(self.ranks[rank].pid, signal.SIGCONT if thaw else signal.SIGSTOP)

    def cut(self, *, join: bool = False) -> None:
        raise NotImplementedError("the loopback device has no cable")

    def exit_code(self, rank: int) -> int | None:
        return self.ranks[rank].poll()

    def logs(self, rank: int) -> str:
        return self.log(rank).read_text(errors="replace")

    def remove(self) -> None:
        for process in self.ranks.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if self.occupant:
            self.occupant.close()
        self.ranks, self.occupant = {}, None
