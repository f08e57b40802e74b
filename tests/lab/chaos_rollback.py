"""Rows about a new launch that is no good: the pair ends by serving the last good one, by digest, and tells why; the
plan refuses the rejected one from then on, and nothing tries it again."""

from __future__ import annotations

import contextlib
import functools
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from lab import variants
from lab.settings import HEAD, HOSTS, WORKER
from tests.lab import pair, stand
from tests.lab.chaos import Row
from tests.lab.chaos_healing import data, settled
from tests.lab.chaos_rows import converged, one_container_each, use

STALL_SECONDS = 10
OTHER_PORT = 8123
QUICK = data("backoff_seconds=1", f"load_stall_seconds={STALL_SECONDS}", "canary_timeout_seconds=10")
"""Pauses and deadlines short enough for a row. Part of every launch here, the good one too."""


@dataclass(frozen=True)
class Bad:
    """A launch that must not stay, and words of the reason that must be told."""

    name: str
    reason: tuple[str, ...]
    """At least one of these is in it."""
    knobs: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    engine: str = "contract"
    beside: Callable[[], AbstractContextManager[tuple[str, ...]]] = field(
        default=functools.partial(contextlib.nullcontext, ())
    )
    """What else is true while it is tried; gives more arguments."""


def base(engine: str) -> tuple[str, ...]:
    """Arguments of the good launch."""
    return use(engine, *QUICK)


def trial(engine: str, *env: str) -> tuple[str, ...]:
    """Arguments that make a launch of its own, which was never tried before: rejected ones are remembered."""
    words = ", ".join(f'"{word}"' for word in (*env, f"LAB_TRIAL={time.time_ns()}"))
    return (*base(engine), *data(f"engine_env=[{words}]"))


def served_by() -> set[str]:
    """The launches whose containers run, by the label on them."""
    form = "'{{index .Config.Labels \"sparkpair.engine\"}}'"
    command = f"docker ps -q --filter label=sparkpair.rank | xargs -r docker inspect -f {form}"
    return {line for host in HOSTS.values() for line in pair.on(host, command).split()}


@contextlib.contextmanager
def returns_to_the_last_good(engine: str) -> Iterator[str]:
    """A bad launch is tried in the block; afterwards the one before it serves, by digest, with nothing lost. Gives its
    hash."""
    converged(engine, *QUICK)
    good, kept = stand.last_good(), stand.look()
    assert served_by() == {good}, "the pair does not serve its last good launch to begin with"
    yield good
    pair.wait_for(lambda: pair.status()["phase"] == "running" and served_by() == {good}, 300, "the last good launch")
    settled(60, 2)
    assert stand.last_good() == good and pair.status()["accepted"] == good
    one_container_each()
    kept.assert_kept(moved=("wanted/", "link "), pruned=True)


def rejected(bad: str, words: tuple[str, ...], arguments: tuple[str, ...]) -> str:
    """The launch is remembered as rejected, with the reason; a plan and a deploy refuse it, and nothing is started."""
    known = pair.status()["rejected"]
    assert bad in known, f"{bad[:12]} is not among the rejected: {known}"
    reason = str(known[bad]["reason"])
    assert any(word in reason for word in words), f"none of {words} in {reason!r}"
    starts = pair.status()["counters"]["starts"]
    plan = pair.dry(*arguments)
    assert plan.code == 1 and "reject" in plan.text and bad[:12] in plan.text, plan.text[-1500:]
    when = str(known[bad]["time"])[:16].replace("T", " ")
    assert when in plan.text and reason[:40] in plan.text, f"time or reason untold: {plan.text[-1500:]}"
    run = pair.deploy(*arguments)
    assert run.code == 1 and "no node was changed" in run.text, run.text[-1500:]
    time.sleep(3)
    assert pair.status()["counters"]["starts"] == starts, "it was tried again"
    return reason


def mended(engine: str) -> None:
    """Deploying what serves restarts nothing, and then nothing is planned."""
    ids = pair.containers()
    run = pair.deploy(*base(engine))
    assert run.code == 0, run.text[-1500:]
    assert pair.containers() == ids, "going back to what serves restarted the pair"
    assert pair.dry(*base(engine)).plan == {}


