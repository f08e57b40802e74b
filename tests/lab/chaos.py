"""The long tables on the simulated pair: `make chaos`. Resumable: a row that passed at this commit is not run again.

python -m tests.lab.chaos              run what is missing, then write docs/results/chaos.md
python -m tests.lab.chaos --list       name the rows
python -m tests.lab.chaos --again      forget former results first
python -m tests.lab.chaos WORD ...     only rows whose name holds one of the words
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lab import lifecycle, settings
from tests.lab import pair

RESULTS = settings.LAB / "chaos.json"
TABLES = settings.CHECKOUT / "docs/results"
MEDIAN_SECONDS = 10
"""What the pair may add to the engine's own start after a process died, in the median."""


@dataclass(frozen=True)
class Row:
    """One fault and what must be true after it. `run` returns what was seen and raises AssertionError."""

    name: str
    engine: str
    run: Callable[[], str | pair.Seen]


@dataclass(frozen=True)
class Result:
    """What one row gave."""

    name: str
    engine: str
    passed: bool
    seen: str
    seconds: float
    when: str
    commit: str
    beyond: float | None = None


def main(words: Sequence[str]) -> int:
    """Run the rows; 1 when one has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.chaos")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("only", nargs="*")
    arguments = parser.parse_args(words)
    from tests.lab import (
        chaos_bundle,
        chaos_contact,
        chaos_deep,
        chaos_fabric,
        chaos_found,
        chaos_healing,
        chaos_host,
        chaos_image,
        chaos_nfs,
        chaos_node,
        chaos_rollback,
        chaos_rows,
        chaos_staging,
        chaos_undo,
    )

    staging = [
        *chaos_staging.ROWS, *chaos_image.ROWS, *chaos_deep.ROWS, *chaos_bundle.ROWS, *chaos_nfs.ROWS,
    ]  # fmt: skip
    healing = [*chaos_healing.ROWS, *chaos_rollback.ROWS, *chaos_undo.ROWS]
    tables = {"chaos.md": chaos_rows.ROWS, "chaos-healing.md": healing, "chaos-staging.md": staging}
    rails = [*chaos_node.ROWS, *chaos_found.ROWS, *chaos_fabric.ROWS]
    tables["chaos-node.md"] = [*chaos_contact.ROWS, *rails, *chaos_host.ROWS]
    every = [row for table in tables.values() for row in table]
    rows = [row for row in every if not arguments.only or any(word in row.name for word in arguments.only)]
    if arguments.list:
        print("\n".join(f"{row.engine:9} {row.name}" for row in rows))
        return 0
    if not lifecycle.is_up():
        pair.lab("up")
    pair.enter_control_namespace()
    results = {} if arguments.again else load()
    commit = product_commit()
    for row in rows:
        former = results.get(row.name)
        if former is not None and former.passed and former.commit == commit:
            continue
        print(f"{row.engine:9} {row.name} ...", flush=True)
        result = run(row, commit)
        results[row.name] = result
        save(results)
        outcome = "passed" if result.passed else "FAILED"
        print(f"          {outcome} in {result.seconds:.0f} s: {result.seen}", flush=True)
        for name, table in tables.items():
            if row in table:
                write_table(name, [results[known.name] for known in table if known.name in results], len(table))
    speed = after_deaths([results[row.name] for row in rows])
    if speed:
        print(speed)
    failed = [row.name for row in rows if not results[row.name].passed]
    passed = len(rows) - len(failed)
    print(f"{passed} passed, {len(failed)} failed")
    return 1 if failed else 0


def run(row: Row, commit: str) -> Result:
    """One row, its outcome and its time."""
    begun = time.monotonic()
    beyond = None
    try:
        seen, passed = row.run(), True
    except Exception as error:  # whatever a row runs into is its result
        print("".join(traceback.format_exception(error, limit=-3))[:3000], flush=True)
        seen, passed = f"{type(error).__name__}: {error}"[:600], False
    if isinstance(seen, pair.Seen):
        seen, beyond = seen.text, seen.beyond
    took, when = time.monotonic() - begun, time.strftime("%Y-%m-%d %H:%M")
    return Result(row.name, row.engine, passed, seen, took, when, commit, beyond)


def after_deaths(results: Sequence[Result]) -> str:
    """How fast the pair was after process deaths; "" when no row was about one."""
    texts = []
    for engine in ("real", "contract"):
        seconds = [one.beyond for one in results if one.engine == engine and one.beyond is not None]
        if seconds:
            texts.append(
                f"{engine} engine: median {statistics.median(seconds):.1f} s, "
                f"{min(seconds):.1f} to {max(seconds):.1f} s, n = {len(seconds)}"
            )
    if not texts:
        return ""
    every = statistics.median([one.beyond for one in results if one.beyond is not None])
    return (
        "From a process's death to the next answer, less the engine's own start "
        f"(wanted: a median of at most {MEDIAN_SECONDS:g} s): median {every:.1f} s ({'; '.join(texts)})."
    )


def load() -> dict[str, Result]:
    """Former results."""
    if not RESULTS.exists():
        return {}
    return {name: Result(**data) for name, data in json.loads(RESULTS.read_text()).items()}


def save(results: dict[str, Result]) -> None:
    """Keep the results, so that a run that was cut off goes on."""
    RESULTS.write_text(json.dumps({name: dataclasses.asdict(result) for name, result in results.items()}, indent=1))


def product_commit() -> str:
    """The newest commit that changed the rows or what they exercise; marked when there is more than is committed."""
    places = [
        ":(glob)*.py", "requirements-hub.lock", "spec", "facts", "checks", "roles", "operations", "templates", "node",
        "lab", "tests/lab",
    ]  # fmt: skip
    dirty = "-dirty" if git("status", "--porcelain", "--untracked-files=no", "--", *places) else ""
    return git("log", "-1", "--format=%h", "--", *places) + dirty


def git(*words: str) -> str:
    """What git says."""
    return subprocess.run(
        ["git", *words], cwd=settings.CHECKOUT, capture_output=True, text=True, check=True
    ).stdout.strip()


INTRODUCTIONS = {
    "chaos.md": (
        "# Faults on the simulated pair",
        "",
        "Written by `make chaos`. Real hosts and deploys (lab/README.md says what differs from a Spark). Engine `real`",
        "is vLLM 0.32 on the CPU, tensor parallel over both hosts; `contract` is the small program of",
        "lab/contract_engine that fails as vLLM does (docs/results/contract-engine.md).",
    ),
    "chaos-healing.md": (
        "# A pair that heals itself, on the simulated pair",
        "",
        "Written by `make chaos`. Real hosts, and faults that nobody mends (lab/README.md says what differs from a",
        "Spark). Engine `real` is vLLM 0.32 on the CPU, tensor parallel over both hosts; `contract` is the small",
        "program of lab/contract_engine that fails as vLLM does. Each row ends with the API answering again by itself,",
        "or with the keeper at rest for the reason that is told; with at most one successful restart, one container on",
        "each node and no process outside it; with the last good generation, every kept generation, the history and",
        "the wanted files as they were; and, where no deploy belongs to the fault, with a second `--dry` that plans",
        "nothing. A row on a bad launch ends with the launch before it serving, by the hash on its containers, and",
        "with a plan that says of the other one when and why it was rejected, and does not try it again.",
    ),
    "chaos-staging.md": (
        "# Faults while weights are brought to the simulated pair",
        "",
        "Written by `make chaos`. Real huggingface_hub clients on real hosts, and a double of the hub that does what",
        "it is told (lab/README.md). Each row on downloads ends with every file on both hosts, its sha256 that of the",
        "repository, and with the hub's own log: no file was sent to both hosts, and of a file that was begun again",
        "the hub sent no more than what the cut connection had in flight. Engine `-`: nothing serves.",
    ),
    "chaos-node.md": (
        "# Nodes as they are found, on the simulated pair",
        "",
        "Written by `make chaos`. Real hosts with systemd, netplan, NetworkManager and ufw (lab/README.md says what",
        "differs from a Spark). Each row on rails ends with both of them carrying full packets after one deploy and",
        "after a reboot of the worker, with a verify that holds, and with a second `--dry` that plans nothing. A row",
        "on a node that a change of its network cuts off ends with the node back by itself, the time it was away, a",
        "deploy that failed with one message, and the next one that works. A row on what a node has by itself ends",
        "with the words that name it, and with a pair that serves.",
    ),
}


def write_table(name: str, results: Sequence[Result], rows: int) -> None:
    """A table under docs/results/, of so many rows, some of which may not have been run yet."""
    passed = sum(result.passed for result in results)
    unrun = f" {rows - len(results)} of {rows} rows have no result here." if len(results) < rows else ""
    lines = [
        *INTRODUCTIONS[name],
        "",
        f"Last run {max((result.when for result in results), default='-')}: {passed} of {len(results)} passed.{unrun}",
        "",
        "| row | engine | outcome | seconds | seen | run | at |",
        "| --- | --- | --- | ---: | --- | --- | --- |",
    ]
    for result in results:
        seen = result.seen.replace(f"{settings.CHECKOUT}/", "").replace("|", "\\|").replace("\n", " ")
        outcome = "passed" if result.passed else "**failed**"
        lines.append(
            f"| {result.name} | {result.engine} | {outcome} | {result.seconds:.0f} | {seen} | {result.when} "
            f"| {result.commit} |"
        )
    speed = after_deaths(results)
    if speed:
        lines += ["", speed]
    TABLES.mkdir(parents=True, exist_ok=True)
    (TABLES / name).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
