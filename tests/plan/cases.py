"""The cases that are planned: what the nodes are, what is stated, and the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from facts.values import LEASE, MEMORY, STATUS
from spec import objects
from spec.cluster import Cluster
from tests.plan import world
from tests.plan.world import World, converged, fresh, keep
from tests.unit import pair

PLAN = ("--dry", "--json")


def nothing(_: World) -> None:
    """No change."""


def as_it_is(_: str, data: dict[str, Any]) -> dict[str, Any]:
    """The node's data unchanged."""
    return data


@dataclass(frozen=True)
class Case:
    """One command line on one state of the nodes."""

    name: str
    state: Callable[[Cluster], World] = converged
    change: Callable[[World], None] = nothing
    options: tuple[str, ...] = PLAN
    inventory: str = "inventory.py"
    deploy: str = "deploy.py"
    more: dict[str, object] = field(default_factory=dict)
    """Settings that are stated now, but not those of which the state was made."""
    always: dict[str, object] = field(default_factory=dict)
    """Settings of which the state was made, and that are still stated."""
    data: Callable[[str, dict[str, Any]], dict[str, Any]] = as_it_is
    banner: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    """More files beside the inventory."""
    place: str = ""
    """A directory of the checkout to run in, with what is there; else one that is made for the case."""

    @property
    def settled(self) -> dict[str, object]:
        return {**pair.UPSTREAM, **self.always}

    @property
    def stated(self) -> dict[str, object]:
        return {**self.settled, **self.more}


def status(**changes: object) -> Callable[[World], None]:
    """The keeper says something else."""
    return lambda world: world.head["documents"][STATUS]["json"].update(changes)


def resting_without_ranks(world: World) -> None:
    status(phase="resting", reason="6 failures")(world)
    for document in (world.head, world.worker):
        document["docker"]["containers"] = []
        document["ports"] = dict.fromkeys(document["ports"])


def old_agent(world: World) -> None:
    world.worker["documents"][LEASE]["json"]["code"] = "0" * 64


def both(*changes: Callable[[World], None]) -> Callable[[World], None]:
    def change(world: World) -> None:
        for one in changes:
            one(world)

    return change


def lost_rail(world: World) -> None:
    world.worker["links"]["enp1s0f1np1"].update(mtu=1500)


def on_trial(world: World) -> None:
    """Put into force, but never confirmed: the former file stands."""
    world.worker["files"][objects.NETPLAN_FILE] = world_file("# before\n", "600")


def world_file(text: str, mode: str) -> dict[str, Any]:
    return world.file(text, mode)


def registered_only(world: World) -> None:
    world.worker["docker"].update(registered=True, runtimes=["runc"])


def no_copy_yet(world: World) -> None:
    world.worker["content"]["weights"].update(present=False, files=[], identity=None)


def half_a_copy(world: World) -> None:
    files = [["config.json", 700, None], ["model-00001-of-00001.safetensors", 1000, None]]
    world.worker["content"]["weights"].update(present=True, files=files, identity=None, copying=IDENTITY)


IDENTITY = world.IDENTITY
OTHER_IMAGE = "192.168.77.1:5000/vllm-cpu@sha256:" + "6" * 64


def touched_weights(world: World) -> None:
    for node in (world.head, world.worker):
        weights = node["content"]["weights"]
        weights.update(identity=None, files=[[path, size, None] for path, size, _ in weights["files"]])


def timer_off(world: World) -> None:
    world.worker["units"][objects.DEEP_TIMER] = unit("inactive", "disabled")


LIMIT: dict[str, object] = {"memory_used_max_gib": 6}


def little_memory(here: World) -> None:
    """The engine holds 99 GiB of the 114 that are in use."""
    here.worker["memory"]["MemAvailable"] = 14 * world.GIB
    large = {"pid": 4711, "command": "ollama", "container": None, "bytes": 12 * world.GIB}
    here.worker["holders"] = world.holders(90 * world.GIB, largest=[large])


def old_recorder(world: World) -> None:
    world.worker["documents"][MEMORY]["json"]["code"] = "0" * 64


def recorder_died(world: World) -> None:
    """Its last word is still there."""
    world.worker["units"][objects.RECORDER_UNIT] = unit("failed", "disabled")


def unread_protection(world: World) -> None:
    world.worker["units"]["system.slice"]["NeedDaemonReload"] = "yes"


