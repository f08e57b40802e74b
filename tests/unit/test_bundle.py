"""A bundle: what goes into it, what stands in it, and that it is made once, goes on, and shows every wrong byte."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import bundle
from lab import hub as hubs
from lab.hub import Double
from lab.repositories import MIB, text_file
from node import oci, relay
from node.errand import Hub
from node.layout import Layout
from node.registry import Image
from spec import bundle as texts
from spec.bundle import NotBundled, Parts
from spec.lock import FileSet, Lock, LockedFile, LockedImage, LockedLayer, LockedPlatform, text
from tests.node.staging import NAME, Threads, files, repository_of
from tests.node.test_registry import CONFIG, Far, name
from tests.unit import pair
from tests.unit.test_lock import LOCK, WEIGHTS

pytestmark = pytest.mark.slow

DRAFTER = "owner/drafter"
NC = "cc-by-nc-nd-4.0"


@dataclass
class Source:
    """The far side, the lock of it, and a directory to fill."""

    hub: Double
    registry: Far
    directory: Path

    def file_set(self, repository: str, licence: str) -> FileSet:
        rows = sorted((path, *row) for path, row in self.hub.files(repository).items())
        revision = self.hub.repositories[repository].branches["main"]
        held = tuple(LockedFile(*row) for row in rows)
        return FileSet(repository, "main", revision, licence, False, (), held)

    @property
    def lock(self) -> Lock:
        layers = tuple(LockedLayer(name(data), len(data)) for data in self.registry.layers)
        platform = LockedPlatform(self.registry.manifest, name(CONFIG), layers)
        image = LockedImage(
            f"{self.registry.place}/team/engine", "v1", self.registry.index, {"linux/arm64": platform}
        )  # fmt: skip
        return Lock(image, self.file_set(NAME, "mit"), self.file_set(DRAFTER, NC))

    def parts(self, accepted: str = NC) -> Parts:
        return texts.parts(self.lock, "linux/arm64", accepted)

    def fill(self, accepted: str = NC) -> list[str]:
        far = Hub(self.hub.endpoint, "/nowhere")
        return list(bundle.fill(self.directory, text(self.lock), self.parts(accepted), far, 60.0, Threads))

    def check(self) -> tuple[int, list[str]]:
        said: list[str] = []
        return bundle.check(self.directory, said.append), said

    def here(self) -> set[str]:
        """Every file, what the command remembers apart."""
        found = {str(path.relative_to(self.directory)) for path in self.directory.rglob("*") if path.is_file()}
        return {path for path in found if not path.startswith(".sparkpair/")}


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    far = Far()
    repositories = [repository_of(files(2, 1)), repository_of({"config.json": text_file("{}\n")}, DRAFTER)]
    with hubs.serving(repositories) as double:
        yield Source(double, far, tmp_path / "bundle")
    far.server.shutdown()
    far.server.server_close()


def test_a_bundle_is_made_once(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    """All that the lock names, readable by others' tools and by our registry; a second run moves nothing."""
    told = source.fill()
    blobs = {f"image/blobs/sha256/{digest[7:]}" for digest in source.registry.blobs}
    blobs |= {texts.blob(digest) for digest in (source.registry.index, source.registry.manifest)}
    model = {f"weights/{path}" for path in files(2, 1)}
    drafter = {"drafter/config.json", "drafter/FOR-OWN-USE-ONLY.txt"}
    layout = {"image/index.json", "image/oci-layout"}
    assert source.here() == {"README.txt", "sparkpair.lock", "SHA256SUMS", *layout, *blobs, *model, *drafter}
    assert told == [
        f"{source.directory}: 9 files, 8.0 MiB, as sparkpair.lock says; SHA256SUMS is written",
        f"For own use only: drafter ({NC}); drafter/FOR-OWN-USE-ONLY.txt says so",
    ]
    assert (source.directory / "sparkpair.lock").read_text() == text(source.lock)
    assert (
        subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=source.directory, check=False).returncode == 0
    )
    assert set(texts.read_sums((source.directory / "SHA256SUMS").read_text())) == source.here() - {"SHA256SUMS"}
    assert source.check()[0] == 0
    served = Image("team/engine", source.registry.index, Layout(source.directory / "image"))
    assert served.size(name(source.registry.layers[0])) == len(source.registry.layers[0])
    moved, asked = source.hub.sent(), len(source.registry.asked)
    assert moved == 3 * MIB + 3 + 3
    assert source.fill() == told
    assert (source.hub.sent(), len(source.registry.asked)) == (moved, asked)
    assert "weights: 3 files, 3.0 MiB, are there" in capsys.readouterr().out.splitlines()


