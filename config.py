"""pyinfra's own settings, and guards where pyinfra 3.10 would end well although nothing was done.

pyinfra runs this file before it reads the inventory. No setting of ours stands here.
"""

import logging
import os
import signal
import stat
import sys

import click
from paramiko import BadHostKeyException
from pyinfra import config, state
from pyinfra.api.exceptions import ConnectError, InventoryError, PyinfraError
from pyinfra.api.state import BaseStateCallback, StateStage
from pyinfra.connectors.sshuserclient import SSHClient
from pyinfra_cli import cli

# The guards below lean on how this minor release calls State.init, State.fail_hosts, _do_confirm and
# SSHClient.connect.
config.REQUIRE_PYINFRA_VERSION = "~=3.10.0"
# With -y pyinfra goes on with the nodes that are left: half a pair.
config.FAIL_PERCENT = 0

_HERE = os.path.dirname(os.path.abspath(__file__))
_AGAIN = "Run the same command again: it goes on where this run stopped."


# Verbs that add no operation: there is nothing to confirm.
_LOOKING = (
    "verify.py",
    "fabric_test.py",
    "verify_image.py",
    "doctor.py",
    "status.py",
    "logs.py",
    "history.py",
    "version.py",
    "check_update.py",
    "support_bundle.py",
)


def _option(name):
    """An option of this command line; nothing when pyinfra is not run by its command."""
    context = click.get_current_context(silent=True)
    return context.params.get(name) if context else None


def _guard_inventory():
    """A mistyped file name: pyinfra takes it for a host, warns, and ends with 0."""
    name = _option("inventory")
    if name and (name.endswith(".py") or os.sep in name) and not os.path.isfile(name):
        here = ", ".join(sorted(entry for entry in os.listdir() if entry.startswith("inventory"))) or "none"
        raise InventoryError(f"there is no inventory {name} in {os.getcwd()} (there: {here}); no node was changed")


def _guard_prompt():
    """Nobody to confirm: pyinfra would end with a traceback after all the looking."""
    if _option("operations") is None or any(_option(name) for name in ("yes", "dry", "json_output")):
        return
    if _option("debug_facts") or _option("debug_operations") or _option("operations")[0] in ("debug-inventory", "fact"):
        return
    if all(os.path.basename(name) in _LOOKING for name in _option("operations")):
        return
    try:
        source = os.fstat(0)
    except OSError:
        source = None
    nothing = source is None or (stat.S_ISCHR(source.st_mode) and not os.isatty(0))
    if nothing:
        raise PyinfraError("nobody can confirm the plan here; add -y to carry it out, or --dry to see it")


def _guard_looking():
    """A verb that only looked: pyinfra would ask whether to carry out nothing, and fail where nobody answers."""
    confirm = cli._do_confirm

    def confirm_changes(message):
        return confirm(message) if state.op_meta else True

    cli._do_confirm = confirm_changes


def _guard_hosts():
    """A limit that matches nothing, or an inventory without hosts: pyinfra would end with 0, having done nothing."""
    init = state.init

    def guarded_init(inventory, config, initial_limit=None):
        init(inventory, config, initial_limit=initial_limit)
        names = [host.name for host in inventory]
        if not names:
            raise InventoryError(f"{_option('inventory')} names no host; no node was changed")
        if initial_limit is not None and not initial_limit:
            options = " ".join(
                f"--{option} {pattern}" for option in ("limit", "exclude") for pattern in _option(option) or ()
            )
            raise InventoryError(f"{options} leaves no host of {', '.join(names)}; no node was changed")
        _judge_settings(inventory)
        # What it would ask, "continue with the others?", has one right answer here.
        state.should_raise_failed_hosts = None

    state.init = guarded_init


def _judge_settings(inventory):
    """Before a node is reached: a typo is told at once, and although a node is off. deploy.py and verify.py load the
    same again, for whoever runs them without this file."""
    verbs = [name for name in _option("operations") or () if name.endswith(".py")]
    if any(os.path.dirname(os.path.abspath(name)) in (_HERE, os.path.join(_HERE, "ops")) for name in verbs):
        from spec.load import settings_from_pyinfra

        settings_from_pyinfra(inventory)


def _guard_screen():
    """A node that accepts the connection and says nothing, as a wedged one does: paramiko logs a traceback per attempt,
    which nobody formats, beside the line in which pyinfra says the same. With --debug-all they are still shown."""
    logging.getLogger("paramiko").addHandler(logging.NullHandler())


def _guard_host_keys():
    """A node that shows another host key than the pinned one: pyinfra warns in five lines, and names neither key."""
    connect = SSHClient.connect

    def guarded_connect(self, hostname, **arguments):
        from spec.transport import changed_host_key

        try:
            return connect(self, hostname, **arguments)
        except BadHostKeyException as error:
            port = (self._ssh_config or {}).get("port", 22)
            name = error.hostname if int(port) == 22 else f"[{error.hostname}]:{port}"
            text = changed_host_key(name, error.key, error.expected_key, self._host_keys_filename)
            raise ConnectError(text) from None

    SSHClient.connect = guarded_connect


def _guard_failures():
    """A node that fails ends the run with one sentence that says which, and what now. Doctor alone goes on with those
    that are left: which one is away, and why, is among what it is asked."""
    goes_on = [os.path.basename(name) for name in _option("operations") or ()] == ["doctor.py"]
    if goes_on:
        from facts.node import cannot_be_reached

        class Unreached(BaseStateCallback):
            @staticmethod
            def host_connect_error(state, host, error):
                cannot_be_reached(host, str(error))

        state_init = state.init

        def init(*arguments, **options):
            state_init(*arguments, **options)
            state.add_callback_handler(Unreached())

        state.init = init

    def fail_hosts(hosts_to_fail, activated_count=None):
        if not hosts_to_fail:
            return
        state.failed_hosts.update(hosts_to_fail)
        state.active_hosts -= hosts_to_fail
        if goes_on and state.current_stage <= StateStage.Connect and state.active_hosts:
            return
        names = ", ".join(sorted(host.name for host in hosts_to_fail))
        if state.current_stage <= StateStage.Connect:
            raise ConnectError(
                f"{names} cannot be reached (said above, with the reason); no node was changed. "
                "Is it on? Do address, user and key in the inventory let you in by ssh?"
            )
        if state.current_stage == StateStage.Prepare:
            raise PyinfraError(f"{names} gave no answer while it was looked at; no node was changed")
        # What became of a launch is said with what to do now, which is not the same command again.
        outcome = getattr(sys.modules.get("operations.follow"), "told", None)
        raise PyinfraError(f"stopped: the step above failed on {names}" + ("" if outcome else f". {_AGAIN}"))

    state.fail_hosts = fail_hosts


def _guard_signals():
    """Ctrl-C ends pyinfra with 0. What runs on the nodes by itself goes on: units, and the keeper."""
    words = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}

    def stop(number, frame):
        del frame
        began = state.current_stage >= StateStage.Execute
        after = f"What the nodes are doing by themselves, they finish. {_AGAIN}" if began else "No node was changed."
        # At once: unwinding would wait for the nodes.
        os.write(2, f"\n--> {words[number]}. {after}\n".encode())
        sys.stdout.flush()
        os._exit(128 + number)

    for number in words:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, stop)


_guard_inventory()
_guard_prompt()
_guard_looking()
_guard_hosts()
_guard_screen()
_guard_host_keys()
_guard_failures()
_guard_signals()
