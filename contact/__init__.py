"""First contact: from addresses and a password, asked once, to nodes that let deploys in by key and as root."""
