"""The few calls to Docker that watching needs, over its socket: a client process per look would cost a node more."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

SOCKET = "/var/run/docker.sock"


class DockerError(Exception):
    """Docker did not answer, or refused. `status` is the HTTP status, 0 when there was no answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Container:
    """What Docker says of one container."""

    id: str
    name: str
    labels: dict[str, str]
    running: bool
    status: str
    """created, running, paused, restarting, removing, exited or dead."""
    exit_code: int
    started_at: str
    error: str
    log_path: str = ""
    """Its log as a file; empty where Docker keeps it otherwise."""


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float | None) -> None:
        super().__init__("docker", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Docker:
    """A client of the local Docker engine. Every call has a deadline; methods raise DockerError."""

    def __init__(self, path: str = SOCKET, timeout: float = 10.0) -> None:
        self._path = path
        self._timeout = timeout

    def containers(self, label: str) -> list[Container]:
        """All containers, running or not, that carry this label."""
        query = urlencode({"all": "1", "filters": json.dumps({"label": [label]})})
        found = self._call("GET", f"/containers/json?{query}")
        containers = []
        for item in found:
            try:
                containers.append(self.inspect(item["Id"]))
            except DockerError as error:
                if error.status != 404:  # removed between the two calls
                    raise
        return containers

    def inspect(self, name: str) -> Container:
        """One container by id or name; status 404 if there is none."""
        data = self._call("GET", f"/containers/{quote(name)}/json")
        state = data["State"]
        return Container(
            id=data["Id"],
            name=data["Name"].lstrip("/"),
            labels=dict(data["Config"].get("Labels") or {}),
            running=bool(state["Running"]),
            status=str(state["Status"]),
            exit_code=int(state["ExitCode"]),
            started_at=str(state["StartedAt"]),
            error=str(state.get("Error", "")),
            log_path=str(data.get("LogPath") or ""),
        )

    def image(self, reference: str) -> dict[str, Any]:
        """Id and layers of an image; status 404 if it is not here. One that is named by its digest is the one of that
        digest, under whatever name it was pulled: from a peer it has the peer's."""
        _, _, digest = reference.partition("@")
        try:
            return self._image(reference)
        except DockerError as error:
            if error.status != 404 or not digest:
                raise
            missing = error
        for item in self.images():
            if any(name.endswith(f"@{digest}") for name in item.get("RepoDigests") or []):
                return self._image(item["Id"])
        raise missing

    def _image(self, name: str) -> dict[str, Any]:
        data = self._call("GET", f"/images/{quote(name, safe='')}/json")
        return {"id": data["Id"], "layers": list(data["RootFS"].get("Layers") or [])}

    def images(self) -> list[dict[str, Any]]:
        """Every image as Docker lists it."""
        found: list[dict[str, Any]] = self._call("GET", "/images/json")
        return found

    def tag(self, image: str, repository: str, tag: str) -> None:
        """Give an image one more name."""
        self._call("POST", f"/images/{quote(image, safe='')}/tag?{urlencode({'repo': repository, 'tag': tag})}")

    def pull(self, name: str, digest: str, login: str = "") -> Iterator[dict[str, Any]]:
        """Pull by digest; what Docker tells on the way. `login` is an X-Registry-Auth. No deadline: Docker itself
        finds out that nothing comes. Whoever closes the iterator ends the pull."""
        path = f"/images/create?{urlencode({'fromImage': name, 'tag': digest})}"
        connection = _Connection(self._path, None)
        try:
            connection.request("POST", path, headers={"X-Registry-Auth": login} if login else {})
            with connection.getresponse() as response:
                if response.status >= 400:
                    _read(response.status, response.read(), f"POST {path}")
                for line in response:
                    if line.strip():
                        yield json.loads(line)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise DockerError(f"Docker broke off: {str(error) or type(error).__name__}") from None
        finally:
            connection.close()

    def document(self, target: str) -> Any:
        """What Docker answers to a GET, as it is."""
        return self._call("GET", target)

    def signal(self, container: str, name: str) -> None:
        """Send a signal to PID 1 of a container; one that has ended already is fine."""
        try:
            self._call("POST", f"/containers/{quote(container)}/kill?signal={name}")
        except DockerError as error:
            if error.status not in (404, 409):
                raise

    def remove(self, container: str) -> None:
        """Remove a container, ending it if it must; one that has gone already is fine."""
        try:
            self._call("DELETE", f"/containers/{quote(container)}?force=1&v=1")
        except DockerError as error:
            if error.status not in (404, 409):  # 409: its removal is in progress
                raise

    def unpause(self, container: str) -> None:
        """A paused container takes no signal."""
        try:
            self._call("POST", f"/containers/{quote(container)}/unpause")
        except DockerError as error:
            if error.status not in (404, 409, 500):
                raise

    def _call(self, method: str, path: str) -> Any:
        connection = _Connection(self._path, self._timeout)
        try:
            connection.request(method, path)
            with connection.getresponse() as response:
                body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise DockerError(f"Docker does not answer on {self._path}: {error}") from None
        finally:
            connection.close()
        return _read(response.status, body, f"{method} {path}")


def _read(status: int, body: bytes, asked: str) -> Any:
    try:
        data = json.loads(body) if body else None
    except ValueError:
        raise DockerError(f"Docker answered {asked} with {body[:80]!r}", status) from None
    if status >= 400:
        message = data.get("message", "") if isinstance(data, dict) else repr(body[:200])
        raise DockerError(f"Docker refused {asked}: {message}", status)
    return data
