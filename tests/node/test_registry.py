"""The registry for one image, over a far registry that fails in every way."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from node import blobs, oci, registry
from node.layout import Layout
from node.relay import Relay, Source, Way

BIG = bytes(range(256)) * 20480
"""5 MiB: more than one buffer of what writes it, and no whole number of them after the changes below."""
CONFIG = b'{"architecture":"arm64"}'


def name(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Far:
    """A registry with one image: an index over one manifest with two layers."""

    def __init__(self) -> None:
        self.layers = [BIG + b"tail", b"small layer"]
        self.blobs = {name(data): data for data in (CONFIG, *self.layers)}
        manifest = json.dumps({
            "schemaVersion": 2, "mediaType": oci.MANIFEST,
            "config": {"digest": name(CONFIG), "size": len(CONFIG)},
            "layers": [{"digest": name(data), "size": len(data)} for data in self.layers],
        }).encode()  # fmt: skip
        index = json.dumps({
            "schemaVersion": 2, "mediaType": oci.INDEX,
            "manifests": [
                {"digest": name(manifest), "size": len(manifest), "platform": {"os": "linux", "architecture": "arm64"}},
                {"digest": "sha256:" + "0" * 64, "size": 1, "platform": {"os": "linux", "architecture": "amd64"}},
            ],
        }).encode()  # fmt: skip
        self.manifest, self.index = name(manifest), name(index)
        self.manifests = {name(manifest): manifest, name(index): index, "v1": index}
        self.asked: list[str] = []
        self.sent: dict[str, int] = {}
        self.faults: list[str] = []
        """What happens to the next requests for blobs: "cut", "wrong", "busy"."""
        self.login = ""
        self.realm = ""
        """Where a login is asked for, if not here."""
        self.gate = threading.Event()
        self.gate.set()
        far = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                far.answer(self)

            def log_message(self, format: str, *arguments: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        self.place = f"127.0.0.1:{self.server.server_port}"

    def answer(self, to: Any) -> None:
        self.asked.append(to.path)
        if to.path.startswith("/token"):
            given = to.headers.get("Authorization", "")
            wanted = "Basic " + base64.b64encode(self.login.encode()).decode()
            self.reply(to, 200 if given == wanted else 401, b'{"token":"T"}')
            return
        if self.login and to.headers.get("Authorization") != "Bearer T":
            place = self.realm or f"http://{self.place}/token"
            realm = f'Bearer realm="{place}",service="far",scope="repository:team/engine:pull"'
            self.reply(to, 401, b"", {"WWW-Authenticate": realm})
            return
        _, _, kind, wanted = to.path.rsplit("/", 3) if to.path.count("/") > 3 else ("", "", "", "")
        data = (self.manifests if kind == "manifests" else self.blobs).get(wanted)
        if data is None:
            self.reply(to, 404, b"")
            return
        if kind == "manifests":
            self.reply(to, 200, data)
            return
        begin = int((to.headers.get("Range") or "bytes=0-")[6:-1])
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "busy":
            self.reply(to, 429, b"", {"Retry-After": "7"})
            return
        if fault == "wrong":
            data = bytes(len(data))
        body = data[begin:]
        more = {"Content-Range": f"bytes {begin}-{len(data) - 1}/{len(data)}"} if begin else {}
        to.send_response(206 if begin else 200)
        for key, value in {"Content-Length": str(len(body)), **more}.items():
            to.send_header(key, value)
        to.end_headers()
        part = body[: len(body) // 2] if fault == "cut" else body
        to.wfile.write(part[:100])
        to.wfile.flush()
        self.gate.wait(5)
        # Counted first: whoever has read the last byte looks at once.
        self.sent[wanted] = self.sent.get(wanted, 0) + len(part)
        to.wfile.write(part[100:])
        to.close_connection = fault == "cut"

    def reply(self, to: Any, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        to.send_response(code)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            to.send_header(key, value)
        to.end_headers()
        to.wfile.write(body)

    def client(self, docker_config: Path | None = None) -> oci.Client:
        return oci.Client(self.place, "team/engine", docker_config, timeout=5)


@pytest.fixture
def far() -> Iterator[Far]:
    made = Far()
    yield made
    made.server.shutdown()
    made.server.server_close()


class Clock:
    """A clock that waiting moves on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waited: list[float] = []

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds


