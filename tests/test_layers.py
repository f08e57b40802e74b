"""The rooms of the house and the doors between them: who may import what, and which words stay outside."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests import repository

OURS = ("contact", "spec", "facts", "checks", "operations", "roles", "node", "benchmarks", "lab", "tests")
VERBS = (
    *("deploy", "stage", "verify", "verify_image", "fabric_test", "image_tests", "prune", "doctor", "bench"),
    *("rollback", "remove"),
)
TOP_LEVEL = (*VERBS, "plan", "lock", "bundle", "discover", "inventory", "config", "group_data")
TOP_LEVEL_FILES = [f"{name}.py" for name in TOP_LEVEL]
PRODUCT = (*TOP_LEVEL, "ops", "contact", "spec", "facts", "checks", "operations", "roles", "templates", "node")


@dataclass(frozen=True)
class Room:
    """What one place may import: modules of ours (by prefix), and packages of others (None: any)."""

    ours: tuple[str, ...] = ()
    others: tuple[str, ...] | None = ()


_VERB = Room(("spec.load", "spec.resolve", "operations", "roles", "facts", "checks", "benchmarks"), ("pyinfra",))
# Whoever may use the cluster may name the types that its fields have.
_CLUSTER = ("spec.cluster", "spec.capacity", "spec.stacks", "spec.knobs", "spec.presets", "spec.lock", "spec.nfs")

# The longest prefix that fits a module holds. What stands here is docs/decisions/0001 and the table of rooms in
# docs/index.md; the standard library is open to all.
ROOMS: dict[str, Room] = {
    **dict.fromkeys((*VERBS, "ops"), _VERB),
    "plan": Room(("spec",)),
    # Reaches the hub and the image's registry from the control machine, and no node; so it needs no pyinfra.
    "lock": Room(("spec", "facts.hub", "facts.published", "node.oci")),
    # A staging unit of its own, on a machine that is no node: what a node does to fill a directory, it does as well.
    "bundle": Room(("spec", "lock", "facts.hub", "facts.published", "node"), ("huggingface_hub",)),
    # First contact, before there is an inventory that pyinfra could read. What it looks at is what a deploy looks at.
    "discover": Room(
        ("checks.discovery", "contact", "facts", *_CLUSTER, "spec.discovery", "spec.kept_files", "spec.objects")
    ),
    # Logs in by password, which pyinfra would need in its data; ~/.ssh/config is read as a deploy will read it.
    "contact": Room(("contact", "spec.objects"), ("paramiko", "pyinfra", "cryptography")),
    "contact.look": Room(("contact", "facts")),
    # Run by Python itself it becomes pyinfra, by the command line that plan.py makes.
    "verify": Room((*_VERB.ours, "plan"), _VERB.others),
    "doctor": Room((*_VERB.ours, "plan"), _VERB.others),
    "fabric_test": Room((*_VERB.ours, "plan"), _VERB.others),
    "inventory": Room(("spec.transport",)),
    # The guards read what pyinfra's own command line was given.
    # And they judge the settings before a node is reached.
    # Doctor goes on without a node that cannot be reached, and is told why.
    # Which host key is another one than before is said where the way to a node is described.
    "config": Room(("spec.load", "spec.transport", "facts.node"), ("pyinfra", "pyinfra_cli", "click", "paramiko")),
    "group_data": Room(),
    "spec": Room(),
    # The words in which a knob is declared: destination, scope, cost, bounds.
    "spec.kinds": Room((), ("pydantic", "pydantic_core")),
    "spec.knobs": Room(("spec.kinds",), ("pydantic", "pydantic_core")),
    "spec.transport": Room((), ("paramiko", "pyinfra")),
    "spec.presets": Room(("spec.knobs",), ("pydantic",)),
    "spec.stacks": Room(("spec.knobs", "spec.stacks"), ("pydantic",)),
    # The identity of files is defined once, where the nodes compute it: node.wire.
    "spec.lock": Room(("spec.kinds", "node.wire")),
    "spec.licences": Room(("spec.lock",)),
    # What a bundle takes of a lock, and the texts in it.
    "spec.bundle": Room(("spec.lock", "spec.licences")),
    "spec.lock_changes": Room(("spec.lock", "spec.licences")),
    # Which repositories and which image the settings name, for whoever resolves a lock or judges one.
    "spec.sources": Room(("spec.cluster", "spec.kit_keys")),
    "spec.cluster": Room(("spec.knobs", "spec.lock", "spec.presets", "spec.stacks"), ("pydantic",)),
    "spec.capacity": Room(("spec.cluster", "spec.knobs")),
    # Its page of the documentation, which shows what it computes.
    "spec.capacity_page": Room(("spec.capacity",)),
    # The port of the copies is said where it is opened; what a pool holds is judged as every other rule is.
    # And a lock is judged by what the settings name.
    "spec.rules": Room((*_CLUSTER, "spec.presets", "spec.objects", "spec.rules", "spec.sources")),
    # Reads the netplan file of ours back; facts come in by what they have (a protocol), since spec knows none.
    "spec.ports": Room(("spec.changes", "spec.cluster")),
    "spec.rail_addresses": Room(("spec.ports",)),
    "spec.contradictions": Room(("spec.cluster", "spec.ports")),
    "spec.discovery": Room(("spec.cluster", "spec.contradictions", "spec.ports", "spec.rail_addresses")),
    # Where NFS mounts the weights is one of the places that are listed.
    "spec.resolve": Room((*_CLUSTER, "spec.objects")),
    "spec.nfs": Room(("spec.cluster",)),
    # The engine hash is defined once, where the keeper computes it: node.wire.
    "spec.render": Room((*_CLUSTER, "spec.objects", "node.wire"), ("jinja2",)),
    # Reads back what spec.render writes, with the reader that the programs have.
    "spec.changes": Room((*_CLUSTER, "spec.kinds", "node.wire")),
    # The programs say once where they look; what else is said of those places is said here.
    "spec.objects": Room(("node.paths",)),
    "spec.load": Room((*_CLUSTER, "spec.presets", "spec.rules", "spec.kit_keys"), ("pyinfra", "pydantic")),
    # A program of its own, since pyinfra's command line changes the process in which it reads the files.
    "spec.stated": Room(("spec.cluster", "spec.load"), ("pyinfra", "pyinfra_cli")),
    # A page shows the tables of an engine's and a GPU's last words.
    "spec.docs": Room(("spec", "node.health", "node.signatures"), ("pydantic",)),
    # What the reference kit calls a thing is asked where a name is judged, so its table needs the knobs alone.
    "spec.kit_keys": Room(("spec.knobs",)),
    # Edits somebody's netplan file, which is YAML.
    "spec.foreign": Room((), ("yaml",)),
    "spec.kit_values": Room(("spec.capacity", "spec.kit_keys", "spec.kinds", "spec.knobs", "spec.stacks")),
    # A program of its own: it judges what it took over as a deploy would.
    "spec.import_kit": Room(("spec",), ("pyinfra",)),
    "facts": Room(("facts", "node"), ("pyinfra",)),
    # The one client of the served API: what an application would use.
    "facts.api": Room(("facts",), ("openai", "httpx")),
    # What the far side says is locked as it is: by the hub's own client, and by the client that the nodes have.
    "facts.hub": Room(("facts", "spec.lock"), ("huggingface_hub", "httpx")),
    "facts.published": Room(("facts", "spec.lock", "node.oci")),
    # Sent to the node and run there, before anything of ours is installed.
    "facts.probe": Room(("facts.probe_host", "node")),
    "facts.probe_host": Room(("facts.probe",)),
    # netplan's files are YAML.
    "facts.tools": Room(("facts.host", "facts.tools")),
    "facts.tools.netplan": Room(("facts.host", "facts.tools"), ("yaml",)),
    "facts.talk_side": Room(),
    # How an identity is made, and which files are small, is said where the nodes say it.
    "checks": Room(
        (
            "checks",
            *_CLUSTER,
            "spec.changes",
            "spec.discovery",
            # A netplan file of others without a rail.
            "spec.foreign",
            "spec.licences",
            "spec.lock",
            "spec.objects",
            "facts",
            "node.content",
            # And which GID stands for an address.
            "node.gids",
            # Which clock is a clamped one, and what an Xid means, is said once.
            "node.health",
            "node.wire",
        )
    ),
    # Rails that were found are judged by the rules for stated ones.
    "operations.run": Room(
        ("operations", *_CLUSTER, "spec.discovery", "spec.objects", "spec.rules", "facts", "checks", "node"),
        ("pyinfra",),
    ),
    # What several roles need of pyinfra, and the run that they belong to; it knows no role.
    "operations": Room(
        (
            "operations",
            *_CLUSTER,
            "spec.changes",
            "spec.discovery",
            "spec.render",
            "spec.objects",
            "facts",
            "checks",
            "node",
        ),
        ("pyinfra", "gevent", "paramiko"),
    ),
    "roles": Room((*_CLUSTER, "spec.render", "spec.objects", "facts", "checks", "operations", "node"), ("pyinfra",)),
    # What stands at the end of a plan: what is told of the settings is part of it, and pyinfra's table comes first.
    "operations.outlook": Room(
        ("operations", *_CLUSTER, "spec.changes", "spec.rules", "spec.render", "checks"), ("pyinfra", "click")
    ),
    "node": Room(("node",)),
    # The one program on a node that is not of the standard library alone: the real client of the hub, in a process of
    # its own.
    "node.fetch": Room(("node",), ("huggingface_hub", "hf_xet", "httpx")),
    # The token that the operator logged in with on the control machine.
    "operations.hub": Room(("operations", *_CLUSTER, "spec.objects", "facts"), ("pyinfra", "huggingface_hub")),
    "benchmarks": Room(("benchmarks", *_CLUSTER), ("requests", "openai")),
    "lab": Room(("lab",), ()),
    "lab.inventory": Room(("lab", "spec.transport")),
    "tests": Room((*OURS, *TOP_LEVEL), None),
}


def _module(path: Path) -> str:
    """The dotted name by which a file is imported."""
    parts = list(path.with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_under(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def _room(module: str) -> tuple[str, Room]:
    fitting = [prefix for prefix in ROOMS if _is_under(module, prefix)]
    assert fitting, f"{module}: in no room; put it into one or add a room to ROOMS with its reason"
    prefix = max(fitting, key=len)
    return prefix, ROOMS[prefix]


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse((repository.ROOT / path).read_text(encoding="utf-8"), filename=str(path))


def _is_module_of_ours(name: str) -> bool:
    base = repository.ROOT / Path(*name.split("."))
    return base.with_suffix(".py").is_file() or base.is_dir()


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """Each module that a file imports, with the line: `from spec import render` is spec.render."""
    package = _module(path) if path.name == "__init__.py" else _module(path).rpartition(".")[0]
    for found in ast.walk(_tree(path)):
        if isinstance(found, ast.Import):
            for alias in found.names:
                yield found.lineno, alias.name
        elif isinstance(found, ast.ImportFrom):
            base = found.module or ""
            if found.level:
                ancestors = package.split(".")
                base = ".".join([*ancestors[: len(ancestors) - found.level + 1], *([base] if base else [])])
            for alias in found.names:
                whole = f"{base}.{alias.name}"
                yield found.lineno, whole if base.split(".")[0] in OURS and _is_module_of_ours(whole) else base


def _is_scratch(path: Path) -> bool:
    """Programs inside the simulated hosts' image are theirs, not modules of ours."""
    return path.parts[0] == "lab" and len(path.parts) > 2


