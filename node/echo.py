"""One ICMP echo over a rail: whether the peer's address answers there, which a carrier does not tell."""

from __future__ import annotations

import asyncio
import os
import socket
import struct

ECHO_REQUEST = 8
ECHO_REPLY = 0
_HEADER = struct.Struct("!BBHHH")
"""Type, code, checksum, identifier, sequence."""
_IP_HEADER_BYTES = 20
_ANSWER_BYTES = 512


async def reaches(address: str, netdev: str = "", timeout: float = 1.0) -> bool | None:
    """Whether an IPv4 address answers one echo within `timeout` seconds, by `netdev` alone when it is named. None: it
    cannot be asked here, for want of a right, of the netdev, or of a socket. No answer is no proof that the rail is
    cut: the peer may be down, or drop what is not TCP."""
    try:
        probe = _socket()
    except OSError:
        return None
    with probe:
        try:
            if netdev:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, netdev.encode() + b"\0")
        except OSError:
            return None
        token = os.urandom(16)
        try:
            probe.connect((address, 0))  # from here the kernel hands over what comes from this address only
            probe.send(_request(token))
        except PermissionError:  # a local firewall
            return None
        except OSError:  # no way there
            return False
        try:
            return await asyncio.wait_for(_answered(probe, token), timeout)
        except (asyncio.TimeoutError, OSError):
            return False


def _socket() -> socket.socket:
    """Raw, as root may; else the kind that the kernel opens for the groups in net.ipv4.ping_group_range."""
    try:
        probe = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    except PermissionError:
        probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    probe.setblocking(False)
    return probe


async def _answered(probe: socket.socket, token: bytes) -> bool:
    loop = asyncio.get_running_loop()
    while True:
        if _is_answer(await loop.sock_recv(probe, _ANSWER_BYTES), token):
            return True


def _is_answer(packet: bytes, token: bytes) -> bool:
    """A raw socket hands over the IP header too, and every ICMP packet, our own request over loopback included."""
    message = packet
    if packet and packet[0] >> 4 == 4 and len(packet) >= _IP_HEADER_BYTES:
        message = packet[(packet[0] & 0x0F) * 4 :]
    return len(message) >= _HEADER.size and message[0] == ECHO_REPLY and message[_HEADER.size :] == token


def _request(token: bytes) -> bytes:
    identifier, sequence = os.getpid() & 0xFFFF, 1
    bare = _HEADER.pack(ECHO_REQUEST, 0, 0, identifier, sequence) + token
    return _HEADER.pack(ECHO_REQUEST, 0, _checksum(bare), identifier, sequence) + token


def _checksum(data: bytes) -> int:
    """RFC 1071, over an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF
