"""Manifests and copies, with real files and a real rsync where it is installed."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from node import content, paths, weights
from node.weights import Copier, Copy, Module, Source, WeightsError, daemon_settings, differing, record

SHARD = "model-00001-of-00001.safetensors"


def quiet(_: str) -> None:
    """Nobody listens."""


def model(directory: Path, size: int = 1000) -> Path:
    """A small complete model directory."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / SHARD).write_bytes(bytes(range(256)) * (size // 256 + 1))
    index = {"metadata": {"total_size": size}, "weight_map": {"a": SHARD}}
    (directory / content.INDEX).write_text(json.dumps(index))
    (directory / ".cache").mkdir()
    (directory / ".cache/lock").write_text("not ours")
    return directory


def seen(directory: Path, state: Path) -> dict[str, object]:
    return content.describe(str(directory), str(state))


def test_a_manifest_holds_until_a_file_is_touched(tmp_path: Path) -> None:
    directory, state = model(tmp_path / "model"), tmp_path / "state"
    assert seen(directory, state)["identity"] is None
    identity = record(str(directory), state, quiet)
    now = seen(directory, state)
    assert now["identity"] == identity
    assert [row[0] for row in now["files"]] == ["config.json", SHARD, content.INDEX]  # type: ignore[index,attr-defined]
    os.utime(directory / "config.json", (1, 1))
    now = seen(directory, state)
    assert now["identity"] is None
    assert all(len(row[2]) == 64 for row in now["files"])  # type: ignore[index,attr-defined]
    assert record(str(directory), state, quiet) == identity


def test_the_identity_is_of_the_files_and_not_of_their_place(tmp_path: Path) -> None:
    one, two = model(tmp_path / "one"), model(tmp_path / "deep/two")
    assert record(str(one), tmp_path / "s1", quiet) == record(str(two), tmp_path / "s2", quiet)
    (two / SHARD).write_bytes(b"other")
    (two / content.INDEX).write_text(json.dumps({"weight_map": {"a": SHARD}}))
    assert record(str(one), tmp_path / "s1", quiet) != record(str(two), tmp_path / "s2", quiet)


def test_another_directorys_manifest_is_no_manifest(tmp_path: Path) -> None:
    """Whatever the file is called, the manifest says whose it is."""
    one, two = model(tmp_path / "one"), model(tmp_path / "two")
    state = tmp_path / "state"
    record(str(one), state, quiet)
    (state / content.manifest_name(str(one))).rename(state / content.manifest_name(str(two)))
    assert seen(two, state)["identity"] is None


def test_each_directory_has_names_of_its_own() -> None:
    """Readable, and apart where only the dashes differ; a file name may have 255 bytes."""
    assert content.manifest_name("/srv/models/tiny") == content.manifest_name("/srv/models/tiny/")
    assert content.manifest_name("/srv/models/tiny") == "srv-models-tiny-0f5db2c9.json"
    assert content.marker_name("/srv/models/tiny") == "srv-models-tiny-0f5db2c9.copying"
    assert paths.manifest_path("/srv/models/tiny") == paths.WEIGHTS / "srv-models-tiny-0f5db2c9.json"
    for name in (content.manifest_name, content.marker_name):
        assert name("/srv/models/a-b/c") != name("/srv/models/a/b-c")
        assert len(name("/srv" + "/long" * 100) + ".partial") < 255


def test_hashing_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, state = model(tmp_path / "model"), tmp_path / "state"
    hashed: list[str] = []
    broken = {SHARD}
    real = weights._hash

    def counting(path: str, progress: weights._Progress) -> str:
        if os.path.basename(path) in broken:
            raise OSError("power")
        hashed.append(os.path.basename(path))
        return real(path, progress)

    monkeypatch.setattr(weights, "READERS", 1)
    monkeypatch.setattr(weights, "_hash", counting)
    with pytest.raises(OSError, match="power"):
        record(str(directory), state, quiet)
    assert "config.json" in hashed
    hashed.clear()
    broken.clear()
    record(str(directory), state, quiet)
    assert SHARD in hashed
    assert "config.json" not in hashed
    assert sorted(path.name for path in state.iterdir()) == [content.manifest_name(str(directory))]


def test_what_is_missing(tmp_path: Path) -> None:
    directory = model(tmp_path / "model", 5000)

    def lacks() -> list[str]:
        return content.missing(str(directory), content.listing(str(directory))[0])

    assert lacks() == []
    (directory / SHARD).write_bytes(b"x" * 1000)
    assert lacks() == ["4000 of 5000 bytes of its shards"]
    (directory / SHARD).unlink()
    (directory / "config.json").unlink()
    assert lacks() == ["config.json", SHARD]
    (directory / content.INDEX).write_text("{")
    assert lacks()[-1].startswith(f"{content.INDEX} (unreadable: ")
    (directory / content.INDEX).unlink()
    assert lacks() == ["config.json", "*.safetensors"]
    with pytest.raises(WeightsError, match="lacks config"):
        record(str(directory), tmp_path / "state", quiet)


