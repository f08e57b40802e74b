"""The keeper's files: generations, the two links into them, its memory and its history."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node import paths, wire

REJECTED_KEPT = 50
ADDRESS = re.compile(r"\b(?:[0-9]{1,3}\.){3}[0-9]{1,3}\b")
HISTORY_BYTES = 1_000_000
"""History is cut to its newer half beyond this size."""


@dataclass(frozen=True)
class Generation:
    """What was handed over at once: every rank's text, snapshotted, so that a boot or a crash needs nothing else."""

    engine: str
    texts: tuple[str, ...]


class Store:
    """Everything the keeper keeps over a power cut. Writes are whole or not at all."""

    def __init__(self, root: Path = paths.STATE) -> None:
        self._root = root
        self._generations = root / "generations"
        self._state = root / "keeper/state.json"
        self._stopped = root / "keeper/stopped"
        self._history = root / "history.jsonl"
        self._rejections = root / "keeper/rejected.json"
        self._rejected: dict[str, dict[str, str]] | None = None

    def load(self) -> dict[str, Any]:
        """The keeper's state; empty when there is none. Raises WireError for a damaged one."""
        return wire.read_json(self._state) or {}

    def save(self, state: dict[str, Any]) -> None:
        """Replace the state."""
        wire.write_atomic(self._state, json.dumps(state, indent=1))

    @property
    def stopped(self) -> bool:
        """Whether the pair was stopped on purpose: beside the state, so that a damaged state does not start it."""
        return self._stopped.exists()

    def mark_stopped(self, stopped: bool) -> None:
        """Keep that it was, or take it back."""
        if stopped and not self.stopped:
            wire.write_atomic(self._stopped, "")
        elif not stopped:
            self._stopped.unlink(missing_ok=True)

    def point_at(self, engine: str) -> None:
        """Restore the link to the accepted generation, should it have been lost."""
        if self.current() != engine:
            self._link("current", engine)

    def set_aside(self) -> Path | None:
        """Move a damaged state out of the way, for a person to look at; None when there is none."""
        if not self._state.exists():
            return None
        aside = self._state.with_suffix(f".damaged-{int(time.time())}")
        self._state.rename(aside)
        return aside

    def snapshot(self, engine: str, texts: Sequence[str], manifest: dict[str, Any], service: str = "{}") -> Generation:
        """Write a generation, complete before it has its name, and point `current` at it."""
        final = self._generations / engine
        if not self._whole(engine):
            if final.is_dir() and not final.is_symlink():
                shutil.rmtree(final)
            else:
                final.unlink(missing_ok=True)
            self._generations.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(dir=self._generations, prefix=".new-"))
            for rank, text in enumerate(texts):
                wire.write_atomic(partial / f"rank{rank}.json", text)
            wire.write_atomic(partial / "service.json", service)
            wire.write_atomic(partial / "manifest.json", json.dumps(manifest, indent=1))
            os.replace(partial, final)
            wire.sync_directory(self._generations)
        self._link("current", engine)
        return Generation(engine, tuple(texts))

    def generation(self, engine: str) -> Generation:
        """A kept generation. Raises WireError when it is not whole, or not what its name says."""
        directory = self._generations / engine
        try:
            manifest = wire.read_json(directory / "manifest.json") or {}
            identities = [list(map(str, row)) for row in manifest["identities"]]
            texts = [wire.read_text(directory / f"rank{rank}.json") for rank in range(len(identities))]
        except (wire.WireError, KeyError, TypeError) as error:
            raise wire.WireError(f"{directory} is not a whole generation ({error})") from None
        if wire.engine_hash(list(zip(texts, identities, strict=True))) != engine:
            raise wire.WireError(f"{directory} does not hold what its name says")
        return Generation(engine, tuple(texts))

    def service(self, engine: str) -> str | None:
        """The supervision settings that belong to a generation: its API's port and model, its canary."""
        try:
            return wire.read_text(self._generations / engine / "service.json")
        except wire.WireError:
            return None

    def keep_service(self, engine: str, text: str) -> None:
        """These settings belong to this generation from now on."""
        if self.service(engine) != text:
            wire.write_atomic(self._generations / engine / "service.json", text)

    def promote(self, engine: str, note: dict[str, Any]) -> None:
        """This generation passed its gates: its results are whole before the link says so."""
        wire.write_atomic(self._generations / engine / "gates.json", json.dumps(note, indent=1))
        self._link("last-good", engine)

    def reject(self, engine: str, reason: str) -> None:
        """Remember that a generation must not be started again, and why."""
        entry = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "reason": reason}
        known = {**{key: value for key, value in self.rejected().items() if key != engine}, engine: entry}
        self._write_rejected(dict(list(known.items())[-REJECTED_KEPT:]))

    def forgive(self, engine: str) -> None:
        """Forget a rejection: somebody wants it tried once more, or it has passed its gates since."""
        if engine in self.rejected():
            self._write_rejected({key: value for key, value in self.rejected().items() if key != engine})

    def rejected(self) -> dict[str, dict[str, str]]:
        """Time and reason by engine hash. A damaged file is as good as none: the launch then fails anew."""
        if self._rejected is None:
            try:
                data = wire.read_json(self._rejections) or {}
            except wire.WireError:
                data = {}
            self._rejected = {
                str(key): {"time": str(value["time"]), "reason": str(value["reason"])}
                for key, value in data.items()
                if isinstance(value, dict) and {"time", "reason"} <= set(value)
            }
        return self._rejected

    def _write_rejected(self, known: dict[str, dict[str, str]]) -> None:
        wire.write_atomic(self._rejections, json.dumps(known, indent=1))
        self._rejected = known

    def good(self, engine: str) -> bool:
        """Whether a generation has passed its gates."""
        return (self._generations / engine / "gates.json").is_file()

    def manifest(self, engine: str) -> dict[str, Any]:
        """What was noted when a generation was accepted. Raises WireError."""
        return wire.read_json(self._generations / engine / "manifest.json") or {}

    def note(self, engine: str, name: str, data: dict[str, Any]) -> None:
        """Keep something beside a generation, such as the floor of its memory."""
        if (self._generations / engine).is_dir():
            wire.write_atomic(self._generations / engine / f"{name}.json", json.dumps(data, indent=1))

    def noted(self, engine: str, name: str) -> dict[str, Any]:
        """What was kept so; empty where nothing is, or it is damaged."""
        try:
            return wire.read_json(self._generations / engine / f"{name}.json") or {}
        except wire.WireError:
            return {}

    def listed(self) -> list[dict[str, Any]]:
        """Every whole generation, the newest first: for status and plans."""
        found = []
        for path in self._newest_first():
            try:
                manifest = self.manifest(path.name)
                texts = self.generation(path.name).texts
                ranks = [wire.parse_rank(text) for text in texts]
            except wire.WireError:
                continue
            rejection = self.rejected().get(path.name)
            found.append(
                {
                    "engine": path.name,
                    "accepted": str(manifest.get("accepted", "")),
                    "good": self.good(path.name),
                    "rejected": rejection["reason"] if rejection else None,
                    "addresses": sorted(set(ADDRESS.findall("\n".join(texts)))),
                    # Of the files alone: everybody may read this, and what tells a secret apart is not for everybody.
                    "identities": [
                        list(known[: len(rank.content)])
                        for rank, known in zip(ranks, manifest["identities"], strict=True)
                    ],
                }
            )
        return found

    def _newest_first(self) -> list[Path]:
        if not self._generations.is_dir():
            return []
        whole = (path for path in self._generations.iterdir() if not path.name.startswith("."))
        return sorted(whole, key=lambda path: path.stat().st_mtime, reverse=True)

    def way_back(self) -> str | None:
        """The last good generation, unless a person took it back since: nothing goes there by itself then."""
        good = self.last_good()
        return None if good in self.rejected() else good

    def last_good(self) -> str | None:
        """The newest generation that passed its gates."""
        return self._target("last-good")

    def current(self) -> str | None:
        """The generation that was accepted last."""
        return self._target("current")

    def prune(self, keep: int) -> None:
        """Remove the oldest generations beyond `keep`; never the current or the last good one, and a good one only when
        no other is left: launches that failed must not drive out those that one can go back to."""
        held = {self._target("current"), self._target("last-good")}
        ranked = sorted(self._newest_first(), key=lambda path: path.name not in held and not self.good(path.name))
        for path in [*ranked[keep:], *self._generations.glob(".new-*")]:
            if path.name not in held:
                shutil.rmtree(path, ignore_errors=True)

    def record(self, event: str, **details: Any) -> dict[str, Any]:
        """Append to the history, which stays bounded."""
        entry = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "event": event, **details}
        self._history.parent.mkdir(parents=True, exist_ok=True)
        if self._history.is_file() and self._history.stat().st_size > HISTORY_BYTES:
            lines = self._history.read_text(errors="replace").splitlines(keepends=True)
            wire.write_atomic(self._history, "".join(lines[len(lines) // 2 :]))
        descriptor = os.open(self._history, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "a") as stream:
            stream.write(json.dumps(entry) + "\n")
        return entry

    def _whole(self, engine: str) -> bool:
        try:
            self.generation(engine)
        except wire.WireError:
            return False
        return True

    def _link(self, name: str, engine: str) -> None:
        temporary = self._root / f".{name}.new"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(Path("generations") / engine)
        os.replace(temporary, self._root / name)
        wire.sync_directory(self._root)

    def _target(self, name: str) -> str | None:
        try:
            return Path(os.readlink(self._root / name)).name
        except OSError:
            return None
