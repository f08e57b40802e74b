"""Where the settings say that image, weights and drafter come from: what a lock resolves, and what it must be of."""

from __future__ import annotations

from dataclasses import dataclass

from spec import kit_keys
from spec.cluster import Settings

NEWEST = "main"
"""The branch that the hub makes for every repository."""


@dataclass(frozen=True)
class Source:
    """A repository of the hub and what is taken of it; `repository_knob` is the knob that names it."""

    repository: str
    ref: str
    repository_knob: str
    mirrors: tuple[str, ...] = ()


def sources(settings: Settings) -> dict[str, Source]:
    """What comes from the hub, by name; nothing for what no repository is stated."""
    knobs, stack = settings.effective, settings.stack
    found: dict[str, Source] = {}
    if knobs.weights_repository:
        mirror = knobs.weights_repository_fallback
        found["weights"] = Source(
            repository=knobs.weights_repository,
            ref=knobs.weights_revision or NEWEST,
            repository_knob="weights_repository",
            mirrors=(mirror,) if mirror and mirror != knobs.weights_repository else (),
        )
    if knobs.drafter_repository:
        stated = knobs.drafter_revision
        pinned = stack.revisions.get(knobs.drafter_repository) if stated is None else stated
        found["drafter"] = Source(
            repository=knobs.drafter_repository,
            ref=pinned or NEWEST,
            repository_knob="drafter_repository",
        )
    return found


def image_tag(settings: Settings) -> str:
    """The tag under which the settings' image was published; "" where nobody says."""
    own = settings.stack.defaults.get("image")
    of_kit = str(own).partition("@")[0] == kit_keys.REPOSITORY
    return kit_keys.PUBLISHED_TAG if of_kit and settings.effective.image == own else ""
