"""The simulated pair's settings: a real vLLM on the CPU and the scripted model, whose answers are known."""

from lab.hosts import read_images as _read_images

stack = "vllm"
image = _read_images().get("engine")
served_model_name = "tiny"

# The model could take 131072; a slot is then busy for half an hour with an endless stream.
max_model_len = 131072
max_num_seqs = 4
max_num_batched_tokens = 2048
block_size = 32
kv_cache_memory_bytes = 134_217_728
enforce_eager = True
tool_call_parser = "glm47"
reasoning_parser = "glm45"

smoke_prompt = "Who are you?"
smoke_expected = "Hello from the tiny model."
canary_prompt = "Who are you?"
canary_expected = "Hello from the tiny model."
# The scripted model finds nothing in what it reads, and sees nothing.
gate_needle_expected = "Hello from the tiny model."
gate_reasoning_off_seconds = 180
