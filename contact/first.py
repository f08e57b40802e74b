"""First contact with all nodes: everything is asked and judged before the first thing is changed, here or there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import TypeVar

from contact import host_keys, own_keys, settle
from contact.own_keys import OwnKey, OwnKeys
from contact.place import Place
from contact.session import Session
from contact.settle import Sudo, Survey
from contact.words import Refused, Screen
from spec.objects import SUDOERS

T = TypeVar("T")
R = TypeVar("R")


@dataclass
class Node:
    """A node that is being met."""

    session: Session
    keys: OwnKeys
    pinned: bool
    key: OwnKey | None = None
    password: str | None = field(default=None, repr=False)
    survey: Survey | None = None

    @property
    def place(self) -> Place:
        return self.session.place

    @property
    def address(self) -> IPv4Address | None:
        """Its own address on the way by which it was reached; None where that is no IPv4."""
        try:
            return IPv4Address(self.survey.address) if self.survey else None
        except ValueError:
            return None


@dataclass
class Passwords:
    """The password, asked for when the first node needs it; another one where a node does not take it."""

    screen: Screen
    given: str | None = field(default=None, repr=False)

    def fitting(self, place: Place, takes: Callable[[str], bool]) -> str:
        """The password that `takes` takes. Raises Refused."""
        if self.given is None:
            self.given = self.screen.secret(f"password of {place.user} (never written down or shown)")
            if self.given is None:
                raise Refused(
                    [
                        f"{place.where}: wants a password, and none was given; without a terminal it is read from the "
                        f"standard input, one line"
                    ]
                )
        elif takes(self.given):
            return self.given
        else:
            other = self.screen.secret(f"{place.where} does not take that password; its own")
            if other is not None and takes(other):
                return other
            raise _wrong(place)
        if takes(self.given):
            return self.given
        raise _wrong(place)


def _wrong(place: Place) -> Refused:
    return Refused(
        [
            f"{place.where}: does not take this password for {place.user}",
            f"  Try it by hand: ssh {place.where}; another user is named as USER@{place.host}",
        ]
    )


@contextmanager
def meet(places: Sequence[Place], key: Path | None, screen: Screen, *, yes: bool) -> Iterator[list[Node]]:
    """All nodes, with a key that logs in and a way to be root. Raises Refused; the sessions end with the block."""
    _once_each(places)
    sessions = _all(places, lambda place: Session(place, [one.key.get_name() for one in host_keys.known(place)]))
    nodes: list[Node] = []
    try:
        for session in sessions:
            nodes.append(_judged(session, key))
        _confirm([node for node in nodes if not node.pinned], screen, yes=yes)
        passwords = Passwords(screen)
        _collect(nodes, lambda node: _log_in(node, passwords))
        _collect(nodes, _look)
        _different_machines(nodes)
        _collect(nodes, lambda node: _root(node, passwords))
        missing = None
        if any(node.key is None for node in nodes):
            missing = nodes[0].keys.to_give()
        _change(nodes, missing, screen)
        yield nodes
    finally:
        for session in sessions:
            session.close()
        for node in nodes:
            node.keys.close()


def _all(places: Sequence[Place], reach: Callable[[Place], Session]) -> list[Session]:
    """All at once: one that is off is waited for while the others answer. Raises Refused with all reasons."""
    found: list[Session] = []

    def keep(place: Place) -> None:
        found.append(reach(place))

    try:
        at_once(keep, places)
    except BaseException:
        for session in found:
            session.close()
        raise
    return sorted(found, key=lambda session: places.index(session.place))


def at_once(ask: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """The same of all, at the same time. Raises Refused with the reasons of all; any other exception goes first."""
    with ThreadPoolExecutor(len(items)) as pool:
        waiting = [pool.submit(ask, item) for item in items]
    errors = [error for one in waiting if (error := one.exception()) is not None]
    for error in errors:
        if not isinstance(error, Refused):
            raise error
    if errors:
        raise Refused([line for error in errors if isinstance(error, Refused) for line in error.lines])
    return [one.result() for one in waiting]


def _collect(nodes: Sequence[Node], step: Callable[[Node], None]) -> None:
    lines: list[str] = []
    for node in nodes:
        try:
            step(node)
        except Refused as error:
            lines += error.lines
    if lines:
        raise Refused(lines)


def _once_each(places: Sequence[Place]) -> None:
    seen: dict[tuple[str, int], Place] = {}
    for place in places:
        other = seen.setdefault((place.target, place.port), place)
        if other is not place:
            raise Refused([f"{other.where} and {place.where}: are one address; name two machines"])


def _judged(session: Session, key: Path | None) -> Node:
    try:
        pinned = host_keys.judge(session.place, session.host_key)
    except Refused:
        session.close()
        raise
    return Node(session, own_keys.find(key, session.place.identities), pinned)


def _confirm(unknown: Sequence[Node], screen: Screen, *, yes: bool) -> None:
    """Host keys that nobody has pinned yet are shown, and confirmed once for all."""
    if not unknown:
        return
    shown = [
        f"{node.place.where}: host key {node.session.host_key.fingerprint} ({node.session.host_key.get_name()})"
        for node in unknown
    ]
    for line in shown:
        screen.say(line)
    if yes:
        return
    screen.say("On a node's own screen this shows the same: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub")
    if not screen.confirms("Are these your nodes?"):
        why = "not confirmed" if screen.terminal else "nobody can confirm them here; --yes takes them as shown"
        raise Refused([*shown, f"  These host keys are new here: {why}. Nothing was sent to the nodes"])


def _log_in(node: Node, passwords: Passwords) -> None:
    node.key = node.session.login_by_key(node.keys.keys)
    if node.key is None:
        node.password = passwords.fitting(node.place, node.session.login_by_password)


def _look(node: Node) -> None:
    node.survey = settle.survey(node.session)
    if node.survey.sudo is Sudo.MISSING:
        raise Refused([f"{node.place.where}: has no sudo, and {node.place.user} is not root; deploys run as root"])


def _different_machines(nodes: Sequence[Node]) -> None:
    seen: dict[str, Node] = {}
    for node in nodes:
        boot = node.survey.boot if node.survey else ""
        other = seen.setdefault(boot, node) if boot else node
        if other is not node:
            name = node.survey.name if node.survey else ""
            raise Refused([f"{other.place.where} and {node.place.where}: are the same machine ({name}); name two"])


def _root(node: Node, passwords: Passwords) -> None:
    if node.survey is None or node.survey.sudo is not Sudo.ASKS:
        return
    if node.password is not None and settle.may_become_root(node.session, node.password):
        return
    node.password = passwords.fitting(node.place, lambda password: settle.may_become_root(node.session, password))


def _change(nodes: Sequence[Node], key: OwnKey | None, screen: Screen) -> None:
    """What is missing, here first. Each step is whole, and told when it is done."""
    if key is None and any(node.key is None for node in nodes):
        key = own_keys.make()
        screen.did(f"{key.place}: made, a key without a passphrase, so that deploys need nobody at the keyboard")
    for node in nodes:
        if not node.pinned:
            host_keys.pin(node.place, node.session.host_key)
            node.pinned = True
            screen.did(f"{node.place.where}: host key pinned in {node.place.known_hosts[0]}")
    for node in nodes:
        if node.key is None and key is not None:
            _give_key(node, key)
            screen.did(f"{node.place.where}: key of {key.place} added to ~/.ssh/authorized_keys; it logs in")
        if node.survey is not None and node.survey.sudo is Sudo.ASKS and node.password is not None:
            settle.give_sudo(node.session, node.password)
            screen.did(f"{node.place.where}: {SUDOERS} written: {node.place.user} may use sudo without a password")


def _give_key(node: Node, key: OwnKey) -> None:
    added = settle.give_key(node.session, key)
    proof = Session(node.place, [node.session.host_key.get_name()])
    try:
        if proof.host_key == node.session.host_key and proof.login_by_key([key]) is not None:
            node.key = key
            return
    finally:
        proof.close()
    if added:
        settle.take_key(node.session, key)
    raise Refused(
        [
            f"{node.place.where}: ~/.ssh/authorized_keys has the key, and sshd does not take it"
            + ("; the line was taken away again" if added else ""),
            "  Usual: home, ~/.ssh or the file may be written by others. There: chmod go-w ~ ~/.ssh "
            "~/.ssh/authorized_keys; then sudo journalctl -u ssh says more",
        ]
    )
