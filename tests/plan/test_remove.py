"""What remove.py plans, carries out and refuses, on two pretended hosts."""

# Messages stand here in one piece.
# ruff: noqa: E501

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from pyinfra.api.operation import add_op
from pyinfra.api.operations import run_ops
from pyinfra.context import ctx_config, ctx_host, ctx_inventory, ctx_state

from checks import remove as checked
from facts import remains as remaining_facts
from facts.values import STATUS
from roles import remove
from spec import objects
from spec.cluster import Node
from spec.objects import OBJECTS, Taking
from tests.plan import cases
from tests.plan.cases import Case
from tests.plan.conftest import Outcome, carried_out, cluster_of
from tests.plan.test_operations import A, B, Bench
from tests.plan.world import World, converged, fresh, unit
from tests.unit import pair

BOTH, HEAD, WORKER = [A, B], [A], [B]
ROWS = {
    "Remove | Stop the pair, which ends serving": HEAD,
    "Remove | Stop and disable the units": BOTH,
    "Remove | Remove the containers": BOTH,
    "Remove | Remove the user sparkpair": WORKER,
    "Remove | Remove programs, settings, keys and state": BOTH,
}
UNITS = {objects.AGENT_UNIT: ["active", "enabled"], objects.DEEP_TIMER: ["active", "enabled"]}
FIND = '{"do": "find", "files"'
HERE = {"there": True, "aside": False, "unsafe": ""}


def remaining(node: Node, **changes: Any) -> dict[str, Any]:
    """What a node of a converged pair still has of ours."""
    units = {**UNITS, **({objects.KEEPER_UNIT: ["active", "enabled"]} if node.is_head else {})}
    found = {
        "paths": [objects.CLI, objects.RANK_FILE, f"{objects.UNIT_DIRECTORY}/{objects.AGENT_UNIT}"],
        "left": {}, "units": units, "discards": dict.fromkeys(checked.discards(node), HERE),
        "there": [objects.NETPLAN_FILE, checked.DOCKER_SETTINGS], "mounted": [],
    }  # fmt: skip
    return {**found, **changes}


def nothing(node: Node) -> dict[str, Any]:
    """What a node has that was never deployed to, or that everything was taken from."""
    missing = {"there": False, "aside": False, "unsafe": ""}
    return {
        "paths": [],
        "left": {},
        "units": {},
        "discards": dict.fromkeys(checked.discards(node), missing),
        "there": [],
        "mounted": [],
    }


def answering(
    said: Callable[[Node], dict[str, Any]], images: tuple[dict[str, Any], ...] = ()
) -> Callable[[str, dict[str, Any]], dict[str, Any]]:
    """The node's data with what its looks find."""
    cluster = cluster_of(Case("x"))
    held = {"images": list(images), "used": [], "launched": [], "store": None}

    def data(name: str, given: dict[str, Any]) -> dict[str, Any]:
        node = cluster.node(name)
        answers = {**given["fake_responses"], "sparkpair-remains": [json.dumps(said(node))]}
        return {**given, "fake_responses": {**answers, "docker.sock": [json.dumps(held)]}}

    return data


def down(world: World) -> None:
    """As after a removal: no rank, no keeper, no user."""
    for node in (world.head, world.worker):
        node["docker"]["containers"] = []
        node["units"] = {name: {**unit("inactive", ""), "LoadState": "not-found"} for name in node["units"]}
    world.head["documents"][STATUS] = None
    world.worker["accounts"][objects.USER] = None


def nobody_answers(world: World) -> None:
    world.worker["docker"].update(answers=False, trouble="Cannot connect to the Docker daemon")


IMAGE = {"id": "sha256:1", "names": [pair.CPU_IMAGE], "size": 1}
REMOVE = Case("x", deploy="remove.py", data=answering(remaining))
ALL = "weights,image,cache,rails,key"
CASES = (
    replace(REMOVE, name="converged"),
    replace(REMOVE, name="fresh", state=fresh, data=answering(nothing)),
    replace(REMOVE, name="removed", change=down, data=answering(nothing)),
    replace(REMOVE, name="half removed", change=down, data=answering(lambda node: remaining(node, units=UNITS))),
    replace(REMOVE, name="all of it", more={"remove_also": ALL}, data=answering(
        lambda node: remaining(node, there=[objects.NETPLAN_FILE, objects.API_KEY_FILE]), (IMAGE,))),
    replace(REMOVE, name="shown", options=("--dry",)),
    replace(REMOVE, name="unproven weights", change=cases.touched_weights, more={"remove_also": "weights"}),
)  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    return carried_out(CASES, tmp_path_factory.mktemp("removals"))


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("converged", ROWS),
        ("fresh", {}),
        ("removed", {}),
        (
            "half removed",
            {"Remove | Stop and disable the units": BOTH, "Remove | Remove programs, settings, keys and state": BOTH},
        ),
        (
            "all of it",
            {
                **dict(list(ROWS.items())[:3]),
                "Remove | Remove the images": BOTH,
                "Remove | Remove weights and drafter": BOTH,
                "Remove | Remove the compiled kernels": BOTH,
                "Remove | Remove the API key": BOTH,
                "Remove | Remove the rails' addresses and MTU": BOTH,
                **dict(list(ROWS.items())[3:]),
            },
        ),
    ],
)
def test_the_plan(outcomes: dict[str, Outcome], name: str, rows: dict[str, list[str]]) -> None:
    found = outcomes[name]
    assert found.code == 0, found.stderr
    assert found.rows == rows
    assert list(found.rows) == list(rows)


