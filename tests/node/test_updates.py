"""Newer releases: how they are judged, when they are asked for, and what a far side may do."""

from __future__ import annotations

import json
import socket
import threading
import time
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from node import updates
from node.release import RELEASE
from node.service import UpdateSettings
from tests.repository import ROOT

ONLY_STACK = UpdateSettings(check=True, url="", stack_url="https://far/LATEST", stack_release="v2.3")


def test_the_programs_know_the_release_that_they_are_of() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == RELEASE


@pytest.mark.parametrize(
    ("installed", "latest", "judged"),
    [
        ("v2.3", "v2.4", True),
        ("v2.3", "v2.10-tier1", True),
        ("v2.3", "v2.3", False),
        ("v2.3", "v2.3-tier1", False),  # the kit's own name of the release whose image is v2.3
        ("v2.3", "v2.2.9", False),
        ("v2", "v2.0.0", False),
        ("0.1.0", "v0.2", True),
        ("v2.3-tier1", "v2.3-tier2", None),
        ("v2.3-rc1", "v2.3", None),
        ("", "v2.4", None),
        ("v2.3", "nightly", None),
    ],
)
def test_what_is_newer(installed: str, latest: str, judged: bool | None) -> None:
    assert updates.newer(installed, latest) is judged


def test_asked_once_a_day_and_told_in_between(tmp_path: Path) -> None:
    asked: list[str] = []

    def ask(url: str) -> str:
        asked.append(url)
        return "v2.4-tier1"

    path, hint = tmp_path / "update.json", "the stack's image: v2.4-tier1 is out, here is v2.3"
    for now in (1e9, 1e9 + 86_399, 1e9 + 86_400, 1e9 - 10):  # the last one: the clock went back
        assert updates.check(ONLY_STACK, path, lambda now=now: now, ask) == hint
    assert asked == ["https://far/LATEST"] * 3
    off = UpdateSettings(check=False, url="https://a/b", stack_url="https://far/LATEST", stack_release="v2.3")
    assert updates.check(off, tmp_path / "other.json", lambda: 1e9, ask) == ""
    assert len(asked) == 3 and not (tmp_path / "other.json").exists()


def test_what_was_seen_of_an_update_that_was_made_is_no_news(tmp_path: Path) -> None:
    path = tmp_path / "update.json"
    assert updates.check(ONLY_STACK, path, lambda: 1e9, lambda url: "v2.4")
    made = UpdateSettings(check=True, url="", stack_url=ONLY_STACK.stack_url, stack_release="v2.4")
    assert updates.check(made, path, lambda: 1e9 + 5, lambda url: "v2.4") == ""


@pytest.mark.parametrize(
    "kept", ["", "[]", '{"asked": "x", "seen": 3}', '{"asked": 1e9, "seen": {"https://far/LATEST": 1}}']
)
def test_a_damaged_memory_is_none(tmp_path: Path, kept: str) -> None:
    path = tmp_path / "update.json"
    path.write_text(kept)

    def away(url: str) -> str:
        raise updates.NotSeen("far: refused")

    assert updates.check(ONLY_STACK, path, lambda: 1e9, away) == ""


def test_what_was_found_is_a_sentence_for_each_source(tmp_path: Path) -> None:
    both = UpdateSettings(check=True, url="https://near/LATEST", stack_url="https://far/LATEST", stack_release="")

    def ask(url: str) -> str:
        if "near" in url:
            raise updates.NotSeen("near: HTTP 404")
        return "v9"

    seen = updates.find(both, tmp_path / "u", lambda: 5.0, ask)
    assert json.loads((tmp_path / "u").read_text()) == seen
    assert updates.statements(both, seen) == [
        "Sparkpair: not found out: near: HTTP 404",
        "the stack's image: the newest is v9; which release is here is not known",
    ]
    told = {
        name: updates.statements(ONLY_STACK, updates.find(ONLY_STACK, tmp_path / "u", ask=lambda _, n=name: n))
        for name in ("v2.3-tier1", "v3", "x9")
    }
    assert told == {
        "v2.3-tier1": ["the stack's image: v2.3 is here, and the newest is v2.3-tier1: nothing newer"],
        "v3": ["the stack's image: v3 is out, here is v2.3"],
        "x9": ["the stack's image: the newest is called x9, here is v2.3; which is newer is not judged"],
    }
    nothing = UpdateSettings(check=True, url="", stack_url="", stack_release="")
    assert updates.statements(nothing, {})[0].startswith("nothing is asked for: update_url is empty")
    assert [source.installed for source in updates.sources(both)] == [RELEASE, ""]


class Far(BaseHTTPRequestHandler):
    """Answers by path, and remembers what it was told."""

    heard: list[tuple[str, dict[str, str]]] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.heard.append((self.requestline, dict(self.headers.items())))
        texts = {
            "/LATEST": b"v2.4-tier1\nmore\n",
            "/page": b"<html>",
            "/long": b"v" * 5000,
            "/control": b"v1\x1b[31m\n",
        }
        if self.path in texts:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(texts[self.path])
        elif self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            try:
                for _ in range(100):
                    self.wfile.write(b"v")
                    time.sleep(0.05)
            except OSError:
                pass
        elif self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header(
                "Location",
                {"/to/other": "https://127.0.0.1:1/", "/to/file": "ftp://127.0.0.1/x", "/to/latest": "/LATEST"}[
                    self.path
                ],
            )
            self.end_headers()
        else:
            self.send_error(404)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def far() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Far)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_one_line_is_read_and_nothing_is_told(far: str) -> None:
    Far.heard.clear()
    assert updates.look(f"{far}/LATEST") == "v2.4-tier1"
    assert updates.look(f"{far}/to/latest") == "v2.4-tier1"
    for request, headers in Far.heard:
        assert request.startswith("GET /")
        assert set(headers) <= {"Host", "Accept-Encoding", "Connection"}


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/missing", "HTTP 404"),
        ("/page", "what stands there is no name of a release: '<html>'"),
        ("/long", "what stands there is no name of a release: '" + "v" * 40 + "'"),
        ("/control", r"what stands there is no name of a release: 'v1\x1b[31m'"),
        ("/to/other", "it leads to https:, and only its own scheme is followed"),
        ("/to/file", "it leads to ftp:, and only its own scheme is followed"),
    ],
)
def test_what_is_no_release_is_said(far: str, path: str, why: str) -> None:
    with pytest.raises(updates.NotSeen) as caught:
        updates.look(far + path)
    assert str(caught.value) == f"{far.removeprefix('http://')}: {why}"


def test_a_far_side_that_dribbles_is_not_waited_for(far: str) -> None:
    begun = time.monotonic()
    with pytest.raises(updates.NotSeen, match=r"gave no answer within 0\.2 s"):
        updates.look(f"{far}/slow", timeout=0.2)
    assert time.monotonic() - begun < 1.0


def test_nobody_there_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(updates.NotSeen, match=rf"^{place}: .*refused"):
            updates.look(f"http://{place}/")
    with pytest.raises(updates.NotSeen, match="only https and http"):
        updates.look("ftp://127.0.0.1/x")
