"""Whether there is a newer release of Sparkpair or of the stack's image: one line read from a place, nothing sent.

Asked for at most once a day, at a start of the pair, and on demand. Whatever goes wrong is a sentence for the operator
and never in the way of the pair.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from node import paths, service, wire
from node.release import RELEASE
from node.service import UpdateSettings

LOOK_SECONDS = 3.0
"""From the question to the whole answer, the resolver and every redirect included."""
MOST_BYTES = 200
DAY_SECONDS = 86400.0
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
VERSION = re.compile(r"v?(\d+(?:\.\d+)*)(?:[-+._]?([A-Za-z].*))?")


class NotSeen(Exception):
    """What the newest release is could not be found out; the message says why."""


@dataclass(frozen=True)
class Source:
    """What is asked about: its name, where the newest release stands, and which one is here ("" where not known)."""

    name: str
    url: str
    installed: str


Look = Callable[[str], str]


def sources(update: UpdateSettings) -> list[Source]:
    """What the settings (node.service.UpdateSettings) say there is to ask about."""
    named = [
        Source("Sparkpair", update.url, RELEASE),
        Source("the stack's image", update.stack_url, update.stack_release),
    ]
    return [source for source in named if source.url]


def check(
    update: UpdateSettings, path: Path = paths.UPDATE, now: Callable[[], float] = time.time, ask: Look | None = None
) -> str:
    """What there is to say of newer releases, "" for nothing. Asks once a day, and not at all where the knob
    update_check is off; in between it tells what was seen then. Never raises."""
    if not update.check:
        return ""
    seen = _kept(path)
    if due(seen, now()):
        seen = find(update, path, now, ask)
    return hint(update, seen)


def find(
    update: UpdateSettings, path: Path = paths.UPDATE, now: Callable[[], float] = time.time, ask: Look | None = None
) -> dict[str, Any]:
    """Ask now, and keep what was seen: {"asked": seconds since 1970, "seen": {url: {"latest", "trouble"}}}."""
    found: dict[str, dict[str, str]] = {}
    for source in sources(update):
        try:
            found[source.url] = {"latest": (ask or look)(source.url), "trouble": ""}
        except NotSeen as error:
            found[source.url] = {"latest": "", "trouble": str(error)}
    seen = {"asked": now(), "seen": found}
    try:
        wire.write_atomic(path, json.dumps(seen))
    except OSError:
        pass  # a full disk: it is asked again at the next start
    return seen


def due(seen: dict[str, Any], now: float) -> bool:
    """Whether a day has passed since it was asked; also after a clock that went back."""
    asked = seen.get("asked")
    return not isinstance(asked, int | float) or not 0 <= now - asked < DAY_SECONDS


def hint(update: UpdateSettings, seen: dict[str, Any]) -> str:
    """The newer releases among what was seen, as one line; "" where there is none or nothing is known."""
    found = []
    for source in sources(update):
        latest = _of(seen, source).get("latest", "")
        if latest and newer(source.installed, latest):
            found.append(f"{source.name}: {latest} is out, here is {source.installed}")
    return "; ".join(found)


def statements(update: UpdateSettings, seen: dict[str, Any]) -> list[str]:
    """All that was seen, a sentence for each source."""
    lines = []
    for source in sources(update):
        entry = _of(seen, source)
        latest, here = entry.get("latest", ""), source.installed
        judged = newer(here, latest) if latest else None
        if not latest:
            lines.append(f"{source.name}: not found out: {entry.get('trouble') or 'it was not asked'}")
        elif not here:
            lines.append(f"{source.name}: the newest is {latest}; which release is here is not known")
        elif judged is None:
            lines.append(f"{source.name}: the newest is called {latest}, here is {here}; which is newer is not judged")
        elif judged:
            lines.append(f"{source.name}: {latest} is out, here is {here}")
        else:
            lines.append(f"{source.name}: {here} is here, and the newest is {latest}: nothing newer")
    return lines or ["nothing is asked for: update_url is empty, and the stack's project publishes no release"]


def newer(installed: str, latest: str) -> bool | None:
    """Whether `latest` is newer than `installed`, by the numbers in front: v2.3 and v2.3-tier1 are of one number, and a
    name with a further word is no news for who has that number. None where it cannot be told."""
    one, other = VERSION.fullmatch(installed), VERSION.fullmatch(latest)
    if one is None or other is None:
        return None
    here, there = _numbers(one.group(1)), _numbers(other.group(1))
    if here != there:
        return there > here
    return False if one.group(2) in (None, other.group(2)) else None


def look(url: str, timeout: float = LOOK_SECONDS) -> str:
    """The release that is named at this place. Raises NotSeen, in time, whatever the far side does."""
    found: list[str | BaseException] = []

    def work() -> None:
        try:
            found.append(_read(url, timeout))
        except (OSError, http.client.HTTPException, ValueError, NotSeen) as error:
            found.append(error)

    # A thread that is left behind: neither the resolver nor a byte now and then is held back by a socket's timeout.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(timeout)
    place = urlsplit(url).netloc.rpartition("@")[2]
    if not found:
        raise NotSeen(f"{place} gave no answer within {timeout:g} s")
    [answer] = found
    if isinstance(answer, str):
        return answer
    raise NotSeen(f"{place}: {_why(answer)}")


class _SameScheme(urllib.request.HTTPRedirectHandler):
    """Follows to where the same scheme is spoken, so that certificates are checked to the end."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme != urlsplit(req.full_url).scheme:
            fp.close()
            raise NotSeen(f"it leads to {urlsplit(newurl).scheme}:, and only its own scheme is followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def _read(url: str, timeout: float) -> str:
    if urlsplit(url).scheme not in ("https", "http"):
        raise NotSeen("only https and http are asked")
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _SameScheme(),
    ):
        opener.add_handler(handler)
    opener.addheaders = []  # not even which program asks
    with opener.open(url, timeout=timeout) as answer:
        text = answer.read(MOST_BYTES + 1).decode("ascii", "replace")
    line = text.partition("\n")[0].strip()
    if NAME.fullmatch(line) is None:
        raise NotSeen(f"what stands there is no name of a release: {line[:40]!r}")
    return str(line)


def _why(error: BaseException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"HTTP {error.code}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__


def _numbers(text: str) -> tuple[int, ...]:
    numbers = [int(part) for part in text.split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _of(seen: dict[str, Any], source: Source) -> dict[str, str]:
    kept = seen.get("seen")
    entry = kept.get(source.url) if isinstance(kept, dict) else None
    if not isinstance(entry, dict):
        return {}
    latest = str(entry.get("latest", ""))
    return {"latest": latest if NAME.fullmatch(latest) else "", "trouble": str(entry.get("trouble", ""))}


def _kept(path: Path) -> dict[str, Any]:
    try:
        return wire.read_json(path) or {}
    except wire.WireError:
        return {}


def main(argv: list[str]) -> int:
    """Print what there is to say of newer releases: a program of its own, so that the keeper need not hold what asking
    takes in memory."""
    del argv
    try:
        print(check(service.load(paths.WANTED_SERVICE).update))
    except wire.WireError as error:
        print(error, file=sys.stderr)
        return 1
    return 0