def tried(bad: Bad) -> str:
    """Deployed, not good, returned from, and refused from then on."""
    with returns_to_the_last_good(bad.engine) as good:
        before = pair.status()["counters"]
        with bad.beside() as more:
            arguments = (*trial(bad.engine, *bad.env), *data(*bad.knobs), *more)
            run = pair.deploy(*arguments)
        assert run.code == 1, f"exit {run.code}: {run.text[-1500:]}"
        assert "Run the same command again" not in run.text, "that would be refused"
        for said in (good[:12], "rank 0, last lines", "rank 1, last lines"):
            assert said in run.text, f"the deploy does not tell {said!r}: {run.text[-2500:]}"
        assert pair.status()["phase"] == "running", "the deploy ended before its outcome was there"
    launch = newest_launch(good)
    now = pair.status()["counters"]
    reason = rejected(launch, bad.reason, arguments)
    mended(bad.engine)
    starts, ready = now["starts"] - before["starts"], now["ready"] - before["ready"]
    return f"{starts} starts, {ready} of them answered: {good[:12]} again; rejected: {reason[:140]}"


def newest_launch(good: str) -> str:
    """The launch that was handed over last, other than the good one."""
    return next(
        str(entry["engine"])
        for entry in reversed(pair.history())
        if entry["event"] == "accepted" and entry["engine"] != good
    )


# --- what is true beside a launch


@contextlib.contextmanager
def broken_image() -> Iterator[tuple[str, ...]]:
    """An image whose entrypoint is not in it. Its layers are whole, and its digest is what was asked for."""
    made = variants.make(1, 1, f"broken-{time.time_ns()}", entrypoint="/usr/local/bin/missing")[0]
    try:
        yield data(f"image={made.reference}")
    finally:
        variants.remove()


@contextlib.contextmanager
def other_server_at_the_start() -> Iterator[tuple[str, ...]]:
    """Another program takes the API's port on the head after the preflight has found it free."""
    unit = "sparkpair-lab-other"
    listen = (
        f"exec python3 -S -c \"import socket, time; own = socket.create_server(('', {OTHER_PORT})); time.sleep(900)\""
    )
    wait = f"until grep -qs {OTHER_PORT} /etc/sparkpair/wanted/rank.json; do sleep 0.05; done"
    pair.on(HEAD, f"systemd-run -q --unit={unit} sh -c {shlex.quote(f'{wait}; {listen}')}")
    try:
        yield data(f"api_port={OTHER_PORT}")
    finally:
        pair.on(HEAD, f"systemctl stop {unit}; systemctl reset-failed {unit}", check=False)


# --- power cuts


def accepted_other_than(good: str) -> bool:
    """Whether another launch was handed over."""
    return bool(pair.status().get("accepted") not in (None, good))


def head_cut_while_gating() -> str:
    """The head loses power while the gates ask a launch that answers wrongly: nothing was promoted."""
    arguments = trial("contract", "CONTRACT_ANSWER=nonsense", "CONTRACT_TOKENS_PER_SECOND=2")
    with returns_to_the_last_good("contract") as good:
        deploy = pair.start_deploy("-y", *arguments)
        pair.wait_for(lambda: accepted_other_than(good) and pair.status()["phase"] == "gating", 120, "gating", 0.05)
        pair.lab("off", "head")
        deploy.kill()  # it would wait for its connection's end for minutes
        deploy.wait()
        pair.lab("on", "head")
        pair.wait_for(lambda: newest_launch(good) in pair.status().get("rejected", {}), 240, "its rejection")
    reason = rejected(newest_launch(good), ("answer", "smoke", "canary"), arguments)
    mended("contract")
    return f"cut while gating; after the boot {good[:12]} serves again; rejected: {reason[:140]}"


def head_cut_at_promotion() -> str:
    """The head loses power as a good launch is promoted: whichever was promoted serves, and nothing is rejected."""
    converged("contract", *QUICK)
    good, kept = stand.last_good(), stand.look()
    arguments = trial("contract")
    deploy = pair.start_deploy("-y", *arguments)
    pair.wait_for(lambda: accepted_other_than(good) and pair.status()["phase"] == "gating", 120, "gating", 0.02)
    with contextlib.suppress(AssertionError):  # the cut is for the moment, whether it is still gating or not
        pair.wait_for(lambda: pair.status()["phase"] == "running", 1.5, "running", 0.01)
    pair.lab("off", "head")
    deploy.kill()
    deploy.wait()
    pair.lab("on", "head")
    settled(240, 3)
    launch = newest_launch(good)
    status = pair.status()
    assert status["accepted"] == stand.last_good() and served_by() == {stand.last_good()}
    assert launch not in status["rejected"], "a power cut was held against a good launch"
    assert status["accepted"] == launch, "the good launch was given up for a power cut"
    one_container_each()
    kept.assert_kept(moved=("wanted/", "link "), pruned=True)
    assert pair.deploy(*arguments).code == 0
    assert pair.dry(*arguments).plan == {}
    return f"{launch[:12]} serves after the boot and is the last good one; not rejected"


