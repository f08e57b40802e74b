"""What a download needs of a node: whether it reaches a server, and which wheels its Python takes. Asked when something
is to be downloaded, and not otherwise."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyinfra.api.command import QuoteString, StringCommand
from pyinfra.api.facts import FactBase

from facts.values import Unknown

REACH_SECONDS = 3.0
"""For name and connection together: a server that takes longer is as good as away for 164 GiB."""

# A resolver that does not answer holds its thread for longer; the process does not wait for it.
_REACH = """
import json, os, socket, sys, threading
from urllib.parse import urlsplit
urls, seconds = json.loads(sys.argv[1])
said = {url: "no answer within %g s" % seconds for url in urls}
def ask(url):
    try:
        parts = urlsplit(url)
        place = (parts.hostname, parts.port or (80 if parts.scheme == "http" else 443))
        socket.create_connection(place, seconds).close()
        said[url] = ""
    except socket.gaierror as error:
        said[url] = "its name is not known here (%s)" % error.strerror
    except TimeoutError:
        pass
    except (OSError, ValueError) as error:
        said[url] = getattr(error, "strerror", None) or str(error)
threads = [threading.Thread(target=ask, args=(url,), daemon=True) for url in urls]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(seconds)
print(json.dumps(said), flush=True)
os._exit(0)
"""
_INTERPRETER = """
import json, os, platform, sys
print(json.dumps([os.uname().machine, platform.libc_ver()[1], list(sys.version_info[:2])]))
"""


class Reach(FactBase["Mapping[str, str] | Unknown"]):
    """What keeps the node from a TCP connection to the host of each URL: nothing ("") or the reason, by URL.

    It connects directly, as the download does: proxies that an environment names are used by neither.
    """

    @staticmethod
    def default() -> Mapping[str, str] | Unknown:
        """No answer at all."""
        return Unknown("it did not answer")

    def command(self, urls: Sequence[str]) -> StringCommand:
        """One Python for all of them."""
        return _python(_REACH, json.dumps([list(urls), REACH_SECONDS]))

    def process(self, output: list[str]) -> Mapping[str, str] | Unknown:
        """The last line that is an answer."""
        found = _answer(output)
        if not isinstance(found, dict):
            return Unknown(f"it answered {' '.join(output)[:80]!r}")
        return {str(url): str(said) for url, said in found.items()}


@dataclass(frozen=True)
class Interpreter:
    """The Python of a node as wheels are named for it: machine (`aarch64`), glibc (`2.39`), Python (3, 12)."""

    machine: str
    libc: str
    python: tuple[int, int]


class NodePython(FactBase["Interpreter | Unknown"]):
    """Which Python runs the programs on a node."""

    @staticmethod
    def default() -> Interpreter | Unknown:
        """No answer at all."""
        return Unknown("it did not answer")

    def command(self) -> StringCommand:
        """Asked of the interpreter itself: `uname` may speak for another one."""
        return _python(_INTERPRETER, "")

    def process(self, output: list[str]) -> Interpreter | Unknown:
        """The last line that is an answer."""
        match _answer(output):
            case [str(machine), str(libc), [int(major), int(minor)]]:
                return Interpreter(machine, libc, (major, minor))
            case _:
                return Unknown(f"it answered {' '.join(output)[:80]!r}")


def _python(program: str, argument: str) -> StringCommand:
    return StringCommand("/usr/bin/python3 -ISB -c", QuoteString(program), QuoteString(argument))


def _answer(output: Sequence[str]) -> object:
    """A login shell may have printed something before it."""
    for line in reversed(output):
        if line.startswith(("{", "[")):
            try:
                found: object = json.loads(line)
            except ValueError:
                return None
            return found
    return None
