"""What knobs of every stack must be among each other."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address
from itertools import combinations
from pathlib import PurePosixPath

from spec.cluster import Settings
from spec.knobs import KNOBS, shown
from spec.objects import MOUNT_POINT, REGISTRY_PORT, WEIGHTS_PORT
from spec.rules.frame import FIELD, KIT, error, said, warning

# Knobs among each other


@error(
    "lease-covers-looks",
    "The lease outlasts three looks",
    "A rank must not stop because of a few looks that failed.",
    reads=(
        "watch_interval_seconds",
        "lease_seconds",
    ),
)
def _some_looks_may_fail(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    if knobs.lease_seconds <= 3 * knobs.watch_interval_seconds:
        yield (
            f"lease_seconds = {knobs.lease_seconds}: must be above 3 times watch_interval_seconds "
            f"({knobs.watch_interval_seconds}), so that a rank does not stop because of three looks that failed"
        )


@error(
    "backoff-order",
    "The longest pause is at least the first",
    "The pause doubles up to its maximum.",
    reads=(
        "backoff_seconds",
        "backoff_max_seconds",
    ),
)
def _the_longest_pause_is_the_longest(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    if knobs.backoff_max_seconds < knobs.backoff_seconds:
        longest, first = knobs.backoff_max_seconds, knobs.backoff_seconds
        yield f"backoff_max_seconds = {longest}: must be at least backoff_seconds ({first})"


@error(
    "canary-within-start",
    "A canary fits into a start",
    "A start ends with a canary.",
    reads=(
        "canary_timeout_seconds",
        "ready_timeout_seconds",
    ),
)
def _a_start_has_time_for_its_canary(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    if knobs.canary_timeout_seconds >= knobs.ready_timeout_seconds:
        yield (
            f"canary_timeout_seconds = {knobs.canary_timeout_seconds}: must be below ready_timeout_seconds "
            f"({knobs.ready_timeout_seconds}): a start includes a canary"
        )


@error(
    "ports-apart",
    "Each port is used once",
    "API, rendezvous, the copy of weights and the image on its way each listen on a port of their own.",
    reads=(
        "api_port",
        "master_port",
    ),
)
def _ports_are_apart(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    if knobs.api_port == knobs.master_port:
        yield f"master_port = {knobs.master_port}: is api_port as well; each needs a port of its own"
    for name in ("api_port", "master_port"):
        if getattr(knobs, name) == WEIGHTS_PORT:
            yield f"{name} = {WEIGHTS_PORT}: is where weights are copied between the nodes; set another"
        if getattr(knobs, name) == REGISTRY_PORT:
            yield f"{name} = {REGISTRY_PORT}: is where the image is passed between the nodes; set another"


@error("one-rank-per-node", "One rank per node", "Each node has one GPU.", reads=("tensor_parallel_size",))
def _one_rank_per_node(settings: Settings) -> Iterator[str]:
    size, nodes = settings.effective.tensor_parallel_size, len(settings.nodes)
    if size is not None and nodes > 1 and size != nodes:
        yield f"tensor_parallel_size = {size}: there are {nodes} nodes with one GPU each; set {nodes} or leave it out"


@error(
    "image-stated",
    "There is an image",
    "Nothing can be launched without one.",
    reads=(
        "stack",
        "image",
    ),
)
def _there_is_an_image(settings: Settings) -> Iterator[str]:
    if settings.effective.image is None:
        yield f'image: stack {settings.stack.name} has none of its own; set image = "repository@sha256:..."'


@error(
    "weights-stated",
    "There are weights",
    "Nothing can be served without them.",
    reads=(
        "stack",
        "weights_path",
    ),
)
def _there_are_weights(settings: Settings) -> Iterator[str]:
    for node in settings.nodes:
        if not settings.path(node, "weights_path"):
            yield (
                f"weights_path: stack {settings.stack.name} has none of its own and {node.name} states none; "
                f"set it in group_data/all.py, or in that node's data in the inventory"
            )


@error(
    "drafter-stated",
    "A method with a drafter has its directory",
    "The engine reads it at start.",
    reads=(
        "stack",
        "speculative_method",
        "drafter_path",
    ),
)
def _there_is_a_drafter(settings: Settings) -> Iterator[str]:
    method = settings.effective.speculative_method
    if method in settings.stack.needs_drafter:
        for node in settings.nodes:
            if not settings.path(node, "drafter_path"):
                yield (
                    f"drafter_path: {node.name} has none and speculative_method is {method}; set drafter_path, "
                    f'or speculative_method = "" for none'
                )


@error(
    "speculation-tokens",
    "A method of speculation knows how many tokens",
    "The engine needs a number.",
    reads=(
        "stack",
        "speculative_method",
        "speculative_tokens",
    ),
)
def _a_method_knows_its_tokens(settings: Settings) -> Iterator[str]:
    knobs, known = settings.effective, settings.stack.speculative_tokens
    if knobs.speculative_method and knobs.speculative_tokens is None and knobs.speculative_method not in known:
        yield (
            f"speculative_tokens: stack {settings.stack.name} has no number for method {knobs.speculative_method}; "
            f"set speculative_tokens"
        )


@error(
    "knob-of-stack",
    "A knob belongs to the stack",
    "The other engine does not know the flag, and ends at start.",
    reads=("stack",),
)
def _a_knob_of_another_stack(settings: Settings) -> Iterator[str]:
    for name, knob in KNOBS.items():
        stated = getattr(settings.knobs, name)
        if knob.only and knob.only.stack != settings.stack.name and stated is not None:
            yield (
                f"{name} = {shown(stated)}: only the engine of stack {knob.only.stack} knows it, and the stack is "
                f"{settings.stack.name}; leave it out"
            )


@error(
    "directories-apart",
    "Weights, drafter and cache are apart",
    "One inside another would be hashed, copied or written as part of it.",
    reads=(
        "stack",
        "speculative_method",
        "weights_path",
        "drafter_path",
        "cache_path",
    ),
)
def _directories_are_apart(settings: Settings) -> Iterator[str]:
    names = ["weights_path", "cache_path"]
    if settings.effective.speculative_method in settings.stack.needs_drafter:
        names.append("drafter_path")
    for node in settings.nodes:
        for name in names:
            if (path := settings.path(node, name)) and MOUNT_POINT in (path, *_above(path)):
                yield f"{name} = {shown(path)}: is where {node.name} mounts another node's weights; put it elsewhere"
        for one, other in combinations(names, 2):
            first, second = settings.path(node, one), settings.path(node, other)
            if not first or not second:
                continue
            if first == second:
                yield f"{other} = {shown(second)}: is {one} as well on {node.name}; each needs a directory of its own"
            elif first in _above(second):
                yield f"{other} = {shown(second)}: lies in {one} ({first}) on {node.name}; put it elsewhere"
            elif second in _above(first):
                yield f"{one} = {shown(first)}: lies in {other} ({second}) on {node.name}; put it elsewhere"


@error(
    "variable-once",
    "A variable is set once",
    "Two values for one variable: which one holds would depend on their order.",
    reads=(
        "stack",
        "engine_env",
    ),
)
def _a_variable_is_set_once(settings: Settings) -> Iterator[str]:
    stated = {item.partition("=")[0] for item in settings.knobs.engine_env}
    of_knobs = {variable: name for name, knob in KNOBS.items() if knob.env for variable in knob.env.names}
    of_knobs["VLLM_API_KEY"] = "require_api_key"  # a key in a text would be no secret, and the keeper would not know it
    for variable in sorted(stated & set(of_knobs)):
        yield f"engine_env: {variable} is what the knob {of_knobs[variable]} sets; use that"
    for variable in sorted((stated & settings.stack.variables) - set(of_knobs)):
        yield f"engine_env: {variable} is set by stack {settings.stack.name} itself; leave it out"


# Where the API listens


@error(
    "api-bind-address",
    "The API binds to an address of the head",
    "The engine cannot listen on an address that its node has not.",
    reads=("api_bind",),
)
def _the_api_binds_to_the_head(settings: Settings) -> Iterator[str]:
    bind = IPv4Address(settings.effective.api_bind)
    head = next((node for node in settings.nodes if node.position == "head"), None)
    if bind.is_unspecified or bind.is_loopback or head is None or not head.rails:
        return  # rails that are found are judged when they are
    own = (head.management_address, *(rail.ip for rail in head.rails))
    if bind not in own:
        yield (
            f"api_bind = {bind}: {head.name} has {', '.join(str(address) for address in own)}; state one of these, "
            f"0.0.0.0 for all of them, or 127.0.0.1"
        )


@error(
    "dev-mode-public",
    "Development mode is never on a public bind",
    "It opens the engine's administration endpoints, without a key, to whoever reaches the API.",
    f"{KIT}: the variable opens them on 0.0.0.0",
    reads=("api_bind", "server_dev_mode"),
)
def _development_stays_at_home(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    if knobs.server_dev_mode is True and not IPv4Address(knobs.api_bind).is_loopback:
        yield (
            f"server_dev_mode = True: api_bind is {knobs.api_bind}, where others reach the administration endpoints; "
            f'set api_bind = "127.0.0.1", or leave server_dev_mode out'
        )


# Memory and time


def _share(stated: float | str | None) -> float:
    """The engine's share of memory; an empty one is vLLM's own default, 0.9 or more. 0 where none is stated."""
    return 0.9 if stated == "" else float(stated or 0)


@error(
    "gpu-share",
    "A share of memory that sizes the pool (kv_cache_memory_bytes states no number) is below 0.88",
    "CPU and GPU share one memory on GB10: from 0.88 on the node swaps until nobody can log in.",
    f"{KIT}, knob GMU",
    reads=("stack", "preset", "gpu_memory_utilization", "kv_cache_memory_bytes"),
)
def _memory_is_left_to_the_node(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    share = knobs.gpu_memory_utilization
    if _share(share) >= 0.88 and not isinstance(knobs.kv_cache_memory_bytes, int):
        yield (
            f"{said(settings, 'gpu_memory_utilization')}: must be below 0.88 where it sizes the pool "
            f"(kv_cache_memory_bytes states no number): the node would swap; set gpu_memory_utilization = 0.85, as the "
            f"reference kit does"
        )


@warning(
    "gpu-share-start",
    "The engine's share is there at its start",
    "The engine ends at start when this share is not free, even where it does not size the pool; 0.87 was never free "
    "on some nodes.",
    f"{FIELD}: MEM-04",
    reads=("stack", "preset", "gpu_memory_utilization", "kv_cache_memory_bytes"),
)
def _the_share_is_there(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    share = _share(knobs.gpu_memory_utilization)
    if share > 0.86 and (share < 0.88 or isinstance(knobs.kv_cache_memory_bytes, int)):
        yield (
            f"{said(settings, 'gpu_memory_utilization')}: on some nodes so much is never free, and the engine then "
            f"ends at start; set gpu_memory_utilization = 0.85, which is proven"
        )


@warning(
    "restart-at-night",
    "A restart for want of memory (memory_restart_mib) may happen, and before an emergency",
    "It is made in quiet_hours alone; and from memory_emergency_mib on the rank is ended at once, at whatever hour.",
    reads=("memory_restart_mib", "memory_emergency_mib", "quiet_hours"),
)
def _a_restart_at_night_may_happen(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    least = knobs.memory_restart_mib
    if least and not knobs.quiet_hours:
        yield f'memory_restart_mib = {least}: never restarts without quiet_hours; set quiet_hours = "03:00-05:00"'
    if least and least <= knobs.memory_emergency_mib:
        yield (
            f"memory_restart_mib = {least}: is not above memory_emergency_mib ({knobs.memory_emergency_mib}), which "
            f"ends the rank before; set memory_restart_mib = {2 * knobs.memory_emergency_mib}"
        )


MOST_SECONDS: int = getattr(KNOBS["ready_timeout_seconds"].kind, "high", 0)


@warning(
    "ENG-06",
    "The engine gives up before the keeper does",
    "Then it says what it waited for. The other way round, a start that needs longer is cut short and tried again.",
    f"{FIELD}: ENG-06",
    reads=("stack", "preset", "ready_timeout_seconds", "engine_ready_timeout_seconds"),
)
def _the_engine_gives_up_first(settings: Settings) -> Iterator[str]:
    knobs = settings.effective
    own, ours = knobs.engine_ready_timeout_seconds, knobs.ready_timeout_seconds
    if isinstance(own, int) and ours <= own:
        fix = f"ready_timeout_seconds = {own + 300}"
        if own + 300 > MOST_SECONDS:
            fix = f"engine_ready_timeout_seconds = {MOST_SECONDS - 300} and ready_timeout_seconds = {MOST_SECONDS}"
        yield (
            f"ready_timeout_seconds = {ours}: is not above engine_ready_timeout_seconds ({own}), so that the keeper "
            f"ends a start that the engine still waits for; set {fix}"
        )


@warning(
    "gid-index-stated",
    "The GID index is looked up",
    "It moves when a link comes back (3 to 4 was seen), and the ranks then cannot meet.",
    f"{KIT}, knob NCCL_GID_INDEX; {FIELD}",
    reads=("nccl_ib_gid_index",),
)
def _the_gid_index_is_looked_up(settings: Settings) -> Iterator[str]:
    for node in settings.nodes:
        index = settings.gid_index(node)
        if index is not None:
            yield (
                f"nccl_ib_gid_index = {index} ({node.name}): the row moves when a link comes back; leave it out, and "
                f"it is looked up at every start"
            )


@error(
    "nccl-rails",
    "NCCL uses rails that are there, and looks their GIDs up by itself where it uses two",
    "It takes one index for all its HCAs, and a rail's address may stand in another row on each.",
    FIELD,
    reads=("nccl_rails", "nccl_ib_gid_index"),
)
def _nccl_uses_rails_that_are_there(settings: Settings) -> Iterator[str]:
    wanted = settings.effective.nccl_rails
    for node in settings.nodes:
        if node.rails and len(node.rails) < wanted:
            yield (
                f"nccl_rails = {wanted}: {node.name} has one rail; state both of its port in the inventory, or leave "
                f"it out"
            )
        index = settings.gid_index(node)
        if index is not None and wanted > 1:
            yield (
                f"nccl_rails = {wanted}: nccl_ib_gid_index = {index} ({node.name}) would hold for both HCAs; leave one "
                f"of the two out"
            )


def _above(path: str) -> set[str]:
    return {str(parent) for parent in PurePosixPath(path).parents}
