"""Every door, every kind of mistake: one message that names the door, what was seen, what is wanted."""

# Messages stand here in one piece.
# ruff: noqa: E501

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyinfra.api.exceptions import DeployError
from pyinfra.api.inventory import Inventory

from spec.load import StatedHost, load, settings_from_pyinfra
from tests.unit import pair
from tests.unit.pair import CONNECTION, HEAD, WORKER, host, hosts, node, third

ROOT = Path(__file__).parents[2]
FIRST = "Settings refused; no node was changed."
_RAIL = '{"netdev": "enp1s0f0np0", "hca": "rocep1s0f0", "address": "10.200.0.1/24"}'
_ADDRESS = "must be the node's IPv4 address on the rail with its prefix, such as 10.200.0.1/24"
_MANAGEMENT = "the node's IPv4 address on the management network, such as 192.168.1.10"


def refusals(stated: Sequence[StatedHost]) -> list[str]:
    """The lines of the refusal, without the first."""
    with pytest.raises(DeployError) as refused:
        load(stated, CONNECTION)
    first, *lines = str(refused.value).split("\n")
    assert first == FIRST
    assert all(line.startswith("  ") for line in lines)
    return [line[2:] for line in lines]


def rails(base: dict[str, Any], index: int, **changes: object) -> dict[str, Any]:
    """The node with one rail changed."""
    data = node(base)
    data["rails"][index] = {**data["rails"][index], **changes}
    return data


