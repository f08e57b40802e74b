"""What is locked of a repository, asked of the hub double with the hub's own client; and each way in which that fails."""

# Messages stand here in one piece.
# ruff: noqa: E501

from __future__ import annotations

import hashlib
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from huggingface_hub import constants, errors
from huggingface_hub.hf_api import ModelInfo

from facts import hub
from lab import hub as double
from lab.repositories import READER, STRANGER, Repository, Stated, json_file, shard, text_file
from spec.lock import FileSet, LockedFile

CONFIG, SHARD = json_file({"model_type": "llama"}), shard("a", 4096)


def repositories() -> list[Repository]:
    plain = Repository("lab/plain", licence="mit")
    files = {
        ".gitattributes": text_file("* lfs"), "config.json": CONFIG, "model.safetensors": SHARD,
        "sub/a b.txt": Stated(b""), ".cache/x": text_file("x"), "sub/.hidden": text_file("x"),
    }  # fmt: skip
    plain.commit(files, tag="first")
    gated = Repository("lab/gated", licence="cc-by-nc-nd-4.0", gated=True)
    gated.commit({"config.json": CONFIG})
    hidden = Repository("lab/hidden", private=True)
    hidden.commit({"config.json": CONFIG})
    odd = Repository("lab/odd")
    odd.commit({"a\\b.json": CONFIG})
    empty = Repository("lab/empty")
    empty.commit({".gitattributes": CONFIG})
    return [plain, gated, hidden, odd, empty]


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests in general reach no hub; these reach the loopback address."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.fixture(scope="module")
def serving() -> Iterator[double.Double]:
    with double.serving(repositories()) as far:
        yield far


@pytest.fixture
def far(serving: double.Double) -> Iterator[double.Double]:
    serving.forget()
    yield serving
    serving.clear()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def content(file: Any) -> bytes:
    return b"".join(file.read(0, file.size))


def test_a_repository_is_locked_to_the_byte(far: double.Double) -> None:
    """Digests of large files are as the hub states them, and no byte of those is read; small ones are read."""
    commit = far.repositories["lab/plain"].branches["main"]
    found = hub.Hub(far.endpoint, None).file_set("lab/plain", "main")
    assert found == FileSet(
        repository="lab/plain",
        ref="main",
        revision=commit,
        licence="mit",
        gated=False,
        mirrors=(),
        files=(
            LockedFile("config.json", CONFIG.size, sha256(content(CONFIG))),
            LockedFile("model.safetensors", 4096, sha256(content(SHARD))),
            LockedFile("sub/a b.txt", 0, sha256(b"")),
        ),
    )
    assert far.sent("lab/plain") == CONFIG.size
    assert hub.Hub(far.endpoint, None).file_set("lab/plain", "first").revision == commit
    assert hub.Hub(far.endpoint, None).file_set("lab/plain", commit).ref == commit


def test_a_gated_repository_needs_a_token_that_is_let_in(far: double.Double) -> None:
    assert hub.Hub(far.endpoint, READER).file_set("lab/gated", "main").gated
    assert all(request.authorized for request in far.requests)
    assert hub.Hub(far.endpoint, READER).file_set("lab/hidden", "main").gated
    far.forget()
    hub.Hub(far.endpoint, None).file_set("lab/plain", "main")
    assert not any(request.authorized for request in far.requests)


IN = "log in on this machine: hf auth login"


