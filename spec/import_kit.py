"""Takes over the settings of the reference kit: reads its `.env`, or its nodes' own files, and writes ours.

python -m spec.import_kit PATH [PATH ...] [--head ADDRESS --head-user USER | --here] [--worker-file PATH] [--output DIR]
[--dry]

Exit 0: written, 1: refused and nothing written, 2: not called as above, 130: interrupted outside the writing, which an
interrupt takes back. No file is executed, and none is lost: one that differs is kept beside the new one as
NAME.before-import.
"""

from __future__ import annotations

import argparse
import difflib
import getpass
import io
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import AddressValueError, IPv4Address, IPv4Network, NetmaskValueError
from pathlib import Path

from pyinfra.api.exceptions import DeployError, InventoryError

from spec import kit_env, kit_keys, rules
from spec.kept_files import NotWritten, Written, write
from spec.kit_values import DEFAULTS, STACK, Environment, Given, Reading, is_default, read
from spec.knobs import KNOBS, Scope, shown
from spec.load import Source, StatedHost, connection_keys, load
from spec.presets import PRESETS
from spec.transport import ssh

CHECKOUT = Path(__file__).resolve().parent.parent
WRITTEN, REFUSED, USAGE = 0, 1, 2
INTERRUPTED = 130
"""As a shell says of what Ctrl-C ended."""

# What the kit v2.3-tier1 assumes where nothing is stated: its installer, and a launcher that is started by itself.
_INSTALLER = {
    "HEAD_RAIL_IP": "10.200.0.1",
    "WORKER_RAIL_IP": "10.200.0.2",
    "NCCL_SUBNET": "10.200.0.0/24",
    "HEAD_NCCL_IF": "enp1s0f0np0",
    "HEAD_NCCL_HCA": "rocep1s0f0",
    "WORKER_NCCL_IF": "enp1s0f0np0",
    "WORKER_NCCL_HCA": "rocep1s0f0",
}
_LAUNCHER = {
    "HEAD_RAIL_IP": "10.200.0.15",
    "WORKER_RAIL_IP": "10.200.0.33",
    "NCCL_SUBNET": "10.200.0.0/24",
    "HEAD_NCCL_IF": "enp1s0f0np0",
    "HEAD_NCCL_HCA": "rocep1s0f0",
}

HEAD, WORKER = "spark-a", "spark-b"
LOCAL = "@local"


def _user() -> str:
    """Who runs this; nothing where the machine has no name for it."""
    try:
        return getpass.getuser()
    except (KeyError, ImportError, OSError):
        return ""


def _address_towards(address: str) -> str:
    """This machine's own address on the way to another. Raises OSError where there is no way. Connecting a datagram
    socket chooses the route and sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])


@dataclass(frozen=True)
class Machine:
    """What is asked of the machine that runs this, for --here."""

    user: Callable[[], str] = _user
    home: Callable[[], Path] = Path.home
    address_towards: Callable[[str], str] = _address_towards


@dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    paths: tuple[Path, ...]
    worker_file: Path | None = None
    head: str | None = None
    here: bool = False
    head_user: str | None = None

    @property
    def wants_inventory(self) -> bool:
        return self.here or self.head is not None


@dataclass
class Result:
    """What was found: what to write, and what to say."""

    refusals: list[str] = field(default_factory=list)
    taken: list[tuple[str, str, str]] = field(default_factory=list)
    retired: list[tuple[str, str, str]] = field(default_factory=list)
    unknown: list[tuple[str, str, str]] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    to_do: dict[str, None] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    pair: dict[str, tuple[object, str]] = field(default_factory=dict)
    """Settings for group_data/all.py, each with the variables that it comes from."""
    nodes: dict[str, dict[str, object]] = field(default_factory=lambda: {"head": {}, "worker": {}})
    """What holds for one node only."""
    hosts: dict[str, dict[str, object]] = field(default_factory=dict)
    """The nodes' whole data by host name; empty without an inventory."""
    refused_by_deploy: list[str] = field(default_factory=list)
    warned_by_deploy: list[str] = field(default_factory=list)

    @property
    def files(self) -> dict[str, str]:
        """The files to write, by their path in the checkout."""
        files = {"group_data/all.py": _settings_text(self.pair)}
        if self.hosts:
            files["inventory.py"] = _inventory_text(self.hosts)
        return files


