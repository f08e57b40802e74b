"""Rows about weights that lie on one node: there and back, another server, other addresses, and what goes wrong.

The contract engine reads no weights: what it would see is looked at in its container. One row has the real one load.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

from lab import settings
from lab.settings import HEAD, HOSTS, WORKER, Host
from node.paths import WEIGHTS_MOUNT, WEIGHTS_MOUNT_UNIT
from tests.lab import pair
from tests.lab.chaos import Row

NFS = ("--data", "weights=nfs")
MOUNT = str(WEIGHTS_MOUNT)
LOCAL = {HEAD.name: settings.MODEL_ON_HEAD, WORKER.name: settings.WEIGHTS_ON_WORKER}
EXPORTS = "/etc/exports.d/sparkpair.exports"
MOVED = settings.LAB / "moved"


def use(*arguments: str, engine: str = "contract") -> tuple[str, ...]:
    """Deploy arguments: one of the lab's images, and the shortest window in which failures count."""
    image = pair.images()["engine" if engine == "real" else engine]
    return ("--data", f"image={image}", "--data", "restart_window_seconds=60", *arguments)


def reach(*arguments: str, engine: str = "contract") -> pair.Run:
    """Deploy if there is anything to deploy, prove that the next plan is empty, and that the pair answers."""
    run = pair.deploy(*use(*arguments, engine=engine))
    assert run.code == 0, run.text[-2500:]
    assert "Traceback" not in run.text, run.text[-2500:]
    pair.wait_running()
    settled(*use(*arguments, engine=engine))
    return run


def settled(*arguments: str) -> None:
    """Nothing is planned, verify finds nothing, an answer comes."""
    plan = pair.dry(*arguments).plan
    assert plan == {}, f"still planned: {plan}"
    verified = pair.verify(*arguments)
    assert verified.code == 0, verified.text[-2500:]
    assert pair.answers(30), "no answer"


def over_nfs(host: Host) -> str:
    """What is mounted for the weights of a host; empty where nothing is."""
    lines = [line for line in pair.on(host, "cat /proc/self/mountinfo").splitlines() if f" {MOUNT} " in line]
    assert len(lines) <= 1, lines
    return lines[0].rpartition(" - ")[2].split()[1] if lines else ""


def in_the_container(host: Host) -> str:
    """Digest of what the rank's container sees as its weights."""
    command = "cd /models/tiny && find . -type f | sort | xargs sha256sum | sha256sum"
    return pair.on(host, f"docker exec $(docker ps -q --filter label=sparkpair.rank) sh -c '{command}'").split()[0]


def traces(host: Host) -> list[str]:
    """What NFS mode leaves on a host."""
    places = (
        f"{EXPORTS} /etc/systemd/system/{WEIGHTS_MOUNT_UNIT} /etc/sparkpair/wanted/weights-mount.json /mnt/sparkpair"
    )
    found = pair.on(host, f"ls -d {places} 2>/dev/null; ls /var/lib/sparkpair/weights | grep ^mnt-", check=False)
    table = pair.on(host, "cat /var/lib/nfs/etab 2>/dev/null", check=False)
    return [*found.split(), *table.splitlines()]


def there(server: str = "worker") -> pair.Run:
    """The pair reads from one node."""
    return reach(*NFS, "--data", f"nfs_server={server}")


def moves_there() -> str:
    """From a copy on each node to one."""
    reach()
    before = {host.name: in_the_container(host) for host in HOSTS.values()}
    run = there()
    assert over_nfs(HEAD) == f"10.200.0.2:{settings.WEIGHTS_ON_WORKER}", over_nfs(HEAD)
    assert over_nfs(WORKER) == ""
    assert {host.name: in_the_container(host) for host in HOSTS.values()} == before
    assert pair.on(HEAD, f"ls {settings.MODEL_ON_HEAD}/config.json"), "the copy that nobody reads was touched"
    assert f"sudo rm -r {settings.MODEL_ON_HEAD}" in re.sub(r"\s+", " ", run.text), "the copy was not told"
    refused = pair.on(WORKER, f"mount -t nfs4 -o ro,retry=0 {WORKER.address}:{LOCAL['worker']} /mnt 2>&1", check=False)
    assert "mount.nfs:" in refused, f"exported to the management network too: {refused}"
    return f"{run.seconds:.0f} s; both containers see the same bytes as before, the head's from {over_nfs(HEAD)}"


