"""How the output of perftest, iperf3 and ping is read, and that both sides end by themselves."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from node import bandwidth
from node.bandwidth import Figure, Garbled, read

# ib_write_bw of a healthy rail (field reports: S32), with the head of perftest 6.24's report.
WRITE_BW = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF		Device         : rocep1s0f1
 Number of qps   : 8		Transport type : IB
 Connection type : RC		Using SRQ      : OFF
 PCIe relax order: ON
 CQ Moderation   : 1
 Mtu             : 4096[B]
 Link type       : Ethernet
 GID index       : 3
 Max inline data : 0[B]
 rdma_cm QPs	 : OFF
 Data ex. method : Ethernet
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0127 PSN 0xa9b19d RKey 0x1fff00 VAddr 0x00f0a1bf5d0000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:200:00:01
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      20000            111.72             111.71             0.213070
---------------------------------------------------------------------------------------
"""
DEGRADED = """\
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      20000            13.24              13.23              0.025230
"""
WRITE_LAT = """\
 Mtu             : 1024[B]
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 8       5000          1.81           6.42         1.93     	       1.95        	0.10   		2.21    		3.10
"""  # noqa: E501
LAT_BY_TIME = """\
 #bytes        #iterations       t_avg[usec]    tps average
 8             812345            2.05           487804.88
"""
PING = """\
PING 10.200.0.2 (10.200.0.2) from 10.200.0.1 : 56(84) bytes of data.

--- 10.200.0.2 ping statistics ---
20 packets transmitted, 20 received, 0% packet loss, time 309ms
rtt min/avg/max/mdev = 0.051/0.062/0.099/0.009 ms
"""
# iperf 3.18 on a simulated host, as far as it is read.
IPERF3 = json.dumps(
    {
        "start": {"version": "iperf 3.18"},
        "end": {
            "sum_sent": {"bits_per_second": 22102360320.1},
            "sum_received": {"seconds": 1.003846, "bytes": 2770731008, "bits_per_second": 22080924827.11},
        },
    },
    indent=1,
)
SAMPLES = {
    bandwidth.RDMA_BANDWIDTH: (WRITE_BW, DEGRADED),
    bandwidth.RDMA_LATENCY: (WRITE_LAT, LAT_BY_TIME),
    bandwidth.TCP_BANDWIDTH: (IPERF3,),
    bandwidth.TCP_LATENCY: (PING,),
}


@pytest.mark.report("NET-10")
@pytest.mark.report("NET-22")
def test_figures_are_read() -> None:
    """By the column's name; RoCE's own MTU where perftest says it."""
    assert read("ib_write_bw", WRITE_BW) == Figure(gbps=111.71, rdma_mtu=4096)
    assert read("ib_write_bw", DEGRADED) == Figure(gbps=13.23)
    assert read("ib_write_lat", WRITE_LAT) == Figure(usec=1.93, rdma_mtu=1024)
    assert read("ib_write_lat", LAT_BY_TIME) == Figure(usec=2.05)
    assert read("iperf3", f"warning: something\n{IPERF3}") == Figure(gbps=22.08092482711)
    assert read("ping", PING) == Figure(usec=62.0)
    assert read("ping", "round-trip min/avg/max = 0.051/0.070/0.099 ms") == Figure(usec=70.0)


def test_other_units_are_the_same_figure() -> None:
    """Without --report_gbits perftest counts MiB."""
    text = DEGRADED.replace("Gb/sec", "MiB/sec").replace("13.23", "1577.14")
    assert read("ib_write_bw", text).gbps == pytest.approx(13.23, rel=1e-4)


