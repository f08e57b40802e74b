"""The documents are true: commands exist, links lead somewhere, generated pages are what the code would write."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from spec import load, transport
from tests import repository

DOCUMENTS = [path for path in repository.files() if path.suffix == ".md" and path.parts[:2] != ("docs", "results")]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _read(path: Path) -> str:
    return repository.text(path) or ""


def _prose(path: Path) -> str:
    """The document without its code blocks."""
    return _FENCE.sub("", _read(path))


@cache
def _anchors(path: Path) -> frozenset[str]:
    """The fragments that a heading of the document gives, the way code hosting sites make them."""
    found: list[str] = []
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", _prose(path), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        same = sum(1 for other in found if re.fullmatch(re.escape(slug) + r"(-\d+)?", other))
        found.append(f"{slug}-{same}" if same else slug)
    return frozenset(found)


def _exists(path: Path) -> bool:
    return path in repository.files() or any(path in file.parents for file in repository.files()) or path == Path()


def _resolve(document: Path, target: str) -> Path:
    """The target of a link, relative to the root."""
    parts: list[str] = []
    for part in (document.parent / target).parts:
        if part == "..":
            assert parts, f"{document}: {target} leads out of the checkout"
            parts.pop()
        elif part != ".":
            parts.append(part)
    return Path(*parts)


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_links_lead_somewhere(document: Path) -> None:
    """Each relative link names a file of the checkout, and a heading in it where it has a fragment."""
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(document)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, fragment = target.partition("#")
        path = _resolve(document, file) if file else document
        if not _exists(path):
            wrong.append(f"{document}: {target}: no such file")
        elif fragment and fragment not in _anchors(path):
            wrong.append(f"{document}: {target}: no such heading; there are {', '.join(sorted(_anchors(path)))}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_files_named_in_prose_exist(document: Path) -> None:
    """A path of the checkout in backticks is there."""
    rooms = "docs|lab|spec|roles|node|tests|templates|group_data|facts|checks"
    wrong = [
        name
        for name in re.findall(rf"`((?:{rooms})/[\w./-]+|\w+\.(?:py|md|toml))`", _prose(document))
        if not name.startswith("docs/results/")  # written by the long runs
        if not _exists(Path(name)) and not _exists(document.parent / name)
        # A name without its directory, where the sentence says which one is meant.
        if "/" in name or name not in {file.name for file in repository.files()}
    ]
    assert not wrong, f"{document}: {', '.join(wrong)}"


def _commands(document: Path) -> Iterator[str]:
    """Every line of the document's shell blocks, and what stands in backticks in its prose."""
    for language, body in _FENCE.findall(_read(document)):
        if language in ("sh", "console", "bash", ""):
            yield from (line.split("#")[0].strip().removeprefix("$ ") for line in body.splitlines())
    yield from re.findall(r"`([^`]+)`", _prose(document))


