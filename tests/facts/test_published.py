"""What is locked of an image: every platform, layer by layer, in the forms of OCI and of Docker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from facts import published
from node import oci
from spec.lock import LockedImage, LockedLayer, LockedPlatform
from tests.facts import registry
from tests.facts.registry import digest_of


@pytest.fixture
def far() -> Iterator[registry.Registry]:
    with registry.serving() as server:
        yield server


def ask(far: registry.Registry, digest: str, tag: str = "") -> LockedImage:
    image = f"{far.name}@{digest}"
    return published.locked_image(published.client(image), image, tag)


def config(architecture: str, **more: str) -> str:
    with registry.serving() as other:
        other.image([], architecture, **more)
        return next(iter(other.blobs))


@pytest.mark.parametrize(
    ("index", "manifest"), [(oci.INDEX, oci.MANIFEST), (oci.DOCKER_INDEX, oci.DOCKER_MANIFEST)], ids=["oci", "docker"]
)
def test_an_index_is_locked_platform_by_platform(far: registry.Registry, index: str, manifest: str) -> None:
    """What is for no Linux, what records how the image was built and what this registry has not are left out."""
    arm, amd = far.image([7, 1 << 30], "arm64", manifest), far.image([7], "amd64", manifest)
    other = far.image([9], "arm64", manifest)

    def row(digest: str, system: str, architecture: str, **more: str) -> dict[str, Any]:
        return {"digest": digest, "size": 1, "platform": {"os": system, "architecture": architecture, **more}}

    digest = far.add(
        index,
        {
            "manifests": [
                row(arm, "linux", "arm64", variant="v8"),
                row(other, "linux", "arm64"),
                row(amd, "linux", "amd64"),
                row(amd, "linux", "arm", variant="v7"),
                row(amd, "windows", "amd64"),
                row(amd, "unknown", "unknown"),
                row(NONE, "linux", "riscv64"),
            ]
        },
        tag="v1",
    )
    small, large = LockedLayer(digest_of(b"7"), 7), LockedLayer(digest_of(b"%d" % (1 << 30)), 1 << 30)
    assert ask(far, digest, "v1") == LockedImage(
        name=far.name,
        ref="v1",
        digest=digest,
        platforms={
            "linux/arm64": LockedPlatform(arm, config("arm64"), (small, large)),
            "linux/amd64": LockedPlatform(amd, config("amd64"), (small,)),
            "linux/arm/v7": LockedPlatform(amd, config("amd64"), (small,)),
        },
    )


@pytest.mark.parametrize("manifest", [oci.MANIFEST, oci.DOCKER_MANIFEST], ids=["oci", "docker"])
def test_an_image_without_an_index_says_its_platform_itself(far: registry.Registry, manifest: str) -> None:
    digest = far.image([7], "arm64", manifest, variant="v8")
    found = ask(far, digest)
    layers = (LockedLayer(digest_of(b"7"), 7),)
    assert found.platforms == {"linux/arm64": LockedPlatform(digest, config("arm64", variant="v8"), layers)}
    assert (found.digest, found.ref, found.reference) == (digest, "", f"{far.name}@{digest}")


NONE = "sha256:" + "0" * 64
ARM = {"os": "linux", "architecture": "arm64"}
UNREADABLE = "its registry describes the image in a way that cannot be read"


@pytest.mark.parametrize(
    ("media_type", "data", "text"),
    [
        (oci.INDEX, b"{}", UNREADABLE),
        (oci.INDEX, {"manifests": None}, UNREADABLE),
        (oci.INDEX, {"manifests": [{"digest": "latest", "platform": ARM}]}, UNREADABLE),
        (oci.INDEX, {"manifests": [{"digest": NONE, "platform": {"os": "linux"}}]}, UNREADABLE),
        (oci.INDEX, {"manifests": []}, "was made for no Linux platform"),
        (oci.MANIFEST, {"config": {"digest": "x"}, "layers": []}, UNREADABLE),
        (oci.MANIFEST, {"config": {"digest": NONE}, "layers": [{"digest": "x", "size": 1}]}, UNREADABLE),
        (oci.MANIFEST, {"config": {"digest": NONE}, "layers": [{"digest": NONE, "size": -1}]}, UNREADABLE),
        (oci.MANIFEST, {"config": {"digest": NONE}}, UNREADABLE),
        ("application/vnd.cncf.helm.config.v1+json", {}, "is no image but application/vnd.cncf.helm.config.v1+json"),
    ],
)  # fmt: skip
def test_what_describes_no_image_is_said(far: registry.Registry, media_type: str, data: Any, text: str) -> None:
    digest = far.add(media_type, data)
    with pytest.raises(oci.OciError) as error:
        ask(far, digest)
    where = f"{far.name}: " if text == UNREADABLE else f"{far.name} at {digest[:19]} "
    assert str(error.value) == where + text


def test_logins_are_where_docker_keeps_them() -> None:
    assert published.docker_config({"DOCKER_CONFIG": "/srv/docker"}) == Path("/srv/docker/config.json")
    assert published.docker_config({}) == Path.home() / ".docker" / "config.json"
