"""Return the pair to a generation that passed its gates. It interrupts serving for one start. The settings stay as
they are, so that a deploy refuses the launch that was left until one of them is changed.

pyinfra inventory.py rollback.py                                       to the newest other one; shows it, and asks
pyinfra inventory.py rollback.py --data rollback_to=3f2a91c0d7e4       to this one (sudo sparkpair status names them)
"""

from pyinfra import inventory

from operations.run import as_set_up
from roles.rollback import preflight_rollback, rollback
from spec.load import settings_from_pyinfra
from spec.resolve import resolve

run = as_set_up(settings_from_pyinfra(inventory), resolve)

rollback(run=run, to=preflight_rollback(run), _sudo=True)
