"""Rows about staging: whatever happens on the way, both hosts end with the right bytes, and nothing whole is fetched
twice. The hub's own log is the witness (lab/hub.py)."""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator

from lab import network, settings
from lab.hub_service import Remote
from lab.repositories import READER, STRANGER
from lab.settings import HEAD, HOSTS, WORKER, Host
from tests.lab import chaos_rows, pair, staging, watch
from tests.lab.chaos import Row
from tests.lab.staging import MIB, Errand

MIDDLE = Errand("lab/middle")
BIG = Errand("lab/big")
GATED = Errand("lab/gated")
LAST = "model-00005-of-00005.safetensors"
FIRST = "model-00001-of-00005.safetensors"
KILLS = 20
OURS_MIB = 256
"""Memory that all of Sparkpair may have on a node while it stages beside a pair that serves."""


def begun(errand: Errand, rate_mib: int | None = None) -> Remote:
    """Nothing of it on the hosts, a lock, and a hub that sends so many MiB per second and connection."""
    staging.forget(errand)
    staging.locked(errand)
    far = Remote()
    far.forget()
    if rate_mib is not None:
        far.fault("slow", rate=rate_mib * MIB)
    return far


def ended(errand: Errand, run: pair.Run, spoilt: tuple[str, ...] = ()) -> str:
    """A run that went well, right bytes on both hosts, every byte sent once, and nothing left to do."""
    assert run.code == 0, run.text[-2500:]
    staging.assert_arrived(errand)
    total = staging.assert_sent_once(errand, spoilt)
    assert staging.plan(errand) == {}, "a second run plans something"
    return f"{total / MIB:.1f} MiB sent for {staging.size(errand) / MIB:.1f}"


# --- the way itself


def each_its_half() -> str:
    """Both hosts reach the hub: each file goes to one of them, and from there over the rails."""
    far = begun(MIDDLE)
    run = staging.stage(MIDDLE)
    seen = ended(MIDDLE, run)
    asked = {request.file for request in far.requests if request.sent}
    assert asked == set(far.files(MIDDLE.repository)), asked
    shares = {host.name: staging.sent(MIDDLE, host=host) for host in HOSTS.values()}
    assert min(shares.values()) > 0.35 * sum(shares.values()), shares
    return f"{seen}; head {shares['head'] / MIB:.0f}, worker {shares['worker'] / MIB:.0f} MiB; {run.seconds:.0f} s"


def one_offline(host: Host) -> str:
    """A host without internet fetches nothing, and gets all over the rails."""
    far = begun(MIDDLE)
    with offline(host):
        run = staging.stage(MIDDLE)
        seen = ended(MIDDLE, run)
    asked = [request for request in far.requests if request.client == host.address]
    assert asked == [], asked
    return f"{seen}; the {host.name} sent no request"


def none_online() -> str:
    """Nobody reaches the hub: refused before anything changes."""
    far = begun(MIDDLE)
    before = staging.state(MIDDLE)
    with offline(HEAD), offline(WORKER):
        run = staging.stage(MIDDLE)
    assert run.code != 0
    words = ("Preflight refused; no node was changed", "none reaches " + settings.HUB, "make bundle")
    assert all(word in run.text for word in words), run.text[-2500:]
    staging.assert_unchanged(MIDDLE, before)
    assert staging.sent(MIDDLE) == 0 and not [request for request in far.requests if request.file]
    return "refused, nothing changed"


def second_run() -> str:
    """Where all is there, nothing is planned, and no content is read: only metadata."""
    if staging.plan(MIDDLE) != {}:
        begun(MIDDLE)
        assert staging.stage(MIDDLE).code == 0
    for host in HOSTS.values():
        pair.on(host, "sync")
        watch.drop_cache(watch.on_machine(host, MIDDLE.directory))
    before = {host.name: watch.read_bytes(host) for host in HOSTS.values()}
    Remote().forget()
    assert staging.plan(MIDDLE) == {}
    run = staging.stage(MIDDLE)
    assert run.code == 0, run.text[-1500:]
    read = {name: watch.read_bytes(HOSTS[name]) - count for name, count in before.items()}
    cached = watch.cached_share([watch.on_machine(host, MIDDLE.directory) for host in HOSTS.values()])
    assert cached < 0.001, f"{cached:.2%} of the files was read"
    assert max(read.values()) < 2 * MIB, read
    assert [request for request in Remote().requests if request.file] == []
    told = ", ".join(f"{name} {count / 1024:.0f} KiB" for name, count in read.items())
    return f"nothing planned; read from disk in a plan and a run: {told}"


