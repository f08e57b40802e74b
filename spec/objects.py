"""Every path, unit, user and key that we make on a node, once. docs/objects.md is generated from this list, and what
removes us walks it. Nothing may be put on a node that is not here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from node import paths

ETC = str(paths.CONFIG)
VAR = str(paths.STATE)
RUN = str(paths.RUN)
LIB = str(paths.PROGRAMS)
LIB_NEW = f"{LIB}.sparkpair-new"

RANK_FILE = f"{ETC}/wanted/rank.json"
SERVICE_FILE = f"{ETC}/wanted/service.json"
HUB_CLIENT = str(paths.HUB_CLIENT)
HUB_COMPLETE = f"{HUB_CLIENT}/complete"
HUB_TOKEN = str(paths.HUB_TOKEN)
NETPLAN_FILE = "/etc/netplan/60-sparkpair.yaml"
NETPLAN_REMOVED = f"{NETPLAN_FILE}.sparkpair-removed"
RAILS_TIMER = "sparkpair-remove-rails"
ADOPTED = f"{VAR}/rails/adopted"
FIREWALL_RULES = f"{VAR}/rails/firewall"
NETPLAN_STAGED = f"{ETC}/fabric/60-sparkpair.yaml"
MAIN = paths.PROGRAM[-1]
PROGRAM = " ".join(paths.PROGRAM)
SUDOERS = "/etc/sudoers.d/sparkpair"
CLI = "/usr/local/bin/sparkpair"
AGENT_UNIT = "sparkpair-agent.service"
KEEPER_UNIT = "sparkpair-keeper.service"
DEEP_UNIT = "sparkpair-weights-deep.service"
DEEP_TIMER = "sparkpair-weights-deep.timer"
DEEP_RESULT = str(paths.DEEP_RESULT)
RECORDER_UNIT = "sparkpair-recorder.service"
MEMORY = str(paths.MEMORY)
FABRIC_GATE = str(paths.FABRIC_GATE)
GATE_PORT = paths.GATE_PORT
GATE_SERVER, GATE_CLIENT = "sparkpair-gate-server", "sparkpair-gate-client"
PROTECTED_UNITS = ("ssh.service", "user.slice", "system.slice")
"""Units of the system that are given something with protect_login."""
UNIT_DIRECTORY = "/etc/systemd/system"
CGROUP_PARENT = "sparkpair-engine.slice"
GOOD_HOST = f"{VAR}/good-host.json"
USER = "sparkpair"
PEER_HOME = f"{ETC}/peer"
AUTHORIZED_KEYS = f"{PEER_HOME}/.ssh/authorized_keys"
KEY_FILE = f"{ETC}/ssh/id_ed25519"
KNOWN_HOSTS = f"{ETC}/ssh/known_hosts"
KEY_COMMENT = "sparkpair keeper"
SECRETS = str(paths.SECRETS)
API_KEY_FILE = str(paths.API_KEY)
WEIGHTS_PORT = paths.WEIGHTS_PORT
MOUNT_POINT = str(paths.WEIGHTS_MOUNT)
MOUNT_UNIT = paths.WEIGHTS_MOUNT_UNIT
MOUNT_FILE = f"{UNIT_DIRECTORY}/{MOUNT_UNIT}"
WANTED_MOUNT = str(paths.WANTED_MOUNT)
EXPORTS_DIRECTORY = "/etc/exports.d"
EXPORTS_FILE = f"{EXPORTS_DIRECTORY}/sparkpair.exports"
NFS_SERVER_UNIT = "nfs-server.service"
REGISTRY_PORT = paths.REGISTRY_PORT
REGISTRY_STORE = str(paths.REGISTRY_STORE)
REGISTRY_UNIT = "sparkpair-image-registry.service"
IMAGE_REPOSITORY = "sparkpair/engine"
"""Under which name an image of ours is kept, besides the one that it was pulled by."""


def protection(unit: str) -> str:
    """The file that adds to a unit of the system."""
    return f"{UNIT_DIRECTORY}/{unit}.d/60-sparkpair.conf"


class Where(Enum):
    """On which nodes an object is."""

    EVERY = "every node"
    HEAD = "head"
    WORKERS = "workers"

    def holds(self, is_head: bool) -> bool:
        """Whether the node of that position has it."""
        return self is Where.EVERY or (self is Where.HEAD) == is_head


class Sort(Enum):
    """What an object is."""

    DIRECTORY = "directory"
    FILE = "file"
    LINK = "link"
    SOCKET = "socket"
    UNIT = "unit"
    TRANSIENT = "transient unit"
    CGROUP = "cgroup"
    CONTAINER = "container"
    IMAGE = "name of an image"
    USER = "user"


class Life(Enum):
    """How an object changes and goes."""

    DEPLOY = "deploy writes it; removal takes it"
    PROGRAM = "a program of ours writes it; removal takes it"
    GENERATION = "the keeper writes one per generation and drops the oldest"
    WORK = "there while the work runs"
    BOOT = "gone after a reboot"
    ASKED = "deploy writes it; removal takes it when it is told to"
    OPERATOR = "the operator's: made if missing, removed when that is asked for or never"


class Taking(Enum):
    """How removal takes an object."""

    CONTAINER = "ended, with every process in it"
    UNIT = "stopped and disabled, then its file"
    FILE = "removed, with what an interrupted write left beside it"
    TREE = "removed with all that is in it"
    EMPTY = "removed when nothing of anybody else is in it"
    USER = "removed from the system's users"
    ASKED = "removed when remove_also names it"
    NEVER = "stays"


@dataclass(frozen=True)
class Object:
    """One thing of ours on a node. A `*` or `<...>` in a path stands for a part that differs; `mode` is octal, or empty
    where it has no meaning."""

    path: str
    sort: Sort
    where: Where
    owner: str
    mode: str
    made_by: str
    life: Life
    why: str
    enabled_by: str = ""
    asked: str = ""
    """The word of remove_also that has removal take it; empty where it goes without, or never."""

    @property
    def taking(self) -> Taking:
        """How removal takes it."""
        if self.life in (Life.ASKED, Life.OPERATOR):
            return Taking.ASKED if self.asked else Taking.NEVER
        if self.life is Life.BOOT and not self.path.startswith((RUN, CGROUP_PARENT)):
            return Taking.NEVER  # locks that removal holds itself; gone after a reboot
        if self.sort is Sort.DIRECTORY:
            is_mounted_on = self.path.startswith(MOUNT_POINT.rpartition("/")[0])
            is_whole = self.life in (Life.PROGRAM, Life.GENERATION, Life.WORK) or self.path == LIB
            return Taking.TREE if is_whole and not is_mounted_on else Taking.EMPTY
        return _BY_SORT.get(self.sort, Taking.FILE)


_BY_SORT = {
    Sort.UNIT: Taking.UNIT,
    Sort.TRANSIENT: Taking.UNIT,
    Sort.CGROUP: Taking.CONTAINER,
    Sort.CONTAINER: Taking.CONTAINER,
    Sort.USER: Taking.USER,
}


def secret_file(name: str) -> str:
    """Where a secret of that name lies on its node."""
    return f"{SECRETS}/{name}"


def _directory(path: str, mode: str, made_by: str, why: str, where: Where = Where.EVERY) -> Object:
    return Object(path, Sort.DIRECTORY, where, "root:root", mode, made_by, Life.DEPLOY, why)


OBJECTS: tuple[Object, ...] = (
    # Programs
    _directory(LIB, "0755", "roles/node_os", "The programs that run on a node, on Python's standard library alone."),
    Object(
        LIB_NEW, Sort.DIRECTORY, Where.EVERY, "root:root", "0755", "roles/node_os", Life.WORK,
        "The next set of programs while it is written; exchanged with the one in force as a whole.",
    ),
    Object(
        MAIN, Sort.FILE, Where.EVERY, "root:root", "0644", "roles/node_os", Life.DEPLOY,
        "Entry of every program of ours; units and the forced command name it in full.",
    ),
    _directory(f"{LIB}/node", "0755", "roles/node_os", "The modules of those programs."),
    Object(
        f"{LIB}/node/*.py", Sort.FILE, Where.EVERY, "root:root", "0644", "roles/node_os", Life.DEPLOY,
        "The modules themselves; a program reports a hash over all of them as its version.",
    ),
    Object(
        CLI, Sort.FILE, Where.EVERY, "root:root", "0755", "roles/node_os", Life.DEPLOY,
        "The command of the operator on the head: `sparkpair --help` lists its words.",
    ),
    Object(
        HUB_CLIENT, Sort.DIRECTORY, Where.EVERY, "root:root", "0755", "operations/hub", Life.PROGRAM,
        "huggingface_hub and what it needs, unpacked from wheels whose hashes requirements-hub.lock states; only on a "
        "node that downloads. Nothing but the download reads it.",
    ),
    Object(
        f"{HUB_CLIENT}.sparkpair-new", Sort.DIRECTORY, Where.EVERY, "root:root", "0755", "operations/hub", Life.WORK,
        "The next client while it is unpacked.",
    ),
    Object(
        HUB_COMPLETE, Sort.FILE, Where.EVERY, "root:root", "0644", "operations/hub", Life.DEPLOY,
        "Which lock, Python and machine the client is for; written last.",
    ),
    # What is wanted
    _directory(ETC, "0755", "roles/node_os", "What is wanted, and the keys; nothing here changes by itself."),
    _directory(f"{ETC}/wanted", "0755", "roles/node_os", "What the last deploy asked for; a plan compares it."),
    Object(
        RANK_FILE, Sort.FILE, Where.EVERY, "root:root", "0600", "roles/engine", Life.DEPLOY,
        "The launch of this node's rank. Root's alone: an engine's variables may hold secrets.",
    ),
    Object(
        SERVICE_FILE, Sort.FILE, Where.HEAD, "root:root", "0600", "roles/keeper", Life.DEPLOY,
        "What the keeper supervises and how; no running rank depends on it.",
    ),
    # The rails
    _directory(f"{ETC}/fabric", "0755", "roles/node_os", "Holds the rails' file before it is in force."),
    Object(
        NETPLAN_STAGED, Sort.FILE, Where.EVERY, "root:root", "0600", "roles/fabric", Life.DEPLOY,
        "The rails as wanted; compared by the plan and put in force by a guarded step on the node.",
    ),
    Object(
        NETPLAN_FILE, Sort.FILE, Where.EVERY, "root:root", "0600", "roles/fabric", Life.ASKED,
        "The rails in force: addresses and MTU, kept without carrier. No other netdev stands in it.", asked="rails",
    ),
    Object(
        NETPLAN_REMOVED, Sort.FILE, Where.EVERY, "root:root", "0600", "remove.py", Life.ASKED,
        "The same file while removal takes the rails away; netplan does not read it, and a timer puts it back.",
        asked="rails",
    ),
    Object(
        f"{RAILS_TIMER}.timer", Sort.TRANSIENT, Where.EVERY, "root", "", "remove.py", Life.WORK,
        "Puts the rails back from the node itself when a removal has locked itself out.", "systemd-run",
    ),
    Object(
        "/run/netplan/60-sparkpair.yaml", Sort.FILE, Where.EVERY, "root:root", "0600", "roles/fabric", Life.WORK,
        "The rails on trial; a timer or a reboot takes them back unless the management address is proven alive.",
    ),
    Object(
        "/run/netplan/60-sparkpair.yaml.before", Sort.FILE, Where.EVERY, "root:root", "0600", "roles/fabric",
        Life.WORK, "Addresses, MTU and routes before the trial, to be put back; netplan does not read it.",
    ),
    _directory(f"{VAR}/rails", "0755", "roles/node_os", "What was taken over, and what was opened, for removal."),
    Object(
        ADOPTED, Sort.DIRECTORY, Where.EVERY, "root:root", "0700", "roles/fabric", Life.ASKED,
        "With `adopt_rails`: netplan files of others as they were before their rails were taken over, and as they are "
        "since (`.ours`). Removal of the rails puts them back where they are still so.", asked="rails",
    ),
    Object(
        FIREWALL_RULES, Sort.FILE, Where.EVERY, "root:root", "0644", "roles/fabric", Life.DEPLOY,
        "With `open_firewall`: the commands that delete the rules which let the rails' peers in. Removal runs them.",
    ),
    Object(
        "sparkpair-fabric-rollback.timer", Sort.TRANSIENT, Where.EVERY, "root", "", "roles/fabric", Life.WORK,
        "Restores the former rails from the node itself when a deploy has locked itself out.", "systemd-run",
    ),
    Object(
        FABRIC_GATE.rpartition("/")[0], Sort.DIRECTORY, Where.EVERY, "root:root", "0755", "fabric_test.py, deploy.py",
        Life.DEPLOY, "What is known and kept of the rails.",
    ),
    Object(
        FABRIC_GATE, Sort.FILE, Where.HEAD, "root:root", "0644", "fabric_test.py, deploy.py", Life.PROGRAM,
        "The rails as they were measured last: what was found, when, and of which netdevs, MTU, kernel and firmware.",
    ),
    Object(
        f"{GATE_SERVER}.service", Sort.TRANSIENT, Where.EVERY, "root", "", "fabric_test.py, deploy.py", Life.WORK,
        f"The waiting side of one measurement of the rails (TCP {GATE_PORT} and following); bounded in time "
        "and memory.", "systemd-run",
    ),
    Object(
        f"{GATE_CLIENT}.service", Sort.TRANSIENT, Where.EVERY, "root", "", "fabric_test.py, deploy.py", Life.WORK,
        "The sending side of it.", "systemd-run",
    ),
    Object(
        "sparkpair-gate-collective", Sort.CONTAINER, Where.EVERY, "root", "", "fabric_test.py, deploy.py", Life.WORK,
        "One rank of a small collective in the engine's image; ends by itself, and Docker removes it then.",
    ),
    # Units
    Object(
        f"{UNIT_DIRECTORY}/{AGENT_UNIT}", Sort.UNIT, Where.EVERY, "root:root", "0644", "roles/keeper", Life.DEPLOY,
        "The rank agent: starts, stops and reports this node's rank, and stops it when its lease runs out.",
        "roles/keeper (multi-user.target)",
    ),
    Object(
        f"{UNIT_DIRECTORY}/{KEEPER_UNIT}", Sort.UNIT, Where.HEAD, "root:root", "0644", "roles/keeper", Life.DEPLOY,
        "The keeper: owns the life of the pair.", "roles/keeper (multi-user.target)",
    ),
    Object(
        f"{UNIT_DIRECTORY}/{RECORDER_UNIT}", Sort.UNIT, Where.EVERY, "root:root", "0644", "roles/memory", Life.DEPLOY,
        "The recorder: looks at the node's memory once a second, and keeps what it saw.",
        "roles/memory (multi-user.target)",
    ),
    *(
        item
        for unit, what in zip(
            PROTECTED_UNITS, ("sshd, and whom it lets in", "login sessions", "what the system runs"), strict=True
        )
        for item in (
            Object(
                protection(unit).rpartition("/")[0], Sort.DIRECTORY, Where.EVERY, "root:root", "0755", "deploy.py",
                Life.DEPLOY, "Holds the file that follows, and those of others; made where it is missing.",
            ),
            Object(
                protection(unit), Sort.FILE, Where.EVERY, "root:root", "0644", "roles/memory", Life.DEPLOY,
                f"With `protect_login`: memory that is not taken from {what}.",
            ),
        )
    ),
    Object(
        f"{UNIT_DIRECTORY}/multi-user.target.wants/sparkpair-*.service", Sort.LINK, Where.EVERY, "root:root", "",
        "systemd", Life.DEPLOY, "What enabling the units writes.",
    ),
    Object(
        f"{UNIT_DIRECTORY}/{DEEP_UNIT}", Sort.UNIT, Where.EVERY, "root:root", "0644", "roles/upkeep", Life.DEPLOY,
        "The deep check: reads every byte of weights and drafter again; memory-limited.", DEEP_TIMER,
    ),
    Object(
        f"{UNIT_DIRECTORY}/{DEEP_TIMER}", Sort.UNIT, Where.EVERY, "root:root", "0644", "roles/upkeep", Life.DEPLOY,
        "Starts the deep check once a month, on another day on each node.", "roles/upkeep (timers.target)",
    ),
    Object(
        f"{UNIT_DIRECTORY}/timers.target.wants/{DEEP_TIMER}", Sort.LINK, Where.EVERY, "root:root", "",
        "systemd", Life.DEPLOY, "What enabling the timer writes.",
    ),
    Object(
        f"/var/lib/systemd/timers/stamp-{DEEP_TIMER}", Sort.FILE, Where.EVERY, "root:root", "0644",
        "systemd", Life.PROGRAM,
        "When the timer was last due, so that a month in which the node was off is made up for.",
    ),
    Object(
        "sparkpair-weights-hash.service", Sort.TRANSIENT, Where.EVERY, "root", "", "roles/weights", Life.WORK,
        "Makes the manifest of a directory once, where the files are; memory-limited.", "systemd-run",
    ),
    Object(
        "sparkpair-weights-serve.service", Sort.TRANSIENT, Where.EVERY, "root", "", "roles/weights", Life.WORK,
        f"Serves verified files read-only to the peers' rail addresses (HTTP, TCP {WEIGHTS_PORT}) while a peer copies.",
        "systemd-run",
    ),
    Object(
        "sparkpair-stage.service", Sort.TRANSIENT, Where.EVERY, "root", "", "roles/weights", Life.WORK,
        "Brings the files of a locked directory here, from hub, peers or bundle, and proves them; the download is a "
        "child of it that runs as the login user. Memory-limited; goes on where it stopped.",
        "systemd-run",
    ),
    Object(
        f"{paths.REPORT_UNIT}.service", Sort.TRANSIENT, Where.EVERY, "root", "", "sparkpair support-bundle",
        Life.WORK,
        "Gathers what this node can tell of itself; memory-limited, and last in every queue.", "systemd-run",
    ),
    Object(
        "sparkpair-image-pull.service", Sort.TRANSIENT, Where.EVERY, "root", "", "roles/image", Life.WORK,
        "Pulls the engine's image by digest, tells how far it is, and names it.", "systemd-run",
    ),
    Object(
        REGISTRY_UNIT, Sort.TRANSIENT, Where.EVERY, "root", "", "roles/image", Life.WORK,
        f"Where only one node has the image at hand: serves that one image to this node's Docker and to the peers on "
        f"the rails (TCP {REGISTRY_PORT}); memory-limited.", "systemd-run",
    ),
    Object(
        REGISTRY_STORE, Sort.DIRECTORY, Where.EVERY, "root:root", "0755", "sparkpair-image-registry", Life.WORK,
        "What that registry has fetched, so that each layer comes from the internet once.",
    ),
    Object(
        "sparkpair-image-tests.service", Sort.TRANSIENT, Where.HEAD, "root", "", "image_tests.py", Life.WORK,
        "Stops the pair, runs the image's own tests in a container of that name, and starts the pair however they end.",
        "systemd-run",
    ),
    Object(
        f"{VAR}/image-tests", Sort.DIRECTORY, Where.HEAD, "root:root", "0755", "image_tests.py", Life.WORK,
        "Those tests, as the engine's repository has them.",
    ),
    Object(
        f"{IMAGE_REPOSITORY}:<first 12 of the digest>", Sort.IMAGE, Where.EVERY, "root", "", "roles/image",
        Life.OPERATOR,
        "Second name of an image that was pulled by digest: without one `docker image prune` would take it.",
        asked="image",
    ),
    Object(
        GOOD_HOST, Sort.FILE, Where.EVERY, "root:root", "0644", "roles/upkeep", Life.DEPLOY,
        "Kernel, driver and firmware with which a deploy saw the pair pass its gates last.",
    ),
    # Weights over NFS
    Object(
        EXPORTS_DIRECTORY, Sort.DIRECTORY, Where.EVERY, "root:root", "0755", "roles/nfs", Life.OPERATOR,
        "Where exports may stand in files of their own (nfs-kernel-server); Debian's package does not make it.",
    ),
    Object(
        EXPORTS_FILE, Sort.FILE, Where.EVERY, "root:root", "0644", "roles/nfs", Life.DEPLOY,
        'On the node that holds the weights with `weights = "nfs"`: read-only, to the others\' rail addresses alone.',
    ),
    Object(
        MOUNT_FILE, Sort.UNIT, Where.EVERY, "root:root", "0644", "roles/nfs", Life.DEPLOY,
        "On the nodes that read them over NFS: what to mount, where and how.",
        "rank agent, anew before each rank; not at boot",
    ),
    Object(
        WANTED_MOUNT, Sort.FILE, Where.EVERY, "root:root", "0644", "roles/nfs", Life.DEPLOY,
        "There: what must be found in the mount, name, size and sha256 of each file.",
    ),
    Object(
        MOUNT_POINT.rpartition("/")[0], Sort.DIRECTORY, Where.EVERY, "root:root", "0755", "systemd", Life.PROGRAM,
        "Holds the place of that mount.",
    ),
    Object(
        MOUNT_POINT, Sort.DIRECTORY, Where.EVERY, "root:root", "0755", "systemd", Life.PROGRAM,
        "The place itself, which the engine's container sees.",
    ),
    Object(
        "sparkpair-nfs-prove.service", Sort.TRANSIENT, Where.EVERY, "root", "", "roles/nfs", Life.WORK,
        "Tries the mount aside, in a mount namespace of its own, before the pair is touched.", "systemd-run",
    ),
    # The way from the keeper to the other nodes
    _directory(f"{ETC}/ssh", "0700", "roles/node_os", "The keeper's key and the host keys it accepts.", Where.HEAD),
    Object(
        KEY_FILE, Sort.FILE, Where.HEAD, "root:root", "0600", "roles/keeper", Life.DEPLOY,
        "The keeper's private key, made on the head by ssh-keygen. It never leaves the head.",
    ),
    Object(
        f"{KEY_FILE}.pub", Sort.FILE, Where.HEAD, "root:root", "0644", "roles/keeper", Life.DEPLOY,
        "Its public half; read from the head while deploying and written to the workers in the same run.",
    ),
    Object(
        KNOWN_HOSTS, Sort.FILE, Where.HEAD, "root:root", "0644", "roles/keeper", Life.DEPLOY,
        "Each worker's ed25519 host key under the name sparkpair-rank<rank>, the same by rail and management address.",
    ),
    Object(
        USER, Sort.USER, Where.WORKERS, "", "", "roles/node_os", Life.DEPLOY,
        "System user behind the forced command: no password (`*`), no sudo rule, no other group, owner of no file.",
    ),
    _directory(PEER_HOME, "0755", "roles/node_os", "Its home, and root's: its keys are not its own.", Where.WORKERS),
    _directory(f"{PEER_HOME}/.ssh", "0755", "roles/node_os", "Root's too.", Where.WORKERS),
    Object(
        AUTHORIZED_KEYS, Sort.FILE, Where.WORKERS, "root:root", "0644", "roles/keeper", Life.DEPLOY,
        "One line: the keeper's public key, from the head's addresses only, for the bridge only.",
    ),
    # The engine's secrets
    _directory(SECRETS, "0700", "roles/node_os", "Secrets of the engine, each in a file of its own.", Where.HEAD),
    Object(
        API_KEY_FILE, Sort.FILE, Where.HEAD, "root:root", "0600", "roles/engine", Life.OPERATOR,
        "The key that the API asks for, one line, where require_api_key is on. It never leaves the head.", asked="key",
    ),
    # While it runs
    _directory(RUN, "0755", "systemd", "Sockets and state that a reboot may forget (RuntimeDirectory= of the units)."),
    Object(
        f"{RUN}/agent.sock", Sort.SOCKET, Where.EVERY, "root:sparkpair", "0660", "rank agent", Life.BOOT,
        "Where the rank agent listens; on the head, which has no such group, root:root.",
    ),
    Object(
        f"{RUN}/lease.json", Sort.FILE, Where.EVERY, "root:root", "0644", "rank agent", Life.BOOT,
        "Epoch and deadline of the running rank, so that an agent that is restarted keeps to them.",
    ),
    Object(
        f"{RUN}/keeper.sock", Sort.SOCKET, Where.HEAD, "root:root", "0600", "keeper", Life.BOOT,
        "Where the keeper takes orders from deploy and from the sparkpair command.",
    ),
    Object(
        f"{RUN}/status.json", Sort.FILE, Where.HEAD, "root:root", "0644", "keeper", Life.BOOT,
        "What `sparkpair status` shows; no secrets in it.",
    ),
    Object(
        str(paths.RANK_STATE), Sort.FILE, Where.EVERY, "root:root", "0644", "rank agent", Life.BOOT,
        "Which launch the agent started last and when; the recorder begins a new floor of memory with each.",
    ),
    Object(
        MEMORY, Sort.FILE, Where.EVERY, "root:root", "0644", "sparkpair-recorder", Life.BOOT,
        "The node's memory a second ago, and the least that was available since the running rank was started.",
    ),
    Object(
        f"{RUN}/errand-*.json", Sort.FILE, Where.EVERY, "root:root", "0600", "roles/weights", Life.BOOT,
        "What the staging unit is to bring, and from where.",
    ),
    Object(
        "/run/lock/sparkpair-deploy.lock", Sort.FILE, Where.HEAD, "root:root", "0644", "deploy.py", Life.BOOT,
        "Held by a program at the other end of the deploy's own connection, so that two deploys never mix.",
    ),
    Object(
        "/run/lock/sparkpair-opinion.lock", Sort.FILE, Where.EVERY, "root:root", "0644", "deploy.py", Life.BOOT,
        "Held while a throwaway container runs there, so that several plans need memory for one container.",
    ),
    Object(
        str(paths.STAGING_LOCK), Sort.FILE, Where.EVERY, "root:root", "0600", "sparkpair-weights-deep", Life.BOOT,
        "Held while files are staged, so that the deep check waits meanwhile.",
    ),
    Object(
        HUB_TOKEN, Sort.FILE, Where.EVERY, "root:root", "0600", "operations/hub", Life.WORK,
        "The operator's token for the hub, if there is one, between the deploy and the start of the staging unit, "
        "which removes it.",
    ),
    Object(
        CGROUP_PARENT, Sort.CGROUP, Where.EVERY, "root", "", "Docker", Life.BOOT,
        "Parent of the engine's container: killing it ends every process of the rank.",
    ),
    Object(
        "<container_name>", Sort.CONTAINER, Where.EVERY, "root", "", "rank agent", Life.GENERATION,
        "The rank itself, labelled with engine hash, rank and epoch. Docker restarts it never.",
    ),
    Object(
        "sparkpair-opinion-<random>", Sort.CONTAINER, Where.EVERY, "root", "", "deploy.py", Life.WORK,
        "Throwaway container in which the staged engine reads a changed launch; Docker removes it when it ends.",
    ),
    Object(
        "sparkpair-image-check-<random>", Sort.CONTAINER, Where.EVERY, "root", "", "verify_image.py", Life.WORK,
        "Throwaway container in which the image is looked at; Docker removes it when it ends.",
    ),
    # State
    _directory(VAR, "0700", "systemd", "State (StateDirectory= of the units)."),
    Object(
        f"{VAR}/agent.json", Sort.FILE, Where.EVERY, "root:root", "0600", "rank agent", Life.PROGRAM,
        "The highest epoch that the agent was told, so that it takes no order of a keeper that came before.",
    ),
    Object(
        f"{VAR}/logs", Sort.DIRECTORY, Where.EVERY, "root:root", "0755", "rank agent", Life.PROGRAM,
        "The last lines of ranks that failed; the oldest go.",
    ),
    Object(
        f"{VAR}/admitted", Sort.DIRECTORY, Where.EVERY, "root:root", "0755", "rank agent", Life.PROGRAM,
        "Launches that a deploy has installed here: the agent starts no other, whoever asks; the oldest go.",
    ),
    Object(
        f"{VAR}/weights", Sort.DIRECTORY, Where.EVERY, "root:root", "0755", "sparkpair-weights-*", Life.PROGRAM,
        "Manifests (size and sha256 of each file that the engine reads), and marks of unfinished copies.",
    ),
    Object(
        f"{VAR}/weights/*.verified", Sort.FILE, Where.EVERY, "root:root", "0644", "sparkpair-stage", Life.PROGRAM,
        "sha256 of single files, with the size, time and inode by which they are known again without being read.",
    ),
    Object(
        f"{VAR}/weights/*.damaged", Sort.FILE, Where.EVERY, "root:root", "0644", "sparkpair-weights-deep", Life.PROGRAM,
        "Files in which the last deep check found other bytes; there until they were brought again.",
    ),
    Object(
        DEEP_RESULT, Sort.FILE, Where.EVERY, "root:root", "0644", "sparkpair-weights-deep", Life.PROGRAM,
        "When the last deep check was, and what it found.",
    ),
    Object(
        str(paths.MEMORY_RECORD), Sort.DIRECTORY, Where.EVERY, "root:root", "0755", "sparkpair-recorder", Life.PROGRAM,
        "The record of the node's memory.",
    ),
    Object(
        f"{paths.MEMORY_RECORD}/*.csv", Sort.FILE, Where.EVERY, "root:root", "0644", "sparkpair-recorder",
        Life.PROGRAM,
        "A line for each ten seconds of the last days: the least available, the most swap and pressure; 4 MiB at most.",
    ),
    Object(
        f"{VAR}/keeper", Sort.DIRECTORY, Where.HEAD, "root:root", "0755", "keeper", Life.PROGRAM,
        "The keeper's memory.",
    ),
    Object(
        f"{VAR}/keeper/state.json", Sort.FILE, Where.HEAD, "root:root", "0600", "keeper", Life.PROGRAM,
        "Running, resting (and why) or stopped on purpose; kept over reboots.",
    ),
    Object(
        f"{VAR}/keeper/state.damaged-*", Sort.FILE, Where.HEAD, "root:root", "0600", "keeper", Life.PROGRAM,
        "A state file that could not be read, set aside for a person to look at.",
    ),
    Object(
        f"{VAR}/keeper/stopped", Sort.FILE, Where.HEAD, "root:root", "0600", "keeper", Life.PROGRAM,
        "There while the pair is stopped on purpose, so that a damaged state does not start it.",
    ),
    Object(
        f"{VAR}/keeper/rejected.json", Sort.FILE, Where.HEAD, "root:root", "0600", "keeper", Life.PROGRAM,
        "Launches that failed and are not to be tried again by themselves, each with time and reason.",
    ),
    Object(
        f"{VAR}/generations", Sort.DIRECTORY, Where.HEAD, "root:root", "0755", "keeper", Life.PROGRAM,
        "What was launched, so that it can be launched again.",
    ),
    Object(
        f"{VAR}/generations/<hash>", Sort.DIRECTORY, Where.HEAD, "root:root", "0700", "keeper", Life.GENERATION,
        "One generation as it was accepted: rank<rank>.json, service.json, manifest.json; gates.json once it was good, "
        "memory.json with the floors of the nodes' memory while it ran.",
    ),
    Object(
        f"{VAR}/current", Sort.LINK, Where.HEAD, "root:root", "", "keeper", Life.PROGRAM,
        "The generation that runs or is being started.",
    ),
    Object(
        f"{VAR}/last-good", Sort.LINK, Where.HEAD, "root:root", "", "keeper", Life.PROGRAM,
        "The last generation that passed its gates.",
    ),
    Object(
        str(paths.UPDATE), Sort.FILE, Where.HEAD, "root:root", "0600", "keeper", Life.PROGRAM,
        "When newer releases were asked for last, and what was seen.",
    ),
    Object(
        str(paths.SUPPORT), Sort.DIRECTORY, Where.HEAD, "root:root", "0700", "sparkpair support-bundle", Life.PROGRAM,
        "Archives for whoever helps with a fault.",
    ),
    Object(
        f"{paths.SUPPORT}/*.tar.gz", Sort.FILE, Where.HEAD, "root:root", "0600", "sparkpair support-bundle",
        Life.PROGRAM,
        "The newest three, without secrets; each with what every node told of itself.",
    ),
    Object(
        f"{VAR}/history.jsonl", Sort.FILE, Where.HEAD, "root:root", "0600", "keeper", Life.PROGRAM,
        "One line per event: accepted, start, ready, failed, rejected, resting, memory; and what was requested.",
    ),
    # What is the operator's
    Object(
        "<weights_path>, <drafter_path>", Sort.DIRECTORY, Where.EVERY, "login user", "0755", "roles/weights",
        Life.OPERATOR, "The checkpoint and its drafter; written only on a node that lacks them, as in the manifest.",
        asked="weights",
    ),
    Object(
        "<weights_path>.sparkpair-removed, <drafter_path>.sparkpair-removed, <cache_path>.sparkpair-removed",
        Sort.DIRECTORY, Where.EVERY, "login user", "0755", "remove.py", Life.WORK,
        "What removal was told to take, while it takes it.",
    ),
    Object(
        "<weights_path>/.sparkpair, <drafter_path>/.sparkpair", Sort.DIRECTORY, Where.EVERY, "login user", "0755",
        "sparkpair-stage", Life.WORK,
        "Parts of files that are being brought; gone when all are there.",
    ),
    Object(
        "<cache_path>", Sort.DIRECTORY, Where.EVERY, "root:root", "0755", "rank agent", Life.OPERATOR,
        "Kernels that the engine compiled; the engine writes it as root.", asked="cache",
    ),
    Object(
        SUDOERS, Sort.FILE, Where.EVERY, "root:root", "0440", "discover.py", Life.OPERATOR,
        "Lets the login user be root without a password, as every deploy needs it; only where sudo asked for one.",
    ),
    Object(
        "<home>/.ssh/authorized_keys", Sort.FILE, Where.EVERY, "login user", "0600", "discover.py", Life.OPERATOR,
        "One line, with the operator's own key; only where none of theirs logged in.",
    ),
    Object(
        "/etc/docker/daemon.json", Sort.FILE, Where.EVERY, "root:root", "0644", "roles/docker", Life.OPERATOR,
        "Docker's own settings: the NVIDIA runtime is registered in it where it is not; everything else in it stays.",
    ),
)  # fmt: skip