def test_what_stays_is_told_with_what_would_take_it(outcomes: dict[str, Outcome]) -> None:
    told = outcomes["shown"].stderr
    for name, home in ((A, "/home/alice"), (B, "/srv/bob")):
        for line in (
            "/srv/models/tiny (remove_also=weights)",
            f"{home}/.cache/sparkpair (remove_also=cache)",
            f"the image {pair.CPU_IMAGE} (remove_also=image)",
            "the rails' addresses and MTU, /etc/netplan/60-sparkpair.yaml (remove_also=rails)",
            "/etc/docker/daemon.json, with the NVIDIA runtime in it",
        ):
            assert told.count(f"{name} keeps {line}\n") == 1, told
    assert "keeps /etc/sparkpair" not in told
    rest = [line for line in outcomes["all of it"].stderr.splitlines() if " keeps " in line]
    assert rest == []


def test_what_forbids_it_changes_nothing(outcomes: dict[str, Outcome]) -> None:
    found = outcomes["unproven weights"]
    assert (found.code, found.stdout) == (1, "")
    assert found.error == "\n".join(
        [
            "Preflight refused; no node was changed.",
            *(
                f"  {name}: /srv/models/tiny is not removed: what is in it was never proven here, or was changed since\n"
                "    Fix: look at it, then: sudo rm -r /srv/models/tiny; and take weights out of remove_also"
                for name in (A, B)
            ),
        ]
    )


def refusals(
    also: str, said: Callable[[Node], dict[str, Any]], change: Callable[[World], None] = cases.nothing
) -> list[str]:
    """What forbids it on the worker."""
    cluster = cluster_of(Case("x", always={"remove_also": also} if also else {}))
    world = converged(cluster)
    change(world)
    looks = {node.name: remaining_facts.read(json.dumps(said(node))) for node in cluster.nodes}
    found = checked.refusals(cluster, world.facts(), looks)
    return [f"{verdict.statement}; {verdict.fix}" for verdict in found if not verdict.holds and verdict.where == B]


def linked(node: Node) -> dict[str, Any]:
    """Every directory that may be asked for lies behind a link."""
    state = {**HERE, "unsafe": "a symbolic link leads from there to /x"}
    return remaining(node, discards=dict.fromkeys(checked.discards(node), state))


def test_what_is_not_safe_is_refused_where_it_is_asked_for() -> None:
    why = "is not removed: a symbolic link leads from there to /x; take {} out of remove_also, or mend that"
    weights, cache = f"/srv/models/tiny {why.format('weights')}", f"/srv/bob/.cache/sparkpair {why.format('cache')}"
    assert refusals("weights,cache", linked) == [weights, cache]
    assert refusals("cache", linked) == [cache]
    assert refusals("", linked) == []
    assert refusals("weights,cache", remaining) == []
    assert refusals("weights", nothing, cases.touched_weights) == [], "there is none"


def test_a_mount_in_what_goes_is_refused_first() -> None:
    held = [[f"{objects.VAR}/logs", f"{objects.VAR}/logs/x"]]
    assert refusals("", lambda node: remaining(node, mounted=held)) == [
        "/var/lib/sparkpair/logs cannot be removed: something is mounted at /var/lib/sparkpair/logs/x; "
        "sudo umount /var/lib/sparkpair/logs/x"
    ]


def test_docker_that_is_silent_may_hold_a_rank() -> None:
    assert refusals("", remaining, nobody_answers) == [
        "whether a rank of the pair is there could not be read: Docker does not answer: Cannot connect to the Docker "
        "daemon; make that answer, then run again"
    ]
    assert refusals("", remaining, lambda world: world.worker["docker"].update(client=None, answers=False)) == []


# Carried out


@pytest.fixture(autouse=True)
def _contexts() -> Any:
    yield
    for context in (ctx_config, ctx_state, ctx_inventory, ctx_host):
        context.reset()


