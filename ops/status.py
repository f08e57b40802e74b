"""What the pair does, and why. Changes nothing.

pyinfra inventory.py ops/status.py
"""

from pyinfra import inventory

from operations.ops import tell
from spec.load import settings_from_pyinfra

tell(settings_from_pyinfra(inventory), "status")
