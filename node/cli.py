"""The sparkpair command: what an operator, and deploy.py, ask of the keeper on the head.

Words that few ask for import what they need when they are asked: a status costs a node as little as may be.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from node import describe, paths, wire

FOLLOW_POLL_SECONDS = 0.5
ANSWER_SECONDS = 60.0
KEEPER_AWAY_SECONDS = 30.0
LINES_MOST = 5000
"""As many as an agent tells at once (node.agent.LOG_LINES_ASKED)."""
GATES_END = {
    "passed": "",
    "failed": "a gate failed; the pair goes on serving",
    "busy": "a gate found no free slot beside the requests that run; again when there are fewer",
}
OK, FAILED, STOPPED, AWAY, WENT_BACK, INTERRUPTED = 0, 1, 3, 4, 5, 130
EXIT_CODES = """exit codes:
  0    as asked; for status: the pair runs, or is on its way
  1    refused or failed; for status: it rests, or nothing was deployed
  2    wrong usage
  3    the pair is stopped on purpose
  4    the keeper does not answer
  5    follow --engine: that launch was rejected, and the last good one is served again
  130  interrupted; the keeper goes on
"""


class Refused(Exception):
    """It is not done; the message says why."""


class KeeperAway(Exception):
    """The keeper does not answer on its socket."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}. Usage: {self.prog} --help\n")


