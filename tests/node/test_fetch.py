"""The download: what huggingface_hub and xet are made to do, and what is made of what they say."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest

from lab import hub as hubs
from lab import hub_pages
from lab.hub import Double
from lab.repositories import MIB, READER, STRANGER
from node import fetch, pages
from node.fetch import Client, Crew, Refused, Task, Writer
from node.ladder import Ladder, Rung, described
from tests.node.staging import NAME, files, repository_of, whole

CONTENTS = files(2)
SHARD = "model-0.safetensors"


class Far:
    """A client of a double, and one file to bring."""

    def __init__(self, hub: Double, place: Path, token: str | None = None) -> None:
        self.hub, self.part, self.said = hub, place / "part", list[dict[str, Any]]()
        self.part.touch()
        self.client = Client(hub.endpoint, token)

    def task(self, path: str = SHARD, **changes: Any) -> Task:
        size, sha256 = self.hub.files(NAME).get(path, (1, "a" * 64))
        stated = {
            "number": 1, "repository": NAME, "revision": next(iter(self.hub.repositories[NAME].commits)),
            "path": path, "size": size, "sha256": sha256, "part": str(self.part), "xet": True,
        }  # fmt: skip
        return Task(**{**stated, **changes})

    def tell(self, number: int, **said: Any) -> None:
        self.said.append(said)

    def bring(self, task: Task) -> str:
        """The sha256 of the part when it is over."""
        writer = Writer(task, pages.Rate(0), self.tell)
        try:
            self.client.bring(task, writer)
        finally:
            sha256 = writer.close()
        return sha256

    def refused(self, task: Task) -> tuple[str, str]:
        """Kind and text of the refusal that there must be."""
        with pytest.raises(Refused) as refusal:
            self.bring(task)
        return refusal.value.kind, str(refusal.value)


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Far]:
    """A repository for everybody."""
    with hubs.serving([repository_of(CONTENTS)]) as hub:
        yield Far(hub, tmp_path)


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    """The client keeps its connections for the life of a process."""
    yield
    huggingface_hub.close_session()


@pytest.mark.parametrize("path", [SHARD, "config.json"])
def test_goes_on_at_the_byte_where_the_part_ends(far: Far, path: str) -> None:
    """Of a large file and of a small one, which the hub sends itself; the hash is that of the whole."""
    data = whole(CONTENTS)[path]
    held = len(data) // 2
    far.part.write_bytes(data[:held])
    assert far.bring(far.task(path)) == hashlib.sha256(data).hexdigest()
    assert far.part.read_bytes() == data
    [request] = [request for request in far.hub.requests if request.method == "GET"]
    assert (request.range, request.sent) == (f"bytes={held}-", len(data) - held)
    assert far.said[-1] == {"at": len(data)}


def test_begins_again_where_a_server_does_not_resume(far: Far) -> None:
    """huggingface_hub sees 200 instead of 206, goes back and truncates: what was hashed is forgotten with the part."""
    far.part.write_bytes(b"old")
    writer = Writer(far.task(), pages.Rate(0), far.tell)
    assert writer.tell() == 3
    writer.seek(0)
    writer.truncate()
    writer.write(b"new bytes")
    assert writer.close() == hashlib.sha256(b"new bytes").hexdigest()
    assert far.part.read_bytes() == b"new bytes"
    # Beside that it may say that it reads what is there, which on a busy machine takes a moment.
    assert [said for said in far.said if "at" in said] == [{"at": 0}, {"at": 9}]


def test_a_part_that_is_whole_is_only_read(far: Far) -> None:
    """Of another source, or of a run that was killed before it told."""
    data = whole(CONTENTS)[SHARD]
    far.part.write_bytes(data)
    assert far.bring(far.task()) == hashlib.sha256(data).hexdigest()
    assert {request.method for request in far.hub.requests} == {"HEAD"}


def test_another_file_than_the_lock_states_is_not_brought(far: Far) -> None:
    """The hub says so before a byte moves; a longer one is noticed where it goes on."""
    task = far.task()
    assert far.refused(far.task(size=task.size + 1)) == (
        "wrong", f"the hub says it has {task.size} bytes, the lock {task.size + 1}"
    )  # fmt: skip
    assert far.refused(far.task(sha256="b" * 64)) == (
        "wrong", f"the hub says its sha256 is {task.sha256[:12]}, the lock {'b' * 12}"
    )  # fmt: skip
    assert {request.method for request in far.hub.requests} == {"HEAD"}
    writer = Writer(far.task(size=4), pages.Rate(0), far.tell)
    with pytest.raises(Refused, match="it is longer than the lock says"):
        writer.write(b"12345")
    writer.close()


def test_a_server_that_is_busy_ends_the_attempt_with_its_word(far: Far) -> None:
    """Nothing in the client waits: the unit does, which tells of it."""
    far.hub.fault("status", path=SHARD, status=429, retry_after=77)
    with pytest.raises(Refused) as refusal:
        far.bring(far.task())
    assert (refusal.value.kind, str(refusal.value), refusal.value.after) == ("busy", "the hub answered 429", 77.0)


def test_how_long_the_hub_asks_to_wait() -> None:
    """Its header on limits tells more than Retry-After."""
    assert fetch._seconds({"ratelimit": '"api";r=0;t=55', "retry-after": "9"}) == 55
    assert fetch._seconds({"retry-after": " 120 "}) == 120
    assert fetch._seconds({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0
    assert fetch._seconds({}) == 0


def test_an_address_that_is_no_longer_valid_is_no_matter_of_rights(tmp_path: Path) -> None:
    """The CDN's 403 is cured by asking the hub for another address."""
    with hubs.serving([repository_of(CONTENTS)], link_seconds=-1) as hub:
        far = Far(hub, tmp_path)
        assert far.refused(far.task()) == ("lost", "the server of its bytes answered 403")


