"""Every text that goes to a node, whole."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from node import service, wire
from spec import nfs, objects, render
from spec.cluster import Cluster
from spec.load import load
from spec.presets import PRESETS
from spec.resolve import resolve
from tests.render import snapshot
from tests.unit import pair

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIexamplekeyofthekeeper0000000000000000000 sparkpair keeper"
HOST_KEYS = {
    1: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIhostkeyofrank1",
    2: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIhostkeyofrank2",
}

CLUSTERS: dict[str, Cluster] = {
    "vllm-exl3": pair.cluster(),
    "vllm": pair.cluster(
        {
            **pair.UPSTREAM,
            "enforce_eager": True,
            "reasoning_parser": "glm45",
            "tool_call_parser": "glm47",
            "gpu_memory_utilization": 0.1,
            "kv_cache_memory_bytes": 500_000_000,
            "engine_env": ["VLLM_CPU_KVCACHE_SPACE=1"],
            "lease_seconds": 40,
        },
        worker=pair.node(pair.WORKER, weights_path="/data/tiny-copy"),
    ),
    "three-nodes": pair.cluster(more=1),
    "vllm-with-key": pair.cluster({**pair.UPSTREAM, "api_bind": "192.168.1.10", "require_api_key": True}),
    "vllm-nfs": pair.cluster({**pair.UPSTREAM, "weights": "nfs"}),
    **{f"preset-{name}": pair.cluster({"preset": name}) for name in PRESETS},
}
NODES = [
    pytest.param(name, rank, id=f"{name}-rank{rank}")
    for name, cluster in CLUSTERS.items()
    for rank in range(len(cluster.nodes))
]


@pytest.mark.parametrize(("name", "rank"), NODES)
def test_rank(name: str, rank: int) -> None:
    """The wanted launch of each rank, and that the rank agent reads it."""
    text = render.rank_text(CLUSTERS[name], CLUSTERS[name].nodes[rank])
    snapshot.check(f"{name}.rank{rank}.json", text)
    assert wire.parse_rank(text).rank == rank


@pytest.mark.parametrize("name", CLUSTERS)
def test_service(name: str) -> None:
    """The keeper's settings, and that the keeper reads them."""
    text = render.service_text(CLUSTERS[name])
    snapshot.check(f"{name}.service.json", text)
    assert [node.rank for node in service.parse(text).nodes] == list(range(len(CLUSTERS[name].nodes)))


@pytest.mark.parametrize("rank", [0, 1])
def test_netplan(rank: int) -> None:
    """The rails' file, and what netplan's reader sees in it."""
    cluster = CLUSTERS["vllm-exl3"]
    node = cluster.nodes[rank]
    text = render.netplan_text(cluster, node)
    snapshot.check(f"60-sparkpair.rank{rank}.yaml", text)
    read: dict[str, Any] = yaml.safe_load(text)
    assert list(read["network"]["ethernets"]) == [rail.netdev for rail in node.rails]


def test_netdev_names_stay_text() -> None:
    """A netdev whose name YAML would read as something else."""
    rails = [{**rail, "netdev": name} for rail, name in zip(pair.HEAD["rails"], ("no", "e1"), strict=True)]
    cluster = pair.cluster(head=pair.node(pair.HEAD, rails=rails))
    read = yaml.safe_load(render.netplan_text(cluster, cluster.head))
    assert list(read["network"]["ethernets"]) == ["no", "e1"]


def test_rail_mtu_is_one_line_per_rail() -> None:
    """A turned MTU changes these lines and nothing else."""
    before, after = pair.cluster(), pair.cluster({"rail_mtu": 4200})
    lines = zip(
        render.netplan_text(before, before.head).splitlines(),
        render.netplan_text(after, after.head).splitlines(),
        strict=True,
    )
    assert [line for line in lines if line[0] != line[1]] == [("      mtu: 9000", "      mtu: 4200")] * 2


@pytest.mark.parametrize("rank", [0, 1])
def test_one_knob_is_one_line(rank: int) -> None:
    """A turned knob shows as one changed line in the wanted launch of every rank."""
    before, after = pair.cluster(), pair.cluster({"max_num_seqs": 8})
    old = render.rank_text(before, before.nodes[rank]).splitlines()
    new = render.rank_text(after, after.nodes[rank]).splitlines()
    assert [pair for pair in zip(old, new, strict=True) if pair[0] != pair[1]] == [
        ('  ["--max-num-seqs", "4"],', '  ["--max-num-seqs", "8"],')
    ]