MODULES = [path for path in repository.python_files() if not _is_scratch(path)]


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_go_through_the_doors(path: Path) -> None:
    """Each module imports only what its room may."""
    module = _module(path)
    prefix, room = _room(module)
    wrong = []
    for line, name in _imports(path):
        top = name.split(".")[0]
        if top in sys.stdlib_module_names:
            continue
        if top in OURS or top in TOP_LEVEL:
            package_itself = _is_under(module, name) and prefix != "roles"
            if not package_itself and not any(_is_under(name, door) for door in room.ours):
                wrong.append(f"{path}:{line}: {module} imports {name}; {prefix} may import {room.ours or 'nothing'}")
        elif room.others is not None and top not in room.others:
            wrong.append(f"{path}:{line}: {module} imports {top}; {prefix} may use {room.others or 'no package'}")
    assert not wrong, "\n".join(wrong)


def test_imports_are_seen() -> None:
    """The test above sees imports at all: this file's own import is among them, by its whole name."""
    assert "tests.repository" in {name for _, name in _imports(Path("tests/test_layers.py"))}


def test_roles_take_facts_as_they_are() -> None:
    """No role acts on what this run changed: a run that died would lose it (docs/decisions/)."""
    wrong = []
    for path in MODULES:
        if path.parts[0] != "roles" and _module(path) not in VERBS:
            continue
        for found in ast.walk(_tree(path)):
            if isinstance(found, ast.Attribute) and found.attr in ("changed", "did_change", "did_succeed"):
                wrong.append(f"{path}:{found.lineno}: .{found.attr}")
            if isinstance(found, ast.keyword) and found.arg in ("_if", "_serial", "_run_once"):
                wrong.append(f"{path}:{found.value.lineno}: {found.arg}=")
    assert not wrong, "\n".join(wrong)


