"""Up, down, clean: the lab as a whole."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from lab import base, client, disks, hosts, hub_service, image, model, network, registry, settings
from lab.settings import HOSTS
from lab.shell import LabError, recorded, replace, run, say, stage

MEMORY_GIB = 5.0
"""Both hosts, their Docker daemons and a real engine on each, measured 3.5 GiB, and room to work."""

HOST_DISK_GIB = 6.0
"""What one host writes in a full pass: the engine image, while it is pulled a second time, logs."""


KEPT = settings.LAB / "disks-kept"
"""Says that the hosts' disks were left on purpose; without it they are what a killed run left."""


def available_memory_gib() -> float:
    """Memory that the machine could still give."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 2**20
    raise LabError("/proc/meminfo has no MemAvailable")


def check_room() -> None:
    """Refuse before anything is made when the machine has no room for the lab, and say what it needs."""
    settings.LAB.mkdir(parents=True, exist_ok=True)
    needs = {"two hosts": 2 * HOST_DISK_GIB, **image.disk_needed_gib()}
    wanted, free = sum(needs.values()), disks.free_gib(settings.LAB)
    memory = available_memory_gib()
    detail = ", ".join(f"{name} {gib:.1f}" for name, gib in needs.items())
    say(f"needs up to {wanted:.1f} GiB of disk ({detail}; {free:.0f} free) and {MEMORY_GIB:.0f} GiB of memory"
        f" ({memory:.0f} available)")  # fmt: skip
    if free < wanted:
        raise LabError(f"{settings.LAB}: {free:.1f} GiB free, {wanted:.1f} GiB needed ({detail}).\n"
                       "  Fix: free space there, or move the checkout to a larger file system.")  # fmt: skip
    if memory < MEMORY_GIB:
        raise LabError(f"{memory:.1f} GiB of memory available, {MEMORY_GIB:.0f} GiB needed. Fix: end what uses it.")


def make_key() -> None:
    """The lab's own ssh key, made once per checkout."""
    if not settings.KEY.exists():
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", settings.KEY)


def build(room_checked: bool = False) -> None:
    """Make or find all that `up` needs: packages, trees, images."""
    if not room_checked and not is_up():
        check_room()
    base.install_tools()
    make_key()
    image.build(base.host_layers)


def is_up() -> bool:
    """Whether the lab stands: namespaces, registry, mounts, and a record that `up` finished. A host that was
    switched off on purpose does not make it less up."""
    return (
        settings.STATE.exists()
        and network.exists(settings.CONTROL_NAMESPACE)
        and all(network.exists(host.namespace) and host.root.is_mount() for host in HOSTS.values())
        and registry.is_running()
    )


def up(hosts_only: bool = False) -> None:
    """Build what is missing, then start both hosts; nothing when they run already."""
    if is_up():
        if not hosts_only:
            build()
        if not hub_service.is_running():
            hub_service.start()
        client.fetch()
        off = [host.name for host in HOSTS.values() if not hosts.is_on(host)]
        hint = f"; off: {', '.join(off)} (`python3 -m lab on {off[0]}`)" if off else ""
        if json.loads(settings.STATE.read_text())["layers"] != [str(layer) for layer in base.host_layers()]:
            hint += "; its hosts run an older host image (`python3 -m lab down`, then `up`, takes the new one)"
        say(f"already up{hint}")
        return
    check_room()
    if hosts_only:
        base.install_tools()
        make_key()
    else:
        build(room_checked=True)
    layers = base.host_layers()
    clear(keep_disks=KEPT.exists())
    KEPT.unlink(missing_ok=True)
    with stage("up"):
        network.create_control()
        registry.start()
        hub_service.start()
        for host in HOSTS.values():
            network.create_host(host)
            host.directory.mkdir(parents=True, exist_ok=True)
            if disks.create(host, layers):
                base.personalise(host)
        hosts.write_known_hosts()
        place_model()
        for host in HOSTS.values():
            hosts.start(host)
        for host in HOSTS.values():
            say(f"{host.name} ({host.address}, user {host.user}): {hosts.wait_ready(host)}")
        client.fetch()
        replace(settings.STATE, json.dumps({"layers": [str(layer) for layer in layers]}) + "\n")