def bench(said: Callable[[Node], dict[str, Any]] = remaining, **always: object) -> Bench:
    """Hosts that find this."""
    here = Bench(converged(cluster_of(Case("x", always=always))))
    for name, host in here.hosts.items():
        connector = cast(Any, host.connector)
        lookup = connector._lookup_response
        answer = json.dumps(said(here.world.cluster.node(name)))

        def found(command: str, lookup: Any = lookup, answer: str = answer, connector: Any = connector) -> Any:
            looked = lookup(command)
            if FIND in command:
                connector.data["fake_responses"] = {"sparkpair-remains": [answer]}
                looked = type(connector)._lookup_response(connector, command)
            return looked

        connector._lookup_response = found
    return here


def done(here: Bench, operation: Any, **arguments: Any) -> dict[str, list[str]]:
    """What was carried out by node, without the looks."""
    commands = here.do(operation, **arguments)
    return {name: [text for text in texts if FIND not in text] for name, texts in commands.items()}


def test_the_pair_is_stopped_by_its_keeper() -> None:
    here = bench()
    timeout = here.world.cluster.knobs.stop_grace_seconds + remove.STOP_MARGIN_SECONDS
    assert done(here, remove.stop_pair) == {
        A: [
            f"if {objects.CLI} stop; then {objects.CLI} follow --timeout {timeout}; fi; "
            "echo 'ranks that are left are ended with their units'"
        ],
        B: [],
    }


def test_a_pair_that_is_stopped_is_not_stopped_again() -> None:
    here = bench()
    cases.status(phase="stopped", desired="stop")(here.world)
    for node in (here.world.head, here.world.worker):
        node["docker"]["containers"][0]["state"] = "exited"
    assert done(here, remove.stop_pair) == {A: [], B: []}


def test_units_are_disabled_and_stopped() -> None:
    names = f"{objects.AGENT_UNIT} {objects.KEEPER_UNIT} {objects.DEEP_TIMER}"
    commands = done(bench(), remove.end_units)
    assert commands[A] == [
        f"systemctl disable --quiet {names}",
        f"systemctl stop {names}; systemctl reset-failed {names} 2>/dev/null; true",
    ]
    assert len(commands[B]) == 2


def test_rails_on_trial_are_taken_back_first() -> None:
    trial = {remove.FABRIC_TIMER: ["active", ""], remove.RAILS_TIMER: ["active", ""]}
    commands = done(bench(lambda node: remaining(node, units=trial)), remove.end_units)
    assert commands[B][:2] == [
        "/usr/bin/python3 -sEB /usr/local/lib/sparkpair/main.py fabric restore",
        "systemctl start sparkpair-remove-rails.service",
    ]


def test_ranks_and_throwaway_containers_go_and_no_others() -> None:
    here = bench()
    there = here.world.worker["docker"]["containers"]
    there += [
        {"id": "e" * 64, "names": ["sparkpair-opinion-1a2b"], "state": "running", "labels": {}},
        {"id": "f" * 64, "names": ["somebodys"], "state": "running", "labels": {}},
    ]
    assert done(here, remove.remove_containers) == {
        A: [f"docker rm --force {'0' * 64}"],
        B: [f"docker rm --force {'1' * 64} {'e' * 64}"],
    }


def test_what_is_left_in_the_engines_cgroup_ends_with_it() -> None:
    here = bench(
        lambda node: remaining(node, units={objects.CGROUP_PARENT: ["active", ""], "sparkpair.slice": ["active", ""]})
    )
    here.world.worker["docker"]["containers"] = []
    assert done(here, remove.remove_containers)[B] == ["systemctl stop sparkpair-engine.slice sparkpair.slice"]


def test_slices_are_left_until_the_containers_are_gone() -> None:
    here = bench(lambda node: remaining(node, units={"sparkpair.slice": ["active", ""]}))
    assert done(here, remove.end_units) == {A: [], B: []}


