"""Operations as pyinfra carries them out, on the connector that only pretends: which commands, how many looks."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pyinfra.api.config import Config
from pyinfra.api.connect import connect_all
from pyinfra.api.exceptions import ConnectError, PyinfraError
from pyinfra.api.host import Host
from pyinfra.api.inventory import Inventory
from pyinfra.api.operation import add_op
from pyinfra.api.operations import run_ops
from pyinfra.api.state import State
from pyinfra.connectors.util import CommandOutput
from pyinfra.context import ctx_config, ctx_host, ctx_inventory, ctx_state

from checks import content
from checks.pair import Todo
from facts.node import forget, node_facts, probes
from facts.values import STATUS
from node.errand import Errand, Peer, Set, Way
from operations import login, staging, units
from operations.files import install_directories, install_file
from operations.run import Run, digest, query
from roles import docker, fabric, image, keeper, node_os, weights
from spec import objects
from spec.cluster import Cluster
from spec.render import netplan_text
from tests.plan.cases import Case
from tests.plan.conftest import cluster_of
from tests.plan.world import FILES, IDENTITY, World, converged, fresh, unit

A, B = "@fake/spark-a", "@fake/spark-b"


class Bench:
    """Two pretended hosts whose probes answer from a world that a test may change on the way."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.units = ["inactive"]
        self.given: dict[str, list[str]] = {}
        self.reached: dict[str, str] = {}
        """What keeps a node from the image's registry."""
        self.before = ["ActiveState=inactive", "Description=sparkpair-x.service"]
        data: dict[str, Any] = {"fake_delay": 0, "fake_delay_jitter": 0, "_sudo": True}
        hosts = [(name, dict(data)) for name in world.nodes]
        self.state = State(Inventory((hosts, {})), Config())
        ctx_config.set(self.state.config)
        ctx_state.set(self.state)
        ctx_inventory.set(self.state.inventory)
        connect_all(self.state)
        self.hosts: dict[str, Host] = {host.name: host for host in self.state.inventory}
        for name, host in self.hosts.items():
            self._answer(name, host)
        self.run = Run(cluster=world.cluster, hosts=self.hosts)

    def _answer(self, name: str, host: Host) -> None:
        """The probe's answer is made when it is asked for."""
        connector = cast(Any, host.connector)
        lookup = connector._lookup_response

        def answer(command: str) -> Any:
            connector.data["fake_responses"] = {
                "sparkpair-probe": [json.dumps(self.world.nodes[name])],
                "systemctl show --property=ActiveState --property=Description": self.before,
                "systemctl show --property=ActiveState --value": self.units,
            }
            if name in self.reached:
                registry = f"https://{self.world.cluster.image.partition('/')[0]}"
                connector.data["fake_responses"]["create_connection"] = [json.dumps({registry: self.reached[name]})]
            return lookup(command)

        connector._lookup_response = answer
        carry_out = connector.run_shell_command

        def heard(command: Any, *words: Any, **arguments: Any) -> Any:
            if arguments.get("_stdin"):
                self.given.setdefault(name, []).append(arguments["_stdin"])
            return carry_out(command, *words, **arguments)

        connector.run_shell_command = heard

    def stdins(self, name: str) -> list[str]:
        """What was handed to commands on a node as their input."""
        return self.given.get(name, [])

    def commands(self, name: str) -> list[str]:
        """What was carried out on a node, without the looks."""
        done = cast(Any, self.hosts[name].connector).executed_commands
        return [text for text in done if "sparkpair-probe" not in text and "create_connection" not in text]

    def do(self, operation: Any, **arguments: Any) -> dict[str, list[str]]:
        """Plan and carry out one operation; what was done, by node."""
        before = {name: len(self.commands(name)) for name in self.hosts}
        add_op(self.state, operation, run=self.run, **arguments)
        run_ops(self.state)
        return {name: self.commands(name)[before[name] :] for name in self.hosts}


@pytest.fixture(autouse=True)
def _contexts() -> Iterator[None]:
    yield
    for context in (ctx_config, ctx_state, ctx_inventory, ctx_host):
        context.reset()


