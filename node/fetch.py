"""The download itself: the real huggingface_hub, in a process of its own that runs as the login user.

`main.py fetch` is started by the staging unit (node/download.py). The first line of its input is the request (where the
client lies, endpoint, token, rate); each line after it is a file to bring into its part, several at
a time. It answers in lines of JSON: how far each part is, and how each file ended. Nothing here outlives the unit.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit

from node import pages

FILES_AT_ONCE = 3
"""One connection does not fill a fast line; more than a few only take memory."""
CHUNK_BYTES = 1024 * 1024
"""What counts as arrived at once: huggingface_hub's own 10 MiB are two minutes of a slow line, and all of it is lost
with the connection."""
TELL_SECONDS = 0.2
BUSY = (408, 429, 500, 502, 503, 504)
"""What a server says that may say something else later."""
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Task:
    """A file of a repository, and the part that it goes into."""

    number: int
    repository: str
    revision: str
    path: str
    size: int
    sha256: str
    part: str
    xet: bool
    """Whether the bytes may come from xet, if that is where the hub has them."""


class Refused(Exception):
    """A file cannot be had. `kind` tells the parent what to do about it; the text never holds an address with its
    query, which may be signed, nor the token."""

    def __init__(self, kind: str, text: str, after: float = 0.0) -> None:
        super().__init__(text)
        self.kind, self.after = kind, after


class Writer:
    """The part as huggingface_hub sees it: a file that it appends to, and begins again where a server does not resume.

    It hashes what it writes, keeps to the rate, and tells how far it is.
    """

    def __init__(self, task: Task, rate: pages.Rate, tell: Callable[..., None]) -> None:
        self._task, self._rate, self._tell = task, rate, tell
        self._told = time.monotonic()
        self._lock = threading.Lock()
        offset = os.stat(task.part).st_size
        offset = offset if offset <= task.size else 0
        # Before the first request, so that no server waits while it is read.
        self._digest = pages.digest(task.part, self._alive, offset) if offset else hashlib.sha256()
        self._sink = pages.Sink(task.part, offset)

    def tell(self) -> int:
        """Bytes in the part."""
        return self._sink.offset

    def write(self, data: bytes) -> int:
        """Append."""
        if self._sink.offset + len(data) > self._task.size:
            raise Refused("wrong", "it is longer than the lock says")
        self._rate.take(len(data))
        self._digest.update(data)
        with self._lock:
            self._sink.write(data)
        if time.monotonic() - self._told >= TELL_SECONDS:
            self._told = time.monotonic()
            self._tell(self._task.number, at=self._sink.offset)
        return len(data)

    def seek(self, offset: int) -> int:
        """Only to the beginning, where truncate follows."""
        if offset:
            raise Refused("broken", f"huggingface_hub went to byte {offset} of a part")
        return offset

    def truncate(self) -> int:
        """Begin again."""
        self._sink.close()
        self._sink = pages.Sink(self._task.part, 0)
        self._digest = hashlib.sha256()
        self._tell(self._task.number, at=0)
        return 0

    def close(self) -> str:
        """Make it durable; the sha256 of what is there."""
        with self._lock:
            self._sink.close()
        self._tell(self._task.number, at=self._sink.offset)
        return self._digest.hexdigest()

    def keep(self) -> None:
        """Bring what is buffered to the disk, and take no more: the process ends."""
        self._lock.acquire()
        self._sink.close()

    def _alive(self, count: int) -> None:
        if time.monotonic() - self._told >= TELL_SECONDS:
            self._told = time.monotonic()
            self._tell(self._task.number, read=True)


class Client:
    """huggingface_hub with one endpoint and one token."""

    def __init__(self, endpoint: str, token: str | None) -> None:
        import httpx
        import huggingface_hub
        from huggingface_hub import constants, file_download
        from huggingface_hub.utils._runtime import is_xet_available

        self._endpoint, self._token = endpoint, token
        self._httpx, self._files = httpx, file_download
        # There is no other way to say it; http_get reads it at each call.
        constants.DOWNLOAD_CHUNK_SIZE = CHUNK_BYTES
        self._longest = constants.MAX_HTTP_DOWNLOAD_SIZE
        self._has_xet = is_xet_available()
        hooks: dict[str, list[Callable[..., Any]]] = {"response": [self._look]}
        huggingface_hub.set_client_factory(
            lambda: httpx.Client(event_hooks=hooks, follow_redirects=True, timeout=None, trust_env=False)
        )

    def bring(self, task: Task, writer: Writer) -> None:
        """All bytes from where the part ends. Raises Refused, OSError of this node's disk."""
        from huggingface_hub.utils._headers import build_hf_headers

        with self._translated(task):
            url = self._files.hf_hub_url(task.repository, task.path, revision=task.revision, endpoint=self._endpoint)
            found = self._files.get_hf_file_metadata(url, token=self._token or False, endpoint=self._endpoint)
        self._compare(task, found)
        if writer.tell() == task.size:
            return
        headers = build_hf_headers(token=self._token or False)
        if found.xet_file_data is not None and task.xet and self._has_xet:
            with self._translated(task, "xet"):
                for data in self._xet(found.xet_file_data, headers, task.size, writer.tell()):
                    writer.write(data)
            return
        if _origin(found.location) != _origin(url):
            # Signed for itself; the token is none of a CDN's business.
            headers.pop("authorization", None)
        with self._translated(task, "cdn" if _origin(found.location) != _origin(url) else ""):
            self._files.http_get(
                found.location, cast(BinaryIO, writer), resume_size=writer.tell(), headers=headers,
                # Stated, it would be refused above this size; the part is measured anyway.
                expected_size=task.size if task.size <= self._longest else None,
            )  # fmt: skip

    def _compare(self, task: Task, found: Any) -> None:
        """What the hub says of the file, before a byte of it is moved."""
        if found.size is not None and found.size != task.size:
            raise Refused("wrong", f"the hub says it has {found.size} bytes, the lock {task.size}")
        etag = found.etag or ""
        if len(etag) == 64 and etag != task.sha256:
            raise Refused("wrong", f"the hub says its sha256 is {etag[:12]}, the lock {task.sha256[:12]}")

    def _xet(self, data: Any, headers: dict[str, str], size: int, offset: int) -> Iterator[bytes]:
        """The bytes from `offset` on, in order. huggingface_hub's own xet_get does the same for a whole file, into a
        path, through the page cache: it cannot go on where a part ends."""
        from hf_xet import XetFileInfo  # type: ignore[import-untyped]
        from huggingface_hub.utils import _xet

        xet: Any = _xet
        found = xet.refresh_xet_connection_info(file_data=data, headers=headers)
        group = xet.get_xet_session().new_download_stream_group(
            endpoint=found.endpoint, token=found.access_token, token_expiry_unix_secs=found.expiration_unix_epoch,
            token_refresh_url=data.refresh_route, token_refresh_headers=headers,
            custom_headers=xet.xet_headers_without_auth(headers),
        )  # fmt: skip
        yield from group.download_stream(XetFileInfo(data.file_hash, size), start=offset)

    def _look(self, response: Any) -> None:
        """Each answer. One that asks to wait ends the attempt: the parent knows how to wait, and tells of it."""
        if response.status_code in BUSY:
            raise Refused("busy", f"the hub answered {response.status_code}", _seconds(response.headers))

    @contextmanager
    def _translated(self, task: Task, far: str = "") -> Iterator[None]:
        """What goes wrong, in our words. `far`: the transfer is from the CDN or from xet, whose refusals are a matter
        of an address that is no longer valid, and not of the operator's rights."""
        from huggingface_hub import errors

        where = f"{task.repository} at {task.revision[:12]}"
        try:
            yield
        except Refused:
            raise
        except (errors.GatedRepoError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError,
                errors.RemoteEntryNotFoundError, errors.DisabledRepoError) as error:  # fmt: skip
            kind = "gated" if error.response.status_code in (401, 403) else "gone"
            if isinstance(error, errors.RemoteEntryNotFoundError):
                kind = "absent"
            raise Refused(kind, _refusal(error, task, self._token is not None)) from None
        except errors.HfHubHTTPError as error:
            code = error.response.status_code
            if code == 416:
                raise Refused("wrong", "the hub has fewer bytes of it than the lock says") from None
            if far:
                raise Refused("lost", f"the server of its bytes answered {code}") from None
            if code in (401, 403):
                raise Refused("gated", _refusal(error, task, self._token is not None)) from None
            raise Refused("lost", f"the hub answered {code} for {where}") from None
        except self._httpx.HTTPError as error:
            raise Refused("lost", f"{_without_query(str(error)) or type(error).__name__}") from None
        except OSError as error:
            if error.errno is not None and error.filename is not None:
                raise  # the part's
            raise Refused("lost", "the transfer ended early") from None
        except Exception as error:  # hf_xet has errors of many types
            if far != "xet":
                raise
            raise Refused("xet", f"xet: {_without_query(str(error)) or type(error).__name__}") from None


