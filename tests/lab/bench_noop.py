"""A deploy with nothing to do, over an empty pyinfra deploy on the same two hosts: `make bench-noop`.

Prints each run, both medians, the ratio and how many commands each node was given. The empty deploy does what every
pyinfra run must: start, connect to both hosts, disconnect. Whole processes are timed, imports included.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence

from lab import lifecycle, settings
from tests.lab import pair

LIMIT = 3.0
"""The ratio that the project allows itself: 29 plain operations cost 10, with TCP_NODELAY 6."""
EMPTY = settings.LAB / "empty_deploy.py"
TABLE = settings.CHECKOUT / "docs/results/bench-noop.md"
COMMAND = re.compile(r"Running command on (\S+?):")


def main(words: Sequence[str]) -> int:
    """Run both alternately; 1 when the deploy was not a no-op or the ratio is over the limit."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench_noop")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--data", action="append", default=[], metavar="KNOB=VALUE", help="as the pair was deployed")
    arguments = parser.parse_args(words)
    runs, data = arguments.runs, [word for value in arguments.data for word in ("--data", value)]
    if not lifecycle.is_up():
        print("the lab is down: `make lab-up` starts it", file=sys.stderr)
        return 1
    if pair.dry(*data).plan:
        print("the pair is not converged: `make demo` makes it so", file=sys.stderr)
        return 1
    EMPTY.write_text('"""Nothing: what a pyinfra run costs by itself."""\n')
    cases = {"empty": ("-y", "inventory.py", str(EMPTY)), "no-op deploy": ("-y", *data)}
    before = pair.containers()
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(runs):
        for name, options in cases.items():
            run = pair.start_deploy(*options).wait()
            if run.code != 0:
                print(run.text, file=sys.stderr)
                return 1
            times[name].append(run.seconds)
    counts = {name: commands(options) for name, options in cases.items()}
    if pair.containers() != before:
        print("the containers were replaced: that was no no-op", file=sys.stderr)
        return 1
    ratio = statistics.median(times["no-op deploy"]) / statistics.median(times["empty"])
    lines = [
        "| run | median s | min | max | n | commands on the head | on the worker |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(
            f"| {name} | {statistics.median(taken):.2f} | {min(taken):.2f} | {max(taken):.2f} "
            f"| {len(taken)} | {counts[name][settings.HEAD.hostname]} | {counts[name][settings.WORKER.hostname]} |"
            for name, taken in times.items()
        ),
        "",
        f"Ratio of the medians: {ratio:.2f} (at most {LIMIT:g}).",
    ]
    print("\n".join(lines))
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    head = [
        "# What a deploy costs when there is nothing to do",
        "",
        f"Written by `make bench-noop` on {time.strftime('%Y-%m-%d %H:%M')}, on the simulated pair while it serves.",
        "",
    ]
    TABLE.write_text("\n".join([*head, *lines]) + "\n")
    return 0 if ratio <= LIMIT else 1


def commands(arguments: Sequence[str]) -> Counter[str]:
    """How many commands a run gives each host, as pyinfra's own debug log counts them."""
    run = pair.start_deploy("--debug", *arguments).wait()
    return Counter(COMMAND.findall(re.sub(r"\x1b\[[0-9;]*m", "", run.text)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