def bench(state: Callable[[Cluster], World] = converged) -> Bench:
    return Bench(state(cluster_of(Case("x"))))


def test_one_look_per_node_and_phase() -> None:
    here = bench()
    for _ in range(3):
        add_op(here.state, node_os.install_user, run=here.run)
        add_op(here.state, docker.restart_docker, run=here.run)
    assert [probes(host) for host in here.hosts.values()] == [1, 1]
    run_ops(here.state)
    assert [probes(host) for host in here.hosts.values()] == [2, 2]
    assert here.commands(A) == here.commands(B) == []


def test_a_look_after_each_change_and_only_there() -> None:
    here = bench()
    here.world.worker["docker"].update(registered=True, runtimes=["runc"])
    add_op(here.state, docker.restart_docker, run=here.run)
    add_op(here.state, docker.register_runtime, run=here.run)
    run_ops(here.state)
    restart, proof = here.commands(B)
    assert restart == "systemctl restart docker.service"
    assert proof.startswith("docker info --format '{{json .Runtimes}}' | grep -qF '\"nvidia\"' || { echo 'Docker was ")
    assert [probes(host) for host in here.hosts.values()] == [2, 3]


def test_a_look_that_a_change_overtook_is_not_kept() -> None:
    """A node that is changed while another host looks at it must be looked at again."""
    here = bench()
    host = here.hosts[A]
    run = here.run
    real = cast(Any, host.connector).run_shell_command

    def overtaken(*arguments: Any, **named: Any) -> Any:
        answer = real(*arguments, **named)
        forget(host)
        return answer

    cast(Any, host.connector).run_shell_command = overtaken
    run.seen(run.cluster.head)
    cast(Any, host.connector).run_shell_command = real
    before = probes(host)
    run.seen(run.cluster.head)
    run.seen(run.cluster.head)
    assert probes(host) == before + 1


def test_a_file_is_replaced_at_once_or_not_at_all() -> None:
    here = bench()
    text = "it's new\n"
    done = here.do(install_file, path=objects.CLI, text=text, mode="755")
    new = f"{objects.CLI}.sparkpair-new"
    assert (
        done[A]
        == done[B]
        == [
            f"umask 077 && cat > {new} && chown root:root {new} && chmod 755 {new} && sync {new} "
            f"&& mv -fT {new} {objects.CLI}"
        ]
    )


def test_a_mode_alone_is_set_alone() -> None:
    here = bench()
    here.world.worker["files"][objects.CLI]["mode"] = "700"
    done = here.do(install_file, path=objects.CLI, text=node_os.COMMAND, mode="755")
    assert done == {A: [], B: [f"chown root:root {objects.CLI} && chmod 755 {objects.CLI}"]}


def test_directories_are_made_parents_first() -> None:
    here = bench(fresh)
    wanted = {objects.ETC: ("755", "root", "root"), f"{objects.ETC}/wanted": ("755", "root", "root")}
    done = here.do(install_directories, wanted=wanted)
    assert done[A] == [
        f"install -d -m 755 -o root -g root {objects.ETC}",
        f"install -d -m 755 -o root -g root {objects.ETC}/wanted",
    ]


def test_programs_of_an_earlier_release_go() -> None:
    here = bench()
    here.world.head["trees"][objects.LIB]["node/older.py"] = "0" * 64
    done = here.do(node_os.install_programs)
    assert done[B] == []
    assert len(done[A]) == 1
    assert done[A][0].endswith(f" {objects.LIB} {objects.LIB_NEW}")


def test_what_a_switch_that_was_cut_short_left_goes() -> None:
    here = bench()
    here.world.head["files"][objects.LIB_NEW] = {**here.world.head["files"][objects.LIB]}
    assert here.do(node_os.install_programs) == {A: [f"rm -rf {objects.LIB_NEW}"], B: []}


