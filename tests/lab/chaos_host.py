"""Rows about a node by itself: keys that changed, Docker's settings, what an upgrade changed, who sits at the desk."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from lab import hosts, settings
from lab.settings import HOSTS, WORKER, Host
from spec.objects import GOOD_HOST
from tests.lab import pair
from tests.lab.chaos import Row
from tests.lab.chaos_rows import converged, use

OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHd4eXp3eHl6d3h5end4eXp3eHl6d3h5end4eXp3eHl6d3h5"


def contract() -> tuple[str, ...]:
    """Arguments of every run here."""
    return use("contract")


def doctor() -> str:
    """What doctor says of the pair."""
    run = pair.start_deploy(*contract(), "inventory.py", "../doctor.py").wait(120)
    assert "Traceback" not in run.text, run.text[-2000:]
    return run.text


def planned() -> str:
    """What a dry run says, warnings and all, each on one line."""
    run = pair.start_deploy("--dry", *contract(), "inventory.py", "../deploy.py").wait(120)
    assert run.code == 0, run.text[-1500:]
    return " ".join(run.text.split())


def line_of(text: str, words: str) -> str:
    """The line with these words, without pyinfra's mark."""
    found = [line.strip() for line in text.splitlines() if words in line]
    assert found, f"{words!r} is not in: {text[-3000:]}"
    return found[0]


def another_key_is_pinned_here() -> str:
    """The control machine remembers another key of the worker: nothing is accepted, nothing is changed, and one message
    for each node says what to compare and what to forget."""
    converged("contract")
    kept = settings.KNOWN_HOSTS.read_text()
    mine = next(line for line in kept.splitlines() if line.startswith(f"{WORKER.address} "))
    settings.KNOWN_HOSTS.write_text(kept.replace(mine, f"{WORKER.address} {OTHER_KEY}"))
    try:
        run = pair.deploy(*contract())
        assert settings.KNOWN_HOSTS.read_text() == kept.replace(mine, f"{WORKER.address} {OTHER_KEY}")
    finally:
        settings.KNOWN_HOSTS.write_text(kept)
    assert run.code == 1, run.text[-1500:]
    assert "Traceback" not in run.text and "eavesdropping" not in run.text, run.text[-1500:]
    assert run.text.count("its ssh host key has changed") == 1, run.text[-1500:]
    said = line_of(run.text, "its ssh host key has changed")
    shown = pair.on(WORKER, "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub").split()[1]
    assert shown in said, said
    assert f"ssh-keygen -R {WORKER.address} -f " in run.text
    assert "no node was changed" in run.text
    assert pair.deploy(*contract()).code == 0
    return f"exit 1: {said[:160]}"


def worker_got_new_keys() -> str:
    """As after it was installed anew: verify and doctor name both keys, a plan says that it pins the new one, and the
    deploy does."""
    converged("contract")
    pair.on(
        WORKER,
        "cd /etc/ssh && mkdir -p /root/keys && cp -a ssh_host_ed25519_key* /root/keys/ && rm ssh_host_ed25519_key*"
        " && ssh-keygen -q -t ed25519 -N '' -f ssh_host_ed25519_key && systemctl restart ssh",
    )
    hosts.write_known_hosts()  # the operator compared them, and accepted
    verified = pair.verify(*contract())
    assert verified.code == 1, verified.text[-1500:]
    said = line_of(verified.text, "the keeper does not talk to it")
    assert "the keeper does not talk to it" in doctor()
    assert "this deploy pins the new one" in planned()
    run = pair.deploy(*contract())
    assert run.code == 0, run.text[-1500:]
    pair.wait_running()
    assert pair.verify(*contract()).code == 0
    assert pair.dry(*contract()).plan == {}
    return said[:200]


def other_kernel_since_it_was_good() -> str:
    """What a deploy kept as good is of another kernel than the one that runs: told by plan and doctor, and kept anew by
    the deploy that sees the pair good."""
    converged("contract")
    for host in HOSTS.values():
        kept = json.loads(pair.on(host, f"cat {GOOD_HOST}"))
        assert kept["kernel"] == pair.on(host, "uname -r").strip(), kept
    kernel = kept["kernel"]
    other = json.dumps({**kept, "kernel": "6.17.0-1031-nvidia"})
    pair.on(WORKER, f"cat > {GOOD_HOST} <<'END'\n{other}\nEND")
    words = f"changed since a deploy last saw the pair good: kernel 6.17.0-1031-nvidia, now {kernel}"
    assert words in planned()
    assert words in " ".join(doctor().split())
    rows = pair.dry(*contract()).plan
    assert rows == {"Upkeep | Keep which kernel, driver and firmware are good": [WORKER.hostname]}, rows
    assert pair.deploy(*contract()).code == 0
    assert pair.dry(*contract()).plan == {}
    assert words not in " ".join(doctor().split())
    return f"{WORKER.hostname}: {words}; one row, then none"


@contextlib.contextmanager
def daemon_of_other_settings(host: Host) -> Iterator[None]:
    """docker.service names a file of its own, in which there is no NVIDIA runtime."""
    place = "/etc/systemd/system/docker.service.d"
    start = pair.on(host, "systemctl cat docker.service | grep ^ExecStart=/ | tail -1").strip()
    pair.on(
        host,
        f"mkdir -p {place}; echo '{{}}' > /etc/docker/other.json; printf '[Service]\\nExecStart=\\n{start} "
        f"--config-file /etc/docker/other.json\\n' > {place}/zz-other.conf; systemctl daemon-reload;"
        " systemctl restart docker",
    )
    try:
        yield
    finally:
        pair.on(host, f"rm -f {place}/zz-other.conf; systemctl daemon-reload; systemctl restart docker")


def docker_reads_other_settings() -> str:
    """Refused before anything is changed: no restart of Docker would make it know the runtime."""
    converged("contract")
    with daemon_of_other_settings(WORKER):
        run = pair.deploy(*contract())
    assert run.code == 1, run.text[-1500:]
    said = line_of(run.text, "and the daemon knows")
    assert "it reads /etc/docker/other.json instead" in said, said
    assert "Preflight refused; no node was changed." in run.text
    pair.wait_running()
    assert pair.deploy(*contract()).code == 0
    return f"exit 1: {said[:200]}"


def somebody_sits_at_the_screen() -> str:
    """Doctor tells it, and of a user outside the group docker; neither is a fault, and no plan of a pair that serves
    speaks of it."""
    converged("contract")
    pair.on(WORKER, "cp /bin/sleep /run/gnome-shell && systemd-run -q --unit=desktop /run/gnome-shell 600")
    pair.on(WORKER, f"gpasswd -d {WORKER.user} docker")
    try:
        said = doctor()
        assert "desktop session" not in planned()
    finally:
        pair.on(WORKER, f"systemctl stop desktop; rm -f /run/gnome-shell; usermod -aG docker {WORKER.user}")
    found = line_of(said, "a desktop session runs")
    assert "(gnome-shell)" in found, found
    line_of(said, f"{WORKER.user} is not in the group docker")
    after = doctor()
    assert "a desktop session runs" not in after and "is not in the group docker" not in after, after[-3000:]
    return found[:200]


ROWS = [
    Row("another host key is pinned on the control machine", "contract", another_key_is_pinned_here),
    Row("the worker got new host keys", "contract", worker_got_new_keys),
    Row("another kernel since the pair was good", "contract", other_kernel_since_it_was_good),
    Row("Docker reads other settings", "contract", docker_reads_other_settings),
    Row("somebody sits at the screen", "contract", somebody_sits_at_the_screen),
]