@pytest.mark.parametrize(
    ("tool", "text", "said"),
    [
        ("ib_write_bw", "", "ib_write_bw printed no figure: it printed nothing"),
        (
            "ib_write_bw",
            " Did not detect devices \n Unable to find the Infiniband/RoCE device\n------\n",
            "ib_write_bw printed no figure: Unable to find the Infiniband/RoCE device",
        ),
        ("ib_write_bw", WRITE_BW.partition(" 65536")[0], "ib_write_bw printed no figure: #bytes"),
        ("ib_write_bw", DEGRADED.replace("13.23", "nan"), "ib_write_bw: 'nan' is no figure"),
        ("ib_write_lat", "Couldn't connect to 10.200.0.2:8732\n", "ib_write_lat printed no figure: Couldn't connect"),
        ("iperf3", '{"error": "unable to connect to server: Connection refused"}', "iperf3: unable to connect"),
        ("iperf3", IPERF3[:200], "iperf3 printed no figure"),
        ("iperf3", '{"end": {"sum_received": {"bits_per_second": true}}}', "iperf3 printed no figure"),
        ("iperf3", "[" * 5000, "iperf3 printed no figure"),
        ("ping", "100 packets transmitted, 0 received, 100% packet loss", "ping printed no figure: 100 packets"),
    ],
)
def test_what_holds_no_figure_is_garbled(tool: str, text: str, said: str) -> None:
    """Never a figure of zero: an error is one, and says what was seen."""
    with pytest.raises(Garbled) as caught:
        read(tool, text)
    assert str(caught.value).startswith(said)


def _reads(tool: str, text: str) -> None:
    try:
        found = read(tool, text)
    except Garbled as error:
        assert len(str(error)) < 300
        return
    assert (found.gbps is None) != (found.usec is None)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, str]:
    """A real output with a part cut out and something else in its place."""
    tool = draw(st.sampled_from(bandwidth.TOOLS))
    text = draw(st.sampled_from(SAMPLES[tool]))
    start, end = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
    if draw(st.booleans()):
        end = min(end, start + 4)
    return tool, text[:start] + draw(st.text(max_size=8)) + text[end:]


@settings(max_examples=100)
@given(damaged())
def test_damaged_output_is_a_figure_or_garbled(asked: tuple[str, str]) -> None:
    """And nothing else."""
    _reads(*asked)


@settings(max_examples=100)
@given(st.sampled_from(bandwidth.TOOLS), st.text(max_size=300))
@example("iperf3", '{"end": {"sum_received": {"bits_per_second": 1e400}}}')
@example("iperf3", '{"end": [], "error": 5}')
@example("iperf3", "{}")
def test_any_text_is_a_figure_or_garbled(tool: str, text: str) -> None:
    """And nothing else."""
    _reads(tool, text)


@pytest.mark.slow
@settings(max_examples=10_000)
@given(damaged())
def test_ten_thousand_damaged_outputs(asked: tuple[str, str]) -> None:
    """The same, at length."""
    _reads(*asked)


@pytest.mark.slow
@settings(max_examples=10_000)
@given(st.sampled_from(bandwidth.TOOLS), st.text(max_size=300))
def test_ten_thousand_texts(tool: str, text: str) -> None:
    """The same, at length."""
    _reads(tool, text)


WAY = {"hca": "rocep1s0f0", "gid": 3, "local": "10.200.0.1", "remote": "10.200.0.2", "port": 8732}


def test_command_lines() -> None:
    """The rail's HCA, GID row and address in each; small messages, bounded by time or count."""

    def line(argv: list[str]) -> str:
        return " ".join(argv)

    assert line(bandwidth.client_argv("ib_write_bw", WAY, 5)) == (
        "ib_write_bw -d rocep1s0f0 -i 1 -x 3 -p 8732 -F -s 65536 -q 8 -D 5 --report_gbits 10.200.0.2"
    )
    assert line(bandwidth.server_argv("ib_write_lat", WAY, 5)) == (
        "ib_write_lat -d rocep1s0f0 -i 1 -x 3 -p 8732 -F -s 8 -n 5000"
    )
    assert line(bandwidth.server_argv("iperf3", WAY, 5)) == "iperf3 -s -1 -B 10.200.0.1 -p 8732 -i 0"
    assert line(bandwidth.client_argv("iperf3", WAY, 5)) == (
        "iperf3 -c 10.200.0.2 -B 10.200.0.1 -p 8732 -t 5 -P 16 -i 0 -J"
    )
    assert bandwidth.client_argv("ping", WAY, 5)[-3:] == ["-I", "10.200.0.1", "10.200.0.2"]


# Both sides as programs