def switch(place: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What a node does when it gets programs."""
    argv = [sys.executable, "-ISB", "-c", node_os.SWITCH, str(place), f"{place}.sparkpair-new"]
    return subprocess.run(argv, input=json.dumps(files) + "\n", capture_output=True, text=True, check=False)


def found(place: Path) -> dict[str, str]:
    return {str(path.relative_to(place)): path.read_text() for path in place.rglob("*") if path.is_file()}


def test_all_programs_are_exchanged_at_once(tmp_path: Path) -> None:
    place = tmp_path / "lib"
    (place / "node").mkdir(parents=True)
    (place / "node/older.py").write_text("older")
    half = tmp_path / "lib.sparkpair-new/node"
    half.mkdir(parents=True)
    (half / "half.py").write_text("of a deploy that was killed")
    with (place / "node/older.py").open() as running:
        done = switch(place, {"main.py": "m = 'ä'\n", "node/a.py": "a\r\n"})
        assert running.read() == "older"
    assert (done.returncode, done.stderr) == (0, "")
    assert (place / "node/a.py").read_bytes() == b"a\r\n"
    assert found(place) == {"main.py": "m = 'ä'\n", "node/a.py": "a\n"}
    assert [(place / name).stat().st_mode & 0o777 for name in ("", "node", "main.py")] == [0o755, 0o755, 0o644]
    assert [path.name for path in tmp_path.iterdir()] == ["lib"]


def test_what_cannot_be_exchanged_stays(tmp_path: Path) -> None:
    done = switch(tmp_path / "lib", {"main.py": ""})
    assert done.returncode == 1
    assert done.stderr == f"{tmp_path}/lib could not be exchanged with {tmp_path}/lib.sparkpair-new: {os.strerror(2)}\n"


def test_the_user_is_made_on_the_worker_only() -> None:
    here = bench(fresh)
    done = here.do(node_os.install_user)
    assert done[A] == []
    assert done[B] == [
        f"useradd --system --user-group --home-dir {objects.PEER_HOME} --no-create-home --shell /bin/sh "
        f"--password '*' {objects.USER}"
    ]


def test_a_locked_user_is_unlocked_for_keys() -> None:
    here = bench()
    here.world.worker["accounts"][objects.USER]["password"] = "!"
    assert here.do(node_os.install_user)[B] == [
        f"usermod --home {objects.PEER_HOME} --shell /bin/sh --password '*' {objects.USER}"
    ]


def test_the_rails_are_set_up_proven_and_confirmed() -> None:
    here = bench()
    here.world.worker["links"]["enp1s0f1np1"]["mtu"] = 1500
    done = here.do(fabric.apply_netplan, text="other\n")
    program = "/usr/bin/python3 -sEB /usr/local/lib/sparkpair/main.py fabric"
    assert done[B] == [
        f"{program} apply --management 192.168.1.11 --rail enp1s0f1np1=10.200.0.2/24=9000 "
        "--rail enP2p1s0f1np1=10.200.1.2/24=9000",
        f"{program} confirm",
    ]


FOREIGN = "network:\n  ethernets:\n    enp1s0f1np1: {mtu: 9000}\n    enP7s7: {dhcp4: true}\n"


def host_side(**parts: Any) -> dict[str, Any]:
    """What the probe tells of the node's own tools, raw."""
    netdevs = {name: {"mac": "", "driver": "mlx5_core"} for name in ("enp1s0f1np1", "enP2p1s0f1np1")}
    return {"texts": {}, "hcas": {}, "netdevs": netdevs, "network": {}, "tools": {}, **parts}


@pytest.mark.report("NET-15")
def test_a_file_of_others_goes_with_the_rails_that_are_taken_over() -> None:
    here = Bench(converged(cluster_of(Case("x", always={"adopt_rails": True}))))
    text = {"text": FOREIGN, "hidden": False, "whole": True}
    here.world.worker["host"] = host_side(network={"/etc/netplan/40-cx7.yaml": text})
    done = here.do(fabric.apply_netplan, text=netplan_text(here.world.cluster, here.world.cluster.workers[0]))
    assert [command.split()[3:5] for command in done[B]] == [["fabric", "apply"], ["fabric", "confirm"]]
    assert done[B][0].endswith(" --adopted")
    edits = json.loads(here.stdins(B)[0])
    assert edits["40-cx7.yaml"]["sha256"] == digest(FOREIGN)
    assert "#     enp1s0f1np1: {mtu: 9000}" in edits["40-cx7.yaml"]["text"]


UFW = {"/etc/ufw/ufw.conf": "ENABLED=yes\n", "/etc/default/ufw": 'DEFAULT_INPUT_POLICY="DROP"\n'}
RULE_0 = "allow in on enp1s0f1np1 from 10.200.0.1 to 10.200.0.2"
RULE_1 = "allow in on enP2p1s0f1np1 from 10.200.1.1 to 10.200.1.2"
TUPLES = "".join(
    f"### tuple ### allow any any {own} any {peer} in_{netdev}\n"
    for netdev, peer, own in (
        ("enp1s0f1np1", "10.200.0.1", "10.200.0.2"),
        ("enP2p1s0f1np1", "10.200.1.1", "10.200.1.2"),
    )
)


def walled(rules: str, kept: str | None) -> Bench:
    """A worker with ufw, its rules, and what we remember of ours."""
    here = bench()
    here.world.worker["host"] = host_side(texts={**UFW, "/etc/ufw/user.rules": rules})
    here.world.worker["texts"][objects.FIREWALL_RULES] = kept
    return here


@pytest.mark.report("NET-21")
def test_the_firewall_is_opened_for_the_peers_and_its_end_written_down() -> None:
    here = walled("", None)
    done = here.do(fabric.open_firewall)
    assert done[A] == []
    wrote, *opened = done[B]
    assert f"cat > {objects.FIREWALL_RULES}.sparkpair-new" in wrote.replace("  ", " ")
    assert here.stdins(B) == [f"ufw delete {RULE_0}\nufw delete {RULE_1}\n"]
    assert opened == [f"ufw prepend {rule} comment 'Sparkpair: a rail'" for rule in (RULE_0, RULE_1)]


def test_an_open_firewall_is_left_alone() -> None:
    assert walled(TUPLES, f"ufw delete {RULE_0}\nufw delete {RULE_1}\n").do(fabric.open_firewall)[B] == []


def test_a_rule_for_an_address_of_before_is_deleted() -> None:
    old = "ufw delete allow in on enp1s0f1np1 from 10.7.0.1 to 10.7.0.2"
    here = walled(TUPLES, f"{old}\nufw delete {RULE_0}\n")
    assert here.do(fabric.open_firewall)[B][0] == f"{old} || true"
    assert here.stdins(B) == [f"ufw delete {RULE_0}\n"]


class Door:
    """A connector that came in once, and whose next login the test decides."""

    shut = ""
    made: list[Door]

    def __init__(self, state: object, host: object) -> None:
        self.client: Any = None
        self.closed = False
        self.made.append(self)

    def connect(self) -> None:
        self.client = self
        if self.shut:
            raise ConnectError(self.shut)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("shut", ["", "Could not connect (timed out)"])
def test_a_node_is_proven_by_a_new_login(
    shut: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connector itself makes it: whatever lies between, a jump host too, is passed as at first."""
    here = bench()
    host = here.hosts[A]
    door = type("Door", (Door,), {"shut": "", "made": []})
    first = cast(Any, door)(here.state, host)
    first.connect()
    host.connector = first
    cast(Any, door).shut = shut
    monkeypatch.setattr(login, "TRY_SECONDS", 0)
    assert fabric.reach(here.state, host) is not bool(shut)
    assert [one.closed for one in cast(Any, door).made] == [False, True]
    if shut:
        assert (
            "no new login gets to this node any more (Could not connect (timed out)); it takes the rails back by itself"
            in caplog.text
        )


def test_a_pull_is_a_unit_that_is_followed() -> None:
    here = bench(fresh)
    start = started(here.do(image.pull_image)[A])
    assert start.startswith("if systemctl is-active --quiet sparkpair-image-pull.service && ")
    assert "systemd-run --quiet --unit=sparkpair-image-pull " in start
    name = "sparkpair/engine:" + here.world.cluster.image.partition("@sha256:")[2][:12]
    login = "--docker-config /home/alice/.docker/config.json"
    assert f"{objects.PROGRAM} pull {here.world.cluster.image} --tag {name} {login}; fi" in start


def online_alone(name: str) -> Bench:
    """Nobody has the image, and one node reaches its registry."""
    here = bench(fresh)
    here.reached = {A: "No route to host", B: "No route to host", name: ""}
    return here


def test_the_node_that_is_online_serves_the_image_to_the_other() -> None:
    """Each of them runs a registry of its own; the worker's Docker asks it by the same digest."""
    here = online_alone(A)
    digest = here.world.cluster.image.partition("@")[2]
    done = here.do(image.start_registry)
    serving, relaying = started(done[A]), started(done[B])
    common = (
        f"{objects.PROGRAM} registry --image {here.world.cluster.image} --listen 127.0.0.1:8731 --stall-seconds 120"
    )
    assert serving.endswith(
        f"-- {common} --listen 10.200.0.1:8731 --listen 10.200.1.1:8731 --client 10.200.0.2 --client 10.200.1.2 "
        "--store /var/lib/sparkpair/registry --docker-config /home/alice/.docker/config.json; fi"
    )
    assert relaying.endswith(f"-- {common} --peer-registry 10.200.0.1:8731 --peer-registry 10.200.1.1:8731; fi")
    assert "--property=Type=notify --property=MemoryMax=512M" in serving
    pulls = online_alone(A).do(image.pull_image)
    for name in (A, B):
        wanted = f"{objects.PROGRAM} pull 127.0.0.1:8731/vllm-cpu@{digest} --tag sparkpair/engine:{digest[7:19]}; fi"
        assert started(pulls[name]).endswith(wanted)


def test_the_registry_ends_with_its_store() -> None:
    here = bench()
    here.world.worker["units"][objects.REGISTRY_UNIT] = unit()
    kept = {"kind": "directory", "sha256": None, "mode": "755", "owner": "root", "group": "root"}
    here.world.head["files"][objects.REGISTRY_STORE] = kept
    line = "systemctl stop sparkpair-image-registry.service ; rm -rf /var/lib/sparkpair/registry"
    assert here.do(image.stop_registry) == {A: [line], B: [line]}


def test_an_image_without_a_name_gets_one() -> None:
    here = bench()
    held = here.world.worker["docker"]["images"][here.world.cluster.image]
    held["tags"] = []
    name = "sparkpair/engine:" + here.world.cluster.image.partition("@sha256:")[2][:12]
    assert here.do(image.set_name) == {A: [], B: [f"docker tag {held['id']} {name}"]}


def test_other_work_is_waited_for_only_where_it_would_begin_anew() -> None:
    """A hash or a copy that nobody wants is ended at once and goes on later; a pull would begin again."""
    here = bench(fresh)
    look = "systemctl show --property=ActiveState --value sparkpair-image-pull.service; systemctl show --property=Descr"
    assert here.do(image.pull_image)[A][0].startswith(look)
    here = bench()
    here.world.worker["content"]["weights"].update(present=False, files=[], identity=None)
    assert "systemctl stop sparkpair-stage.service" in started(here.do(weights.pull_weights)[B])
    here = bench(fresh)
    assert "systemctl stop sparkpair-weights-hash.service" in here.do(weights.record_manifests)[A][0]


def started(commands: list[str]) -> str:
    """The one command that starts a transient unit."""
    (found,) = [text for text in commands if "systemd-run" in text]
    return found


def test_a_pull_of_other_work_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    here = bench(fresh)
    here.units = ["active", "Sparkpair: pull the engine image [00000000]"]
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        here.units = ["inactive"]

    monkeypatch.setattr(units.time, "sleep", wait)
    done = here.do(image.pull_image)
    starts = [[number for number, text in enumerate(done[name]) if "systemd-run" in text] for name in (A, B)]
    # Both look at once; the first to wait ends the other work for both.
    assert waits and [2] in starts and all(start in ([1], [2]) for start in starts), starts


def test_a_unit_that_fails_stops_the_run_with_its_last_lines(caplog: pytest.LogCaptureFixture) -> None:
    here = bench(fresh)
    here.units = ["failed"]
    with pytest.raises(PyinfraError):
        here.do(image.pull_image)
    assert "sparkpair-image-pull failed; its last lines:" in caplog.text


def test_a_copy_names_the_rails_and_what_it_must_be() -> None:
    here = bench()
    weights_on_worker = here.world.worker["content"]["weights"]
    weights_on_worker.update(present=False, files=[], identity=None)
    commands = here.do(weights.pull_weights)[B]
    start, plans = started(commands), content.plans(here.world.cluster, here.world.facts())
    run, node = here.run, here.world.cluster.workers[0]
    wanted = Errand(
        owner="bob",
        rate=500 * 2**20,  # the pair serves
        stall_seconds=120.0,
        hub=None,
        peers=(
            Peer(
                A,
                (
                    Way("10.200.0.1", "enp1s0f1np1", spare=False),  # NCCL's
                    Way("10.200.1.1", "enP2p1s0f1np1", spare=True),
                ),
            ),
        ),
        sets=(
            Set(
                "weights",
                "/srv/models/tiny",
                IDENTITY,
                tuple((str(p), int(str(s)), str(d)) for p, s, d in FILES),
                wait=True,
            ),
        ),
    )
    assert staging.errand_for(run, node, plans) == wanted
    assert f"main.py stage /run/sparkpair/errand-{staging.work(wanted)}.json; fi" in start
    assert "--property=MemoryMax=1024M" in start


def test_differences_that_only_hashing_shows_stop_the_run(caplog: pytest.LogCaptureFixture) -> None:
    here = bench()
    files = copy.deepcopy(here.world.worker["content"]["weights"]["files"])
    files[0][2] = "f" * 64
    here.world.worker["content"]["weights"].update(files=files, identity="f" * 64)
    with pytest.raises(PyinfraError):
        here.do(weights.pull_weights)
    assert "hold different files: config.json (other bytes)" in caplog.text


def test_different_layers_stop_the_run(caplog: pytest.LogCaptureFixture) -> None:
    here = bench()
    reference = here.world.cluster.image
    here.world.worker["docker"]["images"][reference]["layers"] = ["sha256:" + "3" * 64]
    with pytest.raises(PyinfraError):
        here.do(image.compare_layers)
    assert "hold different layers" in caplog.text


def test_the_workers_line_holds_the_key_that_the_head_made() -> None:
    here = bench()
    here.world.worker["files"][objects.AUTHORIZED_KEYS] = None
    done = here.do(keeper.install_trust)
    assert done[A] == []
    assert len(done[B]) == 1
    assert objects.AUTHORIZED_KEYS in done[B][0]


def test_a_unit_that_was_written_but_never_enabled_is_enabled() -> None:
    here = bench()
    here.world.worker["units"][objects.AGENT_UNIT].update(UnitFileState="disabled", NeedDaemonReload="yes")
    assert here.do(keeper.install_unit, unit=objects.AGENT_UNIT) == {
        A: [],
        B: ["systemctl daemon-reload", f"systemctl enable --quiet {objects.AGENT_UNIT}"],
    }


def test_the_keeper_is_handed_the_engine_hash() -> None:
    here = bench()
    status = here.world.head["documents"][STATUS]["json"]
    wanted, status["accepted"] = status["accepted"], "0" * 64
    done = here.do(keeper.hand_over, when=Todo.RESTART)
    assert done == {A: [f"/usr/local/bin/sparkpair accept {wanted}"], B: []}


def test_nothing_is_known_of_a_node_that_does_not_answer() -> None:
    here = bench()
    host = here.hosts[B]
    cast(Any, host.connector)._lookup_response = lambda command: (False, CommandOutput([]))
    stated = here.world.cluster.settings.nodes[1]
    facts = node_facts(host, query(here.world.cluster.settings, stated))
    assert facts.trouble == "it did not answer"
