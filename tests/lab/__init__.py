"""Tests on the simulated pair: real hosts, real deploys. `make test` runs one pass, `make chaos` the long tables."""