PROGRAM = Path(bandwidth.__file__).read_text(encoding="utf-8")


def tool(place: Path, name: str, body: str) -> None:
    """A program of that name that does this instead."""
    path = place / name
    path.write_text(f"#!{sys.executable} -IS\n{body}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def start(place: Path, word: str, asked: dict[str, object], **environment: str) -> subprocess.Popen[str]:
    """As a unit runs it: the text of the program, and nothing of ours beside it."""
    return subprocess.Popen(
        [sys.executable, "-ISB", "-c", PROGRAM, word, json.dumps(asked)],
        env={**os.environ, "PATH": f"{place}:{os.environ['PATH']}", **environment},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


LISTEN = """
import socket, sys
waiting = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("-p") + 1])))
waiting.accept()
"""


def test_the_serving_side_says_when_it_listens_and_ends_with_its_client(tmp_path: Path) -> None:
    """systemd is told READY=1 once the tool listens, not before."""
    tool(tmp_path, "iperf3", LISTEN)
    port, place = free_port(), str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(place)
        told.settimeout(20)
        asked = {"tool": "iperf3", "ways": [{**WAY, "port": port}], "seconds": 1}
        with start(tmp_path, "serve", asked, NOTIFY_SOCKET=place) as side:
            assert told.recv(100) == b"READY=1"
            socket.create_connection(("127.0.0.1", port)).close()
            assert side.wait(20) == 0


def test_a_serving_side_whose_tool_fails_says_why(tmp_path: Path) -> None:
    """Before anybody connects, so that the figure that is missing has a reason."""
    tool(tmp_path, "ib_write_bw", 'print(" WARNING: x"); print(" Unable to find the Infiniband/RoCE device")\n')
    asked = {"tool": "ib_write_bw", "ways": [{**WAY, "port": free_port()}], "seconds": 1}
    with start(tmp_path, "serve", asked) as side:
        _, said = side.communicate(timeout=20)
    assert (side.returncode, said.strip()) == (bandwidth.NOT_READY, "Unable to find the Infiniband/RoCE device")


def test_the_asking_side_runs_all_rails_at_once(tmp_path: Path) -> None:
    """One line with what each printed: two sleeps of half a second take less than two."""
    tool(tmp_path, "ib_write_bw", "import time; time.sleep(0.5); print('figure')\n")
    asked = {"tool": "ib_write_bw", "ways": [WAY, WAY], "seconds": 1}
    with start(tmp_path, "ask", asked) as side:
        out, _ = side.communicate(timeout=20)
    assert json.loads(out) == [{"code": 0, "out": "figure\n"}] * 2


@pytest.mark.slow
def test_a_tool_that_hangs_is_ended(tmp_path: Path) -> None:
    """By its process, after the time of the measurement and a margin."""
    tool(tmp_path, "ib_write_bw", "import time; print('began', flush=True); time.sleep(600)\n")
    began = time.monotonic()
    with start(tmp_path, "ask", {"tool": "ib_write_bw", "ways": [WAY], "seconds": 1}) as side:
        out, _ = side.communicate(timeout=60)
    assert json.loads(out) == [{"code": 124, "out": "began\n"}]
    assert time.monotonic() - began < bandwidth.MARGIN_SECONDS + 10


def test_a_tool_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """No traceback in the journal."""
    with start(tmp_path, "ask", {"tool": "ib_write_bw", "ways": [WAY], "seconds": 1}, PATH=str(tmp_path)) as side:
        _, said = side.communicate(timeout=20)
    assert (side.returncode, said.strip()) == (bandwidth.NOT_READY, "ib_write_bw: No such file or directory")


@pytest.mark.report("NET-11")
def test_below_the_floor_nothing_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node that is short of memory is left alone: a GB10 wedges instead of failing."""
    monkeypatch.setattr(bandwidth, "available", lambda: 2**30)
    asked = json.dumps({"tool": "ib_write_bw", "ways": [WAY], "seconds": 1})
    assert bandwidth.main(["ask", asked]) == bandwidth.LOW
    assert capsys.readouterr().err == "1024 MiB of memory are available, and 2048 must be\n"
