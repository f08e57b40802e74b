"""A registry on the loopback address that answers what it was given, by path."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from node import oci


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Registry(ThreadingHTTPServer):
    """Manifests by tag and digest with their media type, blobs by digest; `down` is the status of every answer."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.manifests: dict[str, tuple[str, bytes]] = {}
        self.blobs: dict[str, bytes] = {}
        self.down = 0

    @property
    def name(self) -> str:
        """The repository as Docker names it."""
        return f"127.0.0.1:{self.server_port}/engine"

    def add(self, media_type: str, data: Any, tag: str = "") -> str:
        """Keep a manifest or an index; tells its digest."""
        body = data if isinstance(data, bytes) else json.dumps({"mediaType": media_type, **data}).encode()
        self.manifests[digest_of(body)] = (media_type, body)
        if tag:
            self.manifests[tag] = (media_type, body)
        return digest_of(body)

    def image(self, layers: list[int], architecture: str = "arm64", media_type: str = oci.MANIFEST, **more: str) -> str:
        """An image with layers of these sizes; tells the digest of its manifest."""
        config = json.dumps({"os": "linux", "architecture": architecture, **more}).encode()
        self.blobs[digest_of(config)] = config
        rows = [{"digest": digest_of(b"%d" % size), "size": size} for size in layers]
        return self.add(media_type, {"config": {"digest": digest_of(config), "size": len(config)}, "layers": rows})


class _Answer(BaseHTTPRequestHandler):
    server: Registry

    def do_GET(self) -> None:
        kind, _, name = self.path.removeprefix("/v2/engine/").partition("/")
        found = self.server.manifests.get(name)
        if kind == "blobs" and name in self.server.blobs:
            found = ("application/octet-stream", self.server.blobs[name])
        if self.server.down or found is None:
            self.send_response(self.server.down or 404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Type", found[0])
        self.send_header("Content-Length", str(len(found[1])))
        self.end_headers()
        self.wfile.write(found[1])

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on the screen."""


@contextmanager
def serving() -> Iterator[Registry]:
    """A registry for the time of the block."""
    server = Registry()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
