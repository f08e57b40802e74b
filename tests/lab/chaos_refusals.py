"""Bad input on real hosts: each is refused before anything changes, in one message with the fix."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from lab import settings
from lab.settings import HEAD, HOSTS, WORKER, Host
from tests.lab import pair
from tests.lab.chaos import Row

OTHER_INVENTORY = settings.LAB / "other_inventory.py"


@dataclass(frozen=True)
class Bad:
    """A fault on the hosts or in what is stated, and what the refusal must hold."""

    name: str
    wanted: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    fault: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    change: Callable[[dict[str, dict[str, object]]], None] | None = None
    """What an operator got wrong in the inventory: the data of both nodes, by position."""
    files: tuple[str, ...] = field(default=("inventory.py", "../deploy.py"))


@contextlib.contextmanager
def changed_file(host: Host, path: str, text: str, mode: str = "644") -> Iterator[None]:
    """A file with other contents, for a while."""
    pair.on(host, f"test -e {path} && cp -a {path} /root/kept || rm -f /root/kept")
    pair.on(host, f"cat > {path}.new <<'END'\n{text}\nEND\nchmod {mode} {path}.new; mv {path}.new {path}")
    try:
        yield
    finally:
        pair.on(host, f"if test -e /root/kept; then mv /root/kept {path}; else rm -f {path}; fi")


@contextlib.contextmanager
def listener(host: Host, port: int) -> Iterator[None]:
    """Another program on a port."""
    pair.on(host, f"systemd-run -q --unit=other-server python3 -m http.server {port}")
    pair.wait_for(lambda: str(port) in pair.on(host, "ss -ltn"), 10, "the other server", 0.1)
    try:
        yield
    finally:
        pair.on(host, "systemctl stop other-server")


@contextlib.contextmanager
def full_disk(host: Host) -> Iterator[None]:
    """All but 300 MiB of the host's own disk is taken."""
    pair.on(host, "fallocate -l $(( $(df --output=avail -B1 /var/lib/docker | tail -1) - 300*1024*1024 )) /srv/ballast")
    try:
        yield
    finally:
        pair.on(host, "rm -f /srv/ballast")


@contextlib.contextmanager
def off(host: Host) -> Iterator[None]:
    """A host without power."""
    before = pair.status()
    pair.lab("off", host.name)
    try:
        yield
    finally:
        pair.lab("on", host.name)
    pair.wait_healed(before, 180)


@contextlib.contextmanager
def stopped(host: Host, *units: str) -> Iterator[None]:
    """Units that do not run."""
    pair.on(host, f"systemctl stop {' '.join(units)}")
    try:
        yield
    finally:
        pair.on(host, f"systemctl start {' '.join(units)}")


@contextlib.contextmanager
def broken_model(host: Host) -> Iterator[None]:
    """A model directory whose index names a shard that is not there."""
    shards = {name: f"model-0000{number}-of-00002.safetensors" for number, name in enumerate("ab", 1)}
    index = json.dumps({"weight_map": shards})
    pair.on(
        host,
        f"mkdir -p /srv/broken && cd /srv/broken && echo '{{}}' > config.json && echo x > "
        f"model-00001-of-00002.safetensors && echo '{index}' > model.safetensors.index.json",
    )
    try:
        yield
    finally:
        pair.on(host, "rm -rf /srv/broken")


@contextlib.contextmanager
def renamed(host: Host, path: str) -> Iterator[None]:
    """A program that is not installed."""
    pair.on(host, f"mv {path} {path}.away")
    try:
        yield
    finally:
        pair.on(host, f"mv {path}.away {path}")


def rail(position: str, number: int, **more: object) -> Callable[[dict[str, dict[str, object]]], None]:
    """A change of one rail in the inventory."""

    def change(nodes: dict[str, dict[str, object]]) -> None:
        rails = nodes[position]["rails"]
        assert isinstance(rails, list)
        rails[number].update(more)

    return change


def swapped_hcas(nodes: dict[str, dict[str, object]]) -> None:
    """Each rail of the worker with the other's HCA."""
    rail("worker", 0, hca="roceP2p1s0f1")(nodes)
    rail("worker", 1, hca="rocep1s0f1")(nodes)


def stated(position: str, **more: object) -> Callable[[dict[str, dict[str, object]]], None]:
    """A change of one node's data in the inventory."""
    return lambda nodes: nodes[position].update(more)


