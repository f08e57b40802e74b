"""Rows about the deep check: a byte that changed under unchanged metadata is found, and that file alone is brought
again, while the pair goes on serving."""

from __future__ import annotations

import subprocess
import sys

from lab import settings
from lab.hub_service import Remote
from lab.settings import HOSTS, WORKER
from tests.lab import pair, staging
from tests.lab.chaos import Row
from tests.lab.staging import Errand

TINY = Errand("lab/tiny")
SHARD = "model.safetensors"
ROT = (
    "import os, sys; path = sys.argv[1]; was = os.stat(path); file = os.open(path, os.O_RDWR); "
    "byte = os.pread(file, 1, was.st_size - 1); os.pwrite(file, bytes([byte[0] ^ 1]), was.st_size - 1); "
    "os.fsync(file); os.close(file); os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))"
)
"""One bit of the last byte, and nothing that metadata would show."""


def verify(*arguments: str, seconds: float = 300) -> pair.Run:
    """verify.py as Python runs it, on the control machine."""
    done = subprocess.run(
        [sys.executable, "../verify.py", *TINY.data(), *arguments],
        cwd=settings.SOURCE, capture_output=True, text=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return pair.Run(done.returncode, done.stdout + done.stderr, 0.0)


def silent_damage() -> str:
    """A bit turns on the worker's disk: metadata shows nothing, --deep does, and a deploy brings that file alone."""
    staging.forget(TINY)
    staging.locked(TINY)
    run = pair.deploy(*TINY.data())
    assert run.code == 0, run.text[-2500:]
    well = verify("--deep")
    assert well.code == 0, well.text[-2500:]
    for host in HOSTS.values():
        assert f"{host.hostname}: deep check of 20" in well.text, well.text[-2500:]
    assert "every byte as proven" in well.text, well.text[-2500:]
    before, far = pair.containers(), Remote()
    far.forget()
    path = f"{TINY.directory}/{SHARD}"
    pair.on(WORKER, f"python3 -c '{ROT}' {path}")
    quick = verify()
    assert quick.code == 0, "metadata alone showed it: " + quick.text[-1500:]
    deep = verify("--deep")
    wanted = f"{WORKER.hostname}: the deep check found other bytes in {path}"
    assert deep.code == 1, deep.text[-2500:]
    assert wanted in deep.text, deep.text[-2500:]
    assert pair.on(WORKER, "systemctl is-failed sparkpair-weights-deep.service", check=False).strip() == "failed"
    mend = pair.deploy(*TINY.data())
    assert mend.code == 0, mend.text[-2500:]
    staging.assert_arrived(TINY)
    again = verify("--deep")
    assert again.code == 0, again.text[-2500:]
    assert pair.containers() == before, "a rank was restarted"
    assert far.sent() == 0, f"the hub sent {far.sent()} bytes"
    assert staging_plan() == {}
    return "found by --deep alone; mended from the head, nothing from the hub, no rank restarted"


def staging_plan() -> dict[str, list[str]]:
    """What a deploy would change."""
    return pair.dry(*TINY.data()).plan


ROWS = [Row("a bit turns in a file of the weights", "contract", silent_damage)]
