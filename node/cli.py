"""The sparkpair command: what an operator, and deploy.py, ask of the keeper on the head.

Exit codes: 0 as asked, 1 refused or failed, 2 wrong usage, 3 stopped on purpose, 4 the keeper does not answer,
130 interrupted (the keeper goes on).
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import sys
import time
from typing import Any

from node import paths, wire

FOLLOW_POLL_SECONDS = 0.5
ANSWER_SECONDS = 60.0
KEEPER_AWAY_SECONDS = 30.0
OK, FAILED, STOPPED, AWAY, INTERRUPTED = 0, 1, 3, 4, 130


class NotAllowed(Exception):
    """Only root may ask that."""


class KeeperAway(Exception):
    """The keeper does not answer on its socket."""


def main(argv: list[str]) -> int:
    """Run one word."""
    parser = argparse.ArgumentParser(prog="sparkpair", description="The pair of this head.")
    words = parser.add_subparsers(dest="word", required=True)
    status = words.add_parser("status", help="what the pair does, and why")
    status.add_argument("--json", action="store_true", help="for programs")
    accept = words.add_parser("accept", help="take over the wanted set of all nodes (deploy.py does this)")
    accept.add_argument("engine", type=_engine, help="engine hash of the wanted set, 64 hex digits")
    words.add_parser("start", help="start, after a stop or while resting")
    words.add_parser("stop", help="stop, and stay stopped over reboots")
    words.add_parser("restart", help="stop and start both ranks")
    logs = words.add_parser("logs", help="both ranks' last lines")
    logs.add_argument("--lines", type=_count, default=40, metavar="N")
    follow = words.add_parser("follow", help="print progress until the pair runs, rests or is stopped")
    follow.add_argument("--timeout", type=_seconds, default=3600.0, metavar="SECONDS")
    arguments = parser.parse_args(argv)
    try:
        if arguments.word == "status":
            return _status(arguments.json)
        if arguments.word == "follow":
            return _follow(arguments.timeout)
        if arguments.word == "logs":
            return _logs(arguments.lines)
        answer = _ask({"op": arguments.word, "engine": getattr(arguments, "engine", "")})
    except KeeperAway as error:
        print(error, file=sys.stderr)
        return AWAY
    except NotAllowed as error:
        print(error, file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    if not answer.get("ok"):
        print(answer.get("error", "refused without a reason"), file=sys.stderr)
        return FAILED
    print(answer.get("note", "done"))
    return OK


def describe(status: dict[str, Any]) -> str:
    """Status as text: one statement per line."""
    accepted = (status.get("accepted") or "none")[:12]
    lines = [f"{status['phase']} since {status['since']}" + (f": {status['reason']}" if status.get("reason") else "")]
    good = status.get("last_good")
    note = (
        "the last that passed its gates"
        if good == status.get("accepted") and good
        else (f"last good: {good[:12]}" if good else "none has passed its gates yet")
    )
    lines.append(f"generation {accepted} ({note})")
    for rank, seen in sorted(status.get("ranks", {}).items()):
        what = seen.get("away") or seen.get("state")
        if seen.get("state") == "exited":
            what = f"exited with code {seen.get('exit_code')}"
        if seen.get("error"):
            what = f"{what}: {seen['error']}"
        way = f", by {seen['address']}" if seen.get("address") else ""
        rail = ", rail without carrier" if seen.get("rail_up") is False else ""
        lines.append(f"rank {rank} on {seen.get('node')}: {what}{way}{rail}")
    count = status.get("counters", {})
    lines.append(
        f"starts {count.get('starts', 0)}, of which answered {count.get('ready', 0)}; "
        f"failures {count.get('failures', 0)}; canaries {count.get('canaries', 0)}"
    )
    failure = status.get("last_failure")
    if failure:
        lines.append(f"last failure {failure['time']}: {failure['reason']}")
    return "\n".join(lines)


def last_lines(failure: dict[str, Any]) -> list[str]:
    """Both ranks' last lines of a failure, for a report."""
    lines = []
    for rank, tail in sorted(failure.get("logs", {}).items()):
        lines.append(f"rank {rank}, last lines:")
        lines += [f"  {line}" for line in tail[-12:]] or ["  (none)"]
    return lines


def _engine(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not 64 hex digits")
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of lines from 1 to 10000")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e7:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value


def _status(as_json: bool) -> int:
    status = _now()
    print(json.dumps(status, indent=1) if as_json else describe(status))
    return {"resting": FAILED, "empty": FAILED, "stopped": STOPPED}.get(status["phase"], OK)


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


def _logs(lines: int) -> int:
    answer = _ask({"op": "logs", "lines": lines})
    for rank, tail in sorted(answer["logs"].items()):
        print(f"rank {rank}:")
        print("\n".join(f"  {line}" for line in tail))
    return OK


def _follow(timeout: float) -> int:
    """Progress until an end state. A keeper that is being replaced is waited for."""
    until = time.monotonic() + timeout
    heard = time.monotonic()
    said = why = ""
    while time.monotonic() < until:
        try:
            status = _now()
            heard = time.monotonic()
        except KeeperAway:
            if time.monotonic() - heard > KEEPER_AWAY_SECONDS:
                raise
            time.sleep(FOLLOW_POLL_SECONDS)
            continue
        ranks = ", ".join(f"rank {rank} {seen['state']}" for rank, seen in sorted(status["ranks"].items()))
        line = f"{status['phase']} ({ranks})"
        if line != said or status["reason"] != why:
            # A reason is said once: it stays the same through stopping, back-off and start.
            print(f"{line}: {status['reason']}" if status["reason"] and status["reason"] != why else line, flush=True)
            said, why = line, status["reason"]
        if status["phase"] == "running":
            return OK
        if status["phase"] == "stopped":
            return STOPPED
        if status["phase"] in ("resting", "empty"):
            if status["last_failure"] and status["last_failure"].get("logs"):
                print("\n".join(last_lines(status["last_failure"])), flush=True)
            return FAILED
        time.sleep(FOLLOW_POLL_SECONDS)
    print(f"not running within {timeout:.0f} s; the keeper goes on. See: sparkpair status", file=sys.stderr)
    return FAILED


def _ask(message: dict[str, Any]) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as keeper:
        keeper.settimeout(ANSWER_SECONDS)
        try:
            keeper.connect(str(paths.KEEPER_SOCKET))
            keeper.sendall(wire.encode(message))
            data = b""
            while not data.endswith(b"\n"):
                part = keeper.recv(65536)
                if not part:
                    raise KeeperAway(_away("it hung up"))
                data += part
        except PermissionError:
            if message["op"] == "status":
                raise
            raise NotAllowed(f"{paths.KEEPER_SOCKET} is root's: sudo sparkpair {message['op']}") from None
        except OSError as error:
            raise KeeperAway(_away(error.strerror or str(error))) from None
    return wire.decode(data)


def _away(why: str) -> str:
    return (
        f"the keeper does not answer on {paths.KEEPER_SOCKET} ({why}). Is this the head? "
        "systemctl status sparkpair-keeper; journalctl -u sparkpair-keeper"
    )
