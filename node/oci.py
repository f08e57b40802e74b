"""A client of container registries (OCI distribution): manifests and blobs by digest, with Docker's own logins.

Every byte that is handed on as a whole has been compared with its digest. Credentials are read from Docker's
config.json, go into headers only, never to a place that a registry redirects to, and never unencrypted over a network
unless the operator has declared that registry insecure to Docker.
"""

from __future__ import annotations

import hashlib
import http.client
import ipaddress
import json
import re
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection, Generator
from pathlib import Path
from typing import Any, NamedTuple

from node.login import Login, LoginError

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
INDEXES = (INDEX, DOCKER_INDEX)
MANIFESTS = (MANIFEST, DOCKER_MANIFEST)

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
CHUNK = 1 << 20
MANIFEST_LIMIT = 4 << 20
"""Bytes; the limit that the distribution specification recommends to registries."""
TIMEOUT_SECONDS = 30.0
"""Without a byte; what a stall means is the caller's to say."""
DOCKER_HUB = "docker.io"
# Where Docker Hub answers, and under which name `docker login` keeps its credentials.
HUB_HOST, HUB_LOGIN = "registry-1.docker.io", "https://index.docker.io/v1/"
DAEMON_SETTINGS = Path("/etc/docker/daemon.json")
CERTIFICATES = Path("/etc/docker/certs.d")


