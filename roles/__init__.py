"""What is made true on the nodes, one module per concern, in the order of deploy.py."""
