"""Statements about the cluster, judged from what is wanted and what was seen: pure, shared by preflight and verify."""
