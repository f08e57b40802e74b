"""What a node's system and its GPU say: release, memory, kernel log, boots, clock, firmware, listeners, Docker."""

from __future__ import annotations

import pytest

from facts.host import FirmwareDevice, GpuApp, Listener, Release
from facts.tools import (
    boots,
    docker_info,
    fwupdmgr,
    getconf,
    kernel_log,
    limits,
    meminfo,
    nvidia_smi,
    ps,
    release,
    ss,
    systemctl,
    timedatectl,
)
from facts.tools.garbled import Garbled
from tests.facts.tools.samples import sample


def test_what_the_system_calls_itself() -> None:
    assert release.parse(sample("os-release.txt"), None) == Release(
        "debian", "12", "Debian GNU/Linux 12 (bookworm)", ""
    )
    found = release.parse("ID=ubuntu\nVERSION_ID='24.04'\nNAME=Ubuntu\n", sample("dgx-release.txt"))
    assert found == Release("ubuntu", "24.04", "Ubuntu", "7.5.0"), "each update appends its lines"
    assert release.dgx_version('DGX_SWBUILD_VERSION="7.2.3"\n') == "7.2.3"
    with pytest.raises(Garbled, match=r"/etc/os-release said 'NAME=x'"):
        release.parse("NAME=x\n", None)


@pytest.mark.report("MEM-01", "MEM-02")
def test_memory_with_cma() -> None:
    found = meminfo.parse(sample("meminfo.txt"))
    assert (found["CmaTotal"], found["CmaFree"], found["HugePages_Total"]) == (131072 * 1024, 129968 * 1024, 0)
    assert found["MemFree"] <= found["MemAvailable"] <= found["MemTotal"]
    with pytest.raises(Garbled):
        meminfo.parse("MemTotal: 1 kB\nMemFree: 1 kB\n")


@pytest.mark.report("KRN-04")
def test_the_size_of_a_page() -> None:
    assert (getconf.parse("4096\n"), getconf.parse("65536\n")) == (4096, 65536)
    with pytest.raises(Garbled):
        getconf.parse("4095\n")


@pytest.mark.report("MEM-12", "KRN-02", "HW-04")
def test_lines_of_the_kernel_that_mean_something() -> None:
    """S17, with and without a time before the line, and in the journal's own form."""
    found = kernel_log.parse(sample("S17-kernel.txt"))
    assert [line.signature for line in found] == ["gpu-out-of-memory", "oom-invoked", "oom-kill", "oom-killed"]
    assert found[2].text.startswith("oom-kill:constraint=CONSTRAINT_NONE")
    text = (
        "[ 1234.567890] spark-a kernel: NVRM: Xid (PCI:000f:01:00): 79, pid=1, GPU has fallen off the bus.\n"
        "[ 1235.5] spark-a kernel: pcieport 0000:00:00.0: AER: Multiple Uncorrected (Fatal) error received\n"
        "[ 1235.6] spark-a kernel: pcieport 0000:00:00.0: AER: Uncorrected (Non-Fatal) error received: 0000:01:00.0\n"
        "[ 1236.5] spark-a kernel: usb 1-1: new device\n"
        "[ 3.25] kernel: mlx5_core 0000:01:00.0: Detected insufficient power on the PCIe slot (27W).\n"
    )
    found = kernel_log.parse(text)
    assert [(line.signature, line.seconds) for line in found] == [
        ("gpu-xid", 1234.56789),
        ("pcie-fatal", 1235.5),
        ("pcie-error", 1235.6),
        ("nic-power", 3.25),
    ]
    assert found[1].text == "pcieport 0000:00:00.0: AER: Multiple Uncorrected (Fatal) error received"


def test_a_line_that_repeats_itself() -> None:
    text = "\n".join(f"NVRM: trouble {number}" for number in range(100)) + "\nKernel panic - not syncing\n"
    found = kernel_log.parse(text)
    assert len(found) == kernel_log.MOST + 1
    assert found[-2].text == "NVRM: trouble 99"


@pytest.mark.report("HW-05", "HW-06")
def test_how_boots_ended() -> None:
    clean, cut = sample("boot-end-clean.txt"), sample("boot-end-cut.txt")
    found = boots.boots(sample("boots.txt"), {-1: clean})
    assert [(boot.id[:4], boot.ended) for boot in found] == [("5b05", "clean"), ("9089", "")]
    assert boots.boots(sample("boots.txt"), {-1: cut})[0].ended == "cut"
    assert boots.ended("-- No entries --\n") == ""
    with pytest.raises(Garbled):
        boots.parse("  0 5b0521eb26984e0ebabca3ec")


def test_the_clock() -> None:
    assert timedatectl.parse(sample("timedatectl.txt")) == timedatectl.Time(False, False, "Etc/UTC")
    assert timedatectl.parse("NTP=yes\nNTPSynchronized=yes\n") == timedatectl.Time(True, True, "")


@pytest.mark.report("NET-22", "KRN-03")
def test_firmware_that_waits() -> None:
    found = fwupdmgr.parse(sample("fwupdmgr-devices.json"), sample("fwupdmgr-upgrades.json"))
    assert found == [
        FirmwareDevice("ConnectX-7", "28.45.4028", "28.47.1000"),
        FirmwareDevice("UEFI Device Firmware", "5.36_0ACUM018", "another version"),
        FirmwareDevice("USB hub", "1.0"),
    ]
    nothing = '{"Error": {"Domain": "FwupdError", "Code": 9, "Message": "No updatable devices"}}'
    assert fwupdmgr.parse(sample("fwupdmgr-devices.json"), nothing)[0].pending == ""