def deploy_killed_and_both_cut() -> str:
    """The deploy of a launch that fails as it loads is killed after the hand-over, and both nodes lose power."""
    arguments = trial("contract", "CONTRACT_START_FAIL=1", "CONTRACT_START_SECONDS=3")
    with returns_to_the_last_good("contract") as good:
        deploy = pair.start_deploy("-y", *arguments)
        pair.wait_for(lambda: accepted_other_than(good), 120, "the hand-over", 0.05)
        deploy.kill()
        deploy.wait()
        for host in HOSTS.values():
            pair.lab("off", host.name)
        for host in HOSTS.values():
            pair.lab("on", host.name)
        pair.wait_for(lambda: newest_launch(good) in pair.status().get("rejected", {}), 240, "its rejection")
    reason = rejected(newest_launch(good), ("exited", "initialization failed"), arguments)
    mended("contract")
    return f"after the boot {good[:12]} serves again; rejected: {reason[:140]}"


def worker_cut_while_loading() -> str:
    """The worker loses power while a good launch loads: not the launch's fault, and it serves in the end."""
    converged("contract", *QUICK)
    good, kept = stand.last_good(), stand.look()
    arguments = trial("contract", "CONTRACT_START_SECONDS=6")
    deploy = pair.start_deploy("-y", *arguments)
    pair.wait_for(
        lambda: accepted_other_than(good) and pair.status()["phase"] == "starting" and pair.engine_processes(WORKER),
        120, "the load", 0.1,
    )  # fmt: skip
    pair.lab("off", "worker")
    time.sleep(5)
    pair.lab("on", "worker")
    launch = newest_launch(good)
    pair.wait_for(lambda: pair.status()["phase"] == "running" and served_by() == {launch}, 240, "the new launch")
    run = deploy.wait()
    assert run.code == 0, run.text[-1500:]
    assert launch not in pair.status()["rejected"], "a power cut was held against a good launch"
    assert stand.last_good() == launch
    one_container_each()
    kept.assert_kept(moved=("wanted/", "link "), pruned=True)
    assert pair.dry(*arguments).plan == {}
    return f"{launch[:12]} serves and is the last good one; not rejected; the deploy saw it through"


def rows(*bads: Bad) -> Iterator[Row]:
    """A row for each bad launch."""
    for bad in bads:
        yield Row(f"bad launch: {bad.name} ({bad.engine})", bad.engine, functools.partial(tried, bad))


NEVER_LOADS = "CONTRACT_START_HANG=1"
ROWS: list[Row] = [
    *rows(
        Bad("the engine refuses its arguments", ("max_model_len", "exited"),
            ("ask_the_engine=false", "max_model_len=200000")),
        Bad("a rank fails as it loads", ("exited", "initialization failed"), env=("CONTRACT_START_FAIL=1",)),
        Bad("a rank hangs as it loads", ("no work", "hung", "stall", f"{STALL_SECONDS} s"), env=(NEVER_LOADS,)),
        Bad("the first request kills it", ("exited", "first", "smoke", "died", "C++"),
            env=("CONTRACT_FIRST_REQUEST=kills",)),
        Bad("it answers wrongly", ("answer", "smoke", "canary"), env=("CONTRACT_ANSWER=nonsense",)),
        Bad("it calls no tool", ("tool",), env=("CONTRACT_TOOL_CALLS=never",)),
        Bad("its reasoning leaks into the answer", ("reason",), env=("CONTRACT_REASONING=leaks",)),
        Bad("its image has no entrypoint", ("missing", "no such file"), ("ask_the_engine=false",), beside=broken_image),
        Bad("another program has its port", (f"{OTHER_PORT}",), beside=other_server_at_the_start),
        Bad("the engine refuses its arguments", ("fp9", "invalid choice", "exited"),
            ("ask_the_engine=false", "kv_cache_dtype=fp9"), engine="real"),
    ),
    Row("bad launch: the head cut off while it is gated", "contract", head_cut_while_gating),
    Row("bad launch: deploy killed, then both cut off", "contract", deploy_killed_and_both_cut),
    Row("good launch: the head cut off as it is promoted", "contract", head_cut_at_promotion),
    Row("good launch: the worker cut off as it loads", "contract", worker_cut_while_loading),
]  # fmt: skip
