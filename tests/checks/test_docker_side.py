"""Docker's side: whose daemon answers, which settings it reads, who else has one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from checks import docker_side
from checks.check import When, run
from checks.preflight import refusals
from facts.host import DockerSide, HostFacts
from facts.values import Unknown
from tests.checks.sights import HEAD, WORKER, sight, sound, statements
from tests.checks.sights import said as told_of
from tests.plan.world import World

FINE = sound().docker


def host(**changes: Any) -> HostFacts:
    """A node with another Docker around."""
    assert isinstance(FINE, DockerSide)
    return sound(docker=replace(FINE, **changes))


def test_a_sound_pair_is_told_so() -> None:
    """And nothing else."""
    seen = sight()
    for judge in (docker_side.daemon, docker_side.second, docker_side.group, docker_side.store):
        assert told_of(judge(seen)) == []
    assert statements(docker_side.daemon(seen)) == [
        f"{name}: Docker 28.1.1 is the system's own, and reads /etc/docker/daemon.json" for name in (HEAD, WORKER)
    ]
    assert statements(docker_side.group(seen)) == [f"{HEAD}: alice may use Docker", f"{WORKER}: bob may use Docker"]
    assert len(statements(docker_side.store(seen))) == 2


@pytest.mark.report("DKR-02")
def test_a_rootless_daemon_is_refused() -> None:
    """It reads the settings of its user."""
    found = told_of(docker_side.daemon(sight(worker=host(security=("name=seccomp,profile=builtin", "name=rootless")))))
    assert found == [
        f"refused  {WORKER}: the Docker that answers is a rootless one: it belongs to one user, and gives no container "
        "the rails' HCAs or unlimited locked memory\n"
        "    Fix: have the system's daemon answer on /var/run/docker.sock: sudo apt-get install docker.io, or Docker's "
        "own packages; DGX OS brings them;\n"
        "      sudo systemctl enable --now docker.socket docker.service"
    ]


@pytest.mark.report("DKR-01")
@pytest.mark.parametrize(
    "side", [{"snap": True, "root": "/var/snap/docker/common/var-lib-docker"}, {"snap": True, "packaged": False}]
)
def test_the_snap_is_refused(side: dict[str, Any]) -> None:
    """By where its images lie, or because there is no other."""
    [found] = told_of(docker_side.daemon(sight(worker=host(**side))))
    assert found.startswith(f"refused  {WORKER}: the Docker that answers is the snap's (/var/")
    assert "it does not read /etc/docker/daemon.json, so the NVIDIA runtime cannot be registered with it" in found
    assert "Fix: sudo snap remove docker, which takes its containers and images with it; then sudo apt-get" in found


@pytest.mark.report("DKR-01")
def test_settings_that_cannot_be_read_are_refused() -> None:
    """Docker would not come up again."""
    [found] = told_of(docker_side.daemon(sight(host(settings_trouble="line 3: no value", settings_runtimes=()))))
    assert found == (
        f"refused  {HEAD}: /etc/docker/daemon.json cannot be read (line 3: no value): Docker would not come up again "
        "after a restart\n    Fix: sudo python3 -m json.tool /etc/docker/daemon.json shows the place; correct it"
    )


def without_runtime(world: World) -> None:
    """S18: the daemon does not know what its settings name."""
    world.worker["docker"].update(runtimes=["io.containerd.runc.v2", "runc"], registered=True)
    world.worker["docker"]["containers"].append(
        {"id": "f" * 64, "names": ["jupyter"], "state": "running", "labels": {}}
    )


@pytest.mark.report("DKR-01", "DKR-03")
def test_a_runtime_that_the_daemon_does_not_know_is_told_with_whom_the_restart_ends() -> None:
    """The deploy restarts it; whoever works in a container there is told before."""
    seen = sight(change=without_runtime)
    assert told_of(docker_side.daemon(seen)) == [
        f"told  {WORKER}: /etc/docker/daemon.json names the NVIDIA runtime, and the running daemon knows "
        "io.containerd.runc.v2, runc; the restart that it needs ends jupyter\n"
        "    Fix: the deploy restarts Docker; whoever needs those containers does it by hand before: sudo systemctl "
        "restart docker"
    ]
    assert refusals(seen.cluster, seen.facts) == []


@pytest.mark.report("DKR-01")
@pytest.mark.parametrize("option", ["--config-file /etc/other.json", "--config-file=/etc/other.json"])
def test_a_daemon_that_reads_other_settings_is_refused(option: str) -> None:
    """No restart helps it."""
    daemons = ((900, f"/usr/bin/dockerd -H fd:// {option} --debug"),)
    [found] = told_of(docker_side.daemon(sight(worker=host(daemons=daemons), change=without_runtime)))
    assert found.startswith(
        f"refused  {WORKER}: /etc/docker/daemon.json names the NVIDIA runtime, and the daemon knows "
    )
    assert ": it reads /etc/other.json instead\n" in found


@pytest.mark.report("DKR-01", "DKR-02")
def test_a_second_docker_is_told() -> None:
    """A snap beside the packages, a rootless one, and a context of the user's."""
    other = host(snap=True, rootless=("/run/user/1000/docker.sock",), user_context="rootless")
    found = told_of(docker_side.second(sight(worker=other)))
    assert [line.split(";")[0].split("\n")[0] for line in found] == [
        f"told  {WORKER}: Docker is installed twice, as a snap and from packages",
        f"told  {WORKER}: a rootless Docker runs as well (/run/user/1000/docker.sock)",
        f"told  {WORKER}: the user's own docker command talks to the context rootless, not to the system's daemon: "
        "`docker ps` and `sudo docker ps` differ",
    ]


