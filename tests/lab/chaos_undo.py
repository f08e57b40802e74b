"""Rows about undoing: the pair returned to an earlier generation by a verb, and Sparkpair taken off the hosts, wherever
a removal was killed."""

from __future__ import annotations

import fnmatch
import re

from lab.settings import HEAD, HOSTS, WORKER, Host
from spec import objects
from spec.objects import OBJECTS, Taking
from tests.lab import pair
from tests.lab.chaos import Row
from tests.lab.chaos_frame import files
from tests.lab.chaos_rows import use

BY_OTHERS = (
    # Weights and drafter as the worker got them, and what a login or systemd makes by itself.
    "/srv/weights*", "/home/*", "/root/*", "/etc/passwd*", "/etc/group*", "/etc/shadow*", "/etc/gshadow*",
    "/etc/subuid*", "/etc/subgid*", "/run/lock/sparkpair-*", "/tmp/*", "/var/tmp/*", "/var/cache/*", "/run/rpcbind*",
    "/run/netplan*", "/etc/docker/daemon.json*", "/etc/docker",
)  # fmt: skip


def contract() -> tuple[str, ...]:
    """Arguments of every run here."""
    return use("contract")


def remove(*arguments: str) -> pair.Run:
    """A whole real removal."""
    return pair.start_deploy("-y", *contract(), *arguments, "inventory.py", "../remove.py").wait(300)


def planned(*arguments: str, verb: str = "../remove.py") -> dict[str, list[str]]:
    """What such a run would change."""
    return pair.dry(*contract(), *arguments, "inventory.py", verb).plan


def stays(path: str) -> bool:
    """Whether removal leaves it without being asked: the operator's, or made by somebody else."""
    kept = [re.sub(r"<[^>]*>", "*", item.path) for item in OBJECTS if item.taking in (Taking.ASKED, Taking.NEVER)]
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in (*kept, *BY_OTHERS))


def left_over(before: dict[str, set[str]]) -> list[str]:
    """Paths that a deploy made and removal did not take."""
    return [
        f"{host.name}:{path}"
        for host in HOSTS.values()
        for path in sorted(files(host) - before[host.name])
        if not stays(path)
    ]


def running_of_ours(host: Host) -> str:
    """Units, containers, processes and users of ours on a host."""
    return pair.on(
        host,
        "systemctl list-units --all --plain --no-legend 'sparkpair*' 'mnt-sparkpair*' | grep -v ' not-found ';"
        " docker ps -aq --filter label=sparkpair.rank; pgrep -af '[/]usr/local/lib/sparkpair/main';"
        " getent passwd sparkpair",
        check=False,
    ).strip()


def lock_is_free() -> bool:
    """Whether a run that was killed has let go of the head."""
    return not pair.on(HEAD, "flock -n /run/lock/sparkpair-deploy.lock true || echo held", check=False).strip()


def deployed_and_removed() -> str:
    """A first deploy, taken back: what is left is what the plan said, a second removal plans nothing, and a deploy
    after it serves."""
    pair.fresh_hosts()
    before = {host.name: files(host) for host in HOSTS.values()}
    run = pair.deploy(*contract())
    assert run.code == 0, run.text[-1500:]
    rows = planned()
    assert rows["Remove | Stop the pair, which ends serving"] == [HEAD.hostname], rows
    told = pair.start_deploy("--dry", *contract(), "inventory.py", "../remove.py").wait(120)
    assert told.code == 0 and "keeps /srv/models/tiny" in told.text, told.text[-1500:]
    assert pair.answers(), "a dry run stopped the pair"
    run = remove()
    assert run.code == 0, run.text[-1500:]
    assert not left_over(before), left_over(before)
    for host in HOSTS.values():
        assert not running_of_ours(host), running_of_ours(host)
    pair.on(HEAD, f"ping -c1 -W2 -I {HEAD.rails[0].netdev} 10.200.0.{WORKER.number}")  # the rails go on
    again = planned()
    assert again == {}, again
    assert remove().code == 0
    seconds = pair.deploy(*contract())
    assert seconds.code == 0, seconds.text[-1500:]
    assert pair.answers()
    return (
        f"{len(rows)} rows, removed in {run.seconds:.0f} s, nothing of ours left, nothing planned again; deployed anew"
    )


