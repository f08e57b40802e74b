"""The hub double before the real client: what huggingface_hub gets from it, and each fault as the client meets it."""

from __future__ import annotations

import hashlib
import io
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from huggingface_hub import HfApi, constants, hf_hub_download, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import get_hf_file_metadata, http_get

from lab import hub
from lab.hub_service import Remote
from lab.repositories import (
    MIB,
    READER,
    STRANGER,
    Generated,
    Joined,
    Repository,
    Stated,
    model_files,
    of_directory,
    shard,
    text_file,
)
from node import content

pytestmark = pytest.mark.slow

SHARD = "model-00001-of-00002.safetensors"
SECOND = "model-00002-of-00002.safetensors"
NAME = "org/model"


@pytest.fixture
def double(monkeypatch) -> Iterator[hub.Double]:
    # tests/conftest.py keeps the client from the real hub; every address here is the double's.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    model = Repository(NAME, licence="mit")
    files = model_files("tests", (2, 1))
    first = model.commit(files, tag="v1")
    model.commit({**files, "NOTICE": text_file("newer\n")}, branch="next")
    model.move("main", first)
    gated = Repository("org/gated", gated=True)
    gated.commit(files)
    xet = Repository("org/xet", cas="failing")
    xet.commit(files)
    with hub.serving([model, gated, xet], link_seconds=60) as served:
        yield served


def api(double: hub.Double, token: str | bool = False) -> HfApi:
    return HfApi(double.endpoint, token=token)


def url(double: hub.Double, path: str = SHARD, revision: str = "main", repository: str = NAME) -> str:
    return hf_hub_url(repository, path, revision=revision, endpoint=double.endpoint)


def fetch(double: hub.Double, path: str = SHARD, already: int = 0) -> bytes:
    """The bytes from `already` on, as the client's own transfer brings them in one try."""
    metadata = get_hf_file_metadata(url(double, path), endpoint=double.endpoint)
    into = io.BytesIO()
    http_get(metadata.location, into, resume_size=already, expected_size=metadata.size, _nb_retries=0)
    return into.getvalue()


def bodies(double: hub.Double, path: str) -> list[tuple[str, str, int, int, str]]:
    """Host, range, status, bytes and fault of each GET of a file's content."""
    return [
        (seen.host, seen.range, seen.status, seen.sent, seen.fault)
        for seen in double.requests
        if seen.file == path and seen.method == "GET"
    ]