def test_the_rails_go_under_guard() -> None:
    commands = done(bench(), remove.remove_rails)[B]
    back, away, gone = commands
    assert back.startswith("systemd-run --quiet --collect --unit=sparkpair-remove-rails --on-active=40 ")
    adopted = "for f in /var/lib/sparkpair/rails/adopted/*.yaml; do t=/etc/netplan/${f##*/}; if cmp -s "
    ours_again = adopted + '"$f" "$t"; then cp -p "$f.ours" "$t"; fi; done;'
    theirs = adopted + '"$f.ours" "$t"; then cp -p "$f" "$t"; fi; done;'
    assert back.endswith(
        f"'if [ -e /etc/netplan/60-sparkpair.yaml.sparkpair-removed ]; then {ours_again} mv -f "
        "/etc/netplan/60-sparkpair.yaml.sparkpair-removed /etc/netplan/60-sparkpair.yaml; netplan apply; fi'"
    )
    assert away == (
        "mv -f /etc/netplan/60-sparkpair.yaml /etc/netplan/60-sparkpair.yaml.sparkpair-removed && "
        f"{{ {theirs} ip address del 10.200.0.2/24 dev enp1s0f1np1 2>/dev/null; "
        "ip address del 10.200.1.2/24 dev enP2p1s0f1np1 2>/dev/null; netplan apply; }"
    )
    assert gone == (
        "systemctl stop sparkpair-remove-rails.timer 2>/dev/null; if [ -e /etc/netplan/60-sparkpair.yaml ]; then "
        "echo 'the rails were put back: this node was not reached without them' >&2; exit 1; fi; "
        "rm -rf /etc/netplan/60-sparkpair.yaml.sparkpair-removed /var/lib/sparkpair/rails/adopted"
    )


def test_the_user_goes_with_what_runs_as_it() -> None:
    commands = done(bench(), remove.remove_user)
    assert commands[A] == []
    assert commands[B][0].startswith("pkill -KILL -u sparkpair; for i in $(seq 40); do userdel sparkpair ")


def test_a_user_of_that_name_who_is_somebody_elses_stays() -> None:
    here = bench()
    for node in (here.world.head, here.world.worker):
        node["accounts"][objects.USER] = {"home": "/home/sparkpair", "shell": "/bin/bash", "password": "x"}
    assert done(here, remove.remove_user) == {A: [], B: []}


def test_the_image_goes_although_a_rank_needed_it_when_that_was_planned() -> None:
    """As in a run that shows the plan, and asks."""
    held = {"images": [IMAGE], "used": [IMAGE["id"]], "launched": [], "store": None}
    here = bench(remove_also="image")
    for host in here.hosts.values():
        connector = cast(Any, host.connector)
        lookup = connector._lookup_response

        def found(command: str, lookup: Any = lookup, connector: Any = connector) -> Any:
            looked = lookup(command)
            if "docker.sock" in command and '"launches"' in command:
                connector.data["fake_responses"] = {'"launches"': [json.dumps(held)]}
                looked = type(connector)._lookup_response(connector, command)
            return looked

        connector._lookup_response = found
    add_op(here.state, remove.remove_images, run=here.run)
    held["used"] = []
    for node in (here.world.head, here.world.worker):
        node["docker"]["containers"] = []
    run_ops(here.state)
    assert [text for text in here.commands(B) if text.startswith("docker rmi")] == [
        f"docker rmi {pair.CPU_IMAGE} || echo '{pair.CPU_IMAGE} stays: it is in use'"
    ]


def test_an_export_goes_and_the_server_stays() -> None:
    here = bench()
    here.world.head["files"][objects.EXPORTS_FILE] = {**here.world.head["files"][objects.CLI]}
    assert done(here, remove.remove_export) == {
        A: ["rm -f /etc/exports.d/sparkpair.exports && { ! command -v exportfs >/dev/null || exportfs -ra; }"],
        B: [],
    }


def test_files_go_last_and_systemd_is_told() -> None:
    commands = done(bench(), remove.remove_files)
    assert '"do": "take"' in commands[B][0]
    assert commands[B][1:] == ["systemctl daemon-reload"]


def test_weights_go_where_they_are_and_of_a_removal_that_was_killed() -> None:
    aside = {"there": False, "aside": True, "unsafe": ""}
    here = bench(lambda node: remaining(node, discards=dict.fromkeys(checked.discards(node), aside)))
    commands = done(here, remove.discard, what="weights")
    assert '"do": "discard", "path": "/srv/models/tiny", "protected": ["/home/alice", ' in commands[A][0]
    assert len(commands[A]) == len(commands[B]) == 1
    assert '"engines": null}' in commands[A][0], "they are known by their bytes"
    there = bench(lambda node: remaining(node, discards=dict.fromkeys(checked.discards(node), aside)))
    [command] = done(there, remove.discard, what="cache")[B]
    assert '"path": "/srv/bob/.cache/sparkpair", ' in command
    assert '"engines": ["flashinfer", "triton", "vllm"]}' in command


def test_what_is_made_for_the_engine_is_known() -> None:
    """All else in its directory must be root's."""
    own = cluster_of(Case("x"))
    assert checked.engines(own, own.head) == ["flashinfer", "triton", "vllm"]
    reference = pair.cluster({})
    assert checked.engines(reference, reference.head) == ["jit"]


def test_every_asked_object_has_its_word() -> None:
    words = {item.asked for item in OBJECTS if item.taking is Taking.ASKED}
    assert words == set(ALL.split(","))
