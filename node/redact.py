"""Texts that may leave a node: without the secrets that are known, and without what has the shape of one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

HIDDEN = "<hidden>"
SHORTEST = 6
"""Characters from which a value is looked for in every text; shorter ones stand in too many words."""
PLAIN = re.compile(
    r"(?:NCCL|GLOO)_[A-Z0-9_]+|VLLM_HOST_IP|TP_SOCKET_IFNAME|MN_IF_NAME|HF_HOME|HF_HUB_OFFLINE|TRANSFORMERS_OFFLINE"
    r"|(?:TORCH|FLASHINFER)_CUDA_ARCH_LIST|PYTORCH_CUDA_ALLOC_CONF|(?:CUDA|NVIDIA)_VISIBLE_DEVICES"
    r"|NVIDIA_DRIVER_CAPABILITIES|PATH|LD_LIBRARY_PATH|HOME|LANG|CUDA_VERSION|PYTHONUNBUFFERED"
)
"""Variables whose values are the launch's own or an image's. Of every other one only the name is told: it may be the
operator's, from engine_env."""

_SHAPES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    (re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{8,}"), HIDDEN),
    (re.compile(r"\bsk-[A-Za-z0-9_-]{16,}"), HIDDEN),
    (
        re.compile(
            r"""(?i)(authorization\\?["']?\s*[:=,]\s*\\?["']?)(?!null\b)(?:(?:bearer|basic|token)\s+)?[^\s"',\\]+"""
        ),
        rf"\g<1>{HIDDEN}",
    ),
    (re.compile(r"(?i)\b(bearer\s+)[A-Za-z0-9._~+/=-]{8,}"), rf"\g<1>{HIDDEN}"),
    (re.compile(r"(://)[^/\s:@\"']+:[^/\s@\"']+@"), rf"\g<1>{HIDDEN}@"),
    (re.compile(r"""(--api[-_]key["',=\s]+)[^\s"',]+"""), rf"\g<1>{HIDDEN}"),
    (
        re.compile(
            r"""\b([A-Z][A-Z0-9_]*(?:TOKEN|SECRET|PASSWORD|PASSWD|API_KEY|ACCESS_KEY|PRIVATE_KEY)"""
            r"""(?:["']?\s*[:=]\s*))(?:"[^"]*"|'[^']*'|[^\s"',]+)"""
        ),
        rf"\g<1>{HIDDEN}",
    ),
)


class Redactor:
    """Knows secrets, and takes them out of texts."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms: set[str] = set()
        for secret in secrets:
            if len(secret) >= SHORTEST and not secret.isdecimal():
                # As it is, and as JSON and an address would spell it.
                forms |= {secret, json.dumps(secret)[1:-1], quote(secret, safe="")}
        # A longer one first: another may be a part of it.
        known = sorted(forms, key=lambda form: (-len(form), form))
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def text(self, text: str) -> str:
        """The text without them."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        for shape, instead in _SHAPES:
            text = shape.sub(instead, text)
        return text


def rank_text(text: str) -> tuple[str, list[str]]:
    """A rank's launch without the values of its variables, and those values. What is no such text is told as that."""
    try:
        data = json.loads(text)
        rows = [(str(name), value) for name, value in data["env"]]
    except (ValueError, KeyError, TypeError):
        return "(damaged: it is no launch of a rank)\n", []
    data["env"] = [[name, _shown(name, value)] for name, value in rows]
    return _by_line(data), [value for name, value in rows if isinstance(value, str) and not PLAIN.fullmatch(name)]


def inspected(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A container as Docker describes it, without the values of its variables, and those values."""
    config = dict(document.get("Config") or {})
    rows = [str(row).partition("=") for row in config.get("Env") or []]
    config["Env"] = [f"{name}={_shown(name, value)}" for name, _, value in rows]
    return {**document, "Config": config}, [value for name, _, value in rows if not PLAIN.fullmatch(name)]


def _shown(name: str, value: object) -> object:
    """Where a value is looked up (a GID, a file of secrets) is no secret."""
    return value if not isinstance(value, str) or PLAIN.fullmatch(name) else HIDDEN


def _by_line(data: Mapping[str, Any]) -> str:
    """JSON with a line per entry, and per item where an entry is a list: as the launches themselves are written."""
    entries = []
    for key, value in data.items():
        text = json.dumps(value)
        if isinstance(value, list) and value:
            text = "[\n" + ",\n".join(f"  {json.dumps(item)}" for item in value) + "\n ]"
        entries.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(entries) + "\n}\n"
