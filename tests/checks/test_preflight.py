"""Preflight: a fresh and a converged pair pass; each fault is told with where, what, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from checks.advice import advice
from checks.preflight import refusals
from tests.plan.world import GIB, World, converged, fresh, unit
from tests.unit import pair

Change = Callable[[World], None]


def cluster() -> Any:
    return pair.cluster(pair.UPSTREAM)


def told(world: World) -> list[str]:
    return [verdict.text() for verdict in refusals(world.cluster, world.facts())]


@pytest.mark.parametrize("state", [fresh, converged])
@pytest.mark.parametrize("knobs", [pair.UPSTREAM, {"weights_path": "~/models/w", "drafter_path": "~/models/d"}])
def test_a_sound_pair_is_not_refused(state: Callable[[Any], World], knobs: dict[str, object]) -> None:
    assert told(state(pair.cluster(knobs))) == []


def change(path: str, value: object, node: str = "worker") -> Change:
    """Set one value in a node's probe, by keys joined with "|"."""

    def apply(world: World) -> None:
        place: Any = getattr(world, node)
        *way, last = path.split("|")
        for key in way:
            place = place[key]
        place[last] = value

    return apply


def drop(path: str, node: str = "worker") -> Change:
    """Take one key out of a node's probe."""

    def apply(world: World) -> None:
        place: Any = getattr(world, node)
        *way, last = path.split("|")
        for key in way:
            place = place[key]
        del place[last]

    return apply


def no_sudo(world: World) -> None:
    world.nodes["spark-b"] = {"sudo": False, "user": "bob"}


def foreign_container(world: World) -> None:
    world.head["docker"]["containers"] = [
        {"id": "f" * 64, "names": ["sparkpair-vllm"], "state": "running", "labels": {}}
    ]


def other_model(world: World) -> None:
    world.worker["content"]["weights"].update(
        present=True, files=[["config.json", 701, None], ["extra.bin", 5, None], ["model.safetensors", 9, None]]
    )


def little_space(world: World) -> None:
    for disk in world.worker["disks"].values():
        disk["free"] = 4000
    world.worker["docker"]["disk"]["free"] = 4000