@pytest.mark.parametrize(
    ("repository", "ref", "token", "text"),
    [
        ("lab/gated", "main", None, f"lab/gated is gated, and this machine has no token: ask for access at HUB/lab/gated, then {IN}"),
        ("lab/gated", "main", STRANGER, f"lab/gated is gated, the token of this machine is not let in: ask for access at HUB/lab/gated, then {IN}"),
        ("lab/plain", "main", "hf_nobody", f"HUB answered 401 for lab/plain: it does not take the token of this machine; {IN}"),
        ("lab/none", "main", None, f"there is no lab/none at HUB, or it is private ({IN})"),
        ("lab/hidden", "main", STRANGER, "there is no lab/hidden at HUB, or it is hidden from the token of this machine"),
        ("lab/plain", "v9", None, "lab/plain has no branch, tag or commit v9; correct its revision"),
        ("lab/odd", "main", None, "lab/odd holds a file that cannot be locked: 'a\\\\b.json' must not contain control characters, line breaks or \\"),
        ("lab/empty", "main", None, "lab/empty has no files at main; is it the repository that is meant?"),
    ],
)  # fmt: skip
def test_what_the_hub_refuses_comes_with_the_fix(far: double.Double, repository: str, ref: str, token: str | None, text: str) -> None:  # fmt: skip
    with pytest.raises(hub.HubError) as error:
        hub.Hub(far.endpoint, token).file_set(repository, ref)
    assert str(error.value) == text.replace("HUB", far.endpoint)
    assert error.value.gone == (text.startswith(("there is no", "lab/plain has", "lab/empty")))


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ({"kind": "status", "status": 503}, "HUB answered 503 for lab/plain: try again later"),
        ({"kind": "status", "status": 403}, "HUB answered 403 for lab/plain: the token of this machine may not read it"),
        ({"kind": "status", "status": 429, "retry_after": 3600}, f"HUB answered 429 for lab/plain: it limits how often it is asked; wait, or {IN}"),
        ({"kind": "status", "status": 404, "path": "config.json"}, "HUB answered 404 for lab/plain: it knows no such page; is hub_endpoint a hub?"),
        ({"kind": "refuse"}, "HUB cannot be reached (Connection refused); is this machine online?"),
        ({"kind": "stall"}, "HUB gave no answer in 0.2 s; try again"),
        ({"kind": "reset", "at": 5}, "HUB broke off in the middle of an answer (Connection reset by peer); try again"),
        ({"kind": "truncate", "at": 5}, "HUB broke off in the middle of an answer (RemoteProtocolError); try again"),
        ({"kind": "corrupt", "at": 5}, "lab/plain sent other bytes for config.json than it states; try again"),
        ({"kind": "size", "at": 5000}, "lab/plain sent other bytes for config.json than it states; try again"),
    ],
    ids=lambda value: value["kind"] + str(value.get("status", "")) if isinstance(value, dict) else "",
)  # fmt: skip
def test_what_goes_wrong_on_the_way_is_said(far: double.Double, fault: dict[str, Any], text: str) -> None:
    """And it is said at once: nobody waits for the hour that a hub asks for."""
    far.fault(**fault)
    with pytest.raises(hub.HubError) as error:
        # Only what never comes is waited for: a machine that is busy has its time for all else.
        timeout = 0.2 if fault["kind"] == "stall" else 20.0
        hub.Hub(far.endpoint, None, timeout=timeout).file_set("lab/plain", "main")
    assert str(error.value) == text.replace("HUB", far.endpoint)
    assert not error.value.gone


GOOD: dict[str, Any] = {
    "id": "a/b", "sha": "1" * 40, "private": False, "gated": False, "tags": [],
    "siblings": [{"rfilename": "x.safetensors", "size": 4, "blobId": "2" * 40, "lfs": {"size": 4, "sha256": "3" * 64, "pointerSize": 1}}],
}  # fmt: skip


class Says(http.server.BaseHTTPRequestHandler):
    """Answers everything with one body."""

    body = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on the screen."""


@pytest.fixture(scope="module")
def says() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Says)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def garbled() -> Iterator[Any]:
    yield from (b"", b"<html>", b"[]", b'"x"', b"\xff", b'{"id": 1}', b"{}")
    for key, value in (
        ("sha", None),
        ("sha", "main"),
        ("siblings", None),
        ("siblings", {"a": 1}),
        ("siblings", [7]),
        ("siblings", [{}]),
    ):
        yield json.dumps({**GOOD, key: value}).encode()
    lfs = {"size": 4, "sha256": "3" * 64, "pointerSize": 1}
    for lfs_file in ({**lfs, "sha256": "x"}, {**lfs, "size": -1}, {**lfs, "size": True}, {}, 7):
        yield json.dumps(
            {**GOOD, "siblings": [{"rfilename": "x", "size": 4, "blobId": "2" * 40, "lfs": lfs_file}]}
        ).encode()
    for row in (
        {"rfilename": 7},
        {"rfilename": "x"},
        {"rfilename": "x", "size": "4"},
        {"rfilename": "x", "size": 2000, "blobId": None},
    ):
        yield json.dumps({**GOOD, "siblings": [row]}).encode()


@pytest.mark.parametrize("body", list(garbled()), ids=lambda body: repr(body)[:30])
def test_what_is_no_answer_of_a_hub_is_said_to_be_none(says: str, body: bytes) -> None:
    """In one sentence, whatever it is: a captive portal's page, or half of an answer."""
    Says.body = body
    with pytest.raises(hub.HubError) as error:
        hub.Hub(says, None).file_set("a/b", "main")
    nonsense = f"{says} answers for a/b with what no hub says of a repository; is hub_endpoint one?"
    assert str(error.value) in (nonsense, "a/b sent other bytes for x than it states; try again")