# From the files to what is written


def take_over(request: Request, machine: Machine) -> Result:
    """Everything that can be found out without writing."""
    result = Result()
    files = [kit_env.read(path) for path in request.paths]
    worker_file = kit_env.read(request.worker_file) if request.worker_file else None
    for file in [*files, *([worker_file] if worker_file else [])]:
        result.refusals += kit_env.refusal_lines(file)
        for variable, numbers in file.repeated.items():
            held = file.values[variable].number
            result.notes[
                f"{file.name}: {variable} stands on {kit_env.shown_lines(numbers)}; line {held} holds, as in the shell"
            ] = None
    head = _together(files, result)
    worker = None
    if worker_file and (worker_file.is_of_a_node or worker_file.refusals):
        worker = {key: _given(worker_file, line) for key, line in worker_file.values.items()}
    elif worker_file:
        result.refusals.append(
            f"{worker_file.name}: is the kit's .env, not a node's own file; --worker-file takes the worker's "
            f"~/.glm53-serve.env"
        )
    if not result.refusals and not any(variable in kit_keys.known() for variable in head):
        result.refusals.append(
            f"{', '.join(file.name for file in files)}: no variable of the reference kit is stated there; name its "
            f".env, or a node's ~/.glm53-serve.env"
        )
        return result
    _settings(head, worker, request, machine, result)
    _inventory(head, worker, request, machine, result)
    if not result.refusals:
        _ask_the_loader(result)
        _name_a_preset(result)
    return result


def _given(file: kit_env.KitFile, line: kit_env.Line) -> Given:
    return Given(line.key, line.value, f"{file.name}:{line.number}", file.is_of_a_node)


def _together(files: Sequence[kit_env.KitFile], result: Result) -> dict[str, Given]:
    """What all files say; two that differ are refused, since nobody can know which one holds."""
    stated: dict[str, Given] = {}
    for file in files:
        for variable, line in file.values.items():
            given, before = _given(file, line), stated.get(variable)
            if before is None or before.value == given.value:
                stated.setdefault(variable, given)
            elif variable not in kit_keys.THREE_STATES and not (before.value and given.value):
                stated[variable] = before if before.value else given
            else:
                fix = "name the worker's own file with --worker-file" if given.of_node and before.of_node else ""
                result.refusals.append(
                    f"{given.place}: {variable}={_plain(given.value)}, and {before.place} has "
                    f"{_plain(before.value)}; {fix or 'name the one file that holds'}"
                )
    return stated


def _plain(value: str) -> str:
    return value if re.fullmatch(r"[A-Za-z0-9._~/:@=+-]{1,120}", value) else shown(value)


def _settings(
    head: Environment, worker: Environment | None, request: Request, machine: Machine, result: Result
) -> None:
    """The knobs, and a row for each variable of the head's files."""
    ours, theirs = read(head), read(worker) if worker is not None else None
    for environment, found in ((head, ours), *(((worker, theirs),) if worker is not None and theirs else ())):
        for variable, reason in found.refused.items():
            given = environment[variable]
            result.refusals.append(f"{given.place}: {variable}={_plain(given.value)}: {reason}")
    for knob, (value, variable) in ours.values.items():
        if KNOBS[knob].scope is Scope.PAIR and not is_default(knob, value, ours.values):
            result.pair[knob] = (value, variable)
    if (
        theirs is not None and worker is not None and not result.refusals
    ):  # else what is missing may be what was refused
        _same_on_both(head, ours, worker, theirs, result)
    for knob in ("weights_path", "drafter_path", "cache_path"):
        _path(knob, head, ours, theirs, request, machine, result)
    _gid_index(head, ours, theirs, result)
    _rows(head, ours, result)
    if worker is not None and theirs is not None:
        _rows(worker, theirs, result)
    _what_the_kit_exports(head, ours, result)


