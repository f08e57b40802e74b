"""What a node's own tools say, read on the control machine: a module per tool, text in, a value or Garbled out."""
