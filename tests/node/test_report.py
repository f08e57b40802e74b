"""The support bundle: what a node tells of itself is bounded, and no secret that is planted anywhere comes out."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from node import link, paths, redact, report, support, wire
from node.agent import Agent, Places
from node.docker import Container, DockerError
from node.lines import listen
from node.service import NodeEntry

KEY = 'k-9+/"quoted"\\and-more'
TOKEN = "hf_" + "aB3dE6gH9j" * 3
OTHER = "s3cr3t-of-the-operator"
FROM_ABOVE = "basic-words-of-a-proxy"
SECRETS = (KEY, json.dumps(KEY)[1:-1], TOKEN, OTHER, FROM_ABOVE)
LEAKS = (
    f"INFO token {TOKEN} used\n"
    f"GET /v1/models Authorization: Bearer {OTHER}x1\n"
    f'{{"authorization": "Basic {FROM_ABOVE}"}}\n'
    f"the key is {KEY}, as JSON {json.dumps(KEY)}\n"
    f"HF_TOKEN={TOKEN} MY_PASSWORD='{OTHER}' --api-key {KEY}\n"
    f"proxy http://user:{FROM_ABOVE}@proxy.example/\n"
    f"-----BEGIN OPENSSH PRIVATE KEY-----\n{OTHER}\n-----END OPENSSH PRIVATE KEY-----\n"
)


def rank(**env: str) -> str:
    rows: list[list[object]] = [[name, value] for name, value in env.items()]
    rows.append(["VLLM_API_KEY", {"secret": "/etc/sparkpair/secrets/api-key"}])
    return json.dumps({"stack": "vllm", "rank": 0, "env": rows, "command": [["vllm", "serve"]]})


LAUNCH = rank(NCCL_IB_HCA="rocep1s0f0", MY_OPTION=OTHER, NUMBER="4")


class FakeDocker:
    """One container of ours, whose variables hold secrets."""

    def containers(self, label: str) -> list[Container]:
        assert label == wire.LABEL_RANK
        return [Container("c1", "vllm_test", {}, True, "running", 0, "", "")]

    def document(self, target: str) -> Any:
        if target == "/info":
            return {"HttpProxy": f"http://user:{FROM_ABOVE}@proxy.example/", "Name": "spark-a"}
        if target == "/version":
            raise DockerError("Docker does not answer")
        env = ["NCCL_NET=IB", f"VLLM_API_KEY={KEY}", f"MY_OPTION={OTHER}", "EMPTY"]
        return {"Id": "c1", "Config": {"Env": env, "Cmd": ["serve", "--api-key", KEY]}}


@pytest.fixture
def places(tmp_path: Path) -> report.Places:
    """A node with leaks everywhere."""
    at = report.Places(
        run=tmp_path / "run", wanted=tmp_path / "rank.json", secrets=tmp_path / "secrets", logs=tmp_path / "logs",
        admitted=tmp_path / "admitted", memory=tmp_path / "memory", proc=tmp_path / "proc",
    )  # fmt: skip
    for directory in (at.run, at.secrets, at.logs, at.admitted, at.memory, at.proc):
        directory.mkdir()
    (at.secrets / "api-key").write_text(f"{KEY}\n")
    at.wanted.write_text(LAUNCH)
    (at.admitted / "1").write_text(rank(EARLIER_OPTION=FROM_ABOVE))
    (at.run / "status.json").write_text(LEAKS)
    (at.logs / "20261201T000000-aaaa-rank0.log").write_text(LEAKS)
    (at.memory / "1").write_text("old\n")
    (at.memory / "2").write_text(LEAKS)
    (at.proc / "meminfo").write_text("MemTotal: 1 kB\n")
    return at


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program prints the leaks."""
    monkeypatch.setattr(report, "said", lambda argv, most=0, seconds=0.0: f"{argv[0]} says\n{LEAKS}")


def test_no_planted_secret_comes_out(places: report.Places) -> None:
    texts = report.collect(places=places, docker=FakeDocker())  # type: ignore[arg-type]
    for name, text in texts.items():
        assert not [secret for secret in SECRETS if secret in text], f"{name}: {text}"
    launch = json.loads(texts["wanted-rank.json"])
    assert launch["env"] == [
        ["NCCL_IB_HCA", "rocep1s0f0"], ["MY_OPTION", "<hidden>"], ["NUMBER", "<hidden>"],
        ["VLLM_API_KEY", {"secret": "/etc/sparkpair/secrets/api-key"}],
    ]  # fmt: skip
    [container] = json.loads(texts["docker-inspect.json"])
    assert container["Config"] == {
        "Env": ["NCCL_NET=IB", "VLLM_API_KEY=<hidden>", "MY_OPTION=<hidden>", "EMPTY=<hidden>"],
        "Cmd": ["serve", "--api-key", "<hidden>"],
    }
    assert (
        "http://<hidden>@proxy.example/" in texts["docker.json"] and "(Docker does not answer)" in texts["docker.json"]
    )
    assert (
        "MemTotal: 1 kB" in texts["memory.txt"]
        and "pressure/memory\n(No such file or directory)" in texts["memory.txt"]
    )
    assert texts["memory-record.txt"].startswith("== 2\n")
    assert {"engine-vllm_test.log", "engine-ended.log", "journal-sparkpair-keeper.txt", "kernel.txt"} <= set(texts)


