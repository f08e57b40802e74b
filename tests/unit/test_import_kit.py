"""The import as a command: what it says, what it writes, that nothing is lost, and how it ends."""

# Messages stand here in one piece.
# ruff: noqa: E501

from __future__ import annotations

import errno
import os
import runpy
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spec import import_kit, kit_keys
from spec.import_kit import Machine, main
from spec.kept_files import NotWritten, write
from spec.kit_keys import KNOBS_OF, RETIRED, known, migration_page, treatments
from spec.knobs import KNOBS
from spec.load import Source, StatedHost, connection_keys, load
from spec.transport import ssh
from tests import repository

HERE = Machine(user=lambda: "alice", home=lambda: Path("/home/alice"), address_towards=lambda address: "192.168.1.10")

KIT = """\
WORKER_LAN_IP=192.168.1.2
WORKER_USER=bob
NCCL_SUBNET=10.200.0.0/24
WEIGHTS_MODE=nfs
MAX_LEN=262144
MAX_LEN=131072 # the last one holds
MAX_SEQS=4
KV_DTYPE=
KV_CACHE_MEMORY=
ATTN_BACKEND=
KDA_PREFILL=triton
SPEC=off
MAX_LENGTH=5
NCCL_DEBUG=INFO
TOKEN_OF_SOMEBODY=hf_secret
GLM53_NO_UPDATE_CHECK=1
"""

REPORT = """\
Taken:
  .env:1   WORKER_LAN_IP=192.168.1.2  the worker's address in inventory.py
  .env:2   WORKER_USER=bob            the worker's user in inventory.py; empty: the head's
  .env:3   NCCL_SUBNET=10.200.0.0/24  the prefix length of both addresses; a network without both is refused
  .env:4   WEIGHTS_MODE=nfs           weights = "nfs"
  .env:6   MAX_LEN=131072             max_model_len = 131072
  .env:7   MAX_SEQS=4                 the stack's default, left out
  .env:8   KV_DTYPE=""                kv_cache_dtype = ""
  .env:9   KV_CACHE_MEMORY=""         empty is the kit's default; left out
  .env:10  ATTN_BACKEND=""            attention_backend = ""
  .env:11  KDA_PREFILL=triton         kda_prefill_backend = "triton"; the kit hands it to neither rank, so it takes effect only now
  .env:12  SPEC=off                   speculative_method = ""; the kit knows dflash and none, and takes "off" for none
  .env:16  GLM53_NO_UPDATE_CHECK=1    update_check = False
Unknown:
  .env:13  MAX_LENGTH                 the kit does not read it, and it has no effect here (did you mean MAX_LEN?)
  .env:14  NCCL_DEBUG                 the kit does not read it; here it is the knob nccl_debug, left unset
  .env:15  TOKEN_OF_SOMEBODY          the kit does not read it, and it has no effect here
To know:
  .env: MAX_LEN stands on lines 5 and 6; line 6 holds, as in the shell
  weights_path: on the worker the kit uses /home/alice/models/glm53-exl3, a path below the head's home, so that is stated for the worker
  drafter_path: on the worker the kit uses /home/alice/models/glm53-dflash2-mxfp8, a path below the head's home, so that is stated for the worker
Before a deploy:
  .env:4: WEIGHTS_MODE=nfs: what the kit exports goes with its containers: on the worker docker rm -f nfs-exl3, and on the head, when its container is gone, docker volume rm exl3weights
A deploy would warn:
  kv_cache_dtype_skip_layers = "sliding_window" (the stack's default): leaves nothing out, because the cache is not quantized by layer (kv_cache_dtype = ""); set kv_cache_dtype_skip_layers = ""
"""

SETTINGS = '''\
"""The pair's settings, taken over from the reference kit: what differs from the stack's defaults.

Every knob is in docs/knobs.md, and what became of each variable of the kit in docs/migration.md.
"""

stack = "vllm-exl3"

weights = "nfs"  # WEIGHTS_MODE
max_model_len = 131072  # MAX_LEN
speculative_method = ""  # SPEC
kv_cache_dtype = ""  # KV_DTYPE
attention_backend = ""  # ATTN_BACKEND
kda_prefill_backend = "triton"  # KDA_PREFILL
update_check = False  # GLM53_NO_UPDATE_CHECK
'''