def _refusal(error: Any, task: Task, has_token: bool) -> str:
    """Why the hub does not give a file, and what to do."""
    kind = type(error).__name__
    page = f"{task.repository} on the hub"
    if kind == "RevisionNotFoundError":
        return f"{task.repository} has no commit {task.revision[:12]} any more. Fix: make lock"
    if kind == "RemoteEntryNotFoundError":
        return f"{task.repository} at {task.revision[:12]} has no file {task.path}. Fix: make lock"
    if kind == "DisabledRepoError":
        return f"{page} is disabled. Fix: another repository in the settings, then make lock"
    if kind == "GatedRepoError" or (kind != "RepositoryNotFoundError" and error.response.status_code == 403):
        if has_token:
            return (
                f"{page} is gated, and the token's user may not read it. Fix: accept its terms on its page, or give "
                "the token the right to read gated repositories"
            )
        return f"{page} is gated. Fix: accept its terms on its page, and on the control machine: hf auth login"
    if error.response.status_code == 401 and has_token:
        return f"the hub does not know the token for {task.repository}. Fix, on the control machine: hf auth login"
    if has_token:
        return f"{page} is not there for the token's user. Fix: is it spelt so, and may that user read it?"
    return f"{page} is not there for everybody. Fix: is it spelt so? If it is private: hf auth login"


