"""The lab's OCI registry: Debian's docker-registry, and putting images into it by HTTP.

`up` serves it to the hosts from the control namespace. `build` needs no network for it: it runs the same program on
a Unix socket over the same store for the time of the push.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import settings
from lab.shell import LabError, daemon, digest, end, inside, quiet, recorded, replace, run, stage, wait_until

RECORD = settings.LAB / "registry.json"
PACKAGE = "docker-registry"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
CHUNK = 4 << 20


def program() -> Path:
    """Debian's registry program, unpacked from its package and not installed: nothing of it starts on the machine."""
    place = settings.CACHE / f"registry-{digest(PACKAGE)}"
    found = place / "usr/bin/docker-registry"
    if not found.exists():
        shutil.rmtree(place, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=settings.LAB) as directory:
            fetch = ["apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", PACKAGE]
            if subprocess.run(fetch, cwd=directory, capture_output=True, check=False).returncode:
                run("apt-get", "update", "-q")
                run(*fetch, cwd=directory)
            draft = Path(directory) / "tree"
            run("dpkg-deb", "-x", next(Path(directory).glob("*.deb")), draft)
            place.parent.mkdir(parents=True, exist_ok=True)
            draft.rename(place)
    return found


def write_settings(name: str, listen: dict[str, str]) -> Path:
    """The registry's settings file; JSON is YAML."""
    place = settings.LAB / f"registry-{name}.yml"
    replace(place, json.dumps({
        "version": "0.1",
        "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(settings.REGISTRY_STORE)}, "delete": {"enabled": True}},
        "http": listen,
    }))  # fmt: skip
    return place


def start() -> None:
    """Serve the store to the hosts from the control namespace."""
    config = write_settings("tcp", {"addr": settings.REGISTRY})
    daemon(inside(settings.CONTROL_NAMESPACE, program(), "serve", config), settings.REGISTRY_LOG, RECORD)
    probe = inside(settings.CONTROL_NAMESPACE, "curl", "-sf", "-m", "2", f"http://{settings.REGISTRY}/v2/")
    if not wait_until(lambda: quiet(*probe), 15, 0.1):
        raise LabError(f"the registry does not answer at {settings.REGISTRY}; see {settings.REGISTRY_LOG}")


def is_running() -> bool:
    """Whether the registry that `up` started still runs."""
    return recorded(RECORD) is not None


def stop() -> None:
    """End the registry."""
    end(RECORD)


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=300)
        self.path = path

    def connect(self) -> None:
        """Connect to the socket instead of a TCP port."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


@dataclass(frozen=True)
class Blob:
    """What a manifest says of one part."""

    digest: str
    size: int

    def as_json(self, media_type: str) -> dict[str, Any]:
        """The part's entry in a manifest."""
        return {"mediaType": media_type, "digest": self.digest, "size": self.size}


