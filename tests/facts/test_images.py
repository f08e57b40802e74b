"""Whether a bundle's image layout holds an image, by the very line that a node is asked."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from facts.images import BundleImage
from facts.values import Unknown

DIGEST, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def asked(layout: Path, digest: str = DIGEST) -> str | Unknown:
    line = BundleImage().command(str(layout), digest).get_raw_value()
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    found = BundleImage().process(["Welcome to DGX OS", *done.stdout.splitlines()])
    return found.replace(str(layout), "LAYOUT") if isinstance(found, str) else found


def test_what_a_bundle_holds(tmp_path: Path) -> None:
    assert asked(tmp_path) == "LAYOUT/index.json: No such file or directory"
    index = tmp_path / "index.json"
    index.write_text("{")
    assert asked(tmp_path) == "LAYOUT/index.json is damaged; copy it again"
    index.write_text(json.dumps({"manifests": [{"digest": DIGEST}]}))
    assert asked(tmp_path, OTHER) == f"it holds another image ({DIGEST[:19]})"
    assert asked(tmp_path) == "the manifest is not in it; copy it again"
    blob = tmp_path / "blobs/sha256" / DIGEST[7:]
    blob.parent.mkdir(parents=True)
    blob.touch()
    assert asked(tmp_path) == ""


def test_no_answer_is_unknown() -> None:
    assert BundleImage().process(["bash: python3: not found"]) == Unknown("it answered 'bash: python3: not found'")
