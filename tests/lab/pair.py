"""The simulated pair in the hands of a test: deploys, faults, and what can be seen from outside."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from lab import hosts, network, settings
from lab.__main__ import pyinfra_command
from lab.settings import HEAD, HOSTS

API_PORT = 8000
ANSWER = "Hello from the tiny model."
CLONE_NEWNET = 0x40000000
DEPLOY_SECONDS = 900


class NoAnswer(Exception):
    """The API did not give a whole answer."""


@dataclass
class Run:
    """A pyinfra run that has ended."""

    code: int
    text: str
    seconds: float

    @property
    def plan(self) -> dict[str, list[str]]:
        """Rows of a `--dry --json` run that would change something, with their hosts."""
        if self.code != 0:
            raise AssertionError(f"the plan was refused, exit {self.code}: {self.text[-1500:]}")
        start = self.text.index('{"plan"') if '{"plan"' in self.text else self.text.index("{\n")
        data, _ = json.JSONDecoder().raw_decode(self.text[start:])
        return {row["name"]: row["hosts_with_change"] for row in data["plan"] if row["hosts_with_change"]}


@dataclass
class Deploy:
    """A pyinfra run under way."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def wait(self, seconds: float = DEPLOY_SECONDS) -> Run:
        self.process.wait(seconds)
        self._reader.join(10)
        return Run(self.process.returncode, "\n".join(self.lines), time.monotonic() - self.started)

    def until(self, text: str, seconds: float = DEPLOY_SECONDS) -> bool:
        """Wait for a line that holds `text`; False when the run ended without one."""
        seen = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ended = self.process.poll() is not None
            while seen < len(self.lines):
                if text in self.lines[seen]:
                    return True
                seen += 1
            if ended:
                self._reader.join(10)
                return any(text in line for line in self.lines)
            time.sleep(0.02)
        raise AssertionError(f"{text!r} was not said within {seconds:.0f} s:\n" + "\n".join(self.lines[-30:]))

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)

    def listen(self) -> None:
        def read() -> None:
            assert self.process.stdout is not None
            with self.process.stdout as stream:
                for line in stream:
                    self.lines.append(line.rstrip("\n"))

        self._reader = threading.Thread(target=read, daemon=True)
        self._reader.start()


@dataclass(frozen=True)
class Seen:
    """What a row on a process's death saw, and how fast the pair was."""

    text: str
    beyond: float
    """Seconds from a process's death to the next answer, less the engine's own start."""


OWN_NETWORK = os.open("/proc/self/ns/net", os.O_RDONLY)
"""The machine's network, which has a way to package registries; the control machine's has none."""


def enter_control_namespace() -> None:
    """Move this thread, and those it starts, to the control machine's network."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{settings.CONTROL_NAMESPACE}", "rb") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")


def start_deploy(*arguments: str, env: dict[str, str] | None = None) -> Deploy:
    """Begin a run of pyinfra from lab/; `-y` and the like are the caller's."""
    process = subprocess.Popen(
        pyinfra_command(list(arguments)),
        cwd=settings.SOURCE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
    )
    deploy = Deploy(process)
    deploy.listen()
    return deploy


def deploy(*arguments: str, seconds: float = DEPLOY_SECONDS) -> Run:
    """A whole real run."""
    return start_deploy("-y", *arguments).wait(seconds)


def dry(*arguments: str) -> Run:
    """A whole `--dry --json` run; stderr apart, so that the JSON can be read."""
    begun = time.monotonic()
    done = subprocess.run(
        pyinfra_command(["--dry", "--json", *arguments]),
        cwd=settings.SOURCE,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEPLOY_SECONDS,
        check=False,
    )
    text = done.stdout if done.returncode == 0 else done.stdout + done.stderr
    return Run(done.returncode, text, time.monotonic() - begun)


def verify(*arguments: str) -> Run:
    """A run of verify.py."""
    return start_deploy("-y", *arguments, "inventory.py", "../verify.py").wait(300)


