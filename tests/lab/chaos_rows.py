"""The rows of `make chaos`: faults, and what must be true after each."""

from __future__ import annotations

import functools
import signal
import time

from lab.settings import HEAD, HOSTS, WORKER
from tests.lab import chaos_frame, chaos_refusals, pair
from tests.lab.chaos import Row

ROLES = ("Node OS", "Fabric", "Docker", "Image", "Weights", "NFS", "Upkeep", "Memory", "Engine", "Keeper")
BIG_FILE_MIB = 320


def use(engine: str, *arguments: str) -> tuple[str, ...]:
    """Deploy arguments that serve one of the lab's images. Failures of one row must not count in the next: the window
    in which they are counted is the shortest allowed."""
    image = pair.images()["engine" if engine == "real" else "contract"]
    return ("--data", f"image={image}", "--data", "restart_window_seconds=60", *arguments)


def converged(engine: str, *arguments: str) -> None:
    """The pair serves this engine, with its restart budget whole; deployed only when it does not."""
    if pair.dry(*use(engine, *arguments)).plan != {} or pair.status()["phase"] != "running":
        run = pair.deploy(*use(engine, *arguments))
        assert run.code == 0, run.text[-1500:]
        pair.wait_running()
    if pair.status()["counters"]["failures_in_window"]:
        before = pair.status()
        pair.on(HEAD, "sparkpair restart")
        pair.wait_healed(before, 120)


def starts() -> int:
    return int(pair.status().get("counters", {}).get("starts", 0))


def one_container_each() -> None:
    """One container on each host, and no engine process outside it."""
    found = {host.name: len(pair.on(host, "docker ps -aq").split()) for host in HOSTS.values()}
    assert found == {"head": 1, "worker": 1}, f"containers: {found}"
    for host in HOSTS.values():
        pair.assert_no_orphan(host)


# --- deploys that are killed


def killed_at_role(role: str) -> str:
    """SIGKILL as the first operation of a role begins, on hosts that were never deployed to."""
    pair.fresh_hosts()
    deploy = pair.start_deploy("-y", *use("contract"))
    assert deploy.until(f"Starting operation: {role} |"), "\n".join(deploy.lines[-20:])
    deploy.kill()
    deploy.wait()
    return recovers()


def killed_in_transfer(what: str) -> str:
    """SIGKILL while the image, or the weights, are on their way."""
    pair.fresh_hosts()
    if what == "weights":
        pair.on(HEAD, f"head -c {BIG_FILE_MIB}M /dev/urandom > /srv/models/tiny/extra.bin")
    marker, unit = {
        "image": ("Image | Pull", "sparkpair-image-pull"),
        "weights": ("Weights | Pull", "sparkpair-stage"),
    }[what]
    engine = "real" if what == "image" else "contract"
    permille = 20 if what == "weights" else 0
    with pair.rail_loss(0, permille), pair.rail_loss(1, permille):
        deploy = pair.start_deploy("-y", *use(engine))
        assert deploy.until(f"Starting operation: {marker}"), "\n".join(deploy.lines[-20:])
        pair.wait_for(
            lambda: pair.on(WORKER, f"systemctl is-active {unit}", check=False).strip() == "active",
            60, f"{unit} to run", 0.1,
        )  # fmt: skip
        time.sleep(0.3)
        deploy.kill()
        deploy.wait()
        if what == "image":
            digest = pair.images()["engine"]
            assert not pair.on(WORKER, f"docker images -q {digest}", check=False).strip(), "the image was there already"
        assert pair.on(WORKER, f"systemctl is-active {unit}", check=False).strip() == "active", (
            "it ended with the deploy"
        )
    seen = recovers(engine)
    if what == "weights":
        sums = [
            pair.on(host, f"sha256sum < {path}/extra.bin")
            for host, path in ((HEAD, "/srv/models/tiny"), (WORKER, "/srv/weights/tiny"))
        ]
        assert sums[0] == sums[1], "the copy differs"
        seen += f"; {BIG_FILE_MIB} MiB copied, sha256 equal"
        pair.on(HEAD, "rm /srv/models/tiny/extra.bin")
        pair.fresh_hosts()
    return seen


def killed_before_hand_over() -> str:
    """SIGKILL as the hand-over operation begins."""
    pair.fresh_hosts()
    deploy = pair.start_deploy("-y", *use("contract"))
    assert deploy.until("Starting operation: Keeper | Start the pair"), "\n".join(deploy.lines[-20:])
    deploy.kill()
    deploy.wait()
    return recovers()


