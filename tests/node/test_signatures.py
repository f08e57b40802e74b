"""What the last lines of an engine mean: the lines are real, as far as a source had them whole."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node import signatures
from node.signatures import SIGNATURES, match
from spec.knobs import KNOBS

EARLIER = "(EngineCore pid=77) INFO 12-01 06:02:03 [core.py:114] init engine took 12.3 s"

LINES: dict[str, tuple[str, ...]] = {
    "gpu-lost": (
        "NVRM: Xid (PCI:000f:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "Unable to determine the device handle for GPU 0000:01:00.0: Not Found",
        "pynvml.NVMLError_GpuIsLost: GPU is lost",
    ),
    "no-gpu": (
        'could not start: docker run exited 125: could not select device driver "" with capabilities: [[gpu]]',
        "(APIServer pid=1) RuntimeError: No CUDA GPUs are available",
        "could not start: docker run exited 125: unknown or invalid runtime name: nvidia",
        "(APIServer pid=1) RuntimeError: Failed to infer device type, please set the environment variable",
    ),
    "rdma-registration": (
        "spark-a:454:454 [0] misc/ibvwrap.cc:212 NCCL WARN Call to ibv_reg_mr_iova2 failed with error "
        "Cannot allocate memory",
    ),
    "weights-damaged": (
        "(Worker_TP1 pid=90) ERROR 12-01 06:02:03 [multiproc_executor.py:870] "
        "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata",
    ),
    "argument": (
        "vllm: error: unrecognized arguments: --no-such-flag 1",
        "vllm serve: error: argument --block-size: invalid int value: 'x'",
    ),
    "max-model-len": (
        "  Value error, User-specified max_model_len (999999) is greater than the derived max_model_len "
        "(max_position_embeddings=4096.0 or model_max_length=None in model's config.json).",
        "(APIServer pid=1)   Value error, User-specified max_model_len (999999) is greater than the derived one",
    ),
    "topk-memory": (
        "RuntimeError: launch_persistent_topk, csrc/libtorch_stable/topk.cu:138, persistent_topk would oversubscribe "
        "and the FilteredTopK fallback requires >=128KB smem per block (have 101376).",
        "(EngineCore pid=7) ERROR 08-29 12:00:00 [core.py:866] RuntimeError: Worker failed with error "
        "'launch_persistent_topk: persistent_topk would oversubscribe",
    ),
    "kv-too-small": (
        "(EngineCore pid=137) ValueError: To serve at least one request with the model's max seq len (4096), (0.0 GiB "
        "KV cache is needed, which is larger than the available KV cache memory",
        "(EngineCore pid=137) ERROR 12-01 06:02:03 [core.py:866] ValueError: To serve at least one request with the "
        "models's max seq len (131072), (4.00 GiB KV cache is needed",
    ),
    "model-path": (
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
        "'/nonexistent/model'.",
    ),
    "chat-template": (
        "ValueError: The supplied chat template string (unsloth.jinja) appears path-like, but doesn't exist! Tried: x",
    ),
    "quantization": (
        "ValueError: Unknown quantization method: gptq. Must be one of ['awq', 'squeezellm'].",
        "  Value error, Quantization method specified in the model config (fp8) does not match the quantization method",
    ),
    "model-class": (
        "(APIServer pid=352089) Value error, Model architectures ['DeepseekOCRForCausalLM'] are not supported for now.",
        "ValueError: The checkpoint you are trying to load has model type `glm` but Transformers does not recognize it",
    ),
    "parser": (
        "KeyError: 'invalid tool call parser: nope (chose from { glm45,glm47 })'",
        "KeyError: \"Reasoning parser 'nope' not found. Available parsers: glm45\"",
    ),
    "attention-backend": (
        "ValueError: Selected backend AttentionBackendEnum.TRITON_ATTN is not valid for this configuration.",
    ),
    "architecture": (
        "exec /usr/local/bin/vllm: exec format error",
        'could not start: docker run exited 126: OCI runtime create failed: exec: "vllm": exec format error',
    ),
    "compiler": ("torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found in config",),
    "memory-at-start": (
        "ValueError: Free memory on device cuda:0 (36.75/121.63 GiB) on startup is less than desired GPU memory "
        "utilization (0.85, 103.38 GiB).",
        "RuntimeError: buffer_size (1268776960 B) exceeds device memory budget (793399296 B)",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
    ),
    "memory-on-the-way": ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",),
    "disk-full": ("OSError: [Errno 28] No space left on device: '/root/.cache/vllm/torch_compile_cache'",),
    "stale-mount": ("OSError: [Errno 116] Stale file handle: '/models/glm53-exl3/config.json'",),
    "cuda-fault": ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered",),
    "gid-empty": (
        "NCCL WARN Call to ibv_modify_qp failed with 61 No data available, on dev rocep1s0f0:1, curr state INIT, "
        "next state RTR, local GID index 3, local GID ::, remote GID ::",
    ),
    "rail-path": (
        "NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev rocep1s0f0:1, local GID x",
    ),
    "rdma-retries": (
        "NCCL WARN NET/IB: Got completion from peer 192.168.101.2 with status=IBV_WC_RETRY_EXC_ERR(12) opcode=0",
    ),
    "gloo-address": (
        "RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] no error, remote=[127.0.0.1]:14215",
        "RuntimeError: Unable to find address for: ^lo",
    ),
    "port-in-use": (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29511, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        "OSError: [Errno 98] Address already in use",
    ),
    "collective-stuck": (
        "[rank0]:[E ProcessGroupNCCL.cpp:563] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(Seq",
        "TimeoutError: RPC call to sample_tokens timed out.",
        "[rank1]:[E1111 17:10:53] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress",
    ),
    "rendezvous": (
        "torch.distributed.DistStoreError: Timed out after 31 seconds waiting for clients. 1/2 clients joined.",
        "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of "
        "(10.200.0.77, 29511)",
    ),
    "nccl-system": ("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",),
    "peer-lost": (
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]",
        "RuntimeError: gloo/transport/tcp/unbound_buffer.cc: Connection reset by peer",
        "[rank1]:[W TCPStore.cpp:125] [c10d] TCPStore recvValue failed on SocketImpl: failed to recv, got 0 bytes",
        "RuntimeError: NCCL error: remote process exited or there was a network error",
    ),
    "worker-died": (
        "(EngineCore pid=77) ERROR 11-30 16:20:01 [multiproc_executor.py:315] Worker proc VllmWorker-1 died "
        "unexpectedly (exit code: None), shutting down executor.",
    ),
    "waiting-for-head": (
        "[W1130 16:20:01 TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host 10.200.0.77:29511 - "
        "retrying (try=0, timeout=1800000ms, delay=200ms): Connection refused",
    ),
    "engine-dead": (
        "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "RuntimeError: Engine core initialization failed. See root cause above.",
    ),
}
CASES = [(name, line) for name, lines in LINES.items() for line in lines]


def test_every_signature_has_a_real_line():
    assert list(LINES) == [signature.name for signature in SIGNATURES]


@pytest.mark.parametrize(("name", "line"), CASES, ids=lambda value: value[:40])
@pytest.mark.report("KRN-02", "GID-02", "GID-03", "NET-09", "NET-19", "NET-21", "DKR-01", "KRN-03", "SSH-01")
def test_the_line_is_found_and_quoted(name: str, line: str):
    [signature] = [item for item in SIGNATURES if item.name == name]
    found = match([[EARLIER, line], [EARLIER]])
    assert found is not None
    assert (found.name, found.action) == (name, signature.action)
    assert found.text.startswith(f'rank 0: {signature.verdict} ("')
    assert found.text.endswith(f'"). Fix: {signature.fix}')


@pytest.mark.parametrize("action", ["reject", "rest", "retry"])
def test_the_table_has_each_action_and_no_other(action: str):
    assert action in {signature.action for signature in SIGNATURES}
    assert {signature.action for signature in SIGNATURES} <= {"reject", "rest", "retry"}


def test_a_cause_is_told_and_not_what_it_brought_about():
    [unknown] = LINES["argument"][:1]
    lost = LINES["peer-lost"][0]
    found = match([[lost, LINES["engine-dead"][0]], [EARLIER, unknown, lost]])
    assert found is not None
    assert (found.name, found.action) == ("argument", "reject")
    assert found.text == (
        'rank 1: this engine does not take an argument ("vllm: error: unrecognized arguments: --no-such-flag 1"). '
        "Fix: the image of the stack, or leave out the knob that becomes the flag (docs/knobs.md)"
    )


def test_of_two_alike_the_first_line_of_the_first_rank_is_quoted():
    first, second = LINES["peer-lost"][:2]
    found = match([[EARLIER], [first, second]])
    assert found is not None
    assert "Connection closed" in found.text
    assert found.text.startswith("rank 1: ")


def test_nothing_is_said_of_lines_that_say_nothing():
    assert match([]) is None
    assert match([[], []]) is None
    assert match([["", "Traceback (most recent call last):", EARLIER], ["(no log: rank 1 is out of reach)"]]) is None


@pytest.mark.parametrize("said", [line for name, line in CASES])
def test_what_users_write_judges_nothing(said: str):
    """With request logging on, a prompt stands in the engine's log."""
    log = f"(APIServer pid=1) INFO 12-01 06:02:03 [logger.py:40] Received request chatcmpl-1: prompt: {said!r}, params"
    assert match([[log, f"DEBUG 12-01 06:02:03 [x.py:1] {said}"]]) is None