def test_engine_logs_may_be_left_out(places: report.Places) -> None:
    texts = report.collect(engine_logs=False, places=places, docker=FakeDocker())  # type: ignore[arg-type]
    assert not [name for name in texts if name.startswith("engine")]


@pytest.mark.parametrize(
    "line",
    [
        "max_tokens: 4096, tokens=17, authorized users: all",
        "NCCL_IB_HCA=rocep1s0f0 PATH=/usr/bin",
        "http://192.168.77.11:8000/v1/models 12:30:01",
        "the bearer of this: nobody",
        '"Authorization": null, "authorization": null',
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    assert redact.Redactor(["short", "123456789"]).text(line) == line


def test_a_report_fits_into_a_message() -> None:
    """However it is spelled as JSON."""
    texts = report.fitted([("a", "\x01" * 300_000), ("b", "ü" * 300_000), ("c", "last")], most=2_000_000)
    assert texts == {"a": "\x01" * 300_000, "b": "(left out: the report is full)\n", "c": "last"}
    assert report.MOST_BYTES + 1000 < wire.MAX_LINE


def test_the_end_of_a_long_text_is_kept_in_whole_lines(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("".join(f"line {number}\n" for number in range(100)))
    assert report.tail(tmp_path / "f", 20) == "(774 bytes before this are left out)\nline 98\nline 99\n"


def test_programs_are_bounded_and_absent_ones_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    python = [sys.executable, "-S", "-c"]
    assert report.said(["/no/such/tool"]) == "(/no/such/tool: No such file or directory)\n"
    assert report.said([*python, "import sys; print('x'); sys.exit(3)"]) == "x\n(exit code 3)\n"
    long = report.said([*python, "for n in range(9999): print(n)"], most=20)
    assert long == "(48870 bytes before this are left out)\n9996\n9997\n9998\n"
    begun = time.monotonic()
    hung = report.said([*python, "import time; print('first', flush=True); time.sleep(60)"], seconds=0.3)
    assert hung == "first\n(no end within 0.3 s)\n" and time.monotonic() - begun < 5


def test_the_unit_has_little_memory_and_waits_for_everybody() -> None:
    argv = report.unit_argv(engine_logs=False)
    assert {"--unit=sparkpair-report", "--property=MemoryMax=64M", "--property=Nice=19"} <= set(argv)
    assert argv[-2:] == ["report", "--without-engine-logs"]


def test_a_report_that_is_not_made_says_why() -> None:
    good = asyncio.run(report.gather(True, [sys.executable, "-S", "-c", 'print(\'{"a": "b"}\')']))
    assert good == {"a": "b"}
    code = "import sys; sys.exit('Unit sparkpair-report.service already exists.')"
    with pytest.raises(report.NotMade, match=r"the report was not made: Unit sparkpair-report\.service already exists"):
        asyncio.run(report.gather(True, [sys.executable, "-S", "-c", code]))


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A head with leaks in everything that the keeper keeps; its worker's report leaks the head's key."""
    for name in (
        "HISTORY",
        "SUPPORT",
        "WANTED_SERVICE",
        "UPDATE",
        "KEEPER_STATE",
        "GENERATIONS",
        "SECRETS",
        "WANTED_RANK",
    ):
        monkeypatch.setattr(paths, name, tmp_path / name.lower())
    monkeypatch.setattr(paths, "CURRENT", tmp_path / "current")
    monkeypatch.setattr(paths, "LAST_GOOD", tmp_path / "last-good")
    paths.SECRETS.mkdir()
    (paths.SECRETS / "api-key").write_text(f"{KEY}\n")
    paths.WANTED_RANK.write_text(LAUNCH)
    paths.HISTORY.write_text(LEAKS)
    paths.WANTED_SERVICE.write_text(LEAKS)
    paths.KEEPER_STATE.write_text(json.dumps({"epoch": 2, "last_failure": {"logs": {"0": [LEAKS]}, "reason": KEY}}))
    generation = paths.GENERATIONS / ("a" * 64)
    generation.mkdir(parents=True)
    (generation / "rank0.json").write_text(LAUNCH)
    (generation / "manifest.json").write_text(LEAKS)

    async def told(node: object, engine_logs: bool) -> dict[str, str]:
        return {"journal.txt": LEAKS, "../../odd": str(engine_logs)}

    monkeypatch.setattr(support, "_report", told)
    monkeypatch.setattr(support.os, "nice", lambda step: 0)
    return tmp_path


def archive(path: Path) -> dict[str, str]:
    with tarfile.open(path) as opened:
        return {
            member.name.removeprefix("sparkpair-support/"): opened.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in opened.getmembers()
        }


def test_no_planted_secret_is_in_the_archive(head: Path) -> None:
    status = {"phase": "running", "last_failure": {"reason": KEY, "logs": {"0": [LEAKS]}}}
    path = support.make(None, status)
    assert path.parent == paths.SUPPORT and path.stat().st_mode & 0o777 == 0o600
    texts = archive(path)
    for name, text in texts.items():
        assert not [secret for secret in SECRETS if secret in text], f"{name}: {text}"
    assert set(texts) == {
        "about.txt", "status.json", "history.jsonl", "service.json", "update.json", "keeper-state.json",
        "generations/aaaaaaaaaaaa/manifest.json", "generations/aaaaaaaaaaaa/rank0.json", "generations/current.txt",
        "generations/last-good.txt", "rank0-head/journal.txt", "rank0-head/.._.._odd",
    }  # fmt: skip
    assert "logs" in json.loads(texts["status.json"])["last_failure"]


def test_engine_logs_are_left_out_everywhere(head: Path) -> None:
    status = {"phase": "running", "last_failure": {"reason": "r", "logs": {"0": ["what a user wrote"]}}}
    stream = io.BytesIO()
    support.write(stream, status, engine_logs=False)
    (head / "a.tar.gz").write_bytes(stream.getvalue())
    texts = archive(head / "a.tar.gz")
    assert json.loads(texts["status.json"]) == {"phase": "running", "last_failure": {"reason": "r"}}
    assert json.loads(texts["keeper-state.json"])["last_failure"] == {"reason": "<hidden>"}
    assert texts["rank0-head/.._.._odd"] == "False"


def test_the_newest_three_are_kept(head: Path) -> None:
    paths.SUPPORT.mkdir()
    for day in range(1, 5):
        (paths.SUPPORT / f"sparkpair-support-2026010{day}T000000Z.tar.gz").touch()
    (paths.SUPPORT / "sparkpair-support-20260109T000000Z.tar.gz.new").touch()
    made = support.make(None, "no keeper\n")
    there = sorted(path.name for path in paths.SUPPORT.iterdir())
    assert there == [f"sparkpair-support-2026010{day}T000000Z.tar.gz" for day in (3, 4)] + [made.name]
    assert archive(made)["status.json"] == "no keeper\n"


def test_a_file_of_the_operators_is_not_written_over(head: Path) -> None:
    (head / "mine").write_text("mine")
    with pytest.raises(support.NotMade, match="mine is there already; name another file"):
        support.make(head / "mine", "")
    with pytest.raises(support.NotMade, match="could not be written: No such file or directory"):
        support.make(head / "no/such/place", "")
    assert (head / "mine").read_text() == "mine"


def test_another_nodes_report_comes_over_a_connection_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as a message may be; a node that is away says so in its place."""
    long = {"journal.txt": "x" * (report.MOST_BYTES - 100)}

    async def gather(engine_logs: bool) -> dict[str, str]:
        return long if engine_logs else {}

    monkeypatch.setattr(report, "gather", gather)
    monkeypatch.setattr(link, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(support, "CONNECT_SECONDS", 1.0)
    places = Places(socket=tmp_path / "s", state=tmp_path / "a", lease=tmp_path / "l", wanted=tmp_path / "w")
    monkeypatch.setattr(
        support,
        "AgentLink",
        lambda rank, name, ways, clock: link.AgentLink(rank, name, (), clock, socket=places.socket),
    )
    node = NodeEntry(1, "worker", False, ("10.200.0.2",), ())

    async def run() -> list[dict[str, str]]:
        away = await support._report(node, True)
        server = await listen(places.socket, Agent(FakeDocker(), places).handle)  # type: ignore[arg-type]
        told = [await support._report(node, engine_logs) for engine_logs in (True, False)]
        server.close()
        return [away, *told]

    away, whole, without = asyncio.run(run())
    assert whole == long and without == {}
    assert away == {"no-report.txt": "worker: [Errno 2] No such file or directory\n"}