def test_a_large_file_without_a_digest_is_not_read(says: str) -> None:
    Says.body = json.dumps({**GOOD, "siblings": [{"rfilename": "x", "size": 1 << 30, "blobId": "2" * 40}]}).encode()
    with pytest.raises(hub.HubError) as error:
        hub.Hub(says, None).file_set("a/b", "main")
    assert str(error.value) == "a/b states no sha256 for x of 1073741824 bytes, which is too large to read here"


@pytest.mark.parametrize(
    ("card", "tags", "licence"),
    [
        ({"license": "mit"}, [], "mit"),
        ({"license": "MIT"}, ["license:other"], "mit"),
        (None, ["x", "license:apache-2.0"], "apache-2.0"),
        (None, [], ""),
        (None, None, ""),
        ({"license": ""}, [], ""),
        ({"license": ["mit", "apache-2.0"]}, [], "mit+apache-2.0"),
        ({"license": "other"}, [], "other"),
        ({"license": "other", "license_name": "Their own"}, [], "their-own"),
        ({"license": "other", "license_name": "ein „eigenes“"}, [], "other"),
        ({"license": {"x": 1}}, ["license:mit"], "mit"),
    ],
)
def test_a_licence_is_what_the_card_says(card: Any, tags: Any, licence: str) -> None:
    said = {**GOOD, "tags": tags, "cardData": card}
    assert hub._licence(ModelInfo(**said)) == licence


def _raises(error: Exception) -> str | None:
    raise error


def test_the_token_is_the_hubs_own_and_never_quoted() -> None:
    """A client that cannot send a header quotes it; what is no token is therefore refused before."""
    assert hub.token(lambda: None) is None
    assert hub.token(lambda: " \n") is None
    assert hub.token(lambda: " hf_abc\n") == "hf_abc"
    for read in (lambda: "hf_\nabc", lambda: "hf_äbc", lambda: "hf abc"):
        with pytest.raises(hub.HubError) as error:
            hub.token(read)
        assert str(error.value) == f"what stands for the hub's token on this machine is none; {IN}"
    for reason in (PermissionError(13, "Permission denied"), errors.OIDCError("no identity")):
        with pytest.raises(hub.HubError) as error:
            hub.token(partial(_raises, reason))
        assert str(error.value) == f"the hub's token on this machine cannot be read; {IN}"


def test_no_text_holds_the_token(far: double.Double) -> None:
    """Whatever happens on the way, and although a header cannot be sent as it is."""
    for token in ("hf_secret_of_somebody", "hf_secret\nof_somebody", "hf_secret_öf_somebody"):
        with pytest.raises(hub.HubError) as error:
            hub.Hub(far.endpoint, token).file_set("lab/plain", "main")
        assert "secret" not in str(error.value)
        assert error.value.__cause__ is None and error.value.__suppress_context__


def test_a_client_that_is_told_to_stay_offline_is_said(far: double.Double, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(hub.HubError) as error:
        hub.Hub(far.endpoint, None).file_set("lab/plain", "main")
    assert str(error.value) == "HF_HUB_OFFLINE is set here, so the hub is not asked; unset it"
    assert far.requests == []


def test_a_hub_that_is_no_host_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(hub.HubError) as error:
        hub.Hub("https://hub.example", None).file_set("a/b", "main")
    assert (
        str(error.value) == "https://hub.example cannot be reached (Name or service not known); is this machine online?"
    )