@pytest.mark.parametrize(
    "line", [line for name, line in CASES if {s.name: s.action for s in SIGNATURES}[name] == "reject"]
)
def test_a_launch_is_rejected_only_by_a_message_of_its_own(line: str):
    """In the middle of another message, as a prompt quoted in an error is, the words reject nothing."""
    message = signatures._PREFIX.sub("", line, count=1)
    found = match([[f"(APIServer pid=1) ERROR 12-01 06:02:03 [serving.py:2] bad request: 'tell me: {message}'"]])
    assert found is None or found.action != "reject"


def test_timed_lines_are_read_too():
    line = f"2026-12-01T06:02:03.123456789Z {LINES['kv-too-small'][0]}"
    found = match([[line]])
    assert found is not None
    assert found.name == "kv-too-small"
    chatter = f"2026-12-01T06:02:03.123456789Z INFO 12-01 06:02:03 [x.py:1] {LINES['peer-lost'][0]}"
    assert match([[chatter]]) is None


def test_a_quote_is_short_and_printable():
    found = match([["vllm: error: \x1b[31m\u202e\r" + "x " * 5000]])
    assert found is not None
    quote = re.findall(r'\("(.*)"\)\. Fix', found.text)[0]
    assert len(quote) <= signatures.QUOTED
    assert quote.isprintable()
    assert "\u202e" not in quote


