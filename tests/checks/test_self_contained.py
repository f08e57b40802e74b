"""What an image holds by itself: the program that looks, on a tree of our own, and what its answer says."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checks import self_contained
from checks.self_contained import EXIT, MARK
from operations import image_side
from operations.throwaway import command_line
from operations.verify_image import NAME
from spec.stacks import STACKS
from spec.stacks.image_checks import EXL3, ImageCheck
from tests.unit import pair

PROGRAM = Path(image_side.__file__).read_text(encoding="utf-8")


def look(tree: Path, *rows: list[Any]) -> list[str]:
    """What the program prints about a tree of packages, run as it is in a container."""
    asked = {"mark": MARK, "checks": [[row] for row in rows], "program": PROGRAM}
    done = subprocess.run(
        [sys.executable, "-c", image_side.BOOTSTRAP],
        input=json.dumps(asked), capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(tree), "PATH": str(tree / "bin"), "BAKED": "/here"},
    )  # fmt: skip
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    said: list[str] = json.loads(line.removeprefix(MARK))
    return [text.replace(str(tree), "TREE") for text in said]


def test_every_kind_of_look(tmp_path: Path) -> None:
    """Each finds what is there, and tells what it saw where it is not."""
    package = tmp_path / "engine/sub"
    package.mkdir(parents=True)
    (tmp_path / "engine/a.py").write_text("MARKER = 1\n")
    (package / "b.py").write_text("OTHER = 1\n")
    (package / "note.txt").write_text("no module")
    (tmp_path / "engine-1.2+gabc.dist-info").mkdir()
    (tmp_path / "engine-1.2+gabc.dist-info/METADATA").write_text("Name: engine\nVersion: 1.2+gabc\n")
    (tmp_path / "broken.py").write_text("raise SystemExit('not here')\n")
    command = tmp_path / "bin/engine"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    # What the reference kit's own line prints: find . -name '*.py' -type f | sort | xargs md5sum | md5sum
    lines = "".join(
        f"{hashlib.md5((tmp_path / 'engine' / name).read_bytes()).hexdigest()}  ./{name}\n"
        for name in ("a.py", "sub/b.py")
    )
    md5 = hashlib.md5(lines.encode()).hexdigest()
    assert (
        look(
            tmp_path,
            ["exists", "engine/a.py", "", []],
            ["exists", str(tmp_path), "", []],
            ["contains", "engine", "OTHER", []],
            ["contains", "engine/none.py", "MARKER", ["engine/a.py"]],
            ["variable", "BAKED", "/here", []],
            ["version", "engine", "gabc", []],
            ["tree", "engine", md5, []],
            ["imports", "engine", "", []],
            ["command", "engine", "", []],
        )
        == [""] * 9
    )
    assert look(
        tmp_path,
        ["exists", "engine/c.py", "", []],
        ["contains", "engine/a.py", "OTHER", []],
        ["contains", "engine/c.py", "MARKER", ["engine/d.py"]],
        ["variable", "BAKED", "/there", []],
        ["variable", "UNSET", "/there", []],
        ["version", "engine", "gdef", []],
        ["version", "other", "1", []],
        ["tree", "engine", "0" * 32, []],
        ["imports", "broken", "", []],
        ["command", "motor", "", []],
        ["tree", "motor", "", []],
    ) == [
        "engine/c.py is not there",
        "engine/a.py does not mention OTHER",
        "engine/c.py and engine/d.py are not there",
        "BAKED is '/here', wanted '/there'",
        "UNSET is not set, wanted '/there'",
        "engine is 1.2+gabc, wanted gdef in it",
        "other is not installed",
        f"engine has 2 modules with md5 {md5}, wanted {'0' * 32}",
        "import broken ended with code 1: not here",
        "no motor on TREE/bin",
        "motor is not there",
    ]


def test_what_is_asked_follows_the_release() -> None:
    """18 of the kit's 20 for its current image; of one that nobody names, only what every release has."""
    default = pair.cluster({})
    assert self_contained.release(default) == "v2.3"
    assert len(self_contained.asked(default)) == 18
    other = "ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark@sha256:" + "1" * 64
    older = pair.cluster({"image": other, "image_release": "v2.1", "use_b12x_fp8_gemm": False,
                          "kv_cache_memory_bytes": 12400000000})  # fmt: skip
    assert [check.statement for check in self_contained.asked(older) if check.releases] == [
        "vLLM is of commit 1d220461f", "b12x is that of its release",
    ]  # fmt: skip
    assert all(not check.releases for check in EXL3 if check.is_about(None))


@pytest.mark.parametrize("name", list(STACKS))
def test_every_look_can_be_carried_out(name: str) -> None:
    checks: tuple[ImageCheck, ...] = STACKS[name].image_checks
    assert checks
    assert {look.kind for check in checks for look in check.looks} <= set(image_side.LOOKS)
    releases = {"v1", "v2", "v2.1", "v2.2", "v2.3"}
    assert {release for check in checks for release in check.releases} <= releases


def told(*output: str) -> list[tuple[bool | None, str]]:
    return [
        (verdict.holds, verdict.text())
        for verdict in self_contained.read(pair.cluster(pair.UPSTREAM), "spark-a", output)
    ]


def test_a_verdict_for_each_check() -> None:
    seen = ["", "import vllm ended with code 1: no torch", ""]
    assert told("noise", MARK + json.dumps(seen), EXIT + "0") == [
        (True, "  spark-a: the vllm command is in it"),
        (
            False,
            "  spark-a: its Python can import vllm: no, import vllm ended with code 1: no torch\n"
            "    Fix: 192.168.77.1:5000/vllm-cpu@555555555555 is not whole: state an image that is, or the release "
            "that it is (image_release)",
        ),
        (True, "  spark-a: vllm's command line is in it"),
    ]


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ((EXIT + "75",), "another throwaway container ran all the time"),
        ((EXIT + "76",), "the node has too little memory to spare for a container"),
        ((EXIT + "137",), "the container was ended: it took too long, or more memory than it may"),
        (("docker: no space left", EXIT + "125"), "the container ended with code 125: docker: no space left"),
        ((MARK + "[]", EXIT + "0"), "the container ended with code 0"),
        ((), "the container ended with code unknown"),
    ],
)
def test_no_answer_is_not_an_answer(output: tuple[str, ...], why: str) -> None:
    name = "192.168.77.1:5000/vllm-cpu@555555555555"
    assert told(*output) == [
        (
            None,
            f"  spark-a: what the image {name} holds could not be read: {why}\n"
            "    Fix: make that answer, then run again",
        )
    ]


def test_the_container_is_small_and_alone() -> None:
    line = command_line(NAME, "sha256:9", ["-c", "x"], 1536, 2560 << 20, 150)
    assert line.startswith(": sparkpair-image-check; flock --wait 150 --conflict-exit-code 75 ")
    assert "--network none --read-only" in line and "--gpus" not in line
    assert "--entrypoint python3 sha256:9 -c x; code=$?; " in line
    assert line.endswith(f"echo {EXIT.strip()} $code")
