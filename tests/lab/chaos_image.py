"""Rows about the image: to the node without internet too, layer by layer, whatever happens on the way; what prune
takes, and what is looked for in an image. The witnesses are the hosts' own counters of bytes."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence

from lab import network, settings, variants
from lab.settings import HEAD, HOSTS, WORKER, Host
from lab.variants import Variant
from tests.lab import pair
from tests.lab.chaos import Row

MIB = 2**20
LARGE_MIB, SMALL_MIB = 96, 12
HUGE_MIB = 1200
"""Takes long enough to arrive for a rail to be cut, or a deploy to be killed, meanwhile."""
OVERHEAD = 1.06
"""Of headers and acknowledgements, and of what else a host says meanwhile."""
BESIDE = 3 * MIB
REGISTRY = "sparkpair-image-registry"


@contextlib.contextmanager
def of_variants(large_mib: int, *names: str, of: Sequence[str] = ("debian", "contract")) -> Iterator[list[Variant]]:
    """Images that differ in one layer, on no host; gone afterwards from the registry and from both hosts."""
    made = variants.make(large_mib, SMALL_MIB, *names, of=of)
    forget()
    try:
        yield made
    finally:
        forget()
        variants.remove()


def forget() -> None:
    """Both hosts without any variant, registry or pull."""
    network.join(0)
    for host in HOSTS.values():
        network.online(host)
        pair.on(
            host,
            f"systemctl stop {REGISTRY} sparkpair-image-pull 2>/dev/null; "
            f"systemctl reset-failed {REGISTRY} sparkpair-image-pull 2>/dev/null; rm -rf /var/lib/sparkpair/registry; "
            f"docker images -a --digests --format '{{{{.Repository}}}} {{{{.ID}}}}' | grep '/{variants.REPOSITORY} ' | "
            "awk '{print $2}' | sort -u | xargs -r docker rmi -f",
            check=False,
        )


def data(variant: Variant) -> tuple[str, str]:
    return "--data", f"image={variant.reference}"


def stage(variant: Variant) -> pair.Run:
    """A whole run of stage.py."""
    return pair.start_deploy("-y", *data(variant), "inventory.py", "../stage.py").wait()


def received(host: Host, netdevs: Sequence[str]) -> int:
    """Bytes that these netdevs have received."""
    names = " ".join(f"/sys/class/net/{netdev}/statistics/rx_bytes" for netdev in netdevs)
    return sum(int(line) for line in pair.on(host, f"cat {names}").split())


def by_rail() -> int:
    """What the worker has received over the rails."""
    return received(WORKER, [end.netdev for end in WORKER.rails])


def from_registry(host: Host) -> int:
    """What a host has received over the management network, where the registry is."""
    return received(host, [settings.MANAGEMENT_NETDEV])


class Moved:
    """Bytes that moved since it was made."""

    def __init__(self) -> None:
        self._began = self._now()

    def _now(self) -> dict[str, int]:
        return {"rails": by_rail(), **{host.name: from_registry(host) for host in HOSTS.values()}}

    def since(self) -> dict[str, int]:
        """By way: the worker's rails, and each host's management network."""
        return {name: count - self._began[name] for name, count in self._now().items()}


def assert_same(variant: Variant) -> None:
    """Both hosts hold it, by its digest, with the same id and layers, under our name; nothing else of ours is left."""
    digest = variant.reference.partition("@")[2]
    seen = set()
    for host in HOSTS.values():
        form = "'{{.Id}} {{json .RootFS.Layers}} {{json .RepoDigests}}'"
        identity, layers, names = pair.on(
            host, f"docker image inspect sparkpair/engine:{digest[7:19]} -f {form}"
        ).split()  # fmt: skip
        assert all(name.endswith(f"@{digest}") for name in json.loads(names)), names
        seen.add((identity, layers))
        assert pair.on(host, f"systemctl is-active {REGISTRY}", check=False).strip() == "inactive"
        assert pair.on(host, "ls /var/lib/sparkpair/registry 2>/dev/null", check=False) == ""
    assert len(seen) == 1, seen
    assert pair.dry(*data(variant), "inventory.py", "../stage.py").plan == {}


def about(name: str, seen: int, wanted: int) -> None:
    """As many bytes as the layers have, and not many more."""
    assert wanted <= seen <= wanted * OVERHEAD + BESIDE, f"{name}: {seen} bytes, wanted about {wanted}"


def one_changed_layer() -> str:
    """An update of an image of which one layer changed, while the worker has no internet."""
    with of_variants(LARGE_MIB, "before", "after") as (before, after):
        run = stage(before)
        assert run.code == 0, run.text[-2500:]
        assert_same(before)
        changed = after.layers[-1].size
        network.offline(WORKER)
        serving = pair.containers()
        moved = Moved()
        run = stage(after)
        assert run.code == 0, run.text[-2500:]
        bytes_by_way = moved.since()
        about("the rails", bytes_by_way["rails"], changed)
        about("the head's way to the registry", bytes_by_way["head"], changed)
        assert bytes_by_way["worker"] < BESIDE, bytes_by_way
        assert_same(after)
        assert pair.containers() == serving
    mib = {name: f"{count / MIB:.1f} MiB" for name, count in bytes_by_way.items()}
    return (
        f"one layer of {changed / MIB:.1f} of {after.size / MIB:.0f} MiB changed: {mib['rails']} over the rails, "
        f"{mib['head']} to the head, {mib['worker']} to the worker by the other network; {run.seconds:.0f} s"
    )


def served() -> str:
    """A deploy of an image that the worker has from the head: both ranks run it, and verify.py holds."""
    first = pair.deploy("--data", f"image={pair.images()['contract']}")
    assert first.code == 0, first.text[-2500:]
    with of_variants(LARGE_MIB, "served") as (image,):
        network.offline(WORKER)
        run = pair.deploy(*data(image))
        assert run.code == 0, run.text[-2500:]
        assert pair.answers(), pair.status()
        verified = pair.verify(*data(image))
        assert verified.code == 0, verified.text[-2500:]
        assert pair.dry(*data(image)).plan == {}
        for host in HOSTS.values():
            form = "'{{.Image}} {{.Config.Image}}'"
            ranks = "docker ps -q --filter label=sparkpair.rank"
            held, named = pair.on(host, f"docker inspect -f {form} $({ranks})").split()
            assert held == named, f"{host.name}: started as {named}"
        # The launch before this one is kept, and this one runs: neither image may go.
        assert pair.dry(*data(image), "inventory.py", "../prune.py").plan == {}
        back = pair.deploy("--data", f"image={pair.images()['contract']}")
        assert back.code == 0, back.text[-2500:]
    return f"both ranks run it, by its id; {run.seconds:.0f} s with the restart"


def the_head_has_it() -> str:
    """The head has the image; the worker, without internet, gets it through the head, which fetches each layer once."""
    with of_variants(LARGE_MIB, "alone") as (alone,):
        pair.on(HEAD, f"docker pull -q {alone.reference}")
        network.offline(WORKER)
        needed, moved = lacking(alone), Moved()
        run = stage(alone)
        assert run.code == 0, run.text[-2500:]
        bytes_by_way = moved.since()
        about("the rails", bytes_by_way["rails"], needed)
        about("the head's way to the registry", bytes_by_way["head"], needed)
        assert_same(alone)
    return f"{bytes_by_way['rails'] / MIB:.0f} MiB over the rails, {bytes_by_way['head'] / MIB:.0f} MiB to the head"


def lacking(image: Variant) -> int:
    """Bytes of the layers that the worker does not have, as part of the pair's own image."""
    form = "'{{range .RootFS.Layers}}{{.}} {{end}}'"
    held = pair.on(WORKER, f"docker images -q | sort -u | xargs -r docker image inspect -f {form}").split()
    # The lab's layers are not compressed, so a layer's digest is that of its content.
    return sum(layer.size for layer in image.layers if layer.digest not in held)