def moves_back() -> str:
    """To a copy on each node again; the head's was removed meanwhile, as the plan says that it may be."""
    there()
    pair.on(HEAD, f"rm -r {settings.MODEL_ON_HEAD}")
    settled(*use(*NFS))
    run = reach()
    assert in_the_container(HEAD) == in_the_container(WORKER)
    left = {host.name: traces(host) for host in HOSTS.values()}
    assert left == {"head": [], "worker": []}, left
    return f"{run.seconds:.0f} s, copied back over the rails; no mount, unit, export or record is left"


def the_other_serves() -> str:
    """The head holds and exports, the worker mounts; and the other way round again."""
    there()
    there("head")
    assert over_nfs(WORKER) == f"10.200.0.1:{settings.MODEL_ON_HEAD}", over_nfs(WORKER)
    assert (over_nfs(HEAD), traces(HEAD)[:1]) == ("", [EXPORTS])
    there()
    assert (over_nfs(WORKER), over_nfs(HEAD)) == ("", f"10.200.0.2:{settings.WEIGHTS_ON_WORKER}")
    assert traces(WORKER)[:1] == [EXPORTS] and EXPORTS not in traces(HEAD)
    return "each deploy exported here and unexported there; every plan after it was empty"


def moved_inventory() -> str:
    """The lab's inventory with rails in another network; its directory is the caller's to remove."""
    MOVED.mkdir(exist_ok=True)
    text = (settings.SOURCE / "inventory.py").read_text()
    assert text.count("10.200.") == 1
    (MOVED / "inventory.py").write_text(text.replace("10.200.", "10.201."))
    return str(MOVED / "inventory.py")


def addresses_change() -> str:
    """Other rail addresses: exports, mount and launch follow in one deploy, with one restart; and back."""
    there()
    before = pair.status()["counters"]["starts"]
    files = (moved_inventory(), "../deploy.py")
    run = pair.deploy(*use(*NFS), *files)
    assert run.code == 0, run.text[-2500:]
    pair.wait_running()
    assert over_nfs(HEAD) == f"10.201.0.2:{settings.WEIGHTS_ON_WORKER}", over_nfs(HEAD)
    exported = pair.on(WORKER, "cat /var/lib/nfs/etab")
    assert set(re.findall(r"10\.20\d\.\d\.\d", exported)) == {"10.201.0.1", "10.201.1.1"}, exported
    assert pair.dry(*use(*NFS), *files).plan == {}
    assert pair.answers(30)
    back = there()
    starts = pair.status()["counters"]["starts"] - before
    Path(files[0]).unlink()
    return f"{run.seconds:.0f} s there, {back.seconds:.0f} s back; engine starts: {starts}"


def make_stale() -> None:
    """The directory is another one of the same content, and every handle to the former is stale."""
    pair.on(WORKER, "cd /srv/weights && cp -a tiny new && rm -r tiny && mv new tiny && exportfs -ra")
    said = pair.on(HEAD, f"stat {MOUNT}/. 2>&1", check=False).strip()
    assert "Stale file handle" in said, said


def stale_handle() -> str:
    """Verify says so; the next start, of whatever cause, mounts anew; so does a deploy, which restarts nothing."""
    there()
    make_stale()
    verified = pair.verify(*use(*NFS))
    told = f"{MOUNT} (10.200.0.2:{settings.WEIGHTS_ON_WORKER}): Stale file handle"
    assert verified.code == 1 and told in verified.text, verified.text[-2500:]
    assert pair.answers(30), "a pair that serves is not bothered"
    before = pair.status()
    pair.kill_process(HEAD, "main")
    healed = pair.wait_healed(before, 120)
    assert pair.on(HEAD, f"ls {MOUNT}/config.json")
    make_stale()
    plan = pair.dry(*use(*NFS)).plan
    # The copy may have got the inodes of the one before the last: then it is, by all metadata, the one that was hashed.
    again, anew = "Weights | Record the manifest of the weights", "NFS | Mount the weights anew"
    assert anew in plan and set(plan) <= {again, anew, "NFS | Prove the weights over NFS"}, plan
    starts, containers = pair.status()["counters"]["starts"], pair.containers()
    reach(*NFS)
    assert pair.status()["counters"]["starts"] == starts and pair.containers() == containers
    return f"a dead rank came back over a fresh mount in {healed:.0f} s; a deploy mounted anew under the serving pair"


