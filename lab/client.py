"""What a deploy takes from a package index, fetched while the machine's own network is at hand: the simulated control
machine has no way there."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

from lab import hosts, settings
from lab.shell import LabError, digest, replace, say

PROGRAM = (
    "import json, os, platform, sys;"
    "print(json.dumps([os.uname().machine, platform.libc_ver()[1], *sys.version_info[:2]]))"
)
LOCK = settings.CHECKOUT / "requirements-hub.lock"


def fetch() -> None:
    """Have the product put the download client for the hosts' Python into the operator's cache. Once for each lock;
    without the checkout's environment, there is no product to ask."""
    python = settings.CHECKOUT / ".venv/bin/python"
    if not LOCK.exists() or not python.exists():
        return
    stamp = settings.CACHE / f"client-{digest(LOCK.read_text(), os.environ.get('XDG_CACHE_HOME', ''))}"
    if stamp.exists() and Path(stamp.read_text()).exists():
        return
    asked = hosts.exec_command(settings.HEAD, f"/usr/bin/python3 -c {shlex.quote(PROGRAM)}")
    machine, libc, major, minor = json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    argv = [str(python), "-m", "operations.hub", machine, libc, f"{major}.{minor}"]
    done = subprocess.run(argv, cwd=settings.CHECKOUT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"the download client could not be fetched: {done.stderr.strip()[-600:]}")
    say(f"the download client is in {done.stdout.strip()}")
    replace(stamp, done.stdout.strip())
