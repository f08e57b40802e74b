"""What the knobs of staging must be among each other, and what a lock file must be of."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import AddressValueError, IPv4Address
from urllib.parse import urlsplit

from spec.cluster import Settings
from spec.knobs import shown
from spec.lock import FileSet
from spec.rules.frame import error, warning
from spec.sources import Source, sources


@error(
    "lock-of-settings",
    "The lock file is of these settings",
    "What it names would be staged, and something else would be meant.",
    reads=(
        "stack",
        "image",
        "lock_file",
        "speculative_method",
        "weights_repository",
        "weights_repository_fallback",
        "weights_revision",
        "drafter_repository",
        "drafter_revision",
    ),
)
def _the_lock_is_of_the_settings(settings: Settings) -> Iterator[str]:
    lock, knobs, stated = settings.lock, settings.effective, sources(settings)
    if lock is None:
        return
    name = knobs.lock_file
    if lock.image is not None and knobs.image is not None and lock.image.reference != knobs.image:
        yield f"{name}: image is {lock.image.reference}, and the settings say {knobs.image}; run make lock"
    for what, files in (("weights", lock.weights), ("drafter", lock.drafter)):
        source = stated.get(what)
        if files is None and source is not None and _is_needed(settings, what):
            yield f"{name}: has no {what}, and {source.repository_knob} is {source.repository}; run make lock"
        if files is not None:
            yield from _of_another_source(name, what, files, source)


def _is_needed(settings: Settings, what: str) -> bool:
    return what == "weights" or settings.effective.speculative_method in settings.stack.needs_drafter


def _of_another_source(name: str, what: str, files: FileSet, source: Source | None) -> Iterator[str]:
    if source is None:
        yield f"{name}: {what} are of {files.repository}, and {what}_repository is not stated; run make lock"
    elif source.repository != files.repository:
        knob = source.repository_knob
        yield f"{name}: {what} are of {files.repository}, and {knob} is {source.repository}; run make lock"
    elif source.ref not in (files.ref, files.revision):
        yield f"{name}: {what} are {files.ref} of {files.repository}, and the settings say {source.ref}; run make lock"


@warning(
    "hub-in-the-clear",
    "A hub that is reached over other networks is reached by https",
    "The hub's token would be readable on the way. The files themselves are compared with the lock.",
    reads=("hub_endpoint",),
)
def _the_token_is_not_shown_around(settings: Settings) -> Iterator[str]:
    endpoint = urlsplit(settings.effective.hub_endpoint)
    host = endpoint.hostname or ""
    try:
        near = IPv4Address(host).is_private
    except AddressValueError:
        near = host == "localhost"
    if endpoint.scheme == "http" and not near:
        stated = settings.effective.hub_endpoint
        yield (
            f"hub_endpoint = {shown(stated)}: a token for it travels readable; set hub_endpoint = "
            f"{shown(stated.replace('http', 'https', 1))}, if it speaks that"
        )
