"""One echo over a netdev of this machine, and what is no answer."""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import time

import pytest

from node import echo

TOKEN = bytes(range(16))
REPLY = struct.pack("!BBHHH", 0, 0, 0, 7, 1) + TOKEN
IP = bytes([0x45]) + bytes(19)


def may_ask() -> bool:
    try:
        with echo._socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
    except OSError:
        return False
    return True


asks = pytest.mark.skipif(not may_ask(), reason="this user may not send an echo")


@asks
@pytest.mark.parametrize("netdev", ["lo", ""])
def test_this_machine_answers(netdev: str):
    assert asyncio.run(echo.reaches("127.0.0.1", netdev)) is True


@asks
def test_each_of_many_at_once_gets_its_own_answer():
    async def many() -> list[bool | None]:
        return list(await asyncio.gather(*(echo.reaches("127.0.0.1", "lo") for _ in range(20))))

    assert asyncio.run(many()) == [True] * 20


class Silent(socket.socket):
    """Takes a request and hands over what the test put in its way, if anything."""

    failure: OSError | None = None

    @classmethod
    def beside(cls, *packets: bytes) -> Silent:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for packet in packets:
            theirs.send(packet)
        silent = cls(fileno=ours.detach())
        silent.setblocking(False)
        silent.peer = theirs  # type: ignore[attr-defined]
        return silent

    def connect(self, address: object) -> None:
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        self.peer.close()  # type: ignore[attr-defined]
        super().close()


def test_no_answer_is_told_in_time(monkeypatch: pytest.MonkeyPatch):
    silent = Silent.beside(REPLY[:-1] + b"x", IP, b"")
    monkeypatch.setattr(echo, "_socket", lambda: silent)
    begun = time.monotonic()
    assert asyncio.run(echo.reaches("127.0.0.1", timeout=0.05)) is False
    assert time.monotonic() - begun < 1.0
    assert silent.fileno() == -1


@pytest.mark.parametrize(
    ("failure", "answer"),
    [
        (OSError(errno.ENETUNREACH, "Network is unreachable"), False),
        (OSError(errno.EHOSTUNREACH, "No route to host"), False),
        (PermissionError(errno.EPERM, "Operation not permitted"), None),
    ],
    ids=["no network", "no route", "a local firewall"],
)
def test_no_way_is_no_answer_and_no_right_is_unknown(
    monkeypatch: pytest.MonkeyPatch, failure: OSError, answer: bool | None
):
    silent = Silent.beside()
    silent.failure = failure
    monkeypatch.setattr(echo, "_socket", lambda: silent)
    assert asyncio.run(echo.reaches("127.0.0.1")) is answer


@asks
def test_a_netdev_that_is_not_there_cannot_be_asked():
    assert asyncio.run(echo.reaches("127.0.0.1", "nosuchdev0")) is None


@asks
def test_no_socket_is_left(monkeypatch: pytest.MonkeyPatch):
    opened: list[socket.socket] = []
    real = echo._socket

    def kept() -> socket.socket:
        opened.append(real())
        return opened[-1]

    monkeypatch.setattr(echo, "_socket", kept)
    for address, netdev in (("127.0.0.1", "lo"), ("127.0.0.1", ""), ("127.0.0.1", "nosuchdev0")):
        asyncio.run(echo.reaches(address, netdev, timeout=0.05))
    assert [probe.fileno() for probe in opened] == [-1, -1, -1]


def test_whoever_may_not_ask_is_not_told_no(monkeypatch: pytest.MonkeyPatch):
    def refused() -> socket.socket:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(echo, "_socket", refused)
    assert asyncio.run(echo.reaches("127.0.0.1")) is None


@pytest.mark.parametrize(
    ("packet", "is_it"),
    [
        (IP + REPLY, True),
        (REPLY, True),
        (bytes([0x46]) + bytes(23) + REPLY, True),
        (IP + echo._request(TOKEN), False),
        (IP + REPLY[:-1] + b"x", False),
        (IP + struct.pack("!BBHHH", 3, 1, 0, 0, 0) + TOKEN, False),
        (IP, False),
        (b"", False),
        (b"\x4f", False),
    ],
    ids=["raw", "datagram", "with options", "our request", "another's", "unreachable", "empty", "nothing", "cut short"],
)
def test_what_is_an_answer(packet: bytes, is_it: bool):
    assert echo._is_answer(packet, TOKEN) is is_it


def test_the_checksum_of_a_request_is_right():
    words = struct.unpack("!12H", echo._request(TOKEN))
    total = sum(words)
    assert (total & 0xFFFF) + (total >> 16) == 0xFFFF
