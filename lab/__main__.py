"""`python3 -m lab COMMAND`: see README.md."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from lab import demo, hosts, lifecycle, memory, network, settings
from lab.settings import HOSTS, Host
from lab.shell import LabError, inside, lock

PASSED_ON = {
    "ctl": "run a command on the control machine",
    "pyinfra": "run pyinfra on the control machine, from lab/: pyinfra ARGS inventory.py ../deploy.py",
    "plan": "run plan.py on the control machine, with the lab's inventory",
    "verify": "run verify.py likewise, for its --deep",
    "doctor": "run doctor.py likewise",
    "lock": "run lock.py likewise; it writes lab/sparkpair.lock",
}
"""Commands of which everything that follows is another program's."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python3 -m lab", description="The simulated pair: two real Linux hosts.")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="COMMAND")

    def verb(name: str, text: str) -> argparse.ArgumentParser:
        return verbs.add_parser(name, help=text, description=text)

    verb("build", "make or find packages, trees and images")
    up = verb("up", "build what is missing and start both hosts; nothing when they run")
    up.add_argument("--hosts-only", action="store_true", help="without images")
    down = verb("down", "stop everything")
    down.add_argument("--keep-disks", action="store_true", help="the next `up` finds the hosts as they were")
    clean = verb("clean", f"stop everything and empty {settings.LAB.name}/")
    clean.add_argument("--keep-caches", action="store_true", help="Debian trees and registry stay")
    status = verb("status", "tell what stands; exit code 0 when both hosts are on")
    status.add_argument("--json", action="store_true")
    for name, text in {
        "ssh": "run a command on a host through ssh, as its user",
        "exec": "run a command on a host as root, without ssh",
    }.items():
        command = verb(name, text)
        host_argument(command)
        command.add_argument("words", nargs=argparse.REMAINDER, metavar="CMD")
    for name, text in PASSED_ON.items():
        verb(name, text).add_argument("words", nargs=argparse.REMAINDER, metavar="ARG")
    for name, text in {
        "reboot": "reboot a host in order and wait for it",
        "off": "cut a host's power",
        "on": "switch a host on and wait for it",
        "offline": "keep a host from the registry and the hub, as without internet",
        "online": "let it reach them again",
        "unplug": "pull a host's management cable",
        "plug": "put it back",
    }.items():
        host_argument(verb(name, text))
    for name, text in {"cut": "pull the cable of a rail", "join": "put it back", "loss": "lose packets"}.items():
        rail = verb(name, text)
        rail.add_argument("rail", type=int, choices=settings.RAIL_NUMBERS)
        if name == "loss":
            rail.add_argument("permille", type=int, help="per mille of the packets, each way; 0 ends it")
    spare = verb("pc", "put a cable from a host's spare port to a computer in, or pull it")
    host_argument(spare)
    spare.add_argument("state", choices=["on", "off"])
    shown = verb("memory", "let a host show so little available memory; without MIB, as it is again")
    host_argument(shown)
    shown.add_argument("mib", type=int, nargs="?", metavar="MIB")
    verb("demo", "build, up, deploy, ask the head's API, print the answer and the times")
    verb("demo-times", "print the times of the last demo again")
    host_argument(verb("supervise", "used by the lab itself: run a host"))
    return top


def host_argument(command: argparse.ArgumentParser) -> None:
    """The host that a command is about, by either of its names."""
    names = [*HOSTS, *(host.hostname for host in HOSTS.values())]
    command.add_argument("host", choices=names, metavar="HOST", help="head or worker")


def host_of(arguments: argparse.Namespace) -> Host:
    """The host that was named."""
    return HOSTS[arguments.host.removeprefix("lab-")]


def become(words: Sequence[str], directory: str | None = None) -> NoReturn:
    """Continue as another program: its exit code and signals are its own."""
    if directory:
        os.chdir(directory)
    sys.stdout.flush()
    os.execvp(words[0], list(words))


def need_up() -> None:
    """Refuse what makes no sense without a lab."""
    if not network.exists(settings.CONTROL_NAMESPACE):
        raise LabError("the lab is down: `python3 -m lab up` starts it")


