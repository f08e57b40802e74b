"""What a registry says of an image: its manifest for each platform, with the digest and size of every layer."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from node import oci
from spec.lock import LockedImage, LockedLayer, LockedPlatform

T = TypeVar("T")

CONFIG_LIMIT = 16 << 20
"""Bytes of an image's configuration; usual are about 20,000."""


def docker_config(environment: Mapping[str, str] | None = None) -> Path:
    """Where `docker login` keeps its logins on this machine."""
    stated = (os.environ if environment is None else environment).get("DOCKER_CONFIG")
    return Path(stated or Path.home() / ".docker") / "config.json"


def client(image: str) -> oci.Client:
    """The registry of an image, with this machine's login for it. Raises OciError."""
    reference = oci.parse(image)
    return oci.Client(reference.registry, reference.repository, docker_config(), oci.insecure_registries())


def locked_image(registry: oci.Client, image: str, tag: str) -> LockedImage:
    """The image that `image` pins by digest, for every Linux platform that it was made for. Raises OciError."""
    name, _, digest = image.partition("@")
    whole = registry.manifest(digest)
    if whole.media_type in oci.INDEXES:
        platforms = _of_index(registry, whole, name)
    elif whole.media_type in oci.MANIFESTS:
        platform = _platform(whole.body, digest, name)
        platforms = {_of_config(registry, platform.config, name): platform}
    else:
        raise oci.OciError(f"{name} at {digest[:19]} is no image but {whole.media_type}")
    if not platforms:
        raise oci.OciError(f"{name} at {digest[:19]} was made for no Linux platform")
    return LockedImage(name=name, ref=tag, digest=digest, platforms=platforms)


def _of_index(registry: oci.Client, index: oci.Manifest, name: str) -> dict[str, LockedPlatform]:
    platforms: dict[str, LockedPlatform] = {}
    for entry in _told(index.body, name, lambda data: list(data["manifests"])):
        platform, digest = _told_of(entry, name)
        # Docker takes the first that fits; what is made for unknown/unknown is a record of how it was built.
        if not platform.startswith("linux/") or platform in platforms:
            continue
        try:
            platforms[platform] = _platform(registry.manifest(digest).body, digest, name)
        except oci.OciError as error:
            if error.status != 404:  # a registry that mirrors another one need not have every platform
                raise
    return platforms


def _told_of(entry: Any, name: str) -> tuple[str, str]:
    try:
        return _platform_name(entry["platform"]), _digest(entry["digest"])
    except (KeyError, TypeError, ValueError):
        raise _unreadable(name) from None


def _platform(body: bytes, digest: str, name: str) -> LockedPlatform:
    def read(data: Any) -> LockedPlatform:
        layers = tuple(LockedLayer(_digest(layer["digest"]), _size(layer["size"])) for layer in data["layers"])
        return LockedPlatform(digest=digest, config=_digest(data["config"]["digest"]), layers=layers)

    return _told(body, name, read)


def _of_config(registry: oci.Client, digest: str, name: str) -> str:
    """The platform of an image that has no index."""
    parts, size = registry.blob(digest)
    if size > CONFIG_LIMIT:
        raise oci.OciError(f"{name}: its configuration has {size} bytes, which no image's has")
    return _told(b"".join(parts), name, _platform_name)


def _platform_name(data: Any) -> str:
    """As Docker writes it: arm64 is v8 unless something else is said."""
    system, architecture, variant = str(data["os"]), str(data["architecture"]), str(data.get("variant") or "")
    plain = not variant or (architecture, variant) == ("arm64", "v8")
    name = f"{system}/{architecture}" if plain else f"{system}/{architecture}/{variant}"
    if not re.fullmatch(r"[a-z0-9]+/[a-z0-9_]+(/[a-z0-9.]+)?", name):
        raise ValueError(name)
    return name


def _digest(value: object) -> str:
    if not isinstance(value, str) or not oci.DIGEST.fullmatch(value):
        raise ValueError("no digest")
    return value


def _size(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("no size")
    return value


def _told(body: bytes, name: str, read: Callable[[Any], T]) -> T:
    try:
        return read(json.loads(body))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _unreadable(name) from None


def _unreadable(name: str) -> oci.OciError:
    return oci.OciError(f"{name}: its registry describes the image in a way that cannot be read")
