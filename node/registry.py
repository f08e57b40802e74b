"""A read-only registry for one image, while nodes pull it: from where a node reaches, for those that do not.

Docker speaks to 127.0.0.1 without certificates and keeps the digests that it asked for there. The node that reaches the
real registry keeps each blob once and serves its peers on the rails; a node that does not relays its peer's answers.
Only what belongs to the one image is served, so that nobody reads anything else with the operator's login.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Collection, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any

from node import oci
from node.blobs import Store
from node.journal import log
from node.layout import Layout
from node.paths import LOOPBACK
from node.peer import IP_FREEBIND, first_byte
from node.relay import PATIENCE_SECONDS, Relay, Source, Way

IDLE_SECONDS = 120.0
PEER_TIMEOUT_SECONDS = 10.0
"""Without a byte on one rail, until the next one is tried; the peer itself may be waiting for the internet."""
CONNECTIONS = 64
"""Each takes a thread and two pieces of a blob, so that all of them stay below 256 MiB."""
ASKED = re.compile(r"/v2/(?P<repository>[a-z0-9._/-]+)/(?P<kind>manifests|blobs)/(?P<digest>sha256:[0-9a-f]{64})")


class Image:
    """One image: which blobs belong to it, with their sizes, as its manifests say. Threads share it."""

    def __init__(self, repository: str, digest: str, source: Source) -> None:
        self.repository = repository
        self.digest = digest
        self.source = source
        self._turn = threading.Lock()
        self._manifests: dict[str, oci.Manifest] = {}
        self._below: set[str] = {digest}
        self._sizes: dict[str, int] = {}

    def manifest(self, digest: str) -> oci.Manifest | None:
        """The manifest of that digest; None if it is not the image's."""
        with self._turn:
            return self._read(digest) if self._belongs(digest) else None

    def size(self, digest: str) -> int | None:
        """How many bytes a blob has; None if it is not the image's."""
        with self._turn:
            if digest not in self._sizes:  # asked before its manifest, by who has that from elsewhere
                self._read(self.digest)
                for below in sorted(self._below - {self.digest}):
                    try:
                        self._read(below)
                    except oci.OciError as error:
                        if error.status != 404:  # another platform's, which a bundle leaves out
                            raise
            return self._sizes.get(digest)

    def _belongs(self, digest: str) -> bool:
        if digest not in self._below:
            self._read(self.digest)
        return digest in self._below

    def _read(self, digest: str) -> oci.Manifest:
        found = self._manifests.get(digest)
        if found is None:
            found = self._manifests[digest] = self.source.manifest(digest)
            data = json.loads(found.body)
            self._below.update(_digests(data.get("manifests") or []))
            self._sizes.update(_digests((*(data.get("layers") or []), *([data["config"]] if "config" in data else []))))
        return found