def killed_after_hand_over() -> str:
    """SIGKILL as soon as the keeper has accepted."""
    converged("contract")
    before = starts()
    former = pair.status()["accepted"]
    deploy = pair.start_deploy("-y", *use("contract", "--data", f"max_num_seqs={next_seqs()}"))
    pair.wait_for(lambda: pair.status().get("accepted") != former, 120, "the hand-over", 0.05)
    deploy.kill()
    deploy.wait()
    run = pair.deploy(*use("contract", "--data", f"max_num_seqs={last_seqs()}"))
    assert run.code == 0, run.text[-1500:]
    assert starts() == before + 1, f"engine starts: {starts() - before}"
    return "one engine start; the next run followed it"


def killed_while_waiting() -> str:
    """SIGKILL while the deploy follows a start of the real engine."""
    converged("real")
    before = starts()
    deploy = pair.start_deploy("-y", *use("real", "--data", f"max_num_seqs={next_seqs()}"))
    pair.wait_for(lambda: pair.status()["phase"] == "starting" and starts() > before, 120, "starting", 0.2)
    time.sleep(3)
    deploy.kill()
    deploy.wait()
    arguments = use("real", "--data", f"max_num_seqs={last_seqs()}")
    assert pair.dry(*arguments).plan == {}, "plans something while the keeper starts exactly this"
    run = pair.deploy(*arguments)
    assert run.code == 0, run.text[-1500:]
    assert starts() == before + 1, f"engine starts: {starts() - before}"
    return "planned nothing and followed; one engine start"


def interrupted() -> str:
    """Ctrl-C while waiting: 130, the keeper finishes, the next run follows."""
    converged("contract")
    before = starts()
    slow = ("--data", 'engine_env=["CONTRACT_START_SECONDS=8"]')
    deploy = pair.start_deploy("-y", *use("contract", "--data", f"max_num_seqs={next_seqs()}", *slow))
    pair.wait_for(lambda: pair.status()["phase"] == "starting" and starts() > before, 120, "starting", 0.1)
    deploy.kill(signal.SIGINT)
    run = deploy.wait(60)
    assert run.code == 130, f"exit {run.code}: {run.text[-800:]}"
    assert "Traceback" not in run.text, run.text[-1500:]
    pair.wait_running(60)
    assert starts() == before + 1
    return "exit 130, one message, the keeper finished the start"


def recovers(engine: str = "contract") -> str:
    """The next run converges and the one after plans nothing, with one engine start in all."""
    run = pair.deploy(*use(engine))
    assert run.code == 0, run.text[-2000:]
    assert "Traceback" not in run.text
    assert pair.answers(30), "no answer after the second run"
    plan = pair.dry(*use(engine)).plan
    assert plan == {}, f"still planned: {plan}"
    count = starts()
    assert count == 1, f"engine starts: {count}"
    one_container_each()
    return f"next run converged in {run.seconds:.0f} s, then nothing planned, one engine start"


SEQS = [4]


def next_seqs() -> int:
    SEQS[0] = 4 + (SEQS[0] - 3) % 60
    return SEQS[0]


def last_seqs() -> int:
    return SEQS[0]


# --- faults of a running pair


def service_change() -> str:
    """A watch interval and a newer keeper reach the nodes; the containers do not notice."""
    converged("contract")
    ids = pair.containers()
    code = pair.status()["code"]
    run = pair.deploy(*use("contract", "--data", "watch_interval_seconds=2"))
    assert run.code == 0, run.text[-1500:]
    assert pair.containers() == ids, "a watch interval restarted the pair"
    assert pair.dry(*use("contract", "--data", "watch_interval_seconds=2")).plan == {}
    own = pair.settings.CHECKOUT / "node/journal.py"
    text = own.read_text()
    try:
        own.write_text(text + "\n# a newer release\n")
        run = pair.deploy(*use("contract"))
        assert run.code == 0, run.text[-1500:]
        assert pair.status()["code"] != code, "the keeper is still the old one"
        assert pair.containers() == ids, "a newer keeper restarted the pair"
        assert pair.dry(*use("contract")).plan == {}
    finally:
        own.write_text(text)
    run = pair.deploy(*use("contract"))
    assert run.code == 0 and pair.containers() == ids
    return "watch interval and newer programs deployed, container ids and start times unchanged"


