"""Stand-in (contract engine) for the readers of vLLM's variables: those two that it reads."""

import os

environment_variables = {
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": lambda: int(os.getenv("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "300")),
    "VLLM_CPU_KVCACHE_SPACE": lambda: int(os.getenv("VLLM_CPU_KVCACHE_SPACE", "0")),
}
