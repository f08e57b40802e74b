"""What the hub says of a repository, asked with its own client: commit, licence, and each file's size and sha256.

Nothing here is for a node: the lock is made with it, on the control machine. No text holds the token, and none is
taken from an exception that may: clients quote the header that they could not send.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import httpx
from huggingface_hub import HfApi, errors
from huggingface_hub import get_token as token_of_this_machine
from huggingface_hub.hf_api import ModelInfo, RepoSibling
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # it lists no names of its own
    build_hf_headers,
    get_session,
    hf_raise_for_status,
)

from spec.lock import FileSet, LockedFile, path_fault

ANSWER_SECONDS = 30.0
"""Without a byte."""

SMALL_LIMIT = 64 << 20
"""Bytes of a file whose digest the hub does not state. It takes such a file up to 10 MB; larger ones are LFS files."""

LOG_IN = "log in on this machine: hf auth login"


class HubError(Exception):
    """The hub does not say what was asked, in words with the fix. `gone`: it answered, and there is no such thing."""

    def __init__(self, text: str, gone: bool = False) -> None:
        super().__init__(text)
        self.gone = gone


class Hub:
    """One hub, asked with a token if there is one. `file_set` raises HubError."""

    def __init__(self, endpoint: str, token: str | None, timeout: float = ANSWER_SECONDS) -> None:
        self.endpoint = endpoint
        self._token = token
        self._timeout = timeout
        self._api = HfApi(endpoint=endpoint)

    def file_set(self, repository: str, ref: str) -> FileSet:
        """The files of a branch, tag or commit as it stands now."""
        with self._in_words(repository, ref):
            info = self._api.model_info(
                repository, revision=ref, files_metadata=True, timeout=self._timeout, token=self._token or False
            )
            revision = _matching(info.sha, r"[0-9a-f]{40}")
            files = [self._file(repository, revision, entry) for entry in _listed(info)]
            licence, gated = _licence(info), bool(info.gated or info.private)
        if not files:
            raise HubError(f"{repository} has no files at {ref}; is it the repository that is meant?", gone=True)
        return FileSet(
            repository=repository,
            ref=ref,
            revision=revision,
            licence=licence,
            gated=gated,
            mirrors=(),
            files=tuple(sorted(files, key=lambda file: file.path)),
        )

    def _file(self, repository: str, revision: str, entry: RepoSibling) -> LockedFile:
        path = entry.rfilename
        if why := path_fault(path):
            raise HubError(f"{repository} holds a file that cannot be locked: {path!r} {why}")
        if entry.lfs is not None:
            return LockedFile(path, _size(entry.lfs.size), _matching(entry.lfs.sha256, r"[0-9a-f]{64}"))
        size = _size(entry.size)
        if size > SMALL_LIMIT:
            raise HubError(f"{repository} states no sha256 for {path} of {size} bytes, which is too large to read here")
        body = self._read(repository, revision, path, size)
        blob = hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False).hexdigest()
        if len(body) != size or blob != _matching(entry.blob_id, r"[0-9a-f]{40}"):
            raise HubError(f"{repository} sent other bytes for {path} than it states; try again")
        return LockedFile(path, size, hashlib.sha256(body).hexdigest())

    def _read(self, repository: str, revision: str, path: str, size: int) -> bytes:
        """A small file; of one that is longer than stated no more than shows it."""
        url = f"{self.endpoint}/{repository}/resolve/{revision}/{quote(path)}"
        body = bytearray()
        # The token is not carried to another host: the client drops it there.
        headers = build_hf_headers(token=self._token or False)
        with get_session().stream("GET", url, headers=headers, timeout=self._timeout) as answer:
            hf_raise_for_status(answer)
            for part in answer.iter_bytes():
                body += part
                if len(body) > size:
                    break
        return bytes(body)

    @contextmanager
    def _in_words(self, repository: str, ref: str) -> Iterator[None]:
        try:
            yield
        except HubError:
            raise
        except (httpx.HTTPError, OSError) as error:
            raise self._said(error, repository, ref) from None
        except (ValueError, TypeError, KeyError, AttributeError, httpx.InvalidURL):
            raise HubError(
                f"{self.endpoint} answers for {repository} with what no hub says of a repository; is hub_endpoint one?"
            ) from None

    def _said(self, error: Exception, repository: str, ref: str) -> HubError:
        ask = f"ask for access at {self.endpoint}/{repository}"
        if isinstance(error, errors.GatedRepoError):
            own = "the token of this machine is not let in" if self._token else "and this machine has no token"
            return HubError(f"{repository} is gated, {own}: {ask}, then {LOG_IN}")
        if isinstance(error, errors.RevisionNotFoundError):
            return HubError(f"{repository} has no branch, tag or commit {ref}; correct its revision", gone=True)
        if isinstance(error, errors.RepositoryNotFoundError):
            hidden = "is hidden from the token of this machine" if self._token else f"is private ({LOG_IN})"
            return HubError(f"there is no {repository} at {self.endpoint}, or it {hidden}", gone=True)
        if isinstance(error, errors.DisabledRepoError):
            return HubError(f"{repository} was disabled by the hub; choose another source", gone=True)
        if isinstance(error, errors.OfflineModeIsEnabled):
            return HubError("HF_HUB_OFFLINE is set here, so the hub is not asked; unset it")
        if isinstance(error, errors.HfHubHTTPError):
            return HubError(f"{self.endpoint} answered {_of_status(error.response.status_code, repository)}")
        if isinstance(error, httpx.TimeoutException):
            return HubError(f"{self.endpoint} gave no answer in {self._timeout:g} s; try again")
        if isinstance(error, httpx.ConnectError):
            return HubError(f"{self.endpoint} cannot be reached ({_reason(error)}); is this machine online?")
        return HubError(f"{self.endpoint} broke off in the middle of an answer ({_reason(error)}); try again")


def _of_status(status: int, repository: str) -> str:
    fix = {
        401: f"it does not take the token of this machine; {LOG_IN}",
        403: "the token of this machine may not read it",
        404: "it knows no such page; is hub_endpoint a hub?",
        429: f"it limits how often it is asked; wait, or {LOG_IN}",
    }.get(status, "try again later")
    return f"{status} for {repository}: {fix}"


def _reason(error: Exception) -> str:
    """Why there is no connection. Of other errors the kind alone: their texts may quote what was sent."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error) if isinstance(error, httpx.ConnectError) and str(error) else type(error).__name__