def api_key() -> str:
    """A key is asked for, at a bind that only the head reaches; a key that is gone, or another, ends no pair."""
    converged("contract")
    knobs = ("require_api_key=true", "api_bind=127.0.0.1", "canary_interval_seconds=3")
    asked = use("contract", *(word for knob in knobs for word in ("--data", knob)))
    run = pair.deploy(*asked)
    assert run.code == 0, run.text[-1500:]
    assert not pair.answers(3), "the API answers other machines"
    assert [http_code(""), http_code("wrong"), http_code(KEY)] == ["401", "401", "200"]
    checked = pair.verify(*asked)
    assert checked.code == 0, checked.text[-1500:]
    before = starts(), pair.containers()
    pair.on(HEAD, f"rm {KEY}")
    asked_before = pair.status()["counters"]["canaries"]
    pair.wait_for(lambda: pair.status()["counters"]["canaries"] >= asked_before + 4, 60, "four canaries without a key")
    assert (starts(), pair.containers()) == before, "a key that is gone restarted the pair"
    planned = pair.dry(*asked).plan
    assert planned == {"Engine | Make the API key": [HEAD.hostname], "Keeper | Restart the pair": [HEAD.hostname]}, (
        planned
    )
    run = pair.deploy(*asked)
    assert run.code == 0, run.text[-1500:]
    assert starts() == before[0] + 1
    assert [http_code(""), http_code(KEY)] == ["401", "200"]
    pair.on(HEAD, f"printf 'one\\ntwo\\n' > {KEY}")
    refused = pair.deploy(*asked)
    assert refused.code == 1 and "Preflight refused; no node was changed." in refused.text, refused.text[-1500:]
    assert starts() == before[0] + 1
    pair.on(HEAD, f"rm -r {KEY}")
    run = pair.deploy(*use("contract"))
    assert run.code == 0 and pair.ask() == pair.ANSWER, run.text[-1500:]
    return "401 without, 200 with it, verify through the head; gone while serving: no restart, then one planned; off"


KEY = "/etc/sparkpair/secrets/api-key"


def http_code(key: str) -> str:
    """How the API answers on the head itself to no key (""), the key in a file, or a key of one's own."""
    text = f"$(cat {key})" if key.startswith("/") else key
    header = f'-H "Authorization: Bearer {text}"' if key else ""
    return pair.on(HEAD, f"curl -s -o /dev/null -w '%{{http_code}}' {header} http://127.0.0.1:8000/v1/models").strip()


def no_operation() -> str:
    """A second run plans nothing and touches nothing."""
    converged("real")
    before = pair.containers()
    assert pair.dry(*use("real")).plan == {}
    run = pair.deploy(*use("real"))
    assert run.code == 0 and pair.containers() == before
    return f"nothing planned; a real run of {run.seconds:.1f} s left ids and start times unchanged"


def two_at_once() -> str:
    """The second deploy is refused and told who holds the lock; it is free again when the first has died."""
    converged("contract")
    first = pair.start_deploy("-y", *use("contract", "--data", f"max_num_seqs={next_seqs()}"))
    assert first.until("Starting operation: Node OS |")
    second = pair.deploy(*use("contract"))
    assert second.code == 1, second.text[-800:]
    assert "Traceback" not in second.text
    told = [line for line in second.text.splitlines() if "another deploy is at work, that of " in line]
    assert len(told) == 1 and f"process {first.process.pid}" in told[0], second.text[-800:]
    run = first.wait()
    assert run.code == 0, run.text[-800:]
    run = pair.deploy(*use("contract"))
    assert run.code == 0
    return f"refused, exit 1: {told[0].strip()[:160]}"


def node_unreachable() -> str:
    """The worker is off: refused, nothing changed, the rest goes on."""
    converged("contract")
    pair.lab("off", "worker")
    try:
        run = pair.deploy(*use("contract"))
        assert run.code == 1, run.text[-800:]
        assert "Traceback" not in run.text, run.text[-1500:]
    finally:
        before = pair.status()
        pair.lab("on", "worker")
    pair.wait_healed(before, 120)
    return "exit 1, one message; back on, the pair answers by itself"


ROWS: list[Row] = [
    Row("no-op deploy", "real", no_operation),
    Row("deploy killed while waiting", "real", killed_while_waiting),
    Row("newer keeper, changed watch interval", "contract", service_change),
    Row("API key asked for, gone, garbled, off", "contract", api_key),
    Row("deploy killed after the hand-over", "contract", killed_after_hand_over),
    Row("Ctrl-C while waiting", "contract", interrupted),
    Row("two deploys at once", "contract", two_at_once),
    Row("worker switched off, then deploy", "contract", node_unreachable),
    *[
        Row(f"deploy killed as role {role} begins", "contract", functools.partial(killed_at_role, role))
        for role in ROLES
    ],
    Row("deploy killed while the image is pulled", "contract", functools.partial(killed_in_transfer, "image")),
    Row("deploy killed while the weights are copied", "contract", functools.partial(killed_in_transfer, "weights")),
    Row("deploy killed as the hand-over begins", "contract", killed_before_hand_over),
    *chaos_refusals.ROWS,
    *chaos_frame.ROWS,
]
