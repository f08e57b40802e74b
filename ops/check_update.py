"""Whether there is a newer release, asked by the head now. Changes nothing.

pyinfra inventory.py ops/check_update.py
"""

from pyinfra import inventory

from operations.ops import tell
from spec.load import settings_from_pyinfra

tell(settings_from_pyinfra(inventory), "check-update")