def test_content_is_the_same_wherever_it_is_read_from(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below/a.bin").write_bytes(b"from disk")
    whole = Joined((Stated(b"head"), Generated("seed", 2 * MIB + 77), of_directory(tmp_path)["below/a.bin"]))
    data = b"".join(whole.read(0, whole.size))
    assert len(data) == whole.size == 4 + 2 * MIB + 77 + 9
    for start, end in ((0, 4), (3, 9), (MIB - 5, MIB + 40), (2 * MIB + 70, whole.size), (7, 7)):
        assert b"".join(whole.read(start, end)) == data[start:end]
    assert data[4 : 4 + MIB] != data[4 + MIB : 4 + 2 * MIB]
    assert b"".join(Generated("other", 64).read(0, 64)) != data[4:68]
    assert shard("a", 100_000).size == 100_000


def test_the_client_reads_revisions_files_and_licence(double):
    info = api(double).model_info(NAME, revision="v1", files_metadata=True)
    wanted = double.files(NAME, "v1")
    repository = double.repositories[NAME]
    assert info.sha == repository.tags["v1"] == api(double).model_info(NAME).sha
    assert (info.gated, info.private, info.card_data.license) == (False, False, "mit")
    assert {sibling.rfilename: sibling.size for sibling in info.siblings} == {
        path: size for path, (size, _) in wanted.items()
    }
    assert {sibling.rfilename: sibling.lfs.sha256 for sibling in info.siblings if sibling.lfs} == {
        path: wanted[path][1] for path in (SHARD, SECOND)
    }
    tree = {entry.path: entry for entry in api(double).list_repo_tree(NAME, revision=info.sha, recursive=True)}
    assert set(tree) == {*wanted, "tokenizer"}
    assert [entry.path for entry in api(double).list_repo_tree(NAME, "tokenizer")] == [
        "tokenizer/vocabulary with a space.txt"
    ]
    assert {entry.path for entry in api(double).list_repo_tree(NAME)} == {
        "tokenizer", *(path for path in wanted if "/" not in path)
    }  # fmt: skip
    [found] = api(double).get_paths_info(NAME, [SHARD, "none"], revision="next")
    assert (found.size, found.lfs.sha256, found.xet_hash) == (*wanted[SHARD], None)
    double.move(NAME, "main", "next")
    assert api(double).model_info(NAME).sha == repository.branches["next"] != info.sha
    assert {ref.name: ref.target_commit for ref in api(double).list_repo_refs(NAME).branches} == repository.branches


def test_a_download_goes_by_the_cdn_which_sees_no_token(double, tmp_path):
    for path in (SHARD, "tokenizer/vocabulary with a space.txt"):
        found = Path(hf_hub_download(NAME, path, endpoint=double.endpoint, token=READER, local_dir=tmp_path / "model"))
        assert hashlib.sha256(found.read_bytes()).hexdigest() == double.files(NAME)[path][1]
    assert bodies(double, SHARD) == [("cdn", "", 200, 2 * MIB, "")]
    assert {seen.host: seen.authorized for seen in double.requests} == {"hub": True, "cdn": False}
    assert double.sent(NAME, SHARD) == 2 * MIB
    assert double.sent(client="127.0.0.9") == 0


def test_the_directory_that_it_makes_is_complete(double, tmp_path):
    for path, content_of in double.repositories[NAME].find("main").files.items():
        place = tmp_path / path
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(b"".join(content_of.read(0, content_of.size)))
    entries, outside = content.listing(str(tmp_path))
    assert (content.missing(str(tmp_path), entries), outside) == ([], [])
    (tmp_path / SECOND).unlink()
    assert content.missing(str(tmp_path), content.listing(str(tmp_path))[0]) == [SECOND]


def test_a_part_is_sent_from_where_it_ends(double):
    whole = fetch(double)
    assert fetch(double, already=MIB) == whole[MIB:]
    assert bodies(double, SHARD)[1] == ("cdn", f"bytes={MIB}-", 206, MIB, "")
    location = get_hf_file_metadata(url(double), endpoint=double.endpoint).location
    assert httpx.get(location, headers={"Range": "bytes=10-19"}).content == whole[10:20]
    assert httpx.get(location, headers={"Range": "bytes=-5"}).content == whole[-5:]
    assert httpx.get(location, headers={"Range": f"bytes={2 * MIB}-"}).status_code == 416
    assert httpx.get(location.replace("Signature=", "Signature=0")).status_code == 403
    double.link_seconds = 0
    assert httpx.get(get_hf_file_metadata(url(double), endpoint=double.endpoint).location).status_code == 403


@pytest.mark.parametrize(
    ("token", "refusal"), [(False, (GatedRepoError, 401)), (STRANGER, (GatedRepoError, 403)), (READER, None)]
)
def test_a_gated_repository(double, token, refusal):
    assert api(double, token).model_info("org/gated").gated == "manual"
    place = url(double, "config.json", repository="org/gated")
    if refusal is None:
        assert get_hf_file_metadata(place, token=token, endpoint=double.endpoint).size == 191
        return
    with pytest.raises(refusal[0]) as error:
        get_hf_file_metadata(place, token=token, endpoint=double.endpoint)
    assert error.value.response.status_code == refusal[1]


def test_what_is_not_there(double):
    with pytest.raises(RepositoryNotFoundError):
        api(double, READER).model_info("org/none")
    with pytest.raises(RevisionNotFoundError):
        api(double).model_info(NAME, revision="v9")
    with pytest.raises(RemoteEntryNotFoundError):
        get_hf_file_metadata(url(double, "none.json"), endpoint=double.endpoint)
    with pytest.raises(HfHubHTTPError, match="Invalid credentials"):
        api(double, "hf_unknown").model_info(NAME)
    assert api(double, READER).whoami()["name"] == "reader"


def test_files_on_xet_are_announced_and_their_store_fails(double):
    metadata = get_hf_file_metadata(url(double, repository="org/xet"), endpoint=double.endpoint)
    assert metadata.xet_file_data is not None and len(metadata.xet_file_data.file_hash) == 64
    answer = httpx.get(metadata.xet_file_data.refresh_route)
    store = answer.headers["X-Xet-Cas-Url"]
    failed = httpx.get(f"{store}/v1/reconstructions/{metadata.xet_file_data.file_hash}")
    assert (failed.status_code, double.requests[-1].repository) == (500, "org/xet")
    double.repositories["org/xet"].cas = "silent"
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(f"{store}/v1/reconstructions/{metadata.xet_file_data.file_hash}", timeout=0.2)


@pytest.mark.parametrize(
    ("kind", "error"),
    [("truncate", httpx.RemoteProtocolError), ("reset", httpx.ReadError)],
)
def test_a_body_that_ends_early_does_so_once(double, kind, error):
    double.fault(kind, NAME, SHARD, at=MIB, times=1)
    with pytest.raises(error):
        fetch(double)
    assert len(fetch(double, already=MIB)) == MIB
    assert bodies(double, SHARD) == [("cdn", "", 200, MIB, kind), ("cdn", f"bytes={MIB}-", 206, MIB, "")]


def test_a_stall_lasts_until_the_client_leaves_and_past_its_place_there_is_none(double):
    whole = fetch(double)
    double.fault("stall", NAME, SHARD, at=MIB)
    location = get_hf_file_metadata(url(double), endpoint=double.endpoint).location
    with httpx.stream("GET", location, timeout=0.2) as answer, pytest.raises(httpx.ReadTimeout):
        list(answer.iter_bytes(MIB))
    assert fetch(double, already=MIB + 1) == whole[MIB + 1 :]
    assert [seen[3:] for seen in bodies(double, SHARD)] == [(2 * MIB, ""), (MIB, "stall"), (MIB - 1, "")]


def test_a_byte_is_another_and_a_size_is_wrong(double):
    whole = fetch(double)
    double.fault("corrupt", NAME, SHARD, at=77, times=1)
    spoilt = fetch(double)
    assert [place for place, pair in enumerate(zip(whole, spoilt, strict=True)) if pair[0] != pair[1]] == [77]
    assert fetch(double) == whole
    double.fault("size", NAME, SHARD, at=1000)
    assert fetch(double) == whole[:1000]
    double.clear()
    double.fault("size", NAME, SHARD, at=2 * MIB + 9)
    assert fetch(double) == whole + bytes(9)


def test_a_status_is_answered_as_often_as_it_is_stated(double):
    double.fault("status", NAME, SHARD, status=429, retry_after=7, times=2, host="cdn")
    location = get_hf_file_metadata(url(double), endpoint=double.endpoint).location
    answers = [httpx.get(location) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [429, 429, 200]
    assert answers[0].headers["Retry-After"] == "7"
    double.fault("status", NAME, times=1)
    with pytest.raises(HfHubHTTPError, match="503"):
        api(double).model_info(NAME)


def test_a_rate_is_kept_and_only_for_one_client(double):
    double.fault("slow", NAME, rate=20 * MIB, client="127.0.0.1")
    location = get_hf_file_metadata(url(double), endpoint=double.endpoint).location
    assert httpx.get(location).elapsed.total_seconds() < 60
    double.fault("stall", NAME, client="127.0.0.9")
    assert len(fetch(double)) == 2 * MIB
    assert [seen[4] for seen in bodies(double, SHARD)] == ["slow", "slow"]


def test_nobody_listens_and_then_somebody_does(double):
    double.fault("refuse", host="cdn")
    location = get_hf_file_metadata(url(double), endpoint=double.endpoint).location
    with pytest.raises(httpx.ConnectError):
        httpx.get(location)
    double.clear()
    assert httpx.get(location).status_code == 200


def test_it_is_steered_over_http_as_in_its_process(double):
    remote = Remote(double.endpoint)
    remote.fault("status", NAME, "config.json", status=503, times=1)
    assert httpx.get(url(double, "config.json")).status_code == 503
    assert [(fault.kind, fault.happened) for fault in remote.faults] == [("status", 1)]
    remote.clear()
    assert remote.faults == []
    assert (remote.requests, remote.sent(NAME)) == (double.requests, 0)
    assert remote.files(NAME, "next") == double.files(NAME, "next")
    remote.move(NAME, "main", "next")
    assert double.repositories[NAME].branches["main"] == double.repositories[NAME].branches["next"]
    remote.forget()
    assert double.requests == []
    with pytest.raises(Exception, match=r"POST faults said 400: .*fault 'none': one of stall"):
        remote.fault("none")


def test_it_leaves_no_thread_and_no_port(double):
    double.fault("stall", NAME, SHARD)
    location = get_hf_file_metadata(url(double), endpoint=double.endpoint).location
    with urllib.request.urlopen(location, timeout=5):
        threads = threading.active_count()
        double.close()
        for listener in double.listeners.values():
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(listener.address, timeout=1)
    assert threads > threading.active_count()
