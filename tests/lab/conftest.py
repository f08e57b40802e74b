"""The lab for these tests: up, and this process on the control machine's network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab import lifecycle
from tests.lab import pair


@pytest.fixture(scope="session")
def lab() -> Iterator[None]:
    """Both hosts on. `make test` has built and started them; here they are only checked."""
    if not lifecycle.is_up():
        pytest.fail("the lab is down: `make lab-up` starts it")
    pair.enter_control_namespace()
    yield