INVENTORY = '''\
"""The two Sparks, taken over from the reference kit: how to reach each one, and its rail.

The kit uses one of the two rails that a QSFP port has; README.md shows an inventory with both.
"""

from spec.transport import ssh

head = [
    (
        "@local",
        {
            "management_address": "192.168.1.10",
            "rails": [
                {"netdev": "enp1s0f0np0", "hca": "rocep1s0f0", "address": "10.200.0.1/24"},
            ],
        },
    ),
]

worker = [
    (
        "spark-b",
        {
            **ssh("192.168.1.2", user="bob"),
            "rails": [
                {"netdev": "enp1s0f0np0", "hca": "rocep1s0f0", "address": "10.200.0.2/24"},
            ],
            "weights_path": "/home/alice/models/glm53-exl3",
            "drafter_path": "/home/alice/models/glm53-dflash2-mxfp8",
        },
    ),
]
'''


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the kit's .env, and one to write into."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / ".env").write_text(KIT)
    return tmp_path


def run(*argv: str, machine: Machine = HERE) -> int:
    """The command, writing into out/."""
    return main([*argv, "--output", "out"], machine)


def tree(directory: Path) -> dict[str, str]:
    """Every file below a directory."""
    return {
        str(path.relative_to(directory)): path.read_text() for path in sorted(directory.rglob("*")) if path.is_file()
    }


