"""What Sparkpair takes of a host at one moment: memory, processes, descriptors, files, lines in the journal."""

from __future__ import annotations

import dataclasses
import json
import shlex
from dataclasses import dataclass

from lab.settings import Host
from tests.lab import pair

LOOK = r"""
import json, os, re, subprocess
pss = processes = descriptors = files = size = records = 0
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        home = open(f"/proc/{pid}/cgroup").read()
        words = open(f"/proc/{pid}/cmdline", "rb").read()
        unit = re.search(r"0::.*/(sparkpair[^/]*\.service)$", home, re.M)
        peer = b"sparkpair" in words and "docker" not in home and "0::/.." not in home
        if int(pid) == os.getpid() or not words or not (unit or peer):
            continue
        pss += int(re.search(r"^Pss: +([0-9]+)", open(f"/proc/{pid}/smaps_rollup").read(), re.M).group(1)) * 1024
        descriptors += len(os.listdir(f"/proc/{pid}/fd"))
        processes += 1
    except (OSError, AttributeError):
        continue  # it has ended meanwhile
for top in ("/var/lib/sparkpair", "/run/sparkpair"):
    for place, _, names in os.walk(top):
        for name in names:
            path = os.path.join(place, name)
            try:
                much = os.lstat(path).st_size
            except OSError:
                continue
            files += 1
            if name == "history.jsonl" or path.startswith("/var/lib/sparkpair/memory/"):
                records += much
            else:
                size += much
everything = sum(1 for pid in filter(str.isdigit, os.listdir("/proc")))
journal = len(subprocess.run(["journalctl", "--no-pager", "-q", "-o", "cat", "-u", "sparkpair-*"],
                             stdout=subprocess.PIPE, check=False).stdout)
print(json.dumps([pss, processes, descriptors, files, size, records, journal, everything]))
"""


@dataclass(frozen=True)
class Footprint:
    """Bytes and counts. The engine's containers are not ours, nor is what asks."""

    pss: int
    processes: int
    descriptors: int
    files: int
    file_bytes: int
    """Below /var/lib/sparkpair and /run/sparkpair, without the records."""
    record_bytes: int
    """The history and the memory recorder's record, each of which keeps itself in bounds."""
    journal_bytes: int
    """Text of our units in the journal, which journald itself keeps in bounds."""
    every_process: int
    """All processes of the host, the engine's among them."""

    def more_than(self, former: Footprint) -> dict[str, str]:
        """What has grown beyond what one more look, and the record of what happened, explain."""
        return {
            name: f"{getattr(former, name)} -> {getattr(self, name)}"
            for name, slack in SLACK.items()
            if getattr(self, name) > getattr(former, name) + slack
        }


SLACK = {"pss": 8 * 2**20, "processes": 1, "descriptors": 6, "files": 14, "file_bytes": 2**20, "every_process": 0}
"""Twelve kept logs and a record are what a pair may write that failed more often than it may; a keeper that reads its
agents' last lines holds a little more memory than one that never had to."""


def measure(host: Host) -> Footprint:
    """Look once, from within the host."""
    found = json.loads(pair.on(host, f"python3 -c {shlex.quote(LOOK)}"))
    return Footprint(*found)


def names() -> list[str]:
    """What is measured, in the order of the columns."""
    return [field.name for field in dataclasses.fields(Footprint)]
