"""A deep check that was asked for: it gave a result, or the run says that it did not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyinfra.api.exceptions import DeployError

from facts.values import DeepResult, Unit
from operations import deep

LOADED = Unit("loaded", "inactive", "dead", "static", False, "success")
NODES = [SimpleNamespace(name="spark-a"), SimpleNamespace(name="spark-b")]


class Pair:
    """Two nodes with their last result; `after` is what a look after the check finds."""

    def __init__(self, before: DeepResult | None, after: dict[str, DeepResult | None]) -> None:
        self.result: dict[str, DeepResult | None] = {node.name: before for node in NODES}
        self.after = after
        self.cluster = SimpleNamespace(nodes=NODES, node=lambda name: next(n for n in NODES if n.name == name))
        self.hosts = {
            node.name: SimpleNamespace(name=node.name, run_shell_command=lambda command, _sudo: (True, None))
            for node in NODES
        }

    def seen(self, node: Any) -> Any:
        return SimpleNamespace(units={deep.UNIT: LOADED}, deep=self.result[node.name])


@pytest.fixture(autouse=True)
def _no_pyinfra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deep, "ctx_state", SimpleNamespace(get=lambda: None))
    monkeypatch.setattr(deep, "follow", lambda state, host, unit: False)


def check(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    monkeypatch.setattr(deep, "forget", lambda host: pair.result.update({host.name: pair.after[host.name]}))
    deep.check(cast(Any, pair))


def test_a_check_that_ends_without_a_result_is_no_clean_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: a unit that could not take its turn, and a verdict on the result of the month before."""
    old, new = DeepResult("2026-11-01T03:00:00+0000", {}), DeepResult("2026-12-01T03:00:00+0000", {})
    with pytest.raises(DeployError) as failure:
        check(monkeypatch, Pair(old, {"spark-a": new, "spark-b": old}))
    assert str(failure.value) == (
        "Deep check failed; nothing is known of the bytes.\n  spark-b: it ended without a result\n"
        f"    Fix: see journalctl -u {deep.UNIT} there, then run again"
    )
    with pytest.raises(DeployError, match="spark-a, spark-b: it ended without a result"):
        check(monkeypatch, Pair(None, {"spark-a": None, "spark-b": None}))
    check(monkeypatch, Pair(old, {"spark-a": new, "spark-b": new}))
