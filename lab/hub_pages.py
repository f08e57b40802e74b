"""Stand-in (hub double) for the far side of the internet only: the pages of the hub, its CDN and the store of xet."""

from __future__ import annotations

import hashlib
import http.server
import json
import select
import socket
import struct
import time
import urllib.parse
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING

from lab.hub_log import CAS, CDN, HUB, Fault
from lab.repositories import LFS_FROM, Commit, Content, Digests, Repository, is_lfs

if TYPE_CHECKING:
    from lab.hub import Listener

CHUNK = 64 << 10
CONTROL = "/_control/"


class Refused(Exception):
    """The hub says no: status, code and text as its headers carry them."""

    def __init__(self, status: int, code: str = "", text: str = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.code, self.text, self.headers = status, code, text, headers or {}


class Answer(http.server.BaseHTTPRequestHandler):
    """One connection to one of the three hosts."""

    protocol_version = "HTTP/1.1"
    timeout = 600

    def __init__(self, connection: socket.socket, address: tuple[str, int], listener: Listener) -> None:
        self.listener, self.double = listener, listener.double
        super().__init__(connection, address, listener)  # type: ignore[arg-type]

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr: the log is `requests`."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    # --- which of the three hosts, and what of it

    def _answer(self) -> None:
        address = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(address.query, keep_blank_values=True))
        words = [urllib.parse.unquote(word) for word in address.path.strip("/").split("/")]
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.listener.name == HUB and address.path.startswith(CONTROL):
            self._control(words[1:])
            return
        assert self.command is not None
        self.seen = self.double.seen(self.listener.name, self.client_address[0], self.command, self.path)
        self.seen.range = self.headers.get("Range", "")
        self.seen.authorized = "Authorization" in self.headers
        try:
            {HUB: self._hub, CDN: self._cdn, CAS: self._cas}[self.listener.name](words)
        except Refused as refusal:
            self._refuse(refusal)
        self.seen.finished = True

    def _hub(self, words: list[str]) -> None:
        match words:
            case ["api", "whoami-v2"]:
                self._json({"type": "user", "name": self._user(needed=True), "auth": {"type": "access_token"}})
            case ["api", "models", owner, name]:
                self._info(self._repository(f"{owner}/{name}"), "main")
            case ["api", "models", owner, name, "revision", revision]:
                self._info(self._repository(f"{owner}/{name}"), revision)
            case ["api", "models", owner, name, "refs"]:
                self._refs(self._repository(f"{owner}/{name}"))
            case ["api", "models", owner, name, "tree", revision, *below]:
                self._tree(self._repository(f"{owner}/{name}"), revision, "/".join(below))
            case ["api", "models", owner, name, "paths-info", revision]:
                self._paths(self._repository(f"{owner}/{name}"), revision)
            case ["api", "models", owner, name, "xet-read-token", revision]:
                self._xet_token(self._repository(f"{owner}/{name}"), revision)
            case ["api", "resolve-cache", "models", owner, name, revision, *path]:
                self.seen.file = "/".join(path)
                self._resolve(self._repository(f"{owner}/{name}"), revision, redirected=True)
            case [owner, name, "resolve", revision, *path]:
                self.seen.file = "/".join(path)
                self._resolve(self._repository(f"{owner}/{name}"), revision)
            case _:
                raise Refused(404, text=f"no such page: {self.path}")

    def _user(self, needed: bool = False) -> str:
        """Whose token this is; empty without one."""
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        if not kind and not needed:
            return ""
        user = self.double.tokens.get(token.strip()) if kind.lower() == "bearer" else None
        if user is None:
            raise Refused(401, text="Invalid credentials in Authorization header")
        return user

    def _repository(self, name: str) -> Repository:
        self.seen.repository = name
        self._status_fault()
        user = self._user()
        found = self.double.repositories.get(name)
        if found is None or (found.private and user not in found.readers):
            # As the hub does: it does not tell a stranger whether a private repository exists.
            raise Refused(404 if user else 401, "RepoNotFound", "Repository not found")
        return found

    def _commit(self, repository: Repository, revision: str) -> Commit:
        self.seen.revision = revision
        found = repository.find(revision)
        if found is None:
            raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return found

    def _info(self, repository: Repository, revision: str) -> None:
        commit = self._commit(repository, revision)
        full = "blobs" in self.query
        self._json({
            "_id": hashlib.sha256(repository.name.encode()).hexdigest()[:24],
            "id": repository.name, "modelId": repository.name, "author": repository.name.partition("/")[0],
            "sha": commit.identity, "private": repository.private, "gated": "manual" if repository.gated else False,
            "disabled": False, "downloads": 0, "likes": 0, "tags": [f"license:{repository.licence}"],
            "lastModified": "2026-01-01T00:00:00.000Z", "createdAt": "2026-01-01T00:00:00.000Z",
            "cardData": {"license": repository.licence},
            "siblings": [
                {"rfilename": path, **(self._blob(path, content, "sha256") if full else {})}
                for path, content in commit.files.items()
            ],
        })  # fmt: skip

    def _blob(self, path: str, content: Content, digest_name: str) -> dict[str, object]:
        """What the API says of a file; its own pages name the digest of an LFS file differently."""
        said: dict[str, object] = {"size": content.size}
        said["blobId" if digest_name == "sha256" else "oid"] = git_blob(content, self.double.digests)
        if is_lfs(path, content):
            said["lfs"] = {digest_name: self.double.digests.of(content), "size": content.size, "pointerSize": 134}
        return said

    def _refs(self, repository: Repository) -> None:
        def rows(kind: str, names: dict[str, str]) -> list[dict[str, str]]:
            return [{"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": at} for name, at in names.items()]

        self._json({"branches": rows("heads", repository.branches), "tags": rows("tags", repository.tags),
                    "converts": []})  # fmt: skip

    def _tree(self, repository: Repository, revision: str, below: str) -> None:
        commit = self._commit(repository, revision)
        prefix = f"{below}/" if below else ""
        recursive = self.query.get("recursive", "").lower() in ("1", "true")
        rows: list[dict[str, object]] = []
        folders: set[str] = set()
        for path, content in commit.files.items():
            if not path.startswith(prefix):
                continue
            parents = path[len(prefix) :].split("/")[:-1]
            for depth in range(len(parents)) if recursive else range(min(1, len(parents))):
                folder = prefix + "/".join(parents[: depth + 1])
                if folder not in folders:
                    folders.add(folder)
                    oid = hashlib.sha1(folder.encode(), usedforsecurity=False).hexdigest()
                    rows.append({"type": "directory", "oid": oid, "size": 0, "path": folder})
            if recursive or not parents:
                rows.append(self._tree_row(repository, path, content))
        self._json(rows)

    def _tree_row(self, repository: Repository, path: str, content: Content) -> dict[str, object]:
        row = {"type": "file", "path": path, **self._blob(path, content, "oid")}
        if repository.cas and is_lfs(path, content):
            row["xetHash"] = xet_hash(content)
        return row

    def _paths(self, repository: Repository, revision: str) -> None:
        commit = self._commit(repository, revision)
        if "json" in self.headers.get("Content-Type", ""):
            wanted = json.loads(self.body).get("paths", [])
        else:
            wanted = urllib.parse.parse_qs(self.body.decode()).get("paths", [])
        found = [(path, commit.files[path]) for path in wanted if path in commit.files]
        self._json([self._tree_row(repository, path, content) for path, content in found])

    def _xet_token(self, repository: Repository, revision: str) -> None:
        self._commit(repository, revision)
        where = {
            "X-Xet-Cas-Url": self.double.listeners[CAS].url,
            "X-Xet-Access-Token": "xet-" + hashlib.sha256(repository.name.encode()).hexdigest(),
            "X-Xet-Token-Expiration": str(int(time.time()) + 3600),
        }
        self._json({"casUrl": where["X-Xet-Cas-Url"], "exp": int(where["X-Xet-Token-Expiration"]),
                    "accessToken": where["X-Xet-Access-Token"]}, headers=where)  # fmt: skip

    def _resolve(self, repository: Repository, revision: str, redirected: bool = False) -> None:
        path = self.seen.file
        if repository.gated and (user := self._user()) not in repository.readers:
            raise Refused(403 if user else 401, "GatedRepo",
                          f"Access to model {repository.name} is restricted.")  # fmt: skip
        commit = self._commit(repository, revision)
        content = commit.files.get(path)
        if content is None:
            raise Refused(404, "EntryNotFound", "Entry not found")
        wrong = self.double.take(("size",), self.seen)
        size = wrong.at if wrong else content.size
        headers = {"X-Repo-Commit": commit.identity, "X-Linked-Size": str(size)}
        if is_lfs(path, content):
            digest = self.double.digests.of(content)
            headers.update({"X-Linked-Etag": f'"{digest}"', "ETag": f'"{digest[:32]}"'})
            if repository.cas:
                token = f"{self.double.endpoint}/api/models/{repository.name}/xet-read-token/{commit.identity}"
                headers.update({"X-Xet-Hash": xet_hash(content), "Link": f'<{token}>; rel="xet-auth"'})
            headers["Location"] = self._link(repository, commit, path)
            self._send(302, b"", headers)
            return
        headers["ETag"] = f'"{git_blob(content, self.double.digests)}"'
        if not redirected:
            # The real hub sends small files from a page of its own, on the same host.
            place = f"/api/resolve-cache/models/{repository.name}/{commit.identity}/{urllib.parse.quote(path, safe='')}"
            self._send(307, b"", {**headers, "Location": place})
            return
        self._file(content, size, headers)

    def _link(self, repository: Repository, commit: Commit, path: str) -> str:
        """A signed address at the CDN, which ends to be valid."""
        until = int(time.time() + self.double.link_seconds)
        quoted = urllib.parse.quote(f"{repository.name}/{commit.identity}/{path}")
        return f"{self.double.listeners[CDN].url}/{quoted}?Expires={until}&Signature={signature(quoted, until)}"

    def _cdn(self, words: list[str]) -> None:
        owner, name, revision, *path = [*words, "", "", ""]
        self.seen.repository, self.seen.revision = f"{owner}/{name}", revision
        self.seen.file = "/".join(word for word in path if word)
        self._status_fault()
        until = int(self.query.get("Expires", "0"))
        quoted = urllib.parse.urlsplit(self.path).path.lstrip("/")
        if self.query.get("Signature") != signature(quoted, until) or until <= time.time():
            raise Refused(403, text="Request has expired or is not signed")
        repository = self.double.repositories[self.seen.repository]
        content = repository.commits[revision].files[self.seen.file]
        wrong = self.double.take(("size",), self.seen)
        self._file(content, wrong.at if wrong else content.size, {"ETag": f'"{self.double.digests.of(content)}"'})

    def _cas(self, words: list[str]) -> None:
        failing = any(repository.cas == "failing" for repository in self.double.repositories.values())
        asked = words[-1]
        for repository in self.double.repositories.values():
            for commit in repository.commits.values():
                for path, content in commit.files.items():
                    if repository.cas and xet_hash(content) == asked:
                        self.seen.repository, self.seen.revision = repository.name, commit.identity
                        self.seen.target = f"{self.path} ({path})"
                        failing = repository.cas == "failing"
        if failing:
            raise Refused(500, text="The store of xet is out of order")
        self._silence()

    # --- answers

    def _status_fault(self) -> None:
        """Answer as a fault says, before anything is looked up. A fault of a whole repository is for its API too."""
        fault = self.double.take(("status",), self.seen)
        if fault is not None:
            wait = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
            raise Refused(fault.status, text=HTTPStatus(fault.status).phrase, headers=wait)

    def _refuse(self, refusal: Refused) -> None:
        said = {"X-Error-Message": refusal.text, **refusal.headers}
        if refusal.code:
            said["X-Error-Code"] = refusal.code
        self._send(refusal.status, json.dumps({"error": refusal.text}).encode(), said, "application/json")

    def _json(self, data: object, headers: dict[str, str] | None = None) -> None:
        self._send(200, json.dumps(data).encode(), headers or {}, "application/json; charset=utf-8")

    def _send(self, status: int, body: bytes, headers: dict[str, str], kind: str = "text/plain") -> None:
        self.seen.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _file(self, content: Content, size: int, headers: dict[str, str]) -> None:
        """The file or the part that was asked for, with what a fault makes of it. `size` is what the file is said to
        have; what it really lacks is filled with zeros."""
        asked = byte_range(self.seen.range, size)
        if asked is None:
            raise Refused(416, text="Requested range not satisfiable", headers={"Content-Range": f"bytes */{size}"})
        start, end = asked
        self.seen.status = 206 if self.seen.range else 200
        self.send_response(self.seen.status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.seen.range:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        if self.command != "HEAD":
            self._body(content, start, end)

    def _body(self, content: Content, start: int, end: int) -> None:
        fault = self.double.take(("stall", "truncate", "reset", "corrupt"), self.seen, start, end)
        slow = self.double.take(("slow",), self.seen)
        last = fault.at if fault is not None and fault.kind != "corrupt" else end
        spoilt = fault.at if fault is not None and fault.kind == "corrupt" else None
        self._stream(content, start, last, spoilt, slow)
        if fault is None or fault.kind == "corrupt":
            return
        self.close_connection = True
        if fault.kind == "stall":
            self._silence()
        elif fault.kind == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raise ConnectionResetError("as the fault says")

    def _stream(self, content: Content, start: int, end: int, spoilt: int | None, slow: Fault | None) -> None:
        """Send the bytes from `start` to `end`, byte `spoilt` as another one, no faster than the fault has it."""
        at, begun = start, time.monotonic()
        step = CHUNK if slow is None else max(1, min(CHUNK, slow.rate // 20))
        for part in filled(content, start, end):
            for place in range(0, len(part), step):
                piece = part[place : place + step]
                if spoilt is not None and at <= spoilt < at + len(piece):
                    changed = bytearray(piece)
                    changed[spoilt - at] ^= 0xFF
                    piece = bytes(changed)
                at += len(piece)
                self.seen.sent += len(piece)  # before: whoever has a byte finds it in the log
                self.wfile.write(piece)
                if slow is not None and self.double.holds(slow):
                    ahead = (at - start) / slow.rate - (time.monotonic() - begun)
                    if ahead > 0 and self.double.closing.wait(ahead):
                        return

    def _silence(self) -> None:
        """Send nothing more until the client leaves."""
        self.close_connection = True
        while not self.double.closing.is_set():
            readable, _, _ = select.select([self.connection], [], [], 0.2)
            if readable and not self.connection.recv(4096):
                return

    # --- the far side as a test sees it

    def _control(self, words: list[str]) -> None:
        """Faults and the log over HTTP, for those who are not in this process. It is not logged itself."""
        self.seen = self.double.unseen()
        try:
            self._json(self.double.control(self.command or "", words, self.query, self.body))
        except (KeyError, TypeError, ValueError) as error:
            self._refuse(Refused(400, text=f"{type(error).__name__}: {error}"))


def byte_range(header: str, size: int) -> tuple[int, int] | None:
    """First byte and the one after the last of a Range header of one part; None when the file has no such part."""
    if not header.startswith("bytes="):
        return 0, size
    first, _, last = header.removeprefix("bytes=").partition("-")
    if not first:
        return max(0, size - int(last)), size
    start, end = int(first), min(size, int(last) + 1) if last else size
    return (start, end) if start < end else None


def filled(content: Content, start: int, end: int) -> Iterator[bytes]:
    """The bytes from `start` to `end`, zeros where the content has none."""
    yield from content.read(start, min(end, content.size))
    lacking = end - max(start, content.size)
    if lacking > 0:
        yield bytes(lacking)


def git_blob(content: Content, digests: Digests) -> str:
    """The object id that git has for a file; of an LFS file, for its pointer."""
    if content.size >= LFS_FROM:
        data = (
            f"version https://git-lfs.github.com/spec/v1\noid sha256:{digests.of(content)}\nsize {content.size}\n"
        ).encode()
    else:
        data = b"".join(content.read(0, content.size))
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def xet_hash(content: Content) -> str:
    """A name of 64 hex digits, as the store of xet has one for a file."""
    return hashlib.sha256(f"xet {content.key}".encode()).hexdigest()


def signature(path: str, until: int) -> str:
    """What makes a CDN address valid for its time."""
    return hashlib.sha256(f"signed {path} {until}".encode()).hexdigest()[:32]
