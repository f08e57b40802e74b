"""Docker beside what its daemon answers: which daemon it is, whose settings it reads, who else has one."""

from __future__ import annotations

from collections.abc import Iterator

from checks import image
from checks.check import BEFORE_AND_DOCTOR, DOCTOR_ALONE, Check, Sight
from checks.content import amount
from checks.look import by_node, differ, look
from checks.verdict import Verdict, broken, holds, told
from facts.host import DockerSide
from facts.values import Docker, NodeFacts, Unknown

SETTINGS = "/etc/docker/daemon.json"
SNAP_ROOT = "/var/snap/"
INSTEAD = "sudo apt-get install docker.io, or Docker's own packages; DGX OS brings them"


def daemon(sight: Sight) -> Iterator[Verdict]:
    """DKR-01, DKR-02: the daemon that answers is the system's own, and knows the runtime that its settings name."""
    found, unread = look(sight, "what surrounds Docker", lambda seen: seen.host.docker)
    yield from unread
    for name, (seen, side) in found.items():
        if isinstance(seen.docker, Unknown) or not seen.docker.answers:
            continue  # said by itself
        trouble = list(_whose(name, side)) + list(_settings(name, seen.docker, side))
        yield from trouble
        if not trouble:
            yield holds(name, f"Docker {seen.docker.version} is the system's own, and reads {SETTINGS}")


def _whose(name: str, side: DockerSide) -> Iterator[Verdict]:
    if any("rootless" in option for option in side.security):
        yield broken(
            name,
            "the Docker that answers is a rootless one: it belongs to one user, and gives no container the rails' HCAs "
            "or unlimited locked memory",
            f"have the system's daemon answer on /var/run/docker.sock: {INSTEAD};\n"
            "sudo systemctl enable --now docker.socket docker.service",
        )
    elif side.root.startswith(SNAP_ROOT) or (side.snap and not side.packaged):
        yield broken(
            name,
            f"the Docker that answers is the snap's{f' ({side.root})' if side.root else ''}: it does not read "
            f"{SETTINGS}, so the NVIDIA runtime cannot be registered with it",
            f"sudo snap remove docker, which takes its containers and images with it; then {INSTEAD}",
        )


def _settings(name: str, now: Docker, side: DockerSide) -> Iterator[Verdict]:
    if side.settings_trouble:
        yield broken(
            name,
            f"{SETTINGS} cannot be read ({side.settings_trouble}): Docker would not come up again after a restart",
            f"sudo python3 -m json.tool {SETTINGS} shows the place; correct it",
        )
        return
    if now.has_nvidia or "nvidia" not in side.settings_runtimes:
        return
    other = _other_settings(side)
    known = ", ".join(now.runtimes) or "none"
    if other:
        yield broken(
            name,
            f"{SETTINGS} names the NVIDIA runtime, and the daemon knows {known}: it reads {other} instead",
            f"take --config-file out of docker.service (systemctl cat docker), or name the runtime in {other}",
        )
        return
    ends = _others(now)
    yield told(
        name,
        f"{SETTINGS} names the NVIDIA runtime, and the running daemon knows {known}"
        + (f"; the restart that it needs ends {', '.join(ends)}" if ends else ""),
        "the deploy restarts Docker; whoever needs those containers does it by hand before: "
        "sudo systemctl restart docker",
    )


def _other_settings(side: DockerSide) -> str:
    """The file that the one daemon is told to read instead of the usual one."""
    if len(side.daemons) != 1:
        return ""
    words = side.daemons[0][1].replace("=", " ").split()
    at = words.index("--config-file") if "--config-file" in words else len(words)
    file = next(iter(words[at + 1 :]), "")
    return "" if file == SETTINGS else file


def _others(now: Docker) -> list[str]:
    """Containers that run and are not ours."""
    if isinstance(now.containers, Unknown):
        return []
    return [
        (container.names or (container.id[:12],))[0]
        for container in now.containers
        if container.state == "running" and not container.is_ours
    ]


