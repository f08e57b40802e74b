"""Everything that there is to ask of the pair, in as few commands on its nodes as there are kinds of looking."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyinfra.api.host import Host

from checks import access, doctor, pair
from checks.check import Check, Sight, When, run
from checks.doctor import Effort, Finding, Report
from checks.registry import CHECKS
from checks.verdict import unknown
from facts.values import Unknown, UnknownFact
from operations.api import api_statements
from operations.run import Run
from operations.sight import sight

DOCUMENT = "SPARKPAIR_DOCTOR_JSON"
"""Names the file that the JSON document is written to, instead of lines for a person."""
API = Check("api.answers", "Does the API answer as an application needs it?", lambda _: (), frozenset({When.DOCTOR}))


class Counted:
    """How many commands were run on each node, and how long they took there together."""

    def __init__(self) -> None:
        self.effort: dict[str, Effort] = {}

    @contextmanager
    def on(self, hosts: Mapping[str, Host]) -> Iterator[None]:
        """Count what is run on these hosts meanwhile."""
        for name, host in hosts.items():
            self.effort[name] = Effort(0.0, 0)
            host.run_shell_command = self._counting(name, host.run_shell_command)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for host in hosts.values():
                del host.run_shell_command

    def _counting(self, name: str, command: Any) -> Any:
        def counted(*arguments: Any, **options: Any) -> Any:
            began = time.monotonic()
            try:
                return command(*arguments, **options)
            finally:
                before = self.effort[name]
                self.effort[name] = Effort(before.seconds + time.monotonic() - began, before.commands + 1)

        return counted


def examine(began: Run, counted: Counted) -> Report:
    """Ask it all. Nothing is changed."""
    seen = sight(began)
    checks, findings = doctor.asked(CHECKS, seen)
    findings += run(checks, When.DOCTOR, seen)
    if _serves(seen):
        checks.append(API)
        findings += _api(began, seen)
    return Report(tuple(node.name for node in began.cluster.nodes), tuple(checks), tuple(findings), counted.effort)


def write(report: Report) -> None:
    """The document, where it was asked for."""
    with open(os.environ[DOCUMENT], "w", encoding="utf-8") as stream:
        json.dump(doctor.document(report), stream)


def _serves(seen: Sight) -> bool:
    """Whether there is an API to ask. Why there is none, the keeper's own check says."""
    head = seen.facts[seen.cluster.head.name]
    try:
        status = pair.status_of(head) if access.usable(head) else None
    except UnknownFact:
        return False
    return status is not None and status.phase == "running"


def _api(began: Run, seen: Sight) -> Iterator[Finding]:
    """The key is not fetched for it: that is a command more on the head, and verify.py does it."""
    try:
        for verdict in api_statements(began, with_key=False):
            yield API, verdict
    except OSError as error:
        yield API, unknown(seen.cluster.head.name, "what the API answers", Unknown(str(error)))
