"""Rows about the gate of the rails: real iperf3 over the simulated rails, whose thresholds are lowered to what they
carry, and a real collective in the engine's image. perftest is there and finds no device that it could open."""

from __future__ import annotations

import json

from lab.settings import HEAD, WORKER
from spec import objects
from tests.lab import pair
from tests.lab.chaos import Row
from tests.lab.chaos_rows import use

MEASURE, RESTART = "Fabric | Measure the rails", "Keeper | Restart the pair"
TEST = ("inventory.py", "../fabric_test.py")
COLLECTIVE_SECONDS = 90


def data(threshold: float, *more: str) -> tuple[str, ...]:
    """Measured by TCP, a second each, against this."""
    stated = ("allow_tcp=True", "fabric_gate_seconds=1", f"fabric_gate_tcp_gbps={threshold:g}", *more)
    return tuple(word for one in stated for word in ("--data", one))


def test(engine: str, threshold: float, **environment: str) -> pair.Run:
    return pair.start_deploy(*use(engine, *data(threshold)), *TEST, env=environment or None).wait(600)


def required() -> str:
    """NET-22: rails that carry less than is wanted hold the start up, on nodes where nothing serves; and a restart."""
    knob = "require_fabric_gate=True"
    pair.fresh_hosts()
    refused = pair.deploy(*use("contract", *data(300, knob)))
    assert refused.code == 1 and "the pair was not started" in refused.text, refused.text[-1500:]
    assert "by iperf3, wanted 300 (fabric_gate_tcp_gbps)" in refused.text, refused.text[-1500:]
    assert pair.containers() == {HEAD.name: [], WORKER.name: []}
    passed = pair.deploy(*use("contract", *data(0.1, knob)))
    assert passed.code == 0 and "rail 1, lab-worker" not in passed.text, passed.text[-1500:]  # judged anew, not made
    pair.wait_running()
    assert pair.dry(*use("contract", *data(0.1, knob))).plan == {}, "planned again"
    blocked = pair.dry(*use("contract", *data(300, knob, "max_num_seqs=3")))
    assert blocked.code == 1 and "wanted 300 (fabric_gate_tcp_gbps)" in blocked.text, blocked.text[-1500:]
    planned = pair.dry(*use("contract", *data(0.1, knob, "max_num_seqs=3"))).plan
    assert planned is not None and RESTART in planned and MEASURE not in planned, planned
    return f"not started over slow rails, started over others (deploy {passed.seconds:.0f} s); a restart needs a result"


def beside_a_pair_that_serves() -> str:
    """Refused, and done where it is asked for; the pair answers meanwhile, and the result is on the head."""
    pair.deploy(*use("contract"))
    pair.wait_running()
    refused = test("contract", 0.1)
    assert refused.code == 1 and "the pair serves, and this takes its rails" in refused.text, refused.text[-1500:]
    before = pair.status().get("restarts")
    done = test("contract", 0.1, SPARKPAIR_WHILE_SERVING="1")
    assert done.code == 0 and "The rails have passed" in done.text, done.text[-1500:]
    kept = json.loads(pair.on(HEAD, f"cat {objects.FABRIC_GATE}"))
    tools = {row["tool"] for row in kept["measured"]}
    assert tools == {"iperf3", "ping"} and all(row["trouble"] == "" for row in kept["measured"]), kept
    assert pair.answers() and pair.status().get("restarts") == before
    left = [pair.on(host, "systemctl list-units --all 'sparkpair-gate*' --no-legend") for host in (HEAD, WORKER)]
    assert left == ["", ""], left
    return f"refused, then measured in {done.seconds:.0f} s beside requests; nothing stays"


def a_collective_that_hangs() -> str:
    """NET-05, NET-20, NET-21: pings pass, and the ranks do not meet. Bounded, and said."""
    pair.deploy(*use("real"))
    pair.wait_running()
    pair.on(HEAD, "sparkpair stop")
    pair.wait_for(lambda: not any(pair.containers().values()), 120, "the ranks' end")
    good = test("real", 0.1)
    assert good.code == 0 and "(gloo) ended well" in good.text, good.text[-1500:]
    # On both: which of the two connects to the other is gloo's choice.
    try:
        for host in (HEAD, WORKER):
            ports = "tcp dport != { 22, 8732, 8733 } tcp flags & (syn | ack) == syn drop"
            pair.on(host, "nft add table inet hindrance && nft add chain inet hindrance input "
                    "'{ type filter hook input priority 0; }' && "
                    f"nft add rule inet hindrance input 'iifname {host.rails[0].netdev} {ports}'")  # fmt: skip
        hung = test("real", 0.1)
    finally:
        for host in (HEAD, WORKER):
            pair.on(host, "nft delete table inet hindrance")
    assert hung.code == 1 and f"within {COLLECTIVE_SECONDS} s" in hung.text, hung.text[-1500:]
    assert "docker ps" not in hung.text and pair.on(HEAD, "docker ps -aq --filter name=sparkpair-gate") == ""
    pair.on(HEAD, "sparkpair start")
    pair.wait_running()
    return f"a test with an all-reduce over gloo: {good.seconds:.0f} s; hindered, {hung.seconds:.0f} s, and it says so"


ROWS = [
    Row("rails that must have passed before a start", "contract", required),
    Row("rails measured beside a pair that serves", "contract", beside_a_pair_that_serves),
    Row("a collective that hangs in the serving image", "real", a_collective_that_hangs),
]