def test_links_that_lead_out_are_refused(tmp_path: Path) -> None:
    """As in a Hugging Face cache: the container sees the directory only."""
    directory = model(tmp_path / "model")
    (directory / "inside.json").symlink_to("config.json")
    assert "inside.json" in [entry[0] for entry in content.listing(str(directory))[0]]
    (tmp_path / "blob").write_text("x")
    (directory / "tokenizer.json").symlink_to("../blob")
    assert content.listing(str(directory))[1] == ["tokenizer.json"]
    with pytest.raises(WeightsError, match=r"tokenizer\.json links out of the directory"):
        record(str(directory), tmp_path / "state", quiet)


@pytest.mark.parametrize(
    ("target", "is_inside"),
    [
        ("config.json", True),
        ("sub/../config.json", True),
        ("sub/back", True),
        ("{root}/config.json", False),  # absolute: neither the container nor rsync's chroot has it there
        ("../model/config.json", False),  # out and in again, by a name that the container does not know
        ("sub/absolute", False),
        ("out/model/config.json", False),
        ("loop", False),
    ],
)
def test_a_link_must_stay_inside_on_its_whole_way(tmp_path: Path, target: str, is_inside: bool) -> None:
    directory = model(tmp_path / "model")
    (directory / "sub").mkdir()
    (directory / "sub/back").symlink_to("../config.json")
    (directory / "sub/absolute").symlink_to(directory / "config.json")
    (directory / "out").symlink_to("..")
    (directory / "loop").symlink_to("loop")
    (directory / "it").symlink_to(target.format(root=directory))
    entries, outside = content.listing(str(directory))
    assert set(outside) == {"sub/absolute", "out", "loop"} | (set() if is_inside else {"it"})
    assert ("it" in [entry[0] for entry in entries]) is is_inside


def test_differing_reads_the_bytes(tmp_path: Path) -> None:
    directory, state = model(tmp_path / "model"), tmp_path / "state"
    record(str(directory), state, quiet)
    manifest = content.read_manifest(str(state / content.manifest_name(str(directory))), str(directory))
    assert manifest is not None
    assert differing(str(directory), manifest, quiet) == []
    text = (directory / SHARD).read_bytes()
    (directory / SHARD).write_bytes(text[:-1] + b"?")
    (directory / "config.json").unlink()
    assert differing(str(directory), manifest, quiet) == ["config.json", SHARD]


def test_the_daemons_settings() -> None:
    text = daemon_settings(
        [Module("weights", "/home/al ice/m")], "10.200.0.1", ["10.200.0.2", "10.200.1.2"], Path("/state"), Path("/pid")
    )
    assert text == (
        "address = 10.200.0.1\nport = 8730\npid file = /pid\nlock file = /pid.lock\n"
        "log file = /dev/stderr\nuid = root\ngid = root\n"
        "use chroot = yes\nread only = yes\nlist = no\nhosts allow = 10.200.0.2 10.200.1.2\nhosts deny = *\n"
        "reverse lookup = no\ntimeout = 120\nmax connections = 4\n"
        "\n[weights]\npath = /home/al ice/m\n\n[manifests]\npath = /state\n"
    )


@pytest.mark.parametrize("path", ["/a%b", "/a\nread only = no", "/a#b", " /a", "/a]"])
def test_a_path_that_the_daemon_would_read_otherwise_is_refused(path: str) -> None:
    with pytest.raises(WeightsError, match="characters that the rsync daemon cannot take"):
        daemon_settings([Module("weights", path)], "10.200.0.1", ["10.200.0.2"], Path("/s"), Path("/p"))


needs_rsync = pytest.mark.skipif(shutil.which("rsync") is None, reason="needs rsync")


