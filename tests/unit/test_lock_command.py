"""`python lock.py`: what it writes, what it says of what moved, and that a failure leaves the lock as it was."""

# Messages stand here in one piece.
# ruff: noqa: E501

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

import lock
from lab import hub as double
from lab.repositories import Repository, json_file, shard, text_file
from node import oci
from spec.lock import Mirror, parse
from tests import repository
from tests.facts import registry
from tests.unit import pair

pytestmark = pytest.mark.slow

FILES = {"README.md": text_file("# one"), "config.json": json_file({}), "model.safetensors": shard("a", 4096)}
DRAFTER = {"config.json": json_file({"draft": True}), "model.safetensors": shard("b", 2048)}


@dataclass
class Far:
    """The hub and the registry of a test, and the directory that it works in."""

    hub: double.Double
    registry: registry.Registry
    image: str
    place: Path
    stated: dict[str, Any] = field(default_factory=dict)

    def run(self, *, check: bool = False, **more: Any) -> int:
        """The command, with the settings of this pair."""
        return lock.run(pair.settings({**self.stated, **more}), check=check)

    @property
    def written(self) -> str:
        return (self.place / "sparkpair.lock").read_text(encoding="utf-8")


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    repositories = [
        Repository("lab/weights", licence="mit"),
        Repository("mirror/weights", licence="mit"),
        Repository("lab/drafter", licence="cc-by-nc-nd-4.0"),
    ]
    for made in repositories:
        made.commit(DRAFTER if made.name == "lab/drafter" else FILES)
    with double.serving(repositories) as hub, registry.serving() as images:
        manifest = images.image([7, 1 << 20])
        platform = {"os": "linux", "architecture": "arm64"}
        digest = images.add(oci.INDEX, {"manifests": [{"digest": manifest, "size": 1, "platform": platform}]}, "v1")
        stated = {
            **pair.UPSTREAM,
            "image": f"{images.name}@{digest}",
            "hub_endpoint": hub.endpoint,
            "weights_repository": "lab/weights",
            "weights_repository_fallback": "mirror/weights",
            "drafter_repository": "lab/drafter",
        }
        yield Far(hub, images, f"{images.name}@{digest}", tmp_path, stated)


def short(far: Far) -> str:
    return far.image[: far.image.index("sha256:") + 19]


def commit(far: Far, name: str) -> str:
    return far.hub.repositories[name].branches["main"]


def add(far: Far, name: str, files: dict[str, Any]) -> str:
    return far.hub.repositories[name].commit(files)


ACCEPT = """\
Before the drafter can be downloaded:
  lab/drafter is under cc-by-nc-nd-4.0 (CC BY-NC-ND 4.0: not for commercial purposes, and no changed copy may be passed on; it is downloaded from its source by each user, and never redistributed), and accepted_licences does not name it
  read it at lab/drafter; to accept it, state in group_data/all.py:
    accepted_licences = "cc-by-nc-nd-4.0"
"""