def removal_killed() -> str:
    """Killed after each of its rows in turn, with a keeper that is dead from the start: the next run finishes."""
    pair.fresh_hosts()
    before = {host.name: files(host) for host in HOSTS.values()}
    run = pair.deploy(*contract())
    assert run.code == 0, run.text[-1500:]
    pair.on(HEAD, "systemctl kill --signal=KILL sparkpair-keeper; systemctl stop sparkpair-keeper", check=False)
    killed = 0
    for row in ("Stop and disable the units", "Remove the containers", "Remove the user", "Remove programs"):
        started = pair.start_deploy("-y", *contract(), "inventory.py", "../remove.py")
        if started.until(f"Starting operation: Remove | {row}"):
            started.kill()
            killed += 1
        started.wait(60)
    pair.wait_for(
        lambda: "another deploy" not in pair.dry(*contract(), "inventory.py", "../remove.py").text, 60, "the lock"
    )
    run = remove()
    assert run.code == 0, run.text[-1500:]
    assert not left_over(before), left_over(before)
    assert planned() == {}
    return f"killed {killed} times, then finished; nothing of ours left"


def removed_with_all_that_is_asked() -> str:
    """Rails, image and compiled kernels as well: the rails go under guard, and the hosts are still reached."""
    pair.fresh_hosts()
    run = pair.deploy(*contract())
    assert run.code == 0, run.text[-1500:]
    more = ("--data", "remove_also=rails,image,cache,key")
    run = remove(*more)
    assert run.code == 0, run.text[-1500:]
    for host in HOSTS.values():
        held = pair.on(host, "ip -4 -o address show")
        assert "10.200." not in held, held
        assert "No such file" in pair.on(host, f"ls {objects.NETPLAN_FILE}* 2>&1", check=False)
        assert pair.images()["contract"].partition("@")[2] not in pair.on(host, "docker images --digests")
    assert planned(*more) == {}
    run = pair.deploy(*contract())
    assert run.code == 0, run.text[-1500:]
    assert pair.answers()
    return "rails, image and kernels gone, both hosts reached, nothing planned again; a deploy brought all of it back"


def returned_by_a_verb() -> str:
    """rollback.py from a second generation to the first: one row, by digest; the launch that was left is refused, the
    settings of the first plan nothing, and the way there again is one row too."""
    run = pair.deploy(*contract())
    assert run.code == 0, run.text[-1500:]
    first = pair.status()["accepted"]
    other = ("--data", "max_num_seqs=3")
    run = pair.deploy(*contract(), *other)
    assert run.code == 0, run.text[-1500:]
    second = pair.status()["accepted"]
    assert second != first
    name = f"Rollback | Return the pair to generation {first[:12]}, which interrupts serving"
    to = ("--data", f"rollback_to={first[:12]}")
    assert planned(*other, *to, verb="../rollback.py") == {name: [HEAD.hostname]}
    run = pair.start_deploy("-y", *contract(), *other, *to, "inventory.py", "../rollback.py").wait(300)
    assert run.code == 0, run.text[-1500:]
    assert (pair.status()["accepted"], pair.status()["phase"]) == (first, "running")
    assert pair.answers()
    refused = pair.dry(*contract(), *other)
    assert refused.code == 1 and f"launch {second[:12]} was rejected on" in refused.text, refused.text[-1500:]
    assert "taken back by the operator" in refused.text
    rows = pair.dry(*contract()).plan
    assert not [row for row in rows if "pair" in row], rows
    run = pair.deploy(*contract(), *other, "--data", f"retry_rejected={second[:12]}")
    assert run.code == 0, run.text[-1500:]
    assert pair.status()["accepted"] == second
    assert pair.dry(*contract(), *other).plan == {}, "what serves is refused"
    return f"back to {first[:12]} in {run.seconds:.0f} s, {second[:12]} refused until it was named again"


ROWS = [
    Row("rollback.py, and there again", "contract", returned_by_a_verb),
    Row("deployed, removed, deployed again", "contract", deployed_and_removed),
    Row("a removal killed in each row, the keeper dead", "contract", removal_killed),
    Row("removed with rails, image, kernels and key", "contract", removed_with_all_that_is_asked),
]