def relay(*clients: oci.Client, clock: Clock | None = None) -> Relay:
    clock = clock or Clock()
    ways = [Way(f"way {number}", client) for number, client in enumerate(clients)]
    return Relay(ways, 120.0, clock, clock.wait)


def test_a_tag_is_resolved_and_a_digest_is_proven(far: Far) -> None:
    client = far.client()
    found = client.manifest("v1")
    assert (found.digest, found.media_type, found.body) == (far.index, oci.INDEX, far.manifests[far.index])
    far.manifests[far.manifest] = b"{}"
    with pytest.raises(oci.WrongBytes, match=r"answered manifest sha256:\w{12} with other bytes"):
        client.manifest(far.manifest)


def test_a_blob_comes_whole_or_from_a_byte_on(far: Far) -> None:
    digest = name(far.layers[0])
    parts, size = far.client().blob(digest)
    assert (b"".join(parts), size) == (far.layers[0], len(far.layers[0]))
    parts, size = far.client().blob(digest, len(far.layers[0]) - 4)
    assert (b"".join(parts), size) == (b"tail", len(far.layers[0]))


def test_the_login_reaches_the_token_only(far: Far, tmp_path: Path) -> None:
    far.login = "spark:secret"
    config = tmp_path / "config.json"
    with pytest.raises(oci.OciError) as refused:
        far.client(config).manifest("v1")
    assert str(refused.value) == (
        f"{far.place} answered 401 for its token: it asks for a login: docker login {far.place}, as the user who "
        "deploys"
    )
    config.write_text(json.dumps({"auths": {far.place: {"auth": base64.b64encode(b"spark:secret").decode()}}}))
    assert far.client(config).manifest("v1").digest == far.index
    config.write_text("{")
    with pytest.raises(oci.OciError, match="cannot be read: JSONDecodeError; docker login writes it anew"):
        far.client(config)


def test_a_login_is_asked_for_on_the_web_alone(far: Far, tmp_path: Path) -> None:
    """Not in a file of this machine."""
    token = tmp_path / "token"
    token.write_text('{"token": "T"}')
    far.login, far.realm = "spark:secret", f"file://{token}"
    with pytest.raises(oci.OciError) as refused:
        far.client().manifest("v1")
    assert str(refused.value) == (f"{far.place} asks for a login at {far.realm[:40]!r}, which is no web address")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ghcr.io/a/b@sha256:" + "1" * 64, ("ghcr.io", "a/b", "", "sha256:" + "1" * 64)),
        ("vllm/vllm-openai:v0.9", ("docker.io", "vllm/vllm-openai", "v0.9", "")),
        ("ubuntu", ("docker.io", "library/ubuntu", "", "")),
        ("192.168.1.5:5000/x:t@sha256:" + "2" * 64, ("192.168.1.5:5000", "x", "t", "sha256:" + "2" * 64)),
    ],
)
def test_references_are_read_as_docker_reads_them(text: str, wanted: tuple[str, ...]) -> None:
    assert tuple(oci.parse(text)) == wanted


def test_what_is_no_reference_is_refused() -> None:
    with pytest.raises(oci.OciError) as refused:
        oci.parse("ghcr.io/A/b@sha256:12")
    assert str(refused.value) == (
        "'ghcr.io/A/b@sha256:12' is no image reference; wanted REGISTRY/REPOSITORY@sha256:<64 hex digits>"
    )


def test_a_lost_way_is_gone_on_with_on_the_next_at_the_same_byte(far: Far) -> None:
    digest, data = name(far.layers[0]), far.layers[0]
    far.faults = ["cut"]
    assert b"".join(relay(far.client(), far.client()).read(digest, len(data))) == data
    assert far.sent == {digest: len(data)}


def test_a_registry_that_asks_to_wait_is_waited_for(far: Far) -> None:
    data, clock = far.layers[1], Clock()
    far.faults = ["busy"]
    assert b"".join(relay(far.client(), clock=clock).read(name(data), len(data))) == data
    assert clock.waited == [7.0]