def _what_the_kit_exports(head: Environment, ours: Reading, result: Result) -> None:
    """The kit's own export outlives its ranks: a container that Docker starts again, and a volume."""
    value, variable = ours.values.get("weights", ("local", ""))
    if value == "nfs":
        volume = head["VOL_NAME"].value if "VOL_NAME" in head else ""
        result.to_do[
            f"{head[variable].place}: WEIGHTS_MODE=nfs: what the kit exports goes with its containers: on the worker "
            f"docker rm -f nfs-exl3, and on the head, when its container is gone, docker volume rm "
            f"{_plain(volume or 'exl3weights')}"
        ] = None


def _same_on_both(head: Environment, ours: Reading, worker: Environment, theirs: Reading, result: Result) -> None:
    """Both ranks get the same settings: the kit starts them from two files, which may have parted."""
    for knob in dict.fromkeys([*ours.values, *theirs.values]):
        if KNOBS[knob].scope is Scope.NODE:
            continue
        if knob == "weights" and theirs.values.get(knob, ("local", ""))[0] == "local":
            continue  # the worker reads its own disk, whatever the head does
        if knob == "update_check" and knob not in theirs.values:
            continue  # the head alone asks
        values, places = [], []
        for environment, found in ((head, ours), (worker, theirs)):
            value, variable = found.values.get(knob, (getattr(DEFAULTS, knob), ""))
            values.append(None if is_default(knob, value, found.values) else value)
            places.append(
                f"{environment[variable].place} has {variable}={_plain(environment[variable].value)}"
                if variable in environment
                else "the other file does not state it"
            )
        if values[0] != values[1]:
            result.refusals.append(
                f"{knob}: {places[0]} and {places[1]}; both ranks have one value: make the files agree"
            )


def _path(
    knob: str,
    head: Environment,
    ours: Reading,
    theirs: Reading | None,
    request: Request,
    machine: Machine,
    result: Result,
) -> None:
    """A directory: one for the pair, or one for each node where they differ."""
    default = getattr(DEFAULTS, knob)
    value, variable = ours.values.get(knob, (default, ""))
    if theirs is not None:
        other, _ = theirs.values.get(knob, (default, ""))
        if other != value:
            for position, own in (("head", value), ("worker", other)):
                if own != default:
                    result.nodes[position][knob] = own
            return
    elif of_head := _of_the_heads_home(knob, str(value), variable, head, request, machine, result):
        result.nodes["worker"][knob] = of_head
    if value != default:
        result.pair[knob] = (value, variable)


def _of_the_heads_home(
    knob: str,
    value: str,
    variable: str,
    head: Environment,
    request: Request,
    machine: Machine,
    result: Result,
) -> str | None:
    """Where the kit looks on the worker: its installer writes the head's home into the path for both nodes. None where
    `~/` says the same."""
    installed = not head[variable].of_node if variable else not any(given.of_node for given in head.values())
    user = head["WORKER_USER"].value if "WORKER_USER" in head else ""
    written = bool(variable) or knob != "cache_path"  # an unstated cache is each launcher's own matter
    me = machine.user() if request.here else None
    head_user = request.head_user or me
    if not (installed and written and value.startswith("~/") and user and user != head_user):
        return None
    if me is not None and me == head_user:
        path = f"{machine.home()}{value[1:]}"
        result.notes[
            f"{knob}: on the worker the kit uses {path}, a path below the head's home, so that is stated for the worker"
        ] = None
        return path
    result.to_do[
        f"{knob}: {value} is below the home of {user} on the worker; the kit uses the head's home there. If the files "
        f"lie under that, state {knob} in the worker's data in inventory.py"
    ] = None
    return None


