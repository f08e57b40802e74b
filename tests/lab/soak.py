"""An hour of load and faults on the simulated pair: does anything of ours grow? `make soak ARGS=minutes`.

A few requests are always in flight, and a fault comes as soon as the pair has answered again for a while. Every ten
seconds both hosts are measured. After the first third, which warms up what is kept (the last logs, the generations), a
line is fitted to each figure; a slope that is significantly above its bound fails the run. Writes docs/results/soak.md.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lab import lifecycle, settings
from lab.settings import HEAD, HOSTS, WORKER
from tests.lab import chaos, footprint, pair
from tests.lab.chaos_healing import CONTAINER, PARTS
from tests.lab.chaos_rows import converged, use
from tests.lab.footprint import Footprint

RESULT = settings.CHECKOUT / "docs/results/soak.md"
SAMPLE_SECONDS = 10
PAUSE_SECONDS = 12
"""Between the pair's answer and the next fault: failures stay rarer than the budget counts."""
HEALED_SECONDS = 240
SURE = 1.96
"""Standard errors on either side of a slope: 95 % if what is left were noise of the normal sort."""
MIB = 2**20
PER_HOUR = {
    "pss": (2 * MIB, "KiB", 1024),
    "processes": (0.5, "", 1),
    "descriptors": (2, "", 1),
    "files": (2, "", 1),
    "file_bytes": (256 * 1024, "KiB", 1024),
    "record_bytes": (1 * MIB, "KiB", 1024),
    "journal_bytes": (2 * MIB, "KiB", 1024),
    "every_process": (1, "", 1),
}
"""The most that each figure may grow by in an hour with a fault every half minute, and how it is printed. Records and
the journal are written at each fault, and bounded by themselves."""


@dataclass(frozen=True)
class Line:
    """A line through samples: what it says of an hour."""

    slope: float
    """Per hour."""
    error: float
    """Standard error of the slope, widened for samples that resemble the one before them."""

    def grows(self, bound: float) -> bool:
        """Whether the slope is above the bound beyond doubt."""
        return self.slope - SURE * self.error > bound


def fit(hours: Sequence[float], values: Sequence[float]) -> Line:
    """Least squares. Raises StatisticsError for fewer than two different times."""
    slope, start = statistics.linear_regression(hours, values)
    rest = [value - start - slope * at for at, value in zip(hours, values, strict=True)]
    squares = sum(one * one for one in rest)
    if len(rest) < 4 or squares == 0:
        return Line(slope, 0.0)
    # Neighbours alike say less than as many independent samples would.
    alike = min(0.95, max(0.0, sum(one * next_ for one, next_ in itertools.pairwise(rest)) / squares))
    spread = sum((at - statistics.fmean(hours)) ** 2 for at in hours)
    error = math.sqrt(squares / (len(rest) - 2) / spread)
    return Line(slope, error * math.sqrt((1 + alike) / (1 - alike)))


class Sampler:
    """Measures both hosts every ten seconds while the block runs."""

    def __init__(self) -> None:
        self.samples: dict[str, list[tuple[float, Footprint]]] = {name: [] for name in HOSTS}
        self.missed = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Sampler:
        self._begun = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._over.is_set():
            for host in HOSTS.values():
                at = (time.monotonic() - self._begun) / 3600
                try:
                    self.samples[host.name].append((at, footprint.measure(host)))
                except (AssertionError, ValueError):  # the host was rebooted meanwhile
                    self.missed += 1
            self._over.wait(SAMPLE_SECONDS)


def faults() -> list[tuple[str, Callable[[], object]]]:
    """What happens to the pair, in turn."""
    kills = [
        (f"SIGKILL {title} on the {host.name}", lambda host=host, title=title: pair.kill_process(host, title))
        for host, title in PARTS
    ]
    on = [
        ("docker kill on the worker", WORKER, f"docker kill {CONTAINER}"),
        ("docker rm -f on the head", HEAD, f"docker rm -f {CONTAINER}"),
        ("keeper killed", HEAD, "systemctl kill -s KILL sparkpair-keeper"),
        ("agent killed on the head", HEAD, "systemctl kill -s KILL sparkpair-agent"),
        ("agent killed on the worker", WORKER, "systemctl kill -s KILL sparkpair-agent"),
        ("sparkpair stop and start", HEAD, "sparkpair stop; sparkpair start"),
    ]
    commands = [(name, lambda host=host, words=words: pair.on(host, words)) for name, host, words in on]
    return [*kills, *commands, ("engine's rail cut for 5 s", cut), ("deploy with nothing to do", no_deploy)]


def cut() -> None:
    """The engine's rail without its cable for a moment."""
    pair.lab("cut", "0")
    time.sleep(5)
    pair.lab("join", "0")