def on(host: settings.Host, command: str, *, check: bool = True, seconds: float = 120) -> str:
    """What a command says on a host, as root and without ssh."""
    done = subprocess.run(
        hosts.exec_command(host, command), capture_output=True, text=True, timeout=seconds, check=False
    )
    if check and done.returncode != 0:
        raise AssertionError(f"{host.name}: {command!r} exited {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def status() -> dict[str, Any]:
    """What the keeper says of the pair."""
    text = on(HEAD, "sparkpair status --json", check=False)
    try:
        data: dict[str, Any] = json.loads(text)
    except ValueError:
        return {"phase": "no keeper", "reason": text}
    return data


def history() -> list[dict[str, Any]]:
    """The keeper's history, oldest first."""
    lines = on(HEAD, "cat /var/lib/sparkpair/history.jsonl", check=False).splitlines()
    return [json.loads(line) for line in lines]


def containers() -> dict[str, list[str]]:
    """Id, start time and state of every container of ours, by host."""
    form = "'{{.Id}} {{.State.StartedAt}} {{.State.Status}}'"
    command = f"docker ps -aq --filter label=sparkpair.rank | xargs -r docker inspect -f {form}"
    return {host.name: on(host, command).splitlines() for host in HOSTS.values()}


def engine_processes(host: settings.Host) -> list[str]:
    """Every process below the engine's cgroup parent: pid and command line."""
    command = (
        "for f in $(find /sys/fs/cgroup/sparkpair.slice -name cgroup.procs 2>/dev/null); do for p in $(cat $f); do "
        "echo $p $(tr '\\0' ' ' </proc/$p/cmdline); done; done"
    )
    return [line for line in on(host, command).splitlines() if line.strip()]


def ask(prompt: str = "Who are you?", seconds: float = 60, **more: Any) -> str:
    """One chat answer from the head's API. Raises NoAnswer. The caller is in the control namespace."""
    body = {"model": model_name(), "messages": [{"role": "user", "content": prompt}], "max_tokens": 100, **more}
    request = urllib.request.Request(
        f"http://{HEAD.address}:{API_PORT}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return str(json.load(answer)["choices"][0]["message"]["content"])
    except (OSError, ValueError, LookupError, urllib.error.URLError) as error:
        raise NoAnswer(str(error)) from None


def model_name() -> str:
    return "tiny"


def answers(seconds: float = 10) -> bool:
    """Whether a completion comes back as scripted."""
    try:
        return ANSWER in ask(seconds=seconds)
    except NoAnswer:
        return False


def wait_for(what: Callable[[], Any], seconds: float, label: str, pause: float = 0.3) -> float:
    """Seconds until `what()` is true. Raises AssertionError with the keeper's state at the deadline."""
    begun = time.monotonic()
    while not what():
        if time.monotonic() - begun > seconds:
            raise AssertionError(f"not within {seconds:.0f} s: {label}; keeper: {json.dumps(status())[:1500]}")
        time.sleep(pause)
    return time.monotonic() - begun


def wait_running(seconds: float = 300) -> float:
    """Seconds until the keeper says running."""
    return wait_for(lambda: status()["phase"] == "running", seconds, "running")


def wait_healed(before: dict[str, Any], seconds: float = 300) -> float:
    """Seconds until the pair has answered once more than in `before`, and runs."""

    def healed() -> bool:
        now = status()
        return now["phase"] == "running" and now["counters"]["ready"] > before["counters"]["ready"]

    return wait_for(healed, seconds, "a restart that answers")


def kill_process(host: settings.Host, title: str, number: int = 9) -> str:
    """Send a signal to one engine process on a host, chosen by its role; tells its command line. A rank that is being
    started may have processes before Docker names it."""
    chosen: list[str] = []

    def found() -> bool:
        chosen[:] = _of_role(host, title)
        return bool(chosen)

    wait_for(found, 20, f"{title} on the {host.name}", 0.2)
    on(host, f"kill -{number} {chosen[0].split()[0]}")
    return chosen[0]


def _of_role(host: settings.Host, title: str) -> list[str]:
    if title != "main":
        return [line for line in engine_processes(host) if title in line]
    asked = "docker ps -q --filter label=sparkpair.rank | xargs -r docker inspect -f '{{.State.Pid}}'"
    pid = on(host, asked, check=False).strip()
    return [line for line in engine_processes(host) if line.split()[0] == pid]


def assert_no_orphan(host: settings.Host) -> None:
    """Every engine process on a host belongs to its one container, and there are some."""
    known = pair_pids(host)
    seen = {line.split()[0] for line in engine_processes(host)}
    assert seen and seen <= known, f"{host.name}: processes outside the container: {sorted(seen - known)}"
    titled = set(on(host, "ps -eo pid=,comm= | awk 'tolower($2) ~ /^vllm/ {print $1}'").split())
    assert titled <= known, f"{host.name}: engine processes outside the container: {sorted(titled - known)}"


def pair_pids(host: settings.Host) -> set[str]:
    """What Docker says runs in the containers of ours, as the host numbers it. All are asked: of one that was started
    on a full disk `docker ps` says "Created" for good, and `docker top` knows its processes."""
    every = "$(docker ps -aq --filter label=sparkpair.rank)"
    text = on(host, f"for c in {every}; do docker top $c -eo pid; done", check=False)
    return {word for word in text.split() if word.isdigit()}


def running_requests() -> int:
    """Requests that the engine works on now, by its own metrics."""
    with urllib.request.urlopen(f"http://{HEAD.address}:{API_PORT}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    lines = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running")]
    return int(sum(float(line.split()[-1]) for line in lines))


class Streams:
    """Endless streams from the control machine, re-opened when they end; counts what went wrong."""

    def __init__(self, count: int, max_tokens: int = 60000) -> None:
        self.count = count
        self.errors: list[str] = []
        self.tokens = 0
        self._max_tokens = max_tokens
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]

    def __enter__(self) -> Streams:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._one()
            except OSError as error:
                self.errors.append(repr(error))
                if self._stop.wait(1):
                    return

    def _one(self) -> None:
        body = {
            "model": model_name(),
            "messages": [{"role": "user", "content": "go on"}],
            "stream": True,
            "max_tokens": self._max_tokens,
            "ignore_eos": True,
            "chat_template_kwargs": {"loop": True},
        }
        request = urllib.request.Request(
            f"http://{HEAD.address}:{API_PORT}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            for line in answer:
                if b'"error"' in line:
                    self.errors.append(line.decode(errors="replace").strip()[:200])
                if line.startswith(b"data: {"):
                    self.tokens += 1
                if self._stop.is_set():
                    return


@contextlib.contextmanager
def rail_loss(rail: int, permille: int) -> Iterator[None]:
    """A rail that loses packets while the block runs."""
    network.loss(rail, permille)
    try:
        yield
    finally:
        network.loss(rail, 0)


def images() -> dict[str, str]:
    return hosts.read_images()


def fresh_hosts() -> None:
    """Both hosts as they were before any deploy; images and model are placed again."""
    lab("down")
    lab("up")
    enter_control_namespace()  # it was made anew


def lab(*words: str, seconds: float = 1800) -> str:
    """One lab command, as a person would give it."""
    done = subprocess.run(
        [sys.executable, "-m", "lab", *words],
        cwd=settings.CHECKOUT,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode != 0:
        said = done.stdout[-1500:] + done.stderr[-1500:]
        raise AssertionError(f"lab {' '.join(words)} exited {done.returncode}: {said}")
    return done.stdout
