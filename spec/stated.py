"""Reads what the inventory and group_data/ state, as pyinfra would, and reaches no node: prints the settings as JSON.

python -m spec.stated INVENTORY [KNOB=VALUE ...]

A program of its own, because pyinfra's command line replaces the standard library's waiting in the whole process.
Exit 0: printed, 1: refused, with the reason on stderr. The lock file is neither read nor judged.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, cast

from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.state import State
from pyinfra.context import ctx_state
from pyinfra_cli.exceptions import CliError, UnexpectedExternalError  # type: ignore[import-untyped]
from pyinfra_cli.inventory import make_inventory  # type: ignore[import-untyped]
from pyinfra_cli.util import parse_cli_arg  # type: ignore[import-untyped]

from spec.cluster import Settings
from spec.load import connection_keys, hosts_from_pyinfra, load


class NotStated(Exception):
    """The files cannot be read as settings; the text says where and why."""


def settings_of(inventory: str, data: Sequence[str]) -> Settings:
    """The settings of these files. Raises DeployError as a deploy would, and NotStated."""
    wrong = [word for word in data if "=" not in word]
    if wrong:
        raise NotStated(f"--data {wrong[0]}: must be knob=value")
    if not os.path.isfile(inventory):
        here = ", ".join(sorted(name for name in os.listdir() if name.startswith("inventory"))) or "none"
        raise NotStated(f"there is no inventory {inventory} in {os.getcwd()} (there: {here})")
    stated = dict(word.split("=", 1) for word in data)
    override = {name: parse_cli_arg(value) for name, value in stated.items()}
    with ctx_state.use(State()):
        try:
            made = make_inventory(inventory, override_data=override, cwd=os.getcwd())
        except UnexpectedExternalError as error:  # in the operator's own Python
            raise NotStated(f"{error.filename}: {type(error.exception).__name__}: {error.exception}") from None
        except SyntaxError as error:
            raise NotStated(f"{error.filename}:{error.lineno}: {error.msg}") from None
    return load(hosts_from_pyinfra(cast(Any, made)), connection_keys())


def main(argv: Sequence[str]) -> int:
    """Print the settings."""
    if not argv:
        print(__doc__, file=sys.stderr)
        return 1
    try:
        settings = settings_of(argv[0], argv[1:])
    except (NotStated, PyinfraError, CliError) as error:
        print(error.message if isinstance(error, CliError) else error, file=sys.stderr)
        return 1
    # Without warnings: a list of pairs is a tuple once it is read.
    print(settings.model_dump_json(exclude={"lock"}, warnings=False))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