def server_hangs() -> str:
    """The server answers nobody: a plan and verify end all the same, and say so."""
    there()
    pid = pair.on(WORKER, "systemctl show --property=MainPID --value nfs-server").strip()
    pair.on(WORKER, f"kill -STOP {pid}")
    try:
        began = time.monotonic()
        plan = pair.dry(*use(*NFS)).plan
        planned = time.monotonic() - began
        verified = pair.verify(*use(*NFS))
    finally:
        pair.on(WORKER, f"kill -CONT {pid}")
    assert plan == {}, plan
    assert planned < 60
    assert verified.code == 1 and "it does not answer within 5 s" in verified.text, verified.text[-2500:]
    assert pair.answers(30)
    pair.wait_for(lambda: pair.verify(*use(*NFS)).code == 0, 120, "verify, once it answers again", 1)
    return f"the plan took {planned:.0f} s and was empty, verify named the mount; all was well once it answered"


def does_not_work() -> str:
    """What cannot be read over NFS is told before the pair is touched."""
    reach()
    before = pair.containers()
    pair.on(WORKER, f"chmod 600 {settings.WEIGHTS_ON_WORKER}/config.json")
    run = pair.deploy(*use(*NFS))
    pair.on(WORKER, f"chmod 644 {settings.WEIGHTS_ON_WORKER}/config.json")
    assert run.code == 1
    reason = "config.json cannot be read, since root is nobody over NFS"
    remedy = "on the server, where the weights are: chmod -R a+rX ."
    assert f"{reason}; {remedy}" in run.text, run.text[-2500:]
    assert pair.containers() == before and pair.answers(30)
    there()
    return "the deploy ended at the proof, with the remedy; both ranks went on; with the remedy the next one converged"


def server_reboots() -> str:
    """The node with the weights reboots under the pair; nobody does anything."""
    there()
    before = pair.status()
    began = time.monotonic()
    pair.lab("reboot", "worker")
    pair.wait_healed(before, 240)
    healed = time.monotonic() - began
    settled(*use(*NFS))
    return f"answered again {healed:.0f} s after the reboot began; the mount is a fresh one"


def client_reboots() -> str:
    """The node that mounts reboots; then both lose power, and the server comes back last."""
    there()
    before = pair.status()
    pair.lab("reboot", "head")
    pair.wait_running(240)
    assert over_nfs(HEAD)
    pair.lab("off", "head")
    pair.lab("off", "worker")
    pair.lab("on", "head")
    pair.lab("on", "worker")
    pair.wait_healed({**before, "counters": {**before["counters"], "ready": 0}}, 240)
    pair.wait_running(240)
    settled(*use(*NFS))
    return "up again both times, without a failed unit at boot"


def stopped_on_purpose() -> str:
    """A pair that was stopped keeps the launch that reads over NFS, and so its mount, until it runs another."""
    there()
    pair.on(HEAD, "sparkpair stop")
    pair.wait_for(lambda: pair.status()["phase"] == "stopped", 60, "stopped")
    run = pair.deploy(*use())
    assert run.code == 0, run.text[-2500:]
    assert traces(HEAD) and traces(WORKER), "what the stopped launch needs is gone"
    pair.on(HEAD, "sparkpair start")
    pair.wait_running()
    assert over_nfs(HEAD)
    reach()
    left = {host.name: traces(host) for host in HOSTS.values()}
    assert left == {"head": [], "worker": []}, left
    return "it started as it was, over NFS; the deploy after that went back to local and took the traces away"


def real_engine() -> str:
    """vLLM loads its weights over NFS."""
    run = reach(*NFS, engine="real")
    assert over_nfs(HEAD) == f"10.200.0.2:{settings.WEIGHTS_ON_WORKER}"
    mounts = json.loads(
        pair.on(HEAD, "docker inspect -f '{{json .Mounts}}' $(docker ps -q --filter label=sparkpair.rank)")
    )
    assert [(m["Source"], m["RW"]) for m in mounts if m["Destination"] == "/models/tiny"] == [(MOUNT, False)], mounts
    answer = pair.ask()
    assert pair.ANSWER in answer
    reach(engine="real")
    return f"{run.seconds:.0f} s; answered {answer!r}"


ROWS = [
    Row("NFS: from a copy on each node to one", "contract", moves_there),
    Row("NFS: back to a copy on each node", "contract", moves_back),
    Row("NFS: the other node serves the weights", "contract", the_other_serves),
    Row("NFS: other rail addresses", "contract", addresses_change),
    Row("NFS: a stale handle", "contract", stale_handle),
    Row("NFS: a server that hangs", "contract", server_hangs),
    Row("NFS: weights that cannot be read", "contract", does_not_work),
    Row("NFS: the server reboots while the pair serves", "contract", server_reboots),
    Row("NFS: the other node reboots, then both lose power", "contract", client_reboots),
    Row("NFS: left while the pair is stopped on purpose", "contract", stopped_on_purpose),
    Row("NFS: the real engine loads over it", "real", real_engine),
]
