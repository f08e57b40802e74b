"""The keeper's way to the workers: the host key that the head pinned is the one that the worker has."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator

from checks.check import Check, Sight, When
from checks.verdict import Verdict, broken, holds, told
from facts.values import Unknown
from spec.objects import KNOWN_HOSTS

RUNS = frozenset({When.VERIFY, When.DOCTOR})


def fingerprint(key: str) -> str:
    """As ssh-keygen -l says it, of a line `TYPE BASE64`."""
    kind, _, text = key.partition(" ")
    try:
        digest = hashlib.sha256(base64.b64decode(text.split()[0], validate=True)).digest()
    except (IndexError, binascii.Error):
        return f"{kind} that cannot be read"
    return f"{kind} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def _changed(sight: Sight) -> Iterator[tuple[str, str, str]]:
    """Of each worker with a pin: its name, what is pinned, and what it has."""
    texts = sight.facts[sight.cluster.head.name].texts
    text = None if isinstance(texts, Unknown) else texts.get(KNOWN_HOSTS)
    if not isinstance(text, str):
        return  # nothing was pinned yet
    pinned = {words[0]: " ".join(words[1:3]) for words in map(str.split, text.splitlines()) if len(words) >= 3}
    for node in sight.cluster.workers:
        key, pin = sight.facts[node.name].host_key, pinned.get(f"sparkpair-rank{node.rank}")
        if pin is not None and not isinstance(key, Unknown):
            yield node.name, pin, key


def pinned(sight: Sight) -> Iterator[Verdict]:
    """SSH-02: for whoever looks at a pair that should run."""
    for name, pin, key in _changed(sight):
        if pin == key:
            yield holds(name, "its ssh host key is the one that the keeper pinned")
        else:
            yield broken(
                name,
                f"its ssh host key is {fingerprint(key)}, and the keeper pinned {fingerprint(pin)}: the keeper does "
                "not talk to it",
                "if it was installed anew, or got new keys: run deploy.py, which pins the new one over your own "
                "connection. Else find out who answers there",
            )


def pinned_anew(sight: Sight) -> Iterator[Verdict]:
    """The same for a deploy, which pins the new one: it came over the operator's connection, whose key was accepted."""
    for name, pin, key in _changed(sight):
        if pin != key:
            yield told(
                name,
                f"its ssh host key is {fingerprint(key)}, and the keeper pinned {fingerprint(pin)}; this deploy pins "
                "the new one",
                "nothing, if you know why it changed: on the node, ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub "
                "shows it",
            )


CHECKS = (
    Check("ssh.pinned", "Is each worker's host key the one that the keeper pinned?", pinned, RUNS, ("SSH-02",)),
    Check(
        "ssh.pinned-anew",
        "Does the deploy pin another host key than before?",
        pinned_anew,
        frozenset({When.PREFLIGHT}),
        ("SSH-02",),
    ),
)
