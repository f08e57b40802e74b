"""What both vLLM stacks launch alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network

from spec.knobs import Knobs
from spec.stacks.launch import GidIndex, Groups, Seat, Secret, compact_json

API_KEY = Secret("api-key")
OWN_GID = "SPARKPAIR_GID_INDEX_"
"""Beginning of variables that only the rank agent means something by: which GIDs must be there."""


def container_groups(knobs: Knobs) -> Groups:
    """How the container meets the machine: GPUs, the host's network and IPC, memory that may be pinned for RDMA."""
    return (
        ("--gpus", "all"),
        ("--restart", "no"),
        ("--network", "host"),
        ("--ipc", "host"),
        ("--shm-size", str(knobs.shm_size)),
        ("--ulimit", "memlock=-1:-1"),
        ("--cap-add", "IPC_LOCK"),
        ("--device", "/dev/infiniband:/dev/infiniband"),
    )


def nccl_env(knobs: Knobs, seat: Seat) -> tuple[tuple[str, str | GidIndex], ...]:
    """NCCL on the first rail, or on both; gloo and whatever goes over sockets on the first alone. RoCE v2 over IPv4,
    and nothing else: without RDMA NCCL then fails at once, where left to itself it goes on over TCP."""
    return (
        *(() if knobs.allow_tcp else (("NCCL_NET", "IB"),)),
        ("NCCL_IB_DISABLE", "0"),
        ("NCCL_IB_HCA", ",".join([seat.hca, *(hca for hca, _, _ in seat.further)])),
        *_gids(seat),
        ("NCCL_IB_ROCE_VERSION_NUM", "2"),
        ("NCCL_IB_ADDR_FAMILY", "AF_INET"),
        ("NCCL_IB_ADDR_RANGE", str(_joint([seat.network, *(network for _, _, network in seat.further)]))),
        ("NCCL_SOCKET_IFNAME", seat.netdev),
        ("GLOO_SOCKET_IFNAME", seat.netdev),
        ("TP_SOCKET_IFNAME", seat.netdev),
        ("MN_IF_NAME", seat.netdev),
        ("NCCL_NVLS_ENABLE", "0"),
        ("NCCL_CROSS_NIC", "0"),
        ("NCCL_IB_MERGE_NICS", "1" if seat.further else "0"),
        ("NCCL_CUMEM_ENABLE", "0"),
        ("NCCL_IGNORE_CPU_AFFINITY", "1"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    )


def _gids(seat: Seat) -> tuple[tuple[str, str | GidIndex], ...]:
    """NCCL takes one index for all its HCAs, and on two of them a rail's address may stand in different rows. So with
    more than one it is given none and looks by itself, in NCCL_IB_ADDR_RANGE. The variables that it does not know make
    the rank agent look first: a rail without its GID stops the start there, and not a minute later."""
    if not seat.further:
        return (
            ("NCCL_IB_GID_INDEX", GidIndex(seat.hca, seat.address) if seat.gid_index is None else str(seat.gid_index)),
        )
    rails = [(seat.hca, seat.address), *((hca, address) for hca, address, _ in seat.further)]
    return tuple((f"{OWN_GID}{number}", GidIndex(hca, address)) for number, (hca, address) in enumerate(rails))


def _joint(networks: Sequence[IPv4Network]) -> IPv4Network:
    """The smallest network that holds all of them."""
    joint = networks[0]
    while not all(network.subnet_of(joint) for network in networks):
        joint = joint.supernet()
    return joint


def rendezvous(knobs: Knobs, seat: Seat) -> Groups:
    """How the ranks find each other; every rank but the head's serves no API."""
    groups: Groups = (
        ("--distributed-executor-backend", "mp"),
        ("--nnodes", str(seat.ranks)),
        ("--node-rank", str(seat.rank)),
        ("--master-addr", str(seat.master_address)),
        ("--master-port", str(knobs.master_port)),
    )
    return groups if seat.rank == 0 else (*groups, ("--headless",))


def api_key_env(knobs: Knobs, seat: Seat) -> tuple[tuple[str, Secret], ...]:
    """What makes the engine ask for a key on its paths below /v1. Only the head's rank serves any."""
    return (("VLLM_API_KEY", API_KEY),) if knobs.require_api_key and seat.rank == 0 else ()


def api_address(knobs: Knobs) -> IPv4Address:
    """Where the head itself reaches the API."""
    bind = IPv4Address(knobs.api_bind)
    return IPv4Address("127.0.0.1") if bind.is_unspecified else bind


def tensor_parallel(knobs: Knobs, seat: Seat) -> Groups:
    """One rank per node, unless stated."""
    return (("--tensor-parallel-size", str(knobs.tensor_parallel_size or seat.ranks)),)


def tool_calls(knobs: Knobs) -> Groups:
    """The parser, and the switch without which the engine ignores it."""
    if not knobs.tool_call_parser:
        return ()
    return (("--tool-call-parser", knobs.tool_call_parser), ("--enable-auto-tool-choice",))


def speculation(knobs: Knobs, drafter: str | None, tokens: Mapping[str, int]) -> Groups:
    """The speculative configuration, one JSON argument. `drafter` is where the container sees it; `tokens` says how
    many a method proposes when the operator does not."""
    method = knobs.speculative_method
    if not method:
        return ()
    config: dict[str, object] = {"method": method}
    if drafter is not None:
        config["model"] = drafter
    config["num_speculative_tokens"] = knobs.speculative_tokens or tokens[method]
    return (("--speculative-config", compact_json(config)),)


def chat_template(knobs: Knobs, model: str) -> Groups:
    """A template beside the checkpoint, as the container sees it."""
    return (("--chat-template", f"{model}/{knobs.chat_template}"),) if knobs.chat_template else ()


def thinking(knobs: Knobs) -> Groups:
    """Whether the chat template asks for reasoning when the request does not say."""
    if knobs.enable_thinking is None or knobs.enable_thinking == "":
        return ()
    value = "true" if knobs.enable_thinking else "false"
    return (("--default-chat-template-kwargs", f'{{"enable_thinking": {value}}}'),)


def extra_env(knobs: Knobs) -> tuple[tuple[str, str], ...]:
    """The operator's own variables."""
    pairs = (item.partition("=") for item in knobs.engine_env)
    return tuple((key, value) for key, _, value in pairs)
