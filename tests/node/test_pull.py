"""Pulling into a Docker that answers as the real one did on the simulated pair (26.1, classic store)."""

from __future__ import annotations

import base64
import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from node import pull
from node.docker import Docker, DockerError

DIGEST = "sha256:" + "4f" * 32
NAME = "ghcr.io/team/engine"
ID = "sha256:" + "32" * 32


class FakeDocker:
    """A Docker socket with one image that was pulled from a peer."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.asked: list[tuple[str, str]] = []
        self.told: list[dict[str, Any]] = []
        self.login = ""
        self.images = [
            {"Id": "sha256:other", "RepoDigests": [f"{NAME}@sha256:" + "0" * 64], "RepoTags": []},
            {"Id": ID, "RepoDigests": [f"127.0.0.1:8731/team/engine@{DIGEST}"], "RepoTags": []},
        ]
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                fake.asked.append((self.command, unquote(self.path)))
                if self.path.startswith("/images/create"):
                    fake.login = self.headers.get("X-Registry-Auth", "")
                    self.reply(200, b"".join(json.dumps(item).encode() + b"\r\n" for item in fake.told))
                elif self.path == "/images/json":
                    self.reply(200, json.dumps(fake.images).encode())
                elif "/tag?" in self.path:
                    self.reply(201, b"")
                elif unquote(self.path) == f"/images/{ID}/json":
                    self.reply(200, json.dumps({"Id": ID, "RootFS": {"Layers": ["a", "b"]}}).encode())
                else:
                    self.reply(404, b'{"message":"No such image"}')

            do_GET = do_POST = answer

            def reply(self, code: int, body: bytes) -> None:
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def address_string(self) -> str:
                return "unix"

            def log_message(self, format: str, *arguments: object) -> None:
                """Quiet."""

        self.server = socketserver.ThreadingUnixStreamServer(self.path, Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[FakeDocker]:
    made = FakeDocker(tmp_path / "docker.sock")
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_an_image_is_found_by_its_digest_under_any_name(docker: FakeDocker) -> None:
    client = Docker(docker.path)
    assert client.image(f"{NAME}@{DIGEST}") == {"id": ID, "layers": ["a", "b"]}
    with pytest.raises(DockerError) as missing:
        client.image(f"{NAME}@sha256:" + "1" * 64)
    assert missing.value.status == 404
    docker.asked.clear()
    with pytest.raises(DockerError):
        client.image(f"{NAME}:v1")
    assert docker.asked == [("GET", f"/images/{NAME}:v1/json")]


def test_a_pull_is_by_digest_and_is_tagged(docker: FakeDocker) -> None:
    docker.told = [{"status": "Pulling from team/engine", "id": DIGEST}, {"status": "Pull complete", "id": "aa"}]
    said: list[str] = []
    pull.pull(Docker(docker.path), f"{NAME}@{DIGEST}", "sparkpair/engine:4f4f4f4f4f4f", "login", said.append)
    assert docker.asked == [
        ("POST", f"/images/create?fromImage={NAME}&tag={DIGEST}"),
        ("GET", f"/images/{NAME}@{DIGEST}/json"),
        ("GET", "/images/json"),
        ("GET", f"/images/{ID}/json"),
        ("POST", f"/images/{ID}/tag?repo=sparkpair/engine&tag=4f4f4f4f4f4f"),
    ]
    assert docker.login == "login"
    assert said == [f"image: {NAME}@sha256:4f4f4f4f4f4f is here, named sparkpair/engine:4f4f4f4f4f4f"]


def test_what_docker_says_went_wrong_ends_the_pull(docker: FakeDocker) -> None:
    docker.told = [{"status": "Downloading", "id": "aa"}, {"error": "denied: docker login ghcr.io"}]
    with pytest.raises(DockerError, match=r"^denied: docker login ghcr\.io$"):
        pull.pull(Docker(docker.path), f"{NAME}@{DIGEST}", "a:b", "", lambda text: None)
    assert docker.login == ""


def test_the_login_goes_to_docker_in_a_header(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    auth = base64.b64encode(b"spark:secret").decode()
    config.write_text(json.dumps({"auths": {"ghcr.io": {"auth": auth}, "r.io": {"identitytoken": "I"}}}))
    decoded = {
        name: json.loads(base64.urlsafe_b64decode(pull.Login(name, config).for_docker()))
        for name in ("ghcr.io", "r.io")
    }
    assert decoded == {
        "ghcr.io": {"username": "spark", "password": "secret", "serveraddress": "ghcr.io"},
        "r.io": {"identitytoken": "I", "serveraddress": "r.io"},
    }
    assert pull.Login("nobody.io", config).for_docker() == ""


def test_progress_is_one_line() -> None:
    now = [0.0]
    progress = pull.Progress(lambda: now[0])
    progress.take({"status": "Pulling from team/engine", "id": DIGEST})
    progress.take({"status": "Already exists", "id": "aa"})
    for layer, size in (("bb", 400), ("cc", 200)):
        progress.take({"status": "Pulling fs layer", "id": layer})
        detail = {"current": 100 << 20, "total": size << 20}
        progress.take({"status": "Downloading", "id": layer, "progressDetail": detail})
    now[0] = 4.0
    assert progress.line() == "image: 1 of 3 layers, 200 of 600 MiB of those under way, 50.0 MiB/s"
    progress.take({"status": "Download complete", "id": "cc"})
    progress.take({"status": "Extracting", "id": "cc", "progressDetail": {"current": 1, "total": 2}})
    now[0] = 70.0
    assert progress.line() == (
        "image: 1 of 3 layers, 300 of 600 MiB of those under way, 1.5 MiB/s, unpacking cc, no news from Docker for 66 s"
    )
