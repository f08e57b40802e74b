"""What a bundle on a node says that it holds, and what of that is not there. Asked where files are to come from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.facts import FactBase

from facts.values import Unknown

# The names are those of spec/bundle.py. Sizes are the lock's; sha256 is compared where a file is copied.
_BUNDLE = """
import json, os, sys
place = sys.argv[1]
said = {"present": os.path.isdir(place), "finished": False, "identities": {}, "lacks": [], "trouble": ""}
def size(path):
    try:
        return os.stat(os.path.join(place, path)).st_size
    except OSError:
        return -1
try:
    if said["present"]:
        with open(os.path.join(place, "sparkpair.lock"), encoding="utf-8") as stream:
            lock = json.load(stream)
        with open(os.path.join(place, "SHA256SUMS"), encoding="utf-8") as stream:
            listed = [line.rstrip("\\n")[66:] for line in stream]
        said["finished"] = True
        wanted = {}
        for name in ("weights", "drafter"):
            if lock.get(name) and any(path.startswith(name + "/") for path in listed):
                said["identities"][name] = lock[name]["identity"]
                wanted.update({name + "/" + row["path"]: row["size"] for row in lock[name]["files"]})
        said["lacks"] = [path for path in listed if size(path) != wanted.get(path, max(size(path), 0))]
except FileNotFoundError as error:
    if os.path.basename(error.filename) != "SHA256SUMS":
        said["trouble"] = "there is no %s in it" % os.path.basename(error.filename)
except OSError as error:
    said["trouble"] = "%s: %s" % (error.filename, error.strerror)
except (ValueError, KeyError, TypeError, AttributeError):
    said["trouble"] = "its sparkpair.lock is damaged"
print(json.dumps(said))
"""


@dataclass(frozen=True)
class Bundle:
    """What is at the place of a bundle. `identities` are those of the directories that it holds, by name; `lacks` are
    files of its own list that are not there whole."""

    present: bool
    finished: bool
    identities: Mapping[str, str]
    lacks: tuple[str, ...]
    trouble: str


class BundleFiles(FactBase["Bundle | Unknown"]):
    """A bundle by its place: metadata only."""

    @staticmethod
    def default() -> Bundle | Unknown:
        """No answer at all."""
        return Unknown("it did not answer")

    def command(self, place: str) -> StringCommand:
        """One Python, which reads the lock in it and looks for each file."""
        return StringCommand("/usr/bin/python3 -ISB -c", QuoteString(_BUNDLE), QuoteString(place))

    def process(self, output: list[str]) -> Bundle | Unknown:
        """The last line that is an answer."""
        for line in reversed(output):
            if line.startswith("{"):
                try:
                    data = json.loads(line)
                    return Bundle(
                        present=bool(data["present"]),
                        finished=bool(data["finished"]),
                        identities={str(name): str(value) for name, value in data["identities"].items()},
                        lacks=tuple(str(path) for path in data["lacks"]),
                        trouble=str(data["trouble"]),
                    )
                except (ValueError, KeyError, TypeError, AttributeError):
                    break
        return Unknown(f"it answered {' '.join(output)[:80]!r}")