def _product_files() -> list[Path]:
    return [path for path in repository.files() if path.parts[0] in PRODUCT or str(path) in TOP_LEVEL_FILES]


def test_the_product_does_not_know_the_lab() -> None:
    """Product code cannot tell a simulated node from a Spark, so it never says the word."""
    word = re.compile(r"(?<![\w/-])lab(?![\w-])", re.IGNORECASE)
    wrong = []
    for path in _product_files():
        for number, line in enumerate((repository.text(path) or "").splitlines(), 1):
            if word.search(line):
                wrong.append(f"{path}:{number}: {line.strip()}")
    assert not wrong, "\n".join(wrong)


def test_stand_ins_say_so() -> None:
    """A program that pretends to be another says it in its first line (after the interpreter's): nobody is fooled."""
    stand_ins = [path for path in repository.files() if path.parts[:2] == ("lab", "standins")]
    wrong = []
    for path in stand_ins:
        lines = [line for line in (repository.text(path) or "").splitlines() if not line.startswith("#!")]
        if not re.search(r"stand-in", "".join(lines[:1]), re.IGNORECASE):
            wrong.append(str(path))
    assert not wrong, f"no 'stand-in' in the first line: {', '.join(wrong)}"


# In pieces, so that this file does not hold what it looks for.
REGISTRIES = [
    "pypi" + ".org", "python" + "hosted.org", "deb" + ".debian.org", "security" + ".debian.org",
    "archive.ubuntu" + ".com", "ports.ubuntu" + ".com", "registry.npm" + "js.org", "download.py" + "torch.org",
    "proxy.golang" + ".org", "index.crates" + ".io", "static.crates" + ".io",
]  # fmt: skip
PLACES = [
    "/opt/" + "pypi", "/opt/" + "wheels", "/work/" + "main", "/work/" + "shared", "../" + "shared", "/tmp/" + "sp/",
    ".py" + "env/", "file" + ":///",
]  # fmt: skip