KNOB_CASES = [
    ({"max_len": 4}, ["group_data/all.py: max_len: no such knob (did you mean max_model_len? docs/knobs.md)"]),
    ({"MAX_SEQS": 4}, ["group_data/all.py: MAX_SEQS: no such knob (did you mean max_num_seqs? docs/knobs.md)"]),
    ({"max_num_seq": 4}, ["group_data/all.py: max_num_seq: no such knob (did you mean max_num_seqs? docs/knobs.md)"]),
    ({"_sudoo": True}, ["group_data/all.py: _sudoo: no such knob (did you mean _sudo? docs/knobs.md)"]),
    ({"ssh_usr": "x"}, ["group_data/all.py: ssh_usr: no such knob (did you mean ssh_user? docs/knobs.md)"]),
    ({"qqqq": 1}, ["group_data/all.py: qqqq: no such knob (docs/knobs.md lists them)"]),
    ({7: 8}, ["group_data/all.py: 7: no such knob (docs/knobs.md lists them)"]),
    ({"a.b": 1}, ["group_data/all.py: a.b: no such knob (docs/knobs.md lists them)"]),
    ({"rails": []}, ["group_data/all.py: rails: belongs to one node; state it in that node's data in the inventory"]),
    ({"gpu_memory_utilization": 1.4}, ["group_data/all.py: gpu_memory_utilization = 1.4: must be at most 1"]),
    ({"api_port": True}, ["group_data/all.py: api_port = True: must be a whole number, 1 to 65535, not true/false"]),
    ({"api_port": 0}, ["group_data/all.py: api_port = 0: must be at least 1"]),
    ({"api_port": 29521}, ["master_port = 29521: is api_port as well; each needs a port of its own"]),
    (
        {"image": "ghcr.io/entrpi/x:latest"},
        [
            'group_data/all.py: image = "ghcr.io/entrpi/x:latest": must be an image pinned by digest '
            "(repository@sha256:<64 hex digits>); a tag can move"
        ],
    ),
    (
        {"weights_path": "models/glm"},
        [
            'group_data/all.py: weights_path = "models/glm": must be an absolute path on the node, '
            "or one that starts with ~/"
        ],
    ),
    ({"stack": "sglang"}, ['group_data/all.py: stack = "sglang": must be one of vllm-exl3, vllm']),
    (
        {"speculative_method": "none"},
        [
            'group_data/all.py: speculative_method = "none": must be one of dflash, mtp, ngram, eagle3, draft_model; '
            'or "", which leaves it out'
        ],
    ),
    (
        {"max_num_batched_tokens": ""},
        [
            'group_data/all.py: max_num_batched_tokens = "": cannot be empty, must be whole number, 1 to 131072; '
            "leave it out for the default"
        ],
    ),
    ({"rail_mtu": 90000}, ["group_data/all.py: rail_mtu = 90000: must be at most 9000"]),
    (
        {"lease_seconds": 30, "watch_interval_seconds": 10},
        [
            "lease_seconds = 30: must be above 3 times watch_interval_seconds (10), so that a rank does not stop because of "
            "three looks that failed"
        ],
    ),
    (
        {"backoff_seconds": 400},
        ["backoff_max_seconds = 300: must be at least backoff_seconds (400)"],
    ),
    (
        {"ready_timeout_seconds": 60},
        ["canary_timeout_seconds = 60: must be below ready_timeout_seconds (60): a start includes a canary"],
    ),
    ({"tensor_parallel_size": 4}, ["tensor_parallel_size = 4: there are 2 nodes with one GPU each; set 2 or leave it out"]),
    (
        {"stack": "vllm"},
        [
            'image: stack vllm has none of its own; set image = "repository@sha256:..."',
            "weights_path: stack vllm has none of its own and spark-a states none; set it in group_data/all.py, or in "
            "that node's data in the inventory",
            "weights_path: stack vllm has none of its own and spark-b states none; set it in group_data/all.py, or in "
            "that node's data in the inventory",
        ],
    ),
    (
        {**pair.UPSTREAM, "prefix_match_unit": 512},
        [
            "prefix_match_unit = 512: only the engine of stack vllm-exl3 knows it, and the stack is vllm; leave it out"
        ],
    ),
    (
        {"drafter_path": ""},
        [
            'drafter_path: spark-a has none and speculative_method is dflash; set drafter_path, or speculative_method = "" '
            "for none",
            'drafter_path: spark-b has none and speculative_method is dflash; set drafter_path, or speculative_method = "" '
            "for none",
        ],
    ),
    (
        {"speculative_method": "ngram"},
        ["speculative_tokens: stack vllm-exl3 has no number for method ngram; set speculative_tokens"],
    ),
    (
        {"weights_path": "/srv/m", "cache_path": "/srv/m/cache"},
        [
            'cache_path = "/srv/m/cache": lies in weights_path (/srv/m) on spark-a; put it elsewhere',
            'cache_path = "/srv/m/cache": lies in weights_path (/srv/m) on spark-b; put it elsewhere',
        ],
    ),
    (
        {"weights_path": "/srv/m/w", "cache_path": "/srv/m"},
        [
            'weights_path = "/srv/m/w": lies in cache_path (/srv/m) on spark-a; put it elsewhere',
            'weights_path = "/srv/m/w": lies in cache_path (/srv/m) on spark-b; put it elsewhere',
        ],
    ),
    (
        {"weights_path": "/srv/m", "drafter_path": "/srv/m"},
        [
            'drafter_path = "/srv/m": is weights_path as well on spark-a; each needs a directory of its own',
            'drafter_path = "/srv/m": is weights_path as well on spark-b; each needs a directory of its own',
        ],
    ),
    (
        {"weights_path": "/mnt/sparkpair/weights"},
        [
            'weights_path = "/mnt/sparkpair/weights": is where spark-a mounts another node\'s weights; put it elsewhere',
            'weights_path = "/mnt/sparkpair/weights": is where spark-b mounts another node\'s weights; put it elsewhere',
        ],
    ),
    (
        {"engine_env": ["NCCL_DEBUG=INFO", "NCCL_NET=Socket"]},
        [
            "engine_env: NCCL_DEBUG is what the knob nccl_debug sets; use that",
            "engine_env: NCCL_NET is set by stack vllm-exl3 itself; leave it out",
        ],
    ),
    (
        {"max_num_seqs": 0, "lease_seconds": 2, "watch_interval_seconds": 9, "max_len": 5, "api_port": 29521},
        [
            "group_data/all.py: max_len: no such knob (did you mean max_model_len? docs/knobs.md)",
            "group_data/all.py: max_num_seqs = 0: must be at least 1",
            "group_data/all.py: lease_seconds = 2: must be at least 30",
            "master_port = 29521: is api_port as well; each needs a port of its own",
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("stated", "lines"), KNOB_CASES, ids=lambda value: str(value)[:60] if isinstance(value, dict) else ""
)
def test_knobs_refused(stated: dict[str, object], lines: list[str]) -> None:
    """A bad setting, once however many nodes it holds for, and all of them together."""
    assert refusals(hosts(stated)) == lines


INVENTORY_CASES = {
    "rails of one node": (
        hosts(worker=node(WORKER, rails=None)),
        [
            "inventory: spark-a has 2 rails and spark-b has 0; every node states the same rails, in the same order, or "
            "none does"
        ],
    ),
    "an empty list": (
        hosts(worker=node(WORKER, rails=[])),
        [
            f"inventory: spark-b: rails = []: must be a list with one entry per rail, such as [{_RAIL}]; leave rails "
            f"out on every node, and they are found"
        ],
    ),
    "rails are no list": (
        hosts(worker=node(WORKER, rails="10.200.0.2")),
        [f'inventory: spark-b: rails = "10.200.0.2": must be a list with one entry per rail, such as [{_RAIL}]; leave '
            f"rails out on every node, and they are found"],
    ),
    "a rail is no table": (
        hosts(worker=node(WORKER, rails=["x"])),
        [f'inventory: spark-b: rail 0 = "x": must be {_RAIL}'],
    ),
    "a rail lacks its HCA": (
        hosts(worker=node(WORKER, rails=[{"netdev": "enp1s0f1np1", "address": "10.200.0.2/24"}])),
        [f"inventory: spark-b: rail 0: hca not stated: a rail is {_RAIL}"],
    ),
    "a rail has a word too many": (
        hosts(worker=rails(WORKER, 1, adress="10.200.1.2/24")),
        ["inventory: spark-b: rail 1: adress: no such key (did you mean address? a rail has netdev, hca, address)"],
    ),
    "another number of rails": (
        hosts(worker=node(WORKER, rails=WORKER["rails"][:1])),
        ["inventory: spark-a has 2 rails and spark-b has 1; every node states the same rails, in the same order, "
         "or none does"],
    ),
    "different subnets": (
        hosts(worker=rails(WORKER, 1, address="10.200.5.2/24")),
        ["rail 1: spark-a has 10.200.1.1 and spark-b has 10.200.5.2; both ends of a rail must share one /24"],
    ),
    "different prefixes": (
        hosts(worker=rails(WORKER, 1, address="10.200.1.2/25")),
        ["rail 1: spark-a has 10.200.1.1/24 and spark-b has 10.200.1.2/25; both ends of a rail must share one /24"],
    ),
    "crossed rails": (
        hosts(worker=node(WORKER, rails=WORKER["rails"][::-1])),
        [
            "rail 0: spark-a has 10.200.0.1 and spark-b has 10.200.1.2; both ends of a rail must share one /24",
            "rail 1: spark-a has 10.200.1.1 and spark-b has 10.200.0.2; both ends of a rail must share one /24",
        ],
    ),
    "one address twice": (
        hosts(worker=rails(WORKER, 0, address="10.200.0.1/24")),
        ["inventory: 10.200.0.1 is stated for spark-a (rail 0) and spark-b (rail 0); each needs an address of its own"],
    ),
    "one management address twice": (
        hosts(worker=node(WORKER, ssh_hostname="192.168.1.10")),
        [
            "inventory: 192.168.1.10 is stated for spark-a (management) and spark-b (management); each needs an address of "
            "its own"
        ],
    ),
    "one netdev twice": (
        hosts(worker=rails(WORKER, 1, netdev="enp1s0f1np1")),
        [
            "inventory: spark-b: rail 0 and rail 1 both name netdev enp1s0f1np1; a rail is one netdev and its HCA "
            "(rdma link shows the pairs)"
        ],
    ),
    "one HCA twice": (
        hosts(worker=rails(WORKER, 1, hca="rocep1s0f1")),
        [
            "inventory: spark-b: rail 0 and rail 1 both name hca rocep1s0f1; a rail is one netdev and its HCA "
            "(rdma link shows the pairs)"
        ],
    ),
    "rails overlap": (
        hosts(head=rails(HEAD, 1, address="10.200.0.9/24"), worker=rails(WORKER, 1, address="10.200.0.10/24")),
        [
            "inventory: spark-a: rail 0 is in 10.200.0.0/24 and rail 1 in 10.200.0.0/24; each rail needs a network of its "
            "own, or the node answers for one on the other",
            "inventory: spark-b: rail 0 is in 10.200.0.0/24 and rail 1 in 10.200.0.0/24; each rail needs a network of its "
            "own, or the node answers for one on the other",
        ],
    ),
    "managed where the usual rail would be": (
        hosts(
            head=node(HEAD, management_address="10.200.0.8"),
            worker=node(WORKER, management_address="10.200.0.9"),
        ),
        [
            "inventory: spark-a: management address 10.200.0.8 lies in 10.200.0.0/24, the network of rail 0; give the "
            "rail another network, such as 10.201.0.0/24",
            "inventory: spark-b: management address 10.200.0.9 lies in 10.200.0.0/24, the network of rail 0; give the "
            "rail another network, such as 10.201.0.0/24",
        ],
    ),
    "a rail in the management network": (
        hosts(head=rails(HEAD, 0, address="192.168.1.100/24"), worker=rails(WORKER, 0, address="192.168.1.101/24")),
        [
            "inventory: spark-a: management address 192.168.1.10 lies in 192.168.1.0/24, the network of rail 0; give the "
            "rail another network, such as 10.200.0.0/24",
            "inventory: spark-b: management address 192.168.1.11 lies in 192.168.1.0/24, the network of rail 0; give the "
            "rail another network, such as 10.200.0.0/24",
        ],
    ),
    "no prefix": (
        hosts(head=rails(HEAD, 0, address="10.200.0.1")),
        [f'inventory: spark-a: rail 0: address = "10.200.0.1": {_ADDRESS}'],
    ),
    "a number for an address": (
        hosts(head=rails(HEAD, 0, address=167772161)),
        [f"inventory: spark-a: rail 0: address = 167772161: {_ADDRESS}"],
    ),
    "no such address": (
        hosts(head=rails(HEAD, 0, address="10.200.0.256/24")),
        [f'inventory: spark-a: rail 0: address = "10.200.0.256/24": {_ADDRESS}'],
    ),
    "prefix of a point": (
        hosts(head=rails(HEAD, 0, address="10.200.0.1/32")),
        [f'inventory: spark-a: rail 0: address = "10.200.0.1/32": {_ADDRESS}; a prefix of /16 to /30'],
    ),
    "the network's own address": (
        hosts(head=rails(HEAD, 0, address="10.200.0.0/24")),
        [
            f'inventory: spark-a: rail 0: address = "10.200.0.0/24": {_ADDRESS}; 10.200.0.0 is no host\'s address in '
            "10.200.0.0/24"
        ],
    ),
    "netdev with a space": (
        hosts(head=rails(HEAD, 0, netdev="enp1 s0")),
        [
            'inventory: spark-a: rail 0: netdev = "enp1 s0": must be a network device such as enp1s0f0np0 (ip link lists '
            "them)"
        ],
    ),
    "two HCAs in one": (
        hosts(head=rails(HEAD, 0, hca="rocep1s0f0,roceP2p1s0f0")),
        [
            'inventory: spark-a: rail 0: hca = "rocep1s0f0,roceP2p1s0f0": must be one RDMA device such as rocep1s0f0 (rdma '
            "link lists them)"
        ],
    ),
    "reached by name": (
        hosts(worker=node(WORKER, ssh_hostname="spark-b.home")),
        [f'inventory: spark-b: management_address: it is reached as "spark-b.home"; state {_MANAGEMENT}'],
    ),
    "this machine": (
        [host("@local", "head", node(HEAD, ssh_hostname=None)), host("spark-b", "worker", WORKER)],
        [f"inventory: @local: management_address: the node is this machine; state {_MANAGEMENT}"],
    ),
    "loopback": (
        hosts(head=node(HEAD, management_address="127.0.0.1")),
        [
            f'inventory: spark-a: management_address = "127.0.0.1": must be {_MANAGEMENT}'
        ],
    ),
    "two heads": (
        [host("spark-a", "head", HEAD), host("spark-b", "head", WORKER)],
        [
            "inventory: group head has 2 nodes (spark-a, spark-b); it must have exactly one node",
            "inventory: group worker is empty; it must have at least one node",
        ],
    ),
    "no head": (
        [host("spark-b", "worker", WORKER)],
        ["inventory: group head has no node; it must have exactly one node"],
    ),
    "both positions": (
        [host("spark-a", ("head", "worker"), HEAD), host("spark-b", "worker", WORKER)],
        ["inventory: spark-a is in both groups, head and worker; a node is one of them"],
    ),
    "no position": (
        [*hosts(), host("spark-c", "gpu", third())],
        ["inventory: spark-c is in neither group; put it into head or worker"],
    ),
    "nothing at all": (
        [],
        [
            "inventory: group head has no node; it must have exactly one node",
            "inventory: group worker is empty; it must have at least one node",
        ],
    ),
    "a knob of the pair on a node": (
        hosts(worker=node(WORKER, max_num_seqs=8)),
        ["inventory: spark-b: max_num_seqs: has one value for the pair; state it in group_data/all.py"],
    ),
    "a knob of the pair on one group": (
        [host("spark-a", "head", HEAD, grouped={"max_num_seqs": 8}), host("spark-b", "worker", WORKER)],
        [
            "max_num_seqs: spark-a gets 8 (group_data/head.py) and spark-b gets nothing; it has one value for the pair: "
            "state it in group_data/all.py"
        ],
    ),
    "unknown word on a node": (
        hosts(worker=node(WORKER, rail=[])),
        ["inventory: spark-b: rail: no such knob (did you mean rails? docs/knobs.md)"],
    ),
    "bad path on a node": (
        hosts(worker=node(WORKER, weights_path="models")),
        [
            'inventory: spark-b: weights_path = "models": must be an absolute path on the node, or one that starts with ~/'
        ],
    ),
    "bad paths on both nodes": (
        hosts(head=node(HEAD, cache_path="a"), worker=node(WORKER, cache_path="b")),
        [
            'inventory: spark-a: cache_path = "a": must be an absolute path on the node, or one that starts with ~/',
            'inventory: spark-b: cache_path = "b": must be an absolute path on the node, or one that starts with ~/',
        ],
    ),
    "multicast": (
        hosts(head=rails(HEAD, 0, address="224.0.0.1/24")),
        [f'inventory: spark-a: rail 0: address = "224.0.0.1/24": {_ADDRESS}'],
    ),
    "settings and inventory together": (
        hosts({"max_num_seqs": "many"}, worker=rails(WORKER, 0, address="10.200.9.2/24")),
        [
            'group_data/all.py: max_num_seqs = "many": must be a whole number, 1 to 256, not text',
            "rail 0: spark-a has 10.200.0.1 and spark-b has 10.200.9.2; both ends of a rail must share one /24",
        ],
    ),
    "rails by --data": (
        hosts(cli={"rails": 3, "management_address": "192.168.1.10"}),
        [
            "--data: rails: belongs to one node; state it in that node's data in the inventory",
            "--data: management_address: belongs to one node; state it in that node's data in the inventory",
        ],
    ),
    "--data is named": (
        hosts({"max_num_seqs": 4}, cli={"max_num_seqs": 1.5, "max_lenght": 3}),
        [
            "--data: max_lenght: no such knob (did you mean max_model_len? docs/knobs.md)",
            "--data: max_num_seqs = 1.5: must be a whole number, 1 to 256",
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INVENTORY_CASES)
def test_inventory_refused(name: str) -> None:
    """What the nodes' own data gets wrong, and what only shows across nodes."""
    stated, lines = INVENTORY_CASES[name]
    assert refusals(stated) == lines


def test_the_strongest_door_holds() -> None:
    """--data beats the inventory, which beats group_data: as pyinfra itself has it."""
    stated = hosts(
        {"max_num_seqs": 2, "weights_path": "/all", "cache_path": "/c"},
        worker=node(WORKER, weights_path="/own", cache_path="/w"),
        cli={"max_num_seqs": 8, "cache_path": "/cli"},
    )
    settings = load(stated, CONNECTION)
    assert settings.knobs.max_num_seqs == 8
    assert [node.weights_path for node in settings.nodes] == ["/all", "/own"]
    assert [node.cache_path for node in settings.nodes] == ["/cli", "/cli"]


def test_a_value_is_judged_only_where_it_holds() -> None:
    """What --data replaces for this run is not looked at."""
    assert load(hosts({"max_num_seqs": 0}, cli={"max_num_seqs": 8}), CONNECTION).knobs.max_num_seqs == 8


def test_ranks_follow_the_inventory() -> None:
    """The head is rank 0 wherever it stands; workers follow in their order."""
    stated = [host("w1", "worker", third(4)), host("w2", "worker", WORKER), host("h", "head", HEAD)]
    nodes = load(stated, CONNECTION).nodes
    assert [(node.name, node.rank, node.position) for node in nodes] == [
        ("h", 0, "head"),
        ("w1", 1, "worker"),
        ("w2", 2, "worker"),
    ]


def test_connection_keys_are_pyinfras() -> None:
    """How to connect, and pyinfra's global arguments, are not ours to judge."""
    assert {"ssh_user", "ssh_key", "ssh_paramiko_connect_kwargs", "_sudo", "_env"} <= CONNECTION
    assert "name" not in CONNECTION
    load(hosts({"_sudo": True, "ssh_key": "/k"}), CONNECTION)


def inventory(all_data: dict[str, object], cli: dict[str, object] | None = None) -> Inventory:
    """pyinfra's own object, as its command line makes it."""
    return Inventory(  # type: ignore[no-untyped-call]
        (["@fake/spark-a", "@fake/spark-b"], all_data),
        override_data=cli,
        head=([("@fake/spark-a", node(HEAD))], {}),
        worker=([("@fake/spark-b", node(WORKER))], {"cache_path": "/worker-cache"}),
    )


def test_pyinfras_inventory() -> None:
    """The doors are found in pyinfra's object."""
    settings = settings_from_pyinfra(inventory({"max_num_seqs": 2, "cache_path": "/c"}, {"api_port": 9000}))
    assert [node.name for node in settings.nodes] == ["@fake/spark-a", "@fake/spark-b"]
    assert [settings.path(node, "cache_path") for node in settings.nodes] == ["/c", "/worker-cache"]
    assert (settings.knobs.max_num_seqs, settings.knobs.api_port) == (2, 9000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        pytest.param(
            ["--data", "max_num_seqs=1e1", "--data", "api_port=1e5", "--data", "max_model_len=1.5"],
            [
                "--data: api_port = 100000.0: must be at most 65535",
                "--data: max_model_len = 1.5: must be a whole number, 1 to 1048576",
            ],
            id="numbers",
        ),
        pytest.param(
            ["--data", "enforce_eager=1", "--data", "served_model_name=123", "--data", "gpu_memory_utilization=NaN"],
            [
                "--data: served_model_name = 123: must be one word of letters, digits and . _ - / :, not a whole number; "
                "in --data quote it as JSON: 'name=\"...\"'",
                "--data: gpu_memory_utilization = nan: must be a finite number, above 0, at most 1",
                "--data: enforce_eager = 1: must be True or False (true or false in --data)",
            ],
            id="types",
        ),
    ],
)
def test_through_pyinfras_command_line(tmp_path: Path, arguments: list[str], lines: list[str]) -> None:
    """Values as pyinfra converts them; one message, exit 1, no traceback."""
    example = (ROOT / "inventory.py").read_text(encoding="utf-8")
    (tmp_path / "inventory.py").write_text(example.replace('"spark-', '"@fake/spark-'), encoding="utf-8")
    (tmp_path / "deploy.py").write_text(
        "from pyinfra import inventory\nfrom spec.load import settings_from_pyinfra\nsettings_from_pyinfra(inventory)\n",
        encoding="utf-8",
    )
    run = subprocess.run(
        [sys.executable, "-m", "pyinfra", "inventory.py", "deploy.py", "--dry", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "Traceback" not in run.stderr
    message = run.stderr[run.stderr.index(FIRST) :].splitlines()
    assert [line.strip() for line in message[1 : 1 + len(lines)]] == lines
    assert run.stderr.count(FIRST) == 1


@pytest.mark.slow
def test_three_doors_through_pyinfras_command_line(tmp_path: Path) -> None:
    """Unknown, misspelt and of a wrong type, through each door: one message, and each line names its door."""
    example = (ROOT / "inventory.py").read_text(encoding="utf-8").replace('"spark-', '"@fake/spark-')
    own = '"wieghts": 1, "weigths_path": "/m", "cache_path": 7, "rails": [\n'
    (tmp_path / "inventory.py").write_text(example.replace('"rails": [\n', own, 1), encoding="utf-8")
    (tmp_path / "group_data").mkdir()
    (tmp_path / "group_data" / "all.py").write_text(
        'max_len = 4096\nmax_num_sequences = 4\nqqq = 1\nmax_model_len = "131072"\n', encoding="utf-8"
    )
    (tmp_path / "deploy.py").write_text(
        "from pyinfra import inventory\nfrom spec.load import settings_from_pyinfra\nsettings_from_pyinfra(inventory)\n",
        encoding="utf-8",
    )
    data = ["MAX_SEQS=4", "zzz=1", "max_num_seq=8", "api_port=web", "preset=long-document"]
    run = subprocess.run(
        [
            *[sys.executable, "-m", "pyinfra", "inventory.py", "deploy.py", "--dry"],
            *[word for item in data for word in ("--data", item)],
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "Traceback" not in run.stderr
    assert run.stderr.count(FIRST) == 1
    lines = [line.strip() for line in run.stderr[run.stderr.index(FIRST) :].splitlines()[1:]]
    assert set(lines[: lines.index("")] if "" in lines else lines) == {
        "--data: MAX_SEQS: no such knob (did you mean max_num_seqs? docs/knobs.md)",
        "--data: zzz: no such knob (docs/knobs.md lists them)",
        "--data: max_num_seq: no such knob (did you mean max_num_seqs? docs/knobs.md)",
        '--data: api_port = "web": must be a whole number, 1 to 65535, not text',
        '--data: preset = "long-document": must be one of default, responsive-chat, more-context, long-documents, '
        "many-agents, unquantized-kv, mtp-fallback",
        "inventory: @fake/spark-a: wieghts: no such knob (did you mean weights? docs/knobs.md)",
        "inventory: @fake/spark-a: weigths_path: no such knob (did you mean weights_path? docs/knobs.md)",
        "inventory: @fake/spark-a: cache_path = 7: must be an absolute path on the node, or one that starts with ~/, not a "
        "whole number; in --data quote it as JSON: 'name=\"...\"'",
        "group_data/all.py: max_len: no such knob (did you mean max_model_len? docs/knobs.md)",
        "group_data/all.py: max_num_sequences: no such knob (did you mean max_num_seqs? docs/knobs.md)",
        "group_data/all.py: qqq: no such knob (docs/knobs.md lists them)",
        'group_data/all.py: max_model_len = "131072": must be a whole number, 1 to 1048576, not text',
    }


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("MAX_LEN", "did you mean max_model_len? docs/knobs.md"),
        ("WORKER_LAN_IP", "the worker's address in inventory.py; docs/migration.md"),
        (
            "nfs_port",
            "with weights = nfs the node's own kernel exports them, at the port that NFS always has; docs/migration.md",
        ),
        ("WEIGHTS_MODE", "did you mean weights? docs/knobs.md"),
        ("HF_ENDPOINT", "did you mean hub_endpoint? docs/knobs.md"),
        ("KIT_VERSION", "did you mean image_release? docs/knobs.md"),
    ],
)
def test_the_kits_own_names_are_known(name: str, meant: str) -> None:
    """What came from the kit's `.env` as it was is told where it belongs."""
    with pytest.raises(DeployError) as refused:
        load(hosts({name: 1}), CONNECTION)
    assert str(refused.value).splitlines()[1:] == [f"  group_data/all.py: {name}: no such knob ({meant})"]