@contextlib.contextmanager
def offline(host: Host) -> Iterator[None]:
    """A host that cannot reach the far side for a while."""
    network.offline(host)
    try:
        yield
    finally:
        network.online(host)


# --- interrupted


def killed_often() -> str:
    """SIGKILL to the staging unit at many places of the download, on one host and then on the other."""
    begun(BIG, rate_mib=20)
    step = staging.size(BIG) // (KILLS + 2)
    for number in range(KILLS):
        deploy = staging.start(BIG)
        host = (HEAD, WORKER)[number % 2]
        pair.wait_for(lambda host=host: staging.unit_state(host) == "active", 60, "the unit", 0.05)  # type: ignore[misc]
        staging.wait_sent(BIG, (number + 1) * step)
        staging.kill_unit(host)
        deploy.kill()
        deploy.wait()
    Remote().clear()
    return f"{KILLS} kills; " + ended(BIG, staging.stage(BIG))


def deploy_gone(how: str) -> str:
    """The deploy is killed, or its ssh connections are: the units go on, and the next run follows them."""
    begun(MIDDLE, rate_mib=1)
    deploy = staging.start(MIDDLE)
    staging.wait_sent(MIDDLE, 20 * MIB)
    if how == "killed":
        deploy.kill(signal.SIGKILL)
    else:
        for host in HOSTS.values():
            pair.on(host, "pkill -KILL -f '^sshd-session: '", check=False)
    lost = deploy.wait()
    assert lost.code != 0, lost.text[-800:]
    before = {host.name: staging.invocation(host) for host in HOSTS.values()}
    assert all(before.values()), "a unit ended with the deploy"
    again = staging.start(MIDDLE)
    assert again.until("Weights | Pull the weights", 120), "\n".join(again.lines[-20:])
    assert again.until("(hub)", 60), "\n".join(again.lines[-20:])
    followed = {host.name: staging.invocation(host) for host in HOSTS.values()}
    assert any(followed.values()), "it was followed too late to tell"
    Remote().clear()
    assert all(followed[name] in ("", before[name]) for name in before), "a unit was begun again"
    return "both units went on, and were followed; " + ended(MIDDLE, again.wait(300))


def rebooted() -> str:
    """The worker reboots while both download."""
    errand = Errand("lab/middle", stall_seconds=120)
    begun(errand, rate_mib=1)
    deploy = staging.start(errand)
    staging.wait_sent(errand, 30 * MIB)
    pair.lab("reboot", "worker")
    deploy.kill()  # it would wait for the head, whose unit waits for the worker
    deploy.wait()
    Remote().clear()
    return ended(errand, staging.stage(errand))


def rails_cut() -> str:
    """2 GiB over the rails, which are cut one after the other."""
    have(BIG)
    pair.on(WORKER, f"rm -rf {BIG.directory}")
    Remote().forget()
    with offline(WORKER):
        deploy = staging.start(BIG)
        try:
            for rail, share in ((0, 0.1), (1, 0.4)):
                pair.wait_for(lambda share=share: copied() > share * staging.size(BIG), 60, "copying", 0.02)  # type: ignore[misc]
                network.cut(rail)
                time.sleep(1.0)
                network.join(rail)
            run = deploy.wait(300)
        finally:
            for rail in settings.RAIL_NUMBERS:
                network.join(rail)
    assert run.code == 0, run.text[-2500:]
    staging.assert_arrived(BIG)
    assert staging.sent(BIG) == 0, "it was fetched again"
    assert staging.plan(BIG) == {}
    return f"2 GiB over the rails in {run.seconds:.0f} s, nothing from the hub"


def copied() -> int:
    """Bytes of it on the worker's disk by now."""
    return int(pair.on(WORKER, f"du -s -B1 {BIG.directory} 2>/dev/null || echo 0").split()[0])


def have(errand: Errand) -> None:
    """It is on both hosts."""
    staging.locked(errand)
    if staging.plan(errand) != {}:
        begun(errand)
        run = staging.stage(errand)
        assert run.code == 0, run.text[-2500:]


