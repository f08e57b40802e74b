"""Weights over NFS on the node that reads them: the mount before a rank, and the proof of what it holds."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from node import content, nfs, paths, wire

MOUNT = wire.Mount(paths.WEIGHTS_MOUNT_UNIT, "10.200.0.2:/srv/weights/glm", "ro,hard")
AT_THE_SERVER = "On the node that is 10.200.0.2: systemctl status nfs-server; sudo exportfs -ra"


class Programs:
    """What programs would answer, by their first words; those that were run."""

    def __init__(self, answers: dict[str, tuple[int, str]]) -> None:
        self.answers = answers
        self.ran: list[str] = []

    async def run(self, argv: Sequence[str], timeout: float) -> tuple[int, str]:
        assert timeout > 0
        line = " ".join(argv)
        self.ran.append(line)
        return next((answer for begins, answer in self.answers.items() if line.startswith(begins)), (0, ""))


def anew(tmp_path: Path, **answers: tuple[int, str]) -> list[str]:
    """Mount with these answers; what was run."""
    (tmp_path / MOUNT.unit).touch()
    words = {"restart": "systemctl restart", "check": " ".join(paths.PROGRAM), "journal": "journalctl"}
    programs = Programs({words[name]: answer for name, answer in answers.items()})
    asyncio.run(nfs.mount_anew(MOUNT, programs.run, tmp_path))
    return programs.ran


def test_it_is_mounted_anew_and_looked_at(tmp_path: Path) -> None:
    """Whatever was mounted before: no state of it is asked for."""
    assert anew(tmp_path) == [
        "systemctl restart mnt-sparkpair-weights.mount",
        "/usr/bin/python3 -sEB /usr/local/lib/sparkpair/main.py nfs check /mnt/sparkpair/weights",
    ]


def test_no_unit(tmp_path: Path) -> None:
    """A generation of NFS days, started after they were over."""
    with pytest.raises(nfs.MountError) as caught:
        asyncio.run(nfs.mount_anew(MOUNT, Programs({}).run, tmp_path))
    assert str(caught.value) == (
        f"this launch reads its weights over NFS from 10.200.0.2:/srv/weights/glm, and {tmp_path}/{MOUNT.unit} is not "
        'here; run deploy.py with weights = "nfs"'
    )


@pytest.mark.parametrize(
    ("answers", "wanted"),
    [
        (
            {"restart": (1, "Job failed."), "journal": (0, "Mounting\nmount.nfs4: Connection refused for x\nFailed")},
            f"10.200.0.2:/srv/weights/glm could not be mounted: Connection refused for x. {AT_THE_SERVER}",
        ),
        (
            {"restart": (124, "no answer within 100 s")},
            "10.200.0.2:/srv/weights/glm could not be mounted: systemctl status mnt-sparkpair-weights.mount says more. "
            + AT_THE_SERVER,
        ),
        ({"check": (124, "")}, f"10.200.0.2:/srv/weights/glm was mounted and does not answer. {AT_THE_SERVER}"),
        ({"check": (1, "noise\na.safetensors is not there\n")}, "a.safetensors is not there"),
        ({"check": (1, "")}, "10.200.0.2:/srv/weights/glm could not be looked at"),
    ],
    ids=["refused", "no end", "hangs", "other files", "nothing said"],
)
def test_what_does_not_work_is_told(tmp_path: Path, answers: dict[str, tuple[int, str]], wanted: str) -> None:
    with pytest.raises(nfs.MountError) as caught:
        anew(tmp_path, **answers)
    assert str(caught.value) == wanted


def shown(tmp_path: Path) -> tuple[Path, Path]:
    """A mounted directory of two files, and its manifest."""
    place, manifest = tmp_path / "mounted", tmp_path / "manifest.json"
    (place / "sub").mkdir(parents=True)
    (place / "config.json").write_text("{}")
    (place / "sub/a.safetensors").write_text("abc")
    files = [["config.json", 2, "1" * 64], ["sub/a.safetensors", 3, "2" * 64]]
    manifest.write_text(json.dumps({"directory": str(place), "identity": "i", "files": files}))
    return place, manifest


def test_what_was_verified_is_there(tmp_path: Path) -> None:
    place, manifest = shown(tmp_path)
    nfs.check(str(place), manifest)


def test_never_proven(tmp_path: Path) -> None:
    with pytest.raises(nfs.MountError, match=r"manifest.json is missing: /mnt was never proven; run deploy.py"):
        nfs.check("/mnt", tmp_path / "manifest.json")


def test_other_files_are_told(tmp_path: Path) -> None:
    place, manifest = shown(tmp_path)
    (place / "config.json").write_text("{ }")
    (place / "sub/a.safetensors").unlink()
    with pytest.raises(nfs.MountError) as caught:
        nfs.check(str(place), manifest)
    assert str(caught.value) == (
        f"{place} does not show the files that were verified on the server: config.json has 3 bytes, wanted 2, "
        "sub/a.safetensors is not there; run deploy.py"
    )


def test_the_first_few_are_named() -> None:
    with pytest.raises(nfs.MountError, match=r"a is not there, b is not there, c is not there, and 2 more; run deploy"):
        nfs.look("/none", "/none", [[name, 1, ""] for name in "abcde"])


def test_nobody_may_read_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root reads everything here, and is nobody over NFS."""
    place, _ = shown(tmp_path)

    def refuse(path: str, *_: object, **__: object) -> object:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(nfs, "open", refuse, raising=False)
    with pytest.raises(nfs.MountError) as caught:
        nfs.look(str(place), "10.200.0.2:/w", [["config.json", 2, ""]])
    assert str(caught.value) == (
        "10.200.0.2:/w: config.json cannot be read, since root is nobody over NFS; on the server, where the weights "
        "are: chmod -R a+rX ."
    )