def _gid_index(head: Environment, ours: Reading, theirs: Reading | None, result: Result) -> None:
    """The pinned row of the GID table: the head's, the worker's, or the installer's for both."""
    knob = "nccl_ib_gid_index"
    for position, found in (("head", ours), ("worker", theirs)):
        if found is None or knob not in found.values:
            continue
        value, variable = found.values[knob]
        if position == "head" and not head[variable].of_node:
            result.pair[knob] = (value, variable)
        else:
            result.nodes[position][knob] = value


def _rows(head: Environment, ours: Reading, result: Result) -> None:
    for variable, given in head.items():
        told = (given.place, f"{variable}={_plain(given.value)}")
        if variable in kit_keys.RETIRED:
            result.retired.append((*told, kit_keys.RETIRED[variable]))
        elif variable in ("NCCL_IF", "NCCL_HCA") and not given.of_node:
            hint = f"the kit's .env says HEAD_{variable} and WORKER_{variable}"
            result.unknown.append((given.place, variable, hint))
        elif variable in kit_keys.ADDRESSES:
            result.taken.append((*told, _plain_words(kit_keys.ADDRESSES[variable])))
        elif variable in kit_keys.KNOBS_OF and variable not in ours.refused:
            result.taken.append((*told, _becomes(given, ours)))
    _unknown_rows(head, result)


def _plain_words(text: str) -> str:
    return text.replace("`", "")


def _becomes(given: Given, ours: Reading) -> str:
    """What a variable comes to, in words."""
    parts, same = [], []
    for knob, (value, variable) in ours.values.items():
        if variable != given.variable:
            continue
        if is_default(knob, value, ours.values):
            same.append("the stack's default, left out")
        else:
            parts.append(f"{knob} = {_literal(value)}")
    words = parts or same[:1]
    if given.variable in ours.remarks:
        words.append(ours.remarks[given.variable])
    if given.variable == "NCCL_GID_INDEX":
        words.append("better left out: the row moves when a link comes back (3 to 4 was seen)")
    if given.variable in kit_keys.NOT_FORWARDED and (not given.of_node or given.variable == "VLLM_DFLASH_KV_RING"):
        words.append("the kit hands it to neither rank, so it takes effect only now")
    return "; ".join(words)


def _unknown_rows(environment: Environment, result: Result) -> None:
    known = kit_keys.known()
    for variable, given in environment.items():
        if variable in known:
            continue
        of_knob = next((name for name, knob in KNOBS.items() if knob.env and variable in knob.env.names), None)
        of_knob = of_knob or kit_keys.ELSEWHERE.get(variable)
        near = next(iter(difflib.get_close_matches(variable.upper(), known, n=1)), None)
        if of_knob:
            hint = f"the kit does not read it; here it is the knob {of_knob}, left unset"
        elif near:
            hint = f"the kit does not read it, and it has no effect here (did you mean {near}?)"
        else:
            hint = "the kit does not read it, and it has no effect here"
        result.unknown.append((given.place, variable, hint))


# The inventory


def _inventory(
    head: Environment, worker: Environment | None, request: Request, machine: Machine, result: Result
) -> None:
    if result.refusals and "WORKER_LAN_IP" not in head:
        # What is missing may be on a line that was refused.
        _rails(head, worker, result)
        return
    rails = _rails(head, worker, result)
    address = head["WORKER_LAN_IP"].value if "WORKER_LAN_IP" in head else ""
    problems = []
    if not address:
        problems.append("WORKER_LAN_IP, the worker's address on the management network: name the kit's .env")
    elif not _is_ipv4(address):
        place = head["WORKER_LAN_IP"].place
        problems.append(f"{place}: WORKER_LAN_IP={_plain(address)}: must be the worker's IPv4 address")
    if rails is None and not result.refusals:
        problems.append(
            "the worker's netdev and HCA: name its ~/.glm53-serve.env with --worker-file, or the kit's .env"
        )
    if not request.wants_inventory:
        result.missing.append("how the head is reached: --head ADDRESS --head-user USER, or --here on the head itself")
        result.missing += problems
        for position, data in result.nodes.items():
            result.missing += [f"for the {position}: {name} = {_literal(value)}" for name, value in data.items()]
        return
    if problems:
        result.refusals += [
            problem if ":" in problem.split()[0] else f"inventory.py needs {problem}" for problem in problems
        ]
        return
    if rails is None:
        return
    user = request.head_user or machine.user()
    worker_user = (head["WORKER_USER"].value if "WORKER_USER" in head else "") or user
    try:
        if request.here:
            reached: dict[str, object] = {"management_address": machine.address_towards(address)}
        else:
            reached = {**ssh(str(request.head), user=user)}
        other = ssh(address, user=worker_user)
    except InventoryError as error:
        result.refusals.append(str(error))
        return
    except OSError as error:
        result.refusals.append(
            f"--here: this machine has no way to WORKER_LAN_IP={address} ({error.strerror or error}); "
            f"run this on the head, or give --head ADDRESS"
        )
        return
    result.hosts = {
        LOCAL if request.here else HEAD: {**reached, "rails": [rails[0]], **result.nodes["head"]},
        WORKER: {**other, "rails": [rails[1]], **result.nodes["worker"]},
    }


