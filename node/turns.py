"""Whose turn it is: staging never waits, and the deep check reads nothing while somebody stages."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from node import paths


@contextmanager
def staging(lock: Path = paths.STAGING_LOCK) -> Iterator[None]:
    """Hold the turn while files are brought; waits for other work that stages. The kernel ends it with the process."""
    with _open(lock) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def let_staging_pass(say: Callable[[str], None], lock: Path = paths.STAGING_LOCK) -> None:
    """Return when nobody stages. The turn is not kept: whoever asks goes on asking, so that staging finds it free."""
    with _open(lock) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting while files are staged")
            fcntl.flock(descriptor, fcntl.LOCK_SH)


@contextmanager
def _open(lock: Path) -> Iterator[int]:
    # Root's alone, in a directory of root's: whoever could open it could hold it, and nothing would be staged any more.
    lock.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