def disk_full() -> str:
    """The worker's disk fills while it downloads; with room again, it goes on."""
    errand = Errand("lab/middle", stall_seconds=120)
    begun(errand, rate_mib=1)
    deploy = staging.start(errand)
    staging.wait_sent(errand, 25 * MIB)
    pair.on(WORKER, "fallocate -l $(( $(df --output=avail -B1 /srv | tail -1) - 4*1024*1024 )) /srv/ballast")
    try:
        assert deploy.until("MiB free, and", 60), "\n".join(deploy.lines[-20:])
        said = next(line for line in deploy.lines if "MiB free, and" in line)
        assert "Fix: free" in said, said
        kept = staging.sent(errand)
        deploy.kill()  # it would wait for the head, whose unit waits for the worker
        deploy.wait()
    finally:
        pair.on(WORKER, "rm -f /srv/ballast")
    Remote().clear()
    words = said.partition("] ")[2].partition(" What is here")[0]
    return f"{words}; after {kept / MIB:.0f} MiB; " + ended(errand, staging.stage(errand))


# --- damaged on disk


def damaged_on_disk() -> str:
    """One file with other bytes on one host, one cut short on both: only what no host has is fetched again."""
    have(MIDDLE)
    Remote().forget()
    pair.on(HEAD, f"printf X | dd of={MIDDLE.directory}/{FIRST} bs=1 seek=1000000 conv=notrunc status=none")
    for host in HOSTS.values():
        pair.on(host, f"truncate -s 5000000 {MIDDLE.directory}/{LAST}")
    run = staging.stage(MIDDLE)
    assert run.code == 0, run.text[-2500:]
    staging.assert_arrived(MIDDLE)
    lost = Remote().files(MIDDLE.repository)[LAST][0]
    by_file = {
        path: staging.sent(MIDDLE, path) for path in Remote().files(MIDDLE.repository) if staging.sent(MIDDLE, path)
    }
    assert by_file == {LAST: lost}, by_file
    assert staging.plan(MIDDLE) == {}
    return f"fetched again: {LAST} alone, {lost / MIB:.0f} MiB; {FIRST} came from the peer"


# --- a bad hub


def bad_hub(faults: Callable[[Remote], None], spoilt: tuple[str, ...] = ()) -> str:
    """What a hub may do to a download, without a person's help."""
    far = begun(MIDDLE)
    faults(far)
    run = staging.stage(MIDDLE)
    happened = [(fault.kind if fault.kind != "status" else str(fault.status), fault.happened) for fault in far.faults]
    assert all(count for _, count in happened), f"a fault did not happen: {happened}"
    far.clear()
    told = ", ".join(f"{kind} {count} times" for kind, count in happened)
    return f"{told}; {run.seconds:.0f} s; " + ended(MIDDLE, run, spoilt)


def stalls(far: Remote) -> None:
    far.fault("stall", path=FIRST, at=9 * MIB + 1, times=1)
    far.fault("reset", path="model-00002-of-00005.safetensors", at=13 * MIB, times=1)
    far.fault("truncate", path="model-00003-of-00005.safetensors", at=4096, times=2)


def busy(far: Remote) -> None:
    far.fault("status", path=FIRST, status=429, retry_after=2, times=2)
    far.fault("status", path="config.json", status=503, times=2)
    far.fault("status", path=LAST, host="cdn", status=503, retry_after=1, times=2)


def wrong_byte(far: Remote) -> None:
    far.fault("corrupt", path=LAST, at=MIB, times=1)


def xet_fails(how: str) -> str:
    """The hub says that its files are on xet, whose store is silent or fails: they come from the CDN instead."""
    errand = Errand(f"lab/xet-{how}")
    far = begun(errand)
    run = staging.stage(errand)
    asked = sum(request.host == "cas" for request in far.requests)
    assert asked > 0, "the store of xet was never asked"
    return f"the store was asked {asked} times; {run.seconds:.0f} s; " + ended(errand, run)


def cdn_away() -> str:
    """The CDN does not listen for a while."""
    far = begun(MIDDLE)
    far.fault("refuse", host="cdn")
    back = threading.Timer(6, far.clear)
    back.start()
    try:
        run = staging.stage(MIDDLE)
    finally:
        back.join()
    return f"away for 6 s; {run.seconds:.0f} s in all; " + ended(MIDDLE, run)


