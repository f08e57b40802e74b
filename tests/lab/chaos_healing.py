"""Rows about a pair that is left alone: it answers again by itself, or the keeper rests and says why."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lab.settings import HEAD, HOSTS, WORKER, Host
from tests.lab import pair, stand
from tests.lab.chaos import Row
from tests.lab.chaos_deep import ROT
from tests.lab.chaos_rows import converged, one_container_each, use

PARTS = ((HEAD, "main"), (HEAD, "EngineCore"), (HEAD, "Worker_TP0"), (WORKER, "main"), (WORKER, "Worker_TP1"))
LATE_SECONDS = 180
"""How much later than the other one a node gets its power back."""
LONG_CUT_SECONDS = 300
STREAM_SECONDS = 600
LEASE_SECONDS = 30
"""The shortest lease that may be set, so that rows on its end are short."""
LEASE_ENDED_SECONDS = 10
"""From the lease's end to the end of the rank's last process."""
AGAIN_SECONDS = 30
"""How soon a program of ours is back after SIGKILL."""
LOADING_SECONDS = 8


def data(*knobs: str) -> tuple[str, ...]:
    """Settings on the command line."""
    return tuple(word for knob in knobs for word in ("--data", knob))


SHARP = data("canary_interval_seconds=5", "canary_timeout_seconds=5", "stuck_seconds=10")
"""Probe deadlines as short as they may be, so that what only a probe can see is seen within a row's time."""
SHORT_LEASE = data(f"lease_seconds={LEASE_SECONDS}")
FEW_TRIES = data("restart_budget=2", "backoff_seconds=1")
SLOW_LOAD = data(f'engine_env=["CONTRACT_START_SECONDS={LOADING_SECONDS}"]')