def _is_ipv4(text: str) -> bool:
    try:
        IPv4Address(text)
    except AddressValueError:
        return False
    return True


def _rails(
    head: Environment, worker: Environment | None, result: Result
) -> tuple[dict[str, str], dict[str, str]] | None:
    """The rail's end on each node. None where the worker's devices are not stated, or something was refused."""
    of_nodes_only = all(given.of_node for given in head.values()) and bool(head)
    assumed = _LAUNCHER if of_nodes_only else _INSTALLER

    def said(variable: str, environment: Environment = head) -> str:
        given = environment.get(variable)
        if given is not None and given.value:
            return given.value
        return assumed.get(variable, "")

    def of_node(variable: str, environment: Environment | None, position: str) -> str:
        given = environment.get(variable) if environment is not None else None
        if given is not None and given.of_node and given.value:
            return given.value
        return said(f"{position}_{variable}")

    before = len(result.refusals)
    addresses: dict[str, IPv4Address] = {}
    for variable in ("HEAD_RAIL_IP", "WORKER_RAIL_IP"):
        try:
            addresses[variable] = IPv4Address(said(variable))
        except AddressValueError:
            result.refusals.append(
                f"{head[variable].place}: {variable}={_plain(said(variable))}: must be an IPv4 address"
            )
        if worker is not None and (other := worker.get(variable)) and other.value != said(variable):
            result.refusals.append(
                f"{other.place}: {variable}={_plain(other.value)}, and for the head it is {_plain(said(variable))}; "
                f"both files must agree"
            )
    try:
        network = IPv4Network(said("NCCL_SUBNET"), strict=False)
    except (AddressValueError, NetmaskValueError, ValueError):
        result.refusals.append(
            f"{head['NCCL_SUBNET'].place}: NCCL_SUBNET={_plain(said('NCCL_SUBNET'))}: must be a network such as "
            f"10.200.0.0/24"
        )
        return None
    for variable, address in addresses.items():
        if address not in network:
            given = head.get(variable) or head.get("NCCL_SUBNET")
            result.refusals.append(
                f"{given.place if given else variable}: {variable}={address} is not in "
                f"NCCL_SUBNET={said('NCCL_SUBNET')}; NCCL finds no device then; state the network of both rails"
            )
    if len(result.refusals) > before:
        return None
    ends = []
    for position, variable, environment in (("HEAD", "HEAD_RAIL_IP", head), ("WORKER", "WORKER_RAIL_IP", worker)):
        netdev, hca = (of_node(name, environment, position) for name in ("NCCL_IF", "NCCL_HCA"))
        if not netdev or not hca:
            return None
        ends.append({"netdev": netdev, "hca": hca, "address": f"{addresses[variable]}/{network.prefixlen}"})
    return ends[0], ends[1]


# What a deploy would say of it