def wrong_bytes_for_ever() -> str:
    """A file whose bytes are never those of the lock: refused by name, the rest stays; then it alone is fetched."""
    far = begun(MIDDLE)
    far.fault("corrupt", path=LAST, at=MIB)
    run = staging.stage(MIDDLE)
    assert run.code != 0
    assert f"{LAST} arrived with other bytes than the lock states" in run.text, run.text[-2500:]
    far.clear()
    far.forget()
    run = staging.stage(MIDDLE)
    assert run.code == 0, run.text[-2500:]
    staging.assert_arrived(MIDDLE)
    fetched = {request.file for request in far.requests if request.sent}
    assert fetched <= {LAST}, fetched
    return "refused by name; the next run fetched that file alone"


def mirror_helps() -> str:
    """The repository spoils a file and refuses another for good; the mirror, proven equal in the lock, has both."""
    errand = Errand("lab/middle", more=("weights_repository_fallback=mirror/middle",))
    far = begun(errand)
    far.fault("corrupt", "lab/middle", path=LAST, at=MIB)
    far.fault("status", "lab/middle", path=FIRST, status=404)
    run = staging.stage(errand)
    from_mirror = {request.file for request in far.requests if request.sent and request.repository == "mirror/middle"}
    assert from_mirror == {FIRST, LAST}, from_mirror
    far.clear()
    return "the mirror gave both; " + ended(errand, run, (LAST,))


def revision_moved() -> str:
    """The branch moves while its locked commit is downloaded: the lock holds, and says so when it is asked."""
    far = begun(MIDDLE, rate_mib=1)
    wanted = far.files(MIDDLE.repository, "first")
    deploy = staging.start(MIDDLE)
    staging.wait_sent(MIDDLE, 20 * MIB)
    try:
        far.move(MIDDLE.repository, "main", "newest")
        far.clear()
        run = deploy.wait(300)
        assert run.code == 0, run.text[-2500:]
        staging.assert_arrived(MIDDLE, wanted)
        check = staging.make_lock(MIDDLE, "--check")
        assert check.code == 2 and LAST in check.text, (check.code, check.text)
        assert staging.plan(MIDDLE) == {}
    finally:
        far.move(MIDDLE.repository, "main", "first")
    return f"the locked commit arrived; lock.py --check: {check.text.splitlines()[1].strip()}"


# --- who may


def gated() -> str:
    """Without a token, and with a stranger's: refused with the fix. With one that may: all arrives."""
    errand = GATED
    staging.forget(errand)
    made = staging.make_lock(errand, token=READER)
    assert made.code == 0, made.text
    for token, words in (
        ("", ("lab/gated on the hub is gated", "hf auth login")),
        (STRANGER, ("lab/gated on the hub is gated", "accept its terms")),
    ):
        run = staging.stage(errand, token=token)
        assert run.code != 0 and all(word in run.text for word in words), run.text[-2500:]
        assert token == "" or token not in run.text
    Remote().forget()
    return "refused twice with the fix; " + ended(errand, staging.stage(errand, token=READER))


def licence() -> str:
    """A licence that is not accepted: refused before anything changes, with the line that accepts it."""
    errand = Errand("lab/drafter")
    staging.forget(errand)
    staging.locked(errand)
    Remote().forget()
    before = staging.state(errand)
    run = staging.stage(errand)
    words = ("no node was changed", "cc-by-nc-nd-4.0", 'accepted_licences = "cc-by-nc-nd-4.0"')
    assert run.code != 0 and all(word in run.text for word in words), run.text[-2500:]
    staging.assert_unchanged(errand, before)
    assert staging.sent(errand) == 0
    accepted = Errand("lab/drafter", more=("accepted_licences=cc-by-nc-nd-4.0",))
    return "refused, nothing changed; accepted: " + ended(accepted, staging.stage(accepted))


def token_nowhere() -> str:
    """A download with a token: it is seen by the hub, and nowhere else."""
    errand = GATED
    staging.forget(errand)
    made = staging.make_lock(errand, token=READER)
    assert made.code == 0 and READER not in made.text
    far = Remote()
    far.forget()
    far.fault("slow", rate=6 * MIB)
    with contextlib.ExitStack() as stack:
        watches = [stack.enter_context(watch.Watch(host, READER)) for host in HOSTS.values()]
        control = stack.enter_context(watch.Control(READER))
        run = staging.stage(errand, "-vvv", "--debug", "--diff", token=READER)
        seen = [each.end() for each in watches]
        own = control.end()
    far.clear()
    told = ended(errand, run)
    assert READER not in run.text, "the run said it"
    for host, what in zip(HOSTS.values(), seen, strict=True):
        assert what.samples > 20, f"{host.name}: looked {what.samples} times only"
        assert what.seen == [], f"{host.name}: {what.seen}"
        left = watch.left_over(host, READER)
        assert left == [], f"{host.name}: {left}"
    assert own == [], f"control machine: {own}"
    hosts_seen = {name: {request.authorized for request in far.requests if request.host == name}
                  for name in ("hub", "cdn")}  # fmt: skip
    assert True in hosts_seen["hub"] and hosts_seen["cdn"] == {False}, hosts_seen
    samples = sum(what.samples for what in seen)
    return f"{told}; {samples} looks at all processes, journals, units, files, -vvv --debug: nowhere; the CDN saw none"


