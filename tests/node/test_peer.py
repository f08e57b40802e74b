"""Copies between nodes: the real server and the real copier, over this computer's loopback."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import http.client
import json
import mmap
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node import board, connection, copier, errand, pages, peer, wire
from node.connection import Connection, WayError
from node.copier import Copier
from node.verified import Verified

NAME = "weights"
RAIL_0, RAIL_1 = "127.0.0.2", "127.0.0.3"
PATIENT_SECONDS = 60.0
BLOCK = bytes(range(256)) * 16


def bytes_of(number: int, size: int) -> bytes:
    """Bytes that no other file has."""
    return (hashlib.sha256(b"%d" % number).digest() + BLOCK) * (size // len(BLOCK) + 1)


class Source:
    """A node that has files and serves them on two addresses."""

    def __init__(self, place: Path, peers: tuple[str, ...] = ("127.0.0.1",)) -> None:
        self.directory = place / "source"
        self.state = place / "source-state"
        self.directory.mkdir(parents=True)
        self.state.mkdir()
        with socket.create_server((RAIL_0, 0)) as free:
            self.port = int(free.getsockname()[1])
        self.servers = [
            peer.Server(address, self.port, peers, {NAME: str(self.directory)}, self.state)
            for address in (RAIL_0, RAIL_1)
        ]
        self.threads = [
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}) for server in self.servers
        ]
        for thread in self.threads:
            thread.start()

    def add(self, path: str, data: bytes) -> errand.FileRow:
        """A file that is here and verified."""
        place = self.directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        row = (path, len(data), hashlib.sha256(data).hexdigest())
        Verified(str(self.directory), self.state).record(path, row[2])
        return row

    def close(self) -> None:
        for server in self.servers:
            server.shutdown()
            server.server_close()
        for thread in self.threads:
            thread.join()


class Target:
    """A node that lacks them."""

    def __init__(self, place: Path, source: Source, rows: list[errand.FileRow], spare: tuple[bool, bool]) -> None:
        self.directory = place / "deep/target"
        self.state = place / "target-state"
        self.state.mkdir(parents=True, exist_ok=True)
        self.net = place / "net"
        self.said: list[str] = []
        for netdev in ("rail0", "rail1"):
            self.carrier(netdev, True)
        ways = (errand.Way(RAIL_0, "rail0", spare[0]), errand.Way(RAIL_1, "rail1", spare[1]))
        wanted = errand.Set(NAME, str(self.directory), wire.manifest_identity(rows), tuple(sorted(rows)))
        told = errand.Errand("nobody", 0, PATIENT_SECONDS, None, (errand.Peer("lab-head", ways),), (wanted,))
        self.board = board.board(told, (os.getuid(), os.getgid()), self.state)
        self.copier = Copier(told.peers, pages.Rate(0), PATIENT_SECONDS, self.said.append, self.net, source.port)

    def carrier(self, netdev: str, up: bool) -> None:
        (self.net / netdev).mkdir(parents=True, exist_ok=True)
        (self.net / netdev / "carrier").write_text("1\n" if up else "0\n")

    def bring(self) -> None:
        """All of it, in this thread."""
        self.copier.bring(self.board)

    @contextlib.contextmanager
    def bringing(self) -> Iterator[threading.Thread]:
        """All of it, meanwhile."""
        thread = threading.Thread(target=self.bring)
        thread.start()
        try:
            yield thread
            thread.join(PATIENT_SECONDS)
            assert not thread.is_alive()
        finally:
            self.board.over.set()
            thread.join()

    def content(self) -> dict[str, bytes]:
        """Every file below the directory."""
        found = [path for path in self.directory.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.directory)): path.read_bytes() for path in found}


def part(target: Target, row: errand.FileRow) -> Path:
    return target.directory / ".sparkpair" / f"{row[2][:16]}.part"


def until(what: Callable[[], object]) -> None:
    """Wait for a condition."""
    end = time.monotonic() + PATIENT_SECONDS
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks again sooner than a person would mind."""
    monkeypatch.setattr(copier, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(copier, "INDEX_SECONDS", 0.02)
    monkeypatch.setattr(connection, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(copier, "LONGEST_BACK_OFF_SECONDS", 0.02)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    made = Source(tmp_path)
    yield made
    made.close()


def of(source: Source, tmp_path: Path, rows: list[errand.FileRow], spare: tuple[bool, bool] = (True, True)) -> Target:
    return Target(tmp_path, source, rows, spare)


def watched(monkeypatch: pytest.MonkeyPatch, on_get: Callable[[Connection, str, int], None]) -> None:
    """Tell of every request before it is made."""
    real = Connection.get

    def get(self: Connection, target: str, offset: int = 0) -> object:
        on_get(self, target, offset)
        return real(self, target, offset)

    monkeypatch.setattr(Connection, "get", get)


# Whole copies


def test_a_copy_is_whole_proven_and_recorded(source: Source, tmp_path: Path) -> None:
    wanted = {
        "config.json": b"{}",
        "empty": b"",
        "model one.safetensors": bytes_of(1, 9 * 2**20 + 5),
        "sub/ä%#?.json": bytes_of(2, 5000),
    }
    rows = [source.add(path, data) for path, data in wanted.items()]
    source.add("not-wanted.txt", b"x")
    target = of(source, tmp_path, rows)
    target.bring()
    assert target.content() == wanted
    assert Verified(str(target.directory), target.state).held() == sorted(rows)
    assert [path.stat().st_mode & 0o777 for path in sorted(target.directory.rglob("*.json"))] == [0o644, 0o644]
    assert (target.said, target.copier.trouble) == ([], "")


def test_both_rails_carry_it(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [source.add(f"{number}.safetensors", bytes_of(number, 100_000)) for number in range(8)]
    target = of(source, tmp_path, rows)
    used: set[str] = set()
    meet = threading.Barrier(2)

    def on_get(way: Connection, wanted: str, offset: int) -> None:
        if way.place not in used and wanted.count("/") > 2:
            used.add(way.place)
            meet.wait(PATIENT_SECONDS)

    watched(monkeypatch, on_get)
    target.bring()
    assert used == {f"{RAIL_0} port {source.port}", f"{RAIL_1} port {source.port}"}
    assert len(target.content()) == 8


def test_files_of_one_content_share_a_part(source: Source, tmp_path: Path) -> None:
    rows = [source.add(f"{number}.json", b"same") for number in range(5)]
    target = of(source, tmp_path, rows)
    target.bring()
    assert target.content() == {f"{number}.json": b"same" for number in range(5)}


# What was begun


@pytest.mark.parametrize("held", [1, 4096, 100_000, 300_000])
def test_a_part_is_gone_on_with(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    data = bytes_of(1, 300_000)[:300_000]
    row = source.add("a.safetensors", data)
    part(of(source, tmp_path, [row]), row).parent.mkdir(parents=True)
    part(of(source, tmp_path, [row]), row).write_bytes(data[:held])
    target = of(source, tmp_path, [row])
    asked: list[int] = []
    watched(monkeypatch, lambda way, wanted, offset: asked.append(offset) if "/a." in wanted else None)
    target.bring()
    assert target.content() == {"a.safetensors": data}
    assert asked == ([held] if held < len(data) else [])


@pytest.mark.parametrize("left", [b"?" * 5000, b"?" * 300_000, b"?" * 400_000])
def test_a_part_that_is_wrong_is_begun_again(source: Source, tmp_path: Path, left: bytes) -> None:
    data = bytes_of(1, 300_000)[:300_000]
    row = source.add("a.safetensors", data)
    place = part(of(source, tmp_path, [row]), row)
    place.parent.mkdir(parents=True)
    place.write_bytes(left)
    target = of(source, tmp_path, [row])
    target.bring()
    assert target.content() == {"a.safetensors": data}


# What goes wrong


def test_a_rail_that_is_cut_midway_leaves_its_part_to_the_other(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes_of(1, 5 * 2**20)
    row = source.add("a.safetensors", data)
    target = of(source, tmp_path, [row])
    target.carrier("rail1", False)
    asked: list[tuple[str, bool]] = []

    def on_get(way: Connection, wanted: str, offset: int) -> None:
        if "/a." in wanted:
            asked.append((way.place.split()[0], offset > 0))

    monkeypatch.setattr(copier, "CONNECTIONS_PER_WAY", 1)
    cuts: list[str] = []
    real = copier._Crew._check_over

    def cut(self: copier._Crew) -> None:
        real(self)
        if target.board.moved > 4 * 2**20 and not cuts:
            cuts.append("rail0")
            target.carrier("rail0", False)
            target.carrier("rail1", True)
            raise WayError("rail0 has no carrier")

    watched(monkeypatch, on_get)
    monkeypatch.setattr(copier._Crew, "_check_over", cut)
    target.bring()
    assert target.content() == {"a.safetensors": data}
    assert asked == [(RAIL_0, False), (RAIL_1, True)]
    assert target.said == ["over rail0: rail0 has no carrier"]
    assert target.copier.trouble == "rail0 has no carrier"


def test_a_read_that_brings_nothing_sees_that_the_carrier_went(tmp_path: Path) -> None:
    with socket.create_server((RAIL_0, 0)) as silent:

        def check() -> None:
            raise WayError("rail0 has no carrier")

        way = Connection(RAIL_0, silent.getsockname()[1], check, PATIENT_SECONDS)
        with contextlib.closing(way), pytest.raises(WayError, match=r"^rail0 has no carrier$"):
            way.get("/v1/weights")


def test_a_stall_is_bounded_and_said() -> None:
    with socket.create_server((RAIL_0, 0)) as silent:
        port = silent.getsockname()[1]
        way = Connection(RAIL_0, port, lambda: None, 0.1)
        with contextlib.closing(way), pytest.raises(WayError) as end:
            way.get("/v1/weights")
    assert str(end.value) == f"{RAIL_0} port {port}: no byte for 0.1 s"


def test_the_way_that_serving_uses_waits_while_a_spare_one_is_in_order(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [source.add(f"{number}.safetensors", bytes_of(number, 10_000)) for number in range(4)]
    used: list[str] = []
    watched(monkeypatch, lambda way, wanted, offset: used.append(way.place.split()[0]))
    of(source, tmp_path / "one", rows, spare=(False, True)).bring()
    assert set(used) == {RAIL_1}
    used.clear()
    target = of(source, tmp_path / "two", rows, spare=(False, True))
    target.carrier("rail1", False)
    target.bring()
    assert set(used) == {RAIL_0}


def test_the_way_that_serving_uses_helps_when_the_spare_one_has_carrier_and_brings_nothing(
    source: Source, tmp_path: Path
) -> None:
    row = source.add("a.safetensors", bytes_of(1, 10_000))
    source.servers[1].shutdown()
    source.servers[1].server_close()
    target = of(source, tmp_path, [row], spare=(False, True))
    target.bring()
    assert list(target.content()) == ["a.safetensors"]
    assert target.said == [f"over rail1: {RAIL_1} port {source.port}: Connection refused"]


def test_other_bytes_are_thrown_away_and_said_and_refused_the_second_time(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "AVOID_SECONDS", 0.0)
    row = source.add("a.safetensors", b"right" * 1000)
    place = source.directory / "a.safetensors"
    before = place.stat()
    place.write_bytes(b"wrong" * 1000)
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    target = of(source, tmp_path, [row])
    target.bring()
    wrong = hashlib.sha256(b"wrong" * 1000).hexdigest()
    line = f"{target.directory}/a.safetensors: lab-head brought sha256 {wrong[:12]}, wanted {row[2][:12]}; thrown away"
    assert target.said == [line, line]
    assert [path for _, path in target.board.refused()] == ["a.safetensors"]
    assert target.content() == {}


def test_what_the_peer_has_not_yet_is_waited_for(source: Source, tmp_path: Path) -> None:
    first, second = bytes_of(1, 5000), bytes_of(2, 5000)
    row = source.add("a.safetensors", first)
    other = ("b.safetensors", len(second), hashlib.sha256(second).hexdigest())
    target = of(source, tmp_path, [row, other])
    with target.bringing():
        until(lambda: target.content() == {"a.safetensors": first})
        source.add("b.safetensors", second)
    assert target.content() == {"a.safetensors": first, "b.safetensors": second}


def test_a_file_of_another_version_is_not_taken(source: Source, tmp_path: Path) -> None:
    source.add("a.safetensors", b"newer")
    target = of(source, tmp_path, [("a.safetensors", 5, hashlib.sha256(b"older").hexdigest())])
    with target.bringing() as thread:
        until(lambda: target.copier._sources[0].offered == {NAME: set()})
        assert thread.is_alive()
        target.board.over.set()
    assert target.content() == {}


def test_a_full_disk_is_passed_on(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = source.add("a.safetensors", bytes_of(1, 10_000))
    target = of(source, tmp_path, [row])

    def full(self: pages.Sink, count: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pages.Sink, "_put", full)
    with pytest.raises(OSError, match="No space left on device") as end:
        target.bring()
    assert end.value.errno == errno.ENOSPC
    assert target.board.lacking()


def test_it_ends_with_the_board_though_no_rail_has_carrier(source: Source, tmp_path: Path) -> None:
    target = of(source, tmp_path, [("a.safetensors", 5, "0" * 64)])
    target.carrier("rail0", False)
    target.carrier("rail1", False)
    with target.bringing() as thread:
        assert thread.is_alive()
        target.board.over.set()
    assert target.copier.trouble == "rail0 has no carrier; rail1 has no carrier"


# The server


def answer(source: Source, target: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    client = http.client.HTTPConnection(RAIL_0, source.port, timeout=PATIENT_SECONDS)
    try:
        client.request("GET", target, headers=headers)
        got = client.getresponse()
        return got.status, {key: value for key, value in got.getheaders() if key not in ("Date", "Server")}, got.read()
    finally:
        client.close()


def test_the_index_is_what_is_here_as_it_was_hashed(source: Source) -> None:
    row = source.add("sub/a.json", b"12345")
    source.add("touched.json", b"x")
    os.utime(source.directory / "touched.json", (1, 1))
    (source.directory / "new.json").write_text("not hashed")
    code, headers, body = answer(source, "/v1/weights")
    assert (code, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(body)["files"] == [list(row)]


@pytest.mark.parametrize(
    ("stated", "code", "body", "more"),
    [
        (None, 200, b"12345", {}),
        ("bytes=0-", 206, b"12345", {"Content-Range": "bytes 0-4/5"}),
        ("bytes=3-", 206, b"45", {"Content-Range": "bytes 3-4/5"}),
        ("bytes=5-", 416, b"", {"Content-Range": "bytes */5"}),
        ("bytes=1-2", 416, b"", {"Content-Range": "bytes */5"}),
    ],
)
def test_a_file_from_a_byte_on(
    source: Source, stated: str | None, code: int, body: bytes, more: dict[str, str]
) -> None:
    row = source.add("a.json", b"12345")
    digest = {} if code == 416 else {"X-Sha256": row[2]}
    wanted = {"Content-Length": str(len(body)), **digest, **more}
    assert answer(source, "/v1/weights/a.json", **({"Range": stated} if stated else {})) == (code, wanted, body)


@pytest.mark.parametrize(
    "target",
    ["/", "/v1/", "/v1/drafter", "/v2/weights", "/v1/weights/b.json", "/v1/weights/../source/a.json",
     "/v1/weights/%2e%2e/source/a.json", "/v1/weights//etc/passwd"],
)  # fmt: skip
def test_nothing_else_is_served(source: Source, target: str) -> None:
    source.add("a.json", b"12345")
    (source.directory / "b.json").write_text("not hashed")
    assert answer(source, target)[0] == 404


def test_others_than_peers_get_no_answer(tmp_path: Path) -> None:
    source = Source(tmp_path, peers=("127.0.0.9",))
    try:
        source.add("a.json", b"12345")
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            answer(source, "/v1/weights")
    finally:
        source.close()


# The page cache


def resident_pages(path: Path) -> int:
    """Pages of a file that are in the page cache."""
    size = path.stat().st_size
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        count = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE
        states = (ctypes.c_ubyte * count)()
        begin = ctypes.c_char.from_buffer(mapped)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(begin)), ctypes.c_size_t(size), states)
        del begin
        assert failed == 0
    return sum(state & 1 for state in states)


def test_neither_end_leaves_anything_in_the_page_cache(source: Source, tmp_path: Path) -> None:
    row = source.add("a.safetensors", bytes_of(1, 6 * 2**20)[: 6 * 2**20 + 100])
    assert resident_pages(source.directory / "a.safetensors") > 1000
    pages.drop(str(source.directory / "a.safetensors"))
    target = of(source, tmp_path, [row])
    target.bring()
    assert [resident_pages(each / "a.safetensors") for each in (source.directory, target.directory)] == [0, 0]


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 65536, 65537, 150_000])
def test_a_sink_goes_on_at_any_byte_and_what_it_wrote_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(pages, "BUFFER_BYTES", 65536)
    data, place = bytes_of(1, size)[:size], tmp_path / "file"
    for cut in sorted({0, min(1, size), size // 2, size}):
        with pages.Sink(str(place)) as sink:
            sink.write(data[:cut] + b"what a later byte on replaces")
        with pages.Sink(str(place), cut) as sink:
            sink.write(data[cut:])
            assert sink.offset == size
        assert place.read_bytes() == data
        counted: list[int] = []
        assert pages.sha256(str(place), counted.append) == hashlib.sha256(data).hexdigest()
        assert sum(counted) == size
        assert pages.sha256(str(place), size=cut) == hashlib.sha256(data[:cut]).hexdigest()


def test_a_sink_refuses_a_file_that_is_too_short_and_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"123")
    with pytest.raises(OSError, match="ends before 4"):
        pages.Sink(str(tmp_path / "file"), 4)
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(OSError, match="symbolic links"):
        pages.Sink(str(tmp_path / "link"))
    assert (tmp_path / "file").read_bytes() == b"123"


def test_a_rate_is_shared() -> None:
    rate = pages.Rate(1_000_000)
    began = time.monotonic()
    threads = [threading.Thread(target=lambda: [rate.take(10_000) for _ in range(5)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began >= 0.09
    stop = threading.Event()
    stop.set()
    rate.take(10**9)
    began = time.monotonic()
    rate.take(1, stop)
    assert time.monotonic() - began < PATIENT_SECONDS
