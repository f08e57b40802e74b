"""One table of failures, held by a real vLLM in containers and by the contract engine that stands in for it."""
