"""Rows about the deploy itself: the head as its own control machine, and that everything it makes is listed."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import subprocess
import sys

from lab import settings
from lab.settings import HEAD, HOSTS, WORKER, Host
from spec import objects
from tests.lab import pair
from tests.lab.chaos import Row

CONTROL = "/opt/control"
ELSEWHERE = (
    # Docker's own store, the journal and what systemd, netplan and the lab's hardware stand-ins keep by themselves.
    "/usr/share/netplan/*__pycache__*", "/usr/lib/python3*__pycache__*",
    "/var/lib/docker/*", "/var/lib/containerd/*", "/var/log/*", "/run/docker/*", "/run/containerd/*", "/run/systemd/*",
    "/run/udev/*", "/run/log/*", "/var/lib/systemd/*", "/run/credentials/*", "/run/user/*", "/run/sudo/*", "/run/lab*",
    "/var/lib/private*", "/run/utmp", "/run/nologin", "/run/docker*",
    "/run/netplan", "/run/NetworkManager*", "/var/lib/sudo/*", "/run/lock/lab*", "/run/dbus/*", "/run/lock/subsys*",
)  # fmt: skip
PASSWD = (
    "/etc/passwd-",
    "/etc/group-",
    "/etc/shadow-",
    "/etc/gshadow-",
    "/etc/subuid-",
    "/etc/subgid-",
    "/etc/.pwd.lock",
)


def on_local(words: str) -> subprocess.CompletedProcess[str]:
    """pyinfra on the head itself, as its user, with the head as @local."""
    command = (
        f"cd {CONTROL}/run && PYTHONPATH={CONTROL}/site:{CONTROL} python3 -B -m pyinfra --config ../config.py {words}"
    )
    return subprocess.run(
        [*ssh(HEAD), command], capture_output=True, text=True, timeout=pair.DEPLOY_SECONDS, check=False
    )


def ssh(host: Host) -> list[str]:
    from lab import hosts

    return hosts.ssh_command(host)


def head_as_local() -> str:
    """The head as @local and the worker over ssh: the same plan, and nothing to do on a converged pair."""
    arguments = ("--data", f"image={pair.images()['contract']}")
    run = pair.deploy(*arguments)
    assert run.code == 0, run.text[-1500:]
    before = pair.containers()
    install_control()
    image = f"--data image={pair.images()['contract']}"
    plan = on_local(f"--dry --json {image} inventory.py ../deploy.py")
    assert plan.returncode == 0, plan.stdout[-800:] + plan.stderr[-1500:]
    rows = [row for row in json.loads(plan.stdout)["plan"] if row["hosts_with_change"]]
    assert rows == [], rows
    real = on_local(f"-y {image} inventory.py ../deploy.py")
    assert real.returncode == 0, real.stdout[-800:] + real.stderr[-1500:]
    assert pair.containers() == before
    turned = on_local(f"--dry --json {image} --data max_num_seqs=9 inventory.py ../deploy.py")
    there = {
        row["name"]: len(row["hosts_with_change"])
        for row in json.loads(turned.stdout)["plan"]
        if row["hosts_with_change"]
    }
    here = {name: len(on) for name, on in pair.dry(*arguments, "--data", "max_num_seqs=9").plan.items()}
    assert there == here, (there, here)
    pair.on(HEAD, f"rm -rf {CONTROL}")
    return f"nothing planned, a real run left both containers alone; one knob plans {sorted(there)} both ways"


def install_control() -> None:
    """The project and its dependencies on the head, which has no way to a package registry of its own."""
    version = pair.on(HEAD, "python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'").strip()
    site = settings.LAB / f"cache/site-{version}"
    if not (site / "pyinfra").is_dir():
        subprocess.run(
            ["nsenter", f"--net=/proc/{os.getpid()}/fd/{pair.OWN_NETWORK}",
             sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps",
             "--only-binary=:all:", "--python-version", version, "--target", str(site), "--require-hashes",
             "-r", "requirements.lock"],
            cwd=settings.CHECKOUT, check=True)  # fmt: skip
    files = subprocess.run(
        ["git", "ls-files"], cwd=settings.CHECKOUT, capture_output=True, text=True, check=True
    ).stdout.split()
    from lab import hosts

    pair.on(HEAD, f"rm -rf {CONTROL}; mkdir -p {CONTROL}/run/group_data {CONTROL}/site")
    for source, target, names in ((settings.CHECKOUT, CONTROL, files), (site, f"{CONTROL}/site", ["."])):
        packed = subprocess.Popen(["tar", "-C", str(source), "-cf", "-", *names], stdout=subprocess.PIPE)
        subprocess.run(hosts.exec_command(HEAD, f"tar -C {target} -xf -"), stdin=packed.stdout, check=True)
        assert packed.wait() == 0
    key = settings.KEY.read_text()
    known = settings.KNOWN_HOSTS.read_text()
    put(HEAD, f"{CONTROL}/run/key", key, "600")
    put(HEAD, f"{CONTROL}/run/known_hosts", known)
    put(HEAD, f"{CONTROL}/run/inventory.py", inventory())
    put(HEAD, f"{CONTROL}/run/group_data/all.py", plain_settings())
    pair.on(HEAD, f"chown -R {HEAD.user} {CONTROL}/run")


def put(host: Host, path: str, text: str, mode: str = "644") -> None:
    from lab import hosts

    subprocess.run(hosts.exec_command(host, f"cat > {path}; chmod {mode} {path}"), input=text, text=True, check=True)


def inventory() -> str:
    """The lab's inventory from the head's own point of view."""

    def rails(host: Host) -> list[dict[str, str]]:
        return [
            {"netdev": end.netdev, "hca": end.hca, "address": f"10.200.{end.number}.{host.number}/24"}
            for end in host.rails
        ]

    head = {"management_address": HEAD.address, "rails": rails(HEAD), "weights_path": settings.MODEL_ON_HEAD}
    worker = {"rails": rails(WORKER), "weights_path": settings.WEIGHTS_ON_WORKER}
    return (
        "from spec.transport import ssh\n"
        f"head = [('@local', {head!r})]\n"
        f"worker = [({WORKER.hostname!r}, {{**ssh({WORKER.address!r}, {WORKER.user!r}, key='{CONTROL}/run/key', "
        f"known_hosts='{CONTROL}/run/known_hosts'), **{worker!r}}})]\n"
    )


def plain_settings() -> str:
    """The lab's settings without what reads the lab's own files."""
    text = (settings.SOURCE / "group_data/all.py").read_text()
    return re.sub(r"^(from lab|image = ).*$", "", text, flags=re.MULTILINE)


def everything_is_listed() -> str:
    """What a first deploy adds to each host, against the list of objects."""
    pair.fresh_hosts()
    before = {host.name: files(host) for host in HOSTS.values()}
    run = pair.deploy("--data", f"image={pair.images()['contract']}")
    assert run.code == 0, run.text[-1500:]
    unlisted: list[str] = []
    added: dict[str, int] = {}
    for host in HOSTS.values():
        new = sorted(files(host) - before[host.name])
        added[host.name] = len(new)
        unlisted += [f"{host.name}:{path}" for path in new if not listed(path, host)]
    assert not unlisted, unlisted
    return f"{added['head']} paths added on the head, {added['worker']} on the worker, all in docs/objects.md"


def files(host: Host) -> set[str]:
    """Every path of a host apart from what other programs keep by themselves."""
    text = pair.on(
        host, "find / \\( -path /proc -o -path /sys -o -path /dev \\) -prune -o -print 2>/dev/null", check=False
    )
    return {
        path
        for path in text.splitlines()
        if not any(fnmatch.fnmatchcase(path, pattern) for pattern in ELSEWHERE) and path not in PASSWD
    }


def listed(path: str, host: Host) -> bool:
    """Whether a path, or a directory above it that we fill, is in the list for this host."""
    own = {settings.MODEL_ON_HEAD, settings.WEIGHTS_ON_WORKER, f"/home/{host.user}/"}
    for item in objects.OBJECTS:
        if not item.path.startswith("/") or not item.where.holds(host is HEAD):
            continue
        pattern = re.sub(r"<[^>]*>", "*", item.path)
        whole = item.sort is objects.Sort.DIRECTORY and item.life is not objects.Life.DEPLOY
        if fnmatch.fnmatchcase(path, pattern) or (whole and fnmatch.fnmatchcase(path, f"{pattern}/*")):
            return True
    # The operator's own directories: weights where they were missing, and the engine's cache.
    return (
        any(path.rstrip("/") == place.rstrip("/") or path.startswith(place) for place in own) or path == "/srv/weights"
    )


ROWS = [
    Row("head as @local, worker over ssh", "contract", head_as_local),
    Row("every file of a first deploy is listed", "contract", everything_is_listed),
]
