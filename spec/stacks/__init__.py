"""The serving stacks, by name."""

from __future__ import annotations

from spec.stacks import vllm, vllm_exl3
from spec.stacks.launch import GidIndex, Groups, Launch, Seat, Secret, Stack

STACKS: dict[str, Stack] = {stack.name: stack for stack in (vllm_exl3.STACK, vllm.STACK)}

__all__ = ["STACKS", "GidIndex", "Groups", "Launch", "Seat", "Secret", "Stack"]
