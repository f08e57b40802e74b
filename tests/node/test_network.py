"""What NCCL's lines say, of samples that people published, and of logs that are not as they should be."""

from __future__ import annotations

import sys
import time

import pytest

from node import network
from node.network import Seen

# From spark-vllm-docker issue 411 (S10), nccl issue 451 (S11); names and addresses as in the reports' raw samples.
ROCE = """\
spark-a:454:454 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to enp1s0f0np0
spark-a:454:454 [0] NCCL INFO Bootstrap: Using enp1s0f0np0:169.254.163.17<0>
(Worker pid=454) INFO 09-23 06:02:03 [pynccl.py:148] vLLM is using nccl==2.31.2
spark-a:454:454 [0] NCCL INFO NCCL_IB_HCA set to roceP2p1s0f0,rocep1s0f0
spark-a:454:454 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]; OOB enp1s0f0np0
"""
FALLEN_BACK = """\
misc/ibvwrap.cc:212 NCCL WARN Call to ibv_open_device failed
transport/net_ib.cc:148 NCCL WARN NET/IB : Unable to open device mlx5_bond_0
NCCL INFO NET/IB : No device found.
NCCL INFO NET/Socket : Using [0]bond0:192.0.2.2<0>
NCCL INFO Using network Socket
"""


@pytest.mark.report("RDMA-01")
def test_what_the_published_logs_say() -> None:
    found = network.read(ROCE.splitlines())
    assert found.tcp == ""
    assert found.rdma.startswith("spark-a:454:454 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE")
    assert found.release == "2.31.2"
    assert network.read(FALLEN_BACK.splitlines()) == Seen("NCCL INFO Using network Socket", "", "")


@pytest.mark.parametrize(
    ("line", "tcp", "rdma"),
    [
        ("NCCL INFO NET/Socket : Using [0]enp1s0f0np0:10.200.0.1<0>", True, False),
        ("(Worker_TP1 pid=77) spark-b:77:91 [0] NCCL INFO Using network Socket", True, False),
        ("2026-12-01T06:02:03.1Z spark-b:77:91 [0] NCCL INFO ncclCommInitRank comm 0x1 Using network IB", False, True),
        ("(APIServer pid=1) INFO the prompt was: NCCL INFO Using network Socket", False, False),
        ('{"content": "NCCL INFO Using network Socket"}', False, False),
        ("gloo is what a CPU engine uses", False, False),
        ("", False, False),
    ],
)
def test_one_line(line: str, tcp: bool, rdma: bool) -> None:
    found = network.read([line])
    assert (bool(found.tcp), bool(found.rdma)) == (tcp, rdma)


def test_a_socket_made_ready_beside_rdma_is_not_used() -> None:
    found = network.read(["NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE", "NCCL INFO NET/Socket : Using [0]lo"])
    assert found.tcp == "" and found.rdma


def test_a_log_is_read_line_by_line_and_never_whole() -> None:
    """Lines of megabytes are cut, one that two pieces share is one, and a program that does not end is ended."""
    program = (
        "import sys, time\n"
        "print('a' * 3_000_000)\n"
        "print('b' * 65530)\n"
        "print('NCCL INFO Using network Socket')\n"
        "sys.stdout.write('no end of line'); sys.stdout.flush()\n"
        "time.sleep(60)\n"
    )
    began = time.monotonic()
    lines = list(network.said([sys.executable, "-c", program], seconds=1.0))
    assert time.monotonic() - began < 30
    assert [line[:30] for line in lines] == ["a" * 30, "b" * 30, "NCCL INFO Using network Socket", "no end of line"]
    assert max(map(len, lines)) == network.CHARACTERS_READ


def test_whatever_an_agent_answers() -> None:
    assert network.parse({"tcp": None, "rdma": 3}) == Seen("", "3", "")
