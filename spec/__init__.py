"""What the operator wants, typed: knobs, stacks, nodes, and the texts made from them."""
