"""Rows about first contact: from two addresses and a password to a pair that serves."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.settings import HOSTS
from tests.lab import pair, strangers
from tests.lab.chaos import Row
from tests.lab.chaos_rows import use


def from_a_password_to_an_answer() -> str:
    """Users with a password, no key and no rule of sudo, and a cable to a computer in the head's other port; the
    inventory that is proposed is deployed as it is, a second deploy plans nothing, and a second first contact changes
    nothing and proposes the same."""
    pair.fresh_hosts()
    pair.lab("pc", "head", "on")
    strangers.arrive()
    with tempfile.TemporaryDirectory() as place, _at_home(Path(place)) as home:
        strangers.met(home)
        inventory = home / "inventory.py"
        text = inventory.read_text()
        assert text.count('"netdev"') == sum(len(host.rails) for host in HOSTS.values()), text
        assert text.count("has a carrier, but no other node is heard there: it is left out") == 2, text
        arguments = (*use("contract"), "--data", "weights_path=/srv/models/tiny", str(inventory), "../deploy.py")
        run = pair.start_deploy("-y", *arguments).wait(pair.DEPLOY_SECONDS)
        assert run.code == 0, run.text[-1500:]
        assert pair.answers()
        again = pair.dry(*arguments)
        assert again.code == 0 and again.plan == {}, again.text[-1500:]
        before = strangers.state(home)
        said = strangers.discover(home)
        assert (said.code, said.err) == (0, ""), said
        assert inventory.read_text() == text and strangers.state(home) == before
        rails = re.findall(r"rail \d is (\S+)", said.out)
    pair.lab("pc", "head", "off")
    return f"deployed in {run.seconds:.0f} s over {', '.join(rails)}; nothing planned, nothing changed by a second run"


@contextmanager
def _at_home(home: Path) -> Iterator[Path]:
    """pyinfra finds the operator's key and pins where they are."""
    former = os.environ["HOME"]
    os.environ["HOME"] = str(home)
    try:
        yield home
    finally:
        os.environ["HOME"] = former


ROWS = [
    Row(
        "first contact from two addresses and a password, a computer in the other port; then the inventory deployed",
        "contract",
        from_a_password_to_an_answer,
    ),
]