@contextlib.contextmanager
def left_alone(engine: str, *arguments: str, restarts: int = 1, moved: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """A fault happens in the block to a pair that serves; afterwards all that was there is there, the pair is whole and
    answers, with at most so many successful restarts, and a deploy would change nothing. Gives the status before."""
    converged(engine, *arguments)
    before, kept = pair.status(), stand.look()
    yield before
    assert pair.answers(60), "no answer"
    done = pair.status()["counters"]["ready"] - before["counters"]["ready"]
    assert done <= restarts, f"{done} successful restarts"
    assert pair.status()["accepted"] == before["accepted"], "another generation serves"
    one_container_each()
    kept.assert_kept(moved=moved)
    plan = pair.dry(*use(engine, *arguments)).plan
    assert plan == {}, f"still planned: {plan}"


def tries(before: dict[str, Any]) -> str:
    """Successful restarts, and failed attempts, since `before`."""
    now = pair.status()["counters"]
    done = now["ready"] - before["counters"]["ready"]
    failed = now["starts"] - before["counters"]["starts"] - done
    return f"{done} successful restart{'' if done == 1 else 's'}, {failed} failed attempts"


def settled(seconds: float = 180, for_seconds: float = 5) -> None:
    """Wait until the pair runs and has answered for a while."""
    since: list[float] = []

    def steady() -> bool:
        if pair.status()["phase"] == "running" and pair.answers(5):
            since.append(time.monotonic())
        else:
            since.clear()
        return bool(since) and since[-1] - since[0] >= for_seconds

    pair.wait_for(steady, seconds, f"answers for {for_seconds:.0f} s on end", 0.5)


# --- process deaths


def killed(engine: str, host: Host, title: str, when: str) -> pair.Seen:
    """SIGKILL of one engine process of an idle pair, one that streams, or one that loads."""
    slow = SLOW_LOAD if engine == "contract" and when == "during load" else ()
    with left_alone(engine, *slow) as before:
        if when == "during load":
            pair.on(HEAD, "sparkpair restart")
            pair.wait_for(lambda: loads(before, host, title), 240, f"{title} on the {host.name}", 0.2)
            before = {**before, "counters": {**before["counters"], "starts": before["counters"]["starts"] + 1}}
        with pair.Streams(2 if when == "streaming" else 0, max_tokens=2000):
            if when == "streaming":
                pair.wait_for(lambda: pair.running_requests() > 0, 30, "streams")
            pair.kill_process(host, title)
            took = answers_again(before)
        pair.wait_healed(before)
        own = pair.status()["last_start_seconds"]
        text = f"answers after {took:.1f} s, of which the engine's start {own:.1f} s; {tries(before)}"
    return pair.Seen(text, took - own)


def answers_again(before: dict[str, Any]) -> float:
    """Seconds from now to the first answer of the API of a later start than those of `before`."""
    known = before["counters"]["starts"]

    def anew() -> bool:
        now = pair.status()
        return now["counters"]["starts"] > known and now["phase"] in ("gating", "running") and pair.answers(30)

    return pair.wait_for(anew, 300, "an answer of a new start", 0.1)


def loads(before: dict[str, Any], host: Host, title: str) -> bool:
    """Whether a start is under way and this process is there."""
    now = pair.status()
    if now["phase"] != "starting" or now["counters"]["starts"] == before["counters"]["starts"]:
        return False
    # A worker is not there yet while it still has the title of the process that made it.
    return bool(pair.engine_processes(host)) and (
        title == "main" or any(title in line for line in pair.engine_processes(host))
    )


def both_killed() -> pair.Seen:
    """The main processes of both ranks at once."""
    with left_alone("contract") as before:
        threads = [threading.Thread(target=pair.kill_process, args=(host, "main")) for host in HOSTS.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = answers_again(before)
        pair.wait_healed(before)
        own = pair.status()["last_start_seconds"]
        text = f"answers after {took:.1f} s, of which the engine's start {own:.1f} s; {tries(before)}"
    return pair.Seen(text, took - own)


def kill_storm(kills: int, pause: float) -> str:
    """Several deaths, one soon after the other: back-off spaces the starts, and the pair comes back."""
    with left_alone("contract", restarts=kills) as before:
        struck, until = 0, time.monotonic() + 180
        while struck < kills and time.monotonic() < until:
            with contextlib.suppress(AssertionError):  # between two runs there is none
                pair.kill_process(HEAD, "main")
                struck += 1
                time.sleep(pause)
        assert struck == kills, f"only {struck} kills within 180 s"
        began = time.monotonic()
        settled(240)
        took = time.monotonic() - began
        failures = pair.status()["counters"]["failures"] - before["counters"]["failures"]
        assert 1 <= failures <= struck, f"{failures} failures after {struck} kills"
        text = f"{struck} kills, {failures} failures; answers {took:.0f} s after the last; {tries(before)}"
    return text


def always_dies() -> str:
    """Every start is killed as it begins: tried within the budget, then at rest; nothing is left behind."""
    from tests.lab import footprint

    with left_alone("contract", *FEW_TRIES) as before:
        was = {host.name: footprint.measure(host) for host in HOSTS.values()}

        def strike() -> bool:
            if pair.status()["phase"] == "resting":
                return True
            with contextlib.suppress(AssertionError):
                pair.kill_process(HEAD, "main")
            return False

        pair.wait_for(strike, 120, "the keeper at rest", 0.2)
        rest = pair.status()
        assert "failures in" in rest["reason"] and "the last: " in rest["reason"], rest["reason"]
        starts = rest["counters"]["starts"] - before["counters"]["starts"]
        assert starts <= 2, f"{starts} starts with a budget of 2"
        pair.wait_for(lambda: not any(pair.engine_processes(host) for host in HOSTS.values()), 30, "no process left")
        time.sleep(5)
        assert pair.status()["counters"]["starts"] == rest["counters"]["starts"], "it was started again at rest"
        now = {host.name: footprint.measure(host) for host in HOSTS.values()}
        for name, old in was.items():
            grown = now[name].more_than(old)
            assert not grown, f"{name}: {grown}"
        pair.on(HEAD, "sparkpair start")
        settled(60, 1)
    return f"{starts} starts, then: {rest['reason'][:120]}; memory, processes, descriptors and files as before"


# --- a rank that does not go on, and Docker's own commands


def frozen(host: Host, freeze: str) -> str:
    """A rank that is there and does nothing. Only a probe, or a look at its processes, can tell."""
    with left_alone("contract", *SHARP) as before:
        began = time.monotonic()
        pair.on(host, freeze)
        pair.wait_healed(before, 180)
        assert pair.answers(30)
        took = time.monotonic() - began
        text = f"answers after {took:.0f} s: {last_reason()}; {tries(before)}"
    return text


CONTAINER = "$(docker ps -q --filter label=sparkpair.rank)"


def stop_processes(word: str) -> str:
    """SIGSTOP for the processes of a rank whose name holds a word."""
    pids = f"$(docker top {CONTAINER} -eo pid,comm | awk '/{word}/ && $1 > 0 {{print $1}}')"
    return f"for pid in {pids}; do kill -STOP $pid; done"


def last_reason() -> str:
    """Why the keeper last began anew."""
    failure = pair.status()["last_failure"]
    return str(failure["reason"])[:160] if failure else "no failure"


def by_hand(host: Host, command: str) -> str:
    """An operator's own docker command on a rank."""
    with left_alone("contract") as before:
        began = time.monotonic()
        pair.on(host, command)
        pair.wait_healed(before, 120)
        assert pair.answers(30)
        text = f"answers after {time.monotonic() - began:.0f} s; {tries(before)}"
    return text


def docker_restarted(host: Host, command: str) -> str:
    """Docker's daemon ends and comes back. It ends its containers; nothing else may be started twice."""
    with left_alone("contract") as before:
        began = time.monotonic()
        pair.on(host, command)
        pair.wait_for(lambda: pair.on(host, "docker version -f .", check=False) != "", 60, "Docker back")
        settled(180)
        text = f"steady {time.monotonic() - began:.0f} s later; {tries(before)}"
    return text


# --- cables


def rail_cut(seconds: int, in_flight: bool) -> str:
    """The engine's rail is pulled and put back; waited for, whatever hangs meanwhile."""
    with left_alone("contract") as before:
        with pair.Streams(2 if in_flight else 0, max_tokens=400) as streams:
            if in_flight:
                pair.wait_for(lambda: pair.running_requests() > 0, 30, "streams")
            pair.lab("cut", "0")
            try:
                time.sleep(seconds)
                seen = pair.status()
                assert "no carrier" in seen["reason"], seen
            finally:
                pair.lab("join", "0")
            began = time.monotonic()
            settled(240, 2)
        took = time.monotonic() - began
        if seconds < 60:
            assert pair.status()["counters"]["starts"] == before["counters"]["starts"], "a short cut restarted the pair"
        said = f"{seen['phase']}: {seen['reason'][:70]}"
        lost = f"; streams lost {len(streams.errors)}" if in_flight else ""
        text = f"{seconds} s without cable ({said}); answers {took:.0f} s after it is back; {tries(before)}{lost}"
    return text


def packet_loss(permille: int, seconds: int) -> str:
    """Packets are lost on both rails while every slot works."""
    with left_alone("contract", restarts=0) as before:
        ids = pair.containers()
        with pair.rail_loss(0, permille), pair.rail_loss(1, permille), pair.Streams(4, max_tokens=400) as streams:
            time.sleep(seconds)
        assert not streams.errors, streams.errors[:3]
        assert streams.tokens > seconds, f"only {streams.tokens} tokens"
        assert pair.containers() == ids, "the containers were replaced"
        text = f"{streams.tokens} tokens in {seconds} s with {permille / 10:g} % lost each way, no error; "
        text += tries(before)
    return text


@contextlib.contextmanager
def unreachable_worker() -> Iterator[None]:
    """Both rails and the management cable of the worker are pulled."""
    words = (("cut", "join", "0"), ("cut", "join", "1"), ("unplug", "plug", "worker"))
    for pull, _, which in words:
        pair.lab(pull, which)
    try:
        yield
    finally:
        for _, back, which in words:
            pair.lab(back, which)


@contextlib.contextmanager
def no_sshd() -> Iterator[None]:
    """The worker's sshd is down, and the keeper's session with it."""
    pair.on(WORKER, "systemctl stop ssh.socket ssh.service; loginctl kill-user sparkpair -s KILL; true", check=False)
    pair.on(WORKER, "for pid in $(pgrep -u sparkpair); do kill -9 $pid; done", check=False)
    try:
        yield
    finally:
        pair.on(WORKER, "systemctl start ssh.service")


def lost_worker(way: Callable[[], contextlib.AbstractContextManager[None]]) -> str:
    """No word from the worker for longer than its lease: it ends its rank by itself, and no new one begins."""
    with left_alone("contract", *SHORT_LEASE) as before:
        with way():
            began = time.monotonic()
            limit = LEASE_SECONDS + LEASE_ENDED_SECONDS
            pair.wait_for(lambda: not pair.engine_processes(WORKER), limit, "the end of the worker's rank")
            ended = time.monotonic() - began
            pair.wait_for(lambda: not pair.engine_processes(HEAD), 30, "the end of the head's rank")
            pair.wait_for(lambda: pair.status()["phase"] == "waiting", 30, "the keeper to wait")
            said = pair.status()["reason"]
            assert said.startswith("rank 1 out of reach"), said
            starts = pair.status()["counters"]["starts"]
            time.sleep(5)
            assert pair.status()["counters"]["starts"] == starts, "started without its worker"
        back = time.monotonic()
        pair.wait_healed(before, 120)
        assert pair.answers(30)
        took = time.monotonic() - back
        text = f"rank ended {ended:.0f} s after the last word (lease {LEASE_SECONDS} s); answers {took:.0f} s after; "
        text += tries(before)
    return text


# --- power


def power_cut(engine: str, off: Sequence[Host], on: Sequence[Host], late: int = 0) -> str:
    """Hosts lose power and come back, the last one later than the others if need be."""
    with left_alone(engine) as before:
        for host in off:
            pair.lab("off", host.name)
        for host in on[:-1]:
            pair.lab("on", host.name)
        if late:
            time.sleep(late)
            if on[0] is HEAD:
                seen = pair.status()
                assert seen["phase"] == "waiting" and "rank 1 out of reach" in seen["reason"], seen
        pair.lab("on", on[-1].name)
        began = time.monotonic()
        pair.wait_healed(before)
        assert pair.answers(30)
        text = f"answers by itself {time.monotonic() - began:.0f} s after the power came back; {tries(before)}"
        if late:
            text += f"; the second one {late} s late"
    return text


def outage_longer_than_the_lease() -> str:
    """The head stays off: the worker ends its rank when the lease is over, and waits for a keeper."""
    with left_alone("contract", *SHORT_LEASE) as before:
        pair.lab("off", "head")
        began = time.monotonic()
        limit = LEASE_SECONDS + LEASE_ENDED_SECONDS
        pair.wait_for(lambda: not pair.engine_processes(WORKER), limit, "the end of the worker's rank")
        ended = time.monotonic() - began
        pair.lab("on", "head")
        back = time.monotonic()
        pair.wait_healed(before)
        assert pair.answers(30)
        text = f"the worker's rank ended {ended:.0f} s after the head did (lease {LEASE_SECONDS} s); "
        text += f"answers {time.monotonic() - back:.0f} s after the power came back; {tries(before)}"
    return text


def rebooted(hosts: Sequence[Host]) -> str:
    """Hosts are rebooted in order, at once when there are several."""
    with left_alone("contract") as before:
        began = time.monotonic()
        threads = [threading.Thread(target=pair.lab, args=("reboot", host.name)) for host in hosts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pair.wait_healed(before)
        assert pair.answers(30)
        text = f"answers by itself {time.monotonic() - began:.0f} s after the order to reboot; {tries(before)}"
    return text


# --- memory


@contextlib.contextmanager
def taken(host: Host, left_mib: int) -> Iterator[None]:
    """Something else on a host holds all memory but this."""
    pair.lab("memory", host.name, str(left_mib))
    try:
        yield
    finally:
        pair.lab("memory", host.name)


def memory_comes_back() -> str:
    """After a crash a node's memory is not back at once: the start waits for it."""
    with left_alone("contract") as before:
        with taken(WORKER, 20_000):
            pair.kill_process(WORKER, "main")
            pair.wait_for(lambda: "memory" in pair.status()["reason"], 60, "a reason that names memory")
            said, starts = pair.status()["reason"], pair.status()["counters"]["starts"]
            time.sleep(10)
            assert pair.status()["counters"]["starts"] == starts, "started without the memory"
        began = time.monotonic()
        pair.wait_healed(before, 120)
        assert pair.answers(30)
        text = f"waited: {said[:160]}; answers {time.monotonic() - began:.0f} s after it was back; {tries(before)}"
    return text


def memory_stays_away() -> str:
    """After a crash a node's memory does not come back: at rest with the figures, and nothing is tried."""
    with left_alone("contract", *data("memory_wait_seconds=10")) as before:
        with taken(WORKER, 20_000):
            pair.kill_process(WORKER, "main")
            pair.wait_for(lambda: pair.status()["phase"] == "resting", 120, "the keeper at rest")
            rest = pair.status()
            assert "memory" in rest["reason"], rest["reason"]
            assert rest["counters"]["starts"] == before["counters"]["starts"], "it was tried without the memory"
        pair.on(HEAD, "sparkpair start")
        pair.wait_healed(before, 60)
    return f"at rest, no start tried: {rest['reason'][:200]}"


def memory_emergency(host: Host) -> str:
    """A node is about to run out of memory: its rank is ended before the node hangs, and the pair comes back."""
    with left_alone("contract") as before:
        with taken(host, 100):
            began = time.monotonic()
            pair.wait_for(lambda: not pair.engine_processes(host), 30, "the end of the rank")
            ended = time.monotonic() - began
            pair.wait_for(
                lambda: pair.status()["counters"]["failures"] > before["counters"]["failures"], 30, "a reason"
            )
            reason = last_reason()
            assert "memory" in reason, reason
        back = time.monotonic()
        pair.wait_healed(before, 180)
        assert pair.answers(30)
        text = (
            f"rank ended after {ended:.0f} s: {reason}; answers {time.monotonic() - back:.0f} s after; {tries(before)}"
        )
    return text


# --- files, disks and programs of ours


FILL = (
    "free=$(df --output=avail -B1 /var/lib/sparkpair | tail -1); fallocate -l $(( free - 8*1024*1024 )) /srv/ballast; "
    "dd if=/dev/zero of=/srv/ballast2 bs=4k 2>/dev/null; df --output=avail -B1 /var/lib/sparkpair | tail -1"
)


@contextlib.contextmanager
def no_room(host: Host) -> Iterator[str]:
    """Not a byte is left on the disk of /var/lib/sparkpair and of Docker. Tells how many there are."""
    free = pair.on(host, FILL).strip()
    try:
        yield free
    finally:
        pair.on(host, "rm -f /srv/ballast /srv/ballast2")


def disk_full(host: Host) -> str:
    """Serving goes on with a full disk; a crash meanwhile is mended when there is room again."""
    with left_alone("contract") as before:
        ids = pair.containers()
        with no_room(host) as free:
            time.sleep(20)
            assert pair.answers(30) and pair.containers() == ids, "a full disk ended the pair"
            pair.kill_process(host, "main")
            time.sleep(15)
            meanwhile = f"{pair.status()['phase']}, {last_reason()}"
        began = time.monotonic()
        pair.wait_healed(before, 180)
        assert pair.answers(30)
        took = time.monotonic() - began
        text = f"{free} bytes free: served on; after a crash {meanwhile}; answers {took:.0f} s after there is room; "
        text += tries(before)
    return text


def ours_killed(host: Host, unit: str) -> str:
    """SIGKILL of a program of ours: serving goes on, and nothing is started anew."""
    with left_alone("contract", restarts=0) as before:
        ids = pair.containers()
        answer = pair.on(host, f"systemctl show -P MainPID {unit}").strip()
        with pair.Streams(2, max_tokens=400) as streams:
            pair.wait_for(lambda: pair.running_requests() > 0, 30, "streams")
            pair.on(host, f"systemctl kill -s KILL {unit}")
            began = time.monotonic()
            pair.wait_for(
                lambda: pair.on(host, f"systemctl show -P MainPID {unit}").strip() not in ("0", answer),
                AGAIN_SECONDS, f"{unit} back",
            )  # fmt: skip
            settled(60)
        assert not streams.errors, streams.errors[:3]
        assert pair.containers() == ids, "the containers were replaced"
        took = time.monotonic() - began - 5
        text = f"streams went on; looked after again within {took:.0f} s; {tries(before)}"
    return text


def wanted_garbled() -> str:
    """The wanted files are damaged: a crash is mended from the kept generation, and a deploy mends the files."""
    with left_alone("contract", moved=("wanted/rank.json",)) as before:
        for host in HOSTS.values():
            pair.on(host, "echo '{garbled' > /etc/sparkpair/wanted/rank.json")
        pair.kill_process(WORKER, "main")
        pair.wait_healed(before, 120)
        assert pair.answers(30)
        ids = pair.containers()
        planned = sorted(pair.dry(*use("contract")).plan)
        run = pair.deploy(*use("contract"))
        assert run.code == 0, run.text[-1500:]
        assert pair.containers() == ids, "mending the files restarted the pair"
        text = f"restarted from the generation, {tries(before)}; then planned and done without a restart: {planned}"
    return text


def state_garbled() -> str:
    """The keeper's own memory is damaged and the keeper dies: the next one goes on with what serves."""
    with left_alone("contract", restarts=0):
        ids = pair.containers()
        pair.on(HEAD, "echo '{garbled' > /var/lib/sparkpair/keeper/state.json; systemctl kill -s KILL sparkpair-keeper")
        pair.wait_for(lambda: pair.status()["phase"] == "running", AGAIN_SECONDS, "running")
        settled(60)
        assert pair.containers() == ids, "the containers were replaced"
        aside = pair.on(HEAD, "ls /var/lib/sparkpair/keeper | grep damaged").split()
        pair.on(HEAD, "rm -f /var/lib/sparkpair/keeper/state.damaged-*")
        text = f"serving went on; the damaged state was kept as {aside[0].split('-')[0]}-TIME"
    return text


def generation_garbled() -> str:
    """The accepted generation is damaged, the keeper is restarted and a rank dies: made whole from the nodes' own
    wanted sets, which still are that launch, and started."""
    with left_alone("contract", moved=("kept ", "link ")) as before:
        accepted = pair.status()["accepted"]
        pair.on(HEAD, f"echo '{{garbled' > /var/lib/sparkpair/generations/{accepted}/rank0.json")
        pair.on(HEAD, "systemctl kill -s KILL sparkpair-keeper")
        settled(60)
        pair.kill_process(HEAD, "main")
        took = pair.wait_healed(before, 120)
        assert pair.answers(30)
        told = pair.on(HEAD, "journalctl -u sparkpair-keeper -o cat --no-pager | grep 'is whole again' | tail -n 1")
        assert accepted[:12] in told, told
        assert pair.status()["accepted"] == accepted
    return f"served on; {took:.0f} s after a crash: {told.strip()}"


def image_removed() -> str:
    """A node loses image and container: at rest within the budget with the image named, and a deploy mends it."""
    image = pair.images()["contract"]
    with left_alone("contract", *FEW_TRIES):
        remove = f"docker rm -f {CONTAINER}; docker rmi -f {image} $(docker images -q {image})"
        # Docker keeps the image for as long as a container of it is there, and the keeper is quick to begin a new one.
        pair.on(WORKER, f"systemctl stop sparkpair-agent; {remove}; systemctl start sparkpair-agent")
        pair.wait_for(lambda: pair.status()["phase"] == "resting", 120, "the keeper at rest")
        reason = pair.status()["reason"]
        assert image.partition("@")[2] in reason or "image" in reason.lower(), reason
        run = pair.deploy(*use("contract", *FEW_TRIES))
        assert run.code == 0, run.text[-1500:]
        pair.wait_running(60)
    return f"at rest: {reason[:200]}; a deploy pulled it"


def weights_damaged() -> str:
    """A bit of the worker's weights turns, then a rank dies: the pair loads what is there, and the deep check tells."""
    import subprocess
    import sys

    from lab import settings

    def deep() -> pair.Run:
        words = [sys.executable, "../verify.py", "--deep", *use("contract")]
        done = subprocess.run(
            words, cwd=settings.SOURCE, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL
        )
        return pair.Run(done.returncode, done.stdout + done.stderr, 0.0)

    path = f"{settings.WEIGHTS_ON_WORKER}/model.safetensors"
    with left_alone("contract") as before:
        pair.on(WORKER, f"python3 -c '{ROT}' {path}")
        pair.kill_process(WORKER, "main")
        pair.wait_healed(before, 120)
        assert pair.answers(30)
        found = deep()
        assert found.code == 1 and f"the deep check found other bytes in {path}" in found.text, found.text[-1500:]
        ids = pair.containers()
        run = pair.deploy(*use("contract"))
        assert run.code == 0, run.text[-1500:]
        assert pair.containers() == ids, "mending the weights restarted the pair"
        again = deep()
        assert again.code == 0, again.text[-1500:]
        text = f"answers ({tries(before)}); verify --deep names {path}; a deploy brings it again, no restart"
    return text


# --- what must not be taken for a fault


def endless_streams() -> str:
    """Every slot busy for ten minutes."""
    with left_alone("real", restarts=0) as before:
        ids, busy = pair.containers(), []
        with pair.Streams(4) as streams:
            pair.wait_for(lambda: pair.running_requests() == 4, 60, "four requests at work")
            end = time.monotonic() + STREAM_SECONDS
            while time.monotonic() < end:
                busy.append(pair.running_requests())
                time.sleep(2)
            after = pair.status()["counters"]
        assert not streams.errors, streams.errors[:3]
        assert sum(count == 4 for count in busy) > 0.95 * len(busy), f"not every slot was busy: {busy}"
        assert streams.tokens > 4 * STREAM_SECONDS, f"only {streams.tokens} tokens"
        assert pair.containers() == ids, "the containers were replaced"
        canaries = after["canaries"] - before["counters"]["canaries"]
        assert canaries == 0, f"{canaries} canaries were sent"
        assert after["starts"] == before["counters"]["starts"]
        text = f"4 streams, {streams.tokens} tokens in {STREAM_SECONDS} s: 0 restarts, 0 canaries, 0 errors"
    return text


def long_prefill() -> str:
    """A prompt that is read for longer than every probe deadline, each of its pieces longer than two of them."""
    reading = data('engine_env=["CONTRACT_PREFILL_TOKENS_PER_SECOND=170"]')
    with left_alone("contract", *SHARP, *reading, restarts=0) as before:
        ids, began = pair.containers(), time.monotonic()
        answer = pair.ask("x" * 16000, seconds=300)
        took = time.monotonic() - began
        assert answer == pair.ANSWER, answer
        assert took > 75, f"the prompt was read in {took:.0f} s: no probe deadline passed"
        assert pair.containers() == ids, "the containers were replaced"
        assert pair.status()["counters"]["failures"] == before["counters"]["failures"]
        canaries = pair.status()["counters"]["canaries"] - before["counters"]["canaries"]
        text = f"one prompt read for {took:.0f} s in pieces of 12 s, {canaries} canaries sent: 0 restarts"
    return text


def kills(engine: str, *whens: str) -> list[Row]:
    """A row for each process of each rank."""
    return [
        Row(f"SIGKILL {title} on the {host.name}, {when} ({engine})", engine,
            functools.partial(killed, engine, host, title, when))
        for when in whens
        for host, title in PARTS
    ]  # fmt: skip


def contract(name: str, run: Callable[..., str | pair.Seen], *arguments: Any) -> Row:
    """A row on the contract engine."""
    return Row(name, "contract", functools.partial(run, *arguments))


ROWS: list[Row] = [
    *kills("contract", "idle", "streaming", "during load"),
    contract("both ranks killed at once", both_killed),
    contract("5 kills, each 3 s after there was something to kill", kill_storm, 5, 3.0),
    contract("every start is killed: an engine that always dies", always_dies),
    *[contract(f"SIGSTOP of {name}", frozen, host, stop_processes(word))
      for name, host, word in (("every process of the worker", WORKER, "."), ("Worker_TP1 alone", WORKER, "Worker"),
                               ("EngineCore alone", HEAD, "EngineCor"))],
    *[contract(f"docker pause on the {host.name}", frozen, host, f"docker pause {CONTAINER}")
      for host in HOSTS.values()],
    *[contract(f"docker {word} by hand on the {host.name}", by_hand, host, f"docker {word} {CONTAINER}")
      for word in ("kill", "stop", "rm -f") for host in HOSTS.values()],
    *[contract(f"dockerd {name} on the {host.name}", docker_restarted, host, command)
      for name, command in (("killed", "systemctl kill -s KILL docker"), ("restarted", "systemctl restart docker"))
      for host in HOSTS.values()],
    *[contract(f"engine's rail cut for {seconds} s, {'requests in flight' if busy else 'idle'}",
               rail_cut, seconds, busy)
      for seconds in (20, LONG_CUT_SECONDS) for busy in (False, True)],
    contract("5 % of packets lost under load", packet_loss, 50, 30),
    contract("both ways to the worker lost for longer than the lease", lost_worker, unreachable_worker),
    contract("sshd down on the worker for longer than the lease", lost_worker, no_sshd),
    *[contract(f"power cut of the {host.name}", power_cut, "contract", (host,), (host,)) for host in HOSTS.values()],
    contract("power cut of the head for longer than the lease", outage_longer_than_the_lease),
    *[contract(f"both off ({first.name}, {second.name}), on ({third.name}, {fourth.name})",
               power_cut, "contract", (first, second), (third, fourth))
      for first, second, third, fourth in ((HEAD, WORKER, WORKER, HEAD), (WORKER, HEAD, HEAD, WORKER))],
    *[contract(f"both off, the {second.name} back {LATE_SECONDS} s after the {first.name}",
               power_cut, "contract", (HEAD, WORKER), (first, second), LATE_SECONDS)
      for first, second in ((HEAD, WORKER), (WORKER, HEAD))],
    *[contract(f"reboot of the {host.name}", rebooted, (host,)) for host in HOSTS.values()],
    contract("reboot of both at once", rebooted, (HEAD, WORKER)),
    *[contract(f"disk full on the {host.name}, then a crash", disk_full, host) for host in HOSTS.values()],
    contract("memory comes back late after a crash", memory_comes_back),
    contract("memory does not come back after a crash", memory_stays_away),
    *[contract(f"memory all but gone on the {host.name}", memory_emergency, host) for host in HOSTS.values()],
    contract("keeper killed", ours_killed, HEAD, "sparkpair-keeper"),
    *[contract(f"agent killed on the {host.name}", ours_killed, host, "sparkpair-agent") for host in HOSTS.values()],
    contract("wanted files garbled, then a crash", wanted_garbled),
    contract("keeper's state garbled, keeper killed", state_garbled),
    contract("generation garbled, keeper killed, then a crash", generation_garbled),
    contract("image removed from the worker with its container", image_removed),
    contract("weights damaged, then a crash", weights_damaged),
    contract("a prefill longer than every probe deadline", long_prefill),
    *kills("real", "idle", "streaming", "during load"),
    *[Row(f"power cut of the {host.name} (real)", "real", functools.partial(power_cut, "real", (host,), (host,)))
      for host in HOSTS.values()],
    Row("both off (head, worker), on (head, worker)", "real",
        functools.partial(power_cut, "real", (HEAD, WORKER), (HEAD, WORKER))),
    Row("both off (worker, head), on (worker, head)", "real",
        functools.partial(power_cut, "real", (WORKER, HEAD), (WORKER, HEAD))),
    Row(f"every slot filled with endless streams for {STREAM_SECONDS} s", "real", endless_streams),
]  # fmt: skip