def no_deploy() -> None:
    """A deploy that changes nothing."""
    run = pair.deploy(*use("contract"))
    assert run.code == 0, run.text[-800:]


@dataclass
class Run:
    """What happened to the pair."""

    begun: float
    struck: dict[str, int]
    slowest: float = 0.0
    failures: int = 0


def soak(minutes: float) -> tuple[Run, Sampler]:
    """Faults in turn until the time is over, under load. Raises AssertionError when the pair does not come back."""
    converged("contract")
    run = Run(time.monotonic(), {})
    end, before = run.begun + 60 * minutes, pair.status()["counters"]
    with Sampler() as sampler, pair.Streams(2, max_tokens=300):
        while time.monotonic() < end:
            for name, strike in faults():
                if time.monotonic() >= end:
                    break
                strike()
                run.struck[name] = run.struck.get(name, 0) + 1
                time.sleep(1)
                run.slowest = max(run.slowest, pair.wait_for(steady, HEALED_SECONDS, f"answers after: {name}"))
                time.sleep(PAUSE_SECONDS)
    run.failures = pair.status()["counters"]["failures"] - before["failures"]
    return run, sampler


def steady() -> bool:
    """Whether the pair runs and answers."""
    with contextlib.suppress(pair.NoAnswer):
        return bool(pair.status()["phase"] == "running" and pair.answers(20))
    return False


def judge(sampler: Sampler) -> tuple[list[str], list[str]]:
    """Rows of the table, and what grows."""
    rows, growing = [], []
    for host, samples in sampler.samples.items():
        kept = [sample for sample in samples if sample[0] > samples[-1][0] / 3]
        hours = [at for at, _ in kept]
        for name, (bound, unit, scale) in PER_HOUR.items():
            values = [float(getattr(found, name)) for _, found in kept]
            line = fit(hours, values)
            grows = line.grows(bound)
            if grows:
                growing.append(f"{name} on the {host}")
            rows.append(
                f"| {host} | {name}{f', {unit}' if unit else ''} | {values[0] / scale:.0f} | {values[-1] / scale:.0f} "
                f"| {max(values) / scale:.0f} | {line.slope / scale:+.2f} | {SURE * line.error / scale:.2f} "
                f"| {bound / scale:g} | {'**grows**' if grows else 'no'} |"
            )
    return rows, growing


def report(minutes: float, run: Run, sampler: Sampler) -> list[str]:
    """Write the result; what grows."""
    rows, growing = judge(sampler)
    took = (time.monotonic() - run.begun) / 60
    counts = {name: len(samples) for name, samples in sampler.samples.items()}
    faults_done = sum(run.struck.values())
    text = [
        "# Soak: load and faults for a while, and whether anything of ours grows",
        "",
        f"Written by `make soak ARGS={minutes:g}`, {time.strftime('%Y-%m-%d %H:%M')}, at {chaos.product_commit()}. "
        "The simulated pair with the contract",
        "engine (lab/README.md), two streams always open, the faults below in turn, each as soon as the pair had",
        f"answered again for {PAUSE_SECONDS} s. Both hosts were measured every {SAMPLE_SECONDS} s.",
        "",
        f"{took:.0f} minutes, {faults_done} faults, {run.failures} failures that the keeper counted; the slowest "
        f"recovery took {run.slowest:.0f} s.",
        f"Samples: {counts}, and {sampler.missed} missed. A line by least squares through the samples after the first",
        f"third; ± is {SURE:g} standard errors, widened for neighbouring samples that are alike. A figure grows when",
        "its slope less that is above its bound.",
        "",
        "| host | figure | at first | at last | most | slope, per hour | ± | bound, per hour | grows |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
        *rows,
        "",
        "pss, processes and descriptors are those of our units and of what they start; files and file_bytes those",
        "below /var/lib/sparkpair and /run/sparkpair; record_bytes the history and the memory record, journal_bytes",
        "the text of our units in the journal: both are written at each fault, and each keeps itself in bounds.",
        "",
        "Faults: " + "; ".join(f"{name} {count}" for name, count in run.struck.items()) + ".",
    ]
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text("\n".join(text) + "\n")
    print("\n".join(text))
    return growing


def main(words: Sequence[str]) -> int:
    """1 when something grows."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.soak")
    parser.add_argument("minutes", nargs="?", type=float, default=60.0)
    arguments = parser.parse_args(words)
    if not lifecycle.is_up():
        pair.lab("up")
    pair.enter_control_namespace()
    growing = report(arguments.minutes, *soak(arguments.minutes))
    if growing:
        print(f"grows: {', '.join(growing)}")
    return 1 if growing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