class Pair:
    """A served source and a place to copy to, on this computer's loopback."""

    def __init__(self, place: Path) -> None:
        self.source = model(place / "source/model", 300_000)
        self.state = place / "source-state"
        self.identity = record(str(self.source), self.state, quiet)
        self.target = place / "target/deep/model"
        self.target_state = place / "target-state"
        self.net = place / "net"
        self.carrier("rail0", True)
        self.carrier("rail1", True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        settings = (
            f"address = 127.0.0.1\nport = {self.port}\nuse chroot = no\nlog file = {place}/log\n"
            f"[weights]\npath = {self.source}\nread only = yes\n[manifests]\npath = {self.state}\nread only = yes\n"
        )
        if os.getuid() == 0:
            settings = "uid = root\ngid = root\n" + settings
        (place / "rsyncd.conf").write_text(settings)
        self.daemon = subprocess.Popen(["rsync", "--daemon", "--no-detach", f"--config={place}/rsyncd.conf"])
        self.said: list[str] = []
        until = time.monotonic() + 5
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.02)

    def carrier(self, netdev: str, up: bool) -> None:
        (self.net / netdev).mkdir(parents=True, exist_ok=True)
        (self.net / netdev / "carrier").write_text("1" if up else "0")

    def copier(self, *netdevs: str) -> Copier:
        ways = [Source("127.0.0.1", netdev) for netdev in netdevs or ("rail0", "rail1")]
        return Copier(ways, getpass.getuser(), self.target_state, self.said.append, self.port, self.net)

    @property
    def wanted(self) -> Copy:
        return Copy("weights", content.manifest_name(str(self.source)), self.identity, str(self.target))


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    both = Pair(tmp_path)
    yield both
    both.daemon.terminate()
    both.daemon.wait()


@needs_rsync
def test_a_copy_is_whole_and_proven(pair: Pair) -> None:
    pair.copier().copy(pair.wanted)
    now = seen(pair.target, pair.target_state)
    assert (now["identity"], now["copying"]) == (pair.identity, None)
    assert (pair.target / SHARD).read_bytes() == (pair.source / SHARD).read_bytes()
    assert not (pair.target / ".cache").exists()
    assert sorted(path.name for path in pair.target_state.iterdir()) == [content.manifest_name(str(pair.target))]


@needs_rsync
def test_an_unfinished_copy_is_told_from_weights_and_goes_on(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "differing", lambda *_: (_ for _ in ()).throw(WeightsError("killed")))
    with pytest.raises(WeightsError, match="killed"):
        pair.copier().copy(pair.wanted)
    monkeypatch.undo()
    now = seen(pair.target, pair.target_state)
    assert (now["identity"], now["copying"]) == (None, pair.identity)
    (pair.target / SHARD).write_bytes((pair.source / SHARD).read_bytes()[:1000])
    pair.copier().copy(pair.wanted)
    assert seen(pair.target, pair.target_state)["identity"] == pair.identity


@needs_rsync
def test_other_bytes_of_the_same_size_and_time_are_taken_again(pair: Pair) -> None:
    pair.copier().copy(pair.wanted)
    status = (pair.target / SHARD).stat()
    data = (pair.target / SHARD).read_bytes()
    (pair.target / SHARD).write_bytes(b"?" + data[1:])
    os.utime(pair.target / SHARD, ns=(status.st_atime_ns, status.st_mtime_ns))
    pair.copier().copy(pair.wanted)
    assert (pair.target / SHARD).read_bytes() == data
    assert f"taking 1 files again: {SHARD}" in pair.said


@needs_rsync
def test_the_second_rail_when_the_first_has_no_carrier(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "RETRY_SECONDS", 0.01)
    pair.carrier("rail0", False)
    pair.copier().copy(pair.wanted)
    assert seen(pair.target, pair.target_state)["identity"] == pair.identity


@needs_rsync
def test_no_rail_at_all_is_given_up(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "RETRY_SECONDS", 0.01)
    pair.carrier("rail0", False)
    with pytest.raises(WeightsError, match="nothing arrives: rail0 has no carrier"):
        pair.copier("rail0").copy(pair.wanted)


@needs_rsync
def test_files_that_the_source_has_not_are_left_and_told(pair: Pair) -> None:
    pair.target.mkdir(parents=True)
    (pair.target / "mine.txt").write_text("x")
    with pytest.raises(WeightsError, match=r"holds mine\.txt, which the source has not"):
        pair.copier().copy(pair.wanted)
    assert (pair.target / "mine.txt").exists()


@needs_rsync
def test_a_source_that_changed_is_not_copied(pair: Pair) -> None:
    (pair.source / "config.json").write_text('{"x": 1}')
    record(str(pair.source), pair.state, quiet)
    with pytest.raises(WeightsError, match=f"the source's manifest is not {pair.identity[:12]} any more"):
        pair.copier().copy(pair.wanted)


@pytest.mark.parametrize("words", [["hash"], ["copy", "--owner", "x"], ["serve", "weights=/x"], ["frobnicate"], []])
def test_wrong_usage_exits_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        weights.main(words)
    assert end.value.code == 2
    assert "usage: main.py weights" in capsys.readouterr().err


def test_what_cannot_be_done_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert weights.main(["hash", str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