class OciError(Exception):
    """A registry did not answer or refused, or its bytes are not what the digest says. `status` is the HTTP status, 0
    without one; `retry_after` the seconds that the registry asks to wait, if it does."""

    def __init__(self, message: str, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class WrongBytes(OciError):
    """All the bytes came, and they are others than their digest says."""


class Reference(NamedTuple):
    """The parts of an image reference; `tag` or `digest` may be ""."""

    registry: str
    repository: str
    tag: str
    digest: str

    @property
    def name(self) -> str:
        """Registry and repository."""
        return f"{self.registry}/{self.repository}"


class Manifest(NamedTuple):
    """A manifest or an index as the registry holds it."""

    body: bytes
    media_type: str
    digest: str


def parse(reference: str) -> Reference:
    """Read a reference as Docker does: docker.io and library/ are what is left out. Raises OciError."""
    name, _, digest = reference.partition("@")
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        registry, path = first, rest
    else:
        registry, path = DOCKER_HUB, name
    path, _, tag = path.partition(":")
    registry = DOCKER_HUB if registry in ("index.docker.io", HUB_HOST) else registry
    if registry == DOCKER_HUB and "/" not in path:
        path = f"library/{path}"
    fits = re.fullmatch(r"[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*", path)
    if not fits or (digest and not DIGEST.fullmatch(digest)) or (tag and not re.fullmatch(r"\w[\w.-]{0,127}", tag)):
        raise OciError(f"{reference!r} is no image reference; wanted REGISTRY/REPOSITORY@sha256:<64 hex digits>")
    return Reference(registry, path, tag, digest)


def login_key(registry: str) -> str:
    """Under which name `docker login` keeps what it was told for a registry."""
    return HUB_LOGIN if registry == DOCKER_HUB else registry


def digest_of(data: bytes) -> str:
    """The digest by which a registry knows these bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def checked(body: bytes, reference: str, where: str) -> Manifest:
    """The manifest that these bytes are, if they are those of the digest, should `reference` be one."""
    digest = digest_of(body)
    if DIGEST.fullmatch(reference) and digest != reference:
        raise WrongBytes(f"{where} answered manifest {reference[:19]} with other bytes ({digest[:19]})")
    try:
        data = json.loads(body)
        kind = data.get("mediaType") or (INDEX if "manifests" in data else MANIFEST)
    except (ValueError, AttributeError):
        raise OciError(f"{where}: manifest {reference} is no manifest: {body[:60]!r}") from None
    return Manifest(body, str(kind), digest)


def insecure_registries(settings: Path = DAEMON_SETTINGS) -> tuple[str, ...]:
    """The registries that this machine's Docker may speak to unencrypted, as the operator declared in daemon.json."""
    try:
        stated = json.loads(settings.read_text(encoding="utf-8")).get("insecure-registries") or []
        return tuple(str(name) for name in stated)
    except (OSError, ValueError, AttributeError, TypeError):
        return ()


class Client:
    """One repository of one registry. `docker_config` is the config.json with the login for it, None for no login;
    `insecure` are registries that may be spoken to unencrypted, the machine's own and those of private networks aside.
    Threads may share it. Methods raise OciError."""

    def __init__(
        self,
        registry: str,
        repository: str,
        docker_config: str | Path | None = None,
        insecure: Collection[str] = (),
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        self.registry = registry
        self.repository = repository
        self._login = _login(registry, docker_config)
        self._trusted = _is_loopback(registry) or registry in insecure
        self._schemes = ["https", "http"] if self._trusted or _is_private(registry) else ["https"]
        if _is_loopback(registry):
            self._schemes.reverse()
        self._timeout = timeout
        self._token = ""
        self._turn = threading.Lock()
        self._opener = _opener(registry)

    @property
    def name(self) -> str:
        """The repository as Docker names it."""
        return f"{self.registry}/{self.repository}"

    def manifest(self, reference: str) -> Manifest:
        """The manifest or index of a tag or digest; one asked for by digest is the one of that digest."""
        accept = ", ".join((*INDEXES, *MANIFESTS))
        with self._open(f"manifests/{reference}", f"manifest {reference}", {"Accept": accept}) as answer:
            body = _whole(answer, f"{self.name}: manifest {reference}", MANIFEST_LIMIT)
        return checked(body, reference, self.name)

    def blob(self, digest: str, offset: int = 0) -> tuple[Generator[bytes, None, None], int]:
        """The bytes of a blob from `offset` on, and the size of the whole. Whoever reads it from its start to its end
        gets OciError in place of the end if they are other bytes; an iterator that is not read to its end is closed."""
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        answer = self._open(f"blobs/{digest}", f"blob {digest}", headers)
        where = f"{self.name}: blob {digest[:19]}"
        try:
            begin, size = _extent(answer, offset, where)
        except OciError:
            answer.close()
            raise
        parts = _parts(answer, digest, begin, offset, size, where)
        next(parts)  # from here on whoever drops it closes the connection
        return parts, size

    def _open(self, path: str, what: str, headers: dict[str, str]) -> Any:
        """The answer to a GET, with a login if the registry asks for one."""
        for attempt in (1, 2):
            used = self._token
            try:
                return self._request(path, headers, used)
            except urllib.error.HTTPError as error:
                with error:
                    challenge = error.headers.get("WWW-Authenticate", "")
                    if error.code != 401 or attempt == 2 or not challenge:
                        raise self._refused(error, what) from None
                self._authorize(challenge, used)
            except (OSError, http.client.HTTPException) as error:
                raise OciError(f"{self.registry} does not answer: {_why(error)}") from None
        raise AssertionError("the second attempt returns or raises")

    def _request(self, path: str, headers: dict[str, str], authorization: str) -> Any:
        host = HUB_HOST if self.registry == DOCKER_HUB else self.registry
        failure: Exception | None = None
        for scheme in list(self._schemes):
            request = urllib.request.Request(f"{scheme}://{host}/v2/{self.repository}/{path}", headers=headers)
            if authorization and (scheme == "https" or self._trusted):
                # Not carried to where the registry redirects: that is somebody else, with a signature of its own.
                request.add_unredirected_header("Authorization", authorization)
            try:
                answer = self._opener.open(request, timeout=self._timeout)
            except urllib.error.HTTPError as error:
                if scheme == "http" and error.code == 400:
                    failure = failure or error
                    continue  # speaks TLS there
                self._schemes = [scheme]
                raise
            except (OSError, http.client.HTTPException) as error:
                if not _is_other_language(error):
                    raise
                failure = error
                continue
            self._schemes = [scheme]
            return answer
        assert failure is not None
        raise failure

    def _authorize(self, challenge: str, used: str) -> None:
        with self._turn:
            if self._token != used:
                return  # another thread has a newer one
            kind, _, rest = challenge.partition(" ")
            fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
            if kind.lower() == "basic":
                if self._login is not None and self._login.basic():
                    self._token = f"Basic {self._login.basic()}"
                return
            if kind.lower() != "bearer" or "realm" not in fields:
                raise OciError(f"{self.registry} asks for a login of an unknown kind: {kind}", 401)
            self._token = f"Bearer {self._fetch_token(fields)}"

    def _fetch_token(self, fields: dict[str, str]) -> str:
        realm = fields["realm"]
        if not realm.startswith(("https://", "http://")):  # urllib would open a file of this machine, too
            raise OciError(f"{self.registry} asks for a login at {realm[:40]!r}, which is no web address", 401)
        secure = realm.startswith("https://")
        scope = fields.get("scope") or f"repository:{self.repository}:pull"
        query = {"service": fields.get("service", ""), "scope": scope}
        login = self._login if secure or self._trusted else None
        identity = login.identity_token() if login else ""
        if identity:
            form = {**query, "grant_type": "refresh_token", "refresh_token": identity, "client_id": "sparkpair"}
            request = urllib.request.Request(realm, data=urllib.parse.urlencode(form).encode())
        else:
            request = urllib.request.Request(f"{realm}?{urllib.parse.urlencode(query)}")
            if login and login.basic():
                request.add_unredirected_header("Authorization", f"Basic {login.basic()}")
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                data = json.loads(_whole(answer, f"{self.registry}: its token", MANIFEST_LIMIT))
            return str(data.get("token") or data["access_token"])
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error, "its token") from None
        except (OSError, http.client.HTTPException) as error:
            raise OciError(f"{self.registry} gives no token: {_why(error)}") from None
        except (ValueError, KeyError, AttributeError):
            raise OciError(f"{self.registry} gives no token: its answer cannot be read") from None

    def _refused(self, error: urllib.error.HTTPError, what: str) -> OciError:
        wait = error.headers.get("Retry-After", "")
        fix = {
            401: f"it asks for a login: docker login {self.registry}, as the user who deploys",
            403: f"the login may not read it: docker login {self.registry}, as the user who deploys",
            404: f"there is no such thing in {self.name}",
            429: "it limits how often it is asked; wait, or log in: docker login " + self.registry,
        }.get(error.code, "it failed; try again later")
        retry_after = float(wait) if wait.isdecimal() else None
        return OciError(f"{self.registry} answered {error.code} for {what}: {fix}", error.code, retry_after)


def _login(registry: str, docker_config: str | Path | None) -> Login | None:
    try:
        return Login(login_key(registry), Path(docker_config)) if docker_config is not None else None
    except LoginError as error:
        raise OciError(str(error)) from None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """308 as well, which urllib of Python 3.10 does not follow."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        return super().redirect_request(req, fp, 307 if code == 308 else code, msg, headers, newurl)

    http_error_308 = urllib.request.HTTPRedirectHandler.http_error_302


def _opener(registry: str) -> urllib.request.OpenerDirector:
    """Of the environment's proxies none for what is near; certificates as Docker takes them."""
    context = ssl.create_default_context()
    for certificate in sorted((CERTIFICATES / registry).glob("*.crt")):
        context.load_verify_locations(certificate)
    handlers: list[Any] = [urllib.request.HTTPSHandler(context=context), _Redirects()]
    if _is_loopback(registry) or _is_private(registry):
        handlers.append(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener(*handlers)


def _address(registry: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    host = registry.rpartition(":")[0] if re.search(r":\d+$", registry) else registry
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _is_loopback(registry: str) -> bool:
    address = _address(registry)
    return registry.partition(":")[0] == "localhost" if address is None else address.is_loopback


def _is_private(registry: str) -> bool:
    """A registry that is named by an address of a private network, as other clients take it, has no certificate that
    anybody could know. What it sends is compared with digests; no credentials go there unencrypted."""
    address = _address(registry)
    return address is not None and address.is_private


def _is_other_language(error: Exception) -> bool:
    """Whether a server does not speak TLS, or speaks nothing else."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return False
    return isinstance(reason, (ssl.SSLError, ConnectionResetError, http.client.BadStatusLine))


def _why(error: Exception) -> str:
    """The reason without any address that was asked: one that was redirected to may hold a signature."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return type(reason).__name__ if isinstance(reason, Exception) else str(reason)


def _whole(answer: Any, where: str, limit: int) -> bytes:
    try:
        body: bytes = answer.read(limit + 1)
    except (OSError, http.client.HTTPException) as error:
        raise OciError(f"{where} broke off: {_why(error)}") from None
    if len(body) > limit:
        raise OciError(f"{where} has more than {limit} bytes")
    return body


def _extent(answer: Any, offset: int, where: str) -> tuple[int, int]:
    """Where the answer begins, and the size of the whole blob."""
    if answer.status == 206:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", answer.headers.get("Content-Range") or "")
        if not found or int(found.group(1)) != offset:
            raise OciError(f"{where}: asked from byte {offset}, it answered {answer.headers.get('Content-Range')}")
        return offset, int(found.group(2))
    length = answer.headers.get("Content-Length") or ""
    if not length.isdecimal():
        raise OciError(f"{where} has no length")
    return 0, int(length)


def _parts(answer: Any, digest: str, begin: int, offset: int, size: int, where: str) -> Generator[bytes, None, None]:
    """Nothing, and then the bytes from `offset` on of an answer that begins at `begin`: a registry need not heed a
    range."""
    total = hashlib.sha256()
    at = begin
    with answer:
        yield b""
        while at < size:
            try:
                part = answer.read(min(CHUNK, size - at))
            except (OSError, http.client.HTTPException) as error:
                raise OciError(f"{where} broke off after {at} of {size} bytes: {_why(error)}") from None
            if not part:
                raise OciError(f"{where} broke off after {at} of {size} bytes")
            if begin == 0:
                total.update(part)
            at += len(part)
            if begin == 0 and at == size and f"sha256:{total.hexdigest()}" != digest:
                raise WrongBytes(f"{where} has other bytes than its digest says")
            skip = max(0, offset - (at - len(part)))
            if skip < len(part):
                yield part[skip:] if skip else part
    if size == 0 and digest != digest_of(b""):
        raise WrongBytes(f"{where} has other bytes than its digest says")
