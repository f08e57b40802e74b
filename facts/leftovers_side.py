"""Sent to a node as text and run there as root: every image that Docker holds, which of them containers need, and the
images that launches on this node name. Prints one JSON document and changes nothing."""

from __future__ import annotations

import glob
import json
import os
import socket
import sys
from typing import Any

DOCKER_SOCKET = "/var/run/docker.sock"
ANSWER_SECONDS = 60
"""Docker counts the sizes of all images while it is asked."""


def main() -> None:
    """What is at the paths in argv[1]: {"launches": patterns of rank files, "store": a directory}."""
    sys.stdout.write(json.dumps(collect(json.loads(sys.argv[1]))) + "\n")


def collect(asked: dict[str, Any]) -> dict[str, Any]:
    """The whole answer; {"error": why} where a part of it cannot be read, since half of it would remove too much."""
    try:
        return {
            "images": [{"id": item["Id"], "names": names(item), "size": item["Size"]} for item in ask("/images/json")],
            "used": sorted({item["ImageID"] for item in ask("/containers/json?all=1")}),
            "launched": sorted({launched(path) for pattern in asked["launches"] for path in glob.glob(pattern)}),
            "store": size(asked["store"]),
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def names(item: dict[str, Any]) -> list[str]:
    """Every name of an image; Docker writes <none> where there is none."""
    found = [*(item.get("RepoTags") or []), *(item.get("RepoDigests") or [])]
    return [name for name in found if "<none>" not in name]


def launched(path: str) -> str:
    """The image of a rank file."""
    with open(path, encoding="utf-8") as stream:
        return str(json.load(stream)["image"])


def size(path: str) -> Any:
    """Bytes below a directory; None if there is none."""
    if not os.path.isdir(path):
        return None
    return sum(os.lstat(os.path.join(top, name)).st_size for top, _, files in os.walk(path) for name in files)


def ask(path: str) -> Any:
    """What Docker says on its socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(DOCKER_SOCKET)
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
        answer = b""
        while part := connection.recv(65536):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    if status != 200:
        raise ValueError(f"Docker answered {status}: {body[:200].decode(errors='replace')}")
    return json.loads(body)


if __name__ == "__main__":
    main()
