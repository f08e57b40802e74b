"""What is true on the nodes: one bulk probe per node and phase, parsed into frozen values."""
