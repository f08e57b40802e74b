"""The support bundle: one archive of what every node, and the keeper, can tell of a fault. Nothing secret is in it."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from node import paths, redact, report, service, wire
from node.agent import boottime
from node.link import AgentLink, Away, Refusal
from node.release import RELEASE
from node.service import NodeEntry

KEPT = 3
CONNECT_SECONDS = 20.0
REPORT_SECONDS = report.MADE_SECONDS + 10
HISTORY_BYTES = 1_500_000
SUFFIX = ".tar.gz"

ABOUT = """What the nodes of a pair tell of themselves, gathered by `sparkpair support-bundle` on the head.

Not in it: values of the engine's variables (but for those that say how the ranks reach each other), the API's key, keys
and tokens of any kind, weights. Engine logs hold at most the last lines of each rank; they may hold what users wrote.
Look through it before you hand it on.
"""


class NotMade(Exception):
    """There is no archive; the message says why."""


def make(output: Path | None, status: Mapping[str, Any] | str, *, engine_logs: bool = True) -> Path:
    """Write the archive, to be read by root alone, and return where it is. Without `output` it goes to its own place,
    where the newest few are kept. `status` is the keeper's, or why there is none. Raises NotMade."""
    place = output or paths.SUPPORT / time.strftime(f"sparkpair-support-%Y%m%dT%H%M%SZ{SUFFIX}", time.gmtime())
    try:
        if output is None:
            paths.SUPPORT.mkdir(mode=0o700, exist_ok=True)
            for part in paths.SUPPORT.glob("*.new"):
                part.unlink()
        elif output.exists():
            raise NotMade(f"{output} is there already; name another file")
        part = place.with_name(f"{place.name}.new")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            write(stream, status, engine_logs=engine_logs)
        part.replace(place)
        for old in sorted(paths.SUPPORT.glob(f"*{SUFFIX}"))[:-KEPT] if output is None else []:
            old.unlink()
    except OSError as error:
        raise NotMade(f"{place} could not be written: {error.strerror}") from None
    return place


def write(stream: BinaryIO, status: Mapping[str, Any] | str, *, engine_logs: bool = True) -> None:
    """Write the archive to a stream. Every text is gone through for this head's secrets, the other nodes' too."""
    os.nice(19)
    top = "sparkpair-support"
    redactor = redact.Redactor([*report.known_secrets(paths.SECRETS), *_hidden_values()])
    with tarfile.open(fileobj=stream, mode="w|gz") as archive:
        for name, text in _texts(status, engine_logs):
            data = redactor.text(text).encode(errors="replace")
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
            archive.addfile(entry, io.BytesIO(data))


def _texts(status: Mapping[str, Any] | str, engine_logs: bool) -> Iterator[tuple[str, str]]:
    """One after another, so that one node's report at a time is held."""
    yield "about.txt", f"{ABOUT}\nSparkpair {RELEASE}, made {time.strftime('%Y-%m-%dT%H:%M:%S%z')}\n"
    yield "status.json", status if isinstance(status, str) else _dump(status, engine_logs)
    yield "history.jsonl", report.tail(paths.HISTORY, HISTORY_BYTES)
    yield "service.json", report.tail(paths.WANTED_SERVICE, report.TEXT_BYTES)
    yield "update.json", report.tail(paths.UPDATE, report.TEXT_BYTES)
    yield "keeper-state.json", _state(engine_logs)
    yield from _generations()
    for node in _nodes():
        directory = f"rank{node.rank}-{re.sub(r'[^A-Za-z0-9._-]', '_', node.name)}"
        for name, text in asyncio.run(_report(node, engine_logs)).items():
            yield f"{directory}/{re.sub(r'[^A-Za-z0-9._-]', '_', name)}", text


def _nodes() -> tuple[NodeEntry, ...]:
    """All nodes; without settings that can be read at least this one."""
    try:
        return service.load(paths.WANTED_SERVICE).nodes
    except wire.WireError:
        return (NodeEntry(0, "head", True, (), ()),)


async def _report(node: NodeEntry, engine_logs: bool) -> dict[str, str]:
    """A node's own texts. This node's need no agent; another's come over a connection of our own, so that the keeper's
    is not held up."""
    try:
        if node.local:
            return await report.gather(engine_logs)
        link = AgentLink(node.rank, node.name, node.addresses, boottime)
        try:
            answer = await _asked(link, engine_logs)
        finally:
            await link.close()
        return {str(name): str(text) for name, text in answer["texts"].items()}
    except (report.NotMade, Away, Refusal) as error:
        return {"no-report.txt": f"{error}\n"}


async def _asked(link: AgentLink, engine_logs: bool) -> dict[str, Any]:
    until = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            await link.call("hello")
            break
        except Away:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.2)
    return await link.call("report", timeout=REPORT_SECONDS, engine_logs=engine_logs)


def _generations() -> Iterator[tuple[str, str]]:
    """Every text of every generation, the ranks' without the values of their variables."""
    for path in sorted(paths.GENERATIONS.glob("*/*.json")):
        name = f"generations/{path.parent.name[:12]}/{path.name}"
        if path.name.startswith("rank"):
            yield name, redact.rank_text(report.tail(path, HISTORY_BYTES))[0]
        else:
            yield name, report.tail(path, report.TEXT_BYTES)
    for link in (paths.CURRENT, paths.LAST_GOOD):
        yield f"generations/{link.name}.txt", f"{os.readlink(link) if link.is_symlink() else '(none)'}\n"


def _hidden_values() -> list[str]:
    values = []
    for path in (paths.WANTED_RANK, *sorted(paths.GENERATIONS.glob("*/rank*.json"))):
        try:
            values += redact.rank_text(wire.read_text(path))[1]
        except wire.WireError:
            continue
    return values


def _state(engine_logs: bool) -> str:
    try:
        return _dump(wire.read_json(paths.KEEPER_STATE) or {}, engine_logs)
    except wire.WireError as error:
        return f"({error})\n"


def _dump(document: Mapping[str, Any], engine_logs: bool) -> str:
    """A document of the keeper's; the ranks' last lines in it are engine logs."""
    shown = {
        name: {key: kept for key, kept in value.items() if key != "logs" or engine_logs}
        if isinstance(value, dict)
        else value
        for name, value in document.items()
    }
    return json.dumps(shown, indent=1) + "\n"
