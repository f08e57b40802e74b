"""Stand-in (contract engine): see vllm/__init__.py."""