def _digests(items: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Size by digest. Under it a store or a bundle has a file, so one of another form is nobody's to ask for."""
    stated = ((str(item["digest"]), int(item["size"])) for item in items)
    return {digest: size for digest, size in stated if oci.DIGEST.fullmatch(digest)}


class Server(ThreadingMixIn, HTTPServer):
    """Answers on one address; every connection has its own thread."""

    daemon_threads = True
    request_queue_size = CONNECTIONS

    def __init__(self, address: tuple[str, int], peers: Collection[str], image: Image) -> None:
        self.peers = frozenset((*peers, LOOPBACK))
        self.image = image
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(address, Handler)

    def server_bind(self) -> None:
        # A rail whose address is not up yet is served from when it is.
        self.socket.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
        super().server_bind()

    def verify_request(self, request: object, client_address: tuple[str, int]) -> bool:
        """Only this node and its peers get an answer; to others the connection is closed."""
        return client_address[0] in self.peers and self._free.acquire(blocking=False)

    def process_request_thread(self, request: socket.socket, client_address: tuple[str, int]) -> None:  # type: ignore[override]
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: tuple[str, int]) -> None:
        """A client that went away is no fault: it asks again where it stopped."""
        error = sys.exc_info()[1]
        if not isinstance(error, (ConnectionError, TimeoutError)):
            log(f"{client_address[0]}: {type(error).__name__}: {error}", "error")


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = IDLE_SECONDS
    server: Server

    def do_GET(self) -> None:
        if self.path in ("/v2", "/v2/"):
            self._answer(200, b"{}", {"Content-Type": "application/json"})
            return
        asked = ASKED.fullmatch(self.path)
        image = self.server.image
        try:
            if asked and asked["repository"] == image.repository:
                if asked["kind"] == "manifests":
                    found = image.manifest(asked["digest"])
                    if found is not None:
                        known = {"Content-Type": found.media_type, "Docker-Content-Digest": found.digest}
                        self._answer(200, found.body, known)
                        return
                else:
                    size = image.size(asked["digest"])
                    if size is not None:
                        self._answer_blob(asked["digest"], size)
                        return
        except oci.OciError as error:
            self._refuse(error.status if error.status in (401, 403, 404, 429) else 502, str(error))
            return
        self._refuse(404, f"only {image.repository}@{image.digest} and what belongs to it is served here")

    do_HEAD = do_GET

    def _answer_blob(self, digest: str, size: int) -> None:
        stated = self.headers.get("Range")
        begin = first_byte(stated)
        if begin is None or (begin >= size and stated is not None):
            self._begin(416, 0, {"Content-Range": f"bytes */{size}"})
            return
        headers = {
            "Content-Type": "application/octet-stream",
            "Docker-Content-Digest": digest,
            "Accept-Ranges": "bytes",
            **({} if stated is None else {"Content-Range": f"bytes {begin}-{size - 1}/{size}"}),
        }
        parts = iter(()) if self.command == "HEAD" else self.server.image.source.read(digest, size, begin)
        first = next(parts, b"")  # what fails at once is answered as such
        self._begin(200 if stated is None else 206, size - begin, headers)
        try:
            if first:
                self.connection.sendall(first)
            for part in parts:
                self.connection.sendall(part)
        except oci.OciError as error:
            log(f"blob {digest[:19]} breaks off here: {error}", "warning")
            self.close_connection = True  # the client sees a body that ends early, and asks for the rest

    def _answer(self, code: int, body: bytes, headers: Mapping[str, str]) -> None:
        self._begin(code, len(body), headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, code: int, text: str) -> None:
        """In the form whose message Docker shows."""
        name = {401: "UNAUTHORIZED", 403: "DENIED", 404: "NAME_UNKNOWN", 429: "TOOMANYREQUESTS"}.get(code, "UNKNOWN")
        body = json.dumps({"errors": [{"code": name, "message": text}]}).encode()
        self._answer(code, body, {"Content-Type": "application/json"})

    def _begin(self, code: int, size: int, headers: Mapping[str, str]) -> None:
        self.send_response(code)
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        self.send_header("Content-Length", str(size))
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """The journal is not told of each request."""


def source(arguments: argparse.Namespace, reference: oci.Reference) -> Source:
    """Where the image comes from: a directory, a peer over its rails, or its own registry."""
    if arguments.layout:
        return Layout(Path(arguments.layout))
    if arguments.peer_registry:
        ways = [
            Way(place, oci.Client(place, reference.repository, timeout=PEER_TIMEOUT_SECONDS))
            for place in arguments.peer_registry
        ]
    else:
        config = arguments.docker_config or None
        client = oci.Client(reference.registry, reference.repository, config, oci.insecure_registries())
        ways = [Way(reference.registry, client)]
    relay = Relay(ways, arguments.stall_seconds)
    return Store(Path(arguments.store), relay) if arguments.store else relay


def serve(servers: list[Server], stop: threading.Event) -> None:
    """Answer on every address until told to stop."""
    threads = [threading.Thread(target=server.serve_forever, daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    stop.wait()
    for server in servers:
        server.shutdown()
        server.server_close()


def main(argv: list[str]) -> int:
    """Serve one image until SIGTERM."""
    parser = argparse.ArgumentParser(prog="registry", description=__doc__)
    parser.add_argument("--image", required=True, help="NAME@DIGEST as the registry that has it calls it")
    parser.add_argument("--listen", action="append", required=True, metavar="ADDRESS:PORT")
    parser.add_argument("--client", action="append", default=[], metavar="ADDRESS", help="a peer that may ask")
    parser.add_argument("--store", default="", help="directory that keeps what is fetched")
    parser.add_argument("--docker-config", default="", help="config.json with the login for the registry")
    parser.add_argument("--peer-registry", action="append", default=[], metavar="ADDRESS:PORT")
    parser.add_argument("--layout", default="", help="directory of a bundle's image")
    parser.add_argument("--stall-seconds", type=float, default=PATIENCE_SECONDS)
    arguments = parser.parse_args(argv)
    try:
        reference = oci.parse(arguments.image)
        image = Image(reference.repository, reference.digest, source(arguments, reference))
        places = [(host, int(port)) for host, _, port in (text.rpartition(":") for text in arguments.listen)]
        servers = [Server(place, arguments.client, image) for place in places]
    except (oci.OciError, OSError, ValueError) as error:
        print(f"registry: {error}", file=sys.stderr)
        return 1
    stop = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    log(f"serving {arguments.image} on {', '.join(arguments.listen)}")
    tell_systemd("READY=1")
    serve(servers, stop)
    return 0


def tell_systemd(text: str) -> None:
    """What a unit of Type=notify waits for (sd_notify(3)); nothing where no unit waits."""
    place = os.environ.get("NOTIFY_SOCKET", "")
    if place:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(text.encode(), "\0" + place[1:] if place.startswith("@") else place)
