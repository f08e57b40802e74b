"""A small collective in the serving image: how it is started, and how what it says is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from facts.gate import Collective
from operations import collective, collective_side
from operations.collective import MARK, answer, read
from tests.unit import pair

# NCCL's own words: a good start (field reports: S10), and the silent fallback (S11).
OVER_IB = """\
spark-a:454:454 [0] NCCL INFO NCCL_IB_HCA set to roceP2p1s0f0,rocep1s0f0
spark-a:454:454 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]; OOB enp1s0f0np0
spark-a:454:454 [0] NCCL INFO Using network IB
"""
OVER_SOCKETS = """\
misc/ibvwrap.cc:212 NCCL WARN Call to ibv_open_device failed
transport/net_ib.cc:148 NCCL WARN NET/IB : Unable to open device mlx5_bond_0
NCCL INFO NET/IB : No device found.
NCCL INFO NET/Socket : Using [0]bond0:192.0.2.2<0>
NCCL INFO Using network Socket
"""


@pytest.mark.report("RDMA-01")
def test_the_transport_is_nccls_own_word() -> None:
    """That of the channels where they are told, since that is what data takes."""
    assert collective_side.transport(OVER_IB) == "IB"
    assert collective_side.transport(OVER_SOCKETS) == "Socket"
    assert collective_side.transport(f"{OVER_IB}Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n") == "Socket"
    assert collective_side.transport("Channel 08/0 : 0[0] -> 1[0] [receive] via NET/IBext_v10/0") == "IB"
    assert collective_side.transport("nothing of the kind") == ""


@pytest.mark.report("RDMA-03")
def test_the_images_own_settings_are_read(tmp_path: Path) -> None:
    """A file that a launch does not show; comments and empty lines are none of it."""
    path = tmp_path / "nccl.conf"
    path.write_text("# tuned\nNCCL_IB_USE_INLINE=1\n\nNCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS = 1 # and why\nodd\n")
    assert collective_side.conf(str(path)) == {
        "NCCL_IB_USE_INLINE": "1",
        "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS": "1",
    }
    assert collective_side.conf(str(tmp_path / "none")) == {}


ASK = {
    "program": Path(collective_side.__file__).read_text(), "mark": MARK, "rank": 0, "ranks": 2, "port": 1, "seconds": 1,
    "master": "127.0.0.1", "mib": 1, "times": 2,
}  # fmt: skip
TORCH = """
class cuda:
    is_available = staticmethod(lambda: False)
float32 = None
"""


def said(tmp_path: Path, distributed: str | None) -> dict[str, object]:
    """What the program says in an image with such a torch; None: with none."""
    if distributed is not None:
        place = tmp_path / "torch"
        place.mkdir()
        (place / "__init__.py").write_text(TORCH)
        (place / "distributed.py").write_text(f"import time\nis_nccl_available = lambda: False\n{distributed}\n")
    done = subprocess.run(
        [sys.executable, "-SB", "-c", collective_side.BOOTSTRAP], input=json.dumps(ASK), capture_output=True, text=True,
        timeout=60, check=True, env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    return answer(done.stdout.splitlines())


@pytest.mark.report("NET-05")
def test_a_collective_that_hangs_ends_and_says_where(tmp_path: Path) -> None:
    """Not a check that hangs with it."""
    hangs = said(tmp_path, "def init_process_group(*_, **__): time.sleep(600)")
    assert hangs["trouble"] == "no end of the meeting of the ranks within 1 s"
    assert hangs["backend"] == "gloo"


@pytest.mark.report("NET-20")
def test_a_collective_that_fails_says_in_which_stage(tmp_path: Path) -> None:
    """gloo's words on a name that leads to loopback (S12)."""
    raised = "RuntimeError('Gloo connectFullMesh failed ... remote=[127.0.0.1]:14215')"
    failed = said(tmp_path, f"def init_process_group(*_, **__): raise {raised}")
    assert failed["trouble"] == (
        "the meeting of the ranks failed: Gloo connectFullMesh failed ... remote=[127.0.0.1]:14215"
    )


def test_an_image_without_torch_is_no_failure(tmp_path: Path) -> None:
    """There is nothing to try then, which is said."""
    assert said(tmp_path, None)["lacking"] == "ModuleNotFoundError: No module named 'torch'"


def test_answers_of_all_ranks_are_one_word() -> None:
    """Trouble of whichever has it, the slower figure, and sockets wherever they were taken."""
    good = {"backend": "nccl", "busbw": 11.52, "nccl": {"transport": "IB", "lines": []}, "settings": {}, "trouble": ""}
    slow = {**good, "busbw": 11.4, "settings": {"NCCL_IB_USE_INLINE": "1"}}
    assert read("image", {"a": good, "b": slow}) == Collective(
        "nccl", "IB", 11.4, "", {"NCCL_IB_USE_INLINE": "1"}, "image"
    )
    sockets = {**good, "nccl": {"transport": "Socket", "lines": []}}
    assert read("image", {"a": good, "b": sockets}).transport == "Socket"
    late = {"backend": "nccl", "trouble": "no end of the first all-reduce, of 4 bytes within 90 s", "settings": {}}
    found = read("image", {"a": good, "b": late})
    assert found.trouble == "b: no end of the first all-reduce, of 4 bytes within 90 s"


def test_no_answer_is_trouble() -> None:
    """A container that Docker did not start, and one whose line is cut."""
    assert answer(["docker: Error response from daemon: no such device", "sparkpair-gate-collective-exit 125"]) == {
        "trouble": "its container gave no answer: docker: Error response from daemon: no such device "
        "sparkpair-gate-collective-exit 125"
    }
    assert "gave no answer" in answer([f'{MARK}{{"trouble": '])["trouble"]
    assert "it said nothing" in answer([])["trouble"]


@pytest.mark.report("RDMA-01")
@pytest.mark.report("RDMA-02")
@pytest.mark.report("NET-04")
def test_the_container_has_the_fabric_as_the_launch_has_it() -> None:
    """Devices, memlock, capability, HCA and GID index of the launch; nothing of what it serves, and no secret."""
    cluster = pair.cluster({**pair.UPSTREAM, "require_api_key": True})

    class Run:
        pass

    run = Run()
    run.cluster = cluster  # type: ignore[attr-defined]
    index = next(value for name, value in cluster.launch(cluster.head).env if name == "NCCL_IB_GID_INDEX")
    line = collective.command_line(run, cluster.head, "sha256:1", {index: 3})  # type: ignore[arg-type, dict-item]
    for part in (
        "timeout --kill-after=10 120 docker run --rm -i --name sparkpair-gate-collective --pull never",
        "--network host", "--device /dev/infiniband:/dev/infiniband", "--ulimit memlock=-1:-1", "--cap-add IPC_LOCK",
        "-e NCCL_IB_HCA=rocep1s0f0", "-e NCCL_IB_GID_INDEX=3", "-e GLOO_SOCKET_IFNAME=enp1s0f0np0", "--memory 6g",
        "--entrypoint python3 sha256:1",
    ):  # fmt: skip
        assert part in line, part
    assert "--restart" not in line and "VLLM" not in line and "API_KEY" not in line and "-v " not in line
