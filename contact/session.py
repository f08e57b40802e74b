"""One ssh connection to a node: first only its host key is seen, then somebody is logged in, then commands run."""

from __future__ import annotations

import shlex
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass

import paramiko

from contact import host_keys
from contact.own_keys import MAX_KEYS, OwnKey
from contact.place import CONNECT_SECONDS, Place, parse
from contact.words import Refused

GREETING_SECONDS = 15.0
"""For the whole exchange before a login; a node under load takes seconds."""
COMMAND_SECONDS = 30.0


@dataclass(frozen=True)
class Answer:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """The last line that it said, of errors first."""
        lines = (self.err.strip() or self.out.strip()).splitlines()
        return lines[-1].strip() if lines else "nothing"


class Session:
    """A connection to one place."""

    def __init__(self, place: Place, known_kinds: Iterable[str] = ()) -> None:
        """Connect. Kinds of host keys that are pinned are asked for first. Raises Refused."""
        self.place = place
        self._transport = _greet(place, frozenset(known_kinds))
        self.host_key = self._transport.get_remote_server_key()

    def login_by_key(self, keys: Iterable[OwnKey]) -> OwnKey | None:
        """The key that the node takes, or None."""
        for key in list(keys)[:MAX_KEYS]:
            try:
                self._revive()
                if not self._transport.auth_publickey(self.place.user, key.signer):
                    return key
            except paramiko.BadAuthenticationType:
                return None
            except paramiko.AuthenticationException:
                continue
            except (paramiko.SSHException, OSError, EOFError):
                continue  # sshd hung up after too many, or the agent did not sign
        return None

    def login_by_password(self, password: str) -> bool:
        """Whether the node takes this password. Raises Refused where it takes none at all."""
        try:
            self._revive()
            more = self._transport.auth_password(self.place.user, password)
        except paramiko.BadAuthenticationType as error:
            takes = ", ".join(error.allowed_types) or "nothing that is known here"
            raise Refused(
                [
                    f"{self.place.where}: lets nobody in by password (it takes {takes}), and none of your keys",
                    "  At the node itself, add your public key to ~/.ssh/authorized_keys; or name the key that it "
                    "knows with --key",
                ]
            ) from None
        except paramiko.AuthenticationException:
            return False
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise Refused([f"{self.place.where}: hung up during the login ({error}); try again in a minute"]) from None
        if more:
            raise Refused(
                [f"{self.place.where}: wants {', '.join(more)} beside the password; log in once by hand, and add a key"]
            )
        return True

    def run(self, command: str, stdin: str = "", seconds: float = COMMAND_SECONDS) -> Answer:
        """Run a command. Raises Refused where the node gives no answer in time."""
        end = time.monotonic() + seconds
        try:
            channel = self._transport.open_session(timeout=CONNECT_SECONDS)
            channel.settimeout(seconds)
            channel.exec_command(command)
            channel.sendall(stdin.encode())
            channel.shutdown_write()
            out, err = bytearray(), bytearray()
            while not (channel.exit_status_ready() and not channel.recv_ready() and not channel.recv_stderr_ready()):
                if time.monotonic() > end:
                    raise TimeoutError
                moved = False
                if channel.recv_ready():
                    out += channel.recv(65536)
                    moved = True
                if channel.recv_stderr_ready():
                    err += channel.recv_stderr(65536)
                    moved = True
                if not moved:
                    time.sleep(0.005)
            while chunk := channel.recv(65536):
                out += chunk
            while chunk := channel.recv_stderr(65536):
                err += chunk
            return Answer(channel.recv_exit_status(), out.decode(errors="replace"), err.decode(errors="replace"))
        except TimeoutError:
            raise Refused([f"{self.place.where}: a command gave no answer within {seconds:g} s"]) from None
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise Refused([f"{self.place.where}: the connection was lost ({error or 'it hung up'})"]) from None

    def close(self) -> None:
        """Hang up."""
        self._transport.close()

    def _revive(self) -> None:
        """A connection again, where sshd ended the one before; to the machine of before."""
        if self._transport.is_active():
            return
        self._transport = _greet(self.place, frozenset({self.host_key.get_name()}))
        if self._transport.get_remote_server_key() != self.host_key:
            raise Refused([f"{self.place.where}: shows another host key than a moment ago; nothing more was sent"])


def script(text: str, *words: str) -> str:
    """A command line that runs a script of sh with arguments, whatever the user's login shell is."""
    return shlex.join(["sh", "-c", text, "sparkpair", *words])


def _greet(place: Place, known_kinds: frozenset[str]) -> paramiko.Transport:
    for hop in place.hops:
        # pyinfra would ask whether to go on, and take the password's line for the answer.
        if not host_keys.known(parse(hop, None)):
            raise Refused(
                [
                    f"{place.where}: ~/.ssh/config leads there through {hop}, whose host key is not pinned yet",
                    f"  Log in there once by hand: ssh {hop}",
                ]
            )
    try:
        transport = paramiko.Transport(place.connect())
        options = transport.get_security_options()
        wanted = known_kinds | ({"rsa-sha2-512", "rsa-sha2-256"} if "ssh-rsa" in known_kinds else frozenset())
        options.key_types = sorted(options.key_types, key=lambda kind: kind not in wanted)
        transport.start_client(timeout=GREETING_SECONDS)
        return transport
    except socket.gaierror:
        raise Refused(
            [f"{place.where}: no address is known for this name; is it spelt so? Its address will do as well"]
        ) from None
    except ConnectionRefusedError:
        raise Refused(
            [
                f"{place.where}: is there, and nothing listens on port {place.port}",
                "  At the node itself: sudo systemctl enable --now ssh",
            ]
        ) from None
    except TimeoutError:
        raise Refused(
            [f"{place.where}: no answer within {CONNECT_SECONDS:g} s; is it on, and is this its address?"]
        ) from None
    except paramiko.SSHException as error:
        raise Refused([f"{place.where}: port {place.port} does not answer as sshd does ({error})"]) from None
    except (OSError, EOFError) as error:
        why = getattr(error, "strerror", None) or str(error) or "it hung up"
        raise Refused([f"{place.where}: cannot be reached ({why}); is it on, and is this its address?"]) from None
