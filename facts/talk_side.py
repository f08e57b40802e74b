"""The node's side of the talk: raw frames on each port, and packets over the rails. Sent to the node and run there as
root, on all nodes at the same time; it changes nothing. Standard library only, any Python 3.8.

A frame says which node and netdev sent it, what that netdev hears, and at which TCP port its rail listens. It goes out
ten times a second as a broadcast, so that neither addresses nor a firewall matter.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import struct
import sys
import time
from typing import Any

ETHERTYPE = 0x88B5
"""IEEE 802: for local experiments."""
BROADCAST = b"\xff" * 6
MAGIC = b"sparkpair-talk"
LARGEST = 1200
"""Bytes of a frame's text: it must pass with any MTU."""
SEND_SECONDS = 0.1
QUIET_SECONDS = 0.45
"""So long nothing new must have been heard before the end, and each sends what it knows meanwhile."""
ALONE_SECONDS = 2.0
"""So long a netdev that hears nobody is waited for, though others hear all nodes: it may lead elsewhere, or be late."""
TCP_SECONDS = 2.0
PING_SECONDS = 2.0
PINGS = 4
"""At most; one that is answered is enough."""
HEADERS = 28
"""IPv4 and ICMP: what of the MTU is not payload."""
IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2
"""linux/in.h: never fragment."""


class Ear:
    """A raw socket on one netdev."""

    def __init__(self, netdev: str) -> None:
        self.netdev = netdev
        self.heard: dict[tuple[str, str], bool] = {}
        """The ends whose frames arrived here, and whether they say that ours arrive there."""
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE))
        self.socket.setblocking(False)
        self.socket.bind((netdev, ETHERTYPE))
        self.mac = self.socket.getsockname()[4]

    def send(self, document: dict[str, Any]) -> None:
        """One frame; a netdev that is down, or whose queue is full, may be better in a moment."""
        text = json.dumps(document, separators=(",", ":")).encode()
        if len(text) > LARGEST:
            document = dict(document, heard=[])
            text = json.dumps(document, separators=(",", ":")).encode()
        payload = MAGIC + struct.pack("!H", len(text)) + text
        try:
            self.socket.send(BROADCAST + self.mac + struct.pack("!H", ETHERTYPE) + payload.ljust(46, b"\0"))
        except OSError:
            pass

    def read(self) -> list[dict[str, Any]]:
        """The frames that have arrived."""
        found = []
        for _ in range(256):
            try:
                frame = self.socket.recv(4096)[14:]
            except OSError:
                break
            if frame.startswith(MAGIC) and len(frame) >= len(MAGIC) + 2:
                start = len(MAGIC) + 2
                length = struct.unpack("!H", frame[len(MAGIC) : start])[0]
                try:
                    document = json.loads(frame[start : start + length])
                except ValueError:
                    continue
                if isinstance(document, dict):
                    found.append(document)
        return found


class Ping:
    """Echo requests of one rail's whole MTU, unfragmented; ping itself is not on every node."""

    def __init__(self, netdev: str, peer: str, size: int) -> None:
        self.peer = peer
        self.said: str | None = None
        self.since = time.monotonic()
        self.sent = 0
        # By these an answer is known to be to this one: raw sockets hear everybody's.
        self.mark = os.urandom(16)
        header = struct.pack("!BBHHH", 8, 0, 0, os.getpid() & 0xFFFF, 1)
        data = self.mark.ljust(max(size - HEADERS, 16), b"\0")
        self.packet = header[:2] + struct.pack("!H", _checksum(header + data)) + header[4:] + data
        try:
            self.socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
            self.socket.setblocking(False)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, netdev.encode() + b"\0")
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
            self.socket.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        except OSError as error:
            self.said = error.strerror or str(error)

    def look(self) -> None:
        """Send what is due, and take what has come."""
        if self.said is not None:
            return
        waited = time.monotonic() - self.since
        try:
            if waited >= PING_SECONDS * self.sent / PINGS and self.sent < PINGS:
                self.sent += 1
                self.socket.sendto(self.packet, (self.peer, 0))
            while self.said is None:
                packet = self.socket.recv(1 << 16)
                start = (packet[0] & 15) * 4
                if packet[start : start + 1] == b"\0" and packet[start + 8 : start + 24] == self.mark:
                    self.said = ""
        except BlockingIOError:
            if waited > PING_SECONDS:
                self.said = f"no answer within {PING_SECONDS:g} s"
        except OSError as error:
            self.said = error.strerror or str(error)