def second(sight: Sight) -> Iterator[Verdict]:
    """DKR-01, DKR-02: another daemon on the node, whose containers Sparkpair does not see."""
    for name, (_, side) in look(sight, "", lambda seen: seen.host.docker)[0].items():
        if side.snap and side.packaged and not side.root.startswith(SNAP_ROOT):
            yield told(
                name,
                "Docker is installed twice, as a snap and from packages; Sparkpair uses the latter, and does not see "
                "what the snap's runs",
                "sudo snap remove docker, which takes its containers and images with it",
            )
        if side.rootless and not any("rootless" in option for option in side.security):
            yield told(
                name,
                f"a rootless Docker runs as well ({', '.join(side.rootless)}); Sparkpair does not see its containers, "
                "and what they take of memory and ports",
                "as its user, if nothing needs it: systemctl --user disable --now docker",
            )
        if side.user_context not in ("", "default"):
            yield told(
                name,
                f"the user's own docker command talks to the context {side.user_context}, not to the system's daemon: "
                "`docker ps` and `sudo docker ps` differ",
                "docker context use default; unset DOCKER_HOST. Sparkpair itself uses the system's daemon",
            )


def group(sight: Sight) -> Iterator[Verdict]:
    """DKR-03: whether the user may use Docker. Sparkpair needs it not: it works as root."""
    for name, (seen, side) in look(sight, "", lambda seen: seen.host.docker)[0].items():
        if side.user_in_group is None or seen.user == "root":
            continue
        if side.user_in_group:
            yield holds(name, f"{seen.user} may use Docker")
        else:
            yield told(
                name,
                f"{seen.user} is not in the group docker: `docker ps` wants sudo. Sparkpair does not need the group, "
                "and whoever is in it is root",
                f"if you want it: sudo usermod -aG docker {seen.user}, and log in anew",
            )


def store(sight: Sight) -> Iterator[Verdict]:
    """Where images lie: in which store, on which driver, with how much room for the next one."""
    found, _ = look(sight, "", lambda seen: seen.host.docker)
    stores = {name: "containerd's" if side.containerd_store else "Docker's own" for name, (_, side) in found.items()}
    if differ(stores):
        yield told(
            "",
            f"images lie in different stores: {by_node(stores)}. One image has two IDs then, and docker save writes "
            "two forms of it",
            "compare images by digest or layers, as Sparkpair does; it passes images on by digest, not by docker save",
        )
    for name, (seen, side) in found.items():
        if side.driver == "vfs":
            yield told(
                name,
                f"Docker's storage driver is vfs: each container has a whole copy of its image below {side.root}",
                "put Docker's root on ext4 or xfs, where the driver is overlay2: data-root in " + SETTINGS,
            )
        yield from _room(sight, name, seen)


def _room(sight: Sight, name: str, seen: NodeFacts) -> Iterator[Verdict]:
    now = seen.docker
    if isinstance(now, Unknown) or isinstance(now.disk, Unknown) or now.images.get(sight.cluster.image) is None:
        return  # what a missing image needs is judged before it is pulled
    needed = image.pull_bytes(sight.cluster)
    if now.disk.free < needed:
        yield told(
            name,
            f"{amount(now.disk.free)} free on the disk of {now.disk.at}, where images lie: the next image of this "
            f"stack needs {amount(needed)}",
            "make prune removes images and generations of ours that nothing needs; docker system df shows the others",
        )
    else:
        yield holds(name, f"{amount(now.disk.free)} free on the disk of {now.disk.at}, where images lie")


CHECKS = (
    Check(
        "docker.daemon",
        "Is the Docker that answers the system's own, with the NVIDIA runtime that its settings name?",
        daemon,
        BEFORE_AND_DOCTOR,
        ("DKR-01", "DKR-02", "DKR-03"),
    ),
    Check("docker.second", "Is there a second Docker beside it?", second, BEFORE_AND_DOCTOR, ("DKR-01", "DKR-02")),
    Check("docker.group", "May the user use Docker?", group, DOCTOR_ALONE, ("DKR-03",)),
    Check("docker.store", "Where do images lie, and does the next one fit?", store, DOCTOR_ALONE, ("DKR-06",)),
)