def test_what_was_interrupted_goes_on(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that broke off is not fetched whole again; a file or a layer that was removed comes alone."""
    monkeypatch.setattr(relay, "FIRST_WAIT_SECONDS", 0.05)
    layer = source.registry.layers[0]
    source.registry.faults = ["cut", "", ""]
    source.fill()
    assert source.registry.sent[name(layer)] < len(layer) * 1.1
    shard = source.directory / "weights/model-0.safetensors"
    shard.unlink()
    (source.directory / texts.blob(name(layer))).unlink()
    before, layers = source.hub.sent(), dict(source.registry.sent)
    source.fill()
    assert source.hub.sent() - before == 2 * MIB
    assert {digest for digest, count in source.registry.sent.items() if count != layers[digest]} == {name(layer)}
    assert source.check()[0] == 0


def test_every_wrong_byte_is_shown(source: Source, capsys: pytest.CaptureFixture[str]) -> None:
    """Other bytes, and what is not there, by name; nothing else is."""
    source.fill()
    shard = source.directory / "weights/model-1.safetensors"
    wanted = hashlib.sha256(shard.read_bytes()).hexdigest()
    shard.write_bytes(b"\0" + shard.read_bytes()[1:])
    found = hashlib.sha256(shard.read_bytes()).hexdigest()
    (source.directory / "drafter/config.json").unlink()
    capsys.readouterr()
    assert source.check() == (1, [])
    assert capsys.readouterr().out.splitlines() == [
        f"{source.directory}: 2 of 14 files are not as SHA256SUMS says",
        "drafter/config.json: is not there",
        f"weights/model-1.safetensors: other bytes (sha256 {found[:12]}, wanted {wanted[:12]})",
        "Fix: remove these files, and run make bundle again where there is internet: it brings them, no others",
    ]


def test_without_acceptance_there_is_no_drafter(source: Source) -> None:
    """Not a byte of it is fetched; what the pair needs instead is said, here and in the bundle."""
    told = source.fill(accepted="")
    assert told[1] == (
        f"Not in it: the drafter: {DRAFTER} is under {NC} (CC BY-NC-ND 4.0: not for commercial purposes, and no "
        "changed copy may be passed on; it is downloaded from its source by each user, and never redistributed), and "
        "accepted_licences does not name it"
    )
    assert told[2:] == [
        '  read it at the repository; to accept it, state in group_data/all.py: accepted_licences = "cc-by-nc-nd-4.0"',
        '  Without it the pair needs another drafter, or none: preset = "mtp-fallback", or speculative_method = ""',
    ]
    assert not (source.directory / "drafter").exists()
    assert f"\nNot in it: the drafter. {DRAFTER} is under {NC} (" in (source.directory / "README.txt").read_text()
    assert not [request for request in source.hub.requests if request.repository == DRAFTER]


def test_an_unfinished_bundle_is_none(source: Source) -> None:
    """As long as something lacks there is no SHA256SUMS, that of an earlier lock neither."""
    source.fill()
    source.registry.blobs.clear()
    (source.directory / texts.blob(name(source.registry.layers[1]))).unlink()
    with pytest.raises(NotBundled, match=r"image: .* answered 404 for blob"):
        source.fill()
    assert not (source.directory / "SHA256SUMS").exists()
    with pytest.raises(NotBundled, match="has no SHA256SUMS: it is no bundle, or one that is not finished"):
        source.check()


def test_blobs_of_an_earlier_lock_go(source: Source) -> None:
    """A bundle that is made again from a newer lock does not grow."""
    blobs = source.directory / texts.BLOBS
    blobs.mkdir(parents=True)
    (blobs / ("0" * 64)).write_bytes(b"old")
    (blobs / f"{'1' * 64}.part").write_bytes(b"half")
    (blobs / name(source.registry.layers[1])[7:]).write_bytes(b"shorter")
    source.fill()
    assert source.check()[0] == 0
    assert {path.name for path in blobs.iterdir()} == {
        digest[7:] for digest in (*source.registry.blobs, source.registry.index, source.registry.manifest)
    }


def test_a_disk_that_is_too_small_is_refused_first(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a layer or a file is fetched."""
    monkeypatch.setattr(bundle, "SPARE_BYTES", 1 << 60)
    with pytest.raises(NotBundled) as refused:
        source.fill()
    form = r"\S+/bundle: [\d.]+ GiB free, and 8\.0 MiB are still to come"
    assert re.fullmatch(form, refused.value.lines[0])
    assert refused.value.lines[1] == "free some of it, or name a directory on another disk"
    assert source.hub.requests == []
    assert source.registry.sent == {}


def test_what_arrived_of_a_layer_needs_no_room_again(tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    assert bundle._missing(blob, 100) == 100
    (tmp_path / "blob.part").write_bytes(bytes(30))
    assert bundle._missing(blob, 100) == 70
    blob.write_bytes(bytes(100))
    assert bundle._missing(blob, 100) == 0


def test_a_lock_of_which_no_bundle_can_be_made(source: Source) -> None:
    """Every reason at once."""
    lock = source.lock
    with pytest.raises(NotBundled) as refused:
        texts.parts(replace(lock, weights=None), "linux/riscv64", "")
    assert refused.value.lines == (
        "the image in the lock is for linux/arm64, not for linux/riscv64; name one of them with --platform",
        "the lock names no weights: state weights_repository, then make lock",
    )
    assert lock.weights is not None
    with pytest.raises(NotBundled) as refused:
        texts.parts(Lock(None, replace(lock.weights, licence=""), None), "linux/arm64", "")
    assert refused.value.lines == (
        "the lock names no image; run make lock",
        f"weights: {NAME} is under unknown (the repository states no licence; ask its owner what you may do), and "
        "accepted_licences does not name it\nread it at the repository; to accept it, state in group_data/all.py: "
        'accepted_licences = "unknown"',
    )


def test_the_index_names_what_the_settings_pin(source: Source) -> None:
    """The digest of knob `image`, and the manifest of the platform; one entry where they are the same."""
    parts = source.parts()
    kinds = {source.registry.index: (oci.INDEX, 7), source.registry.manifest: (oci.MANIFEST, 9)}
    pinned = {"mediaType": oci.INDEX, "digest": source.registry.index, "size": 7,
              "annotations": {"org.opencontainers.image.ref.name": "v1"}}  # fmt: skip
    held = {"mediaType": oci.MANIFEST, "digest": source.registry.manifest, "size": 9,
            "platform": {"os": "linux", "architecture": "arm64"}}  # fmt: skip
    assert json.loads(texts.index(parts, kinds)) == {"schemaVersion": 2, "manifests": [pinned, held]}
    single = replace(parts, image=replace(parts.image, digest=source.registry.manifest, ref=""))
    [entry] = json.loads(texts.index(single, {source.registry.manifest: (oci.MANIFEST, 9)}))["manifests"]
    assert entry == {**held, "annotations": {"org.opencontainers.image.ref.name": source.registry.manifest}}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("no sums", "line 1 is no line of sha256sum"),
        (f"{'a' * 64}  ../x", "line 1 names a file outside of the bundle"),
        (f"{'a' * 64}  /etc/x", "line 1 names a file outside of the bundle"),
        (f"{'g' * 64}  x", "line 1 is no line of sha256sum"),
    ],
)
def test_sums_that_are_none(line: str, why: str) -> None:
    """What comes from a stick is read with care."""
    with pytest.raises(ValueError, match=re.escape(why)):
        texts.read_sums(line)