def main(argv: list[str]) -> int:
    """Run one word."""
    arguments = _parser().parse_args(argv)
    try:
        code = int(arguments.run(arguments))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return OK
    except KeeperAway as error:
        print(error, file=sys.stderr)
        return AWAY
    except Refused as error:
        print(error, file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="sparkpair",
        description="The pair of this head.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    words = parser.add_subparsers(dest="word", required=True, metavar="WORD")

    def word(name: str, text: str, run: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        added = words.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    status = word("status", "what the pair does, and why", _status)
    status.add_argument("--json", action="store_true", help="for programs")
    logs = word("logs", "all ranks' last lines, merged by time", _logs)
    logs.add_argument("--lines", type=_count, default=40, metavar="N", help="of each rank (40)")
    logs.add_argument("--times", action="store_true", help="with the time of each line")
    logs.add_argument("--rank", type=int, metavar="N", help="of one rank alone")
    word("start", "start, after a stop or while resting", _order)
    word("stop", "stop, and stay stopped over reboots", _order)
    word("restart", "stop and start both ranks", _order)
    warm_up = word("warm-up", "ask the gates anew, and tell their outcome", _warm_up)
    warm_up.add_argument("--timeout", type=_seconds, default=3600.0, metavar="SECONDS")
    rollback = word("rollback", "go back to the last good launch, or to one that is named", _rollback)
    rollback.add_argument("engine", nargs="?", type=_prefix, metavar="HASH", help="its first digits")
    history = word("history", "what happened, oldest first", _history)
    history.add_argument("--lines", type=_count, default=40, metavar="N", help="the last N events (40)")
    history.add_argument("--json", action="store_true", help="as they are kept, a JSON object per line")
    word("version", "which release is installed, which programs and which image run", _version)
    word("check-update", "look now whether there is a newer release", _check_update)
    bundle = word("support-bundle", "one archive of what all nodes can tell of a fault, without secrets", _bundle)
    bundle.add_argument("--output", metavar="FILE", help="where to; - is standard output")
    bundle.add_argument("--without-engine-logs", action="store_true", help="leave out the ranks' last lines")
    follow = word("follow", "print progress until the pair runs, rests or is stopped", _follow)
    follow.add_argument("--timeout", type=_seconds, default=3600.0, metavar="SECONDS")
    follow.add_argument("--engine", type=_engine, metavar="HASH", help="only this launch is a success")
    accept = word("accept", "take over the wanted set of all nodes (deploy.py does this)", _accept)
    accept.add_argument("engine", type=_engine, help="engine hash of the wanted set, 64 hex digits")
    accept.add_argument("--again", action="store_true", help="although it was rejected")
    return parser


def _engine(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not 64 hex digits")
    return text


def _prefix(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{4,64}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not 4 to 64 hex digits")
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= LINES_MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines from 1 to {LINES_MOST}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e7:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value


def _order(arguments: argparse.Namespace) -> int:
    return _told(_asked({"op": arguments.word}))


def _accept(arguments: argparse.Namespace) -> int:
    again = {"again": True} if arguments.again else {}
    return _told(_asked({"op": "accept", "engine": arguments.engine, **again}))


def _told(answer: dict[str, Any]) -> int:
    print(answer.get("note", "done"))
    return OK


def _status(arguments: argparse.Namespace) -> int:
    status = _now()
    print(json.dumps(status, indent=1) if arguments.json else describe.status(status))
    return {"resting": FAILED, "empty": FAILED, "stopped": STOPPED}.get(status["phase"], OK)


def _logs(arguments: argparse.Namespace) -> int:
    from node import merged

    answer = _asked({"op": "logs", "lines": arguments.lines, "times": True})
    logs = {int(rank): [str(line) for line in lines] for rank, lines in answer["logs"].items()}
    if arguments.rank is not None:
        if arguments.rank not in logs:
            raise Refused(f"there is no rank {arguments.rank}; there are {', '.join(map(str, sorted(logs)))}")
        logs = {arguments.rank: logs[arguments.rank]}
    for rank, stamp, text in merged.merge(logs):
        print(f"rank {rank}: {stamp} {text}" if arguments.times and stamp else f"rank {rank}: {text}")
    return OK


def _rollback(arguments: argparse.Namespace) -> int:
    engine = _resolved(arguments.engine, _now()) if arguments.engine else ""
    return _told(_asked({"op": "rollback", **({"engine": engine} if engine else {})}))


def _resolved(prefix: str, status: dict[str, Any]) -> str:
    """The one generation whose hash begins so. Raises Refused with those that there are."""
    kept = status.get("generations") or []
    found = [str(entry["engine"]) for entry in kept if str(entry["engine"]).startswith(prefix)]
    if len(found) == 1:
        return found[0]
    what = f"{prefix} begins {len(found)} generations" if found else f"no generation that is kept begins with {prefix}"
    lines = [f"  {describe.generation(entry)}" for entry in kept]
    raise Refused("\n".join([f"{what}; there are:", *lines] if lines else [f"{what}; none is told of"]))


def _history(arguments: argparse.Namespace) -> int:
    try:
        lines = paths.HISTORY.read_text(errors="replace").splitlines() if paths.HISTORY.exists() else []
    except PermissionError:
        raise Refused(f"{paths.HISTORY} is root's: sudo sparkpair history") from None
    for line in lines[-arguments.lines :]:
        if arguments.json:
            print(line)
            continue
        try:
            print(describe.event(wire.decode(line.encode())))
        except wire.WireError:  # cut in two by a power cut
            print(f"(unreadable: {line[:60]!r})")
    return OK


def _version(arguments: argparse.Namespace) -> int:
    del arguments
    from node.release import RELEASE

    code = wire.programs_hash(wire.programs(Path(__file__).parent))
    print(f"Sparkpair {RELEASE}, programs {describe.short(code)}")
    try:
        running = _now().get("code")
        if running != code:
            print(f"the keeper runs other programs, {describe.short(running)}; deploy.py replaces it")
    except KeeperAway as error:
        print(error)
    print(_image())
    return OK


def _image() -> str:
    """The image of the accepted generation, and which release of its stack it is."""
    try:
        rank = wire.parse_rank(wire.read_text(paths.CURRENT / "rank0.json"))
        update = (wire.read_json(paths.CURRENT / "service.json") or {}).get("update") or {}
    except (OSError, wire.WireError) as error:
        if os.geteuid() != 0:
            return "which image runs is told to root: sudo sparkpair version"
        return f"which image runs is not known: {error}"
    release = update.get("stack_release")
    return f"image {rank.image}, " + (f"release {release} of its stack" if release else "of no release that is known")


def _check_update(arguments: argparse.Namespace) -> int:
    del arguments
    from node import service, updates

    if not os.access(paths.WANTED_SERVICE, os.R_OK) and os.geteuid() != 0:
        raise Refused(f"{paths.WANTED_SERVICE} is root's: sudo sparkpair check-update")
    try:
        update = service.load(paths.WANTED_SERVICE).update
    except wire.WireError as error:
        raise Refused(str(error)) from None
    seen = updates.find(update)
    print("\n".join(updates.statements(update, seen)))
    return FAILED if any(entry["trouble"] for entry in seen["seen"].values()) else OK


def _bundle(arguments: argparse.Namespace) -> int:
    from node import support

    if os.geteuid() != 0:
        raise Refused("what the nodes tell of themselves is root's: sudo sparkpair support-bundle")
    engine_logs = not arguments.without_engine_logs
    status: dict[str, Any] | str
    try:
        status = _now()
    except KeeperAway as error:
        status = f"{error}\n"
    if arguments.output == "-":
        support.write(sys.stdout.buffer, status, engine_logs=engine_logs)
        return OK
    output = Path(arguments.output) if arguments.output else None
    try:
        print(support.make(output, status, engine_logs=engine_logs))
    except support.NotMade as error:
        raise Refused(str(error)) from None
    return OK


def _now() -> dict[str, Any]:
    """The pair's state from the keeper, or as it was published, for whoever may not ask."""
    try:
        status: dict[str, Any] | None = _ask({"op": "status"})["status"]
    except PermissionError:
        try:
            status = wire.read_json(paths.STATUS)
        except wire.WireError as error:
            raise KeeperAway(_away(str(error))) from None
    if status is None or not {"phase", "since", "reason", "ranks", "last_failure"} <= set(status):
        raise KeeperAway(_away("no state was published"))
    return status


class _Watch:
    """The pair's state again and again, until a deadline. A keeper that is being replaced is waited for."""

    def __init__(self, timeout: float) -> None:
        self._until = time.monotonic() + timeout
        self._heard = time.monotonic()
        self._first = True
        self._away: KeeperAway | None = None

    def next(self) -> dict[str, Any] | None:
        """The next state; None when the time is over. Raises KeeperAway."""
        while self._first or time.monotonic() < self._until:
            if not self._first:
                time.sleep(FOLLOW_POLL_SECONDS)
            self._first = False
            try:
                status = _now()
            except KeeperAway as error:
                if time.monotonic() - self._heard > KEEPER_AWAY_SECONDS:
                    raise
                self._away = error
                continue
            self._heard, self._away = time.monotonic(), None
            return status
        if self._away is not None:
            raise self._away
        return None


def _follow(arguments: argparse.Namespace) -> int:
    """Progress until an end state."""
    watch = _Watch(arguments.timeout)
    said = why = ""
    while (status := watch.next()) is not None:
        ranks = ", ".join(f"rank {rank} {seen['state']}" for rank, seen in sorted(status["ranks"].items()))
        line = f"{status['phase']} ({ranks})"
        if line != said or status["reason"] != why:
            # A reason is said once: it stays the same through stopping, back-off and start.
            print(f"{line}: {status['reason']}" if status["reason"] and status["reason"] != why else line, flush=True)
            said, why = line, status["reason"]
        end = _end(status, arguments.engine)
        if end is not None:
            return end
    print(f"not running within {arguments.timeout:.0f} s; the keeper goes on. See: sparkpair status", file=sys.stderr)
    return FAILED


def _end(status: dict[str, Any], engine: str | None) -> int | None:
    """The exit code of a state in which nothing more is to come; with what is to be said of it."""
    phase = status["phase"]
    back = status.get("rollback") or {}
    if phase == "stopped":
        return STOPPED
    if phase in ("resting", "empty"):
        failure = status["last_failure"] or {}
        if str(failure.get("reason")) in str(status["reason"]):  # else it rests for something else
            _print(describe.last_lines(failure))
        return FAILED
    if phase != "running":
        return None
    if not engine or status.get("accepted") == engine:
        return OK
    if back.get("from") == engine:
        _print([describe.rollback(back), *describe.last_lines(back)])
        return WENT_BACK
    _print([f"{describe.short(status.get('accepted'))} is served, not {describe.short(engine)}: another was accepted"])
    return FAILED


def _print(lines: list[str]) -> None:
    if lines:
        print("\n".join(lines), flush=True)


def _warm_up(arguments: argparse.Namespace) -> int:
    """The gates anew, each told as it ends."""
    _asked({"op": "warm-up"})
    watch = _Watch(arguments.timeout)
    told = 0
    while (status := watch.next()) is not None:
        results = status.get("gates") or []
        _print([describe.gate(one) for one in results[told:]])
        told = len(results)
        state = status.get("gating")
        if state in GATES_END:
            _print([GATES_END[state]] if GATES_END[state] else [])
            return OK if state == "passed" else FAILED
        if state is None:
            raise Refused(f"the gates ended with the engine or the keeper; the pair is {status['phase']}")
    raise Refused(f"not all gates were asked within {arguments.timeout:.0f} s; sparkpair status tells of them")


def _asked(message: dict[str, Any]) -> dict[str, Any]:
    """The keeper's answer. Raises Refused when it is no."""
    try:
        answer = _ask(message)
    except PermissionError:
        raise Refused(f"{paths.KEEPER_SOCKET} is root's: sudo sparkpair {message['op']}") from None
    if not answer.get("ok"):
        raise Refused(str(answer.get("error", "refused without a reason")))
    return answer


def _ask(message: dict[str, Any]) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as keeper:
        keeper.settimeout(ANSWER_SECONDS)
        try:
            keeper.connect(str(paths.KEEPER_SOCKET))
            keeper.sendall(wire.encode(message))
            parts: list[bytes] = []
            while not parts or not parts[-1].endswith(b"\n"):
                parts.append(keeper.recv(65536))
                if not parts[-1]:
                    raise KeeperAway(_away("it hung up"))
        except PermissionError:
            raise  # for whoever may not ask there is the published state
        except OSError as error:
            raise KeeperAway(_away(error.strerror or str(error))) from None
    return wire.decode(b"".join(parts))


def _away(why: str) -> str:
    return (
        f"the keeper does not answer on {paths.KEEPER_SOCKET} ({why}). Is this the head? "
        "systemctl status sparkpair-keeper; journalctl -u sparkpair-keeper"
    )
