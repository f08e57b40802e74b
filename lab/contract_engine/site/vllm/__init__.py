"""Stand-in (contract engine) for vLLM's package: what reads a launch without starting it finds the names it needs."""

__version__ = "0.32.0"
