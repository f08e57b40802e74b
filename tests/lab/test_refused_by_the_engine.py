"""A launch that the real engine refuses is refused while the pair serves; what asking it takes is measured.

After the pass of test_pass.py, on whose pair it works; on a pair that does not serve it deploys first.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lab import hosts
from lab.settings import HEAD, HOSTS, Host
from tests.lab import pair

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("lab"), pytest.mark.timeout(600)]

OURS_MIB = 256
"""What everything of ours may add on a node while the pair serves."""

# Sums the proportional memory of every process once in a while: the engine's containers apart, any other container
# apart, and without itself and what it starts. Prints a line of [rest, other containers], in MiB.
SAMPLER = """
import os, re, time
while True:
    rest = other = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cgroup") as stream:
                cgroup = stream.read()
            if "sparkpair-engine" in cgroup or int(pid) == os.getpid():
                continue
            with open(f"/proc/{pid}/smaps_rollup") as stream:
                pss = int(re.search(r"^Pss: +([0-9]+) kB", stream.read(), re.M).group(1)) / 1024
        except (OSError, AttributeError):
            continue
        if re.search(r"docker[-/][0-9a-f]{64}", cgroup):
            other += pss
        else:
            rest += pss
    print(f"[{rest:.1f}, {other:.1f}]", flush=True)
    time.sleep(0.4)
"""


class Memory:
    """What is held on both hosts while the block runs, sampled."""

    def __init__(self) -> None:
        self.rows: dict[str, list[list[float]]] = {name: [] for name in HOSTS}

    def __enter__(self) -> Memory:
        self._programs = {name: self._start(host) for name, host in HOSTS.items()}
        pair.wait_for(lambda: all(len(rows) > 4 for rows in self.rows.values()), 30, "first samples")
        return self

    def __exit__(self, *_: object) -> None:
        for name, host in HOSTS.items():
            pair.on(host, f"pkill -f {self._word(name)}", check=False)
            self._programs[name].wait(10)

    def _word(self, name: str) -> str:
        return f"pss-sampler-{name}"

    def _start(self, host: Host) -> subprocess.Popen[str]:
        command = hosts.exec_command(host, f"exec python3 -c '{SAMPLER}' {self._word(host.name)}")
        program = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)

        def read() -> None:
            assert program.stdout is not None
            with program.stdout as stream:
                for line in stream:
                    self.rows[host.name].append(json.loads(line))

        threading.Thread(target=read, daemon=True).start()
        return program

    def now(self) -> dict[str, int]:
        """How many samples there are; those from here on are of what comes next."""
        return {name: len(rows) for name, rows in self.rows.items()}

    def added(self, since: dict[str, int]) -> dict[str, float]:
        """Peak since then less what was held before it."""
        return {
            name: max(row[0] for row in rows[since[name] :]) - max(row[0] for row in rows[1 : since[name]])
            for name, rows in self.rows.items()
        }

    def container(self) -> float:
        """The most that a container that is not the engine's held."""
        return max(row[1] for rows in self.rows.values() for row in rows)


class Clients:
    """Whole answers asked for one after another, with pauses: both hosts share the machine's few processors. Counts
    them, and what went wrong."""

    def __init__(self) -> None:
        self.answers = 0
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Clients:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                text = pair.ask()
            except pair.NoAnswer as error:
                self.errors.append(str(error))
            else:
                self.answers += 1
                if text != pair.ANSWER:
                    self.errors.append(text)
            self._stop.wait(0.3)


@pytest.fixture(scope="module", autouse=True)
def serving(lab: None) -> None:
    """The pair as group_data says, answering."""
    del lab
    if pair.status()["phase"] != "running" or pair.dry().plan:
        run = pair.deploy()
        assert run.code == 0, run.text
    assert pair.ask() == pair.ANSWER


@pytest.fixture
def untouched() -> Iterator[None]:
    """Containers, wanted files and the keeper's state are afterwards what they were."""
    before = seen()
    yield
    assert seen() == before


def seen() -> list[Any]:
    status = pair.status()
    files = [pair.on(host, "find /etc/sparkpair -type f | sort | xargs sha256sum") for host in HOSTS.values()]
    return [pair.containers(), files, status["accepted"], status["counters"], status["phase"]]


def throwaway() -> list[str]:
    """Containers in which the engine is being asked, on either host."""
    command = "docker ps -a --filter name=sparkpair-opinion --format '{{.Names}} {{.Status}}'"
    return [line for host in HOSTS.values() for line in pair.on(host, command).splitlines()]


@pytest.mark.usefixtures("untouched")
def test_a_refused_setting_is_refused_while_the_pair_serves(capsys: pytest.CaptureFixture[str]) -> None:
    with Memory() as memory, Clients() as clients:
        pair.wait_for(lambda: clients.answers > 1, 60, "first answers")
        began = memory.now()
        plan = pair.dry("--data", "max_num_seqs=8")
        added = memory.added(began)
        answers = clients.answers
        run = pair.deploy("--data", "kv_cache_dtype=fp9")
        assert clients.answers > answers
    assert plan.plan, "a change that the engine takes is planned"
    assert run.code == 1, run.text
    assert "Preflight refused; no node was changed." in run.text
    assert (
        'kv_cache_dtype = "fp9" (--kv-cache-dtype, both ranks): the engine refuses it: '
        "argument --kv-cache-dtype: invalid choice: 'fp9' (choose from 'auto', " in run.text
    )
    assert clients.errors == []
    assert throwaway() == []
    with capsys.disabled():
        shares = ", ".join(f"{name} {count:.0f}" for name, count in added.items())
        print(f"\n  asked while serving: plan {plan.seconds:.1f} s, refusal {run.seconds:.1f} s")
        print(f"  {clients.answers} answers meanwhile, none failed")
        print(f"  added, MiB: {shares}, and in the container {memory.container():.0f}")
    assert memory.container() > 100, "the container was seen"
    assert all(count < OURS_MIB for count in added.values()), added


@pytest.mark.usefixtures("untouched")
def test_a_deploy_that_is_killed_leaves_no_container() -> None:
    deploy = pair.start_deploy("-y", "--data", "kv_cache_dtype=fp9")
    pair.wait_for(throwaway, 60, "the throwaway container", 0.1)
    deploy.kill(signal.SIGKILL)
    deploy.wait()
    pair.wait_for(lambda: not throwaway(), 60, "its end")


def test_an_image_that_must_be_pulled_first_is_asked_after_the_pull() -> None:
    image = pair.images()["contract"]
    remove = f"docker rmi {image}"
    for host in HOSTS.values():
        pair.on(host, remove, check=False)
    before = pair.containers(), pair.status()["accepted"]
    try:
        run = pair.deploy("--data", f"image={image}", "--data", "tool_call_parser=nope")
        assert run.code == 1, run.text
        assert 'tool_call_parser = "nope" (--tool-call-parser, rank 0): the engine refuses it: ' in run.text
        assert "stopped: the step above failed" in run.text
        assert (pair.containers(), pair.status()["accepted"]) == before
        assert pair.dry().plan == {}, "nothing but the image was brought"
    finally:
        for host in HOSTS.values():
            pair.on(host, remove, check=False)


def test_a_plan_with_nothing_to_do_asks_nothing() -> None:
    began = time.monotonic()
    assert pair.dry().plan == {}
    assert time.monotonic() - began < 5, "an engine that is asked takes longer"
    assert pair.on(HEAD, "docker ps -aq | wc -l").strip() == "1"
