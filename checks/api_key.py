"""The key that the API asks for: is it there, can it be used, and is it root's alone?"""

from __future__ import annotations

from collections.abc import Iterator

from checks.verdict import Verdict, broken, holds, unknown
from facts.values import NodeFacts, Secret, Unknown
from spec.cluster import Cluster
from spec.objects import API_KEY_FILE

WRITE_ANOTHER = (
    f"on the head: sudo rm {API_KEY_FILE}; deploy.py then makes one. Or write one line of your own there, at least 16\n"
    "printable characters without blanks, as root with umask 077"
)


def usable(cluster: Cluster, seen: NodeFacts) -> Iterator[Verdict]:
    """Before a deploy: a key that is there can be used; one that is missing is made."""
    if not cluster.knobs.require_api_key:
        return
    now = of(seen, API_KEY_FILE)
    if isinstance(now, Unknown):
        yield unknown(cluster.head.name, f"the API key in {API_KEY_FILE}", now)
    elif now.trouble:
        yield broken(cluster.head.name, f"the API key cannot be used: {API_KEY_FILE} {now.trouble}", WRITE_ANOTHER)
    elif now.present:
        yield holds(cluster.head.name, "the API key can be used")


def kept(cluster: Cluster, seen: NodeFacts) -> Iterator[Verdict]:
    """After a deploy: it is there, and root's alone."""
    if not cluster.knobs.require_api_key:
        return
    name = cluster.head.name
    now = of(seen, API_KEY_FILE)
    if isinstance(now, Unknown) or now.trouble:
        yield from usable(cluster, seen)
        return
    file = Unknown("not looked at") if isinstance(seen.files, Unknown) else seen.files.get(API_KEY_FILE)
    if not now.present:
        yield broken(name, f"there is no API key in {API_KEY_FILE}", "run deploy.py, which makes one")
    elif isinstance(file, Unknown):
        yield unknown(name, f"{API_KEY_FILE}", file)
    elif file is None or (file.mode, file.owner, file.group) != ("600", "root", "root"):
        found = f"{file.mode} {file.owner}:{file.group}" if file else "not there any more"
        yield broken(name, f"{API_KEY_FILE} is {found}, wanted 600 root:root", "run deploy.py")
    else:
        yield holds(name, f"the API key is in {API_KEY_FILE}, and root's alone")


def of(seen: NodeFacts, path: str) -> Secret | Unknown:
    """What is known of a secret."""
    if isinstance(seen.secrets, Unknown):
        return seen.secrets
    return seen.secrets.get(path, Unknown("not looked at"))


def identity(seen: NodeFacts, path: str) -> str | None:
    """A secret's identity; None while there is none, or it cannot be used."""
    now = of(seen, path)
    return None if isinstance(now, Unknown) else now.identity