def test_report_and_files(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of it, word by word."""
    assert run(".env", "--here") == 0
    said = capsys.readouterr()
    assert said.out == REPORT + "Written:\n  out/group_data/all.py\n  out/inventory.py\n"
    assert said.err == ""
    assert tree(kit / "out") == {"group_data/all.py": SETTINGS, "inventory.py": INVENTORY}
    assert (kit / ".env").read_text() == KIT


def test_dry(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same words, and no file."""
    assert run(".env", "--here", "--dry") == 0
    shown = "".join(
        f"Would write {name}:\n" + "".join(f"  {line}\n" if line else "\n" for line in text.splitlines())
        for name, text in (("group_data/all.py", SETTINGS), ("inventory.py", INVENTORY))
    )
    assert capsys.readouterr().out == REPORT + shown
    assert tree(kit / "out") == {}


def test_secrets_of_others_are_not_shown(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A variable that is none of the kit's is named without its value."""
    run(".env", "--here")
    assert "hf_secret" not in capsys.readouterr().out


def test_what_is_written_is_what_pyinfra_would_load(kit: Path) -> None:
    """The files are Python with exactly the data that was judged."""
    (kit / "w").write_text(
        ': "${NCCL_IF:=enp1s0f1np1}"\n: "${NCCL_HCA:=rocep1s0f1}"\n: "${CACHE_HOST_PATH=/data/c}"\n'
        ': "${MAX_LEN=131072}"\n: "${HEAD_RAIL_IP:=10.200.0.1}"\n: "${WORKER_RAIL_IP:=10.200.0.2}"\n'
        ': "${KV_DTYPE=}" "${ATTN_BACKEND=}" "${SPEC=off}"\nKDA_PREFILL=triton\n'
    )
    assert run(".env", "--head", "192.168.1.10", "--head-user", "alice", "--worker-file", "w") == 0
    written = runpy.run_path(str(kit / "out/group_data/all.py"))
    inventory = runpy.run_path(str(kit / "out/inventory.py"))
    stated = {name: value for name, value in written.items() if not name.startswith("_")}
    hosts = [
        StatedHost(
            name,
            (group,),
            False,
            (Source(f"inventory: {name}", data, of_one_node=True), Source("group_data/all.py", stated)),
        )
        for group in ("head", "worker")
        for name, data in inventory[group]
    ]
    loaded = load(hosts, connection_keys())
    head, worker = loaded.nodes
    assert (head.name, str(head.management_address), str(head.rails[0].address)) == (
        "spark-a", "192.168.1.10", "10.200.0.1/24",
    )  # fmt: skip
    assert (worker.rails[0].netdev, worker.rails[0].hca, worker.cache_path) == ("enp1s0f1np1", "rocep1s0f1", "/data/c")
    assert inventory["head"][0][1]["ssh_user"] == "alice"
    assert inventory["worker"][0][1].keys() == {*ssh("192.168.1.2", user="bob"), "rails", "cache_path"}
    assert loaded.knobs.max_model_len == 131072


# Nothing is lost


def test_former_files_are_kept(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each differing file under a name of its own, the second and the third time too; the same file is left alone."""
    out = kit / "out"
    (out / "inventory.py").write_text("mine\n")
    os.chmod(out / "inventory.py", 0o640)
    assert run(".env", "--here") == 0
    assert "  out/inventory.py, the former one is " in capsys.readouterr().out
    assert stat.S_IMODE((out / "inventory.py").stat().st_mode) == 0o640
    assert run(".env", "--here") == 0
    assert capsys.readouterr().out.endswith(
        "Written:\n  out/group_data/all.py: as it was\n  out/inventory.py: as it was\n"
    )
    (out / "inventory.py").write_text("mine again\n")
    (out / "group_data/all.py").write_text("x = 1\n")
    assert run(".env", "--here") == 0
    assert capsys.readouterr().out.endswith(
        f"Written:\n  out/group_data/all.py, the former one is {out}/group_data/all.py.before-import\n"
        f"  out/inventory.py, the former one is {out}/inventory.py.before-import-2\n"
    )
    assert tree(out) == {
        "group_data/all.py": SETTINGS,
        "group_data/all.py.before-import": "x = 1\n",
        "inventory.py": INVENTORY,
        "inventory.py.before-import": "mine\n",
        "inventory.py.before-import-2": "mine again\n",
    }


def test_a_link_is_followed(kit: Path) -> None:
    """Settings that lie elsewhere stay there, and the former ones beside them."""
    (kit / "elsewhere.py").write_text("mine\n")
    (kit / "out/inventory.py").symlink_to("../elsewhere.py")
    assert run(".env", "--here") == 0
    assert (kit / "out/inventory.py").is_symlink()
    assert (kit / "elsewhere.py").read_text() == INVENTORY
    assert (kit / "elsewhere.py.before-import").read_text() == "mine\n"


def test_a_second_file_that_cannot_be_written_undoes_the_first(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both or none."""
    out = kit / "out"
    (out / "group_data").mkdir()
    (out / "group_data/all.py").write_text("mine\n")
    (out / "inventory.py").mkdir()
    assert run(".env", "--here") == 1
    assert capsys.readouterr().err == (
        f"Import refused; nothing was written.\n"
        f"  {out}/inventory.py: cannot be written: Is a directory; nothing was changed\n"
    )
    assert tree(out) == {"group_data/all.py": "mine\n"}


@pytest.mark.parametrize("failing", [1, 2])
@pytest.mark.parametrize("existing", [True, False])
def test_a_replacement_that_fails_is_undone(
    kit: Path, monkeypatch: pytest.MonkeyPatch, failing: int, existing: bool
) -> None:
    """A disk that fails at the first or the second file leaves everything as it was."""
    out = kit / "out"
    if existing:
        (out / "a").write_text("old a")
        (out / "b").write_text("old b")
    before, calls, replace = tree(out), 0, os.replace

    def fails_once(old: Path, new: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(errno.EIO, "Input/output error", str(new))
        replace(old, new)

    monkeypatch.setattr(os, "replace", fails_once)
    with pytest.raises(NotWritten) as failed:
        write(out, {"a": "new a", "b": "new b"})
    assert str(failed.value) == f"{out}/{'ab'[failing - 1]}: cannot be written: Input/output error; nothing was changed"
    assert tree(out) == before


def test_without_hard_links_a_copy_is_kept(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems have no second names."""

    def refused(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(target))

    monkeypatch.setattr(os, "link", refused)
    for text in ("one", "two", "three"):
        write(kit / "out", {"a": text})
    assert tree(kit / "out") == {"a": "three", "a.before-import": "one", "a.before-import-2": "two"}


def test_a_full_disk_leaves_no_remains(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was begun is taken away again."""

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NotWritten, match="No space left on device"):
        write(kit / "out", {"a": "new"})
    assert tree(kit / "out") == {}


@pytest.mark.parametrize("existing", [True, False])
@pytest.mark.parametrize("failing", [1, 2])
def test_an_interrupt_leaves_all_as_it_was(
    kit: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], existing: bool, failing: int
) -> None:
    """Whatever was begun is taken back, and no remains lie about."""
    out = kit / "out"
    (out / "group_data").mkdir()
    if existing:
        (out / "group_data/all.py").write_text("mine\n")
        (out / "inventory.py").write_text("mine too\n")
    before, calls, replace = tree(out), 0, os.replace

    def interrupted(old: Path, new: Path) -> None:
        nonlocal calls
        replace(old, new)
        calls += 1
        if calls == failing:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    assert run(".env", "--here") == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "Import refused; nothing was written.\n  interrupted; nothing was changed\n")
    assert tree(out) == before


def test_what_is_no_file_is_not_replaced(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe would be waited for without end; a device behind a link would be gone."""
    os.mkfifo(kit / "pipe")
    (kit / "out/inventory.py").symlink_to("../pipe")
    assert run(".env", "--here") == 1
    assert capsys.readouterr().err == (
        f"Import refused; nothing was written.\n  {kit}/pipe: cannot be written: is no regular file; nothing was changed\n"
    )
    assert stat.S_ISFIFO((kit / "pipe").stat().st_mode)
    assert tree(kit / "out") == {}


def test_a_kept_copy_that_fails_leaves_no_remains(kit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are no hard links, the disk may be full at the copy."""

    def refused(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(target))

    def half(source: Path, target: Path) -> None:
        target.write_text("ha")
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    (kit / "out/a").write_text("half or whole")
    monkeypatch.setattr(os, "link", refused)
    monkeypatch.setattr(shutil, "copy2", half)
    with pytest.raises(NotWritten, match="No space left on device"):
        write(kit / "out", {"a": "new"})
    assert tree(kit / "out") == {"a": "half or whole"}


# Refusals


def test_a_refusal_writes_nothing(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All refusals at once, on standard error, with file and line; standard output stays empty."""
    (kit / "bad").write_text("MAX_SEQS=many\nA=$(x)\nMTP=99\n")
    assert run("bad", "missing", "out", "--here") == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "Import refused; nothing was written.\n"
        "  bad:2: $(...) would run a command; write what it gives\n"
        "  missing: no such file; name the kit's .env, or a node's ~/.glm53-serve.env\n"
        "  out: is a directory; name the kit's .env, or a node's ~/.glm53-serve.env\n"
        "  bad:1: MAX_SEQS=many: must be a whole number, 1 to 256\n"
        "  bad:3: MTP=99: must be at most 16\n"
    )
    assert tree(kit / "out") == {}


def no_route(address: str) -> str:
    """A machine without a network."""
    raise OSError(errno.ENETUNREACH, "Network is unreachable")


CASES: list[tuple[str, list[str], list[str]]] = [
    ("MAX_LEN=1\n", ["--here"], ["inventory.py needs WORKER_LAN_IP, the worker's address on the management network: name the kit's .env"]),
    ("WORKER_LAN_IP=spark-b\n", ["--here"], [".env:1: WORKER_LAN_IP=spark-b: must be the worker's IPv4 address"]),
    ("WORKER_LAN_IP=192.168.1.2\nHEAD_RAIL_IP=rail\n", ["--here"], [".env:2: HEAD_RAIL_IP=rail: must be an IPv4 address"]),
    ("WORKER_LAN_IP=192.168.1.2\nNCCL_SUBNET=10.200.0\n", ["--here"], [".env:2: NCCL_SUBNET=10.200.0: must be a network such as 10.200.0.0/24"]),
    (
        "WORKER_LAN_IP=192.168.1.2\nNCCL_SUBNET=10.201.0.0/24\n",
        [],
        [
            ".env:2: HEAD_RAIL_IP=10.200.0.1 is not in NCCL_SUBNET=10.201.0.0/24; NCCL finds no device then; state the network of both rails",
            ".env:2: WORKER_RAIL_IP=10.200.0.2 is not in NCCL_SUBNET=10.201.0.0/24; NCCL finds no device then; state the network of both rails",
        ],
    ),
    (
        "WORKER_LAN_IP=192.168.1.2\nWORKER_USER='bob smith'\n",
        ["--here"],
        ["inventory: 192.168.1.2: user = 'bob smith': must be the name of a user on the node"],
    ),
    (
        "IMAGE=ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark\n",
        [],
        [
            ".env:1: IMAGE=ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark: a tag can be pushed again, so an image is stated by digest; on the head, docker image inspect --format '{{index .RepoDigests 0}}' ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark:latest names it: write IMAGE=ghcr.io/entrpi/glm-5.3-flash-exl3-2x-spark:latest@sha256:..., or leave IMAGE out for v2.3-tier1"
        ],
    ),
    ("MTP=-1\n", [], [".env:1: MTP=-1: must be a whole number, 0 to 16"]),
    ("MTP=-1\n", [], [".env:1: MTP=-1: must be a whole number, 0 to 16"]),
    ("MTP=04\n", [], [".env:1: MTP=04: must be a whole number, 0 to 16"]),
    ("KV_CACHE_MEMORY=90000g\n", [], ['.env:1: KV_CACHE_MEMORY=90000g: must be at most 100000000000, or "auto"']),
    ("NAME='a b'\n", [], ['.env:1: NAME="a b": must be one word of letters, digits and . _ -']),
]  # fmt: skip


@pytest.mark.parametrize(("text", "options", "refusals"), CASES, ids=[repr(text) for text, _, _ in CASES])
def test_refusals(
    kit: Path, capsys: pytest.CaptureFixture[str], text: str, options: list[str], refusals: list[str]
) -> None:
    """Exact words."""
    (kit / ".env").write_text(text)
    assert run(".env", *options) == 1
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "Import refused; nothing was written."
    assert [line[2:] for line in lines] == refusals
    assert tree(kit / "out") == {}


def test_no_way_to_the_worker(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--here on a machine that cannot reach the worker's network."""
    machine = Machine(user=HERE.user, home=HERE.home, address_towards=no_route)
    assert run(".env", "--here", machine=machine) == 1
    assert capsys.readouterr().err.splitlines()[1:] == [
        "  --here: this machine has no way to WORKER_LAN_IP=192.168.1.2 (Network is unreachable); run this on the head, or give --head ADDRESS"
    ]


def test_own_address_is_found_without_a_packet() -> None:
    """The socket is a datagram socket, and connecting it only chooses the route."""
    sent: list[str] = []

    class Probe(socket.socket):
        def send(self, *arguments: Any) -> int:
            sent.append("send")
            return 0

    original = socket.socket
    socket.socket = Probe  # type: ignore[misc]
    try:
        assert import_kit.Machine().address_towards("127.0.0.1") == "127.0.0.1"
    finally:
        socket.socket = original  # type: ignore[misc]
    assert sent == []


def test_two_files_of_nodes_are_told_apart(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Head's and worker's file given alike: the message says how."""
    (kit / "h").write_text(': "${NCCL_IF:=a0}"\n')
    (kit / "w").write_text(': "${NCCL_IF:=b0}"\n')
    assert run("h", "w") == 1
    assert capsys.readouterr().err.splitlines()[1:] == [
        "  w:1: NCCL_IF=b0, and h:1 has a0; name the worker's own file with --worker-file"
    ]


def test_an_output_that_is_not_there(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not made."""
    assert main([".env", "--here", "--output", "nowhere"], HERE) == 1
    assert capsys.readouterr().err.splitlines()[1:] == [
        "  nowhere: no such directory; name one that exists with --output"
    ]


@pytest.mark.parametrize(
    "argv",
    [
        [],
        [".env", "--head", "192.168.1.10"],
        [".env", "--head-user", "alice"],
        [".env", "--head", "spark-a", "--head-user", "alice"],
        [".env", "--here", "--head", "192.168.1.10", "--head-user", "alice"],
        [".env", "--unknown"],
    ],
    ids=str,
)
def test_usage(kit: Path, argv: list[str]) -> None:
    """Exit code 2, and nothing written."""
    assert run(*argv) == 2
    assert tree(kit / "out") == {}


# Without an inventory


def test_without_a_way_to_the_head_only_settings_are_written(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And what inventory.py needs is said."""
    (kit / "out/inventory.py").write_text("mine\n")
    assert run(".env") == 0
    out = capsys.readouterr().out
    assert out.endswith(
        "Written:\n  out/group_data/all.py\n"
        "inventory.py is not written; it needs:\n"
        "  how the head is reached: --head ADDRESS --head-user USER, or --here on the head itself\n"
    )
    assert (
        "  weights_path: ~/models/glm53-exl3 is below the home of bob on the worker; the kit uses the head's home there. "
        "If the files lie under that, state weights_path in the worker's data in inventory.py\n"
    ) in out
    assert tree(kit / "out") == {"group_data/all.py": SETTINGS, "inventory.py": "mine\n"}


def test_what_belongs_to_one_node_is_said(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A node's own file alone."""
    (kit / "h").write_text(': "${NCCL_IF:=enp1s0f0np0}"\nNCCL_GID_INDEX=4\n')
    assert run("h") == 0
    out = capsys.readouterr().out
    assert "nccl_ib_gid_index = 4; better left out: the row moves when a link comes back (3 to 4 was seen)\n" in out
    assert out.endswith(
        "inventory.py is not written; it needs:\n"
        "  how the head is reached: --head ADDRESS --head-user USER, or --here on the head itself\n"
        "  WORKER_LAN_IP, the worker's address on the management network: name the kit's .env\n"
        "  the worker's netdev and HCA: name its ~/.glm53-serve.env with --worker-file, or the kit's .env\n"
        "  for the head: nccl_ib_gid_index = 4\n"
    )


@pytest.mark.parametrize(
    ("text", "preset"),
    [
        ("MTP=4\n", "mtp-fallback"),
        ("MIXED_PREFILL_DECODE_WEIGHT=1\nMIXED_PREFILL_CAP=512\n", "responsive-chat"),
        ("KV_DTYPE=nvfp4_ds_mla\nVLLM_NVFP4_MLA_DYNAMIC_SCALE=1\nMAX_LEN=1048576\nMNBT=4096\n", "long-documents"),
        ("MAX_LEN=131072\n", None),
    ],
)
def test_a_preset_is_named(kit: Path, capsys: pytest.CaptureFixture[str], text: str, preset: str | None) -> None:
    """Settings that are a published configuration are called by its name."""
    (kit / ".env").write_text(text)
    assert run(".env") == 0
    assert (f'preset = "{preset}"' in capsys.readouterr().out) is (preset is not None)


@pytest.mark.parametrize(
    ("text", "value"),
    [("14400000000", None), ("13400000000", 13_400_000_000), ("13.4g", 13_400_000_000), ("12G", 12 * 1024**3), ("auto", "auto")],
)  # fmt: skip
def test_bytes(kit: Path, text: str, value: object) -> None:
    """A budget as the engine reads it: plain, powers of 1000, powers of 1024."""
    (kit / ".env").write_text(f"KV_CACHE_MEMORY={text}\n")
    assert run(".env") == 0
    assert runpy.run_path("out/group_data/all.py").get("kv_cache_memory_bytes") == value


# The kit v2.3-tier1: its installer, its launcher and its example, each variable once.
OF_THE_KIT = [
    "ATTN_BACKEND", "BLOCK_SIZE", "CACHE_HOST_PATH", "DFLASH_DIR", "DFLASH_REPO", "DFLASH_REVISION", "DFLASH_TOKENS",
    "EAGER", "EXL3_REPO", "EXL3_REPO_FALLBACK", "GLM53_ENV", "GLM53_NO_UPDATE_CHECK", "GLM53_TOPK_FIX_SO",
    "GLM53_UPDATE_URL", "GMU", "HEAD_NCCL_HCA", "HEAD_NCCL_IF", "HEAD_RAIL_IP", "IMAGE", "KDA_PREFILL", "KIT_VERSION",
    "KV_CACHE_MEMORY", "KV_DTYPE", "KV_SKIP_LAYERS", "LOAD_FORMAT", "MAX_LEN", "MAX_SEQS", "MEM_USED_MAX_GB",
    "MIXED_PREFILL_CAP", "MIXED_PREFILL_DECODE_WEIGHT", "MIXED_PREFILL_MAX_DEFER", "MM_CACHE_GB", "MNBT",
    "MODEL_HOST_PATH", "MPORT", "MTP", "NAME", "NCCL_GID_INDEX", "NCCL_HCA", "NCCL_IF", "NCCL_NCHANNELS",
    "NCCL_SUBNET", "NFS_IMAGE", "NFS_PORT", "PORT", "PREFIX_MATCH_UNIT", "SKIP_MM_PROFILING", "SPEC",
    "VLLM_B12X_MXFP8_MAX_M", "VLLM_DFLASH_FP8_DRAFT_HEAD", "VLLM_DFLASH_KV_RING", "VLLM_DISABLED_KERNELS",
    "VLLM_EXL3_STANDARD_FUSED", "VLLM_NVFP4_MLA_DYNAMIC_SCALE", "VLLM_SERVER_DEV_MODE", "VLLM_USE_B12X_FP8_GEMM",
    "VOL_NAME", "WEIGHTS_MODE", "WORKER_LAN_IP", "WORKER_NCCL_HCA", "WORKER_NCCL_IF", "WORKER_RAIL_IP", "WORKER_USER",
]  # fmt: skip

LINE = st.builds(
    "{}{}={}{}".format,
    st.sampled_from(
        ["", "export ", "# "],
    ),
    st.sampled_from(OF_THE_KIT),
    st.sampled_from(
        [
            "",
            "0",
            "1",
            "4",
            "-1",
            "0.5",
            "auto",
            "none",
            "mtp",
            "x",
            "~/m",
            "/srv/m",
            "10.200.0.9",
            "10.0.0.0/8",
            "999999999999999999999",
            "é",
        ]
    )
    | st.text(max_size=12),
    st.sampled_from(["", " # c", "\r"]),
)
DEFAULT = st.builds(': "${{{}:={}}}"'.format, st.sampled_from(OF_THE_KIT), st.text("ab1./~", max_size=6))
TEXTS = st.text(max_size=80) | st.lists(LINE | DEFAULT, max_size=8).map("\n".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=TEXTS,
    other=TEXTS,
    worker=st.none() | TEXTS,
    options=st.sampled_from([[], ["--here"], ["--head", "192.168.1.10", "--head-user", "a"]]),
)
def test_any_file_ends_in_a_file_or_a_refusal(
    kit: Path, text: str, other: str, worker: str | None, options: list[str]
) -> None:
    """No exception; what is written is Python with plain values that the knobs take."""
    names = {"a": text, "b": other, **({"w": worker} if worker is not None else {})}
    for name, content in names.items():
        (kit / name).write_text(content, encoding="utf-8")
    (kit / "out/group_data/all.py").unlink(missing_ok=True)
    code = run("a", "b", *options, *(["--worker-file", "w"] if worker is not None else []))
    assert code in (0, 1)
    assert (kit / "out/group_data/all.py").exists() is (code == 0)
    if code == 0:
        stated = runpy.run_path(str(kit / "out/group_data/all.py"))
        for name, value in stated.items():
            if not name.startswith("_"):
                KNOBS[name].parse(value)


def test_a_name_that_is_no_text(kit: Path) -> None:
    """Bytes that are no UTF-8 are a name all the same."""
    done = subprocess.run(
        [sys.executable, "-m", "spec.import_kit", b"k\xff", "--output", str(kit / "out")],
        cwd=repository.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "k\\udcff: no such file; name the kit's .env" in done.stderr


def test_as_a_command(kit: Path) -> None:
    """`python -m spec.import_kit`, from another directory than the one it writes to."""
    done = subprocess.run(
        [sys.executable, "-m", "spec.import_kit", str(kit / "none"), "--output", str(kit / "out")],
        cwd=repository.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"Import refused; nothing was written.\n  {kit}/none: no such file; name the kit's .env, or a node's ~/.glm53-serve.env\n"
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_report_that_nobody_takes(kit: Path) -> None:
    """The files are written by then: that is what the exit code says."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "spec.import_kit", str(kit / ".env"), "--output", str(kit / "out")],
            cwd=repository.ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        0,
        "The report could not be printed: No space left on device; the files are written.\n",
    )
    assert set(tree(kit / "out")) == {"group_data/all.py"}


def nodes_files(head: str, worker: str, kit: Path) -> int:
    """The import of a kit's `.env` with these lines, and of the worker's own file with those."""
    (kit / ".env").write_text(f"WORKER_LAN_IP=192.168.1.2\nHEAD_NCCL_IF=a0\nHEAD_NCCL_HCA=a1\n{head}\n")
    (kit / "w").write_text(f"NCCL_IF=b0\nNCCL_HCA=b1\n{worker}\n")
    return run(".env", "--head", "192.168.1.10", "--head-user", "alice", "--worker-file", "w")


@pytest.mark.parametrize("worker", ["WEIGHTS_MODE=local", "WEIGHTS_MODE=nfs", ""])
def test_nfs_is_the_heads_matter(kit: Path, capsys: pytest.CaptureFixture[str], worker: str) -> None:
    """The worker reads its own disk in either mode; what the kit leaves behind comes with the commands."""
    assert nodes_files("WEIGHTS_MODE=nfs\nVOL_NAME=mine", worker, kit) == 0
    assert runpy.run_path("out/group_data/all.py")["weights"] == "nfs"
    assert (
        "  .env:4: WEIGHTS_MODE=nfs: what the kit exports goes with its containers: on the worker docker rm -f nfs-exl3, and on the head, when its container is gone, docker volume rm mine\n"
    ) in capsys.readouterr().out


def test_a_worker_cannot_mount_while_the_head_holds(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert nodes_files("WEIGHTS_MODE=local", "WEIGHTS_MODE=nfs", kit) == 1
    assert capsys.readouterr().err == (
        "Import refused; nothing was written.\n"
        "  weights: .env:4 has WEIGHTS_MODE=local and w:3 has WEIGHTS_MODE=nfs; both ranks have one value: make the files agree\n"
    )


def test_local_weights_are_the_default(kit: Path) -> None:
    assert nodes_files("WEIGHTS_MODE=local", "", kit) == 0
    assert "weights" not in runpy.run_path("out/group_data/all.py")


def test_what_the_kits_programs_read_is_told_where_it_belongs(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (kit / ".env").write_text("MAX_SEQS=4\nHF_ENDPOINT=https://hub.example\n")
    assert run(".env") == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "HF_ENDPOINT" in line]
    said = "the kit does not read it; here it is the knob hub_endpoint, left unset"
    assert line.split(maxsplit=2) == [".env:2", "HF_ENDPOINT", said]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, "worker.env: no such file; name the kit's .env, or a node's ~/.glm53-serve.env"),
        ("NCCL_IF=a\nMAX_LEN=$(x)\n", "worker.env:2: $(...) would run a command; write what it gives"),
        ("NCCL_IF=a\nMAX_LEN=long\n", "worker.env:2: MAX_LEN=long: must be a whole number, 1 to 1048576"),
    ],
    ids=["missing", "an expression", "a value"],
)
def test_a_refused_line_is_not_missed(
    kit: Path, capsys: pytest.CaptureFixture[str], text: str | None, line: str
) -> None:
    """That the worker's file lacks what the head's states is not said where its line could not be taken."""
    (kit / ".env").write_text("WORKER_LAN_IP=192.168.1.2\nMAX_LEN=131072\n")
    if text is not None:
        (kit / "worker.env").write_text(text)
    assert run(".env", "--worker-file", "worker.env") == 1
    assert capsys.readouterr().err == f"Import refused; nothing was written.\n  {line}\n"


# The table


def test_every_variable_of_the_kit_is_known() -> None:
    """Each once: an address, a knob, or retired with a reason."""
    assert sorted(known()) == sorted(OF_THE_KIT)
    assert [row.variable for row in treatments()] == list(known())
    assert not set(KNOBS_OF) & set(RETIRED)


def test_knobs_are_declared_once() -> None:
    """The table adds to what spec/knobs.py declares and repeats none of it."""
    assert {name for names in KNOBS_OF.values() for name in names} <= {name for name, knob in KNOBS.items() if knob.kit}
    assert set(KNOBS_OF) >= kit_keys.THREE_STATES | kit_keys.NOT_FORWARDED
    assert all(KNOBS[KNOBS_OF[variable][0]].may_be_empty for variable in kit_keys.THREE_STATES)


def test_the_page_is_current() -> None:
    """docs/migration.md ends with the table."""
    page = (repository.ROOT / "docs" / "migration.md").read_text(encoding="utf-8")
    assert kit_keys.MARK in page
    assert page == migration_page(page)


def test_the_table_needs_no_pyinfra() -> None:
    """Whoever judges a name may ask it."""
    code = "import sys, spec.kit_keys; print('pyinfra' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=repository.ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("text", ["", "# nothing\n", "SOMETHING_ELSE=1\nHOME_DIR=/x\n"])
def test_a_file_of_somebody_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    """A file without one variable of the kit is the wrong file: what is there already is not replaced by defaults."""
    (tmp_path / ".env").write_text(text)
    (tmp_path / "group_data").mkdir()
    (tmp_path / "group_data" / "all.py").write_text("max_num_seqs = 3\n")
    assert import_kit.main([str(tmp_path / ".env"), "--output", str(tmp_path)], HERE) == 1
    assert capsys.readouterr().err.splitlines()[1:] == [
        f"  {tmp_path}/.env: no variable of the reference kit is stated there; name its .env, or a node's "
        f"~/.glm53-serve.env"
    ]
    assert (tmp_path / "group_data" / "all.py").read_text() == "max_num_seqs = 3\n"