def rail_cut() -> str:
    """A rail is cut while the worker pulls through the head: the rest comes over the other one."""
    with of_variants(HUGE_MIB, "cut") as (image,):
        network.offline(WORKER)
        needed, moved = lacking(image), Moved()
        deploy = pair.start_deploy("-y", *data(image), "inventory.py", "../stage.py")
        beyond(moved, 150 * MIB)
        network.cut(0)
        seen = moved.since()["rails"]
        run = deploy.wait()
        network.join(0)
        assert run.code == 0, run.text[-2500:]
        bytes_by_way = moved.since()
        about("the head's way to the registry", bytes_by_way["head"], needed)
        again = bytes_by_way["rails"] - needed
        assert again < 120 * MIB, f"{again / MIB:.0f} MiB came twice"
        assert_same(image)
    in_all = bytes_by_way["rails"] / MIB
    return f"cut after {seen / MIB:.0f} MiB; {in_all:.0f} MiB over the rails in all; {run.seconds:.0f} s"


def deploy_killed() -> str:
    """The deploy is killed while the worker pulls through the head: the units go on, and the next run ends them."""
    with of_variants(HUGE_MIB, "killed") as (image,):
        network.offline(WORKER)
        needed, moved = lacking(image), Moved()
        deploy = pair.start_deploy("-y", *data(image), "inventory.py", "../stage.py")
        beyond(moved, 150 * MIB)
        deploy.kill(signal.SIGKILL)
        deploy.wait()
        run = stage(image)
        assert run.code == 0, run.text[-2500:]
        bytes_by_way = moved.since()
        about("the head's way to the registry", bytes_by_way["head"], needed)
        about("the rails", bytes_by_way["rails"], needed)
        assert_same(image)
    return f"killed on the way; every byte moved once: {bytes_by_way['rails'] / MIB:.0f} MiB over the rails"


def beyond(moved: Moved, count: int) -> None:
    """Wait until so many bytes came over the rails."""
    pair.wait_for(lambda: moved.since()["rails"] > count, 120, f"{count} bytes over the rails", pause=0.02)