GATED = f"{NAME} on the hub is gated"
REFUSALS: dict[str, tuple[dict[str, Any], str | None, dict[str, str], tuple[str, str]]] = {
    "gated, no token": (
        {"gated": True}, None, {},
        ("gated", f"{GATED}. Fix: accept its terms on its page, and on the control machine: hf auth login"),
    ),
    "gated, not let in": (
        {"gated": True}, STRANGER, {},
        (
            "gated",
            f"{GATED}, and the token's user may not read it. Fix: accept its terms on its page, or give the token the "
            "right to read gated repositories",
        ),
    ),
    "unknown token": (
        {}, "hf_nobody", {},
        ("gated", f"the hub does not know the token for {NAME}. Fix, on the control machine: hf auth login"),
    ),
    "no repository, no token": (
        {}, None, {"repository": "owner/other"},
        (
            "gated",
            "owner/other on the hub is not there for everybody. Fix: is it spelt so? If it is private: hf auth login",
        ),
    ),
    "no repository": (
        {}, READER, {"repository": "owner/other"},
        (
            "gone",
            "owner/other on the hub is not there for the token's user. Fix: is it spelt so, and may that user read it?",
        ),
    ),
    "no commit": (
        {}, None, {"revision": "0" * 40}, ("gone", f"{NAME} has no commit {'0' * 12} any more. Fix: make lock")
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_what_no_waiting_cures_says_what_to_do(tmp_path: Path, case: str) -> None:
    """Each refusal of the hub, by what it means for the operator."""
    more, token, changes, wanted = REFUSALS[case]
    with hubs.serving([repository_of(CONTENTS, **more)]) as hub:
        far = Far(hub, tmp_path, token)
        assert far.refused(far.task(**changes)) == wanted


def test_a_file_that_is_gone_is_named(far: Far) -> None:
    """It was there when the lock was made."""
    task = far.task("other.safetensors")
    assert far.refused(task) == (
        "absent", f"{NAME} at {task.revision[:12]} has no file other.safetensors. Fix: make lock"
    )  # fmt: skip


def test_the_token_goes_to_the_hub_and_nowhere_else(tmp_path: Path) -> None:
    """Not to the CDN that it redirects to."""
    with hubs.serving([repository_of(CONTENTS, gated=True)]) as hub:
        far = Far(hub, tmp_path, READER)
        far.bring(far.task())
        assert {(request.host, request.authorized) for request in hub.requests} == {("hub", True), ("cdn", False)}


def test_an_error_is_told_without_what_signs_an_address() -> None:
    """It is good for an hour, for whoever reads the journal."""
    text = "Client error for url 'https://cdn.example/a/b?Expires=1&Signature=abc' at once"
    assert fetch._without_query(text) == "Client error for url 'https://cdn.example/a/b at once"


def test_xet_goes_on_at_the_byte_where_the_part_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real hf_xet, from a store of its own kind on this disk."""
    import hf_xet  # type: ignore[import-untyped]

    data, store = whole(CONTENTS)[SHARD], f"local://{tmp_path / 'store'}"
    (tmp_path / "store").mkdir()
    with hf_xet.XetSession().new_upload_commit(endpoint=store) as commit:
        upload = commit.start_upload_bytes(data)
    monkeypatch.setattr(hub_pages, "xet_hash", lambda content: upload.result().xet_info.hash)
    with hubs.serving([repository_of(CONTENTS, cas="silent")]) as hub:
        cas = hub.listeners["cas"]
        hub.listeners["cas"] = SimpleNamespace(url=store, close=cas.close)  # type: ignore[assignment]
        far = Far(hub, tmp_path)
        held = MIB + 12345
        far.part.write_bytes(data[:held])
        assert far.bring(far.task()) == hashlib.sha256(data).hexdigest()
        assert far.part.read_bytes() == data
        assert hub.sent() == 0


def test_a_disk_that_is_full_is_told_as_that(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else goes on as if there was room."""

    class Full(pages.Sink):
        def write(self, data: bytes | memoryview) -> None:
            raise OSError(28, "No space left on device", str(far.part))

    monkeypatch.setattr(pages, "Sink", Full)
    near, out = os.pipe()
    Crew(far.client, pages.Rate(0), out).run(iter([far.task()]))
    os.close(out)
    with os.fdopen(near) as lines:
        said = lines.read()
    assert '"failed": "full"' in said


# What is done about failures

FIRST, AGAIN, PLAIN = (Rung(step, "a/b", "1" * 40, xet) for step, xet in enumerate((True, True, False)))
MIRROR = Rung(3, "m/b", "2" * 40, False)


def ladder(**more: Any) -> Ladder:
    return Ladder([("a/b", "1" * 40), ("m/b", "2" * 40)], **more)


def test_again_then_without_xet_then_the_mirror_and_round() -> None:
    """With longer pauses while nothing comes."""
    made, seen = ladder(), []
    for _ in range(7):
        rung = made.rung()
        assert rung is not None
        seen.append((rung, made.failed(rung)))
    assert seen == [(FIRST, 1), (AGAIN, 2), (PLAIN, 4), (MIRROR, 8), (PLAIN, 16), (MIRROR, 32), (PLAIN, 60)]
    made.moved()
    assert made.failed(MIRROR) == 1


def test_without_xet_a_way_that_brings_something_is_kept() -> None:
    """A line that breaks every few minutes is no reason to go elsewhere; with xet it is."""
    made = ladder(step=2)
    for _ in range(5):
        made.moved()
        made.failed(PLAIN)
    assert made.rung() == PLAIN
    made.failed(PLAIN)
    assert made.rung() == MIRROR


def test_files_that_fail_side_by_side_are_one_failure() -> None:
    """Three at once take one step, not three."""
    made = ladder()
    assert [made.failed(FIRST) for _ in range(3)] == [1, 1, 1]
    assert made.rung() == AGAIN


def test_a_busy_server_is_given_its_time() -> None:
    """As it says, but not for ever; by itself with longer pauses, and after four times elsewhere."""
    made = ladder(step=2)
    assert [made.asked_to_wait(PLAIN, seconds) for seconds in (77, 0, 4000)] == [77, 2, 600]
    assert made.rung() == PLAIN
    made.asked_to_wait(PLAIN, 1)
    assert made.rung() == MIRROR


def test_a_repository_that_is_gone_is_not_asked_again() -> None:
    """Until none is left."""
    made = ladder()
    assert made.is_gone(FIRST)
    assert made.rung() == MIRROR
    assert described(MIRROR, FIRST) == "now from m/b"
    assert not made.is_gone(MIRROR)
    assert made.rung() is None


def test_what_is_next_is_said() -> None:
    """In the operator's words."""
    assert [described(PLAIN, FIRST), described(AGAIN, FIRST)] == ["now without xet", "again"]
