"""Whether a bundle on a node holds the image: asked where a node lacks it."""

from __future__ import annotations

import json

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.facts import FactBase

from facts.values import Unknown

_BUNDLE = """
import json, os, sys
layout, digest = sys.argv[1:]
try:
    with open(os.path.join(layout, "index.json"), encoding="utf-8") as stream:
        held = [str(item["digest"]) for item in json.load(stream)["manifests"]]
    if digest not in held:
        said = "it holds another image (" + ", ".join(one[:19] for one in held) + ")"
    elif not os.path.isfile(os.path.join(layout, "blobs", "sha256", digest.partition(":")[2])):
        said = "the manifest is not in it; copy it again"
    else:
        said = ""
except OSError as error:
    said = "%s: %s" % (error.filename, error.strerror)
except (ValueError, KeyError, TypeError):
    said = layout + "/index.json is damaged; copy it again"
print(json.dumps(said))
"""


class BundleImage(FactBase["str | Unknown"]):
    """Why the image layout of a bundle does not hold an image; "" if it does."""

    @staticmethod
    def default() -> str | Unknown:
        """No answer at all."""
        return Unknown("it did not answer")

    def command(self, layout: str, digest: str) -> StringCommand:
        """Its index, and whether the manifest lies where it must."""
        program = StringCommand("/usr/bin/python3 -ISB -c", QuoteString(_BUNDLE))
        return StringCommand(program, QuoteString(layout), QuoteString(digest))

    def process(self, output: list[str]) -> str | Unknown:
        """The last line that is an answer."""
        for line in reversed(output):
            if line.startswith('"'):
                return str(json.loads(line))
        return Unknown(f"it answered {' '.join(output)[:80]!r}")