@pytest.mark.report("CFG-04")
def test_who_listens() -> None:
    found = ss.parse(sample("ss.txt"))
    assert found[0] == Listener("0.0.0.0", 22, 144, "sshd")
    assert Listener("127.0.0.53", 53, 59, "systemd-resolve") in found
    line = 'LISTEN 0 128 *:8888 *:* users:(("jupyter-lab",pid=7,fd=6),("python3",pid=8,fd=6))\n'
    assert [(one.address, one.port, one.pid, one.command) for one in ss.parse(line)] == [
        ("*", 8888, 7, "jupyter-lab"),
        ("*", 8888, 8, "python3"),
    ]
    assert ss.parse("LISTEN 0 128 0.0.0.0:12049 0.0.0.0:*\n") == [Listener("0.0.0.0", 12049, None, "")]
    assert ss.parse("State Recv-Q Send-Q Local Address:Port Peer Address:Port Process\n") == []


def test_processes() -> None:
    assert ps.parse(sample("ps.txt"))[-1] == ps.Process(1204, "kworker/0:1", "[kworker/0:1]")


@pytest.mark.report("DKR-01")
def test_runtimes_in_both_dialects() -> None:
    """S18: the daemon does not know what its settings say."""
    assert docker_info.settings_runtimes(sample("S18-daemon.json")) == ("nvidia",)
    assert docker_info.settings_runtimes(sample("S18-daemon-second.json")) == ("nvidia",)
    assert docker_info.settings_runtimes("{}") == docker_info.settings_runtimes("\n") == ()
    info = docker_info.parse(sample("docker-info.json"))
    assert (info.runtimes, info.default_runtime, info.driver) == (
        ("io.containerd.runc.v2", "runc"), "runc", "overlay2",
    )  # fmt: skip
    with pytest.raises(Garbled, match=r"/etc/docker/daemon.json said '\{\"runtimes\": \['"):
        docker_info.settings_runtimes('{"runtimes": [')


@pytest.mark.report("DKR-02")
def test_what_a_daemon_says_of_itself() -> None:
    info = docker_info.parse(sample("docker-info.json"))
    assert info.security == ("name=seccomp,profile=builtin", "name=cgroupns")
    assert not info.containerd_store
    assert docker_info.has_containerd_store([["driver-type", "io.containerd.snapshotter.v1"]])


@pytest.mark.report("RDMA-02")
def test_what_a_daemon_may_lock() -> None:
    assert limits.parse(sample("limits.txt"))["Max locked memory"] is None
    few = sample("limits.txt").replace("Max locked memory         unlimited", "Max locked memory         8388608  ")
    assert limits.parse(few)["Max locked memory"] == 8388608
    unit = systemctl.parse(sample("systemctl-docker.txt"))["docker.service"]
    assert systemctl.limit(unit, "LimitMEMLOCK") == 8388608
    assert systemctl.limit({"LimitMEMLOCK": "infinity"}, "LimitMEMLOCK") is None
    assert systemctl.limit({"LimitMEMLOCK": str(2**64 - 1)}, "LimitMEMLOCK") is None
    with pytest.raises(Garbled):
        systemctl.limit({}, "LimitMEMLOCK")


@pytest.mark.report("MEM-17", "HW-01")
def test_a_gpu_whose_memory_is_the_cpus() -> None:
    (gpu,) = nvidia_smi.gpus(sample("nvidia-smi.txt"))
    assert (gpu.name, gpu.sm_mhz, gpu.max_sm_mhz, gpu.power_watts, gpu.reasons) == (
        "NVIDIA GB10", 208, 3003, 4.21, ("Idle",),
    )  # fmt: skip
    dumb = "NVIDIA GB10, 580.95.05, 702 MHz, [N/A], 96 %, [Not Supported], [Unknown Error], 0x0000000000000084\n"
    (gpu,) = nvidia_smi.gpus(dumb)
    assert (gpu.sm_mhz, gpu.max_sm_mhz, gpu.power_watts, gpu.temperature) == (702, None, None, None)
    assert gpu.reasons == ("SW Power Cap", "HW Power Brake Slowdown")
    assert nvidia_smi.figure("[N/A]") is nvidia_smi.figure("Not Supported") is None
    assert nvidia_smi.gpus("No devices were found\n") == []


@pytest.mark.report("MEM-17", "MEM-04")
def test_who_uses_the_gpu() -> None:
    assert nvidia_smi.apps(sample("compute-apps.txt"), {"3120": "f" * 64}) == [
        GpuApp(1811, "/usr/lib/xorg/Xorg", 43, None),
        GpuApp(2200, "/usr/bin/python3 -c import torch, vllm", None, None),
        GpuApp(3120, "VLLM::Worker_TP0", 84023, "f" * 64),
    ]
    assert nvidia_smi.apps("No running processes found\n") == []


def test_the_gpus_long_text() -> None:
    """S29."""
    found = nvidia_smi.details(sample("S29-nvidia-smi-q.txt"))
    assert found["Clocks Event Reasons/SW Power Cap"] == "Not Active"
    assert found["Temperature/GPU Current Temp"] == "81 C"
    assert nvidia_smi.active_reasons(sample("S29-nvidia-smi-q.txt")) == ()
    hot = sample("S29-nvidia-smi-q.txt").replace("HW Slowdown                       : Not Active",
                                                 "HW Slowdown                       : Active")  # fmt: skip
    assert nvidia_smi.active_reasons(hot) == ("HW Slowdown",)