def pyinfra_command(arguments: Sequence[str]) -> list[str]:
    """pyinfra from lab/, so that it reads the lab's group data only, with the project's own config.py.

    Without a file among the arguments, deploy.py is meant; without an inventory, the lab's.
    """
    words = list(arguments)
    files = [at for at, word in enumerate(words) if word.endswith(".py") and "=" not in word]
    if not files:
        words += ["inventory.py", "../deploy.py"]
    elif len(files) == 1 and "inventory.py" not in words:
        words.insert(files[0], "inventory.py")
    return inside(settings.CONTROL_NAMESPACE, installed("pyinfra"), "--config", "../config.py", *words)


def installed(name: str) -> Path:
    """A program of the checkout's environment."""
    program = settings.CHECKOUT / ".venv/bin" / name
    if not program.exists():
        raise LabError(f"{program} is not there: `make venv` makes it")
    return program


def dispatch(arguments: argparse.Namespace) -> int:
    """Do what was asked."""
    verb = arguments.verb
    if verb == "supervise":
        hosts.supervise(host_of(arguments))
        return 0
    if verb in ("build", "up", "down", "clean"):
        with lock():
            {
                "build": lifecycle.build,
                "up": lambda: lifecycle.up(arguments.hosts_only),
                "down": lambda: lifecycle.down(arguments.keep_disks),
                "clean": lambda: lifecycle.clean(arguments.keep_caches),
            }[verb]()
        return 0
    if verb == "status":
        return lifecycle.status(arguments.json)
    if verb == "demo":
        return demo.run_demo()
    if verb == "demo-times":
        return demo.print_times()
    need_up()
    if verb in ("ssh", "exec"):
        host = host_of(arguments)
        if verb == "exec":
            become(hosts.exec_command(host, shlex.join(arguments.words) if len(arguments.words) > 1
                                      else "".join(arguments.words) or "exec /bin/bash -l"))  # fmt: skip
        become(hosts.ssh_command(host, *arguments.words))
    if verb == "ctl":
        become(inside(settings.CONTROL_NAMESPACE, *(arguments.words or ["bash"])))
    if verb == "pyinfra":
        become(pyinfra_command(arguments.words), str(settings.SOURCE))
    if verb in ("plan", "verify", "doctor", "lock"):
        program = inside(settings.CONTROL_NAMESPACE, installed("python"), f"../{verb}.py", *arguments.words)
        become(program, str(settings.SOURCE))
    if verb == "reboot":
        hosts.reboot(host_of(arguments))
    elif verb == "off":
        hosts.cut_power(host_of(arguments))
    elif verb == "on":
        hosts.start(host_of(arguments))
        hosts.wait_ready(host_of(arguments))
    elif verb == "offline":
        network.offline(host_of(arguments))
    elif verb == "online":
        network.online(host_of(arguments))
    elif verb == "unplug":
        network.unplug(host_of(arguments))
    elif verb == "plug":
        network.plug(host_of(arguments))
    elif verb == "pc":
        network.pc(host_of(arguments), arguments.state == "on")
    elif verb == "memory" and arguments.mib is None:
        memory.give_back(host_of(arguments))
    elif verb == "memory":
        memory.leave(host_of(arguments), arguments.mib)
    elif verb == "cut":
        network.cut(arguments.rail)
    elif verb == "join":
        network.join(arguments.rail)
    elif verb == "loss":
        network.loss(arguments.rail, arguments.permille)
    return 0


def parse(words: Sequence[str]) -> argparse.Namespace:
    """What was asked. argparse would keep an option that stands first for itself, so it never sees these."""
    if len(words) > 1 and words[0] in PASSED_ON and words[1] not in ("-h", "--help"):
        return argparse.Namespace(verb=words[0], words=list(words[1:]))
    return parser().parse_args(words)


def main() -> int:
    """Run one command; whatever goes wrong ends in one message."""
    arguments = parse(sys.argv[1:])
    if os.geteuid() != 0:
        print("lab: needs root: it makes namespaces, mounts and hosts", file=sys.stderr)
        return 1
    try:
        return dispatch(arguments)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    except subprocess.TimeoutExpired as error:
        print(f"lab: `{' '.join(map(str, error.cmd))[:200]}` gave no answer in {error.timeout:.0f} s", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