class Push:
    """Puts blobs and manifests into the store through the registry's own API."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def request(self, method: str, url: str, body: Any = None, wanted: Iterable[int] = (200, 201, 202),
                chunked: bool = False, **headers: str) -> http.client.HTTPResponse:  # fmt: skip
        """One request on a connection of its own."""
        connection = UnixConnection(self.path)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, url, body=body, headers=names, encode_chunked=chunked)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        if answer.status not in wanted:
            raise LabError(f"registry: {method} {url.partition('?')[0]} said {answer.status}: {text[:300]!r}")
        return answer

    def blob(self, repository: str, parts: Iterator[bytes]) -> Blob:
        """Stream a blob into the store, digesting it on the way: no copy of it is ever on disk beside the store."""
        total, size = hashlib.sha256(), 0

        def counted() -> Iterator[bytes]:
            nonlocal size
            for part in parts:
                total.update(part)
                size += len(part)
                yield part

        begun = self.request("POST", f"/v2/{repository}/blobs/uploads/")
        location = begun.headers["Location"]
        sent = self.request("PATCH", location, counted(), chunked=True, Transfer_Encoding="chunked",
                            Content_Type="application/octet-stream")  # fmt: skip
        name = f"sha256:{total.hexdigest()}"
        location = sent.headers["Location"]
        joint = "&" if "?" in location else "?"
        self.request("PUT", f"{location}{joint}digest={name}", Content_Length="0")
        return Blob(name, size)

    def bytes(self, repository: str, data: bytes) -> Blob:
        """Put a small blob."""
        return self.blob(repository, iter([data]))

    def mount(self, repository: str, blob: Blob, source: str) -> None:
        """Let a repository use a blob of another one: the store holds it once."""
        if source != repository:
            self.request("POST", f"/v2/{repository}/blobs/uploads/?mount={blob.digest}&from={source}", wanted=(201,))

    def image(self, repository: str, layers: list[Blob], config: dict[str, Any]) -> str:
        """Put config and manifest over layers that are there, and tell the digest reference for the hosts."""
        document = {
            "architecture": "amd64", "os": "linux", "config": config,
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
            "history": [{"created_by": "lab"} for _ in layers],
        }  # fmt: skip
        described = self.bytes(repository, json.dumps(document, sort_keys=True).encode())
        manifest = json.dumps({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": described.as_json(CONFIG),
            "layers": [layer.as_json(LAYER) for layer in layers],
        }, sort_keys=True).encode()  # fmt: skip
        name = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
        self.request("PUT", f"/v2/{repository}/manifests/{name}", manifest, Content_Type=MANIFEST)
        return f"{settings.REGISTRY}/{repository}@{name}"


@contextlib.contextmanager
def pushing() -> Iterator[Push]:
    """Run the registry on a Unix socket for the time of a push."""
    # A Unix socket's name may not be longer than 107 characters; a checkout's path may.
    with tempfile.TemporaryDirectory(prefix="lab-") as directory:
        path = Path(directory) / "registry.sock"
        config = write_settings("push", {"net": "unix", "addr": str(path)})
        with settings.REGISTRY_LOG.open("ab") as log:
            words = ["setpriv", "--pdeathsig", "KILL", str(program()), "serve", str(config)]
            server = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_until(lambda: path.exists() or server.poll() is not None, 15, 0.05)
            if not path.exists():
                raise LabError(f"the registry did not start; see {settings.REGISTRY_LOG}")
            yield Push(path)
        finally:
            server.terminate()
            server.wait()
            config.unlink(missing_ok=True)


def has(blob: Blob) -> bool:
    """Whether the store holds a blob in full."""
    data = blob_place(blob.digest) / "data"
    return data.exists() and data.stat().st_size == blob.size


def blob_place(name: str) -> Path:
    """Where the registry's file system driver keeps a blob."""
    code = name.removeprefix("sha256:")
    return settings.REGISTRY_STORE / "docker/registry/v2/blobs/sha256" / code[:2] / code


def manifest_blobs(reference: str) -> set[str]:
    """Every blob that an image needs, its manifest included."""
    name = reference.rpartition("@")[2]
    place = blob_place(name) / "data"
    if not place.exists():
        return set()
    manifest = json.loads(place.read_text())
    return {name, manifest["config"]["digest"], *(layer["digest"] for layer in manifest["layers"])}


def prune(references: Iterable[str], also: Iterable[Blob]) -> None:
    """Remove blobs that no image of now needs, and uploads that a killed run left half done."""
    kept = {blob.digest for blob in also}.union(*(manifest_blobs(reference) for reference in references))
    top = settings.REGISTRY_STORE / "docker/registry/v2"
    for place in top.glob("blobs/sha256/*/*"):
        if f"sha256:{place.name}" not in kept:
            shutil.rmtree(place)
    for place in top.glob("repositories/*/_uploads/*"):
        shutil.rmtree(place)
    for link in top.glob("repositories/*/_layers/sha256/*"):
        if f"sha256:{link.name}" not in kept:
            shutil.rmtree(link)


def tar_of(directory: Path, *excluded: str) -> Iterator[bytes]:
    """The uncompressed layer of a tree, as a stream."""
    command = ["tar", "-C", str(directory), "--sort=name", "--numeric-owner", "--one-file-system",
               *[f"--exclude={pattern}" for pattern in excluded], "-cf", "-", "."]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        while part := child.stdout.read(CHUNK):
            yield part
        child.wait()
        if child.returncode:
            assert child.stderr is not None
            raise LabError(f"tar of {directory} failed: {child.stderr.read().decode()[-500:]}")


def push_tree(push: Push, repository: str, name: str, directory: Path, *excluded: str) -> Blob:
    """Put a tree into the store as one layer."""
    with stage(f"layer {name} into the registry"):
        return push.blob(repository, tar_of(directory, *excluded))