@pytest.mark.parametrize(
    "pattern",
    [*(item.pattern for item in SIGNATURES), signatures._PREFIX, signatures._CHATTER],
    ids=lambda p: p.pattern,
)
def test_a_match_takes_time_in_proportion_to_the_line(pattern: re.Pattern[str]):
    """No repetition without a bound: nothing that an engine prints can hold the keeper up."""
    bare = re.sub(r"\\.|\[\^?\]?[^\]]*\]", "x", pattern.pattern)
    assert not re.search(r"[*+]|\{\d*,\}", bare), pattern.pattern


def test_the_most_that_is_read_is_read_in_a_moment():
    hostile = ["(" * 2000 + "x" * 9000, "a." * 9000, "vllm" * 3000, "Worker proc " * 1000, "exec " + "/" * 9000] * 400
    begun = time.process_time()
    match([hostile, hostile])
    assert time.process_time() - begun < 5.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.text(max_size=200), max_size=5), max_size=3))
def test_any_lines_are_read(logs: list[list[str]]):
    found = match(logs)
    assert found is None or found.text.isprintable()


def test_a_fix_names_knobs_that_exist():
    for signature in SIGNATURES:
        for word in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", signature.fix):
            assert word in KNOBS, f"{signature.name}: {word}"


def test_what_everybody_may_read_quotes_no_line():
    found = match([["ValueError: To serve at least one request with the model's secret words"], []])
    assert found is not None and "secret words" in found.text
    told = signatures.without_quotes({"reason": f"rank 0: exited; {found.text}", "rejected": {"a": [found.text, 1]}})
    assert "secret words" not in str(told)
    assert told["reason"].startswith("rank 0: exited; rank 0: ") and ". Fix: " in told["reason"]
    tricky = match([['ValueError: To serve at least one request with the model ("secret"). Fix: ") more secret'], []])
    assert tricky is not None and "secret" not in signatures.without_quotes(tricky.text)