CASES: list[tuple[str, Change, str]] = [
    (
        "sudo asks for a password",
        no_sudo,
        "  spark-b: sudo wants a password from bob. It is not asked for: it would show in the node's process list\n"
        "    Fix: sudo visudo -f /etc/sudoers.d/sparkpair, with this line:\n"
        "      bob ALL=(ALL) NOPASSWD:ALL",
    ),
    (
        "old Python",
        change("python", [3, 8, 10]),
        "  spark-b: /usr/bin/python3 is 3.8.10, needs 3.10 or newer\n    Fix: use DGX OS 7, which brings 3.12",
    ),
    (
        "not a Spark",
        change("machine", "x86_64"),
        "  spark-b: is x86_64; a DGX Spark is aarch64, and so are the images\n    Fix: name a Spark in inventory.py",
    ),
    (
        "no GPU",
        change("gpu", {"error": "nvidia-smi exited 9: NVIDIA-SMI has failed"}),
        "  spark-b: the GPU could not be read: nvidia-smi exited 9: NVIDIA-SMI has failed\n"
        "    Fix: make that answer, then run again",
    ),
    (
        "the same machine twice",
        change("machine_id", "0" * 16),
        "  spark-a (192.168.1.10) and spark-b (192.168.1.11) are the same machine (host-1)\n"
        "    Fix: name two machines in inventory.py. If one was cloned from the other, give it an identity of "
        "its own:\n"
        "      sudo rm /etc/machine-id && sudo systemd-machine-id-setup && sudo reboot",
    ),
    (
        "somebody else's user of our name",
        change("accounts|sparkpair", {"home": "/home/sparkpair", "shell": "/bin/bash", "password": "x"}),
        "  spark-b: there is a user sparkpair that Sparkpair did not make (home /home/sparkpair), and a worker needs "
        "that name for the keeper\n    Fix: give that user another name",
    ),
    (
        "no such netdev",
        drop("links|enp1s0f1np1"),
        "  spark-b: rail 0: there is no netdev enp1s0f1np1 (Ethernet: enP2p1s0f1np1, enP7s7)\n"
        "    Fix: name the right one under rails in inventory.py; ibdev2netdev lists them",
    ),
    (
        "a member of a bond",
        change("links|enp1s0f1np1|master", "bond0"),
        "  spark-b: rail 0: enp1s0f1np1 is part of bond0, which would take the rail's packets\n"
        "    Fix: take enp1s0f1np1 out of bond0, or state other rails in inventory.py",
    ),
    (
        "no such HCA",
        drop("hcas|rocep1s0f1"),
        "  spark-b: rail 0: there is no HCA rocep1s0f1 (present: roceP2p1s0f1)\n"
        "    Fix: name the right one under rails in inventory.py; ibdev2netdev lists them",
    ),
    (
        "HCA of another netdev",
        change("hcas|rocep1s0f1|netdevs", ["enp1s0f0np0"]),
        "  spark-b: rail 0: HCA rocep1s0f1 belongs to enp1s0f0np0, not to enp1s0f1np1\n"
        "    Fix: ibdev2netdev lists what belongs together",
    ),
    (
        "a rail in another file",
        change("network_files", [["/etc/netplan/40-cx7.yaml", 5, "enp1s0f1np1"]]),
        "  spark-b: rail 0: enp1s0f1np1 is set up in /etc/netplan/40-cx7.yaml line 5, and would be again in "
        "/etc/netplan/60-sparkpair.yaml\n"
        "    Fix: take enp1s0f1np1 out of /etc/netplan/40-cx7.yaml (the deploy then sets it up), or state other rails",
    ),
    (
        "the address is taken",
        change("links|docker0|addresses", ["10.200.0.2/32"]),
        "  spark-b: rail 0: its address 10.200.0.2 is on docker0 already\n"
        "    Fix: state another address for enp1s0f1np1 in inventory.py, or take it from docker0",
    ),
    (
        "the network is taken",
        change("links|docker0|addresses", ["10.200.0.77/24"]),
        "  spark-b: rail 0: its network 10.200.0.0/24 is also that of docker0 (10.200.0.77/24)\n"
        "    Fix: give the rails networks of their own in inventory.py: one network on two links is one lost route",
    ),
    (
        "the management address is elsewhere",
        change("links|enP7s7|addresses", ["192.168.1.99/24"]),
        "  spark-b: its management address 192.168.1.11 is on none of its links (192.168.1.99/24, 172.17.0.1/16)\n"
        "    Fix: state management_address in inventory.py as the node itself has it",
    ),
    (
        "links cannot be read",
        change("links", {"error": "ip: No such file or directory"}),
        "  spark-b: its network links could not be read: ip: No such file or directory\n"
        "    Fix: make that answer, then run again",
    ),
    (
        "no netplan",
        change("tools|netplan", None),
        "  spark-b: netplan is not installed, which sets up the rails\n    Fix: sudo apt-get install netplan.io",
    ),
    (
        "no Docker",
        change("docker|client", None),
        "  spark-b: Docker is not installed\n"
        "    Fix: sudo apt-get install docker.io, or Docker's own packages; DGX OS brings them",
    ),
    (
        "Docker is down",
        lambda world: world.worker["docker"].update(answers=False, trouble="Connection refused"),
        "  spark-b: Docker does not answer: Connection refused\n"
        "    Fix: sudo systemctl enable --now docker; if that fails: journalctl -u docker",
    ),
    (
        "no NVIDIA runtime",
        change("docker|runtime", None),
        "  spark-b: the NVIDIA container toolkit is not installed (nvidia-container-runtime is missing)\n"
        "    Fix: sudo apt-get install nvidia-container-toolkit; DGX OS brings it",
    ),
    (
        "a container of that name",
        foreign_container,
        "  spark-a: a container named sparkpair-vllm is there (running) that Sparkpair did not make\n"
        "    Fix: if an earlier kit made it and it may end: docker rm -f sparkpair-vllm",
    ),
    (
        "the port is taken",
        change("ports|8000", {"pid": 812, "command": "python3", "container": None}, "head"),
        "  spark-a: port 8000 (api_port) is taken by python3 (process 812)\n"
        "    Fix: end that, or state another api_port",
    ),
    (
        "a keeper on a worker",
        change("units|sparkpair-keeper.service", unit()),
        "  spark-b: sparkpair-keeper.service is active and enabled here, as on a head, and this is a worker: two "
        "keepers would take the ranks from each other\n"
        "    Fix: if it was the head and shall be a worker, on spark-b: sudo systemctl disable --now "
        "sparkpair-keeper; then run again",
    ),
    (
        "a keeper that a reboot would start on a worker",
        change("units|sparkpair-keeper.service", unit("failed")),
        "  spark-b: sparkpair-keeper.service is enabled here, as on a head, and this is a worker: two "
        "keepers would take the ranks from each other\n"
        "    Fix: if it was the head and shall be a worker, on spark-b: sudo systemctl disable --now "
        "sparkpair-keeper; then run again",
    ),
    (
        "no weights anywhere",
        change("content|weights|present", False, "head"),
        "  weights: no node has them whole; spark-a has nothing in /srv/models/tiny; spark-b has nothing in "
        "/srv/models/tiny\n"
        "    Fix: put the files into /srv/models/tiny on spark-a, or correct weights_path; they are copied from there "
        "to the other node.\n"
        "      To have them downloaded, state weights_repository and run: make lock",
    ),
    (
        "a shard is missing",
        change("content|weights|missing", ["model-00002-of-00002.safetensors"], "head"),
        "  weights: no node has them whole; spark-a lacks model-00002-of-00002.safetensors in /srv/models/tiny; "
        "spark-b "
        "has nothing in /srv/models/tiny\n"
        "    Fix: put the files into /srv/models/tiny on spark-a, or correct weights_path; they are copied from there "
        "to the other node.\n"
        "      To have them downloaded, state weights_repository and run: make lock",
    ),
    (
        "links into a cache",
        change("content|weights|outside", ["model.safetensors"], "head"),
        "  spark-a: weights: /srv/models/tiny/model.safetensors links out of the directory, which is all that "
        "the container "
        "sees\n"
        "    Fix: put the files themselves there: cp -RL /srv/models/tiny /srv/models/tiny-files, and name that "
        "directory",
    ),
    (
        "another model on the worker",
        other_model,
        "  weights: spark-a (/srv/models/tiny) and spark-b (/srv/models/tiny) hold different files: config.json "
        "(700 and "
        "701 bytes), extra.bin (only on spark-b), model.safetensors (only on spark-b)\n"
        "    Fix: remove on one of them what is not wanted; it is copied there from the other over the rail.\n"
        "      To take those of spark-a, on spark-b: rm -r /srv/models/tiny",
    ),
    (
        "the weights cannot be read",
        change("content|weights", {"error": "OSError: [Errno 5] Input/output error"}),
        "  spark-b: weights in /srv/models/tiny could not be read: OSError: [Errno 5] Input/output error\n"
        "    Fix: make that answer, then run again",
    ),
    (
        "no space",
        little_space,
        "  spark-b: 3.9 KiB free on the disk of /var/lib/docker; needed: 64.0 MiB for Sparkpair's state, 5.0 KiB for "
        "weights, "
        "1.0 GiB for the image\n"
        "    Fix: make room for 1.1 GiB: sudo du -xh --max-depth=2 /var/lib/docker | sort -h | tail",
    ),
    (
        "no ssh on the head",
        change("tools|ssh", None, "head"),
        "  spark-a: ssh is not installed\n    Fix: sudo apt-get install openssh-client",
    ),
    (
        "no host key",
        change("host_key", {"error": "FileNotFoundError: no such file"}),
        "  spark-b: its ssh host key could not be read: FileNotFoundError: no such file\n"
        "    Fix: the keeper reaches it by ssh with a pinned ed25519 key: sudo ssh-keygen -A, and restart ssh",
    ),
    (
        "an answer of another form",
        lambda world: world.nodes.update({"spark-b": ["?"]}),  # type: ignore[dict-item]
        "  spark-b: could not be looked at: the probe answered \"['?']\"\n    Fix: make it answer, then run again",
    ),
]