def nobody_online() -> str:
    """Neither host reaches the registry, and neither has a bundle: refused before anything changes."""
    with of_variants(1, "nobody") as (image,):
        for host in HOSTS.values():
            network.offline(host)
        run = stage(image)
        assert run.code == 1, run.text[-1500:]
        short = f"{image.reference.partition('@')[0]}@{image.reference.partition('@sha256:')[2][:12]}"
        wanted = (
            f"the image {short} is not on lab-head and lab-worker, and no node gets it from {settings.REGISTRY} "
            "(lab-head: no answer within 3 s; lab-worker: no answer within 3 s)"
        )
        assert wanted in run.text, run.text[-1500:]
    return "refused, with the reason of each host"


def pruned() -> str:
    """Two images of one repository are there, and the settings want the second: prune takes the first, and no other."""
    with of_variants(LARGE_MIB, "old", "new") as (old, new):
        for image in (old, new):
            run = stage(image)
            assert run.code == 0, run.text[-2500:]
        pair.on(WORKER, f"docker tag {old.reference} keep/this:v1")
        pair.on(HEAD, "mkdir -p /var/lib/sparkpair/registry && head -c 5M /dev/zero >/var/lib/sparkpair/registry/left")
        words = (*data(new), "inventory.py", "../prune.py")
        plan = pair.dry(*words).plan
        assert plan == {
            "Prune | Remove the images that nothing needs": ["lab-head"],
            "Prune | Remove the layers that a registry kept": ["lab-head"],
        }, plan
        told = pair.start_deploy("--dry", *words).wait()
        assert (
            f"lab-head: image sparkpair/engine:{old.reference.partition('@sha256:')[2][:12]}, {old.reference}"
            in told.text
        )
        assert "lab-head: /var/lib/sparkpair/registry: 5.0 MiB" in told.text, told.text[-1500:]
        before = {host.name: images(host) for host in HOSTS.values()}
        run = pair.start_deploy("-y", *words).wait()
        assert run.code == 0, run.text[-2500:]
        gone = {host.name: before[host.name] - images(host) for host in HOSTS.values()}
        digest = old.reference.partition("@")[2]
        wanted = {f"{settings.REGISTRY}/{variants.REPOSITORY}@{digest}", f"sparkpair/engine:{digest[7:19]}"}
        assert gone == {"head": wanted, "worker": set()}, gone
        assert pair.dry(*words).plan == {}
        pair.on(WORKER, "docker rmi keep/this:v1")
    return "the old image went from the head with both its names; on the worker somebody's own name kept it"


def images(host: Host) -> set[str]:
    """Every name of every image."""
    text = pair.on(
        host, "docker images -q | sort -u | xargs -r docker image inspect -f '{{json .RepoTags}} {{json .RepoDigests}}'"
    )
    return {name for line in text.splitlines() for part in line.split(" ") for name in json.loads(part)}


def looked_into() -> str:
    """The contract image is whole; one without vllm is not, and each check says what it saw."""
    contract = ("--data", f"image={pair.images()['contract']}", "inventory.py", "../verify_image.py")
    had = {host.name: images(host) for host in HOSTS.values()}
    for host in HOSTS.values():
        pair.on(host, f"docker pull -q {pair.images()['contract']}")
    begun = time.monotonic()
    run = pair.start_deploy(*contract).wait(300)
    seconds = time.monotonic() - begun
    assert run.code == 0, run.text[-2500:]
    assert "The image is whole: all 9 statements hold." in run.text, run.text[-1500:]
    with of_variants(1, "bare", of=("debian",)) as (bare,):
        for host in HOSTS.values():
            pair.on(host, f"docker pull -q {bare.reference}")
        run = pair.start_deploy(*data(bare), "inventory.py", "../verify_image.py").wait(300)
        assert run.code == 1, run.text[-1500:]
        assert (
            "FAILED  lab-head: its Python can import vllm: no, import vllm ended with code 1: ModuleNotFoundError"
            in (run.text)
        ), run.text[-2500:]
        assert "The image is not as it must be: 6 of 9 statements fail." in run.text, run.text[-1500:]
    for host in HOSTS.values():
        for name in images(host) - had[host.name]:
            pair.on(host, f"docker rmi {name}")
    return f"9 statements hold of the contract image, {seconds:.0f} s; 6 fail of one without vllm"


def row(name: str, run: Callable[[], str]) -> Row:
    return Row(f"image: {name}", "contract", run)


ROWS = [
    row("one changed layer, the worker without internet", one_changed_layer),
    row("a pair serves what the worker has from the head", served),
    row("the head has it, the worker without internet", the_head_has_it),
    row("a rail is cut while the worker pulls through the head", rail_cut),
    row("the deploy is killed while the worker pulls through the head", deploy_killed),
    row("nobody reaches the registry", nobody_online),
    row("prune takes what nothing needs", pruned),
    row("an image is looked into", looked_into),
]
