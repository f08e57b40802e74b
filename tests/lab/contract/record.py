"""Both engines through the whole table on the lab's hosts: `python -m tests.lab.contract.record`. Resumable.

    python -m tests.lab.contract.record                  what is missing for either image, then write the table
    python -m tests.lab.contract.record --engine NAME    one of them: engine (real vLLM), contract
    python -m tests.lab.contract.record --again WORD ... only cases whose name holds one of the words, once more

Each case holds .lab/lab-in-use.lock. The containers are called contract-test-*, listen on ports of their own and are
removed after the case, so a pair that serves beside them is not disturbed (but it makes them slower).
"""

from __future__ import annotations

import argparse
import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lab import hosts, lifecycle, settings
from tests.lab import pair
from tests.lab.contract.cases import CASES, HEAD, WORKER, Case, Seen, check_answers, check_load, run, wait
from tests.lab.contract.client import request
from tests.lab.contract.pairs import Containers

RESULTS = settings.LAB / "contract.json"
TABLE = settings.CHECKOUT / "docs/results/contract-engine.md"
RECORDED = Path(__file__).with_name("answers.json")
"""What the real engine said, for the tests that have no lab."""
LOCK = settings.LAB / "lab-in-use.lock"
START_SECONDS = {"engine": 240.0, "contract": 20.0}
TITLES = {"engine": "vLLM 0.32 (CPU)", "contract": "contract engine"}
ANSWERS, LOAD = "what a ready pair answers", "what the metrics say"


@contextmanager
def lab_to_ourselves() -> Iterator[None]:
    """Wait for others who use the lab, where they hold this lock."""
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def containers(engine: str) -> Containers:
    """The two hosts, ready to run that image."""
    image = hosts.read_images()[engine]
    ranks = Containers(image, START_SECONDS[engine])
    for rank in (HEAD, WORKER):
        ranks.on(rank, f"docker image inspect {image} >/dev/null 2>&1 || docker pull -q {image}")
    return ranks


def healthy(ranks: Containers, check: Any) -> dict[str, str]:
    """Run a check on a pair that works."""
    try:
        for rank in (WORKER, HEAD):
            ranks.start(rank, {}, {})
        if not wait(lambda: request(ranks.api, "/health", seconds=3).status == 200, ranks.start_seconds):
            raise AssertionError(f"never ready: {ranks.logs(HEAD)[-500:]}")
        said: dict[str, str] = check(ranks)
        return said
    finally:
        ranks.remove()


def main(words: Sequence[str]) -> int:
    """Run what is missing; 1 when a case differs from the table, or the engines from each other."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.contract.record")
    parser.add_argument("--engine", choices=list(TITLES), action="append")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("only", nargs="*")
    arguments = parser.parse_args(words)
    if not lifecycle.is_up():
        print("the lab is down: `make lab-up` starts it", file=sys.stderr)
        return 1
    pair.enter_control_namespace()
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    jobs: list[tuple[str, Case | Any]] = [(case.name, case) for case in CASES]
    jobs += [(ANSWERS, check_answers), (LOAD, check_load)]
    for engine in arguments.engine or list(TITLES):
        image = hosts.read_images()[engine]
        kept = results.setdefault(engine, {})
        for name, job in jobs:
            if arguments.only and not any(word in name for word in arguments.only):
                continue
            old = kept.get(name)
            if old and old["image"] == image and not old.get("wrong") and not arguments.again:
                continue
            with lab_to_ourselves():
                ranks = containers(engine)
                try:
                    seen = asdict(run(job, ranks)) if isinstance(job, Case) else {"said": healthy(ranks, job)}
                except Exception as error:
                    seen = asdict(Seen(name, wrong=[f"{type(error).__name__}: {error}"]))
                finally:
                    ranks.close()
            kept[name] = {**seen, "image": image, "when": time.strftime("%Y-%m-%d %H:%M")}
            print(f"{engine:9}{name}: {'; '.join(seen.get('wrong') or []) or 'as the table'} {seen}", flush=True)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    real = results.get("engine", {})
    if "said" in real.get(ANSWERS, {}) and "said" in real.get(LOAD, {}):
        said = {"answers": real[ANSWERS]["said"], "load": real[LOAD]["said"]}
        RECORDED.write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n")
    text, fine = table(results)
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    TABLE.write_text(text)
    return 0 if fine else 1


def _images(kept: dict[str, Any]) -> str:
    """Which images ran how many cases, and when."""
    counted: dict[str, list[str]] = {}
    for one in kept.values():
        counted.setdefault(one["image"].rpartition("@")[2][:19], []).append(one["when"])
    return ", ".join(f"{image} ({len(when)} cases, {min(when)} to {max(when)})" for image, when in counted.items())


def table(results: dict[str, Any]) -> tuple[str, bool]:
    """docs/results/contract-engine.md, and whether both engines keep the table and say the same."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=settings.CHECKOUT, capture_output=True,
                            text=True, check=False).stdout.strip()  # fmt: skip
    when = max((one["when"] for kept in results.values() for one in kept.values()), default="never")
    lines = [
        "# The contract engine beside a real vLLM",
        "",
        f"Written by `python -m tests.lab.contract.record`, last run {when} at {commit}. Containers on the lab's two",
        "hosts, one run per case; both engines get the same image base, command line and model. Times count from the",
        "fault (or from the start, where the start fails); the machine has two cores, shared with other work.",
        '`tests/lab/contract/cases.py` holds what is expected. "gone" is a refused connection; "in flight" is how an',
        "endless stream and, after it, a request that is not streamed ended.",
        "",
        *(f"- {TITLES[engine]}: {_images(results.get(engine, {}))}" for engine in TITLES),
        "",
        "## Failures",
        "",
        "| case | expected | engine | ready | head | worker | API | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    fine = True
    for case in CASES:
        wanted = f"head {case.head or 'runs on'}; worker {case.worker or 'runs on'}"
        if len(case.start.ranks) == 1:
            wanted = f"{case.head or 'runs on'}" if case.start.ranks[0] == HEAD else f"{case.worker or 'runs on'}"
        if case.head_then:
            wanted += f"; first request {case.request}, then head {case.head_then}"
        for number, engine in enumerate(TITLES):
            seen = results.get(engine, {}).get(case.name)
            first = f"| {case.name} | {wanted} |" if not number else "| | |"
            if seen is None:
                lines.append(f"{first} {TITLES[engine]} | not run | | | | |")
                fine = False
                continue
            verdict = "; ".join(seen["wrong"]).replace("|", "/").replace("\n", " ") or "as expected"
            fine &= not seen["wrong"]
            cells = (TITLES[engine], seen["ready"], seen["head"], seen["worker"], seen["api"], verdict)
            lines.append(f"{first} {' | '.join(cells)} |")
    for title in (ANSWERS, LOAD):
        lines += ["", f"## {title[0].upper()}{title[1:]}", "", "| asked | said |", "|---|---|"]
        both = [results.get(engine, {}).get(title, {}).get("said", {}) for engine in TITLES]
        for name in dict.fromkeys([*both[0], *both[1]]):
            said = [str(one.get(name, "not run")).replace("|", "/").replace("\n", " ") for one in both]
            if said[0] == said[1]:
                lines.append(f"| {name} | {said[0]} |")
            else:
                fine = False
                lines += [f"| {name} | {TITLES[engine]}: {text} |" for engine, text in zip(TITLES, said, strict=True)]
    return "\n".join(lines) + "\n", fine


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
