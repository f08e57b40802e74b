"""Variants of the contract image that differ in one small layer, as an update of an image does."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lab import hosts, image, registry, settings
from lab.registry import Blob
from lab.shell import LabError

REPOSITORY = "variant"
MIB = 2**20


@dataclass(frozen=True)
class Variant:
    """An image in the registry: its reference, and its layers with their bytes on the wire."""

    reference: str
    layers: tuple[Blob, ...]

    @property
    def size(self) -> int:
        """Bytes of all layers."""
        return sum(layer.size for layer in self.layers)


ENTRYPOINT = "/usr/local/bin/lab-entrypoint"


def make(
    large_mib: int,
    small_mib: int,
    *names: str,
    of: Sequence[str] = ("debian", "contract"),
    entrypoint: str = ENTRYPOINT,
) -> list[Variant]:
    """One image for each name: the layers `of` the contract image, a large one that all share, and a small one of its
    own. Its entrypoint may be a program that it does not hold."""
    base = base_layers(*of)
    shared = {
        "Entrypoint": [entrypoint],
        "Env": [f"{name}={value}" for name, value in image.ENV.items()],
        "WorkingDir": "/",
    }
    with registry.pushing() as channel:
        for layer in base:
            channel.mount(REPOSITORY, layer, image.ENGINE)
        large = channel.blob(REPOSITORY, _layer("usr/share/large", large_mib, "large"))
        made = []
        for name in names:
            layers = [*base, large]
            layers.append(channel.blob(REPOSITORY, _layer("usr/share/small", small_mib, name)))
            made.append(Variant(channel.image(REPOSITORY, layers, shared), tuple(layers)))
    return made


def base_layers(*names: str) -> list[Blob]:
    """Layers of the lab's own images, by name."""
    found = [layer for name in names if (layer := image.stored(name))]
    if len(found) < len(names):
        raise LabError(f"{' or '.join(names)} is not in the registry. Fix: python3 -m lab build")
    return found


def remove() -> None:
    """Take every variant out of the registry."""
    place = settings.REGISTRY_STORE / "docker/registry/v2/repositories" / REPOSITORY
    shutil.rmtree(place, ignore_errors=True)
    registry.prune(hosts.read_images().values(), base_layers("debian", "packages", "engine", "contract"))


def _layer(path: str, mib: int, seed: str) -> Iterator[bytes]:
    """An uncompressed layer with one file of bytes that no compression makes smaller, the same for the same seed."""
    entry = tarfile.TarInfo(path)
    entry.size = mib * MIB
    yield entry.tobuf()
    for number in range(mib):
        yield hashlib.shake_128(f"{seed} {number}".encode()).digest(MIB)
    yield bytes(2 * tarfile.BLOCKSIZE)
