"""/etc/os-release and /etc/dgx-release: lines of NAME="value"."""

from __future__ import annotations

import shlex

from facts.host import Release
from facts.tools.garbled import Garbled


def parse(text: str, dgx: str | None) -> Release:
    """The release; `dgx` is the text of DGX OS's own file, None where there is none."""
    values = _values(text)
    if "ID" not in values:
        raise Garbled("/etc/os-release", text or "nothing")
    return Release(
        id=values["ID"],
        version=values.get("VERSION_ID", ""),
        name=values.get("PRETTY_NAME", "") or values.get("NAME", ""),
        dgx=dgx_version(dgx or ""),
    )


def dgx_version(text: str) -> str:
    """Of the last update over the air, where there was one: each appends its lines to those of the installation."""
    values = _values(text)
    return values.get("DGX_OTA_VERSION") or values.get("DGX_SWBUILD_VERSION", "")


def _values(text: str) -> dict[str, str]:
    """Each name's last value, as a shell would read it."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if not equals or not name.replace("_", "").isalnum():
            continue
        try:
            words = shlex.split(value)
        except ValueError:
            continue
        found[name] = " ".join(words)
    return found