def test_patience_ends(far: Far) -> None:
    clock, data = Clock(), far.layers[1]
    far.server.shutdown()
    far.server.server_close()
    with pytest.raises(oci.OciError) as failed:
        b"".join(relay(far.client(), clock=clock).read(name(data), len(data)))
    assert str(failed.value) == f"{far.place} does not answer: Connection refused (no byte for 120 s)"
    assert clock.waited == [1, 2, 4, 8, 16, 30, 30, 29]


def test_a_blob_of_another_size_is_not_the_one(far: Far) -> None:
    data = far.layers[1]
    far.blobs[name(data)] = b""
    with pytest.raises(oci.WrongBytes) as failed:
        b"".join(relay(far.client()).read(name(data), len(data)))
    assert str(failed.value) == f"way 0: blob {name(data)[:19]} has 0 bytes, wanted 11"


def test_what_waiting_does_not_cure_is_told_at_once(far: Far) -> None:
    clock = Clock()
    with pytest.raises(oci.OciError) as failed:
        relay(far.client(), clock=clock).manifest("sha256:" + "5" * 64)
    assert (failed.value.status, clock.waited) == (404, [])


def test_readers_share_one_fetch_and_the_end_waits_for_the_proof(far: Far, tmp_path: Path) -> None:
    digest, data = name(far.layers[0]), far.layers[0]
    store = blobs.Store(tmp_path, relay(far.client()))
    far.gate.clear()
    got: list[bytes] = []
    threads = [
        threading.Thread(target=lambda begin=begin: got.append(b"".join(store.read(digest, len(data), begin))))
        for begin in (0, 0, 4096, len(data) - 1)
    ]
    for thread in threads:
        thread.start()
    far.gate.set()
    for thread in threads:
        thread.join(10)
    assert sorted(got, key=len) == [data[-1:], data[4096:], data, data]
    assert far.sent == {digest: len(data)}
    assert [path.name for path in tmp_path.iterdir()] == [digest[7:]]
    assert b"".join(store.read(digest, len(data), 5)) == data[5:]
    assert far.sent == {digest: len(data)}


def test_a_fetch_that_was_killed_is_gone_on_with(far: Far, tmp_path: Path) -> None:
    digest, data = name(far.layers[0]), far.layers[0]
    (tmp_path / f"{digest[7:]}.part").write_bytes(data[:4_300_000])
    assert b"".join(blobs.Store(tmp_path, relay(far.client())).read(digest, len(data))) == data
    assert far.sent == {digest: len(data) - 4_300_000}


def test_wrong_bytes_are_fetched_again_and_never_given_to_their_end(far: Far, tmp_path: Path) -> None:
    digest, data = name(far.layers[0]), far.layers[0]
    far.faults = ["wrong"]
    got = bytearray()
    store = blobs.Store(tmp_path, relay(far.client()))
    with pytest.raises(oci.WrongBytes):
        for part in store.read(digest, len(data)):
            got += part
    assert len(got) < len(data)
    assert b"".join(store.read(digest, len(data))) == data
    assert (tmp_path / digest[7:]).read_bytes() == data


def test_wrong_bytes_each_time_are_told(far: Far, tmp_path: Path) -> None:
    digest, data = name(far.layers[1]), far.layers[1]
    far.faults = ["wrong"] * 3
    store = blobs.Store(tmp_path, relay(far.client()))
    with pytest.raises(oci.OciError):
        b"".join(store.read(digest, len(data)))
    deadline = time.monotonic() + 5
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert list(tmp_path.iterdir()) == []