def test_no_registry_and_no_place_of_one_computer() -> None:
    """Whoever clones this may use another mirror and another path: neither is written down."""
    wrong = []
    for path in repository.files():
        body = repository.text(path) or ""
        for needle in (*REGISTRIES, *PLACES):
            if needle in body:
                line = body[: body.index(needle)].count("\n") + 1
                wrong.append(f"{path}:{line}: {needle}")
    assert not wrong, "\n".join(wrong)


# Style: the words of another trade, for which this one has its own. Flags and variables of other programs keep theirs.
BANNED = {
    "box": "node", "slave": "worker", "leader": "head", "controller": "control machine", "nic": "netdev",
    "recipe": "preset", "flavour": "preset", "flavor": "preset", "cable": "rail", "cables": "rail", "nics": "netdevs",
}  # fmt: skip


def _identifiers(path: Path) -> Iterator[tuple[int, str]]:
    for found in ast.walk(_tree(path)):
        if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield found.lineno, found.name
        elif isinstance(found, ast.arg):
            yield found.lineno, found.arg
        elif isinstance(found, ast.Name) and isinstance(found.ctx, ast.Store):
            yield found.lineno, found.id


def test_names_are_the_houses_words() -> None:
    """Identifiers of the product use the table of words in README.md."""
    wrong = []
    for path in _product_files():
        if path.suffix != ".py":
            continue
        for line, name in _identifiers(path):
            for word in re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().split("_"):
                if word in BANNED:
                    wrong.append(f"{path}:{line}: {name}: say {BANNED[word]}, not {word}")
    assert not wrong, "\n".join(wrong)


def test_node_runs_on_the_oldest_python() -> None:
    """What runs on a node parses as Python 3.10: a Spark brings its own, and nothing of ours is installed into it."""
    for path in MODULES:
        if path.parts[0] == "node" or path in (Path("facts/probe.py"), Path("facts/probe_host.py")):
            ast.parse((repository.ROOT / path).read_text(encoding="utf-8"), feature_version=(3, 10))
