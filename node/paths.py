"""Where the programs on a node keep things. spec/objects.py lists and explains every one of them."""

from pathlib import Path

from node import content, secret

PROGRAMS = Path("/usr/local/lib/sparkpair")
PROGRAM = ("/usr/bin/python3", "-sEB", str(PROGRAMS / "main.py"))
"""How each program of ours is started: without the user's packages, environment and byte code files."""
CONFIG = Path("/etc/sparkpair")
STATE = Path("/var/lib/sparkpair")
RUN = Path("/run/sparkpair")

WANTED_RANK = CONFIG / "wanted/rank.json"
WANTED_SERVICE = CONFIG / "wanted/service.json"
KEEPER_KEY = CONFIG / "ssh/id_ed25519"
KEEPER_KNOWN_HOSTS = CONFIG / "ssh/known_hosts"
SECRETS = Path(secret.DIRECTORY)
API_KEY = SECRETS / "api-key"

AGENT_SOCKET = RUN / "agent.sock"
AGENT_LEASE = RUN / "lease.json"
KEEPER_SOCKET = RUN / "keeper.sock"
STATUS = RUN / "status.json"
RANK_STATE = RUN / "rank.json"
"""The rank agent's word on the rank that it started last, written before the container is: {"engine": hash, "since":
RFC 3339 time}. The recorder begins a new floor with each."""
MEMORY = RUN / "memory.json"

AGENT_STATE = STATE / "agent.json"
KEEPER_STATE = STATE / "keeper/state.json"
GENERATIONS = STATE / "generations"
CURRENT = STATE / "current"
LAST_GOOD = STATE / "last-good"
HISTORY = STATE / "history.jsonl"
LOGS = STATE / "logs"
ADMITTED = STATE / "admitted"
UPDATE = STATE / "update.json"
SUPPORT = STATE / "support"
WEIGHTS = STATE / "weights"
MEMORY_RECORD = STATE / "memory"
FABRIC_GATE = STATE / "fabric/gate.json"
"""The rails as they were measured last. No program on the node reads it; a deploy does."""

WEIGHTS_MOUNT = Path("/mnt/sparkpair/weights")
WEIGHTS_MOUNT_UNIT = "mnt-sparkpair-weights.mount"
"""systemd names the unit of a mount after its place (systemd-escape --path)."""
WANTED_MOUNT = CONFIG / "wanted/weights-mount.json"
UNITS = Path("/etc/systemd/system")
DEEP_RESULT = WEIGHTS / "deep.json"
STAGING_LOCK = RUN / "staging.lock"

HUB_CLIENT = Path("/usr/local/lib/sparkpair-hub")
"""huggingface_hub and what it needs, for the download alone."""
HUB_TOKEN = RUN / "hub-token"

WEIGHTS_PORT = 8730
"""Where a node serves its weights to its peers, on the rails, while a copy runs."""
REGISTRY_PORT = 8731
"""Where a node serves an image to its own Docker, and on the rails to its peers', while it is pulled."""
GATE_PORT = 8732
"""Where one node waits for the other while a rail is measured: the first rail's, and each further one's the next."""
LOOPBACK = "127.0.0.1"
"""Where a node's own Docker asks it: all of 127.0.0.0/8 may be plain HTTP to Docker."""
REGISTRY_STORE = STATE / "registry"

PEER_USER = "sparkpair"
REPORT_UNIT = "sparkpair-report"
ENGINE_SLICE = "sparkpair-engine.slice"
# Docker's systemd driver nests a slice below those that its name spells; its cgroupfs driver takes the name as it is.
ENGINE_CGROUPS = (Path("/sys/fs/cgroup/sparkpair.slice") / ENGINE_SLICE, Path("/sys/fs/cgroup") / ENGINE_SLICE)


def manifest_path(directory: str) -> Path:
    """The manifest of a content directory."""
    return WEIGHTS / content.manifest_name(directory)
