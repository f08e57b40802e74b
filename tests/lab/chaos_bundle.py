"""Rows about bundles: made where there is internet, carried to the head, and enough for a pair that has none."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from lab import hosts, network, settings
from lab.hub_service import Remote
from lab.settings import HEAD, HOSTS, WORKER
from tests.lab import pair, staging
from tests.lab.chaos import Row
from tests.lab.staging import Errand

TINY = Errand("lab/tiny")
PLACE = settings.LAB / "bundle"
ON_HEAD = "/srv/bundle"
PLATFORM = "linux/amd64"
"""Of the lab's images."""


def bundle(*arguments: str) -> pair.Run:
    """A run of bundle.py on the control machine."""
    done = subprocess.run(
        [sys.executable, "../bundle.py", "--platform", PLATFORM, *TINY.data(), str(PLACE), *arguments],
        cwd=settings.SOURCE, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, **staging.environment("")},
    )  # fmt: skip
    return pair.Run(done.returncode, done.stdout + done.stderr, 0.0)


@contextlib.contextmanager
def carried() -> Iterator[None]:
    """The bundle on the head's disk and named there; neither host reaches the far side."""
    pair.on(HEAD, f"rm -rf {ON_HEAD}; mkdir {ON_HEAD}")
    packed = subprocess.Popen(["tar", "-C", str(PLACE), "-cf", "-", "."], stdout=subprocess.PIPE)
    subprocess.run(hosts.exec_command(HEAD, f"tar -C {ON_HEAD} -xf -"), stdin=packed.stdout, check=True)
    assert packed.wait() == 0
    os.environ["LAB_BUNDLE"] = ON_HEAD
    for host in HOSTS.values():
        network.offline(host)
    try:
        yield
    finally:
        for host in HOSTS.values():
            network.online(host)
        del os.environ["LAB_BUNDLE"]
        pair.on(HEAD, f"rm -rf {ON_HEAD}")


def without_internet() -> str:
    """Two hosts with nothing on them and no way out converge from a bundle on the head's disk, and answer."""
    subprocess.run(["rm", "-rf", str(PLACE)], check=True)
    staging.forget(TINY)
    staging.locked(TINY)
    made = bundle()
    assert made.code == 0, made.text[-2500:]
    looked = bundle("--check")
    assert looked.code == 0, looked.text[-2500:]
    far = Remote()
    far.forget()
    again = bundle()
    assert again.code == 0, again.text[-2500:]
    assert far.requests == [], far.requests
    pair.fresh_hosts()
    for host in HOSTS.values():
        assert pair.on(host, "docker images -q").strip() == "", f"{host.name} has an image before any deploy"
    try:
        with carried():
            refused()
            seen = converged(pair.images()["contract"])
    finally:
        subprocess.run(["rm", "-rf", str(PLACE)], check=True)
    return seen


def refused() -> None:
    """A bundle whose copy lost a file is refused before a node is changed; the file comes back for what follows."""
    lost = next(path for path in sorted((PLACE / "weights").iterdir()) if path.suffix == ".safetensors").name
    pair.on(HEAD, f"mv {ON_HEAD}/weights/{lost} {ON_HEAD}/lost")
    run = pair.deploy(*TINY.data())
    assert run.code != 0, run.text[-1500:]
    assert f"bundle_path = {ON_HEAD}: not there whole: weights/{lost}" in run.text, run.text[-1500:]
    assert pair.on(HEAD, "ls /etc/sparkpair 2>/dev/null", check=False) == ""
    pair.on(HEAD, f"mv {ON_HEAD}/lost {ON_HEAD}/weights/{lost}")


def converged(reference: str) -> str:
    """One deploy; what the worker has came over the rails, and nothing over the far side."""
    far = Remote()
    far.forget()
    before = received()
    run = pair.deploy(*TINY.data())
    assert run.code == 0, run.text[-2500:]
    assert pair.answers(), pair.status()
    over_rails = received() - before
    wanted = far.files(TINY.repository)
    staging.assert_arrived(TINY)
    layers = image_bytes()
    need = layers + sum(size for size, _ in wanted.values())
    assert over_rails >= need, f"{over_rails} bytes over the rails, {need} of image and weights"
    assert [request for request in far.requests if request.client in (HEAD.address, WORKER.address)] == []
    digest = reference.partition("@")[2]
    for host in HOSTS.values():
        names = pair.on(host, "docker images --digests --no-trunc --format '{{.Digest}}'")
        assert digest in names, f"{host.name}: {names}"
    assert pair.dry(*TINY.data()).plan == {}
    verified = pair.verify(*TINY.data())
    assert verified.code == 0, verified.text[-2500:]
    return (
        f"{layers / 2**20:.0f} MiB of layers and {(need - layers) / 2**20:.1f} of weights in the bundle; the worker "
        f"received {over_rails / 2**20:.0f} MiB over the rails; answered after {run.seconds:.0f} s"
    )


def received() -> int:
    """Bytes that the worker's rails have received."""
    names = " ".join(f"/sys/class/net/{end.netdev}/statistics/rx_bytes" for end in WORKER.rails)
    return sum(int(line) for line in pair.on(WORKER, f"cat {names}").split())


def image_bytes() -> int:
    """Bytes of the layers in the bundle."""
    index = json.loads((PLACE / "image/index.json").read_text())
    [digest] = [row["digest"] for row in index["manifests"] if "platform" in row]
    manifest = json.loads(Path(PLACE, "image/blobs/sha256", digest[7:]).read_text())
    return sum(int(layer["size"]) for layer in manifest["layers"])


ROWS = [Row("no internet: a bundle on the head's disk", "contract", without_internet)]