def _checksum(data: bytes) -> int:
    """Of IP and ICMP (RFC 1071)."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data[: len(data) // 2 * 2]))
    total += data[-1] << 8 if len(data) % 2 else 0
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Path:
    """One rail towards one peer: pings from the start, and a connection once the peer says where to."""

    def __init__(self, stated: dict[str, Any]) -> None:
        self.netdev, self.own = str(stated["netdev"]), str(stated["own"])
        self.node, self.peer = str(stated["node"]), str(stated["peer"])
        self.ping = Ping(self.netdev, self.peer, int(stated["mtu"]))
        self.tcp: str | None = None
        self.socket: socket.socket | None = None
        self.since = 0.0

    def done(self) -> bool:
        """Whether both have an answer."""
        return self.ping.said is not None and self.tcp is not None

    def look(self) -> None:
        """Take what has come since."""
        self.ping.look()
        if self.socket is not None and self.tcp is None:
            code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self._end(os.strerror(code))
            elif _is_connected(self.socket):
                self._end("")
            elif time.monotonic() - self.since > TCP_SECONDS:
                self._end(f"no answer within {TCP_SECONDS:g} s")

    def connect(self, port: int) -> None:
        """Start the connection; later frames say the same port again."""
        if self.socket is not None or self.tcp is not None:
            return
        self.socket, self.since = socket.socket(), time.monotonic()
        self.socket.setblocking(False)
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self.netdev.encode() + b"\0")
            self.socket.bind((self.own, 0))
            self.socket.connect((self.peer, port))
        except BlockingIOError:
            pass
        except OSError as error:
            self._end(error.strerror or str(error))

    def is_under_way(self, now: float) -> bool:
        """Whether a connection has not had its time yet: a peer that came late is no firewall."""
        return self.socket is not None and self.tcp is None and now - self.since < TCP_SECONDS

    def give_up(self) -> None:
        """The time is over."""
        self.look()
        if self.ping.said is None:
            self.ping.said = "no answer"
        if self.tcp is None:
            waited = f"no answer within {time.monotonic() - self.since:.1f} s"
            self._end(waited if self.socket is not None else f"{self.node} was not heard, so its port is not known")

    def _end(self, said: str) -> None:
        self.tcp = said
        if self.socket is not None:
            self.socket.close()


def _is_connected(one: socket.socket) -> bool:
    try:
        one.getpeername()
    except OSError:
        return False
    return True


class Talk:
    """All that one node says and hears."""

    def __init__(self, question: dict[str, Any]) -> None:
        self.name, self.nonce = str(question["name"]), str(question["nonce"])
        self.others = {str(name) for name in question["nodes"]} - {self.name}
        self.seconds = float(question["seconds"])
        self.finished: set[str] = set()
        """Nodes that say that their own paths are tried."""
        self.troubles: list[str] = []
        """Of netdevs that could not be listened at; while others can, such a one just hears nobody."""
        self.selector = selectors.DefaultSelector()
        self.ears: list[Ear] = []
        for netdev in question["netdevs"]:
            try:
                self.ears.append(Ear(str(netdev)))
                self.selector.register(self.ears[-1].socket, selectors.EVENT_READ, self.ears[-1])
            except OSError as error:
                self.troubles.append(f"{netdev}: {error.strerror}")
        self.listeners: dict[str, socket.socket] = {}
        self.paths = [Path(stated) for stated in question["paths"]]
        for path in self.paths:
            if path.netdev not in self.listeners:
                self._listen(path.netdev, path.own)

    def _listen(self, netdev: str, address: str) -> None:
        """Any port: those of NCCL are as random."""
        one = socket.socket()
        try:
            one.bind((address, 0))
            one.listen(16)
            one.setblocking(False)
        except OSError:
            one.close()  # the address is not there: the peers' pings say so as well
            return
        self.listeners[netdev] = one
        self.selector.register(one, selectors.EVENT_READ, one)

    def run(self) -> dict[str, Any]:
        """Until everybody has heard what there is to hear, or the time is over."""
        start = changed = time.monotonic()
        next_frame = 0.0
        while True:
            now = time.monotonic()
            patient = all(ear.heard for ear in self.ears) or now - start > ALONE_SECONDS
            over = now - start > self.seconds and not any(path.is_under_way(now) for path in self.paths)
            if over or (patient and self._is_satisfied() and now - changed > QUIET_SECONDS):
                break
            if now >= next_frame:
                next_frame = now + SEND_SECONDS
                for ear in self.ears:
                    ear.send(self._frame(ear))
            for key, _ in self.selector.select(0.02):
                if isinstance(key.data, Ear):
                    for frame in key.data.read():
                        if self._take(key.data, frame):
                            changed = time.monotonic()
                elif isinstance(key.data, socket.socket):
                    try:
                        key.data.accept()[0].close()
                    except OSError:
                        pass
            before = [path.done() for path in self.paths]
            for path in self.paths:
                path.look()
            if before != [path.done() for path in self.paths]:
                changed = time.monotonic()
        for path in self.paths:
            path.give_up()
        return {
            "heard": [[ear.netdev, node, netdev] for ear in self.ears for node, netdev in sorted(ear.heard)],
            "paths": [[path.netdev, path.peer, path.ping.said, path.tcp] for path in self.paths],
            "trouble": "" if self.ears else "; ".join(self.troubles),
        }

    def _is_satisfied(self) -> bool:
        """Everybody is heard, hears what is heard of him, and has tried his paths, as we have."""
        ends = {end: both for ear in self.ears for end, both in ear.heard.items()}
        both_ways = all(both for ear in self.ears for both in ear.heard.values())
        heard = {node for node, _ in ends}
        tried = all(path.done() for path in self.paths)
        return self.others <= heard and both_ways and tried and self.others <= self.finished

    def _frame(self, ear: Ear) -> dict[str, Any]:
        listener = self.listeners.get(ear.netdev)
        return {
            "nonce": self.nonce,
            "node": self.name,
            "netdev": ear.netdev,
            "heard": sorted(ear.heard),
            "port": listener.getsockname()[1] if listener else None,
            "tried": all(path.done() for path in self.paths),
        }

    def _take(self, ear: Ear, frame: dict[str, Any]) -> bool:
        """Whether a frame says anything new. What is not of this talk and of a peer is no frame of ours."""
        node, netdev = frame.get("node"), frame.get("netdev")
        if frame.get("nonce") != self.nonce or node not in self.others or not isinstance(netdev, str):
            return False
        before = (ear.heard.get((node, netdev)), node in self.finished)
        heard = frame.get("heard")
        both = isinstance(heard, list) and [self.name, ear.netdev] in heard
        ear.heard[(node, netdev)] = both or bool(ear.heard.get((node, netdev)))
        if frame.get("tried") is True:
            self.finished.add(node)
        port = frame.get("port")
        if isinstance(port, int):
            for path in self.paths:
                if path.netdev == ear.netdev and path.node == node and 0 < port < 65536:
                    path.connect(port)
        return before != (ear.heard[(node, netdev)], node in self.finished)


def main() -> None:
    """Answer the question of the last argument, on one line."""
    try:
        answer = Talk(json.loads(sys.argv[-1])).run()
    except Exception as error:  # whoever asked must hear why this node is silent
        answer = {"heard": [], "paths": [], "trouble": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
