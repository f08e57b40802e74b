"""Serves the verified files of content directories to this node's peers over the rails, while a node stages.

GET /v1/NAME is what is here now, GET /v1/NAME/PATH one file of it, from a byte on when asked for.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import signal
import socket
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import ThreadingMixIn
from urllib.parse import unquote

from node import board, pages, paths
from node.connection import DIGEST_HEADER, PREFIX
from node.verified import Verified

IDLE_SECONDS = 120
"""After so long without a request, or with a peer that takes no byte, a connection is closed; peers open another."""
PIPE_BYTES = 1024 * 1024
"""The largest pipe that the kernel gives without a special right (fs.pipe-max-size)."""
IP_FREEBIND = 15
"""linux/in.h. A rail whose address is not up yet is served from when it is."""


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
        if not isinstance(error, ConnectionError | TimeoutError | BlockingIOError):
            print(f"{client_address[0]}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


class Handler(BaseHTTPRequestHandler):
    """One connection of a peer."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def setup(self) -> None:
        # The kernel's own timeouts: with Python's, splice would not wait for the socket.
        bound = struct.pack("ll", IDLE_SECONDS, 0)
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bound)
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bound)
        super().setup()

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
        """Bytes of a file from `begin` to `size`: from the disk into the pages of a pipe and on to the socket, past the
        page cache and without being copied by the processor."""
        source, sink = os.pipe()
        try:
            fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            at = begin
            while at < size:
                # Reads of O_DIRECT begin at whole blocks.
                skipped = at % pages.BLOCK_BYTES
                held = os.splice(descriptor, sink, PIPE_BYTES, offset_src=at - skipped)
                if held <= skipped:
                    # It became shorter: the peer sees a body that ends early.
                    self.close_connection = True
                    return
                if skipped:
                    os.read(source, skipped)
                left = min(held - skipped, size - at)
                at += left
                while left:
                    left -= os.splice(source, self.connection.fileno(), left)
        finally:
            os.close(source)
            os.close(sink)

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
    # Before any thread is there, so that none of them takes the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    for server in [Server(address, port, peers, sets, state) for address in addresses]:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"serving {', '.join(sets.values())} on {', '.join(addresses)} to {', '.join(peers)}", flush=True)
    signal.sigwait({signal.SIGTERM})


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
