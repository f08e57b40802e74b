"""A verb that only looks, as verify.py is one."""

from pyinfra import host, logger

logger.info(f"looked at {host.name}")
