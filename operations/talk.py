"""All nodes talk to each other on their ports at the same time: once in a run, however many hosts ask."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import gevent
from gevent.lock import RLock
from pyinfra.api.host import Host
from pyinfra.api.state import State
from pyinfra.context import ctx_host, ctx_state

from facts.talk import SECONDS, Question, Said, Talk, TalkSide, Way
from spec.cluster import Rail
from spec.discovery import Look

TIMEOUT_SECONDS = int(SECONDS) + 20
"""For a node that is slow to begin; one that never answers is as one that said nothing."""

_talks: WeakKeyDictionary[State, Talk] = WeakKeyDictionary()
_lock = RLock()


def talk(hosts: Mapping[str, Host], looks: Sequence[Look], rails: Mapping[str, Sequence[Rail]], mtu: int) -> Talk:
    """What each node of these hears of the others on its ports with a carrier, and how packets pass the rails that are
    known. Nothing is changed on any node."""
    state = ctx_state.get()
    with _lock:
        if state not in _talks:
            _talks[state] = _held(state, hosts, questions(looks, rails, mtu))
        return _talks[state]


def questions(looks: Sequence[Look], rails: Mapping[str, Sequence[Rail]], mtu: int) -> dict[str, Question]:
    """What each node is told; those with nothing to say or hear on are told nothing."""
    nonce = secrets.token_hex(8)
    ways = {look.name: _ways(look.name, rails, mtu) for look in looks}
    part = tuple(look.name for look in looks if look.lit or ways[look.name])
    return {
        look.name: Question(look.name, nonce, part, tuple(port.netdev for port in look.lit), tuple(ways[look.name]))
        for look in looks
        if look.name in part
    }


def _ways(name: str, rails: Mapping[str, Sequence[Rail]], mtu: int) -> list[Way]:
    return [
        Way(ours.netdev, str(ours.ip), peer, str(theirs.ip), mtu)
        for peer, others in rails.items()
        if peer != name
        for ours, theirs in zip(rails.get(name, ()), others, strict=False)
    ]


def _held(state: State, hosts: Mapping[str, Host], asked: Mapping[str, Question]) -> Talk:
    def ask(name: str) -> Said:
        host = hosts[name]
        with ctx_state.use(state), ctx_host.use(host):
            said: Said = host.get_fact(
                TalkSide, question=asked[name].text(), _sudo=False, _ignore_errors=True, _timeout=TIMEOUT_SECONDS
            )
        return said

    parts = {name: gevent.spawn(ask, name) for name in asked}
    gevent.joinall(list(parts.values()), raise_error=True)
    return Talk({name: part.value for name, part in parts.items()})
