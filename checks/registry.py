"""All checks there are. A module of checks has a tuple CHECKS; here they stand in the order in which doctor asks."""

from __future__ import annotations

from checks import (
    advisories,
    after,
    before,
    clock,
    discovery,
    docker_side,
    fabric_gate,
    firewall,
    gpu,
    host,
    masters,
    rdma,
    sessions,
    ssh,
    trouble,
)
from checks.check import Check

CHECKS: tuple[Check, ...] = (
    *before.CHECKS,
    *discovery.CHECKS,
    *after.CHECKS,
    *masters.CHECKS,
    *firewall.CHECKS,
    *rdma.CHECKS,
    *docker_side.CHECKS,
    *host.CHECKS,
    *advisories.CHECKS,
    *sessions.CHECKS,
    *clock.CHECKS,
    *ssh.CHECKS,
    *gpu.CHECKS,
    *trouble.CHECKS,
    *fabric_gate.CHECKS,
)