def _listed(info: ModelInfo) -> list[RepoSibling]:
    """The files that belong to a directory of weights: names that begin with a dot are git's, and downloaders' own."""
    if not isinstance(info.siblings, list):
        raise TypeError("no list of files")
    return [entry for entry in info.siblings if not any(part.startswith(".") for part in entry.rfilename.split("/"))]


def _size(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError("no size")
    return value


def _matching(value: object, pattern: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise TypeError("no digest")
    return value


def _licence(info: ModelInfo) -> str:
    """As the repository's card names it; one of its own by its name, if it has one. "" where nothing is said."""
    card: Any = info.card_data
    said = getattr(card, "license", None)
    tags = [tag.removeprefix("license:") for tag in info.tags or () if str(tag).startswith("license:")]
    own = getattr(card, "license_name", None)
    stated = [said] if isinstance(said, str) else list(said) if isinstance(said, list) else tags
    names = [str(name).strip().lower() for name in stated if str(name).strip()]
    if names == ["other"] and isinstance(own, str):
        names = [re.sub(r"\s+", "-", own.strip().lower())] if own.strip() else names
    name = "+".join(names)
    return name if re.fullmatch(r"[a-z0-9][a-z0-9.+_-]{0,79}", name) else "other" if name else ""


def token(read: Callable[[], str | None] = token_of_this_machine) -> str | None:
    """The hub's token of this machine, as its own client finds it; None without one. Raises HubError."""
    try:
        found = (read() or "").strip()
    except (OSError, ValueError, httpx.HTTPError, errors.OIDCError):
        raise HubError(f"the hub's token on this machine cannot be read; {LOG_IN}") from None
    if not found:
        return None
    if not re.fullmatch(r"[!-~]{1,4096}", found):
        raise HubError(f"what stands for the hub's token on this machine is none; {LOG_IN}")
    return found