def test_a_stale_handle_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(path: str) -> object:
        raise OSError(116, "Stale file handle", path)

    monkeypatch.setattr(os, "stat", stale)
    with pytest.raises(nfs.MountError, match=r"^/mnt/sparkpair/weights/a: Stale file handle$"):
        nfs.look("/mnt/sparkpair/weights", "/mnt/sparkpair/weights", [["a", 1, ""]])


def show(what: str, options: str, at: str) -> None:
    """In the place of a mount: what the server has."""
    assert (what, options) == (MOUNT.what, MOUNT.options)
    (Path(at) / "config.json").write_text("{}")
    (Path(at) / "sub").mkdir()
    (Path(at) / "sub/a.safetensors").write_text("abc")


def hide(at: str) -> None:
    """In the place of umount."""
    shutil.rmtree(at)
    Path(at).mkdir()


def test_what_cannot_be_unmounted_keeps_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of the server."""
    wanted = tmp_path / "wanted.json"
    ask = {"what": MOUNT.what, "options": MOUNT.options, "directory": "/mnt/w", "identity": "i", "files": []}
    wanted.write_text(json.dumps(ask))
    monkeypatch.setattr(nfs, "_mount", show)
    monkeypatch.setattr(nfs, "_unmount", lambda _: None)
    with pytest.raises(OSError, match="Directory not empty"):
        nfs.prove(wanted, tmp_path / "state", print, tmp_path)
    [place] = tmp_path.glob("sparkpair-nfs-*")
    assert sorted(path.name for path in place.rglob("*") if path.is_file()) == ["a.safetensors", "config.json"]


def test_a_proof_leaves_the_manifest_that_the_agent_goes_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's rows, the stamps from here, and which mount it was."""
    files = [["config.json", 2, "1" * 64], ["sub/a.safetensors", 3, "2" * 64]]
    wanted, state, directory = tmp_path / "wanted.json", tmp_path / "state", "/mnt/sparkpair/weights"
    ask = {"what": MOUNT.what, "options": MOUNT.options, "directory": directory, "identity": "i" * 64, "files": files}
    wanted.write_text(json.dumps(ask))

    monkeypatch.setattr(nfs, "_mount", show)
    monkeypatch.setattr(nfs, "_unmount", hide)
    said: list[str] = []
    nfs.prove(wanted, state, said.append, tmp_path)
    assert list(tmp_path.glob("sparkpair-nfs-*")) == []
    assert said == ["2 files (0.0 GiB) of 10.200.0.2:/srv/weights/glm are here over NFS"]
    kept = content.read_manifest(str(state / content.manifest_name(directory)), directory)
    assert kept is not None
    assert (kept["identity"], kept["files"]) == ("i" * 64, files)
    assert kept["mount"] == {"what": MOUNT.what, "options": MOUNT.options}
    assert [row[:2] for row in kept["stamps"]] == [["config.json", 2], ["sub/a.safetensors", 3]]  # type: ignore[attr-defined]


def test_nothing_is_recorded_of_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, state = tmp_path / "wanted.json", tmp_path / "state"
    ask = {"what": "a:/w", "options": "ro", "directory": "/mnt/w", "identity": "i", "files": [["config.json", 2, ""]]}
    wanted.write_text(json.dumps(ask))
    monkeypatch.setattr(nfs, "_mount", lambda *_: None)
    monkeypatch.setattr(nfs, "_unmount", lambda _: None)
    with pytest.raises(nfs.MountError, match=r"^a:/w does not show the files that were verified"):
        nfs.prove(wanted, state, print, tmp_path)
    assert not state.exists()


@pytest.mark.parametrize("words", [["check", "/none"], ["prove"]])
def test_a_failure_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert nfs.main(words) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "mount",
    [
        {"unit": "mnt-w.mount", "what": "a:/w"},
        {"unit": "mnt-w.mount", "what": "a:/w", "options": 1},
        {"unit": "sshd.service", "what": "a:/w", "options": "ro"},
        {"unit": "../x.mount", "what": "a:/w", "options": "ro"},
        "mnt-w.mount",
    ],
)
def test_a_rank_file_names_a_mount_unit_or_none(mount: object) -> None:
    text = {
        "rank": 0, "name": "n", "image": "i", "content": [], "container": [], "mounts": [], "directories": [],
        "env": [], "command": [],
    }  # fmt: skip
    assert wire.parse_rank(json.dumps(text)).mount is None
    with pytest.raises(wire.WireError, match=r"^rank file: mount "):
        wire.parse_rank(json.dumps({**text, "mount": mount}))