def place_model() -> None:
    """Put the scripted model where an operator's download would be: on the head only."""
    head = settings.HEAD
    target = head.disk / Path(settings.MODEL_ON_HEAD).relative_to("/")
    if not target.exists():
        model.make(target)
        owner = run("chroot", head.root, "id", "-u", head.user).stdout.strip()
        run("chown", "-R", f"{owner}:{owner}", target.parent)


def clear(keep_disks: bool = False) -> None:
    """Remove whatever stands or was left: processes by record, then mounts, loops, namespaces, control groups."""
    settings.STATE.unlink(missing_ok=True)
    for host in HOSTS.values():
        hosts.kill(host)
    registry.stop()
    hub_service.stop()
    for host in HOSTS.values():
        disks.remove(host, keep_disks)
        hosts.remove_control_groups(host)
        shutil.rmtree(f"/run/systemd/nspawn/propagate/{host.namespace}", ignore_errors=True)
    disks.unmount_below(settings.LAB)
    disks.detach_below(settings.LAB)
    network.delete_all()


def down(keep_disks: bool = False) -> None:
    """Stop the lab; the hosts' disks go too unless they are kept for the next `up`."""
    with stage("down"):
        clear(keep_disks)
        if keep_disks:
            KEPT.touch()
        else:
            KEPT.unlink(missing_ok=True)


def clean(keep_caches: bool = False) -> None:
    """Stop the lab and empty its directory."""
    down()
    kept = {settings.CACHE.name, settings.REGISTRY_STORE.name, settings.IMAGES.name} if keep_caches else set()
    kept.add("lock")
    for entry in settings.LAB.iterdir():
        if entry.name in kept:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    if not keep_caches:
        shutil.rmtree(settings.LAB)
    say("clean" + (", caches kept" if keep_caches else ""))


def status(as_json: bool) -> int:
    """Tell what stands; exit code 0 when the lab is up with both hosts on."""
    stands = is_up()
    facts = {
        "up": stands,
        "checkout": str(settings.CHECKOUT),
        "namespaces": [settings.CONTROL_NAMESPACE, *(host.namespace for host in HOSTS.values())],
        "registry": {"address": settings.REGISTRY, "pid": recorded(registry.RECORD)},
        "hub": {"endpoint": settings.HUB, "pid": recorded(hub_service.RECORD)},
        "images": hosts.read_images(),
        "rails_cut": [rail for rail in settings.RAIL_NUMBERS if stands and network.is_cut(rail)],
        "offline": [host.name for host in HOSTS.values() if stands and network.is_offline(host)],
        "hosts": {name: hosts.summary(host) for name, host in HOSTS.items()},
        "disk_free_gib": round(disks.free_gib(settings.CHECKOUT), 1),
    }
    if as_json:
        json.dump(facts, sys.stdout, indent=1)
        print()
    else:
        print(f"lab {settings.TAG}: {'up' if stands else 'down'}")
        for name, host in facts["hosts"].items():  # type: ignore[attr-defined]
            print(f"  {name}: {host['power']}, ssh {'answers' if host['ssh'] else 'silent'},"
                  f" {host['user']}@{host['address']}")  # fmt: skip
        for name, reference in hosts.read_images().items():
            print(f"  image {name}: {reference}")
        if facts["offline"]:
            print(f"  kept from the far side: {', '.join(facts['offline'])}")  # type: ignore[arg-type]
        if facts["rails_cut"]:
            print(f"  rails cut: {facts['rails_cut']}")
    return 0 if stands and all(hosts.is_on(host) for host in HOSTS.values()) else 1