def _ask_the_loader(result: Result) -> None:
    """The same judgement that a deploy makes, before anything is written."""
    everywhere = {"stack": STACK.name, **{name: value for name, (value, _) in result.pair.items()}}
    hosts = result.hosts or {
        # Stand-ins, so that the settings are judged without an inventory too.
        HEAD: {"ssh_hostname": "192.0.2.1", "rails": [_stand_in(1)], **result.nodes["head"]},
        WORKER: {"ssh_hostname": "192.0.2.2", "rails": [_stand_in(2)], **result.nodes["worker"]},
    }
    stated = [
        StatedHost(
            name,
            (position,),
            name == LOCAL,
            (Source(f"inventory: {name}", data, of_one_node=True), Source("group_data/all.py", everywhere)),
        )
        for position, (name, data) in zip(("head", "worker"), hosts.items(), strict=True)
    ]
    try:
        settings = load(stated, connection_keys())
    except DeployError as error:
        result.refused_by_deploy = [line.strip() for line in str(error).splitlines()[1:]]
    else:
        result.warned_by_deploy = rules.warnings(settings)


def _stand_in(number: int) -> dict[str, str]:
    return {"netdev": "enp1s0f0np0", "hca": "rocep1s0f0", "address": f"198.51.100.{number}/24"}


def _name_a_preset(result: Result) -> None:
    stated = {name: value for name, (value, _) in result.pair.items()}
    fitting = [
        preset
        for preset in PRESETS.values()
        if preset.values and all(name in stated and stated[name] == value for name, value in preset.values.items())
    ]
    if fitting:
        whole = max(fitting, key=lambda preset: len(preset.values))
        result.notes[
            f'{", ".join(whole.values)}: are what preset = "{whole.name}" states; it may stand in their place '
            f"(docs/presets.md)"
        ] = None


# What is written


def _literal(value: object) -> str:
    """The value as Python, and as the operator would type it."""
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _settings_text(pair: Mapping[str, tuple[object, str]]) -> str:
    lines = [
        '"""The pair\'s settings, taken over from the reference kit: what differs from the stack\'s defaults.',
        "",
        "Every knob is in docs/knobs.md, and what became of each variable of the kit in docs/migration.md.",
        '"""',
        "",
        f'stack = "{STACK.name}"',
    ]
    stated = [f"{name} = {_literal(pair[name][0])}  # {pair[name][1]}" for name in KNOBS if name in pair]
    return "\n".join([*lines, *([""] if stated else []), *stated]) + "\n"


def _inventory_text(hosts: Mapping[str, Mapping[str, object]]) -> str:
    lines = [
        '"""The two Sparks, taken over from the reference kit: how to reach each one, and its rail.',
        "",
        "The kit uses one of the two rails that a QSFP port has; README.md shows an inventory with both.",
        '"""',
        "",
        "from spec.transport import ssh",
    ]
    for position, (name, data) in zip(("head", "worker"), hosts.items(), strict=True):
        rails = data["rails"]
        assert isinstance(rails, list)
        lines += ["", f"{position} = [", "    (", f"        {_literal(name)},", "        {"]
        if "ssh_hostname" in data:
            lines.append(f"            **ssh({_literal(data['ssh_hostname'])}, user={_literal(data['ssh_user'])}),")
        else:
            lines.append(f'            "management_address": {_literal(data["management_address"])},')
        lines.append('            "rails": [')
        for rail in rails:
            pairs = ", ".join(f"{_literal(key)}: {_literal(value)}" for key, value in rail.items())
            lines.append(f"                {{{pairs}}},")
        lines.append("            ],")
        lines += [f"            {_literal(key)}: {_literal(data[key])}," for key in KNOBS if key in data]
        lines += ["        },", "    ),", "]"]
    return "\n".join(lines) + "\n"


# What is said