# --- beside a pair that serves


def beside_serving() -> str:
    """2 GiB to both hosts while the pair answers: no request fails, the page cache stays free, we stay small."""
    big = Errand("lab/big", engine="engine")
    chaos_rows.converged("real")
    begun(big)
    failed: list[str] = []
    answered = 0
    over = threading.Event()

    def client() -> None:
        nonlocal answered
        while not over.is_set():
            try:
                pair.ask(seconds=120)
                answered += 1
            except pair.NoAnswer as error:
                failed.append(str(error))

    loop = threading.Thread(target=client)
    before = pair.containers()
    with contextlib.ExitStack() as stack:
        watches = [stack.enter_context(watch.Watch(host)) for host in HOSTS.values()]
        loop.start()
        stack.callback(over.set)
        pair.wait_for(lambda: answered or failed, 60, "the first answer")
        run = staging.stage(big)
        over.set()
        loop.join(180)
        shares = {host.name: watch.cached_share([watch.on_machine(host, big.directory)]) for host in HOSTS.values()}
        seen = {each.host.name: each.end() for each in watches}
    assert run.code == 0, run.text[-2500:]
    staging.assert_arrived(big)
    staging.assert_sent_once(big)
    assert pair.containers() == before
    assert failed == [] and answered > 10, f"{len(failed)} of {answered + len(failed)} failed: {failed[:2]}"
    assert max(shares.values()) < 0.05, shares
    told = "; ".join(
        f"{name}: {what.mib:.0f} MiB of ours at most ({what.detail()}), dockerd "
        f"{what.others.get('dockerd', 0) / MIB:.0f}, {shares[name]:.2%} of the files cached"
        for name, what in seen.items()
    )
    assert all(what.mib < OURS_MIB for what in seen.values()), told
    return f"{answered} answers, none failed; 2 GiB to both in {run.seconds:.0f} s; {told}"


ROWS = [
    Row("2 GiB staged beside a pair that serves", "real", beside_serving),
    Row("both online, each its half", "-", each_its_half),
    Row("staged: a second run", "-", second_run),
    Row("damaged and cut short on disk", "-", damaged_on_disk),
    Row("token seen by the hub alone", "-", token_nowhere),
    Row("staging: deploy killed midway", "-", functools.partial(deploy_gone, "killed")),
    Row("staging: ssh lost midway", "-", functools.partial(deploy_gone, "ssh")),
    Row(f"staging unit killed at {KILLS} places", "-", killed_often),
    Row("staging: both rails cut, one after the other", "-", rails_cut),
    Row("staging: worker rebooted midway", "-", rebooted),
    Row("staging: disk full, then free again", "-", disk_full),
    Row("staging: head offline", "-", functools.partial(one_offline, HEAD)),
    Row("staging: worker offline", "-", functools.partial(one_offline, WORKER)),
    Row("staging: both offline", "-", none_online),
    Row("hub stalls, resets, breaks off", "-", functools.partial(bad_hub, stalls)),
    Row("hub says 429 and 503", "-", functools.partial(bad_hub, busy)),
    Row("hub sends a wrong byte once", "-", functools.partial(bad_hub, wrong_byte, (LAST,))),
    Row("hub's CDN away for a while", "-", cdn_away),
    Row("hub sends wrong bytes for ever", "-", wrong_bytes_for_ever),
    Row("mirror where the repository fails", "-", mirror_helps),
    Row("xet announced, its store silent", "-", functools.partial(xet_fails, "silent")),
    Row("xet announced, its store failing", "-", functools.partial(xet_fails, "failing")),
    Row("revision moved midway", "-", revision_moved),
    Row("gated: without a token, a stranger's, the right one", "-", gated),
    Row("licence not accepted, then accepted", "-", licence),
]  # fmt: skip