class Near:
    """Our registry on a loopback port."""

    def __init__(self, far: Far, source: Source) -> None:
        image = registry.Image("team/engine", far.index, source)
        self.server = registry.Server(("127.0.0.1", 0), [], image)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        self.place = f"127.0.0.1:{self.server.server_port}"

    def client(self) -> oci.Client:
        return oci.Client(self.place, "team/engine", timeout=5)

    def get(self, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        try:
            asked = urllib.request.Request(f"http://{self.place}{path}", method=method)
            with urllib.request.urlopen(asked, timeout=5) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def test_a_node_pulls_through_its_peer(far: Far, tmp_path: Path) -> None:
    """As in a pair of which one node reaches the registry: each blob comes from there once, for both."""
    serving = Near(far, blobs.Store(tmp_path, relay(far.client())))
    relaying = Near(far, relay(serving.client(), serving.client()))
    try:
        for near in (relaying, serving):
            client = near.client()
            assert json.loads(client.manifest(far.index).body)["manifests"][0]["digest"] == far.manifest
            assert client.manifest(far.manifest).body == far.manifests[far.manifest]
            for data in (CONFIG, *far.layers):
                parts, size = client.blob(name(data))
                assert (b"".join(parts), size) == (data, len(data))
            parts, _ = client.blob(name(far.layers[0]), 4_999_999)
            assert b"".join(parts) == far.layers[0][4_999_999:]
        assert far.sent == {digest: len(data) for digest, data in far.blobs.items()}
        assert len([path for path in far.asked if "manifests" in path]) == 2
    finally:
        relaying.close()
        serving.close()


def test_only_what_belongs_to_the_image_is_served(far: Far, tmp_path: Path) -> None:
    other = b"of another image"
    far.blobs[name(other)] = other
    near = Near(far, blobs.Store(tmp_path, relay(far.client())))
    try:
        assert near.get("/v2/")[0::2] == (200, b"{}")
        known = near.get(f"/v2/team/engine/blobs/{name(far.layers[1])}", "HEAD")
        assert (known[0], known[1]["Content-Length"], known[2]) == (200, "11", b"")
        refused = {"errors": [{
            "code": "NAME_UNKNOWN",
            "message": f"only team/engine@{far.index} and what belongs to it is served here",
        }]}  # fmt: skip
        for path in (f"blobs/{name(other)}", "manifests/v1", f"manifests/sha256:{'7' * 64}", "tags/list"):
            code, _, body = near.get(f"/v2/team/engine/{path}")
            assert (code, json.loads(body)) == (404, refused), path
        assert near.get(f"/v2/team/other/manifests/{far.index}")[0] == 404
    finally:
        near.close()


def test_what_an_image_names_by_no_digest_is_no_path(tmp_path: Path) -> None:
    """A store keeps what it is asked for under its digest."""
    index = json.dumps({"manifests": [{"digest": "sha256:../../stolen", "size": 2}]}).encode()

    class Fixed:
        def manifest(self, digest: str) -> oci.Manifest:
            return oci.Manifest(index if digest == name(index) else b"{}", oci.INDEX, digest)

        def read(self, digest: str, size: int, begin: int) -> Iterator[bytes]:
            raise AssertionError(digest)

    image = registry.Image("team/engine", name(index), blobs.Store(tmp_path / "deep/store", Fixed()))
    assert image.size(f"sha256:{'7' * 64}") is None
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [name(index)[7:]]


def test_what_the_far_side_refuses_is_told_in_docker_s_form(far: Far, tmp_path: Path) -> None:
    far.login = "spark:secret"
    near = Near(far, blobs.Store(tmp_path, relay(far.client())))
    try:
        code, _, body = near.get(f"/v2/team/engine/manifests/{far.index}")
        message = f"{far.place} answered 401 for its token: it asks for a login: docker login {far.place}, as the user"
        wanted = {"errors": [{"code": "UNAUTHORIZED", "message": f"{message} who deploys"}]}
        assert (code, json.loads(body)) == (401, wanted)
    finally:
        near.close()


def test_a_bundle_is_served_as_it_lies(far: Far, tmp_path: Path) -> None:
    """Without the other platform's manifest, which it leaves out."""
    place = tmp_path / "blobs/sha256"
    place.mkdir(parents=True)
    for digest, data in {**far.blobs, far.index: far.manifests[far.index]}.items():
        (place / digest[7:]).write_bytes(data)
    (place / far.manifest[7:]).write_bytes(far.manifests[far.manifest])
    near = Near(far, Layout(tmp_path))
    try:
        parts, size = near.client().blob(name(far.layers[0]))  # before any manifest was asked for
        assert (b"".join(parts), size) == (far.layers[0], len(far.layers[0]))
        (place / name(CONFIG)[7:]).write_bytes(b"")
        code, _, body = near.get(f"/v2/team/engine/blobs/{name(CONFIG)}")
        path = place / name(CONFIG)[7:]
        assert (code, json.loads(body)["errors"][0]["message"]) == (
            502,
            f"{path} has 0 bytes, wanted 24; copy the bundle again",
        )
        assert far.asked == []
    finally:
        near.close()
