"""What an engine's last lines say of its failure, and what follows: a table, read from the most telling row down.

A cause stands above what it brings about: a rank that does not know an argument also costs its peer a connection, and
the argument is to be told. Only what is certain is told as certain:

- `reject`: the same launch will fail again, whatever the node does.
- `rest`: a person must act on the node; no launch of ours will get further until then.
- `retry`: the cause may be gone at the next start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from node.state import Verdict

LINES_READ = 400
"""Of each rank, the last ones."""
CHARACTERS_READ = 4000
"""Of each line; with patterns whose every repetition is bounded this bounds the time of a match."""
QUOTED = 200
"""Characters of the line that a verdict quotes."""


@dataclass(frozen=True)
class Signature:
    """One way to fail. `verdict` goes on from "rank 1: "."""

    name: str
    pattern: re.Pattern[str]
    verdict: str
    action: str
    fix: str
    source: str
    """Where the line was seen: measured is what we saw of vLLM 0.32 on a CPU, an id like MEM-01 a report of others."""


# The prefixes that the engine's processes put before a message: `(EngineCore pid=77) ERROR 12-01 06:02:03 [core.py:1]`.
# A launch must not be judged by what users wrote, so a pattern that rejects begins where the message does.
_PREFIX = re.compile(
    r"(?:\d{4}-\d\d-\d\dT\S{1,30} )?"
    r"(?:\([\w .:=-]{1,60}\) ?){0,3}"
    r"(?:(?:ERROR|WARNING|CRITICAL) \S{1,12} \S{1,12} \[[^\]]{1,80}\] ?)?"
    r"[ |]{0,12}"
    r"(?:[\w.]{1,80}(?:Error|Exception): )?"
    r"(?:Value error, )?"
)
_QUOTE = re.compile(r' \("[^"]{0,220}"\)(?=\. Fix: )')
# Log lines below a warning: what was asked and answered, never why something ended.
_CHATTER = re.compile(r"(?:\d{4}-\d\d-\d\dT\S{1,30} )?(?:\([\w .:=-]{1,60}\) ?){0,3}(?:INFO|DEBUG)\b")


def _row(name: str, pattern: str, action: str, verdict: str, fix: str, source: str) -> Signature:
    return Signature(name, re.compile(pattern), verdict, action, fix, source)


SIGNATURES: tuple[Signature, ...] = (
    # A person is needed: the node, its GPU or its files are not fit for any launch.
    _row(
        "gpu-lost",
        r"^(?:NVRM: .{0,80})?(?:GPU has )?fallen off the bus|^(?:\S{1,80}: )?GPU is lost"
        r"|^Unable to determine the device handle for GPU",
        "rest",
        "the GPU does not answer any more",
        "power the node off, pull its plug for a minute, start it; the kernel's log has an Xid (journalctl -k)",
        "NVIDIA's Xid catalogue, 79: restart the machine",
    ),
    _row(
        "no-gpu",
        r"^No CUDA GPUs are available|^Failed to infer device type|nvidia-container-cli: initialization error"
        r"|could not select device driver|unknown or invalid runtime name: nvidia",
        "rest",
        "the container gets no GPU",
        "nvidia-smi on the node tells whether the driver runs; docker info, whether Docker knows the nvidia runtime",
        "measured (device driver); DKR-01, KRN-03",
    ),
    _row(
        "rdma-registration",
        r"Call to ibv_reg_mr(?:_iova2)? failed with error Cannot allocate memory",
        "rest",
        "the kernel registers no memory for RDMA",
        "the launch has memlock unlimited, so look at the kernel (uname -r): with 7.0 boot the former one, or add "
        "kho=off to its command line (grep Cma /proc/meminfo: CmaFree above CmaTotal)",
        "KRN-02; DeepSeek-v4.1-Flash-DGX-Sparks issue 14, DeepSeek-v4-Flash-DSpark-2x-DGX-Spark issue 259",
    ),
    _row(
        "weights-damaged",
        r"^Error while deserializing header",
        "reject",
        "a file of the weights is cut short or damaged",
        "run the deploy again, which reads the files and brings those that differ",
        "WGT-01, WGT-05; safetensors",
    ),
    # The launch is at fault.
    _row(
        "argument",
        r"^vllm(?: \w{1,20})?: error: ",
        "reject",
        "this engine does not take an argument",
        "the image of the stack, or leave out the knob that becomes the flag (docs/knobs.md)",
        "measured: unknown flag, exit code 2",
    ),
    _row(
        "max-model-len",
        r"^User-specified max_model_len \(",
        "reject",
        "max_model_len is beyond what the checkpoint takes",
        "a smaller max_model_len",
        "measured: max-model-len too large",
    ),
    _row(
        "topk-memory",
        r"^(?:Worker failed with error ')?(?:launch_persistent_topk\W.{0,120})?persistent_topk would oversubscribe",
        "reject",
        "max_model_len is beyond what this image's top-k kernel can do on this GPU",
        "max_model_len = 524288 or less, or a newer image",
        "ENG-15; vLLM pull request 54110",
    ),
    _row(
        "kv-too-small",  # not certain: a pool that is not stated in bytes is what the node had free
        r"^To serve at least one request with the model",
        "retry",
        "the KV cache does not hold one request of max_model_len",
        "a larger kv_cache_memory_bytes, or a smaller max_model_len",
        "measured: KV too small; MEM-03",
    ),
    _row(
        "model-path",
        r"^Repo id must be in the form|^Invalid repository ID or local directory specified",
        "reject",
        "the model's directory is missing in the container",
        "weights_path and drafter_path must be directories that were verified; deploy",
        "measured: model path missing",
    ),
    _row(
        "chat-template",
        r"^The supplied chat template string \(",
        "reject",
        "the chat template is missing in the container",
        "chat_template must be a file among the weights",
        "DKR-07; vLLM issue 47600",
    ),
    _row(
        "quantization",
        r"^Unknown quantization method|^Quantization method specified in the model config \(",
        "reject",
        "this engine does not read weights of this quantization",
        "the image of the stack that the weights are for, or another quantization",
        "vLLM issues 1919, 19050",
    ),
    _row(
        "model-class",
        r"^Model architectures \[|^The checkpoint you are trying to load has model type",
        "reject",
        "this engine does not know the model",
        "the image of the stack that the weights are for",
        "vLLM, registry.py; Transformers",
    ),
    _row(
        "parser",
        r"^.?invalid tool call parser|^.?Reasoning parser '",
        "reject",
        "this engine has no such parser",
        "tool_call_parser and reasoning_parser of the stack",
        "ENG-13; vLLM, entrypoints/cli/serve.py",
    ),
    _row(
        "attention-backend",
        r"^Selected backend \S{1,80} is not valid for this configuration",
        "reject",
        "the attention backend does not fit the other settings",
        "the attention_backend and kv_cache_dtype of the stack",
        "vLLM, platforms/cuda.py",
    ),
    _row(
        "architecture",
        r"^exec \S{1,200}: exec format error|^could not start: .{0,400}exec format error",
        "reject",
        "the image is for another kind of processor",
        "an image for arm64",
        "NFS-03",
    ),
    _row(
        "compiler",
        r"^(?:\S{1,80}: )?InvalidCxxCompiler",
        "reject",
        "the image has no C++ compiler, which the engine needs for its first request",
        "an image with g++, or TORCHDYNAMO_DISABLE=1 in engine_env",
        "measured: first request without a compiler",
    ),
    # The node, the fabric or the moment; the next start may do.
    _row(
        "memory-at-start",
        r"^Free memory on device|^buffer_size \(\d{1,20} B\) exceeds device memory budget"
        r"|^No available memory for the cache blocks",
        "retry",
        "too little memory was free; the page cache counts as used",
        "the keeper waits for memory; if that does not help: who uses it (sparkpair status), or a smaller "
        "gpu_memory_utilization",
        "MEM-01, MEM-02, MEM-04",
    ),
    _row(
        "memory-on-the-way",
        r"CUDA out of memory|NV_ERR_NO_MEMORY|^CUDA error: out of memory",
        "retry",
        "the memory ran out",
        "a smaller kv_cache_memory_bytes, max_num_seqs or max_num_batched_tokens",
        "MEM-06, MEM-11, MEM-14",
    ),
    _row(
        "disk-full",
        r"No space left on device|Disk quota exceeded",
        "retry",
        "a disk is full",
        "df -h on the node; the engine writes its compiled kernels into the cache directory",
        "kernel, ENOSPC",
    ),
    _row(
        "stale-mount",
        r"Stale file handle",
        "retry",
        "the exported weights were replaced under the mount",
        "nothing: they are mounted anew at the next start; if it stays, deploy",
        "NFS-04",
    ),
    _row(
        "cuda-fault",
        r"CUDA error: an illegal memory access|CUDA error: unspecified launch failure|CUDA error: misaligned address",
        "retry",
        "a kernel of the engine went wrong on the GPU",
        "if it repeats: the kernel's Xid (journalctl -k) and the SM clock (nvidia-smi); a clamped GPU does that too",
        "HW-01",
    ),
    _row(
        "gid-empty",
        r"Call to ibv_modify_qp failed with 61\b",
        "retry",
        "the GID that NCCL was given was empty",
        "nothing: the index is read anew at each start; if it stays: ip addr and rdma link on both nodes, deploy",
        "GID-02, GID-07",
    ),
    _row(
        "rail-path",
        r"Call to ibv_modify_qp failed with ",
        "retry",
        "RDMA found no way to the peer",
        "both nodes by the same QSFP port, and the rails stated in the same order on both",
        "NET-19",
    ),
    _row(
        "rdma-retries",
        r"IBV_WC_RETRY_EXC_ERR",
        "retry",
        "RDMA got no answer from the peer",
        "one MTU on both ends of the rail (pyinfra inventory.py verify.py), or the peer is gone: its own last lines",
        "NET-09",
    ),
    _row(
        "gloo-address",
        r"Gloo connectFullMesh failed|Unable to find address for: ",
        "retry",
        "gloo does not reach the peer at the address that it was given",
        "the rail's address is on its netdev (ip addr), and no firewall is between the nodes",
        "NET-20, NET-21",
    ),
    _row(
        "port-in-use",
        r"EADDRINUSE|Address already in use",
        "retry",
        "another process has the port",
        "ss -ltnp on the node names it",
        "measured: master port in use, HTTP port in use",
    ),
    _row(
        "collective-stuck",
        r"Watchdog caught collective operation timeout|RPC call to \w{1,40} timed out|watchdog got stuck for ",
        "retry",
        "one rank waited in a collective for the other",
        "the other rank's last lines; if both went on waiting, it is the engine: another image",
        "ENG-04, ENG-10, HW-07",
    ),
    _row(
        "rendezvous",
        r"Timed out after \d{1,6} seconds waiting for clients|^The client socket has failed to connect"
        r"|^The client socket has timed out",
        "retry",
        "the ranks did not find each other",
        "the other rank's last lines; a firewall on the rail must let every port through",
        "measured: head never comes; SSH-01, NET-21",
    ),
    _row(
        "nccl-system",
        r"NCCL error: unhandled system error",
        "retry",
        "NCCL failed in a call to the system",
        "the NCCL WARN line above it; rdma link on both nodes",
        "GID-03",
    ),
    _row(
        "peer-lost",
        r"Connection closed by peer|Connection reset by peer|TCPStore recvValue failed"
        r"|NCCL error: remote process exited|Broken pipe",
        "retry",
        "the other rank went away",
        "the other rank's last lines",
        "measured: SIGTERM hl; ENG-08, ENG-09",
    ),
    _row(
        "worker-died",
        r"Worker proc \S{1,60} died unexpectedly",
        "retry",
        "the engine's worker process was ended from outside, or crashed without a word",
        "journalctl -k on that node: the OOM killer, an Xid",
        "measured: SIGKILL Worker_TP1; MEM-12, MEM-13",
    ),
    _row(
        "waiting-for-head",
        r"TCP client failed to connect/validate to host",
        "retry",
        "it waited for rank 0",
        "rank 0's last lines",
        "measured: head never comes",
    ),
    _row(
        "engine-dead",
        r"EngineCore encountered an issue|^Engine core initialization failed|EngineDeadError",
        "retry",
        "the engine's core ended",
        "the lines above it",
        "measured: SIGKILL EngineCore",
    ),
)


def match(logs: Sequence[Sequence[str]]) -> Verdict | None:
    """The most telling row over all ranks' last lines, or None. The first line that says it is quoted: what comes later
    is often said because of it."""
    best: tuple[int, int, str] | None = None
    for rank, lines in enumerate(logs):
        for message in _messages(lines[-LINES_READ:]):
            reach = len(SIGNATURES) if best is None else best[0]
            for place, signature in enumerate(SIGNATURES[:reach]):
                if signature.pattern.search(message):
                    best = place, rank, message
                    break
    if best is None:
        return None
    place, rank, message = best
    signature = SIGNATURES[place]
    quoted = printable(message).replace('"', "'")  # so that its end is certain
    text = f'rank {rank}: {signature.verdict} ("{quoted}"). Fix: {signature.fix}'
    return Verdict(signature.name, signature.action, text)


def without_quotes(value: Any) -> Any:
    """The same JSON without the lines that verdicts quote: an engine may have logged what its users wrote."""
    if isinstance(value, str):
        return _QUOTE.sub("", value)
    if isinstance(value, dict):
        return {key: without_quotes(item) for key, item in value.items()}
    return [without_quotes(item) for item in value] if isinstance(value, list) else value


def printable(text: str) -> str:
    """One short line that no terminal takes for anything else."""
    line = "".join(character if character.isprintable() else " " for character in text[: QUOTED * 2])
    line = " ".join(line.split())
    return line if len(line) <= QUOTED else line[: QUOTED - 1] + "…"


def _messages(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        line = line[:CHARACTERS_READ]
        if _CHATTER.match(line):
            continue
        prefix = _PREFIX.match(line)
        yield line[prefix.end() :] if prefix else line