def keeper_died(world: World) -> None:
    world.head["units"][objects.KEEPER_UNIT] = unit("failed")


def unit(active: str, enabled: str = "enabled") -> dict[str, Any]:
    return world.unit(active, enabled)


def other_image_asked(world: World) -> None:
    for node in (world.head, world.worker):
        node["docker"]["images"][OTHER_IMAGE] = None


def the_worker_reaches_it(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """What each node says of its way to the image's registry."""
    said = json.dumps({"https://192.168.77.1:5000": "" if name.endswith("b") else "No route to host"})
    return {**data, "fake_responses": {**data["fake_responses"], "create_connection": [said]}}


def nobody_reaches_it(_: str, data: dict[str, Any]) -> dict[str, Any]:
    said = json.dumps({"https://192.168.77.1:5000": "No route to host"})
    return {**data, "fake_responses": {**data["fake_responses"], "create_connection": [said]}}


def registry_left(world: World) -> None:
    """A deploy was killed while the worker pulled through the head, and the units have ended their work."""
    for node in (world.head, world.worker):
        node["units"][objects.REGISTRY_UNIT] = unit("active")
    world.worker["docker"]["images"][pair.CPU_IMAGE]["tags"] = []


WITH_KEY = {"require_api_key": True}


def no_key(world: World) -> None:
    world.head["secrets"] = {objects.API_KEY_FILE: {"present": False, "identity": None, "trouble": ""}}
    world.head["files"][objects.API_KEY_FILE] = None


def own_key(world: World) -> None:
    world.head["secrets"] = {}
    keep(world.head, objects.API_KEY_FILE)


def other_key(world: World) -> None:
    keep(world.head, objects.API_KEY_FILE, "6" * 64)


def readable_key(world: World) -> None:
    world.head["files"][objects.API_KEY_FILE]["mode"] = "644"


def useless_key(world: World) -> None:
    world.head["secrets"] = {
        objects.API_KEY_FILE: {"present": True, "identity": None, "trouble": "has more than one line"}
    }


def without_sudo(world: World) -> None:
    world.nodes["@fake/spark-b"] = {"sudo": False, "user": "bob"}


def garbled(world: World) -> None:
    world.nodes["@fake/spark-b"] = "bash: warning: here is no probe"  # type: ignore[assignment]


def cut_short(world: World) -> None:
    world.nodes["@fake/spark-b"] = '{"format":1,"sudo":true,"us'  # type: ignore[assignment]


def no_docker_and_a_taken_port(world: World) -> None:
    world.worker["docker"].update(client=None)
    world.head["ports"]["8000"] = {"pid": 812, "command": "python3", "container": None}


def wrong_rail(name: str, data: dict[str, Any]) -> dict[str, Any]:
    if name.endswith("b"):
        data["rails"][0]["address"] = "10.210.0.2/24"
    return data


def mistyped_data(name: str, data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "managment_address": "192.168.1.9"} if name.endswith("b") else data


def with_the_installed_launch(_: str, data: dict[str, Any]) -> dict[str, Any]:
    """What the file holds whose difference is shown."""
    data["fake_responses"][f"cat {objects.RANK_FILE}"] = [' "env": [', '  ["HF_TOKEN", "hf_secret"]']
    return data


def says(*, ends: bool = True, **answers: list[str]) -> Callable[[str, dict[str, Any]], dict[str, Any]]:
    """What the command on the head says to each word, and its exit code as the last line; whether `follow` ends as it
    was wanted to."""

    def data(name: str, node: dict[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = {
            f"sparkpair {word.replace('_', '-')}": [*lines[:-1], f"sparkpair-exit {lines[-1]}"]
            for word, lines in answers.items()
        }
        told["sparkpair follow"] = {"success": ends}
        return {**node, "fake_responses": told if name.endswith("a") else {}}

    return data


def no_root(name: str, node: dict[str, Any]) -> dict[str, Any]:
    """As where the login user has no rule for sudo."""
    del name
    return {**node, "fake_responses": {"sparkpair-no-root": ["Welcome to DGX OS", "sparkpair-no-root alice"]}}


RUNS, RESTS = ["running since T", "0"], ["resting since T: 6 failures", "1"]
STAYS = ["stopped since T", "3"]
BUNDLE = {"fake_responses": {"support-bundle": ["YSBi", "dW5kbGU="]}}

CASES = (
    # What a deploy would do
    Case("fresh", fresh),
    Case("converged"),
    Case("converged, after a login banner", banner=("Welcome to DGX OS", "{not json")),
    Case("a knob", options=(*PLAN, "--data", "max_num_seqs=8")),
    Case("a knob, shown", options=("--dry", "--diff", "--data", "max_num_seqs=8")),
    Case("a secret, shown", options=("--dry", "--diff"), more={"engine_env": ["HF_TOKEN=hf_secret", 'A_B=say "it"']}),
    Case(
        "a secret that is accepted, with all that pyinfra tells",
        options=("--dry", "--diff", "-vvv"),
        always={"engine_env": ["HF_TOKEN=hf_secret"]},
        more={"max_num_seqs": 8},
        data=with_the_installed_launch,
    ),
    Case("a watch interval", more={"watch_interval_seconds": 2}),
    Case("a smoke prompt", more={"smoke_prompt": "Hello?"}),
    Case("the rails' MTU", more={"rail_mtu": 4000}),
    Case("an image", change=other_image_asked, more={"image": OTHER_IMAGE}),
    Case("the timer was switched off", change=timer_off),
    Case(
        "an image that the worker reaches",
        change=other_image_asked,
        more={"image": OTHER_IMAGE},
        data=the_worker_reaches_it,
    ),
    Case("the image's registry was left", change=registry_left),
    Case("older programs run", change=both(status(code="0" * 64), old_agent)),
    Case("the keeper loaded other settings", change=status(service="0" * 64)),
    Case("the keeper died", change=keeper_died),
    Case("little memory will be left, and nothing changes", change=little_memory, always=LIMIT),
    Case("little memory will be left", change=little_memory, always=LIMIT, more={"max_num_seqs": 8}),
    Case("an older recorder runs", change=old_recorder),
    Case("the recorder died", change=recorder_died),
    Case("systemd has not read the login's protection", change=unread_protection),
    Case("the login is to be protected no longer", more={"protect_login": False}),
    Case("starting", change=status(phase="starting")),
    Case("resting", change=status(phase="resting", reason="6 failures")),
    Case("resting, and the rails must have passed", change=resting_without_ranks, more={"require_fabric_gate": True}),
    Case("serving, and the rails must have passed", more={"require_fabric_gate": True}),
    Case("stopped on purpose", change=status(phase="stopped", desired="stop")),
    Case("stopped on purpose, and a knob", change=status(phase="stopped", desired="stop"), more={"max_num_seqs": 8}),
    Case("another generation is accepted", change=status(accepted="0" * 64)),
    Case("a rail lost its MTU", change=lost_rail),
    Case("the rails were never confirmed", change=on_trial),
    Case("Docker was not restarted", change=registered_only),
    Case("the worker lacks the weights", change=no_copy_yet),
    Case("a copy was interrupted", change=half_a_copy),
    Case("the weights were touched", change=touched_weights),
    Case("a key is asked for", change=no_key, more=WITH_KEY),
    Case("a key is asked for, and the operator wrote one", change=own_key, more=WITH_KEY),
    Case("converged, with a key", always=WITH_KEY),
    Case("another key", change=other_key, always=WITH_KEY),
    Case("the key is gone", change=no_key, always=WITH_KEY),
    Case("others may read the key", change=readable_key, always=WITH_KEY),
    Case("no key is asked for any more", always=WITH_KEY, more={"require_api_key": False}),
    Case("fresh, with a key", fresh, always=WITH_KEY),
    Case("another bind", more={"api_bind": "127.0.0.1"}),
    # Looked only
    Case("nobody to confirm, and nothing to", options=(), deploy="tests/plan/looks/verify.py"),
    # Refused
    Case("no sudo", fresh, without_sudo),
    Case("garbled", fresh, garbled),
    Case("cut short", fresh, cut_short),
    Case("two refusals", fresh, no_docker_and_a_taken_port),
    Case("an image that nobody reaches", change=other_image_asked, more={"image": OTHER_IMAGE}, data=nobody_reaches_it),
    Case(
        "a restart over rails that were never measured",
        more={"require_fabric_gate": True, "max_num_seqs": 8},
    ),
    Case("a key that cannot be used", change=useless_key, always=WITH_KEY),
    Case("a key in engine_env", more={"engine_env": ["VLLM_API_KEY=a-key-of-16-chars"]}),
    Case("one node only", options=(*PLAN, "--limit", "@fake/spark-b")),
    Case("all but one node", options=(*PLAN, "--exclude", "head")),
    Case("a limit that matches nothing", options=(*PLAN, "--limit", "spark-x")),
    Case("an exclude that leaves nothing", options=(*PLAN, "--exclude", "*")),
    Case("a mistyped inventory", inventory="inventroy.py"),
    Case("a mistyped deploy file", deploy="depoly.py"),
    Case("nobody to confirm", options=()),
    Case("a mistyped inventory, from lab/", inventory="inventroy.py", place="lab"),
    Case("a limit that matches nothing, from lab/", options=(*PLAN, "--limit", "spark-a"), place="lab"),
    Case("nobody to confirm, from lab/", options=(), place="lab"),
    Case("unknown knob", options=(*PLAN, "--data", "max_len=8")),
    Case("impossible value", more={"max_num_seqs": 0}),
    Case("wrong type", more={"api_port": "http"}),
    Case("unknown data of a node", data=mistyped_data),
    Case("rails in different networks", data=wrong_rail),
)

LEFT_OUT = ("--limit", "@fake/spark-b")
SMALL_VERBS = (
    Case("status", deploy="ops/status.py", options=(), data=says(status=[*RUNS[:-1], "generation abc", "0"])),
    Case("status, only planned", deploy="ops/status.py", options=("--dry",), data=says(status=RUNS)),
    Case("status of a pair that rests", deploy="ops/status.py", options=(), data=says(status=RESTS)),
    Case("status of a stopped pair", deploy="ops/status.py", options=(), data=says(status=STAYS)),
    Case("status where nothing is installed", deploy="ops/status.py", options=(), data=says(status=["no file", "127"])),
    Case("status of a head that says nothing", deploy="ops/status.py", options=(), data=says()),
    Case("logs", deploy="ops/logs.py", options=(), data=says(logs=["rank 0: a", "rank 1: b", "0"])),
    Case("history", deploy="ops/history.py", options=(), data=says(history=["T  start abc", "0"])),
    Case("version", deploy="ops/version.py", options=(), data=says(version=["Sparkpair 0.1.0", "0"])),
    Case("check-update", deploy="ops/check_update.py", options=(), data=says(check_update=["nothing newer", "0"])),
    Case("a support bundle", deploy="ops/support_bundle.py", options=(), data=lambda _, data: {**data, **BUNDLE}),
    Case("no support bundle", deploy="ops/support_bundle.py", options=(), data=says()),
    Case("stop", deploy="ops/stop.py", data=says(status=RUNS)),
    Case("stop, done", deploy="ops/stop.py", options=("-y",), data=says(status=RUNS)),
    Case("stop, and it goes on", deploy="ops/stop.py", options=("-y",), data=says(status=RUNS, ends=False)),
    Case("stop what is stopped", deploy="ops/stop.py", data=says(status=STAYS)),
    Case("start", deploy="ops/start.py", data=says(status=STAYS)),
    Case("start what runs", deploy="ops/start.py", data=says(status=RUNS)),
    Case("start what was never deployed", deploy="ops/start.py", data=says(status=["empty since T", "1"])),
    Case("restart", deploy="ops/restart.py", data=says(status=RUNS)),
    Case("restart, and it rests", deploy="ops/restart.py", options=("-y",), data=says(status=RUNS, ends=False)),
    Case("warm-up", deploy="ops/warm_up.py", data=says(status=RUNS)),
    Case("restart, and nobody to confirm", deploy="ops/restart.py", options=(), data=says(status=RUNS)),
    Case("status, and sudo wants a password", deploy="ops/status.py", options=(), data=no_root),
    Case("stop, and sudo wants a password", deploy="ops/stop.py", options=("-y",), data=no_root),
    Case("a support bundle, and sudo wants a password", deploy="ops/support_bundle.py", options=(), data=no_root),
    Case("status without the head", deploy="ops/status.py", options=LEFT_OUT, data=says(status=RUNS)),
    Case("stop without the head", deploy="ops/stop.py", options=("-y", *LEFT_OUT), data=says(status=RUNS)),
    Case("a small verb, mistyped inventory", deploy="ops/status.py", options=(), inventory="inventroy.py"),
    Case("a small verb, mistyped inventory, from lab/", deploy="ops/stop.py", inventory="inventroy.py", place="lab"),
    Case("a small verb, unknown knob", deploy="ops/stop.py", options=(*PLAN, "--data", "max_len=8")),
)