def test_readme(source: Source) -> None:
    """What a person finds, whole."""
    parts = source.parts()
    revision = {name: held.revision for name, held in parts.sets.items()}
    assert texts.readme(parts, 9, "8.0 MiB") == (
        "A bundle of Sparkpair: all that a pair of DGX Sparks without internet needs to serve,\n"
        "9 files, 8.0 MiB. Made from sparkpair.lock, which is beside this file.\n"
        "\n"
        f"  image/      {parts.image.name}\n"
        f"              {parts.image.digest}, for linux/arm64\n"
        f"  weights/    {NAME} at {revision['weights']}\n"
        "              licence: mit\n"
        f"  drafter/    {DRAFTER} at {revision['drafter']}\n"
        f"              licence: {NC}; FOR OWN USE ONLY, see drafter/FOR-OWN-USE-ONLY.txt\n"
        "\n"
        "Use it: copy this directory whole to a disk of one of the nodes (one is enough), state where in that\n"
        'node\'s entry of inventory.py, "bundle_path": "/path/to/it", and deploy with the same sparkpair.lock.\n'
        "The other node gets everything over the rails. Afterwards the disk may be taken away.\n"
        "\n"
        "Check it: in this directory, sha256sum --quiet -c SHA256SUMS\n"
    )


def test_without_a_lock_there_is_no_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line with the fix."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotBundled) as refused:
        bundle.lock_text("sparkpair.lock")
    assert refused.value.lines == (
        "sparkpair.lock is not there: a bundle is made from the lock file; make lock writes it",
    )
    (tmp_path / "sparkpair.lock").write_bytes(b"\xff\xfe")
    with pytest.raises(NotBundled, match=r"sparkpair\.lock is no text; make lock writes it anew"):
        bundle.lock_text("sparkpair.lock")


def test_the_lock_must_be_of_the_settings() -> None:
    """Every pair would refuse what is made of another one."""
    settings = pair.settings({"weights_revision": "v2"})
    assert bundle.of_settings(pair.settings(), text(LOCK)) == LOCK
    with pytest.raises(NotBundled) as refused:
        bundle.of_settings(settings, text(LOCK))
    assert refused.value.lines == (
        f"sparkpair.lock: weights are main of {WEIGHTS.repository}, and the settings say v2; run make lock",
    )
    with pytest.raises(NotBundled, match=r"sparkpair\.lock:1: is not JSON"):
        bundle.of_settings(settings, "{")
