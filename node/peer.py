"""Serves the verified files of content directories to this node's peers over the rails, while a node stages.

GET /v1/NAME is what is here now, GET /v1/NAME/PATH one file of it, from a byte on when asked for.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn
from urllib.parse import quote, unquote

from node import board, pages, paths
from node.verified import Verified

PREFIX = "/v1/"
DIGEST_HEADER = "X-Sha256"
IDLE_SECONDS = 120.0
"""After so long without a request, or with a peer that takes no byte, a connection is closed; peers open another."""
READ_BYTES = 4 * 1024 * 1024
IP_FREEBIND = 15
"""linux/in.h. A rail whose address is not up yet is served from when it is."""


def index_target(name: str) -> str:
    """What to ask for to know which files of a set are there."""
    return PREFIX + quote(name, safe="")


def file_target(name: str, path: str) -> str:
    """What to ask for to get one file."""
    return f"{index_target(name)}/{quote(path)}"


class Server(ThreadingMixIn, HTTPServer):
    """Answers on one address, for peers only; every connection has its own thread."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: str, port: int, peers: Sequence[str], sets: Mapping[str, str], state: Path) -> None:
        self.peers = frozenset(peers)
        self.sets = sets
        self.state = state
        super().__init__((address, port), Handler)

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
        super().server_bind()

    def verify_request(self, request: object, client_address: tuple[str, int]) -> bool:
        """Only peers get an answer; to others the connection is closed."""
        return client_address[0] in self.peers

    def handle_error(self, request: object, client_address: tuple[str, int]) -> None:
        """A peer that went away is no fault: it asks again where it stopped."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            print(f"{client_address[0]}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


class Handler(BaseHTTPRequestHandler):
    """One connection of a peer."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = IDLE_SECONDS
    server: Server

    def do_GET(self) -> None:
        name, _, path = self.path.removeprefix(PREFIX).partition("/")
        directory = self.server.sets.get(unquote(name)) if self.path.startswith(PREFIX) else None
        if directory is None:
            self._refuse(404, "no such set here")
            return
        here = Verified(directory, self.server.state)
        if not path:
            self._answer_index(here)
        else:
            self._answer_file(here, unquote(path))

    def _answer_index(self, here: Verified) -> None:
        # That parts grow tells a peer which waits for this node's download that it is under way.
        body = json.dumps({"files": here.held(), "gathered": board.gathered(here.directory)}).encode()
        self._begin(200, len(body), {"Content-Type": "application/json"})
        self.wfile.write(body)

    def _answer_file(self, here: Verified, path: str) -> None:
        sha256 = here.sha256(path)
        if sha256 is None:
            self._refuse(404, "not here, or not verified yet")
            return
        descriptor, is_direct = pages.opened(os.path.join(here.directory, path), os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            stated = self.headers.get("Range")
            begin = first_byte(stated)
            if begin is None or (begin >= size and stated is not None):
                self._begin(416, 0, {"Content-Range": f"bytes */{size}"})
                return
            more = {} if stated is None else {"Content-Range": f"bytes {begin}-{size - 1}/{size}"}
            self._begin(200 if stated is None else 206, size - begin, {DIGEST_HEADER: sha256, **more})
            self._send(descriptor, begin, size)
        finally:
            if not is_direct:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    def _begin(self, code: int, size: int, headers: Mapping[str, str]) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(size))
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()

    def _send(self, descriptor: int, begin: int, size: int) -> None:
        """Bytes of a file from `begin` to `size`, past the page cache: what others hold there stays."""
        with memoryview(mmap.mmap(-1, READ_BYTES)) as buffer:
            at = begin
            while at < size:
                # Reads of O_DIRECT begin at whole blocks.
                skipped = at % READ_BYTES
                count = os.preadv(descriptor, [buffer], at - skipped) - skipped
                if count <= 0:
                    # It became shorter: the peer sees a body that ends early.
                    self.close_connection = True
                    return
                count = min(count, size - at)
                self.connection.sendall(buffer[skipped : skipped + count])
                at += count

    def _refuse(self, code: int, text: str) -> None:
        body = f"{text}\n".encode()
        self._begin(code, len(body), {"Content-Type": "text/plain"})
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """The journal is not told of each request."""


def first_byte(stated: str | None) -> int | None:
    """Where a Range header begins; 0 without one, None for one that is not of the one kind that peers send."""
    if stated is None:
        return 0
    found = re.fullmatch(r"bytes=(\d+)-", stated)
    return int(found[1]) if found else None


def serve(
    addresses: Sequence[str], peers: Sequence[str], sets: Mapping[str, str],
    state: Path = paths.WEIGHTS, port: int = paths.WEIGHTS_PORT,
) -> None:  # fmt: skip
    """Serve until told to stop (SIGTERM). Raises OSError when an address cannot be listened on."""
    servers = [Server(address, port, peers, sets, state) for address in addresses]
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.set())
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"serving {', '.join(sets.values())} on {', '.join(addresses)} to {', '.join(peers)}", flush=True)
    stopped.wait()


def main(argv: list[str]) -> int:
    """main.py serve --address A ... --peer P ... NAME=DIRECTORY ...; exit 1 with one line when it cannot."""
    parser = argparse.ArgumentParser(prog="main.py serve", description="serve verified files to the peers")
    parser.add_argument("--address", action="append", required=True, help="of this node, on a rail")
    parser.add_argument("--peer", action="append", required=True, help="an address that is answered")
    parser.add_argument("set", nargs="+", metavar="NAME=DIRECTORY")
    arguments = parser.parse_args(argv)
    sets = dict(stated.split("=", 1) for stated in arguments.set)
    try:
        serve(arguments.address, arguments.peer, sets)
    except OSError as error:
        print(f"{', '.join(arguments.address)} port {paths.WEIGHTS_PORT}: {error}", file=sys.stderr)
        return 1
    return 0