def _targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (repository.ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_commands_exist(document: Path) -> None:
    """`make` targets are in the Makefile, and the verbs that pyinfra is given are files."""
    wrong = []
    for command in _commands(document):
        made = re.match(r"make ([a-z][a-z -]*)", command)
        if made:
            wrong += [f"make {target}" for target in made.group(1).split() if target not in _targets()]
        if re.match(r"pyinfra\b", command):
            wrong += [name for name in re.findall(r"[\w/.-]+\.py", command) if not _exists(_named(document, name))]
    assert not wrong, f"{document}: {', '.join(wrong)}: no such thing"


def _named(document: Path, name: str) -> Path:
    """A file named on a command line: from the root, or from the directory where the document says to stand."""
    beside = _resolve(document, name) if name.startswith("..") else document.parent / name
    return Path(name) if not name.startswith("..") and _exists(Path(name)) else beside


def test_generated_pages_are_current() -> None:
    """docs/ holds what `make docs` would write."""
    if not (repository.ROOT / "spec" / "docs.py").is_file():
        pytest.skip("no generated pages yet")
    run = subprocess.run(
        [sys.executable, "-m", "spec.docs", "--check"], cwd=repository.ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, f"{run.stdout}{run.stderr}\nrun: make docs"


def test_messages_cite_pages_that_exist() -> None:
    """A message that sends the operator to a page of docs/ sends them to a heading that is there."""
    wrong = []
    for path in repository.files():
        if path.suffix not in (".py", ".j2", ".sh") or path.parts[0] in ("tests", "lab"):
            continue
        for page, fragment in re.findall(r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?", _read(path)):
            if not _exists(Path(page)):
                wrong.append(f"{path}: {page}")
            elif fragment and fragment not in _anchors(Path(page)):
                wrong.append(f"{path}: {page}#{fragment}")
    assert not wrong, "\n".join(wrong)


@cache
def _said() -> tuple[str, ...]:
    """Every text in the product's code; what an f-string puts in is `…`."""
    texts: list[str] = []
    for path in repository.python_files():
        if path.parts[0] in ("tests", "lab"):
            continue
        for found in ast.walk(ast.parse(_read(path))):
            if isinstance(found, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in found.values]
                texts.append("".join(str(part) for part in parts))
            elif isinstance(found, ast.Constant) and isinstance(found.value, str):
                texts.append(found.value)
    return tuple(texts)


def _messages() -> list[str]:
    """What troubleshooting.md says that our programs say: the first cells of its tables, engine messages apart."""
    page = _read(Path("docs/troubleshooting.md"))
    page = re.sub(r"^What upstream vLLM.*?(?=^## )", "", page, flags=re.MULTILINE | re.DOTALL)
    page = page.partition("## Slow, or strange")[0]
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("|")]
    said = [message for cell in cells for message in re.findall(r"`([^`]+)`", cell)]
    return [message for message in said if message not in _OF_OTHERS]


# ssh's own words, and the kernel's.
_OF_OTHERS = {"Stale file handle", "Host key verification failed", "Permission denied (publickey)", "stopped"}


@pytest.mark.parametrize("message", _messages())
def test_troubleshooting_knows_what_is_said(message: str) -> None:
    """A message that the page explains is one that the code can print."""
    for piece in message.split("…"):
        words = re.sub(r"^(waiting|backoff|resting): ", "", piece).strip(" ;:,()")
        if len(words) > 3:
            assert any(words in text for text in _said()), f"nothing says {words!r}"


def test_troubleshooting_explains_each_refusal() -> None:
    """Each thing that a check can find broken before a deploy stands on the page."""
    explained = [piece.strip(" ;:,()") for message in _messages() for piece in message.split("…") if len(piece) > 5]
    missing = []
    for path in sorted((repository.ROOT / "checks").glob("*.py")):
        theirs = path.stem in ("docker_side", "host", "sessions", "clock", "ssh", "gpu", "trouble")
        known = ("access", "rails", "staging", "content", "memory", "api_key", "image", "bundle", "nfs", "fabric_gate")
        if path.stem not in known and not theirs:
            continue
        for function in ast.parse(path.read_text()).body:
            # What only verify.py asks of a pair that was deployed says its own remedy.
            verified = ("are_set_up", "image_layers", "_as_locked", "_server", "_mounted_well", "statements")
            if isinstance(function, ast.FunctionDef) and function.name not in verified:
                missing += [
                    f"{path.name}: {text}"
                    for text in _broken(function, theirs)
                    if not any(e in text for e in explained)
                ]
    assert not missing, "not in docs/troubleshooting.md:\n" + "\n".join(missing)


def _broken(function: ast.FunctionDef, told: bool = False) -> Iterator[str]:
    names = ("broken", "told", "unlike") if told else ("broken",)
    for found in ast.walk(function):
        if isinstance(found, ast.Call) and isinstance(found.func, ast.Name) and found.func.id in names:
            statement = found.args[1]
            while isinstance(statement, ast.BinOp):  # what differs is added at its end
                statement = statement.left
            if found.func.id == "unlike":
                yield "… differs between the nodes: …"
            elif isinstance(statement, ast.JoinedStr):
                yield "".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in statement.values)
            elif isinstance(statement, ast.Constant):
                yield str(statement.value)


def test_readme_gives_the_two_commands_first() -> None:
    """Whoever reads README.md finds `make demo` and `make test`, and the order of the real run."""
    readme = _read(Path("README.md"))
    wanted = [
        "make demo",
        "make test",
        "make venv",
        "pyinfra inventory.py deploy.py --dry",
        "pyinfra inventory.py verify.py",
    ]
    places = [readme.find(command) for command in wanted]
    assert -1 not in places, [command for command, place in zip(wanted, places, strict=True) if place < 0]


def test_readme_inventory_is_accepted() -> None:
    """The inventory that README.md shows, with the settings of group_data/all.py, is one that the loader takes."""
    [block] = [body for language, body in _FENCE.findall(_read(Path("README.md"))) if language == "python"]
    inventory: dict[str, Any] = {"ssh": transport.ssh}
    exec(block, inventory)
    knobs = runpy.run_path(str(repository.ROOT / "group_data" / "all.py"))
    stated = {name: value for name, value in knobs.items() if not name.startswith("_")}
    hosts = [
        load.StatedHost(
            name=name,
            groups=(group,),
            local=False,
            sources=(
                load.Source(f"inventory: {name}", data, of_one_node=True),
                load.Source("group_data/all.py", stated),
            ),
        )
        for group in ("head", "worker")
        for name, data in inventory[group]
    ]
    settings = load.load(hosts, load.connection_keys())
    assert [node.position for node in settings.nodes] == ["head", "worker"]


def test_changelog_has_a_place_for_what_is_not_released() -> None:
    """Keep a Changelog: Unreleased stands first."""
    headings = re.findall(r"^## (.+)$", _read(Path("CHANGELOG.md")), re.MULTILINE)
    assert headings
    assert headings[0] == "[Unreleased]"


def test_decisions_are_numbered_and_listed() -> None:
    """Each record has the next number and stands in docs/index.md."""
    records = sorted(path for path in repository.files() if path.parts[:2] == ("docs", "decisions"))
    assert [path.name[:4] for path in records] == [f"{number:04d}" for number in range(1, len(records) + 1)]
    index = _read(Path("docs/index.md"))
    assert not [path.name for path in records if f"decisions/{path.name}" not in index]