@pytest.mark.report("DKR-03")
def test_a_user_who_may_not_use_docker_is_told_how() -> None:
    """Sparkpair itself works as root. Root needs no group, and a node without one has no answer."""
    assert told_of(docker_side.group(sight(worker=host(user_in_group=False)))) == [
        f"told  {WORKER}: bob is not in the group docker: `docker ps` wants sudo. Sparkpair does not need the group, "
        "and whoever is in it is root\n    Fix: if you want it: sudo usermod -aG docker bob, and log in anew"
    ]
    seen = sight(worker=host(user_in_group=False), change=lambda world: world.worker.update(user="root"))
    assert told_of(docker_side.group(seen)) == []
    assert told_of(docker_side.group(sight(worker=host(user_in_group=None)))) == []


@pytest.mark.report("DKR-06")
def test_different_stores_little_room_and_whole_copies_are_told() -> None:
    """Nothing of it stops a pair that has its image."""

    def full(world: World) -> None:
        world.worker["docker"]["disk"]["free"] = 2**20

    found = told_of(docker_side.store(sight(host(containerd_store=True), host(driver="vfs"), full)))
    assert [line.partition(": ")[2].split("\n")[0][:70] for line in found] == [
        "spark-a containerd's, spark-b Docker's own. One image has two IDs then",
        "Docker's storage driver is vfs: each container has a whole copy of its",
        "1.0 MiB free on the disk of /var/lib/docker, where images lie: the nex",
    ]


def test_what_cannot_be_read_is_unknown_and_refuses_nothing() -> None:
    """Nor is anything assumed of it."""
    seen = sight(worker=sound(docker=Unknown("docker: no answer")))
    [verdict] = [one for one in docker_side.daemon(seen) if one.holds is None]
    assert verdict.text() == (
        f"  {WORKER}: what surrounds Docker could not be read: docker: no answer\n    Fix: look at it there"
    )
    assert refusals(seen.cluster, seen.facts) == []


def test_they_are_asked_before_a_deploy_and_by_doctor() -> None:
    """The user's convenience and the room for the next image are doctor's alone."""
    for when, names in (
        (When.PREFLIGHT, {"docker.daemon", "docker.second"}),
        (When.DOCTOR, {"docker.daemon", "docker.second", "docker.group", "docker.store"}),
        (When.VERIFY, set()),
    ):
        seen = sight(worker=host(snap=True, user_in_group=False, driver="vfs"))
        assert {check.name for check, _ in run(docker_side.CHECKS, when, seen)} == names