@pytest.mark.report("CFG-04", "DKR-03", "SSH-02", "KRN-03")
@pytest.mark.parametrize(("change", "wanted"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
@pytest.mark.report("CFG-04", "DKR-03", "NET-03", "NET-15", "NET-18", "MEM-06")
def test_refused(change: Change, wanted: str) -> None:
    world = fresh(cluster())
    change(world)
    assert told(world) == [wanted]


def test_a_keeper_that_was_disabled_is_no_keeper() -> None:
    """As after the fix: the unit's file is still there."""
    world = fresh(cluster())
    world.worker["units"]["sparkpair-keeper.service"] = unit("inactive", "disabled")
    assert told(world) == []


def test_all_at_once() -> None:
    """Every refusal of every node is in one list, none hides another."""
    world = fresh(cluster())
    change("docker|runtime", None, "head")(world)
    change("tools|netplan", None)(world)
    change("content|weights|present", False, "head")(world)
    assert len(told(world)) == 3


@pytest.mark.report("CFG-04")
def test_ports_of_our_own_containers_are_not_in_the_way() -> None:
    world = converged(cluster())
    assert world.head["ports"]["8000"]["container"] == world.head["docker"]["containers"][0]["id"]
    assert told(world) == []


def test_no_space_is_asked_for_what_is_there() -> None:
    world = converged(cluster())
    for name in ("head", "worker"):
        for disk in getattr(world, name)["disks"].values():
            disk["free"] = GIB // 8
        getattr(world, name)["docker"]["disk"]["free"] = GIB // 8
    assert told(world) == []


EXL3 = {"weights_path": "~/models/w", "drafter_path": "~/models/d"}


def of_reference_stack(change: Change | None = None, state: Callable[[Any], World] = fresh, **knobs: object) -> World:
    """A pair for stack vllm-exl3."""
    world = state(pair.cluster({**EXL3, **knobs}))
    if change:
        change(world)
    return world


@pytest.mark.report("DKR-07")
def test_a_chat_template_lies_among_the_weights() -> None:
    world = of_reference_stack(None, converged, chat_template="chat_template_mm.jinja")
    assert told(world) == [
        "  spark-a: chat_template = chat_template_mm.jinja: no such file in /home/alice/models/w, which is what the "
        "container sees\n"
        "    Fix: put it there on every node, name a file that is there, or leave chat_template out "
        "(ls /home/alice/models/w)"
    ]
    world.head["content"]["weights"]["files"].append(["chat_template_mm.jinja", 12, "a" * 64])
    world.worker["content"]["weights"]["files"].append(["chat_template_mm.jinja", 12, "a" * 64])
    assert told(world) == []


def test_what_is_missing_everywhere_is_locked_and_then_downloaded() -> None:
    def gone(world: World) -> None:
        for node in (world.head, world.worker):
            for name in ("weights", "drafter"):
                node["content"][name].update(present=False, files=[], identity=None)

    weights, drafter = told(of_reference_stack(gone))
    assert weights.endswith(
        "    Fix: make lock, which pins brandonmusic/GLM-5.3-Flash-tr3-4bpw; a deploy then downloads them. Or put the "
        "files into /home/alice/models/w on spark-a, or correct weights_path; they are copied from there to the other "
        "node"
    )
    assert "    Fix: make lock, which pins local-inference-lab/GLM-5.3-Flash-DFlash2-MXFP8; a deploy" in drafter


def test_a_drafter_of_the_other_format_is_told() -> None:
    """R10: told, not refused, as in the reference kit."""
    world = of_reference_stack(None, converged)
    assert advice(world.cluster, world.facts()) == [
        f"{name}: {path}/models/d holds the 16-bit drafter (without hf_quant_config.json), and drafter_repository is "
        "local-inference-lab/GLM-5.3-Flash-DFlash2-MXFP8, the 8-bit one; correct one of them"
        for name, path in (("spark-a", "/home/alice"), ("spark-b", "/srv/bob"))
    ]
    for node in (world.head, world.worker):
        node["content"]["drafter"]["files"].append(["hf_quant_config.json", 12, "a" * 64])
    assert advice(world.cluster, world.facts()) == []
    other = of_reference_stack(None, converged, drafter_repository="somebody/drafter", drafter_revision="d" * 40)
    assert advice(other.cluster, other.facts()) == []


def test_overlays_of_the_kit_are_told_and_forbid_nothing() -> None:
    """CFG-05."""
    world = converged(cluster())
    world.worker["overlays"] = {"/srv/bob/glm53-hotfix": 1, "/srv/bob/glm53-hotfix-fi": 3}
    assert told(world) == []
    assert advice(world.cluster, world.facts()) == [
        "spark-b: left over from the reference kit: /srv/bob/glm53-hotfix (1 file), /srv/bob/glm53-hotfix-fi "
        "(3 files). The kit's launcher put these files over the image's own; Sparkpair never does, so what they "
        "changed is not in effect. If nothing else needs them, on spark-b: mv /srv/bob/glm53-hotfix "
        "/srv/bob/glm53-hotfix.retired; mv /srv/bob/glm53-hotfix-fi /srv/bob/glm53-hotfix-fi.retired"
    ]
