"""What runs on a Spark by itself: the keeper, the rank agent and their helpers. Standard library only."""
