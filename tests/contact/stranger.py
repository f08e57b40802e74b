"""An sshd of paramiko's in this process: a node that takes a password, and runs what it is sent in its own home."""

from __future__ import annotations

import socket
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path

import paramiko

from spec.objects import SUDOERS

SUDO = """#!/bin/sh
# Stand-in for sudo: asks for the password on its standard input unless it is told not to ask.
ask=1
while [ $# -gt 0 ]; do case "$1" in -n) ask=0 ;; -k|-S) ;; -p|-u) shift ;; *) break ;; esac; shift; done
if grep -qs NOPASSWD "$NODE/sudoers"; then exec "$@"; fi
if [ $ask = 0 ]; then echo "sudo: a password is required" >&2; exit 1; fi
case "$SUDO_SAYS" in ?*) echo "$SUDO_SAYS" >&2; exit 1 ;; esac
read -r password
if [ "$password" != "$PASSWORD" ]; then echo "sudo: 1 incorrect password attempt" >&2; exit 1; fi
exec "$@"
"""


@dataclass
class Stranger:
    """One node. `sudo_says` is what its sudo refuses with; `takes` the kinds of logins that it lets try."""

    home: Path
    password: str = "open sesame"
    sudo_says: str = ""
    takes: str = "publickey,password"
    boot: str = "one"
    key: paramiko.PKey = field(default_factory=lambda: paramiko.ECDSAKey.generate())
    tried: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        tools = self.home / "bin"
        tools.mkdir(parents=True)
        for name, text in (("sudo", SUDO), ("visudo", "#!/bin/sh\n# Stand-in for visudo: finds all well.\n")):
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.socket.getsockname()[1]
        self.transports: list[paramiko.Transport] = []
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Away, with every connection."""
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.thread.join(10)
        for transport in self.transports:
            transport.close()
            transport.join(10)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            transport = paramiko.Transport(connection)
            transport.add_server_key(self.key)
            self.transports.append(transport)
            try:
                transport.start_server(server=_Door(self))
            except (paramiko.SSHException, EOFError, OSError):
                continue

    def run(self, command: str, channel: paramiko.Channel) -> None:
        """As its shell would."""
        stdin = bytearray()
        while chunk := channel.recv(65536):
            stdin += chunk
        environment = {
            "HOME": str(self.home), "NODE": str(self.home), "PASSWORD": self.password, "SUDO_SAYS": self.sudo_says,
            "PATH": f"{self.home / 'bin'}:/usr/bin:/bin", "SSH_CONNECTION": f"127.0.0.9 9 127.0.0.1 {self.port}",
        }  # fmt: skip
        # Nobody is root here, each node is in a boot of its own, and its rules of sudo are in its home.
        for real, here in (
            ("id -u", "echo 1000"),
            ("/proc/sys/kernel/random/boot_id", str(self.home / "boot")),
            (SUDOERS, str(self.home / "sudoers")),
        ):
            command = command.replace(real, here)
        (self.home / "boot").write_text(self.boot)
        done = subprocess.run(
            ["/bin/sh", "-c", command], input=bytes(stdin), capture_output=True, env=environment, cwd="/", check=False
        )
        channel.sendall(done.stdout)
        channel.sendall_stderr(done.stderr)
        channel.send_exit_status(done.returncode)
        channel.close()


class _Door(paramiko.ServerInterface):
    def __init__(self, node: Stranger) -> None:
        self.node = node

    def get_allowed_auths(self, username: str) -> str:
        return self.node.takes

    def check_auth_password(self, username: str, password: str) -> int:
        self.node.tried.append(password)
        is_right = password == self.node.password and "password" in self.node.takes
        return paramiko.AUTH_SUCCESSFUL if is_right else paramiko.AUTH_FAILED

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        file = self.node.home / ".ssh/authorized_keys"
        known = file.read_text() if file.exists() else ""
        return paramiko.AUTH_SUCCESSFUL if key.get_base64() in known else paramiko.AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.node.commands.append(command.decode())
        threading.Thread(target=self.node.run, args=(command.decode(), channel), daemon=True).start()
        return True