def report(result: Result) -> Iterator[str]:
    """What became of each variable, and what is left to do."""
    rows = [*result.taken, *result.retired, *result.unknown]
    place = max((len(row[0]) for row in rows), default=0)
    told = min(max((len(row[1]) for row in rows), default=0), 60)
    for heading, found in (
        ("Taken:", result.taken),
        ("Retired, there is no such setting here:", result.retired),
        ("Unknown:", result.unknown),
    ):
        if found:
            yield heading
            yield from (f"  {row[0]:<{place}}  {row[1]:<{told}}  {row[2]}" for row in found)
    for heading, lines in (
        ("To know:", list(result.notes)),
        ("Before a deploy:", list(result.to_do)),
        ("A deploy would refuse this:", result.refused_by_deploy),
        ("A deploy would warn:", result.warned_by_deploy),
    ):
        if lines:
            yield heading
            yield from (f"  {line}" for line in lines)


def _said_of_files(written: Sequence[Written]) -> Iterator[str]:
    for file in written:
        if file.same:
            yield f"  {file.path}: as it was"
        else:
            yield f"  {file.path}" + (f", the former one is {file.kept}" if file.kept else "")


def _said_of_missing(result: Result) -> Iterator[str]:
    if result.missing:
        yield "inventory.py is not written; it needs:"
        yield from (f"  {line}" for line in result.missing)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spec.import_kit",
        description="Take over the settings of the reference kit. Reads its .env, or a node's ~/.glm53-serve.env, "
        "without executing it; writes group_data/all.py, and inventory.py when it is told how the head is reached.",
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="the kit's .env, or the head's own file")
    reached = parser.add_mutually_exclusive_group()
    reached.add_argument("--head", type=IPv4Address, metavar="ADDRESS", help="the head's IPv4 address, reached by ssh")
    reached.add_argument("--here", action="store_true", help="this machine is the head")
    parser.add_argument("--head-user", metavar="USER", help="who logs in on the head")
    parser.add_argument("--worker-file", type=Path, metavar="PATH", help="the worker's own ~/.glm53-serve.env")
    parser.add_argument("--output", type=Path, default=CHECKOUT, metavar="DIR", help="where to write (the checkout)")
    parser.add_argument("--dry", action="store_true", help="print what would be written, and write nothing")
    return parser


def main(argv: Sequence[str], machine: Machine | None = None) -> int:
    """Take over, report, write. Returns the exit code."""
    parser = _parser()
    try:
        options = parser.parse_args(argv)
        if options.head and not options.head_user:
            parser.error("--head needs --head-user USER, who logs in there")
        if options.head_user and not (options.head or options.here):
            parser.error("--head-user goes with --head or --here")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else USAGE
    request = Request(
        paths=tuple(options.paths),
        worker_file=options.worker_file,
        head=str(options.head) if options.head else None,
        here=options.here,
        head_user=options.head_user,
    )
    result = take_over(request, machine or Machine())
    if result.refusals:
        return _refuse(result.refusals)
    written: list[Written] = []
    if not options.dry:
        try:
            written = write(options.output, result.files)
        except NotWritten as error:
            return _refuse([str(error)])
        except KeyboardInterrupt:
            return _refuse(["interrupted; nothing was changed"])
    lines = [*report(result)]
    if options.dry:
        for name, text in result.files.items():
            lines += [f"Would write {name}:", *(f"  {line}" if line else "" for line in text.splitlines())]
    else:
        lines += ["Written:", *_said_of_files(written)]
    _print([*lines, *_said_of_missing(result)], done="nothing was written" if options.dry else "the files are written")
    return WRITTEN


def _print(lines: Sequence[str], done: str) -> None:
    """The report. Where nobody takes it (a full disk, a pager that was left), what was done is done all the same."""
    try:
        for line in lines:
            print(line)
        sys.stdout.flush()
    except OSError as error:
        print(f"The report could not be printed: {error.strerror}; {done}.", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what waits in it is dropped at the end


def _refuse(lines: Sequence[str]) -> int:
    print("Import refused; nothing was written.", file=sys.stderr)
    for line in dict.fromkeys(lines):
        print(f"  {line}", file=sys.stderr)
    return REFUSED


def _interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupted)  # so that what was begun is taken back
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file's name may be no text at all
    try:
        code = main(sys.argv[1:])
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)