BAD = (
    Bad("worker off", ("lab-worker cannot be reached", "no node was changed"), fault=functools.partial(off, WORKER)),
    Bad(
        "port taken on the head",
        ("lab-head", "port 8123 (api_port) is taken by", "state another api_port"),
        ("--data", "api_port=8123"),
        functools.partial(listener, HEAD, 8123),
    ),
    Bad(
        "disk full on the worker",
        ("lab-worker", "free on the disk of", "make room for"),
        ("--data", "image=ENGINE"),
        functools.partial(full_disk, WORKER),
    ),
    Bad("model files missing on both", ("/srv/nowhere",), ("--data", "weights_path=/srv/nowhere")),
    Bad(
        "a shard is missing",
        ("model-00002-of-00002.safetensors",),
        ("--data", "weights_path=/srv/broken"),
        functools.partial(broken_model, HEAD),
    ),
    Bad(
        "sudo asks for a password",
        ("lab-worker: sudo wants a password from sparky", "sparky ALL=(ALL) NOPASSWD"),
        fault=functools.partial(changed_file, WORKER, "/etc/sudoers.d/sparky", "sparky ALL=(ALL) ALL", "440"),
    ),
    Bad(
        "a rail in another netplan file",
        ("enp1s0f1np1 is set up in /etc/netplan/40-cx7.yaml line 4", "/etc/netplan/60-sparkpair.yaml"),
        fault=functools.partial(
            changed_file,
            WORKER,
            "/etc/netplan/40-cx7.yaml",
            "network:\n  version: 2\n  ethernets:\n    enp1s0f1np1:\n      link-local: [ipv4]",
            "600",
        ),
    ),
    Bad(
        "Docker does not answer",
        ("lab-worker", "Docker does not answer", "systemctl"),
        fault=functools.partial(stopped, WORKER, "docker.socket", "docker.service"),
    ),
    Bad(
        "no NVIDIA toolkit",
        ("lab-head", "NVIDIA container toolkit is not installed"),
        fault=functools.partial(renamed, HEAD, "/usr/bin/nvidia-container-runtime"),
    ),
    Bad("wrong user", ("lab-worker", "cannot be reached"), change=stated("worker", ssh_user="nobody-here")),
    Bad(
        "wrong netdev", ("rail 0: there is no netdev enp9s0", "ibdev2netdev"), change=rail("worker", 0, netdev="enp9s0")
    ),
    Bad(
        "HCA of another rail",
        ("rail 0: HCA roceP2p1s0f1 belongs to enP2p1s0f1np1", "state rocep1s0f1"),
        change=swapped_hcas,
    ),
    Bad("rails in different networks", ("rail 0",), change=rail("worker", 0, address="10.200.9.2/24")),
    Bad("unknown knob", ("max_len", "max_model_len"), ("--data", "max_len=9")),
    Bad("one node only", ("leaves out lab-worker",), ("--limit", "lab-head")),
    Bad("limit of nothing", ("leaves no host",), ("--limit", "nobody")),
    Bad("mistyped inventory", ("there is no inventory inventry.py",), files=("inventry.py", "../deploy.py")),
)


def refused(bad: Bad) -> str:
    """Exit 1, the words, no traceback, nothing changed on either node."""
    images = pair.images()
    if pair.status()["phase"] != "running":
        assert pair.deploy("--data", f"image={images['contract']}").code == 0
        pair.wait_running()
    words = [word.replace("ENGINE", images["engine"]) for word in bad.arguments]
    if not any(word.startswith("image=") for word in words):
        words += ["--data", f"image={images['contract']}"]
    else:
        for host in HOSTS.values():
            pair.on(host, f"docker rmi -f {images['engine']}", check=False)
    files = list(bad.files)
    if bad.change is not None:
        OTHER_INVENTORY.write_text(other_inventory(bad.change))
        files[0] = str(OTHER_INVENTORY)
    before = fingerprint()
    with bad.fault():
        run = pair.start_deploy("-y", *words, *files).wait(180)
    assert run.code == 1, f"exit {run.code}: {run.text[-1200:]}"
    assert "Traceback" not in run.text, run.text[-2000:]
    for text in bad.wanted:
        assert text in run.text, f"{text!r} is not in: {run.text[-1500:]}"
    if bad.name != "worker off":
        assert fingerprint() == before, "something was changed"
    pair.wait_for(lambda: pair.status()["phase"] == "running", 120, "the pair to serve on")
    telling = max(bad.wanted, key=len)
    said = next(line.split("]", 1)[-1].strip() for line in run.text.splitlines() if telling in line)
    return f"exit 1: {said[:220]}"


def fingerprint() -> dict[str, str]:
    """What a deploy may touch on each node: names, times and sizes of files; containers and their start times."""
    command = (
        "find /etc /usr/local /var/lib/sparkpair/generations /var/lib/sparkpair/weights -xdev -type f "
        "-not -path '*/sudoers.d/*' -not -path /etc/netplan/40-cx7.yaml -printf '%p %T@ %s\\n' | sort | sha256sum; "
        "docker ps -aq --no-trunc | sort"
    )
    seen = {}
    for host in HOSTS.values():
        try:
            seen[host.name] = pair.on(host, command)
        except AssertionError:
            seen[host.name] = "off"
    return seen


def other_inventory(change: Callable[[dict[str, dict[str, object]]], None]) -> str:
    """The lab's inventory with one mistake, as a file."""
    source = (settings.SOURCE / "inventory.py").read_text()
    space: dict[str, object] = {}
    exec(compile(source, "inventory.py", "exec"), space)
    nodes = {}
    for position in ("head", "worker"):
        group = space[position]
        assert isinstance(group, list)
        nodes[position] = {key: value for key, value in group[0][1].items() if key != "ssh_paramiko_connect_kwargs"}
    change(nodes)
    names = {"head": HEAD.hostname, "worker": WORKER.hostname}
    return "".join(f"{position} = [({names[position]!r}, {data!r})]\n" for position, data in nodes.items())


ROWS = [Row(f"refused: {bad.name}", "contract", functools.partial(refused, bad)) for bad in BAD]
