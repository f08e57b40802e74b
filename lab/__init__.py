"""The simulated pair: two real Linux hosts on one machine, and a small real engine (see README.md)."""