@pytest.mark.parametrize("name", render.UNITS)
def test_unit(name: str) -> None:
    """The unit files."""
    snapshot.check(name, render.unit_text(name))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", render.UPKEEP_UNITS)
def test_upkeep_unit(name: str, rank: int) -> None:
    """The unit files of the deep check; only the timer's day is the node's own."""
    stem, _, kind = name.rpartition(".")
    snapshot.check(f"{stem}.rank{rank}.{kind}", render.upkeep_text(name, CLUSTERS["vllm-exl3"].nodes[rank]))


def test_recorder_unit() -> None:
    """The same on every node."""
    snapshot.check(objects.RECORDER_UNIT, render.recorder_text())


@pytest.mark.parametrize("unit", objects.PROTECTED_UNITS)
def test_protection(unit: str) -> None:
    """What is added to a unit of the system; nothing where it is not wanted."""
    snapshot.check(
        f"{unit}.60-sparkpair.conf", render.protection_texts(CLUSTERS["vllm-exl3"])[objects.protection(unit)]
    )
    assert render.protection_texts(pair.cluster({"protect_login": False})) == {}


def test_no_unit_is_protected_by_more_than_its_slice_is() -> None:
    """A cgroup's protection counts as far as its parents have it: ours and sshd are in system.slice."""
    texts = render.protection_texts(CLUSTERS["vllm-exl3"])
    asked = {unit: _protected(texts[objects.protection(unit)]) for unit in objects.PROTECTED_UNITS}
    ours = sum(_protected(text) for text in (render.recorder_text(), *map(render.unit_text, render.UNITS)))
    assert asked["ssh.service"] + ours == 152 <= asked["system.slice"]
    assert "152 MiB" in texts[objects.protection("system.slice")]


def _protected(text: str) -> int:
    [size] = re.findall(r"^MemoryMin=(\d+)M$", text, re.MULTILINE)
    return int(size)


def test_exports() -> None:
    """What the kernel's NFS server is told: one directory, read-only, to two addresses."""
    cluster = CLUSTERS["vllm-nfs"]
    export = nfs.export(cluster, cluster.nodes[1])
    assert export is not None
    snapshot.check("sparkpair.exports", render.exports_text(export))


def test_mount_unit() -> None:
    """Address and options; its name is the one that systemd gives the place."""
    cluster = CLUSTERS["vllm-nfs"]
    mount = nfs.mount(cluster, cluster.head)
    assert mount is not None
    snapshot.check(objects.MOUNT_UNIT, render.mount_text(mount))
    assert objects.MOUNT_POINT[1:].replace("/", "-") + ".mount" == objects.MOUNT_UNIT


def test_wanted_mount() -> None:
    """What the mount is compared with, a file per line."""
    cluster = CLUSTERS["vllm-nfs"]
    mount = nfs.mount(cluster, cluster.head)
    assert mount is not None
    files = [("config.json", 700, "c" * 64), ("model.safetensors", 4096, "d" * 64)]
    snapshot.check("weights-mount.json", render.wanted_mount_text(mount, "1" * 64, files))


def test_another_rail_address_is_one_line_of_the_unit_and_of_the_launch() -> None:
    """So that --diff shows it, and the pair is restarted once for it."""
    rails = [{**rail, "address": rail["address"].replace("10.200.0.2", "10.200.0.7")} for rail in pair.WORKER["rails"]]
    before = CLUSTERS["vllm-nfs"]
    after = pair.cluster({**pair.UPSTREAM, "weights": "nfs"}, worker=pair.node(pair.WORKER, rails=rails))
    texts = [(render.mount_text(one), render.rank_text(here, here.head)) for here in (before, after)
             if (one := nfs.mount(here, here.head)) is not None]  # fmt: skip
    for old, new in zip(*texts, strict=True):
        moved = [pair for pair in zip(old.splitlines(), new.splitlines(), strict=True) if pair[0] != pair[1]]
        assert len(moved) == 1
        assert moved[0][0].replace("10.200.0.2", "10.200.0.7") == moved[0][1]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """systemd reads the units without a complaint about them."""
    head = CLUSTERS["vllm-exl3"].head
    texts = {name: render.unit_text(name) for name in render.UNITS}
    texts |= {name: render.upkeep_text(name, head) for name in render.UPKEEP_UNITS}
    texts[objects.RECORDER_UNIT] = render.recorder_text()
    mount = nfs.mount(CLUSTERS["vllm-nfs"], CLUSTERS["vllm-nfs"].head)
    assert mount is not None
    texts[objects.MOUNT_UNIT] = render.mount_text(mount)
    for name, text in texts.items():
        # Only ExecStart's program must be there; it is the same on a node.
        (tmp_path / name).write_text(text.replace("/usr/bin/python3", "/bin/sh"), encoding="utf-8")
    run = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / name) for name in texts)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )
    complaints = [line for line in run.stderr.splitlines() if "sparkpair-" in line and "docker.service" not in line]
    assert complaints == []


