"""Sent into a throwaway container of an image and run there by the image's own Python, 3.8 or later: looks at what the
image holds, and prints one line."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from typing import Any

LONGEST = 300
"""Characters of what was seen that are told."""
BOOTSTRAP = (
    "import json, sys\n"
    "ask = json.load(sys.stdin)\n"
    "space = {'__name__': 'image_side'}\n"
    "exec(compile(ask['program'], '<image_side>', 'exec'), space)\n"
    "space['main'](ask)\n"
)


def main(ask: dict[str, Any]) -> None:
    """Print, for each check, what was seen instead: nothing where every look found what it must."""
    seen = [next(filter(None, (look(*one) for one in looks)), "") for looks in ask["checks"]]
    sys.stdout.write("\n" + ask["mark"] + json.dumps(seen) + "\n")
    sys.stdout.flush()


def look(kind: str, at: str, wanted: str, others: list[str]) -> str:
    """What was seen instead; "" where it is as it must be."""
    try:
        return str(LOOKS[kind](at, wanted, others))[:LONGEST]
    except (OSError, ValueError, ImportError, subprocess.SubprocessError) as error:
        return f"{type(error).__name__}: {error}"[:LONGEST]


def exists(at: str, wanted: str, others: list[str]) -> str:
    """A file or directory."""
    return "" if place(at) else f"{at} is not there"


def contains(at: str, wanted: str, others: list[str]) -> str:
    """A text in a file, or in any file below a directory."""
    found = [path for path in map(place, [at, *others]) if path]
    if not found:
        return f"{' and '.join([at, *others])} {'are' if others else 'is'} not there"
    if any(holds(file, wanted.encode()) for path in found for file in files(path)):
        return ""
    return f"{' and '.join([at, *others])} {'do' if others else 'does'} not mention {wanted}"


def variable(at: str, wanted: str, others: list[str]) -> str:
    """A variable of the image's own environment."""
    value = os.environ.get(at)
    return "" if value == wanted else f"{at} is {'not set' if value is None else repr(value)}, wanted {wanted!r}"


def version(at: str, wanted: str, others: list[str]) -> str:
    """A part of an installed distribution's version."""
    try:
        stated = importlib.metadata.version(at)
    except importlib.metadata.PackageNotFoundError:
        return f"{at} is not installed"
    return "" if wanted in stated else f"{at} is {stated}, wanted {wanted} in it"


def tree(at: str, wanted: str, others: list[str]) -> str:
    """md5 over the lines that md5sum prints for the *.py files of a directory, in byte order."""
    top = place(at)
    if not top:
        return f"{at} is not there"
    below = sorted(os.fsencode(os.path.relpath(file, top)) for file in files(top) if file.endswith(".py"))
    total = hashlib.md5()
    for name in below:
        with open(os.path.join(os.fsencode(top), name), "rb") as stream:
            total.update(hashlib.md5(stream.read()).hexdigest().encode() + b"  ./" + name + b"\n")
    found = total.hexdigest()
    return "" if found == wanted else f"{at} has {len(below)} modules with md5 {found}, wanted {wanted}"


def imports(at: str, wanted: str, others: list[str]) -> str:
    """A module, in a process of its own: what it prints is of no interest, and it may end the process."""
    done = subprocess.run([sys.executable, "-c", f"import {at}"], stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode == 0:
        return ""
    last = (done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
    return f"import {at} ended with code {done.returncode}: {last}"


def command(at: str, wanted: str, others: list[str]) -> str:
    """A command on the image's own path."""
    return "" if shutil.which(at) else f"no {at} on {os.environ.get('PATH')}"


LOOKS = {
    "exists": exists,
    "contains": contains,
    "variable": variable,
    "version": version,
    "tree": tree,
    "imports": imports,
    "command": command,
}


def place(path: str) -> str:
    """Where a path is; a relative one below the first directory of packages that has it. "" if nowhere."""
    for top in ["/"] if path.startswith("/") else sys.path:
        full = os.path.join(top, path)
        if top and os.path.exists(full):
            return full
    return ""


def files(path: str) -> list[str]:
    """A file itself, or every file below a directory."""
    if os.path.isfile(path):
        return [path]
    return [os.path.join(top, name) for top, _, names in os.walk(path) for name in names]


def holds(path: str, text: bytes) -> bool:
    """Whether a file has a text in it."""
    with open(path, "rb") as stream:
        return text in stream.read()