def _seconds(headers: Any) -> float:
    """How long the hub asks to wait: its own header on limits first, then Retry-After; 0 when it does not say."""
    for part in headers.get("ratelimit", "").replace(",", ";").split(";"):
        name, _, value = part.strip().partition("=")
        if name == "t" and value.isdecimal():
            return float(value)
    said = headers.get("retry-after", "").strip()
    return float(said) if said.isdecimal() else 0.0


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return (parts.scheme, parts.hostname, parts.port)


def _without_query(text: str) -> str:
    """An error's text without what stands behind a question mark: addresses of a CDN are signed there."""
    return " ".join(word.partition("?")[0] if "://" in word else word for word in text.split())[:200]


class Crew:
    """Workers that take tasks in order, and one voice."""

    def __init__(self, client: Client, rate: pages.Rate, output: int) -> None:
        self._client, self._rate, self._output = client, rate, output
        self._tasks: queue.Queue[Task | None] = queue.Queue()
        self._writers: set[Writer] = set()
        self._lock = threading.Lock()

    def run(self, tasks: Iterator[Task]) -> None:
        """Until there are no more tasks."""
        workers = [threading.Thread(target=self._work, daemon=True) for _ in range(FILES_AT_ONCE)]
        for worker in workers:
            worker.start()
        for task in tasks:
            self._tasks.put(task)
        for _ in workers:
            self._tasks.put(None)
        for worker in workers:
            worker.join()

    def end(self) -> None:
        """Keep what arrived, and end the process: workers may hang in a transfer for as long as they like."""
        for writer in list(self._writers):
            try:
                writer.keep()
            except OSError:
                continue  # it is told no more; the part has what it has
        os._exit(0)

    def tell(self, number: int, **said: Any) -> None:
        """One line; when the parent has gone, so does this process."""
        line = json.dumps({"task": number, **said}).encode() + b"\n"
        with self._lock:
            try:
                os.write(self._output, line)
            except BrokenPipeError:
                os._exit(1)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            self._bring(task)

    def _bring(self, task: Task) -> None:
        try:
            writer = Writer(task, self._rate, self.tell)
            self._writers.add(writer)
            try:
                self._client.bring(task, writer)
            finally:
                # Whatever happened, what arrived is kept.
                self._writers.discard(writer)
                sha256 = writer.close()
            if writer.tell() != task.size:
                raise Refused("lost", "the transfer ended early")
            self.tell(task.number, done=sha256)
        except Refused as refusal:
            self.tell(task.number, failed=refusal.kind, text=str(refusal), after=refusal.after)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            self.tell(task.number, failed="full" if full else "disk", text=f"{error.strerror}: {error.filename}")
        except Exception as error:  # told to the parent, which has another way or ends with these words
            self.tell(task.number, failed="broken", text=f"{type(error).__name__}: {_without_query(str(error))}")


def main(argv: list[str]) -> int:
    """main.py fetch: the request and the tasks on standard input, what becomes of them on standard output."""
    del argv
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Nothing but our lines may get to the parent, whatever a library prints.
    output = os.dup(1)
    os.dup2(2, 1)
    request = json.loads(sys.stdin.readline())
    sys.path.insert(0, request["client"])
    try:
        client = Client(request["endpoint"], request["token"])
    except ImportError as error:
        os.write(output, json.dumps({"task": 0, "failed": "client", "text": str(error)}).encode() + b"\n")
        return 1
    crew = Crew(client, pages.Rate(request["rate"]), output)
    signal.signal(signal.SIGTERM, lambda number, frame: crew.end())
    crew.run(Task(**json.loads(line)) for line in sys.stdin)
    return 0
