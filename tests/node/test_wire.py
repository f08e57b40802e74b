"""The rank file, the hashes, the files that must be whole."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from node import gids, wire
from node import store as store_module
from node.store import Store
from tests.node.world import rank_text

SECRET = {"secret": "/etc/sparkpair/secrets/api-key"}
GID = {"gid_index": {"hca": "rocep1s0f0", "address": "10.200.0.1"}}


def spec(**more: object) -> dict[str, object]:
    return {**json.loads(rank_text(0)), **more}


def test_docker_run_is_the_rank_file_in_its_order_and_four_labels():
    text = json.dumps(
        spec(
            container=[["--gpus", "all"], ["--ipc", "host"]],
            mounts=[["/a", "/b", "ro"], ["/c", "/d"]],
            env=[["X", "1 2"], ["NCCL_IB_GID_INDEX", GID], ["VLLM_API_KEY", SECRET]],
            command=[["vllm", "serve"], ["--port", "8000"]],
        )
    )
    parsed = wire.parse_rank(text)
    argv = wire.docker_run(parsed, "e" * 64, 7, {wire.GidIndex("rocep1s0f0", "10.200.0.1"): 4})
    assert argv == [
        "docker",
        "run",
        "-d",
        "--name",
        "vllm_test",
        "--gpus",
        "all",
        "--ipc",
        "host",
        "--label",
        "sparkpair.engine=" + "e" * 64,
        "--label",
        "sparkpair.rank=0",
        "--label",
        "sparkpair.epoch=7",
        "--label",
        "sparkpair.gids=rocep1s0f0/10.200.0.1=4",
        "-v",
        "/a:/b:ro",
        "-v",
        "/c:/d",
        "-e",
        "X=1 2",
        "-e",
        "NCCL_IB_GID_INDEX=4",
        "-e",
        "VLLM_API_KEY",
        parsed.image,
        "vllm",
        "serve",
        "--port",
        "8000",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "rank file is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("[]", "rank file is not a JSON object"),
        (json.dumps(spec(rank="0")), "rank file: rank is '0', wanted int"),
        (json.dumps(spec(rank=True)), "rank file: rank is True, wanted int"),
        (json.dumps(spec(command=[["vllm", 8]])), "rank file: command has ['vllm', 8], wanted a list of strings"),
        (json.dumps(spec(mounts=[["/a"]])), "rank file: mounts has ['/a'], wanted [source, target, mode]"),
        (json.dumps(spec(env=[["A", None]])), "rank file: env has ['A', None], wanted [name, value]"),
        (json.dumps(spec(env=[["A", {"gid_index": {}}]])), "rank file: 'hca'"),
        (
            json.dumps(spec(env=[["VLLM_API_KEY", {**SECRET, **GID}]])),
            f"rank file: env has {['VLLM_API_KEY', {**SECRET, **GID}]!r}, wanted [name, value]",
        ),
        *(
            (
                json.dumps(spec(env=[["VLLM_API_KEY", {"secret": path}]])),
                f"rank file: env has {path!r} for VLLM_API_KEY, wanted a file in /etc/sparkpair/secrets/",
            )
            for path in (
                "",
                "api-key",
                "/etc/shadow",
                "/etc/sparkpair/secrets/",
                "/etc/sparkpair/secrets/../ssh/id_ed25519",
                "/etc/sparkpair/secrets/..",
                "/etc/sparkpair/secrets/a/b",
                "/etc/sparkpair/secrets/api-key\n",
                "/etc/sparkpair/secrets/.api-key",
                "//etc/sparkpair/secrets/api-key",
                "/etc/sparkpair/secrets/a b",
                7,
                None,
                ["/etc/sparkpair/secrets/api-key"],
            )
        ),
        *(
            (
                json.dumps(spec(env=[[name, SECRET]])),
                f"rank file: env has {name!r} for a secret, wanted a variable VLLM_...",
            )
            for name in ("PATH", "LD_PRELOAD", "DOCKER_HOST", "VLLM_API_KEY=x", "VLLM_", "vllm_api_key", "VLLM_A\n")
        ),
    ],
)
def test_damaged_rank_files_are_named(text: str, message: str):
    with pytest.raises(wire.WireError) as caught:
        wire.parse_rank(text)
    assert str(caught.value) == message


def test_the_engine_hash_moves_with_any_rank_and_any_content():
    base = wire.engine_hash([("a", ["1"]), ("b", ["1"])])
    assert base == wire.engine_hash([("a", ("1",)), ("b", ("1",))])
    others = [[("a", ["1"]), ("c", ["1"])], [("b", ["1"]), ("a", ["1"])], [("a", ["2"]), ("b", ["1"])], [("a", ["1"])]]
    assert base not in {wire.engine_hash(other) for other in others}


def test_a_manifest_is_the_same_in_any_order():
    rows = [("b", 1, "x"), ("a", 2, "y")]
    assert wire.manifest_identity(rows) == wire.manifest_identity(rows[::-1])
    assert wire.manifest_identity(rows) != wire.manifest_identity([("b", 1, "x"), ("a", 3, "y")])


def test_programs_are_the_same_in_a_checkout_and_on_a_node(tmp_path: Path):
    checkout = wire.programs(Path(wire.__file__).parent)
    assert {"main.py", "node/agent.py", "node/keeper.py", "node/__init__.py"} <= set(checkout)
    for name, content in checkout.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert wire.programs_hash(wire.programs(tmp_path / "node")) == wire.programs_hash(checkout)


@pytest.mark.parametrize("line", [b"", b"{", b"[]\n", b"\xff\xfe\n", b"null\n"])
def test_what_is_no_message_is_refused(line: bytes):
    with pytest.raises(wire.WireError):
        wire.decode(line)


def test_write_atomic_leaves_no_litter_when_it_fails(tmp_path: Path):
    path = tmp_path / "d/state.json"
    wire.write_atomic(path, "one")
    with pytest.raises(TypeError):
        wire.write_atomic(path, object())  # type: ignore[arg-type]
    assert [entry.name for entry in path.parent.iterdir()] == ["state.json"]
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("one", 0o600)


def sysfs(root: Path, rows: dict[int, tuple[str, str | None]]) -> Path:
    base = root / "rocep1s0f0/ports/1"
    (base / "gids").mkdir(parents=True)
    (base / "gid_attrs/types").mkdir(parents=True)
    for index, (gid, kind) in rows.items():
        (base / f"gids/{index}").write_text(gid + "\n")
        if kind is not None:
            (base / f"gid_attrs/types/{index}").write_text(kind + "\n")
    return root


EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
MAPPED = "0000:0000:0000:0000:0000:ffff:0ac8:0001"


def test_the_gid_is_found_wherever_it_has_moved(tmp_path: Path):
    root = sysfs(
        tmp_path,
        {
            0: ("fe80::1", "IB/RoCE v1"),
            2: (MAPPED, "IB/RoCE v1"),
            3: (EMPTY, None),
            10: (MAPPED, "RoCE v2"),
            11: (MAPPED, "RoCE v2"),
        },
    )
    assert gids.roce_v2_index("rocep1s0f0", "10.200.0.1", root) == 10


def test_no_gid_is_an_error_with_the_table_and_never_a_guess(tmp_path: Path):
    root = sysfs(tmp_path, {3: ("0000:0000:0000:0000:0000:ffff:c0a8:5605", "RoCE v2"), 4: (MAPPED, "IB/RoCE v1")})
    with pytest.raises(gids.GidError) as caught:
        gids.roce_v2_index("rocep1s0f0", "10.200.0.1", root)
    assert str(caught.value) == (
        "rocep1s0f0 has no RoCE v2 GID for 10.200.0.1 (table: 3: 0000:0000:0000:0000:0000:ffff:c0a8:5605 RoCE v2; "
        f"4: {MAPPED} IB/RoCE v1). Has the rail its address? ip addr; the fabric role of deploy.py sets it"
    )
    with pytest.raises(gids.GidError) as caught:
        gids.roce_v2_index("mlx5_0", "10.200.0.1", root)
    assert str(caught.value) == "mlx5_0: no such HCA (present: rocep1s0f0)"


def snapshot(store: Store, number: int) -> str:
    """One generation of two ranks; its name."""
    texts, identities = [f"zero {number}", "one"], [["w"], ["w"]]
    engine = wire.engine_hash(list(zip(texts, identities, strict=True)))
    store.snapshot(engine, texts, {"engine": engine, "identities": identities})
    return engine


def test_generations_are_whole_kept_and_pruned(tmp_path: Path):
    store = Store(tmp_path)
    names = []
    for number in range(5):
        names.append(snapshot(store, number))
        os.utime(tmp_path / "generations" / names[-1], (number, number))
        if number == 0:
            store.promote(names[0], {})
            os.utime(tmp_path / "generations" / names[0], (0, 0))
    (tmp_path / "generations/.new-x").mkdir()
    store.prune(2)
    kept = {path.name for path in (tmp_path / "generations").iterdir()}
    assert kept == {names[0], names[4]}, "the last good one stays, however old"
    assert (store.current(), store.last_good()) == (names[4], names[0])
    assert store.generation(names[0]).texts == ("zero 0", "one")


def test_launches_that_failed_drive_out_none_that_was_good(tmp_path: Path):
    store = Store(tmp_path)
    names = []
    for number, good in enumerate([True, True, True, False, False, False, True]):
        names.append(snapshot(store, number))
        if good:
            store.promote(names[-1], {})
        os.utime(tmp_path / "generations" / names[-1], (number, number))
    store.prune(4)
    assert {path.name for path in (tmp_path / "generations").iterdir()} == {names[place] for place in (0, 1, 2, 6)}


@pytest.mark.parametrize("damage", ["manifest", "text", "edited", "bytes", "file"])
def test_a_damaged_generation_is_seen_and_written_anew(tmp_path: Path, damage: str):
    store = Store(tmp_path)
    engine = snapshot(store, 0)
    place = tmp_path / "generations" / engine
    if damage == "manifest":
        (place / "manifest.json").unlink()
    elif damage == "text":
        (place / "rank1.json").write_text("")
    elif damage == "edited":
        (place / "rank0.json").write_text("zero 1")
    elif damage == "bytes":
        (place / "rank0.json").write_bytes(b"\xff\xfe")
    else:
        shutil.rmtree(place)
        place.write_text("")
    with pytest.raises(wire.WireError, match=engine):
        store.generation(engine)
    assert snapshot(store, 0) == engine
    assert store.generation(engine).texts == ("zero 0", "one")
    assert not list((tmp_path / "generations").glob(".new-*"))


def test_history_stays_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store_module, "HISTORY_BYTES", 2000)
    store = Store(tmp_path)
    for number in range(200):
        store.record("event", number=number)
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert len("\n".join(lines)) < 2200
    assert json.loads(lines[-1])["number"] == 199
