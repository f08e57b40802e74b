"""What `docker login` has kept for a registry: in config.json itself, or with a helper that it names."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from pathlib import Path
from typing import Any

HELPER_SECONDS = 20.0


class LoginError(Exception):
    """The file of logins cannot be read."""


class Login:
    """The login under one key of a config.json; none where there is no such file. Raises LoginError."""

    def __init__(self, key: str, config: Path) -> None:
        self._key = key
        try:
            data = json.loads(config.read_text(encoding="utf-8"))
        except FileNotFoundError:
            data = {}
        except (OSError, ValueError) as error:
            raise LoginError(f"{config} cannot be read: {type(error).__name__}; docker login writes it anew") from None
        self._data: dict[str, Any] = data if isinstance(data, dict) else {}
        self._known: tuple[str, str] | None = None

    def basic(self) -> str:
        """User and password as a basic authorization; "" if there is no login."""
        user, password = self._credentials()
        return base64.b64encode(f"{user}:{password}".encode()).decode() if user and user != "<token>" else ""

    def for_docker(self) -> str:
        """As Docker's socket takes it with an order to pull (X-Registry-Auth); "" if there is no login."""
        user, password = self._credentials()
        if not user:
            return ""
        known = {"identitytoken": password} if user == "<token>" else {"username": user, "password": password}
        return base64.urlsafe_b64encode(json.dumps({**known, "serveraddress": self._key}).encode()).decode()

    def identity_token(self) -> str:
        """The token that stands in the place of a password, if that is how one logs in there."""
        user, password = self._credentials()
        return password if user == "<token>" else ""

    def _credentials(self) -> tuple[str, str]:
        if self._known is None:
            self._known = self._find()
        return self._known

    def _find(self) -> tuple[str, str]:
        helper = (self._data.get("credHelpers") or {}).get(self._key) or self._data.get("credsStore")
        auths = self._data.get("auths") or {}
        for key in (self._key, f"https://{self._key}", f"https://{self._key}/v1/", f"https://{self._key}/v2/"):
            entry = auths.get(key) or {}
            if entry.get("identitytoken"):
                return "<token>", str(entry["identitytoken"])
            if entry.get("auth"):
                try:
                    user, _, password = base64.b64decode(entry["auth"]).decode().partition(":")
                except ValueError:
                    continue
                return user, password.rstrip("\0")
        return self._ask(str(helper)) if helper else ("", "")

    def _ask(self, helper: str) -> tuple[str, str]:
        if not re.fullmatch(r"[\w.-]+", helper):
            return "", ""
        try:
            done = subprocess.run(
                [f"docker-credential-{helper}", "get"], input=self._key.encode(), capture_output=True,
                timeout=HELPER_SECONDS, check=True,
            )  # fmt: skip
            data = json.loads(done.stdout)
            return str(data["Username"]), str(data["Secret"])
        except (OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError):
            return "", ""  # as Docker does: a store without an entry is no login