def test_a_first_lock(far: Far, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything is new; what waits for the operator's word comes with the line that gives it."""
    assert far.run() == 0
    mirror, weights, drafter = (commit(far, name)[:12] for name in ("mirror/weights", "lab/weights", "lab/drafter"))
    assert capsys.readouterr().out == (
        "sparkpair.lock: written; commit it\n"
        f"  image: {short(far)}: new\n"
        "    linux/arm64: 2 layers, 1.0 MiB\n"
        f"  weights: lab/weights main at {weights}: new, 3 files, 4.0 KiB\n"
        f"  drafter: lab/drafter main at {drafter}: new, 2 files, 2.0 KiB\n"
    ) + ACCEPT  # fmt: skip
    made = parse(far.written, "sparkpair.lock")
    assert made.weights is not None and made.image is not None and made.drafter is not None
    assert made.weights.mirrors == (Mirror("mirror/weights", commit(far, "mirror/weights")),)
    assert mirror == made.weights.mirrors[0].revision[:12]
    rows = {file.path: (file.size, file.sha256) for file in made.weights.files}
    assert rows == far.hub.files("lab/weights")
    assert made.image.reference == far.image
    assert (far.place / "sparkpair.lock").stat().st_mode & 0o777 == 0o644
    assert os.listdir(far.place) == ["sparkpair.lock"]


def test_an_accepted_licence_is_not_asked_for_again(far: Far, capsys: pytest.CaptureFixture[str]) -> None:
    assert far.run(accepted_licences="cc-by-nc-nd-4.0") == 0
    assert "Before" not in capsys.readouterr().out


def test_a_second_run_changes_nothing(far: Far, capsys: pytest.CaptureFixture[str]) -> None:
    far.run()
    before = (far.place / "sparkpair.lock").stat()
    capsys.readouterr()
    assert far.run() == 0
    assert capsys.readouterr().out == "sparkpair.lock: nothing moved\n" + ACCEPT
    assert (far.place / "sparkpair.lock").stat() == before
    assert far.run(check=True) == 0


def test_a_moved_branch_is_said_and_followed_only_when_asked(far: Far, capsys: pytest.CaptureFixture[str]) -> None:
    far.run()
    old, first = far.written, commit(far, "lab/weights")
    add(far, "lab/weights", {**FILES, "README.md": text_file("# two two"), "more.txt": text_file("x")})
    capsys.readouterr()
    assert far.run(check=True) == 2
    moved = (
        f"  weights: lab/weights: main moved from {first[:12]} to {commit(far, 'lab/weights')[:12]}\n"
        f"  weights: mirror mirror/weights at {commit(far, 'mirror/weights')[:12]}: no longer\n"
        "  weights: 1 added, 1 changed, of 4 files; 10 bytes to fetch\n"
        "    added more.txt (1 byte)\n"
        "    changed README.md (5 bytes -> 9 bytes)\n"
        "  mirror mirror/weights is left out: not the same files: README.md (other bytes), more.txt (missing)\n"
    )
    assert capsys.readouterr().out == f"sparkpair.lock: would change; make lock writes it\n{moved}{ACCEPT}"
    assert far.written == old
    assert far.run() == 0
    assert capsys.readouterr().out == f"sparkpair.lock: written; commit it\n{moved}{ACCEPT}"
    assert far.run(check=True) == 0


def test_a_moved_tag_is_said_and_never_followed(far: Far, capsys: pytest.CaptureFixture[str]) -> None:
    """The digest that the knob pins holds. The tag is known from the lock, where the image is the same."""
    far.run()
    tagged = far.written.replace('"ref": "",', '"ref": "v1",', 1)
    (far.place / "sparkpair.lock").write_text(tagged)
    capsys.readouterr()
    assert far.run(check=True) == 0
    newer = far.registry.image([9])
    far.registry.manifests["v1"] = far.registry.manifests[newer]
    capsys.readouterr()
    assert far.run(check=True) == 2
    said = f'  image: tag v1 moved to {newer}; what is locked is what image pins. To take the new one: image = "{far.registry.name}@{newer}"\n'
    assert capsys.readouterr().out == f"sparkpair.lock: nothing moved\n{said}{ACCEPT}"
    assert far.run() == 0
    assert far.written == tagged
    del far.registry.manifests["v1"]
    capsys.readouterr()
    assert far.run(check=True) == 0
    assert "  image: there is no tag v1 any more; what is locked is pinned by its digest\n" in capsys.readouterr().out


def test_a_mirror_that_does_not_answer_keeps_what_was_proven(far: Far, capsys: pytest.CaptureFixture[str]) -> None:
    """Its commit does not change. One that is gone is left out, and so is one of other weights."""
    far.run()
    far.hub.fault("status", "mirror/weights")
    capsys.readouterr()
    assert far.run(check=True) == 0
    busy = f"{far.hub.endpoint} answered 503 for mirror/weights: try again later"
    assert f"  mirror mirror/weights stays as it was locked: {busy}\n" in capsys.readouterr().out
    add(far, "lab/weights", {"config.json": json_file({"other": 1})})
    assert far.run(check=True) == 2
    assert f"  mirror mirror/weights is left out: {busy}\n" in capsys.readouterr().out
    far.hub.clear()
    add(far, "lab/weights", FILES)
    del far.hub.repositories["mirror/weights"]
    assert far.run(check=True) == 2
    assert (
        f"  mirror mirror/weights is left out: there is no mirror/weights at {far.hub.endpoint}, or it is private"
        in capsys.readouterr().out
    )


def test_a_damaged_lock_is_written_anew(far: Far, capsys: pytest.CaptureFixture[str]) -> None:
    far.run()
    good = far.written
    for damaged, why in ((b"\xff", "is no text"), (good[:50].encode(), "sparkpair.lock:4: is not JSON")):
        (far.place / "sparkpair.lock").write_bytes(damaged)
        capsys.readouterr()
        assert far.run(check=True) == 2
        assert capsys.readouterr().out.startswith("sparkpair.lock: cannot be used, since it was no lock: ")
        assert far.run() == 0
        out = capsys.readouterr().out
        assert out.startswith("sparkpair.lock: was written anew, since it was no lock: ") and why in out
        assert far.written == good


def test_every_failure_is_said_and_leaves_the_lock(far: Far, capsys: pytest.CaptureFixture[str]) -> None:
    """Of each source, at once."""
    far.run()
    old = far.written
    far.hub.fault("status", "lab/weights", status=503)
    far.hub.repositories["lab/drafter"].gated = True
    far.registry.down = 401
    with pytest.raises(lock.NotLocked) as error:
        far.run()
    assert list(error.value.lines) == [
        "Not locked; sparkpair.lock is as it was.",
        f"  weights: {far.hub.endpoint} answered 503 for lab/weights: try again later",
        f"  drafter: lab/drafter is gated, and this machine has no token: ask for access at {far.hub.endpoint}/lab/drafter, then log in on this machine: hf auth login",
        f"  image: {far.registry.name.partition('/')[0]} answered 401 for manifest {far.image.partition('@')[2]}: it asks for a login: docker login {far.registry.name.partition('/')[0]}, as the user who deploys",
    ]
    assert far.written == old


def test_what_is_no_token_is_not_sent(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_sécret")
    with pytest.raises(lock.NotLocked) as error:
        far.run()
    assert "cret" not in str(error.value)
    assert far.hub.requests == []


def test_a_token_reaches_a_gated_repository_and_no_text(
    far: Far, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    token = "hf_reader_of_the_simulated_hub"
    monkeypatch.setenv("HF_TOKEN", token)
    far.hub.repositories["lab/drafter"].gated = True
    assert far.run() == 0
    made = parse(far.written, "x")
    assert made.drafter is not None and made.drafter.gated
    assert token not in far.written + capsys.readouterr().out
    assert all(request.authorized for request in far.hub.requests if request.repository == "lab/drafter")


def test_a_place_that_cannot_be_written(far: Far, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(lock.NotLocked) as error:
        far.run(lock_file="locks/a.lock")
    assert list(error.value.lines) == ["locks/a.lock: cannot be written (No such file or directory); it is as it was"]
    (far.place / "locks").mkdir()
    assert far.run(lock_file="locks/a.lock") == 0
    (far.place / "here.lock").symlink_to("locks/a.lock")
    (far.place / "locks/a.lock").write_text("{")
    assert far.run(lock_file="here.lock") == 0
    assert (far.place / "here.lock").is_symlink()
    assert parse((far.place / "locks/a.lock").read_text(), "x").weights is not None
    assert sorted(os.listdir(far.place / "locks")) == ["a.lock"]
    (far.place / "dir.lock").mkdir()
    with pytest.raises(lock.NotLocked) as error:
        far.run(lock_file="dir.lock")
    assert list(error.value.lines) == ["dir.lock: cannot be read (Is a directory); knob lock_file names another"]


def test_without_repositories_the_image_alone_is_locked(far: Far, capsys: pytest.CaptureFixture[str]) -> None:
    settings = pair.settings({**pair.UPSTREAM, "image": far.image, "hub_endpoint": far.hub.endpoint})
    assert lock.run(settings, check=False) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"  image: {short(far)}: new",
        "    linux/arm64: 2 layers, 1.0 MiB",
        f"  weights and drafter: no repository is stated; {short(far)} alone is locked",
    ]
    assert far.hub.requests == []


def test_many_files_are_named_in_part(far: Far, capsys: pytest.CaptureFixture[str]) -> None:
    far.run()
    add(far, "lab/drafter", {**DRAFTER, **{f"{number:03}.txt": text_file("x") for number in range(25)}})
    capsys.readouterr()
    far.run()
    lines = capsys.readouterr().out.splitlines()
    assert "    added 019.txt (1 byte)" in lines and "    and 5 more" in lines
    assert "    added 020.txt (1 byte)" not in lines


# As a command


def test_the_settings_are_read_as_a_deploy_reads_them(far: Far, capsys: pytest.CaptureFixture[str]) -> None:
    """inventory.py and group_data/ of the directory, and --data over them; a damaged lock is no hindrance."""
    (far.place / "inventory.py").write_text((repository.ROOT / "inventory.py").read_text())
    (far.place / "group_data").mkdir()
    lines = [f"{name} = {value!r}" for name, value in far.stated.items() if name != "weights_repository"]
    (far.place / "group_data" / "all.py").write_text("\n".join(lines))
    (far.place / "sparkpair.lock").write_text("{")
    assert lock.main(["--data", "weights_repository=lab/weights"]) == 0
    said = capsys.readouterr()
    assert (said.out.partition(",")[0], said.err) == ("sparkpair.lock: was written anew", "")
    made = parse(far.written, "x")
    assert made.weights is not None and made.weights.repository == "lab/weights"
    assert lock.main(["--check", "--data", "max_num_seqs=0", "--data", "hub_endpoint=here"]) == 1
    assert capsys.readouterr() == (
        "",
        "Settings refused; no node was changed.\n"
        "  --data: max_num_seqs = 0: must be at least 1\n"
        '  --data: hub_endpoint = "here": must be an address such as https://huggingface.co, without user, password or query\n',
    )


def test_settings_arrive_as_they_were_read() -> None:
    """From the program that reads them, as JSON: every kind of value, and the nodes."""
    settings = pair.settings(
        {
            "engine_env": ["A=1", "B="], "gpu_memory_utilization": 0.8, "kv_cache_memory_bytes": "auto",
            "speculative_method": "", "weights_path": "~/w", "require_api_key": True, "max_num_batched_tokens": 4096,
        }
    )  # fmt: skip
    told = settings.model_dump_json(exclude={"lock"}, warnings=False)
    assert type(settings).model_validate_json(told) == settings


ASK_ALL = """
import sys
from spec.stated import main
for words in sys.argv[1:]:
    print(main(words.split()), file=sys.stderr)
"""


def test_files_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    """The operator's own Python among them, by file and line; no traceback."""
    (tmp_path / "inventory-cut.py").write_text("head = [\n\n")
    (tmp_path / "inventory-wrong.py").write_text("head = [nobody]\n")
    asked = ["inventory.py max_num_seqs=1", "inventory-cut.py", "inventory-wrong.py", "inventory-cut.py max_num_seqs"]
    command = [sys.executable, "-c", ASK_ALL, *asked]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr.splitlines() == [
        f"there is no inventory inventory.py in {tmp_path} (there: inventory-cut.py, inventory-wrong.py)",
        "1",
        "inventory-cut.py:1: '[' was never closed",
        "1",
        "inventory-wrong.py: NameError: name 'nobody' is not defined",
        "1",
        "--data max_num_seqs: must be knob=value",
        "1",
    ]
    assert done.stdout == ""
