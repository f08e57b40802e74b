"""Pulls an image by digest into the local Docker and tells how far it is: main.py pull NAME@DIGEST --tag NAME:TAG.

The tag is set at once: an image that has a digest only is one that `docker image prune` takes.
"""

from __future__ import annotations

import argparse
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from node import oci
from node.docker import Docker, DockerError
from node.login import Login, LoginError

TELL_SECONDS = 5.0
SILENT_SECONDS = 60.0
"""Without any news from Docker, until that is told; whether it goes on is Docker's to say."""
MIB = 2**20


class Progress:
    """What Docker has told of each layer. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._layers: dict[str, str] = {}
        self._bytes: dict[str, tuple[int, int]] = {}
        self._news = clock()
        self._rate_at, self._rate_bytes, self._rate = clock(), 0, 0.0

    def take(self, item: dict[str, Any]) -> None:
        """One line of Docker's."""
        self._news = self._clock()
        layer, status = str(item.get("id", "")), str(item.get("status", ""))
        if not layer or status.startswith("Pulling from"):
            return
        self._layers[layer] = status
        detail = item.get("progressDetail") or {}
        if status == "Downloading" and detail.get("total"):
            self._bytes[layer] = (int(detail.get("current", 0)), int(detail["total"]))
        elif status in ("Download complete", "Extracting", "Pull complete") and layer in self._bytes:
            self._bytes[layer] = (self._bytes[layer][1], self._bytes[layer][1])

    def line(self) -> str:
        """How far it is."""
        here = sum(1 for status in self._layers.values() if status in ("Pull complete", "Already exists"))
        current = sum(done for done, _ in self._bytes.values())
        total = sum(size for _, size in self._bytes.values())
        now = self._clock()
        if now > self._rate_at:
            self._rate = (current - self._rate_bytes) / (now - self._rate_at)
            self._rate_at, self._rate_bytes = now, current
        parts = [f"image: {here} of {len(self._layers)} layers"]
        if total:
            parts.append(f"{current / MIB:.0f} of {total / MIB:.0f} MiB of those under way")
        if current < total:
            parts.append(f"{self._rate / MIB:.1f} MiB/s")
        unpacking = [layer for layer, status in self._layers.items() if status == "Extracting"]
        if unpacking:
            parts.append(f"unpacking {', '.join(unpacking)}")
        silent = now - self._news
        if silent >= SILENT_SECONDS:
            parts.append(f"no news from Docker for {silent:.0f} s")
        return ", ".join(parts)


def follow(lines: Iterator[dict[str, Any]], say: Callable[[str], None]) -> None:
    """Read to the end, telling now and then. Raises DockerError with what Docker says that went wrong."""
    progress, news = Progress(), queue.Queue[Any]()

    def read() -> None:
        try:
            for item in lines:
                news.put(item)
            news.put(None)
        except DockerError as error:
            news.put(error)

    threading.Thread(target=read, daemon=True).start()
    told = time.monotonic()
    while True:
        try:
            item = news.get(timeout=TELL_SECONDS)
        except queue.Empty:
            item = {}
        if item is None:
            return
        if isinstance(item, DockerError):
            raise item
        if "error" in item:
            raise DockerError(str(item["error"]))
        if item:
            progress.take(item)
        if time.monotonic() - told >= TELL_SECONDS:
            told = time.monotonic()
            say(progress.line())


def pull(docker: Docker, reference: str, tag: str, login: str, say: Callable[[str], None]) -> None:
    """Pull, and give the image its tag. Raises DockerError or OciError."""
    image = oci.parse(reference)
    name = image.name
    follow(docker.pull(name, image.digest, login), say)
    repository, _, label = tag.rpartition(":")
    docker.tag(str(docker.image(reference)["id"]), repository, label)
    say(f"image: {name}@{image.digest[:19]} is here, named {tag}")


def main(argv: list[str]) -> int:
    """Pull one image; one line says what went wrong."""
    parser = argparse.ArgumentParser(prog="pull", description=__doc__)
    parser.add_argument("reference", metavar="NAME@DIGEST")
    parser.add_argument("--tag", required=True, metavar="NAME:TAG")
    parser.add_argument("--docker-config", default="", help="config.json with the login for the registry")
    arguments = parser.parse_args(argv)
    try:
        registry = oci.parse(arguments.reference).registry
        login = ""
        if arguments.docker_config:
            login = Login(oci.login_key(registry), Path(arguments.docker_config)).for_docker()
        pull(Docker(), arguments.reference, arguments.tag, login, lambda text: print(text, flush=True))
    except (DockerError, LoginError, oci.OciError) as error:
        print(f"image: {error}", flush=True)
        return 1
    return 0