def test_authorized_keys() -> None:
    """The one line of the workers' key file."""
    snapshot.check("authorized_keys", render.authorized_keys_text(CLUSTERS["vllm-exl3"], PUBLIC_KEY + "\n"))


def test_known_hosts() -> None:
    """The head's list of host keys, for each worker under the name of its rank."""
    snapshot.check("known_hosts", render.known_hosts_text(CLUSTERS["three-nodes"], HOST_KEYS))


def test_a_key_that_is_not_made_yet() -> None:
    """A plan of the first deploy: the line is there, and lets nobody in."""
    text = render.authorized_keys_text(CLUSTERS["vllm-exl3"], "")
    assert text.endswith(",restrict \n")


def test_a_nodes_comment_is_not_taken() -> None:
    """What follows the key is the node's own text and goes nowhere."""
    text = render.known_hosts_text(CLUSTERS["vllm-exl3"], {1: HOST_KEYS[1] + " root@Bob's (spark) ✓"})
    assert text.splitlines()[1:] == [f"sparkpair-rank1 {HOST_KEYS[1]}"]


@pytest.mark.parametrize(
    "key",
    [
        "garbage",
        "ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAI",
        "ssh-ed25519 AAAA",
        f"{HOST_KEYS[1]}\n{HOST_KEYS[2]}",
        'ssh-ed25519 AAAAC3NzaC1lZDI1"NTE5AAAAI',
        f'command="/bin/sh" {HOST_KEYS[1]}',
    ],
)
def test_what_is_no_key_is_not_written(key: str) -> None:
    """What a node says is its key goes into files that grant access: only a key's shape passes."""
    with pytest.raises(ValueError, match="not an ed25519 public key"):
        render.authorized_keys_text(CLUSTERS["vllm-exl3"], key)
    with pytest.raises(ValueError, match="not an ed25519 public key"):
        render.known_hosts_text(CLUSTERS["vllm-exl3"], {1: key})


def test_local_head_changes_no_text() -> None:
    """The head reached by ssh or as this machine: whatever is written to a node is the same."""
    by_ssh = pair.cluster()
    head = pair.node(pair.HEAD, ssh_hostname=None, ssh_user=None, management_address="192.168.1.10")
    stated = [pair.host("@local", "head", head), pair.host("spark-b", "worker", pair.WORKER)]
    facts = {"@local": pair.FACTS["spark-a"], "spark-b": pair.FACTS["spark-b"]}
    local = resolve(load(stated, pair.CONNECTION), facts)
    for ours, theirs in zip(by_ssh.nodes, local.nodes, strict=True):
        assert render.rank_text(by_ssh, ours) == render.rank_text(local, theirs)
        assert render.netplan_text(by_ssh, ours) == render.netplan_text(local, theirs)
    assert render.service_text(by_ssh) == render.service_text(local)
    assert render.authorized_keys_text(by_ssh, PUBLIC_KEY) == render.authorized_keys_text(local, PUBLIC_KEY)


def test_engine_hash_is_the_nodes() -> None:
    """The hash is the one that the keeper computes."""
    cluster = CLUSTERS["vllm-exl3"]
    texts = [render.rank_text(cluster, node) for node in cluster.nodes]
    identities = [["a" * 64, "b" * 64]] * 2
    assert render.engine_hash(texts, identities) == wire.engine_hash(list(zip(texts, identities, strict=True)))
    with pytest.raises(ValueError, match="argument 2"):
        render.engine_hash(texts, identities[:1])


def test_texts_are_json_without_dates() -> None:
    """No wanted text names a time, a hash of itself or a user's machine: the same settings give the same bytes."""
    cluster = CLUSTERS["vllm"]
    again = pair.cluster(
        {name: getattr(cluster.settings.knobs, name) for name in cluster.settings.knobs.model_fields_set},
        worker=pair.node(pair.WORKER, weights_path="/data/tiny-copy"),
    )
    assert render.service_text(again) == render.service_text(cluster)
    assert json.loads(render.service_text(again))["lease_seconds"] == 40
