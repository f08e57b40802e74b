"""The lab keeps its promises: stand-ins that say so, a network like a pair's, and nothing left behind.

Tests without the marker need no lab and run in `make check`.
"""

from __future__ import annotations

import ast
import json
import re
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab import base, hosts, image, model, network, registry, settings
from lab.__main__ import PASSED_ON, parse, pyinfra_command
from lab.settings import HEAD, HOSTS, WORKER
from lab.shell import LabError, digest, record, recorded, start_time

in_lab = [pytest.mark.lab, pytest.mark.usefixtures("lab"), pytest.mark.timeout(300)]


def lab_test(function):
    """Mark one test as needing the lab."""
    for mark in in_lab:
        function = mark(function)
    return function


def on(host: settings.Host, command: str) -> str:
    """What a command says on a host as root."""
    done = subprocess.run(hosts.exec_command(host, command), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{host.name}: {command}: {done.stderr}"
    return done.stdout


# --- without a lab


@pytest.mark.parametrize("verb", PASSED_ON)
def test_an_option_may_stand_first_among_what_is_passed_on(verb):
    assert parse([verb, "--dry", "--data", "max_num_seqs=8"]).words == ["--dry", "--data", "max_num_seqs=8"]
    assert parse([verb, "true", "-x"]).words == ["true", "-x"]
    assert parse([verb]).words == []


@pytest.mark.parametrize(
    ("words", "run"),
    [
        (["--dry"], ["--dry", "inventory.py", "../deploy.py"]),
        (["-y", "--data", "smoke_prompt=a.py"], ["-y", "--data", "smoke_prompt=a.py", "inventory.py", "../deploy.py"]),
        (["../verify.py"], ["inventory.py", "../verify.py"]),
        (["inventory.py", "../verify.py"], ["inventory.py", "../verify.py"]),
        (["other.py", "../deploy.py", "--dry"], ["other.py", "../deploy.py", "--dry"]),
    ],
    ids=" ".join,
)
def test_pyinfra_is_given_the_files_that_are_left_out(words, run, monkeypatch, tmp_path):
    monkeypatch.setattr(settings, "CHECKOUT", tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/pyinfra").touch()
    assert pyinfra_command(words)[-len(run) :] == run


@pytest.mark.parametrize("name", sorted(base.STANDINS))
def test_each_standin_says_so_in_its_first_line(name):
    lines = (settings.SOURCE / "standins" / name).read_text().splitlines()
    first = lines[1] if lines[0].startswith("#!") else lines[0]
    assert "Stand-in" in first


def test_every_standin_file_is_placed():
    assert {path.name for path in (settings.SOURCE / "standins").iterdir() if path.is_file()} == set(base.STANDINS)


def test_the_lab_needs_only_the_standard_library_and_itself():
    for path in settings.SOURCE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                top = name.partition(".")[0]
                allowed = top in sys.stdlib_module_names or top == "lab"
                assert allowed or (path.name == "inventory.py" and name == "spec.transport"), f"{path.name}: {name}"


def test_names_outside_the_checkout_carry_it():
    names = [settings.CONTROL_NAMESPACE, *(host.namespace for host in HOSTS.values())]
    assert all(name.startswith(f"{settings.TAG}-") for name in names)
    assert re.fullmatch(r"sp[0-9a-f]{6}", settings.TAG)


def test_a_process_is_known_by_its_start_time_too(tmp_path):
    child = subprocess.Popen(["sleep", "60"])
    try:
        place = tmp_path / "record.json"
        record(place, child.pid)
        assert recorded(place) == child.pid
        entry = json.loads(place.read_text())
        for changed in ({"start": entry["start"] + 1}, {"boot": "another"}):
            place.write_text(json.dumps(entry | changed))
            assert recorded(place) is None, changed
    finally:
        child.kill()
        child.wait()
    assert start_time(child.pid) is None


def test_the_scripted_model_says_its_script(tmp_path):
    numbers = model.vocabulary()
    named = dict(model.tensors(numbers))
    codes, head = named["model.embed_tokens.weight"], named["lm_head.weight"]
    for token, after in model.script(numbers).items():
        scores = [sum(a * b for a, b in zip(codes[token], row, strict=True)) for row in head]
        assert max(range(len(scores)), key=scores.__getitem__) == after

    model.make(tmp_path / "tiny")
    data = (tmp_path / "tiny/model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    assert max(ends) == len(data) - 8 - length


def test_layers_are_keyed_by_what_goes_into_them(monkeypatch):
    before = image.keys()
    monkeypatch.setenv("LAB_TORCH", "torch==2.13.0+cpu")
    after = image.keys()
    assert {name for name in before if before[name] != after[name]} == {"packages", "engine"}
    assert digest("ab", "c") != digest("a", "bc")


def test_the_engine_is_pinned():
    lines = [line for line in image.requirements() if not re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.+]+", line)]
    assert lines == []


def test_a_blob_that_is_cut_short_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "REGISTRY_STORE", tmp_path)
    blob = registry.Blob("sha256:" + "a" * 64, 3)
    assert not registry.has(blob)
    place = registry.blob_place(blob.digest)
    place.mkdir(parents=True)
    (place / "data").write_text("ab")
    assert not registry.has(blob)
    (place / "data").write_text("abc")
    assert registry.has(blob)


def test_a_loss_beyond_all_packets_is_refused():
    with pytest.raises(LabError, match="per mille, 0 to 1000"):
        network.loss(0, 1001)


# --- on the hosts


@lab_test
def test_up_when_up_changes_nothing():
    before = {host.name: hosts.init_of(host) for host in HOSTS.values()}
    done = subprocess.run([sys.executable, "-m", "lab", "up"], cwd=settings.CHECKOUT, capture_output=True, text=True,
                          timeout=250, check=False)  # fmt: skip
    assert (done.returncode, "already up" in done.stderr) == (0, True), done.stderr
    assert {host.name: hosts.init_of(host) for host in HOSTS.values()} == before


@lab_test
@pytest.mark.parametrize("command", [
    "nvidia-smi --reset", "nvidia-smi --query-gpu=nonsense --format=csv", "nvidia-ctk cdi generate",
    "nvidia-ctk runtime configure --runtime=podman", "nvidia-container-runtime-hook start", "ibdev2netdev -v",
])  # fmt: skip
def test_a_standin_refuses_what_it_does_not_know(command):
    done = subprocess.run(hosts.exec_command(HEAD, command), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode != 0
    assert "lab stand-in" in done.stderr or "not a valid field" in done.stdout


@lab_test
def test_hosts_look_like_sparks():
    for host in HOSTS.values():
        assert on(host, "uname -m").strip() == "aarch64"
        said = on(host, "nvidia-smi --query-gpu=name,memory.total --format=csv,noheader")
        assert said.strip() == "NVIDIA GB10, [N/A]"
        seen = sorted(line.split()[0] for line in on(host, "ibdev2netdev").splitlines())
        assert seen == sorted(end.hca for end in host.ports)
        assert int(on(host, "grep MemTotal /proc/meminfo").split()[1]) > 120 * 2**20
        assert on(host, "findmnt -no SOURCE /var/lib/docker").startswith("/dev/loop"), "a disk of its own"


@lab_test
def test_gids_follow_addresses_and_differ_between_the_hosts():
    rows = {}
    for host, address in ((HEAD, "203.0.113.1"), (WORKER, "203.0.113.2")):
        end = host.rails[1]
        port = f"/sys/class/infiniband/{end.hca}/ports/1"
        on(host, f"ip address add {address}/32 dev {end.netdev}")
        try:
            text = "0000:0000:0000:0000:0000:ffff:cb00:710" + address[-1]
            deadline = time.monotonic() + 10
            while not (found := on(host, f"grep -l {text} {port}/gids/* || true").split()):
                assert time.monotonic() < deadline
            kinds = {int(Path(row).name): on(host, f"cat {port}/gid_attrs/types/{Path(row).name}").strip()
                     for row in found}  # fmt: skip
            rows[host.name] = next(index for index, kind in kinds.items() if kind == "RoCE v2")
        finally:
            on(host, f"ip address del {address}/32 dev {end.netdev}")
    assert rows["head"] != rows["worker"]


@lab_test
def test_a_pulled_cable_is_seen_at_both_ends_and_comes_back():
    def carriers() -> list[str]:
        return [on(host, f"cat /sys/class/net/{host.rails[1].netdev}/carrier").strip() for host in HOSTS.values()]

    assert carriers() == ["1", "1"]
    network.cut(1)
    try:
        assert carriers() == ["0", "0"]
        assert network.is_cut(1)
    finally:
        network.join(1)
    assert carriers() == ["1", "1"]


@lab_test
def test_memory_shrinks_by_what_a_process_holds():
    held = 400_000
    hold = subprocess.Popen(
        hosts.exec_command(WORKER, f"exec python3 -c 'import time; b = b\"x\" * ({held} * 1024); time.sleep(30)'")
    )
    try:
        most = int(on(WORKER, "grep MemAvailable /proc/meminfo").split()[1])
        deadline = time.monotonic() + 15
        while most - int(on(WORKER, "grep MemAvailable /proc/meminfo").split()[1]) < held * 0.8:
            assert time.monotonic() < deadline
            time.sleep(0.3)
    finally:
        hold.terminate()
        hold.wait()
