"""huggingface_hub on a node, and the operator's token: what a download needs there.

The client's wheels come from the package index of the control machine, by the hashes in requirements-hub.lock; a node
is never asked to install packages, and gets them as one archive that is unpacked beside our programs.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

from pyinfra.api.command import StringCommand
from pyinfra.api.exceptions import OperationError

from facts.reach import Interpreter, NodePython
from facts.values import item, known
from operations.core import Commands, fail, is_executing, node_operation, noop
from operations.run import Run, digest
from spec import objects

CLIENT = objects.HUB_CLIENT
LOCK = Path(__file__).parent.parent / "requirements-hub.lock"
OLDEST_GLIBC = 17
"""manylinux_2_17 is the oldest that wheels of the client are built for."""

UNPACK = """
import base64, hashlib, io, json, os, shutil, sys, zipfile
place, sha256, complete = sys.argv[1:]
os.umask(0o022)
data = base64.b64decode(sys.stdin.read())
if hashlib.sha256(data).hexdigest() != sha256:
    sys.exit("the download client arrived with other bytes than were sent; run the deploy again")
new = place + ".sparkpair-new"
shutil.rmtree(new, ignore_errors=True)
os.mkdir(new)
with zipfile.ZipFile(io.BytesIO(data)) as archive:
    for name in archive.namelist():
        with zipfile.ZipFile(io.BytesIO(archive.read(name))) as wheel:
            wheel.extractall(new, [path for path in wheel.namelist() if ".data/" not in path])
os.sync()
shutil.rmtree(place, ignore_errors=True)
os.rename(new, place)
with open(os.path.join(place, "complete"), "w") as stream:
    stream.write(complete + "\\n")
os.sync()
"""
"""Wheels are archives whose content is put on the path as it is; `complete` is written last."""

_building = Lock()


@node_operation
def install_client(run: Run, downloads: Callable[[Run], bool]) -> Commands:
    """Put the client on a node that is to download, unless it is there. `downloads` is asked of the node's turn."""
    if not downloads(run):
        noop("nothing is downloaded here")
        return
    wanted = complete(run)
    there = item(run.seen().files, objects.HUB_COMPLETE, "what is installed")
    if there is not None and there.sha256 == digest(f"{wanted}\n"):
        noop("the download client is installed")
        return
    if not is_executing():
        yield StringCommand("true")  # in the plan only: the wheels are fetched when they are used
        return
    data = archive(known(run.host.get_fact(NodePython, _sudo=False), f"the Python of {run.node.name}"))
    argv = ["/usr/bin/python3", "-ISB", "-c", UNPACK, CLIENT, hashlib.sha256(data).hexdigest(), wanted]
    yield StringCommand(shlex.join(argv), _stdin=base64.b64encode(data).decode())


def put_token(run: Run) -> Commands:
    """Lay the control machine's token where the staging unit reads it once; without a token, none stays there.

    The token is the command's input: it stands in no argument, environment or file that outlives a boot.
    """
    # Imported where a download begins: every other run does without the time that it takes.
    from huggingface_hub import get_token

    from facts import hub

    del run
    place = shlex.quote(objects.HUB_TOKEN)
    try:
        token = hub.token(get_token)
    except hub.HubError as error:
        raise fail(str(error)) from None
    if token is None:
        yield StringCommand("rm -f", place)
        return
    yield StringCommand(f"mkdir -p {objects.RUN} && umask 077 && cat >{place}", _stdin=token)


def complete(run: Run) -> str:
    """What stands in the file that tells that the client is there: by which lock, for which Python and machine."""
    seen = run.seen()
    python, machine = known(seen.python, "its Python"), known(seen.machine, "its machine")
    return f"{hashlib.sha256(LOCK.read_bytes()).hexdigest()} python{python[0]}.{python[1]} {machine}"


def archive(interpreter: Interpreter) -> bytes:
    """The client's wheels for this interpreter in one archive, fetched by pip once and kept in the cache."""
    place = archive_place(interpreter)
    with _building:
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
                _download(interpreter, Path(scratch) / "wheels")
                packed = Path(scratch) / "archive"
                packed.write_bytes(_packed(sorted((Path(scratch) / "wheels").glob("*.whl"))))
                os.replace(packed, place)
        return place.read_bytes()


def archive_place(interpreter: Interpreter) -> Path:
    """Where the archive is kept on the control machine: one for each lock and interpreter."""
    name = f"{interpreter.machine}-{interpreter.libc}-python{'.'.join(map(str, interpreter.python))}"
    key = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    return cache_directory() / f"hub-{key}-{name}.zip"


def pip_arguments(interpreter: Interpreter, directory: Path) -> list[str]:
    """How pip is asked for another machine's wheels; the hashes of the lock hold for each of them."""
    words = ["download", "--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps"]
    words += ["--only-binary=:all:", "--dest", str(directory), "--requirement", str(LOCK)]
    words += ["--python-version", ".".join(map(str, interpreter.python)), "--implementation", "cp"]
    newest = int(interpreter.libc.split(".")[1])
    for platform in ["manylinux2014", *(f"manylinux_2_{minor}" for minor in range(newest, OLDEST_GLIBC - 1, -1))]:
        words += ["--platform", f"{platform}_{interpreter.machine}"]
    return words


def cache_directory() -> Path:
    """Where the control machine keeps what it fetched."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparkpair"


def _download(interpreter: Interpreter, directory: Path) -> None:
    argv = [sys.executable, "-m", "pip", *pip_arguments(interpreter, directory)]
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise fail(
            f"the download client was not fetched: pip said {(said or ['nothing'])[0][:200]!r}. It comes from the "
            "package index that pip uses on this machine; repeat it there: "
            f"{shlex.join(['pip', *pip_arguments(interpreter, Path('wheels'))])}"
        )


def _packed(wheels: Sequence[Path]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_STORED) as archive:
        for wheel in wheels:
            archive.writestr(zipfile.ZipInfo(wheel.name), wheel.read_bytes())
    return data.getvalue()


def main(argv: Sequence[str]) -> int:
    """python -m operations.hub MACHINE GLIBC PYTHON: fetch the client for such nodes now, for a deploy from a place
    without a package index. Prints where it is."""
    if len(argv) != 3 or not all(re.fullmatch(r"\d+\.\d+", version) for version in argv[1:]):
        print("python -m operations.hub aarch64 2.39 3.12: machine, glibc and Python of the nodes", file=sys.stderr)
        return 2
    major, minor = argv[2].split(".")
    interpreter = Interpreter(argv[0], argv[1], (int(major), int(minor)))
    try:
        archive(interpreter)
    except OperationError as error:
        print(error, file=sys.stderr)
        return 1
    print(archive_place(interpreter))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
